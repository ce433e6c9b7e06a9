"""What a fault of the audit's tests is, and how one is planted.

A fault has a partition of its own, so all of them are planted into one directory and found by one job. Each is planted
into the data logs themselves, or told by records that are added to a group journal; what is found of it is compared
exactly. Faults of plain batches and of transactions that are copied as a whole stand in `faults.py`, those of marker
mode in `marker_faults.py`.

Producers and sinks that are planted are named by the partition: no two faults meet in one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.group_records import (
    CommittedPart,
    CommittedRecord,
    Expectation,
    GroupRecord,
    PrepareCommitRecord,
    PreparedPart,
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
)
from datalog import layout
from datalog.batch import parse_batch_header_untrusted
from datalog.control_batch import encode_control_batch
from fairlog_types import LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId
from tests.spark.audited import txid
from tests.verify.planting import Planted, with_header
from tests.verify.test_planted_damage import producer_of

Plant = Callable[[Planted, int], Sequence[GroupRecord]]
"""Plants it into the partition of that number; what is to be added to a group journal."""

Due = frozenset[tuple[str, int | None]]
"""Kinds of findings, and their offsets."""

NOTHING_PLANTED = 0
"""A partition, of either topic."""


@dataclass(frozen=True)
class Fault:
    """Something that is planted, and what must be found of it in its log, neither more nor less."""

    name: str
    plant: Plant
    due: Due
    in_log: bool = True
    """False: what is found is said of no log."""


def fault(name: str, *due: tuple[str, int | None], in_log: bool = True) -> Callable[[Plant], Fault]:
    """The decorated function plants it."""
    return lambda plant: Fault(name, plant, frozenset(due), in_log)


@fault("nothing")
def nothing(planted: Planted, at: int) -> Sequence[GroupRecord]:
    return ()


PLAIN = {"attributes": 0, "producer_id": -1, "producer_epoch": -1, "base_sequence": -1}
"""The header's fields of a batch that has no producer."""


def batch_at(planted: Planted, at: int, key: int) -> bytes:
    """The batch that ends with the offset `key`."""
    return dict(planted.batches(at))[layout.batch_key(key)]


def change(planted: Planted, at: int, key: int, **fields: object) -> None:
    """Other fields in the header of the batch that ends with the offset `key`."""
    planted.put_batches({key: with_header(batch_at(planted, at, key), **fields)}, at)


def append(planted: Planted, at: int, data: bytes) -> None:
    """The batch behind the last one, as if it belonged there."""
    base = planted.record(at).next_offset
    end = base + parse_batch_header_untrusted(data).last_offset_delta + 1
    planted.put_batches({end - 1: with_header(data, base_offset=base)}, at)
    planted.change_record(lambda record: setattr(record, "next_offset", end), at)


def marker_of(producer_id: int) -> bytes:
    return encode_control_batch(
        Offset(0),
        LeaderEpoch(1),
        ProducerId(producer_id),
        ProducerEpoch(0),
        committed=True,
        coordinator_epoch=1,
        timestamp_ms=1,
    )


def append_transaction(planted: Planted, at: int, batches: int, *, first_sequence: int = 0) -> None:
    """In markers: so many batches of one record of the producer `in_markers(at)`, and its marker."""
    producer = in_markers(at)
    for sequence in range(first_sequence, first_sequence + batches):
        append(planted, at, batch_of(planted, at, producer, sequence))
    append(planted, at, marker_of(producer.producer_id))


def batch_of(planted: Planted, at: int, producer: TxId, sequence: int) -> bytes:
    """A transactional batch of one record, made from another's."""
    return with_header(
        batch_at(planted, at, 2), producer_id=producer.producer_id, producer_epoch=0, base_sequence=sequence
    )


def compact(planted: Planted, at: int, key: int) -> None:
    """Compaction takes the batch, and has been no further."""
    planted.put_batches({key: None}, at)
    planted.change_record(lambda record: setattr(record, "holes_before", key + 1), at)


def change_applied(planted: Planted, at: int, **fields: object) -> None:
    """What the window remembers of the third transaction of "billing" there."""
    producer = producer_of(planted, "billing")
    known = planted.window(producer, at).applied
    changed = tuple(it._replace(**fields) if it.base_offset == 9 else it for it in known)
    assert changed != known
    planted.change_window(producer, at, applied=changed)


def one(at: int, number: int = 0) -> TxId:
    """A transaction of the producer `name(at)`."""
    return txid(5000 + 10 * at, number)


def in_markers(at: int, which: int = 0) -> TxId:
    """A transaction of a producer of which no group journal knows."""
    return txid(9000 + 10 * at + which)


def lane(at: int, slot: int, batch: int = 0) -> TxId:
    """A lane's transaction, of the sink `name(at)`."""
    return txid(5000 + 10 * at + slot, batch)


def name(at: int) -> str:
    return f"planted-{at}"


def prepared(of: TxId, at: int, records: Mapping[LogId, int]) -> GroupRecord:
    return PrepareCommitRecord(of, name(at), expected(records), 0, 1)


def committed(of: TxId, at: int, places: Mapping[LogId, tuple[int, int]]) -> GroupRecord:
    """Places: base offset and count."""
    return CommittedRecord(
        of, name(at), tuple(Placement(log, Offset(base), count) for log, (base, count) in places.items()), 0
    )


def sink_commit(
    at: int,
    batch: int,
    prepared: Mapping[int, Mapping[LogId, int]],
    committed: Mapping[int, Mapping[LogId, int]] | None = None,
) -> Sequence[GroupRecord]:
    """A sink's batch, by slot: how many records are expected of its lane, and where one of them is placed."""
    records: list[GroupRecord] = []
    if prepared:
        parts = tuple(PreparedPart(slot, lane(at, slot, batch), expected(of)) for slot, of in prepared.items())
        records.append(SinkPrepareCommitRecord(name(at), "query", batch, batch + 1, parts, 0))
    if committed is not None:
        done = tuple(
            CommittedPart(
                slot, lane(at, slot, batch), tuple(Placement(log, Offset(base), 1) for log, base in of.items())
            )
            for slot, of in committed.items()
        )
        records.append(SinkCommittedRecord(name(at), batch, done, 0))
    return records


def expected(records: Mapping[LogId, int]) -> dict[LogId, Expectation]:
    return {log: Expectation(LeaderEpoch(1), count) for log, count in records.items()}
