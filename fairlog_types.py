"""The words that all rooms share: identities, counters and nothing else.

`journal` and `datalog` do not know each other, yet both speak of offsets, logs and transactions. What
they share stands here, below every room: plain values without behaviour beyond their own encoding.
No I/O, no imports from the rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
"""A record's place in a data log: 0, 1, 2, … without holes (invariant 2)."""

JournalPosition = NewType("JournalPosition", int)
"""A byte's place in a journal, counted over all its segments; never reused."""

ProducerId = NewType("ProducerId", int)
"""int64, allotted in blocks by the cluster store; -1 means none."""

ProducerEpoch = NewType("ProducerEpoch", int)
"""int16; a larger one fences all smaller ones of the same producer id. -1 means none."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""int32; grows whenever a partition gets a leader anew (on one node: at each start)."""

ShardNumber = NewType("ShardNumber", int)
"""A shard of the cluster: all that one event loop owns of it, from 0 on."""

ApplyNumber = NewType("ApplyNumber", int)
"""uint64; the node's running number of APPLYs. All participants of one transaction that this node
leads carry the same number, so that their journals can be merged back into one order (invariant 7)."""

NO_APPLY_NUMBER = ApplyNumber(-1)
"""Of a marker that ends an aborted transaction: nothing is applied."""

NO_PRODUCER_ID = ProducerId(-1)
NO_PRODUCER_EPOCH = ProducerEpoch(-1)


class LogKind(Enum):
    """What a log's records are."""

    TOPIC = "t"
    """Kafka record batches, read by Fetch."""
    OFFSETS = "o"
    """Consumer offsets committed by groups; applied as a table, not kept as batches."""


class LogId(NamedTuple):
    """One log of the node: a partition of a topic, or a shard of the committed offsets.

    `topic` is the topic's UUID as 32 hex digits (so a topic that was deleted and made again is another
    log), or `"offsets"` for the shards. `partition` counts from 0.

    A tuple and not a dataclass, because logs are looked up some eighty times in a transaction's life, and the
    hash of a tuple is C.
    """

    kind: str
    topic: str
    partition: int

    @classmethod
    def of_topic(cls, topic_id: UUID, partition: int) -> LogId:
        return cls(LogKind.TOPIC.value, topic_id.hex, partition)

    @classmethod
    def of_offsets(cls, shard: int) -> LogId:
        return cls(LogKind.OFFSETS.value, "offsets", shard)

    def __str__(self) -> str:
        return f"{self.kind}-{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> LogId:
        """Read what `str` wrote. Raises ValueError on anything else."""
        kind, topic, partition = text.split("-")
        if kind not in (LogKind.TOPIC.value, LogKind.OFFSETS.value):
            raise ValueError(f"unknown kind of log in {text!r}")
        return cls(kind, topic, int(partition))


class TxId(NamedTuple):
    """One transaction: the `number`-th (from 0) of the producer's epoch. A tuple, as a LogId is, for its hash."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    number: int

    def __str__(self) -> str:
        return f"{self.producer_id}.{self.epoch}.{self.number}"


class EndedEpoch(NamedTuple):
    """A producer epoch that had one transaction, whose end granted the next epoch (KIP-890)."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    committed: bool
    kept: TxId | None = None
    """The transaction, if it was begun in an epoch before, and kept (KIP-939)."""

    def is_of(self, txid: TxId) -> bool:
        """Whether this is the transaction whose end it was."""
        return (
            (self.producer_id, self.epoch) == (txid.producer_id, txid.epoch) if self.kept is None else self.kept == txid
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a transaction's records are in one log: `count` records from `base_offset`.

    For an offsets log both are running numbers of that log, not readable offsets.
    """

    log: LogId
    base_offset: Offset
    count: int


class StorageFailure(Exception):
    """The disk refused: full, failed fsync, unreadable. The message says what, where and what to do.

    Handlers answer it with Kafka's KAFKA_STORAGE_ERROR. Nothing that was answered is lost by it.
    """


class CorruptStorage(Exception):
    """Bytes on disk are not what was written. The message names the file and the byte."""
