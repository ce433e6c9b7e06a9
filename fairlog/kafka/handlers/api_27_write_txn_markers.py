"""WriteTxnMarkers: what Kafka's coordinator tells partition leaders, and Kafka's tools to end a hanging transaction.

Behaviour
- There are no markers here: a partition learns of a decision from the coordinator, through its journal, and no
  transaction can be open in a partition that the coordinator does not know of. So a marker decides nothing
  (decision 25); it is answered with whether that which it wants is so:
- *abort* of a producer's epoch that has nothing open in the partition: no error. There is nothing to end.
- *abort* of what is open, and any *commit*: INVALID_TXN_STATE. A transaction is decided as a whole, by its coordinator:
  `fairlog txn abort`, or InitProducerId with its transactional id, ends one.
- An epoch older than the partition knows is INVALID_PRODUCER_EPOCH, as in Kafka.
- Other clients run between one partition and the next.

Version notes
- 1 is flexible. 0 is not in Kafka 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from fairlog.broker import ActiveProducer, Leaders
from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog_types import LogId

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 1


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: int
    producer_epoch: int
    commit: bool
    topics: tuple[tuple[str, tuple[int, ...]], ...]
    """(name, partitions)"""


@dataclass(frozen=True, slots=True)
class WriteTxnMarkersRequest:
    markers: tuple[Marker, ...]


def decode(reader: Reader, version: int) -> WriteTxnMarkersRequest:  # noqa: ARG001 (both look alike)
    def topic() -> tuple[str, tuple[int, ...]]:
        entry = reader.string(), reader.array(reader.int32)
        reader.end_of_fields()
        return entry

    def marker() -> Marker:
        entry = Marker(reader.int64(), reader.int16(), reader.boolean(), reader.array(topic))
        reader.int32()  # the coordinator's epoch
        reader.end_of_fields()
        return entry

    request = WriteTxnMarkersRequest(reader.array(marker))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: WriteTxnMarkersRequest) -> Answer:
    cluster, producers = context.broker.cluster, _Producers(context.broker.leaders)
    writer = context.writer()
    writer.array_length(len(request.markers))
    for marker in request.markers:
        writer.int64(marker.producer_id)
        writer.array_length(len(marker.topics))
        for name, indexes in marker.topics:
            writer.string(name)
            writer.array_length(len(indexes))
            for index in indexes:
                writer.int32(index)
                writer.int16(_answer(producers, log_of(cluster.topic(name), index), marker))
                writer.end_of_fields()
                await trio.lowlevel.checkpoint()
            writer.end_of_fields()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


class _Producers:
    """What partitions know of their producers, asked once for each partition: it may name the same one often."""

    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        self._by_log: dict[LogId, dict[int, ActiveProducer]] = {}

    def of(self, log: LogId) -> dict[int, ActiveProducer] | None:
        """By producer id; None if the log is not led here."""
        if self._leaders.high_watermark(log) is None:
            return None
        if log not in self._by_log:
            known = self._leaders.describe_producers(log)
            self._by_log[log] = {each.producer_id: each for each in known}
        return self._by_log[log]


def _answer(producers: _Producers, log: LogId | None, marker: Marker) -> ErrorCode:
    known = None if log is None else producers.of(log)
    if known is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producer = known.get(marker.producer_id)
    if producer is not None and marker.producer_epoch < producer.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if marker.commit or (producer is not None and producer.in_transaction):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


API = Api(27, "WriteTxnMarkers", SERVED, FLEXIBLE_FROM, decode, handle)
