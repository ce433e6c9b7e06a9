"""`hung`: what other consumers see while a transaction is left open.

If records are stored in the order in which they were sent, a consumer of committed records can only read up to the
beginning of the oldest open transaction: everything after it waits, whichever producer wrote it. How long do records
wait here?

    before     records and transactions as in `visible`
    during     the same, while another producer's transaction is open with a record in each partition; then it aborts
    after      the same; before and after, together, are what "undisturbed" means

Senders wait only for the broker's answers, never for the consumer, so a consumer that stalls does not slow the load.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from confluent_kafka import Producer
from peers.interface import Peer, Tuning

from benchmarks.client import ClientProcess
from benchmarks.rows import Measured, Measurements, counted, quantile, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured, Scenario
from benchmarks.visible import PARTITIONS, PAUSE_S, RECORDS, WAIT_S, Watcher

HUNG_S, QUICK_HUNG_S = 30, 5
UNDISTURBED_S, QUICK_UNDISTURBED_S = 5.0, 1.0
BLOCK = 20
DRAINED_S = 1.0
TOPIC, CASE = "hung", "one transaction left open"

# Numbers tell what a record is: plain ones count from 0, those of transactions from here, and one ends the round.
TRANSACTIONS_FROM, LAST = 1 << 40, 1 << 50


class Hanger:
    """A client process's class (client.py): a producer that begins a transaction and leaves it open."""

    def __init__(self, address: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": address, "transactional.id": "hung", "log_level": 0})
        self._producer.init_transactions(WAIT_S)

    def hang(self) -> None:
        """Begin, and write a record to each partition. Returns when the broker has them."""
        self._producer.begin_transaction()
        for partition in range(PARTITIONS):
            self._producer.produce(self._topic, b"left open", partition=partition)
        if self._producer.flush(WAIT_S):
            raise TimeoutError("the records of the transaction that is left open were not answered")

    def end(self) -> None:
        """Abort the transaction."""
        self._producer.abort_transaction(WAIT_S)


class LastingWatcher(Watcher):
    """A watcher that knows not the number of records, but the last one."""

    def watch_through(self, last: int, timeout_s: float) -> list[tuple[int, int]]:
        """Read until the record with the number `last` has arrived. Returns the number of each, and its time of arrival
        in ns.

        Other partitions may hold more. Raises TimeoutError without it.
        """
        seen: list[tuple[int, int]] = []
        deadline = time.monotonic() + timeout_s
        while not seen or seen[-1][0] != last:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the last record was not seen within {timeout_s:.0f} s; {len(seen)} others were")
            seen += self.watch(1, 0.1)
        return seen


@dataclass(slots=True)
class Sent:
    """The records sent in one phase: the time of the produce() call in ns of the monotonic clock, by number."""

    plain: dict[int, int] = field(default_factory=dict[int, int])
    transactions: dict[int, int] = field(default_factory=dict[int, int])


def waits_ms(sent: Mapping[int, int], seen: Mapping[int, int]) -> list[float]:
    """The time from sending to arrival of each, in ms. Raises ValueError if one was never seen."""
    if missing := sent.keys() - seen.keys():
        raise ValueError(f"{len(missing)} of {len(sent)} were never seen")
    return [(seen[number] - at) / 1e6 for number, at in sent.items()]


def longest_stall_s(begun_ns: int, seen_ns: Iterable[int]) -> float:
    """The longest time without an arrival, from `begun_ns` to the last arrival, in seconds."""
    ordered = [begun_ns, *sorted(seen_ns)]
    return max((later - earlier for earlier, later in pairwise(ordered)), default=0) / 1e9


def last_seen(records: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By number, when the last of its records was seen: all records of a transaction have the same number."""
    seen: dict[int, int] = {}
    for number, at in records:
        seen[number] = max(at, seen.get(number, at))
    return seen


class Hung:
    """One case: everything is measured in one run."""

    name = "hung"
    question = (
        f"What do other consumers see while one transaction is left open for {HUNG_S} s, with one record in each of "
        f"{PARTITIONS} partitions? Meanwhile plain records of 1 KB and transactions of {RECORDS} × 1 KB are written, "
        f"as in `visible`: {BLOCK} of each in turns, with a pause of {PAUSE_S * 1e3:.0f} ms after each. Undisturbed is "
        f"the same for {UNDISTURBED_S:.0f} s before and {UNDISTURBED_S:.0f} s after (a second after it was aborted), "
        "in the same round. The longest stall is the longest time in which it saw nothing of what was written "
        "meanwhile. Only the first round is warmed up, by the undisturbed load. A round takes some 45 s for each "
        "peer, most of it the time that the transaction is open: with --rounds it may be fewer. In a quick run the "
        f"transaction is open for {QUICK_HUNG_S} s."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:
        hung_s = QUICK_HUNG_S if quick else HUNG_S
        return [Case(CASE, {"hung_s": hung_s})]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("it shows records before their transaction has committed")
        first = bench.first_time(peer)
        if first:
            peer.create_topics([TOPIC], PARTITIONS)
        load = _Load(bench, peer)
        hanger = bench.client(peer, "benchmarks.hung:Hanger", topic=TOPIC)
        hung_s = float(case.parameters["hung_s"])
        undisturbed_s = QUICK_UNDISTURBED_S if bench.quick else UNDISTURBED_S
        if first:
            load.send(undisturbed_s)
        before = load.send(undisturbed_s)
        hanger.call("hang")
        begun_ns = time.monotonic_ns()
        during = load.send(hung_s)
        hanger.call("end")
        time.sleep(DRAINED_S)
        after = load.send(undisturbed_s)
        seen = last_seen(load.seen())
        measured: dict[str, Measured] = {}
        for kind, disturbed, undisturbed in (
            ("plain record", during.plain, before.plain | after.plain),
            ("transaction", during.transactions, before.transactions | after.transactions),
        ):
            disturbed_ms, undisturbed_ms = waits_ms(disturbed, seen), waits_ms(undisturbed, seen)
            measured[f"{kind}, undisturbed"] = sampled("ms", undisturbed_ms)
            measured[f"{kind}, beside it"] = sampled("ms", disturbed_ms)
            measured[f"{kind}, beside it / undisturbed"] = counted(
                "ratio", quantile(disturbed_ms, 0.5) / quantile(undisturbed_ms, 0.5)
            )
        meanwhile = during.plain.keys() | during.transactions.keys()
        measured["longest stall"] = counted("s", longest_stall_s(begun_ns, (seen[number] for number in meanwhile)))
        return measured


class _Load:
    """The senders and the watcher of one peer, for one round."""

    def __init__(self, bench: Bench, peer: Peer) -> None:
        self._plain = bench.client(peer, "benchmarks.visible:Sender", "plain", topic=TOPIC)
        self._transactional = bench.client(
            peer, "benchmarks.visible:Sender", "transactional", topic=TOPIC, transactional_id="beside"
        )
        self._watcher: ClientProcess = bench.client(
            peer,
            "benchmarks.hung:LastingWatcher",
            topic=TOPIC,
            partitions=PARTITIONS,
            isolation=peer.transactional_isolation,
        )
        self._watcher.ask("watch_through", last=LAST, timeout_s=5 * WAIT_S)
        self._sent = 0

    def send(self, seconds: float) -> Sent:
        """Send blocks of both kinds for this time, each answered before the next."""
        sent = Sent()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            times = self._plain.call("records", first=self._sent, count=BLOCK)
            sent.plain |= {number: at for number, (at, _) in enumerate(times, self._sent)}
            first = TRANSACTIONS_FROM + self._sent
            times = self._transactional.call(
                "transactions", first=first, count=BLOCK, records=RECORDS, partitions=PARTITIONS
            )
            sent.transactions |= {number: begun for number, (begun, _, _) in enumerate(times, first)}
            self._sent += BLOCK
        return sent

    def seen(self) -> list[tuple[int, int]]:
        """Everything that the watcher saw in this round, after it has seen all records: (number, ns) of each."""
        self._plain.call("records", first=LAST, count=1)
        seen: list[tuple[int, int]] = self._watcher.answer()
        missing = self._sent * (1 + RECORDS) + 1 - len(seen)
        return seen + self._watcher.call("watch", count=missing)


SCENARIO: Scenario = Hung()
