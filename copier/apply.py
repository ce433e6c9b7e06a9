"""The copy itself: one chunk of groups goes into the data logs in one LMDB transaction.

Runs in a worker thread, from start to end. Inside one write block of the data logs it reads the marks,
plans what they have not passed yet, gets each batch from its journal (which has it in memory, or checks its CRC),
patches base offset and leader epoch, appends, and writes windows and marks. When the block is committed the journals
may let go of what they had of these frames in memory. On any exception the block is
undone and nothing has happened.

Where a log's start was moved (DeleteRecords, retention), the same block moves it, unless that is done already. What
lies before it is deleted later, in blocks that ask for the room that this takes (`Partition.sweep`).

In a log of marker mode, whose batches are copied before their transaction is decided, the same block keeps which
transactions are open, and its markers, which have no payload, become control batches here (KIP-98).

A large group is copied by `stage`, in several LMDB transactions that only put batches behind the ends of its logs, and
then by `apply`, which finds them there and publishes them.

The marks are read and written in the block that writes the data: that is why copying again what was
copied changes nothing (invariant 4), and why a reader sees a group whole or not at all (invariant 7).
Offsets are checked to be dense here and once more in the data log (invariant 2). The batches of one transaction, or of
several that were committed as one, are bound together there, so that retention and compaction do not halve it.

Offsets logs go the same way; their payloads are lists of entries for the table of committed offsets
instead of batches, and their offsets are running numbers that nobody reads.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from copier.plan import Group, LogPlan, batches_at, is_copied, logs_of, plan
from copier.staging import Piece
from datalog.batch import patch
from datalog.control_batch import encode_control_batch
from datalog.interface import AbortedTransaction, DataLogs, DataLogWriter, Mark, OpenInLog
from datalog.offset_entries import Entry, decode_offset_entries
from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, LogId, LogKind, Offset, ProducerId
from journal.failpoints import reach
from partition.placed import BatchRef, OpenPart, PlacedBatch, PlacedMarker, PlacedTransaction


class PayloadSource(Protocol):
    """What the copy needs of a local journal."""

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        """The payload of the frame at `position`, which the caller may change. Callable from any thread."""
        ...

    def let_go(self, position: JournalPosition, frame_bytes: int) -> None:
        """The frame at `position` has been copied. Callable from any thread; never fails."""
        ...


@dataclass(frozen=True, slots=True)
class Copied:
    """What one write block has changed."""

    marks: Mapping[LogId, Mark]
    """The new mark of every log that was touched."""
    high_watermarks: Mapping[LogId, Offset]
    """Of the logs that got records."""
    last_stable: Mapping[LogId, Offset]
    """Of the same logs: the last stable offset."""
    log_starts: Mapping[LogId, Offset]
    """Of the logs that were told where to begin."""
    records: int
    payload_bytes: int


def apply(
    groups: Sequence[Group],
    data_logs: DataLogs,
    journals: Mapping[LogId, PayloadSource],
    dropped: Container[LogId],
    cut_at_s: float | None,
    staged: Mapping[LogId, Sequence[int]],
) -> Copied:
    """Copy the groups; all of it becomes visible at once, or nothing does.

    `journals` has the journal of every log that the groups touch, except for those in `dropped`.
    `dropped` names logs that are being deleted, whose items are left out; it may grow while this runs. A log
    is entered there *before* its data log is dropped, so that looking it up behind the lock of the write
    block is enough. `cut_at_s` is of a clock that does not go back: the data logs keep a cut now and then. It is
    None where what the groups leave is none. `staged` has the sizes of the batches of the logs that were staged before,
    which are published.

    Raises StorageFailure (the data log refused), CorruptStorage (a frame does not read back), OSError. The
    same groups may be applied again after any of these.
    """
    reach("copier.copy.before")
    with data_logs.write() as writer:
        marks = {log: writer.mark(log) for log in logs_of(groups) if log not in dropped}
        plans = plan(groups, {log: mark.copied_through for log, mark in marks.items()})
        records = payload_bytes = 0
        new_marks: dict[LogId, Mark] = {}
        high_watermarks: dict[LogId, Offset] = {}
        last_stable: dict[LogId, Offset] = {}
        log_starts: dict[LogId, Offset] = {}
        for log_plan in plans:
            if new_marks:
                reach("copier.copy.between_logs")
            log = log_plan.log
            first = marks[log].next_offset
            if log in staged:
                next_offset, copied_bytes = _publish(log_plan, first, writer, staged[log])
            else:
                next_offset, copied_bytes = _copy_data(log_plan, first, writer, journals[log])
            _bind(log_plan, writer)
            new_marks[log] = _copy_state(log_plan, next_offset, writer)
            if log_plan.start is not None:
                writer.delete_before(log, log_plan.start, batches_max=0)
                log_starts[log] = log_plan.start
            if log_plan.data:
                high_watermarks[log] = next_offset
                last_stable[log] = writer.last_stable_offset(log)
            records += next_offset - first
            payload_bytes += copied_bytes
        if high_watermarks and cut_at_s is not None:
            writer.put_cut(cut_at_s)
        reach("copier.copy.before_commit")
    reach("copier.copy.after_commit")
    # Not as each is read: the commit would take what this gives back, and it has time, as it runs in a thread; but what
    # comes next into the journals is written by the event loop.
    for log_plan in plans:
        if log_plan.log not in staged:
            _let_go(log_plan, journals[log_plan.log])
    return Copied(new_marks, high_watermarks, last_stable, log_starts, records, payload_bytes)


def _copy_data(
    log_plan: LogPlan, next_offset: Offset, writer: DataLogWriter, journal: PayloadSource
) -> tuple[Offset, int]:
    """Append the log's batches; answer its next offset and how many bytes they were."""
    log = log_plan.log
    payload_bytes = 0
    grown: dict[ProducerId, OpenPart] = {}
    for item in log_plan.data:
        if isinstance(item, PlacedMarker):
            assert item.offset == next_offset, f"{log}: marker at {item.offset}, the data log is at {next_offset}"
            grown.pop(item.producer_id, None)
            _end(item, writer)
            next_offset = Offset(next_offset + 1)
            continue
        for base_offset, batch in batches_at(item):
            assert base_offset == next_offset, f"{log}: placed at {base_offset}, the data log is at {next_offset}"
            if log.kind == LogKind.OFFSETS.value:
                payload = journal.read_payload(batch.position, batch.frame_bytes)
                writer.put_offsets(log, _offset_entries(payload, log, batch.position))
            else:
                payload = _patched(item, base_offset, batch, journal)
                writer.append(log, base_offset, batch.record_count, batch.max_timestamp_ms, payload)
            payload_bytes += len(payload)
            next_offset = Offset(base_offset + batch.record_count)
        if isinstance(item, PlacedBatch) and item.part is not None:
            if item.part.first_offset == item.base_offset:
                writer.put_open(log, OpenInLog(*item.part))
            else:
                grown[item.producer_id] = item.part
    # How many records an open transaction has is of interest only where the chunk ends; where it begins, at once.
    for part in grown.values():
        writer.put_open(log, OpenInLog(*part))
    return next_offset, payload_bytes


def _patched(
    item: PlacedBatch | PlacedTransaction, base_offset: Offset, batch: BatchRef, journal: PayloadSource
) -> bytearray:
    """The batch as the data log has it."""
    payload = journal.read_payload(batch.position, batch.frame_bytes)
    patch(payload, base_offset, item.leader_epoch)
    return payload


def stage(
    pieces: Sequence[Piece],
    data_logs: DataLogs,
    journals: Mapping[LogId, PayloadSource],
    dropped: Container[LogId],
) -> Mapping[LogId, Sequence[int]]:
    """Write a stage of a large group behind the ends of its logs; answer the sizes of the batches written to each.

    What the marks have passed is left out here, too, so that the sizes are those of what `apply` will plan. `journals`,
    `dropped` and what is raised are as of `apply`; the same stage may be written again after any of these.
    """
    sizes: dict[LogId, list[int]] = {}
    with data_logs.write() as writer:
        for piece in pieces:
            item = piece.item
            log = item.log
            if log in dropped or is_copied(item, writer.mark(log).copied_through):
                continue
            for base_offset, batch in islice(batches_at(item), piece.first, piece.end):
                payload = _patched(item, base_offset, batch, journals[log])
                writer.stage(log, base_offset, batch.record_count, batch.max_timestamp_ms, payload)
                sizes.setdefault(log, []).append(len(payload))
        reach("copier.stage.before_commit")
    reach("copier.stage.after_commit")
    for piece in pieces:
        for batch in piece.item.batches[piece.first : piece.end]:
            if piece.item.log in sizes:
                journals[piece.item.log].let_go(batch.position, batch.frame_bytes)
    return sizes


def _publish(log_plan: LogPlan, next_offset: Offset, writer: DataLogWriter, sizes: Sequence[int]) -> tuple[Offset, int]:
    """Make visible what was staged; answer the log's next offset and how many bytes it was."""
    items: list[PlacedTransaction] = []
    for item in log_plan.data:
        assert isinstance(item, PlacedTransaction), f"{log_plan.log}: {item} cannot have been staged"
        assert item.base_offset == next_offset, f"{log_plan.log}: placed at {item.base_offset}, due is {next_offset}"
        items.append(item)
        next_offset = Offset(next_offset + item.record_count)
    staged = zip(chain.from_iterable(map(batches_at, items)), sizes, strict=True)
    writer.publish(
        log_plan.log,
        ((Offset(base + batch.record_count - 1), batch.max_timestamp_ms, size) for (base, batch), size in staged),
    )
    return next_offset, sum(sizes)


def _bind(log_plan: LogPlan, writer: DataLogWriter) -> None:
    """Tell the data log what of it was committed as one."""
    if log_plan.log.kind != LogKind.TOPIC.value:
        return
    units: list[_Unit] = []
    for item in log_plan.data:
        if isinstance(item, PlacedTransaction):
            _add_to(units, item)
    for unit in units:
        if unit.batches > 1:
            writer.bind(log_plan.log, unit.base_offset, Offset(unit.end - 1))


@dataclass(slots=True)
class _Unit:
    """What was committed as one in one log."""

    apply_number: ApplyNumber
    base_offset: Offset
    end: int
    """The offset behind its last record."""
    batches: int


def _add_to(units: list[_Unit], item: PlacedTransaction) -> None:
    if units and units[-1].apply_number == item.apply_number and units[-1].end == item.base_offset:
        units[-1].end += item.record_count
        units[-1].batches += len(item.batches)
    else:
        end = item.base_offset + item.record_count
        units.append(_Unit(item.apply_number, item.base_offset, end, len(item.batches)))


def _let_go(log_plan: LogPlan, journal: PayloadSource) -> None:
    for item in log_plan.data:
        if not isinstance(item, PlacedMarker):
            for _, batch in batches_at(item):
                journal.let_go(batch.position, batch.frame_bytes)


def _end(item: PlacedMarker, writer: DataLogWriter) -> None:
    """Append the control batch, and remember how the transaction has ended."""
    log, producer_id, timestamp_ms = item.log, item.producer_id, item.timestamp_ms
    batch = encode_control_batch(
        offset=item.offset,
        leader_epoch=item.leader_epoch,
        producer_id=producer_id,
        producer_epoch=item.txid.epoch,
        committed=item.committed,
        coordinator_epoch=item.coordinator_epoch,
        timestamp_ms=timestamp_ms,
    )
    writer.append(log, item.offset, 1, timestamp_ms, batch)
    ended = writer.delete_open(log, producer_id)
    assert ended is None or ended.txid == item.txid, f"{log}: the marker of {item.txid} would end {ended}"
    if ended is not None and not item.committed:
        last_stable = writer.last_stable_offset(log)
        writer.put_aborted(log, AbortedTransaction(producer_id, ended.first_offset, item.offset, last_stable))


def _offset_entries(payload: bytearray, log: LogId, position: JournalPosition) -> list[Entry]:
    try:
        return decode_offset_entries(payload)
    except ValueError as error:
        # The frame's CRC was right, so this was written by something that does not speak our format.
        raise CorruptStorage(
            f"journal of {log}: the frame at {position} holds no entries of an offsets log: {error}"
        ) from error


def _copy_state(log_plan: LogPlan, next_offset: Offset, writer: DataLogWriter) -> Mark:
    """Write the log's windows and its mark; answer the mark."""
    for producer_id, window in log_plan.windows.items():
        if window is None:
            writer.delete_producer(log_plan.log, producer_id)
        else:
            writer.put_producer(log_plan.log, producer_id, window.encode())
    mark = Mark(log_plan.copied_through, log_plan.replay_from, next_offset)
    writer.put_mark(log_plan.log, mark)
    return mark
