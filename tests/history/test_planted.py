"""One small history for each anomaly: it is found, with the lines that make it up, and the sound ones are clean.

A history is written as operations, one after the other; `op` fills in the times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.history import anomalies
from tests.history.anomalies import AnomalyKind
from tests.history.checker import Verdict, check
from tests.history.held import ANSWERS, PAIRS_MIN
from tests.history.history_file import event_line, head_line, read_history
from tests.history.operations import Mode
from tests.history.report import as_json, as_text

P, Q = "t/0", "t/1"
CYCLES = (anomalies.G0, anomalies.G1C, anomalies.G_SINGLE, anomalies.G2)
"""What says that all partitions of a transaction are one step."""
Events = list[dict[str, Any]]


def send(partition: str, value: str, offset: int | None = None) -> list[Any]:
    return ["send", partition, value] if offset is None else ["send", partition, value, offset]


def poll(partition: str, *values: str, at: int = 0) -> list[Any]:
    return ["poll", partition, [[at + index, value] for index, value in enumerate(values)]]


def op(
    process: str, kind: str, *micro: list[Any], outcome: str | None = "ok", commit: bool = True, **more: Any
) -> Events:
    """An operation of one process. Times are added by `judge`, unless `at=(start, commit, end)` says them."""
    at: Sequence[int | None] = more.pop("at", (None, None, None))
    planned = [each[:3] for each in micro if each[0] == "send"]
    events: Events = [{"type": "invoke", "f": kind, "micro": planned, "at": at[0], **more}]
    if kind == "txn" and commit and outcome != "fail":
        events.append({"type": "commit", "at": at[1]})
    if outcome is not None:
        events.append({"type": outcome, "micro": list(micro), "at": at[2]})
    return [{"process": process, **event} for event in events]


def txn(process: str, *micro: list[Any], **more: Any) -> Events:
    return op(process, "txn", *micro, **{"group": process} | more)


def final(
    values: dict[str, Sequence[str]], *, isolation: str = "committed", ends: dict[str, int] | None = None
) -> Events:
    micro = [poll(partition, *found) for partition, found in values.items()]
    ends = ends or {partition: len(found) for partition, found in values.items()}
    return op("final", "final", *micro, isolation=isolation, ends=ends)


def lines_of(mode: Mode, operations: Sequence[Events], **about: Any) -> list[str]:
    timed: list[tuple[int, dict[str, Any]]] = []
    for number, events in enumerate(operations):
        for index, event in enumerate(events):
            time_us = (number + 1) * 100 + index * 10 if event["at"] is None else event["at"]
            untimed = {key: value for key, value in event.items() if key != "at"}
            timed.append((time_us, {"op": number, **untimed, "time_us": time_us}))
    return [head_line(mode, **about), *(event_line(event) for _time, event in sorted(timed, key=lambda each: each[0]))]


def judge(
    *operations: Events, mode: Mode = Mode.JOURNAL, shards: dict[str, int] | None = None, **bounds: Any
) -> Verdict:
    return check(read_history(lines_of(mode, operations, shards=shards or {})), **bounds)


SOUND: dict[str, list[Events]] = {
    "nothing at all": [],
    "a transaction, read by both kinds of consumers": [
        txn("a", send(P, "1"), send(Q, "2")),
        final({P: ["1"], Q: ["2"]}),
        final({P: ["1"], Q: ["2"]}, isolation="plain"),
    ],
    "an aborted transaction that nobody saw": [txn("a", send(P, "1"), outcome="fail"), final({P: []})],
    "a commit without an answer, not there": [txn("a", send(P, "1"), outcome="info"), final({P: []})],
    "a commit without an answer, there whole": [
        txn("a", send(P, "1"), send(Q, "2"), outcome=None),
        final({P: ["1"], Q: ["2"]}),
    ],
    "a plain record without an answer, there in part: it is no transaction": [
        op("a", "send", send(P, "1"), send(Q, "2"), outcome="info"),
        final({P: ["1"], Q: []}),
    ],
    "a consumer that is sent back": [
        op("a", "send", send(P, "1", 0), send(P, "2", 1)),
        op("r", "poll", poll(P, "1", "2")),
        op("r", "assign", positions={P: 0}),
        op("r", "poll", poll(P, "1")),
        op("r", "assign", revoked=[P]),
        op("r", "poll", poll(P, "1", "2")),
    ],
    "cuts that see more and more": [
        txn("a", send(P, "1"), send(Q, "2")),
        op("r", "poll", ends={P: 0, Q: 0}),
        op("s", "poll", ends={P: 1, Q: 1}),
        final({P: ["1"], Q: ["2"]}),
    ],
    "a prepared transaction that is not committed by anyone": [
        txn("a", send(P, "1"), outcome="info", commit=False),
        final({P: []}),
    ],
    "a prepared transaction whose commit is asked for twice, and seen before the second time": [
        txn("a", send(P, "1"), prepared=True, at=(100, 110, None), outcome=None),
        op("r", "poll", poll(P, "1"), at=(120, None, 130)),
        [{"process": "a", "type": "commit", "at": 140, "op": 0}, {"process": "a", "type": "ok", "at": 150, "op": 0}],
        final({P: ["1"]}),
    ],
    "a consumer group that goes over its input once": [
        op("a", "send", send(P, "1", 0), send(P, "2", 1)),
        txn("x", poll(P, "1"), send(Q, "y"), consumer_group="g"),
        txn("x", poll(P, "2", at=1), consumer_group="g", outcome="fail"),
        op("x", "assign", positions={P: 1}),
        txn("x", poll(P, "2", at=1), consumer_group="g"),
    ],
}


def left_open(
    number: int, *, seen: bool, sends: int = ANSWERS, cut: bool = True, plain: bool = False, behind: bool = True
) -> list[Events]:
    """A transaction "hung", and a record "w" beside it: seen while that is open, or only behind its end.

    Meanwhile plain records are sent to Q, and a cut is taken, or somebody polls who is not told how far. In P the
    record stands behind the transaction's, or before it. Each is a second after the one of the number before.
    """
    at, there = number * 1_000_000, sends * number
    here, of_hung = 2 * number + behind, 2 * number + (not behind)
    mine = f"w {number}"
    operations = [
        txn("hung", send(P, f"hung {number}", of_hung), at=(at, at + 900_000, at + 900_010)),
        op("w", "send", send(P, mine, here), at=(at + 100, None, at + 120))
        if plain
        else txn("w", send(P, mine, here), at=(at + 100, at + 110, at + 120)),
    ]
    for index in range(there, there + sends):
        start = at + 200 + (index - there) * 10
        operations.append(op("q", "send", send(Q, f"q {index}", index), at=(start, None, start + 5)))
    ends = {P: 2 * number, Q: there + sends} if cut else {}
    operations.append(op("c", "poll", at=(at + 800_000, None, at + 800_010), ends=ends))
    seen_us = at + (500_000 if seen else 950_000)
    operations.append(op("r", "assign", positions={P: here}, at=(seen_us, None, seen_us)))
    operations.append(op("r", "poll", poll(P, mine, at=here), at=(seen_us + 1, None, seen_us + 2)))
    return operations


def all_left_open(count: int, **how: Any) -> list[Events]:
    return [each for number in range(count) for each in left_open(number, **how)]


TWO_READS = [op("r", "poll", poll(P, "1")), op("s", "poll", poll(P, "2"))]

PLANTED: dict[str, tuple[AnomalyKind, tuple[int, ...], list[Events]]] = {
    "an end before a record that was answered": (
        anomalies.STALE_END,
        (2, 4),
        [op("a", "send", send(P, "1", 0)), op("q", "end", isolation="plain", ends={P: 0}), final({P: ["1"]})],
    ),
    "the commit of a prepared transaction is refused": (
        anomalies.REFUSED_COMMIT,
        (2,),
        [
            [
                {"process": "a", "type": "invoke", "f": "txn", "micro": [send(P, "1")], "at": None},
                {"process": "a", "type": "commit", "prepared": True, "at": None},
                {"process": "a", "type": "fail", "at": None},
            ],
            final({P: []}),
        ],
    ),
    "a consumer is told that its offset is out of range": (
        anomalies.LOST_PLACE,
        (4,),
        [op("a", "send", send(P, "1", 0)), op("r", "poll", outcome="fail"), final({P: ["1"]})],
    ),
    "an aborted transaction is read": (
        anomalies.ABORTED_READ,
        (2, 4),
        [txn("a", send(P, "1"), outcome="fail"), op("r", "poll", poll(P, "1"))],
    ),
    "a transaction that nobody asked to commit is read": (
        anomalies.ABORTED_READ,
        (2, 4),
        [txn("a", send(P, "1"), outcome="info", commit=False), op("r", "poll", poll(P, "1"))],
    ),
    "a refused plain record is read": (
        anomalies.ABORTED_READ,
        (2, 4),
        [op("a", "send", send(P, "1"), outcome="fail"), op("r", "poll", poll(P, "1"))],
    ),
    "an aborted transaction is read by a plain consumer": (
        anomalies.PLAIN_ABORTED_READ,
        (2, 4),
        [txn("a", send(P, "1"), outcome="fail"), op("r", "poll", poll(P, "1"), isolation="plain")],
    ),
    "a transaction reads what it wrote": (
        anomalies.PRECOMMITTED_READ,
        (2,),
        [txn("a", send(P, "1"), poll(P, "1"))],
    ),
    "a record is read before its commit is asked for": (
        anomalies.EARLY_READ,
        (2, 3),
        [txn("a", send(P, "1"), at=(100, 300, 310)), op("r", "poll", poll(P, "1"), at=(110, None, 299))],
    ),
    "a plain consumer reads before the commit is asked for": (
        anomalies.PLAIN_EARLY_READ,
        (2, 3),
        [
            txn("a", send(P, "1"), at=(100, 300, 310)),
            op("r", "poll", poll(P, "1"), at=(110, None, 299), isolation="plain"),
        ],
    ),
    "a record appears that nobody sent": (anomalies.PHANTOM, (2,), [op("r", "poll", poll(P, "1"))]),
    "a record appears in another partition": (
        anomalies.PHANTOM,
        (4,),
        [op("a", "send", send(Q, "1")), op("r", "poll", poll(P, "1"))],
    ),
    "a committed transaction is not there": (
        anomalies.LOST_WRITE,
        (2, 5),
        [txn("a", send(P, "1")), final({P: []})],
    ),
    "a record without an answer is read, and then gone": (
        anomalies.LOST_WRITE,
        (2, 6),
        [op("a", "send", send(P, "1"), outcome="info"), op("r", "poll", poll(P, "1")), final({P: []})],
    ),
    "of a commit without an answer a part is there": (
        anomalies.TORN_TRANSACTION,
        (2, 4),
        [txn("a", send(P, "1"), send(Q, "2"), outcome=None), final({P: ["1"], Q: []})],
    ),
    "a record stands twice": (
        anomalies.DUPLICATE,
        (4, 4),
        [op("a", "send", send(P, "1")), final({P: ["1", "1"]})],
    ),
    "a record is answered elsewhere than it is read": (
        anomalies.DUPLICATE,
        (2, 4),
        [op("a", "send", send(P, "1", 7)), op("r", "poll", poll(P, "1"))],
    ),
    "two consumers read different records at an offset": (
        anomalies.INCONSISTENT_OFFSET,
        (4, 6),
        [op("a", "send", send(P, "1"), send(P, "2")), *TWO_READS],
    ),
    "a consumer passes over a record": (
        anomalies.POLL_SKIP,
        (4, 6),
        [
            op("a", "send", send(P, "1", 0), send(P, "2", 1), send(P, "3", 2)),
            op("r", "poll", poll(P, "1")),
            op("r", "poll", poll(P, "3", at=2)),
        ],
    ),
    "a consumer does not begin where it was sent": (
        anomalies.POLL_SKIP,
        (4, 6),
        [
            op("a", "send", send(P, "1", 0), send(P, "2", 1)),
            op("r", "assign", positions={P: 0}),
            op("r", "poll", poll(P, "2", at=1)),
        ],
    ),
    "a consumer comes to the end without a record": (
        anomalies.POLL_SKIP,
        (4, 4),
        [op("a", "send", send(P, "1", 0), send(P, "2", 1)), final({P: ["1"]}, ends={P: 2})],
    ),
    "a consumer comes back": (
        anomalies.NONMONOTONIC_POLL,
        (4, 6),
        [
            op("a", "send", send(P, "1"), send(P, "2")),
            op("r", "poll", poll(P, "1", "2")),
            op("r", "poll", poll(P, "1")),
        ],
    ),
    "a transaction's records stand in another order": (
        anomalies.NONMONOTONIC_SEND,
        (2,),
        [txn("a", send(P, "1"), send(P, "2")), final({P: ["2", "1"]})],
    ),
    "a producer's records stand in another order": (
        anomalies.NONMONOTONIC_SEND,
        (2, 4),
        [op("a", "send", send(P, "1")), op("a", "send", send(P, "2")), final({P: ["2", "1"]})],
    ),
    "a group processes a record twice": (
        anomalies.CONSUMED_TWICE,
        (4, 7),
        [
            op("a", "send", send(P, "1")),
            txn("x", poll(P, "1"), consumer_group="g"),
            txn("y", poll(P, "1"), consumer_group="g"),
        ],
    ),
    "a group passes over a record": (
        anomalies.CONSUMED_NEVER,
        (4,),
        [op("a", "send", send(P, "1", 0), send(P, "2", 1)), txn("x", poll(P, "2", at=1), consumer_group="g")],
    ),
    "offsets have a hole": (
        anomalies.OFFSET_GAP,
        (4,),
        [op("a", "send", send(P, "1", 0), send(P, "2", 2)), op("r", "poll", ["poll", P, [[0, "1"], [2, "2"]]])],
    ),
    "there is an offset behind the last record": (
        anomalies.OFFSET_GAP,
        (4, 4),
        [op("a", "send", send(P, "1", 0)), final({P: ["1"]}, ends={P: 2})],
    ),
    "a transaction's records are apart": (
        anomalies.INTERLEAVED,
        (2,),
        [txn("a", send(P, "1"), send(P, "3")), txn("b", send(P, "2")), final({P: ["1", "2", "3"]})],
    ),
    "two transactions of an id stand in another order": (
        anomalies.GROUP_ORDER,
        (2, 5),
        [txn("a", send(P, "1")), txn("b", send(P, "2"), group="a"), final({P: ["2", "1"]})],
    ),
    "two transactions stand in two orders": (
        anomalies.G0,
        (2, 5),
        [
            txn("a", send(P, "1"), send(Q, "2")),
            txn("b", send(P, "3"), send(Q, "4")),
            final({P: ["1", "3"], Q: ["4", "2"]}),
        ],
    ),
    "two transactions read each other's records": (
        anomalies.G1C,
        (2, 3),
        [
            txn("a", send(P, "1"), poll(Q, "2"), at=(100, 120, 140)),
            txn("b", send(Q, "2"), poll(P, "1"), at=(101, 121, 141)),
        ],
    ),
    "a transaction reads one that stands behind it": (
        anomalies.G1C,
        (2, 3),
        [
            txn("a", send(P, "1"), poll(Q, "3"), at=(100, 120, 140)),
            txn("b", send(P, "2"), send(Q, "3"), at=(101, 121, 141)),
            final({P: ["1", "2"], Q: ["3"]}),
        ],
    ),
    "a cut sees half a transaction": (
        anomalies.G_SINGLE,
        (2, 5),
        [
            txn("a", send(P, "1"), send(Q, "2")),
            op("r", "poll", ends={P: 1, Q: 0}),
            final({P: ["1"], Q: ["2"]}),
        ],
    ),
    "two cuts see two records in two orders": (
        anomalies.G2,
        (2, 4, 6, 8),
        [
            op("a", "send", send(P, "1", 0)),
            op("b", "send", send(Q, "2", 0)),
            op("r", "poll", ends={P: 1, Q: 0}),
            op("s", "poll", ends={P: 0, Q: 1}),
        ],
    ),
    "transactions wait for the end of an open one": (anomalies.HELD, (2, 3), all_left_open(PAIRS_MIN, seen=False)),
    "plain records wait for the end of an open transaction": (
        anomalies.HELD,
        (2, 3),
        all_left_open(PAIRS_MIN, seen=False, plain=True),
    ),
}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", SOUND)
def test_checker_sound_history_is_clean(name: str, mode: Mode) -> None:
    """Nothing is found where nothing is wrong."""
    verdict = judge(*SOUND[name], mode=mode)
    assert not verdict.found, as_text(verdict)


@pytest.mark.parametrize("name", PLANTED)
def test_checker_planted_anomaly_is_found_with_its_lines(name: str) -> None:
    """Each is found under its name, and the lines of its operations are given."""
    kind, lines, operations = PLANTED[name]
    verdict = judge(*operations)
    assert kind in verdict.violations, as_text(verdict)
    assert sorted(verdict.found[kind].examples[0].lines) == sorted(lines), as_text(verdict)
    assert kind.name in as_text(verdict)
    assert json.loads(as_json(verdict))["anomalies"][kind.name]["examples"][0]["lines"]


@pytest.mark.parametrize("name", PLANTED)
def test_checker_cycle_over_shards_is_allowed_and_nothing_else_is(name: str) -> None:
    """Over shards only each shard's part of a transaction is one step; every other promise is as in one shard."""
    kind, _lines, operations = PLANTED[name]
    verdict = judge(*operations, shards={P: 0, Q: 1})
    assert (kind in verdict.violations) == (kind not in CYCLES), as_text(verdict)


@pytest.mark.parametrize("name", PLANTED)
def test_checker_anomaly_within_one_of_several_shards_is_found(name: str) -> None:
    """Partitions of one shard are held to what they are held to where there is no other."""
    kind, _lines, operations = PLANTED[name]
    assert kind in judge(*operations, shards={P: 1, Q: 1, "u/0": 0}).violations


def test_checker_planted_histories_cover_the_catalogue() -> None:
    """No anomaly is without its history."""
    assert {kind for kind, _lines, _operations in PLANTED.values()} == set(anomalies.KINDS)


@pytest.mark.parametrize("name", PLANTED)
def test_checker_anomaly_of_marker_mode_is_counted_and_forbidden_only_where_promised(name: str) -> None:
    """The same histories in marker mode: what Kafka allows is found as well, and is no violation of that kind."""
    kind, _lines, operations = PLANTED[name]
    verdict = judge(*operations, mode=Mode.MARKERS)
    assert kind in verdict.found
    assert (kind in verdict.violations) == (Mode.MARKERS in kind.forbidden)


def _visible_after(beside_us: int, alone_us: int) -> list[Events]:
    """Forty records: twenty beside a transaction that stays open, twenty before it was begun."""
    operations: list[Events] = []
    offset = 0
    for start, delay_us in ((0, alone_us), (10_000_000, beside_us)):
        for number in range(20):
            at = start + 1_000_000 + number * 100_000
            value = f"{start}-{number}"
            operations.append(txn("w", send(P, value), at=(at, at + 10, at + 20)))
            operations.append(op("r", "poll", poll(P, value, at=offset), at=(at, None, at + 20 + delay_us)))
            offset += 1
    operations.append(txn("hung", send(P, "never"), outcome=None, commit=False, at=(9_000_000, None, None)))
    return operations


def test_checker_delays_are_shown_and_not_judged() -> None:
    """Medians and their ratio are in the report, however long things take."""
    verdict = judge(*_visible_after(50_000, 5_000))
    assert verdict.valid, as_text(verdict)
    assert verdict.delays.transactions.ratio == pytest.approx(10.0)
    assert "10.0 times as long" in as_text(verdict)


def test_checker_delay_of_transactions_is_not_compared_with_that_of_plain_records() -> None:
    """A commit is seen later than a plain record, whatever else is open: only like is compared with like."""
    slow = _visible_after(beside_us=50_000, alone_us=50_000)
    quick: list[Events] = []
    for number in range(60):
        at, value = 4_000_000 + number * 10_000, f"plain {number}"
        quick.append(op("p", "send", send(Q, value, number), at=(at, None, at + 20)))
        quick.append(op("r", "poll", poll(Q, value, at=number), at=(at, None, at + 20 + 5_000)))
    verdict = judge(*slow, *quick)
    assert verdict.delays.transactions.ratio == pytest.approx(1.0)
    assert (verdict.delays.plain.alone_us, verdict.delays.plain.alone_count) == (5_000, 60)


def test_checker_few_records_beside_an_open_transaction_have_no_ratio() -> None:
    """Medians of less than twenty records are shown, and not compared."""
    assert judge(*_visible_after(50_000, 5_000)[:-20]).delays.transactions.ratio is None


@pytest.mark.parametrize("plain", [False, True])
def test_checker_records_seen_beside_open_transactions_are_not_held(plain: bool) -> None:
    """They are judged, and nothing is found; and the report says how many were."""
    verdict = judge(*all_left_open(PAIRS_MIN, seen=True, plain=plain))
    beside = verdict.beside.plain if plain else verdict.beside.transactions
    assert not verdict.found, as_text(verdict)
    assert (len(beside.pairs), beside.records, beside.late) == (PAIRS_MIN, PAIRS_MIN, 0)
    assert f"0 of {PAIRS_MIN} pairs held" in as_text(verdict)


@pytest.mark.parametrize("stopped", [{"sends": ANSWERS - 1}, {"cut": False}], ids=["the broker", "its readers"])
def test_checker_record_late_on_a_machine_that_stood_still_is_not_judged(stopped: dict[str, Any]) -> None:
    """Behind the end of the open transaction everything is seen; but nothing else went on before, or nobody looked."""
    verdict = judge(*all_left_open(PAIRS_MIN, seen=False, **stopped))
    assert not verdict.found, as_text(verdict)
    assert not verdict.beside.transactions.pairs
    assert "not judged" in as_text(verdict)


def test_checker_few_transactions_that_hold_others_are_counted_and_say_nothing() -> None:
    """Of fewer pairs than are judged all are held; of enough of them only half are: neither is a pattern."""
    few = judge(*all_left_open(PAIRS_MIN - 1, seen=False))
    assert few.valid
    assert f"{PAIRS_MIN - 1} of {PAIRS_MIN - 1} pairs held" in as_text(few)
    assert f"not judged, that takes {PAIRS_MIN}" in as_text(few)
    half = [each for number in range(2 * PAIRS_MIN) for each in left_open(number, seen=number % 2 == 0)]
    assert judge(*half).valid
    more = [*half, *left_open(2 * PAIRS_MIN, seen=False)]
    assert list(judge(*more).violations) == [anomalies.HELD]


def test_checker_one_stop_of_the_copy_is_not_many_transactions_that_hold_others() -> None:
    """A hundred records that are late beside one transaction are one pair."""
    first, *others = (left_open(number, seen=number > 0) for number in range(PAIRS_MIN))
    for number in range(100):
        first.append(txn(f"w{number}", send(P, f"late {number}"), at=(105, 110, 120)))
    verdict = judge(*first, *(each for operations in others for each in operations))
    assert not verdict.found, as_text(verdict)
    assert (verdict.beside.transactions.late, len(verdict.beside.transactions.held)) == (101, 1)


def test_checker_pair_of_which_half_is_late_is_not_held() -> None:
    """Beside each transaction one record is seen, and one is not."""
    late = [txn(f"v{n}", send(P, f"v {n}"), at=(n * 1_000_000 + 105,) * 3) for n in range(PAIRS_MIN)]
    beside = judge(*all_left_open(PAIRS_MIN, seen=True), *late).beside.transactions
    assert (beside.records, beside.late, len(beside.held)) == (2 * PAIRS_MIN, PAIRS_MIN, 0)


def test_checker_record_before_an_open_transactions_is_not_held_by_markers() -> None:
    """There a transaction holds what stands behind it; in journal mode it stands nowhere while it is open."""
    before = all_left_open(PAIRS_MIN, seen=False, behind=False)
    assert not judge(*before, mode=Mode.MARKERS).beside.transactions.pairs
    assert len(judge(*before).beside.transactions.held) == PAIRS_MIN


def test_checker_transaction_that_was_not_committed_may_have_ended_at_any_time() -> None:
    """A broker that is restarted aborts what is open: what is seen then was not held by it."""
    operations = all_left_open(PAIRS_MIN, seen=False)
    for events in operations:
        if events[0]["process"] == "hung":
            events[-1]["type"] = "fail"
    verdict = judge(*operations)
    assert not verdict.beside.transactions.pairs
    assert anomalies.HELD not in verdict.found


@pytest.mark.parametrize("isolation", ["committed", "plain"])
@pytest.mark.parametrize("mode", Mode)
def test_checker_end_is_stale_if_a_record_was_answered_before_the_question(mode: Mode, isolation: str) -> None:
    """Of a plain record and of a transaction; what is answered after the question does not count."""
    operations = [
        op("w", "send", send(P, "1", 0)),
        txn("t", send(P, "2")),
        op("q", "end", isolation=isolation, ends={P: 2}),
        op("w", "send", send(P, "3", 2)),
        final({P: ["1", "2", "3"]}),
    ]
    assert anomalies.STALE_END not in judge(*operations, mode=mode).found
    operations[2] = op("q", "end", isolation=isolation, ends={P: 1})
    # With markers a transaction may be open there, and nobody knows which.
    judged = mode is Mode.JOURNAL or isolation == "plain"
    assert (anomalies.STALE_END in judge(*operations, mode=mode).found) == judged


def test_report_examples_are_limited_and_the_count_is_not() -> None:
    """A thousand of a kind are counted, and the first few shown."""
    verdict = judge(*(op(f"r{number}", "poll", poll(P, f"{number}", at=number)) for number in range(100)), examples=3)
    assert verdict.found[anomalies.PHANTOM].count == 100
    assert len(verdict.found[anomalies.PHANTOM].examples) == 3
    assert "and 97 more" in as_text(verdict)
