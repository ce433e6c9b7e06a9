"""One mutation for each anomaly: takes a clean history's events and plants it somewhere at random. Pure.

A mutation changes the events that it is given, and answers whether it found a place for its anomaly. It often plants
others along with it: a record that is lost is also skipped by whoever reads on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.history import anomalies
from tests.history.anomalies import AnomalyKind
from tests.history.model import Event
from tests.history.operations import Mode

Mutation = Callable[[list[Event], random.Random, Mode], bool]
LATE_US = 1 << 40
"""After all that the model does."""


@dataclass(frozen=True, slots=True)
class _Op:
    """An operation's events, with what is asked of it here."""

    invoke: Event
    last: Event | None
    commit: Event | None

    @property
    def sends(self) -> list[list[Any]]:
        return [each for each in (self.last or {}).get("micro", self.invoke.get("micro", [])) if each[0] == "send"]

    @property
    def polls(self) -> list[list[Any]]:
        return [each for each in (self.last or {}).get("micro", []) if each[0] == "poll"]

    @property
    def outcome(self) -> str:
        return "info" if self.last is None else self.last["type"]


def _ops(events: list[Event], kind: str | None = None) -> list[_Op]:
    found: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        found.setdefault((event["process"], event["op"]), []).append(event)
    ops = [
        _Op(
            group[0],
            next((each for each in group if each["type"] in ("ok", "fail", "info")), None),
            next((each for each in group if each["type"] == "commit"), None),
        )
        for group in found.values()
    ]
    return [op for op in ops if kind is None or op.invoke["f"] == kind]


def _reads(events: list[Event]) -> Iterator[list[Any]]:
    """All [offset, value] pairs, to be changed in place."""
    for event in events:
        for each in event.get("micro", ()):
            if each[0] == "poll":
                yield from each[2]


def _final(events: list[Event], isolation: str) -> _Op:
    return next(op for op in _ops(events, "final") if op.invoke["isolation"] == isolation)


def _places(events: list[Event]) -> dict[str, tuple[str, int]]:
    """Where each committed value stands."""
    return {
        value: (partition, offset)
        for _poll, partition, records in _final(events, "committed").polls
        for offset, value in records
    }


def _append(final: _Op, partition: str, value: str) -> None:
    """Let a final reading see one record more at the end."""
    assert final.last is not None
    end = final.last["ends"][partition]
    next(each for each in final.polls if each[1] == partition)[2].append([end, value])
    final.last["ends"][partition] = end + 1


def _add(events: list[Event], process: str, kind: str, time_us: int, invoke: Event, last: Event) -> None:
    """A new operation of a new process, in its place in time."""
    events.append({"time_us": time_us, "process": process, "op": 0, "type": "invoke", "f": kind, **invoke})
    events.append({"time_us": time_us, "process": process, "op": 0, "type": "ok", **last})
    events.sort(key=lambda event: event["time_us"])


def _chosen(rng: random.Random, candidates: list[Any]) -> Any:
    return rng.choice(candidates) if candidates else None


def _never_committed(events: list[Event], isolation: str, rng: random.Random) -> bool:
    sends = [op.sends[0] for op in _ops(events, "txn") if op.sends and (op.outcome == "fail" or op.commit is None)]
    send = _chosen(rng, sends)
    if send is not None:
        _append(_final(events, isolation), send[1], send[2])
    return send is not None


def aborted_read(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    return _never_committed(events, "committed", rng)


def plain_aborted_read(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    return _never_committed(events, "plain", rng)


def precommitted_read(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    op = _chosen(rng, [op for op in _ops(events, "txn") if op.outcome == "ok" and op.sends])
    if op is None:
        return False
    _send, partition, value, *_offset = op.sends[0]
    op.last["micro"].append(["poll", partition, [[places[value][1], value]]])
    return True


def _too_early(events: list[Event], isolation: str, rng: random.Random) -> bool:
    places = _places(events)
    op = _chosen(rng, [op for op in _ops(events, "txn") if op.outcome == "ok" and op.sends])
    if op is None:
        return False
    _send, partition, value, *_offset = op.sends[0]
    time_us = rng.randint(op.invoke["time_us"], op.commit["time_us"] - 1)
    micro = [["poll", partition, [[places[value][1], value]]]]
    _add(events, "early", "poll", time_us, {"isolation": isolation}, {"micro": micro})
    return True


def early_read(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    return _too_early(events, "committed", rng)


def plain_early_read(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    return _too_early(events, "plain", rng)


def phantom(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    _append(_final(events, rng.choice(["committed", "plain"])), "out/0", "nobody.0")
    return True


def _drop(events: list[Event], value: str) -> None:
    """Nobody sees this record."""
    for event in events:
        for each in event.get("micro", ()):
            if each[0] == "poll":
                each[2][:] = [record for record in each[2] if record[1] != value]


def lost_write(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    send = _chosen(rng, [send for op in _ops(events) if op.outcome == "ok" for send in op.sends])
    if send is not None:
        _drop(events, send[2])
    return send is not None


def torn_transaction(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    candidates = [op for op in _ops(events, "txn") if op.outcome == "ok" and len(op.sends) > 1]
    op = _chosen(rng, candidates)
    if op is not None:
        op.last["type"] = "info"
        for send in rng.sample(op.sends, rng.randint(1, len(op.sends) - 1)):
            _drop(events, send[2])
    return op is not None


def duplicate(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    value = _chosen(rng, sorted(_places(events)))
    if value is not None:
        _append(_final(events, "committed"), _places(events)[value][0], value)
    return value is not None


def inconsistent_offset(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    pairs = [
        pair for pair in itertools.pairwise(sorted(places, key=lambda value: places[value]))
        if places[pair[0]][0] == places[pair[1]][0]
    ]  # fmt: skip
    pair = _chosen(rng, pairs)
    if pair is None:
        return False
    partition, offset = places[pair[0]]
    _add(events, "other", "poll", LATE_US, {}, {"micro": [["poll", partition, [[offset, pair[1]]]]]})
    return True


def _long_polls(events: list[Event], least: int) -> list[list[Any]]:
    return [
        poll[2] for op in (*_ops(events, "poll"), *_ops(events, "final")) for poll in op.polls if len(poll[2]) >= least
    ]


def poll_skip(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    records = _chosen(rng, _long_polls(events, 3))
    if records is None:
        return False
    value = records.pop(rng.randint(1, len(records) - 2))[1]
    return any(value == other for _offset, other in _reads(events))


def nonmonotonic_poll(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    records = _chosen(rng, _long_polls(events, 2))
    if records is None:
        return False
    at = rng.randrange(len(records) - 1)
    records[at], records[at + 1] = records[at + 1], records[at]
    return True


def nonmonotonic_send(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    ok = [op for op in _ops(events) if op.outcome == "ok"]
    op = _chosen(rng, [op for op in ok if len({places[send[2]][0] for send in op.sends}) < len(op.sends)])
    if op is not None:
        op.last["micro"].reverse()
    return op is not None


def _transformers(events: list[Event]) -> list[_Op]:
    return [op for op in _ops(events, "txn") if "consumer_group" in op.invoke and op.outcome == "ok" and op.polls]


def _polled(event: Event | None) -> list[list[Any]]:
    return [record for each in (event or {}).get("micro", ()) if each[0] == "poll" for record in each[2]]


def consumed_twice(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    ops = _transformers(events)
    if len(ops) < 2:
        return False
    first, second = rng.sample(ops, 2)
    second.last["micro"] += first.polls
    return True


def consumed_never(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    ops = _transformers(events)
    unknown = [op for op in _ops(events, "txn") if "consumer_group" in op.invoke and op.outcome == "info"]
    perhaps = {record[0] for op in unknown for event in (op.commit, op.last) for record in _polled(event)}
    op = _chosen(rng, [op for op in ops[:-1] if not perhaps & {record[0] for record in _polled(op.last)}])
    if op is None:
        return False
    op.last["micro"] = op.sends
    return True


def offset_gap(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    partition, offset = _chosen(rng, sorted(_places(events).values())) or (None, 0)
    if partition is None:
        return False
    for event in events:
        for each in event.get("micro", ()):
            if each[:2] == ["poll", partition]:
                for record in each[2]:
                    record[0] += record[0] >= offset
            elif each[:2] == ["send", partition] and len(each) == 4:
                each[3] += each[3] >= offset
        for key in ("ends", "positions"):
            if event.get(key, {}).get(partition) is not None:
                event[key][partition] += event[key][partition] > offset
    return True


def _exchange(events: list[Event], first: str, second: str) -> None:
    """Two records stand in each other's place, for everybody."""
    other = {first: second, second: first}
    places = _places(events)
    for record in _reads(events):
        record[1] = other.get(record[1], record[1])
    for event in events:
        for each in event.get("micro", ()):
            if each[0] == "send" and each[2] in other and len(each) == 4:
                each[3] = places[other[each[2]]][1]


def _transactional(events: list[Event]) -> dict[str, _Op]:
    return {send[2]: op for op in _ops(events, "txn") if op.outcome == "ok" for send in op.sends}


def interleaved(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    writers = _transactional(events)
    triples = [
        (second, third)
        for poll in _final(events, "committed").polls
        for (_o1, first), (_o2, second), (_o3, third) in zip(poll[2], poll[2][1:], poll[2][2:], strict=False)
        if first in writers and writers.get(first) == writers.get(second) and writers.get(third) != writers[first]
    ]
    chosen = _chosen(rng, triples)
    if chosen is not None:
        _exchange(events, *chosen)
    return chosen is not None


def _pairs_in(events: list[Event], partition: str) -> list[tuple[str, str]]:
    """Two transactional records of a partition, the earlier one first; each the only one of its transaction there."""
    writers = _transactional(events)
    alone = [
        value
        for poll in _final(events, "committed").polls
        for _offset, value in poll[2]
        if poll[1] == partition and value in writers and sum(send[1] == partition for send in writers[value].sends) == 1
    ]
    return list(itertools.combinations(alone, 2))


def group_order(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    writers = _transactional(events)
    pairs = [
        pair
        for partition in ("out/0", "out/1", "out/2")
        for pair in _pairs_in(events, partition)
        if writers[pair[0]].invoke["group"] == writers[pair[1]].invoke["group"]
    ]
    pair = _chosen(rng, pairs)
    if pair is not None:
        _exchange(events, *pair)
    return pair is not None


def g0(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    writers = _transactional(events)

    def by_transaction(partition: str) -> dict[tuple[int, int], tuple[str, str]]:
        return {(id(writers[a].invoke), id(writers[b].invoke)): (a, b) for a, b in _pairs_in(events, partition)}

    first, second = by_transaction("out/0"), by_transaction("out/1")
    pair = _chosen(rng, [second[key] for key in second if key in first])
    if pair is not None:
        _exchange(events, *pair)
    return pair is not None


def g1c(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places, writers = _places(events), _transactional(events)
    pairs = [pair for partition in ("out/0", "out/1", "out/2") for pair in _pairs_in(events, partition)]
    pair = _chosen(rng, pairs)
    if pair is None:
        return False
    earlier, later = pair
    partition, offset = places[later]
    last = writers[earlier].last
    assert last is not None
    last["micro"] = [["poll", partition, [[offset, later]]], *last["micro"]]
    return True


def g_single(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    ops = [op for op in _ops(events, "txn") if op.outcome == "ok" and len({send[1] for send in op.sends}) > 1]
    op = _chosen(rng, ops)
    if op is None:
        return False
    first = op.sends[0]
    other = next(send for send in op.sends if send[1] != first[1])
    ends = {first[1]: places[first[2]][1] + 1, other[1]: places[other[2]][1]}
    _add(events, "fractured", "poll", LATE_US, {}, {"ends": ends})
    return True


def long_fork(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    plain = [send[2] for op in _ops(events, "send") for send in op.sends if send[2] in places]
    pairs = [(a, b) for a, b in itertools.combinations(plain, 2) if places[a][0] != places[b][0]]
    pair = _chosen(rng, pairs)
    if pair is None:
        return False
    (p, p_offset), (q, q_offset) = places[pair[0]], places[pair[1]]
    _add(events, "fork-1", "poll", LATE_US, {}, {"ends": {p: p_offset + 1, q: q_offset}})
    _add(events, "fork-2", "poll", LATE_US, {}, {"ends": {p: p_offset, q: q_offset + 1}})
    return True


def stale_end(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    places = _places(events)
    isolations = ("plain", "committed") if mode is Mode.JOURNAL else ("plain",)
    pairs = [
        (asker.last, places[send[2]])
        for asker in _ops(events, "end")
        if asker.last is not None and asker.invoke["isolation"] in isolations
        for writer in _ops(events)
        if writer.outcome == "ok" and writer.last is not None and writer.last["time_us"] < asker.invoke["time_us"]
        for send in writer.sends
        if send[2] in places
    ]
    answer, (partition, offset) = _chosen(rng, pairs) or (None, ("", 0))
    if answer is None:
        return False
    answer["ends"][partition] = rng.randint(0, offset)
    return True


def refused_commit(events: list[Event], rng: random.Random, mode: Mode) -> bool:
    op = _chosen(rng, [op for op in _ops(events, "txn") if op.outcome == "ok" and op.sends])
    if op is None:
        return False
    op.commit["prepared"] = True
    op.last["type"] = "fail"
    for send in op.sends:
        _drop(events, send[2])
    return True


def lost_place(events: list[Event], rng: random.Random, _mode: Mode) -> bool:
    op = _chosen(rng, [op for op in _ops(events, "poll") if op.outcome == "ok"])
    if op is None or op.last is None:
        return False
    op.last.update(type="fail", micro=[])
    return True


MUTATIONS: dict[Mutation, tuple[AnomalyKind, ...]] = {
    aborted_read: (anomalies.ABORTED_READ,),
    plain_aborted_read: (anomalies.PLAIN_ABORTED_READ,),
    precommitted_read: (anomalies.PRECOMMITTED_READ,),
    early_read: (anomalies.EARLY_READ,),
    plain_early_read: (anomalies.PLAIN_EARLY_READ,),
    phantom: (anomalies.PHANTOM,),
    lost_write: (anomalies.LOST_WRITE,),
    torn_transaction: (anomalies.TORN_TRANSACTION,),
    duplicate: (anomalies.DUPLICATE,),
    inconsistent_offset: (anomalies.INCONSISTENT_OFFSET,),
    poll_skip: (anomalies.POLL_SKIP,),
    nonmonotonic_poll: (anomalies.NONMONOTONIC_POLL,),
    nonmonotonic_send: (anomalies.NONMONOTONIC_SEND,),
    consumed_twice: (anomalies.CONSUMED_TWICE,),
    consumed_never: (anomalies.CONSUMED_NEVER,),
    offset_gap: (anomalies.OFFSET_GAP,),
    interleaved: (anomalies.INTERLEAVED,),
    group_order: (anomalies.GROUP_ORDER,),
    g0: (anomalies.G0,),
    g1c: (anomalies.G1C,),
    g_single: (anomalies.G_SINGLE,),
    stale_end: (anomalies.STALE_END,),
    refused_commit: (anomalies.REFUSED_COMMIT,),
    lost_place: (anomalies.LOST_PLACE,),
    long_fork: (anomalies.G2, anomalies.G_SINGLE),
}
"""What each plants. Two records that two cuts saw in two orders may depend on each other: then it is a G-single."""
EXEMPT = (anomalies.HELD,)
"""A matter of most transactions that were left open, and not of a single place."""
