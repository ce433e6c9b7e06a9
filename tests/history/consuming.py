"""The workload's consumers outside of groups: those that tail all partitions, and those that take cuts.

A consumer that names a rack is sent to a copy in it (KIP-392), and notes of how many records the client said that they
came from a broker that does not lead their partition.

A cut is one Fetch that names all partitions of a shard and reads each to its end; mostly there is one shard. The node
reads them in one read transaction of its data logs, but only those that have something to read: a partition whose end
the consumer has reached is compared, not read. So the cutter asks for the last batch that it knows of each partition
again, and every partition is read. The first cut is taken when each has one.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from datalog.control_batch import decode_control_batch
from tests.clients.raw_client import NONE, FetchRequest, FetchResponse, RawClient
from tests.history.batches import batches_of
from tests.history.layout import PARTITIONS, place
from tests.history.producing import CLIENT, PAUSE_S
from tests.history.recorder import Recorder
from tests.history.routes import MovingRoutes, Routes

SEEK_SHARE = 0.02
SEEK_MAX = 2_000
"""So far back at most, that a long run does not read the same again and again."""
RECONNECT_S = 0.05
STATISTICS_MS = 200


def tail(
    address: str,
    recorder: Recorder,
    rng: random.Random,
    going: Callable[[], bool],
    *,
    plain: bool,
    rack: str = "",
) -> None:
    """Read all partitions from their beginning; now and then one of them again, from somewhere before."""
    copies = _Copies()
    consumer = Consumer(
        CLIENT
        | ({"client.rack": rack, "statistics.interval.ms": STATISTICS_MS, "stats_cb": copies.note} if rack else {})
        | {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted" if plain else "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    positions = dict.fromkeys(PARTITIONS, 0)
    isolation = "plain" if plain else "committed"

    def assign() -> None:
        consumer.assign([TopicPartition(topic, index, offset) for (topic, index), offset in positions.items()])
        recorder.whole("assign", positions={place(*partition): offset for partition, offset in positions.items()})

    assign()
    while going():
        if rng.random() < SEEK_SHARE:
            partition = rng.choice(PARTITIONS)
            positions[partition] = rng.randint(max(0, positions[partition] - SEEK_MAX), positions[partition])
            assign()
        op = recorder.invoke("poll", isolation=isolation)
        polls: dict[str, list[list[Any]]] = {}
        for message in consumer.consume(500, 0.05):
            error = message.error()
            if error is None:
                topic, index, offset, value = message.topic(), message.partition(), message.offset(), message.value()
                assert topic is not None
                assert index is not None
                assert offset is not None
                assert value is not None
                polls.setdefault(place(topic, index), []).append([offset, value.decode()])
                positions[topic, index] = offset + 1
            elif error.fatal() or not error.retriable():
                if is_out_of_range(error):
                    recorder.end(op, "fail", error=str(error))
                raise KafkaException(error)
        from_copies = sum(len(polls.get(partition, ())) for partition in copies.read)
        of_copies = {"from_copies": from_copies} if from_copies else {}
        recorder.end(
            op, "ok", micro=[["poll", partition, records] for partition, records in polls.items()], **of_copies
        )


def is_out_of_range(error: KafkaError) -> bool:
    """Whether the consumer was told that its offset is not there, and is to begin anew elsewhere (it may not)."""
    return error.code() == KafkaError._AUTO_OFFSET_RESET


class _Copies:
    """The partitions that a client reads from a broker that does not lead them, by its statistics."""

    def __init__(self) -> None:
        self.read: Collection[str] = ()

    def note(self, statistics: str) -> None:
        self.read = [
            place(topic, int(index))
            for topic, of_topic in json.loads(statistics)["topics"].items()
            for index, row in of_topic["partitions"].items()
            if min(row["broker"], row["leader"]) >= 0 and row["broker"] != row["leader"]
        ]


def take_cuts(routes: Routes | MovingRoutes, recorder: Recorder, going: Callable[[], bool]) -> None:
    """Read all partitions to their ends, those of one broker in one answer, again and again."""
    known: dict[tuple[str, int], int] = {}
    positions = dict.fromkeys(PARTITIONS, 0)
    recorder.whole("assign", positions={place(*partition): 0 for partition in PARTITIONS})
    while going():
        try:
            for partitions in _by_leader(routes):
                client = routes.leader(*partitions[0])
                op = recorder.invoke("poll")
                micro, ends = _cut(client, partitions, positions, known)
                recorder.end(op, "ok", micro=micro, **({"ends": ends} if ends else {}))
        except OSError:
            routes.close()
            time.sleep(RECONNECT_S)
        time.sleep(PAUSE_S)


def _by_leader(routes: Routes | MovingRoutes) -> Iterable[Sequence[tuple[str, int]]]:
    """The partitions of each broker."""
    found: dict[int, list[tuple[str, int]]] = {}
    for partition in PARTITIONS:
        found.setdefault(routes.leader_number(*partition), []).append(partition)
    return found.values()


def _cut(
    client: RawClient,
    partitions: Sequence[tuple[str, int]],
    positions: dict[tuple[str, int], int],
    known: dict[tuple[str, int], int],
) -> tuple[list[list[Any]], dict[str, int]]:
    """Micro-operations and, if it is a cut, the ends. `positions` and the last `known` records move on, or stay all of
    them where they are: then it raises OSError.
    """
    asked = {partition: known.get(partition, 0) for partition in partitions}
    client.send(_fetch_all(asked))
    rows = {
        (topic.topic, row.partition_index): row
        for topic in client.receive(FetchResponse, 11).responses
        for row in topic.partitions
    }
    for partition, row in rows.items():
        if row.error_code != NONE:
            raise OSError(f"{partition}: error {row.error_code}")
    micro: list[list[Any]] = []
    ends: dict[str, int] = {}
    for partition, row in rows.items():
        records, read_to, last_batch = _committed(row)
        new = [[offset, value] for offset, value in records if offset >= positions[partition]]
        if new:
            micro.append(["poll", place(*partition), new])
        if last_batch is not None:
            known[partition] = last_batch
        positions[partition] = max(positions[partition], read_to)
        if last_batch is not None and read_to == row.last_stable_offset:
            ends[place(*partition)] = read_to
    return micro, ends if len(ends) == len(partitions) else {}


def _committed(row: Any) -> tuple[list[tuple[int, str]], int, int | None]:
    """Committed records of a partition's answer, the offset behind them, and that of the last batch."""
    begun = sorted((each.first_offset, each.producer_id) for each in row.aborted_transactions or ())
    aborted: set[int] = set()
    records: list[tuple[int, str]] = []
    read_to, last_batch = 0, None
    for header, data, values in batches_of(row.records or b""):
        while begun and begun[0][0] <= header.base_offset:
            aborted.add(begun.pop(0)[1])
        read_to, last_batch = header.last_offset + 1, header.base_offset
        if header.control:
            if not decode_control_batch(data).committed:
                aborted.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in aborted):
            records += values
    return records, read_to, last_batch


def _fetch_all(asked: dict[tuple[str, int], int]) -> Any:
    """A Fetch (version 11) of these partitions for a reader of committed records, which does not wait."""
    row, topic = FetchRequest.FetchTopic.FetchPartition, FetchRequest.FetchTopic
    topics = [
        topic(
            topic=name,
            partitions=[
                row(partition=index, fetch_offset=offset, partition_max_bytes=1 << 26)
                for (of_topic, index), offset in asked.items()
                if of_topic == name
            ],
        )
        for name in dict.fromkeys(name for name, _index in asked)
    ]
    return FetchRequest[11](
        replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 26, isolation_level=1, topics=topics
    )
