"""WriteTxnMarkers: Kafka's coordinator sends it to partition leaders, and Kafka's tools to end a hung transaction.

Behaviour
- A partition learns of a decision from this node's coordinator, which writes markers itself. No request over the
  network can *commit*: it gets INVALID_TXN_STATE in both modes (decisions 25 and 32).
- Marker mode, *abort* of an open transaction: its coordinator aborts it in all partitions, since a part of it cannot be
  committed (Kafka ends it only in this partition). Readers of committed records can then read past it. The producer is
  not fenced, and has to abort as well. If the transaction is being committed, the answer is CONCURRENT_TRANSACTIONS.
- Journal mode, *abort* of an open transaction: INVALID_TXN_STATE. No reader waits for it there. A transaction is
  decided as a whole: `fairlog txn abort`, or InitProducerId with its transactional id, ends it.
- With several brokers: a partition that another one leads is NOT_LEADER_OR_FOLLOWER. Marker mode, *abort* of an open
  transaction whose coordinator is another broker: INVALID_TXN_STATE. `fairlog txn abort` ends it there.
- *abort* if no transaction is open: no error, and nothing is written.
- An epoch older than the partition knows is INVALID_PRODUCER_EPOCH, an older coordinator's
  TRANSACTION_COORDINATOR_FENCED, as in Kafka.
- Other clients are served between one partition and the next.

Version notes
- 1 is flexible. Kafka 4 does not have 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio

from fairlog.kafka.api import Answer, Api, Context, Versions
from fairlog.kafka.checks import ACT_AS_BROKER, ALTER_CLUSTER, denied, may
from fairlog.kafka.errors import ABORT_REFUSALS, ErrorCode, code_of_refusal
from fairlog.kafka.noting import note, noting
from fairlog.kafka.ownership import code_of_unled
from fairlog.kafka.topic_lookup import log_of
from fairlog.kafka.wire import Reader
from fairlog.trail import Action
from fairlog_types import LogId, ProducerEpoch, ProducerId
from partition.answers import AbortRefusal, ActiveProducer
from partition.partition import Partition

SERVED = Versions(0, 1)
FLEXIBLE_FROM = 1


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    coordinator_epoch: int
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
        producer_id, producer_epoch, commit = (
            ProducerId(reader.int64()),
            ProducerEpoch(reader.int16()),
            reader.boolean(),
        )
        topics, coordinator_epoch = reader.array(topic), reader.int32()
        reader.end_of_fields()
        return Marker(producer_id, producer_epoch, commit, coordinator_epoch, topics)

    request = WriteTxnMarkersRequest(reader.array(marker))
    reader.end_of_fields()
    return request


async def handle(context: Context, request: WriteTxnMarkersRequest) -> Answer:
    cluster = context.broker.cluster
    producers = _Producers()
    refused = None if may(context, ALTER_CLUSTER) else denied(context, ACT_AS_BROKER)
    writer = context.writer()
    writer.array_length(len(request.markers))
    for marker in request.markers:
        writer.int64(marker.producer_id)
        writer.array_length(len(marker.topics))
        for name, indexes in marker.topics:
            writer.string(name)
            writer.array_length(len(indexes))
            for index in indexes:
                log = log_of(cluster.topic(name), index)
                code = refused or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if log is not None and refused is None:
                    code = await _write(context, producers, log, f"{name}-{index}", marker)
                elif not marker.commit:
                    note(context, Action.ABORT_TRANSACTION, f"{name}-{index}", code, **_named(marker))
                writer.int32(index)
                writer.int16(code)
                writer.end_of_fields()
                await trio.lowlevel.checkpoint()
            writer.end_of_fields()
        writer.end_of_fields()
    writer.end_of_fields()
    return writer.parts()


class _Producers:
    """What partitions know about their producers, queried once for each partition, since a request may name the same
    one often.
    """

    def __init__(self) -> None:
        self._by_log: dict[LogId, dict[int, ActiveProducer]] = {}

    def of(self, log: LogId, partition: Partition) -> dict[int, ActiveProducer]:
        """By producer id."""
        if log not in self._by_log:
            self._by_log[log] = {each.producer_id: each for each in partition.describe_producers()}
        return self._by_log[log]


def _named(marker: Marker) -> Mapping[str, Any]:
    return {"producer_id": marker.producer_id, "producer_epoch": marker.producer_epoch}


async def _write(context: Context, producers: _Producers, log: LogId, name: str, marker: Marker) -> ErrorCode:
    broker = context.broker
    partition = broker.partitions.get(log)
    if partition is None:
        return code_of_unled(broker)
    if marker.commit:
        return _as_it_is(producers.of(log, partition), marker)
    found = partition.open_for_abort(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
    if found is AbortRefusal.NO_MARKERS:
        return _as_it_is(producers.of(log, partition), marker)
    if isinstance(found, AbortRefusal):
        return ABORT_REFUSALS[found]
    if found is not None and not broker.is_alone and broker.coordinator.epoch_of(found.producer_id) is None:
        return ErrorCode.INVALID_TXN_STATE  # its coordinator is another broker
    if found is None:
        return ErrorCode.NONE  # it is not open any more
    with noting(context, Action.ABORT_TRANSACTION, name, **_named(marker)) as is_answered:
        refusal = await broker.coordinator.abort_by_marker(found)
        code = ErrorCode.NONE if refusal is None else code_of_refusal(refusal, knows_producer_fenced=False)
        is_answered(code)
    return code


def _as_it_is(producers: Mapping[int, ActiveProducer], marker: Marker) -> ErrorCode:
    """The answer to a marker that decides nothing: success if its goal is already reached."""
    producer = producers.get(marker.producer_id)
    if producer is not None and marker.producer_epoch < producer.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if marker.commit or (producer is not None and producer.in_transaction):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


API = Api(27, "WriteTxnMarkers", SERVED, FLEXIBLE_FROM, decode, handle, (ALTER_CLUSTER, ACT_AS_BROKER))
