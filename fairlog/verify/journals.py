"""What one local journal says, frame by frame, and how the data log's mark lies in it. Pure.

    journal.start ≤ replay from ≤ copied through ≤ journal.end        (invariants 11 and 4)

What was decided before the mark is in the data log: its places follow one another and end at the mark's next offset.
What was decided behind it is folded as a restart folds it, with the same code. The log begins where each START before
the mark says, or later. The mark's *replay from* is the first
frame of the oldest transaction that was open at the mark: earlier would pin the journal, later would lose the data.

PREPARED counts the records before it, and no batch of its transaction stands behind it (docs/formats/local-journal.md).
It is read from the whole journal: `transactions` asks it what a log of another shard than the coordinator's holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from datalog.interface import Mark, OpenInLog
from fairlog.verify.findings import Violation
from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, LeaderEpoch, LogId, Offset, ProducerId, TxId
from partition.placed import OpenPart, PlacedMarker, PlacedTransaction
from partition.producer_window import ProducerWindow
from partition.record_codec import LocalFrame, decode_local
from partition.records import (
    Apply,
    Discard,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Prepared,
    Start,
    TransactionalBatch,
)
from partition.state import PartitionState


class PayloadFrame(LocalFrame, Protocol):
    """A frame as `Journal.frames` gives it."""

    @property
    def payload_position(self) -> JournalPosition: ...


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A local journal's frame, decoded."""

    position: JournalPosition
    end: JournalPosition
    leader_epoch: LeaderEpoch
    timestamp_ms: int
    record: LocalRecord
    payload_position: JournalPosition


@dataclass(frozen=True, slots=True)
class AppliedPart:
    """A transaction's part in one log."""

    base_offset: int
    count: int
    apply_number: ApplyNumber


@dataclass(frozen=True, slots=True)
class PlacedFrames:
    """What a frame before the mark has placed: the frames of the batches, in order."""

    base_offset: int
    record_count: int
    leader_epoch: LeaderEpoch
    batches: Sequence[ReadFrame]


@dataclass(slots=True)
class JournalView:
    """What a local journal knows, for the checks of the other families."""

    copied: list[PlacedFrames] = field(default_factory=list[PlacedFrames])
    """Decided and copied, in order, where the journal still has all their frames."""
    applied: dict[TxId, AppliedPart] = field(default_factory=dict[TxId, AppliedPart])
    """Transactions that are decided and copied, as far back as the journal goes."""
    pending: dict[TxId, AppliedPart] = field(default_factory=dict[TxId, AppliedPart])
    """Transactions that are decided and not copied yet."""
    placed: list[PlacedFrames] | None = None
    """Of transactions that are decided and not copied yet, in order; None if that is not known."""
    prepared: dict[TxId, Prepared] = field(default_factory=dict[TxId, Prepared])
    """What was prepared for coordinators of other shards, as far back as the journal goes."""
    open: dict[TxId, int] | None = None
    """Transactions that are not decided, and their records; None if that is not known."""
    never_cut: bool = False
    """All that was ever written to the journal is there."""
    complete_from: int | None = None
    """From this offset on the journal has all batches of the data log; None if there is no such offset."""


def decode_frames(log_name: str, frames: Iterable[PayloadFrame], found: list[ReadFrame]) -> Iterator[Violation]:
    """Decode all frames of a journal into `found`; stops at what cannot be read."""
    position = JournalPosition(0)
    try:
        for frame in frames:
            position = frame.position
            record = decode_local(frame.kind, frame.header)
            found.append(
                ReadFrame(
                    frame.position, frame.end, frame.leader_epoch, frame.timestamp_ms, record, frame.payload_position
                )
            )
    except CorruptStorage as error:
        yield Violation(f"the journal of {log_name}, behind position {position}", str(error))


def check_mark(log_name: str, mark: Mark, *, start: JournalPosition, end: JournalPosition) -> Iterator[Violation]:
    """Does the mark lie in the journal, which goes from `start` to `end`?"""
    where = f"the journal of {log_name}"
    if mark.copied_through > end:
        what = (
            f"it ends at position {end}, and the data log's mark says that all up to {mark.copied_through} is copied: "
            "segments are missing or cut, or the mark was moved"
        )
        yield Violation(where, what, 4)
    if mark.replay_from > mark.copied_through:
        what = f"a restart would replay from {mark.replay_from}, behind the mark {mark.copied_through}"
        yield Violation(where, what, 4)
    if mark.replay_from < start:
        what = f"a restart would replay from {mark.replay_from}, and the journal begins at {start}"
        yield Violation(where, what, 11)


def check_journal(
    log: LogId,
    log_name: str,
    frames: Sequence[ReadFrame],
    mark: Mark,
    windows: Mapping[ProducerId, ProducerWindow],
    opened: Iterable[OpenInLog],
    view: JournalView,
    *,
    start: JournalPosition,
    log_start: Offset,
) -> Iterator[Violation]:
    """Hold a journal whose mark lies in it against that mark, and fill `view`.

    `windows` and `opened` are what the data log has as of the mark; `log_start` is where it begins.
    """
    yield from _check_prepared(log_name, frames, mark, view, start)
    yield from _check_before_mark(log_name, frames, mark, view, start)
    yield from _check_starts(log_name, frames, mark, log_start)
    yield from _fold_behind_mark(log, log_name, frames, mark, windows, opened, view, log_start)


def _check_starts(log_name: str, frames: Sequence[ReadFrame], mark: Mark, log_start: Offset) -> Iterator[Violation]:
    for frame in frames:
        if frame.position < mark.copied_through and isinstance(frame.record, Start) and frame.record.offset > log_start:
            where = f"the journal of {log_name}, position {frame.position}"
            what = f"the log was told to begin at offset {frame.record.offset}, and its data log begins at {log_start}"
            yield Violation(where, what, 4)


def _check_prepared(
    log_name: str, frames: Sequence[ReadFrame], mark: Mark, view: JournalView, start: JournalPosition
) -> Iterator[Violation]:
    records: dict[TxId, int] = {}
    waiting: set[TxId] = set()
    for frame in frames:
        where = f"the journal of {log_name}, position {frame.position}"
        match frame.record:
            case TransactionalBatch(txid, count) | OpenBatch(txid, record_count=count):
                if txid in waiting:
                    yield Violation(where, f"a batch of {txid} stands behind its PREPARED", 5)
                records[txid] = records.get(txid, 0) + count
            case Prepared(txid, count):
                held = records.get(txid, 0)
                if held != count and start == 0 and frame.position < mark.copied_through:  # else the fold says it
                    yield Violation(where, f"PREPARED of {txid} counts {count} records, and {held} stand before it", 5)
                waiting.add(txid)
                known = view.prepared.get(txid)
                if known is None or known.record_count < count:  # one that held nothing may be prepared again
                    view.prepared[txid] = frame.record
            case Apply(txid) | Discard(txid) | Marker(txid):
                waiting.discard(txid)
                records.pop(txid, None)
            case _:
                pass


def _check_before_mark(
    log_name: str, frames: Sequence[ReadFrame], mark: Mark, view: JournalView, start: JournalPosition
) -> Iterator[Violation]:
    opened: dict[TxId, list[ReadFrame]] = {}
    pins: dict[TxId, JournalPosition] = {}
    readable: dict[TxId, tuple[int, int]] = {}
    next_offset: int | None = None
    boundary = start == mark.copied_through or mark.copied_through == 0
    for frame in frames:
        if frame.position >= mark.copied_through:
            break
        boundary = boundary or frame.end == mark.copied_through
        where = f"the journal of {log_name}, position {frame.position}"
        match frame.record:
            case TransactionalBatch(txid):
                opened.setdefault(txid, []).append(frame)
                pins.setdefault(txid, frame.position)
                continue
            case Prepared(txid):
                pins.setdefault(txid, frame.position)
                continue
            case PlainBatch(base_offset, record_count):
                placed = PlacedFrames(base_offset, record_count, frame.leader_epoch, (frame,))
                whole = True
            case OpenBatch(txid, base_offset, record_count):
                placed = PlacedFrames(base_offset, record_count, frame.leader_epoch, (frame,))
                whole = True
                first_offset, records = readable.get(txid, (base_offset, 0))
                readable[txid] = first_offset, records + record_count
            case Marker(txid, apply_number, offset, committed):
                placed = PlacedFrames(offset, 1, frame.leader_epoch, (frame,))
                whole = True
                pins.pop(txid, None)
                part = readable.pop(txid, (offset, 0))
                # Its batches pin nothing: a journal that was cut may have only the last of them.
                if committed and start == 0:
                    if txid in view.applied:
                        yield Violation(where, f"transaction {txid} is committed a second time", 4)
                    view.applied[txid] = AppliedPart(*part, apply_number)
            case Apply(txid, apply_number, base_offset, record_count):
                batches = tuple(opened.pop(txid, ()))
                pins.pop(txid, None)
                placed = PlacedFrames(base_offset, record_count, frame.leader_epoch, batches)
                if txid in view.applied:
                    yield Violation(where, f"transaction {txid} is applied a second time", 4)
                view.applied[txid] = AppliedPart(base_offset, record_count, apply_number)
                held = sum(_count(batch.record) for batch in batches)
                whole = held == record_count
                if not whole and start == 0:
                    what = f"the APPLY of {txid} places {record_count} records, and {held} stand before it"
                    yield Violation(where, what, 3)
            case Discard(txid):
                opened.pop(txid, None)
                pins.pop(txid, None)
                continue
            case _:
                continue
        if next_offset is not None and placed.base_offset != next_offset:
            yield Violation(where, f"places records at offset {placed.base_offset}, due is {next_offset}", 2)
        next_offset = placed.base_offset + placed.record_count
        if not whole:  # its first batches went with older segments
            view.complete_from = None
            continue
        if view.complete_from is None:
            view.complete_from = placed.base_offset
        view.copied.append(placed)
    if next_offset is not None and next_offset != mark.next_offset:
        what = (
            f"the data log's mark has next offset {mark.next_offset} at position {mark.copied_through}, where the "
            f"journal has come to offset {next_offset}"
        )
        yield Violation(f"the journal of {log_name}", what, 4)
    if not boundary and start < mark.copied_through:
        what = f"the data log's mark, {mark.copied_through}, is not where a frame ends"
        yield Violation(f"the journal of {log_name}", what, 4)
    oldest = min(pins.values(), default=mark.copied_through)
    if oldest < mark.replay_from:
        what = (
            f"a restart would replay from {mark.replay_from}, but a transaction that was open at the mark has a frame "
            f"at {oldest}"
        )
        yield Violation(f"the journal of {log_name}", what, 11)
    elif oldest > mark.replay_from:
        what = f"it is kept from position {mark.replay_from} on, and nothing before {oldest} is needed"
        yield Violation(f"the journal of {log_name}", what, 11)


def _fold_behind_mark(
    log: LogId,
    log_name: str,
    frames: Sequence[ReadFrame],
    mark: Mark,
    windows: Mapping[ProducerId, ProducerWindow],
    opened: Iterable[OpenInLog],
    view: JournalView,
    log_start: Offset,
) -> Iterator[Violation]:
    """As a restart does it."""
    state = PartitionState(log, LeaderEpoch(0))
    state.restore(
        copied_through=mark.copied_through,
        replay_from=mark.replay_from,
        next_offset=mark.next_offset,
        log_start=log_start,
        windows=windows,
        open_parts=[OpenPart(each.txid, each.leader_epoch, each.first_offset, each.records) for each in opened],
    )
    at = {frame.position: frame for frame in frames}
    view.placed = []
    for frame in frames:
        if frame.position < mark.replay_from:
            continue
        try:
            placed = state.fold(
                frame.record,
                frame.position,
                frame.end,
                leader_epoch=frame.leader_epoch,
                timestamp_ms=frame.timestamp_ms,
            )
        except CorruptStorage as error:
            yield Violation(f"the journal of {log_name}, position {frame.position}", str(error))
            return
        if isinstance(placed, PlacedTransaction):
            view.pending[placed.txid] = AppliedPart(placed.base_offset, placed.record_count, placed.apply_number)
            batches = tuple(at[batch.position] for batch in placed.batches)
            view.placed.append(PlacedFrames(placed.base_offset, placed.record_count, placed.leader_epoch, batches))
        elif isinstance(placed, PlacedMarker) and placed.committed:
            part = state.applied(placed.txid)
            assert part is not None, f"the marker of {placed.txid} has just been folded"
            view.pending[placed.txid] = AppliedPart(part.base_offset, part.record_count, placed.apply_number)
    view.open = {txid: transaction.records for txid, transaction in state.open_transactions.items()}


def _count(record: LocalRecord) -> int:
    return record.record_count if isinstance(record, TransactionalBatch) else 0
