"""From produce to seen: how long after a record is written does a consumer that waits for it get it?

    Sender     a process that writes: plain records or transactions, one after the other, with a pause between
    Watcher    a process that reads the same partitions and notes when the application got each record

Both note times of the machine's monotonic clock; the records carry a number that joins the two lists. The watcher reads
as an application of that peer would: read_committed, or plain where plain consumers see only committed records.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Producer, TopicPartition
from peers.interface import Peer, Tuning

from benchmarks.client import ClientFailed, ClientProcess
from benchmarks.rows import Measurements, sampled
from benchmarks.scenario import Bench, Case, Lifetime, NotMeasured

RECORD_BYTES = 1024
RECORDS, PARTITIONS = 10, 2
PAUSE_S = 0.005
COUNT, WARM_UP = 200, 100
WAIT_S = 60.0

PLAIN = Case("plain record of 1 KB")
TRANSACTIONAL = Case(f"transaction of {RECORDS} × 1 KB to {PARTITIONS} partitions")

_NUMBER = struct.Struct(">Q")


class Sender:
    """Writes numbered records, plain or in transactions, and notes the times in ns of the monotonic clock."""

    def __init__(self, address: str, topic: str, transactional_id: str | None = None) -> None:
        own = {"enable.idempotence": True} if transactional_id is None else {"transactional.id": transactional_id}
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0, **own})
        self._topic = topic
        self._filling = bytes(RECORD_BYTES - _NUMBER.size)
        if transactional_id is not None:
            self._producer.init_transactions(WAIT_S)

    def records(self, first: int, count: int, pause_s: float = PAUSE_S) -> list[tuple[int, int]]:
        """Write `count` records to partition 0, numbered from `first`. Returns when each was produced, and answered."""
        times: list[tuple[int, int]] = []
        for number in range(first, first + count):
            produced = time.monotonic_ns()
            self._producer.produce(self._topic, _NUMBER.pack(number) + self._filling, partition=0)
            if self._producer.flush(WAIT_S):
                raise TimeoutError(f"record {number} was not answered within {WAIT_S:.0f} s")
            times.append((produced, time.monotonic_ns()))
            time.sleep(pause_s)
        return times

    def transactions(
        self, first: int, count: int, records: int, partitions: int, pause_s: float = PAUSE_S
    ) -> list[tuple[int, int, int]]:
        """Commit `count` transactions. Returns when each began, requested the commit, and was answered.

        Each has `records` records, which contain its number and go to the partitions in turn.
        """
        times: list[tuple[int, int, int]] = []
        for number in range(first, first + count):
            begun = time.monotonic_ns()
            self._producer.begin_transaction()
            for index in range(records):
                self._producer.produce(self._topic, _NUMBER.pack(number) + self._filling, partition=index % partitions)
            asked = time.monotonic_ns()
            self._producer.commit_transaction(WAIT_S)
            times.append((begun, asked, time.monotonic_ns()))
            time.sleep(pause_s)
        return times


class Watcher:
    """Reads a topic from its end and notes when the application got each number, in ns of the monotonic clock."""

    def __init__(self, address: str, topic: str, partitions: int, isolation: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": f"watcher of {topic}",
                "enable.auto.commit": False,
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
        # The end, as a number: positions that are looked up later might miss what is written meanwhile.
        ends = [TopicPartition(topic, partition, self._end_of(topic, partition)) for partition in range(partitions)]
        self._consumer.assign(ends)

    def _end_of(self, topic: str, partition: int) -> int:
        end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition, OFFSET_END), WAIT_S)
        assert end is not None
        return end[1]

    def watch(self, count: int, timeout_s: float = WAIT_S) -> list[tuple[int, int]]:
        """Read until `count` records have arrived, or for `timeout_s`. Returns the number of each, and its time of
        arrival.
        """
        seen: list[tuple[int, int]] = []
        deadline = time.monotonic() + timeout_s
        while len(seen) < count and time.monotonic() < deadline:
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                raise KafkaException(error)
            value = message.value()
            assert value is not None
            seen.append((_NUMBER.unpack_from(value)[0], time.monotonic_ns()))
        return seen


def start_watcher(bench: Bench, peer: Peer, topic: str, partitions: int) -> ClientProcess:
    """This peer's watcher of that topic; it sees records written from now on."""
    isolation = peer.transactional_isolation
    return bench.client(
        peer, "benchmarks.visible:Watcher", topic, topic=topic, partitions=partitions, isolation=isolation
    )


def plain_round(sender: ClientProcess, watcher: ClientProcess, count: int) -> Measurements:
    """Write `count` plain records while the watcher waits for them."""
    watcher.ask("watch", count=count)
    times = sender.call("records", first=0, count=count)
    seen = dict(_all_of(watcher.answer(), count))
    return {
        "produced to seen": sampled("ms", [_ms(seen[number] - at) for number, (at, _) in enumerate(times)]),
        "produced to answered": sampled("ms", [_ms(answered - at) for at, answered in times]),
    }


def transactional_round(sender: ClientProcess, watcher: ClientProcess, count: int) -> Measurements:
    """Commit `count` transactions of RECORDS to PARTITIONS while the watcher waits for all their records."""
    watcher.ask("watch", count=count * RECORDS)
    times = sender.call("transactions", first=0, count=count, records=RECORDS, partitions=PARTITIONS)
    seen: dict[int, int] = {}
    for number, at in _all_of(watcher.answer(), count * RECORDS):
        seen[number] = max(at, seen.get(number, at))
    return {
        "produced to seen": sampled("ms", [_ms(seen[number] - begun) for number, (begun, _, _) in enumerate(times)]),
        "commit to seen": sampled("ms", [_ms(seen[number] - asked) for number, (_, asked, _) in enumerate(times)]),
        "produced to answered": sampled("ms", [_ms(answered - begun) for begun, _, answered in times]),
    }


def _all_of(seen: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    if len(seen) != count:
        raise ClientFailed(f"the consumer saw {len(seen)} of {count} records within {WAIT_S:.0f} s")
    return seen


def _ms(nanoseconds: int) -> float:
    return nanoseconds / 1e6


class Visible:
    """Plain records, and transactions, one at a time."""

    name = "visible"
    question = (
        f"A record's way from produce() in one process to poll() in another. Plain: one idempotent record of 1 KB at a"
        f" time. Transactional: transactions of {RECORDS} × 1 KB to {PARTITIONS} partitions; seen means that all of"
        f" them are. {PAUSE_S * 1e3:.0f} ms pause after each, {COUNT} per round, {WARM_UP} before the first round."
        " linger.ms is 0; the consumer has librdkafka's defaults, and reads read_committed, but plain in journal mode."
    )
    lifetime = Lifetime.SCENARIO
    tuning = Tuning()

    def cases(self, quick: bool) -> Sequence[Case]:  # noqa: ARG002
        return [PLAIN, TRANSACTIONAL]

    def measure(self, bench: Bench, peer: Peer, case: Case, round_number: int) -> Measurements:  # noqa: ARG002
        if not peer.durable:
            raise NotMeasured("its fetches wait until their time is over, so it is no floor; and it shows open records")
        if case.name == PLAIN.name:
            topic, partitions, one_round = "visible-plain", 1, plain_round
            own: dict[str, object] = {}
        else:
            topic, partitions, one_round = "visible-transactions", PARTITIONS, transactional_round
            own = {"transactional_id": "visible"}
        if first := bench.first_time(peer, topic):
            peer.create_topics([topic], partitions)
        sender = bench.client(peer, "benchmarks.visible:Sender", topic, topic=topic, **own)
        watcher = start_watcher(bench, peer, topic, partitions)
        if first:
            one_round(sender, watcher, bench.amount(WARM_UP))
        return one_round(sender, watcher, bench.amount(COUNT))


SCENARIO = Visible()
