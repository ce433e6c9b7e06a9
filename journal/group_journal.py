"""The journal of the groups that hash to it: append, replay, snapshot.

A thin shell over a `Journal` of kind GROUP. It keeps no state of the groups; the coordinator does, and hands its
state over when a snapshot is taken.

A snapshot lets older segments go. It is written while the node serves, so other records are appended beside it::

    … r1 r2 r3 │ r4 BEGIN(as_of │) part part r5 part END(3) r6 …
               └─ a new segment began, and the state was taken, here

The state is taken in one step with the position `as_of`, and its records are frames of kinds of their own (*parts*). A
replay therefore gives: the parts of the last snapshot that has its END, then every other record from its
`as_of` on (r4 r5 r6). A snapshot without END, cut short by a crash or a cancellation, is as if it had never
begun. Segments before `as_of` are deleted only when END is on disk, so at every moment there is either the old
history or a complete snapshot (docs/formats/group-journal.md has the crash cases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio.lowlevel

from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal.failpoints import reach
from journal.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    GroupAbortedRecord,
    GroupCommittedRecord,
    GroupPrepareCommitRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
    decode_group,
    encode_group,
    record_bytes_max,
)
from journal.journal import FrameAt, Journal

SNAPSHOT_BEGIN = 0x10
SNAPSHOT_END = 0x11
PART = 0x80
"""Added to a record's kind where it is part of a snapshot."""

_BRACKET_BYTES_MAX = 16
"""Of the header of SNAPSHOT_BEGIN or SNAPSHOT_END."""

_PARTS_PER_STEP = 200
"""About 2 ms of the event loop between two checkpoints."""

_FAILPOINTS: dict[type[GroupRecord], str] = {
    ProducerRecord: "group.producer_state.appended",
    BeginRecord: "group.begin.appended",
    PrepareCommitRecord: "group.prepare_commit.appended",
    CommittedRecord: "group.committed.appended",
    PrepareAbortRecord: "group.prepare_abort.appended",
    AbortedRecord: "group.aborted.appended",
    GroupPrepareCommitRecord: "group.group_prepare_commit.appended",
    GroupCommittedRecord: "group.group_committed.appended",
    GroupAbortedRecord: "group.group_aborted.appended",
}


class ReadableJournal(Protocol):
    """What a replay needs of a journal; `Journal` has it, and so has `journal.survey`."""

    @property
    def start(self) -> JournalPosition: ...

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]: ...

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray: ...


class GroupJournal:
    """One group journal, over an opened `Journal`, which the caller closes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._snapshot_end = journal.start
        self._snapshot_running = False

    @property
    def failed(self) -> StorageFailure | None:
        """Why the journal is closed for writing; None as long as it is open."""
        return self._journal.failed

    @property
    def bytes_since_snapshot(self) -> int:
        """How much stands behind the last complete snapshot, in bytes; meaningful once `replay` has run."""
        return self._journal.end - self._snapshot_end

    def replay(self) -> Iterator[GroupRecord]:
        """The last complete snapshot's records, then all that was appended since its state was taken.

        Synchronous, for recovery, before the first `append`. Raises CorruptStorage, naming the position.
        """
        history = read_history(self._journal)
        if history.snapshot_end is not None:
            self._snapshot_end = history.snapshot_end
        for frame, kind in history.frames:
            yield decode_frame(self._journal, frame, kind)

    def has_room(self, record: GroupRecord) -> bool:
        """Will `append` find room for the record?"""
        return self._journal.has_room(record_bytes_max(record))

    async def make_room(self, record: GroupRecord) -> None:
        """Make room for the record. Raises StorageFailure if the disk is full."""
        await self._journal.make_room(record_bytes_max(record))

    def append(self, record: GroupRecord) -> JournalPosition:
        """Append; answer the position *behind* the record: `flush` of it makes the record durable.

        Raises StorageFailure if the journal is closed for writing; NoRoom (one of them) if room is missing.
        """
        kind, header, payload = encode_group(record)
        self._journal.append(kind, header, (payload,) if payload else ())
        end = self._journal.end
        failpoint = _FAILPOINTS.get(type(record))
        if failpoint is not None:
            reach(failpoint)
        return end

    def start_flush(self) -> None:
        """Begin to flush what is appended so far, without waiting."""
        self._journal.start_flush()

    async def flush(self, through: JournalPosition) -> None:
        """Return once everything before `through` is durable. Raises StorageFailure. Cancelling changes nothing."""
        await self._journal.flush(through)

    async def to_disk(self, through: JournalPosition) -> None:
        """Return once everything before `through` is on disk, whatever `journal.fsync` says. Otherwise as `flush`."""
        await self._journal.sync(through)

    async def snapshot(self, state: Callable[[], Iterable[GroupRecord]]) -> None:
        """Let the records of `state` stand for all that was appended so far, and delete the segments before them.

        `state` is called, and all of it taken, in the step in which a new segment has begun: what is appended from then
        on is replayed after it. One snapshot at a time. Raises StorageFailure; then, and when cancelled, the journal
        reads as if the snapshot had not been begun, and another one may follow.
        """
        assert not self._snapshot_running, "a snapshot of this group journal is being written"
        self._snapshot_running = True
        try:
            reach("group.snapshot.before")
            # In a segment of its own, and the state is that of its beginning: so all before it can be deleted.
            as_of = await self._journal.roll()
            await self._write_snapshot(as_of, list(state()))
            await self._journal.reclaim(as_of)
        finally:
            self._snapshot_running = False

    async def _write_snapshot(self, as_of: JournalPosition, records: list[GroupRecord]) -> None:
        await self._room_for(_BRACKET_BYTES_MAX)
        self._journal.append(SNAPSHOT_BEGIN, (as_of,))
        for number, record in enumerate(records):
            if number == len(records) // 2:
                reach("group.snapshot.middle")
            if number % _PARTS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            kind, header, payload = encode_group(record)
            await self._room_for(record_bytes_max(record))
            self._journal.append(PART | kind, header, (payload,) if payload else ())
        await self._room_for(_BRACKET_BYTES_MAX)
        self._journal.append(SNAPSHOT_END, (len(records),))
        end = self._journal.end
        await self._journal.sync()
        self._snapshot_end = end
        reach("group.snapshot.after")

    async def _room_for(self, record_bytes: int) -> None:
        """Return in a step in which there is room, whoever else appends meanwhile."""
        while not self._journal.has_room(record_bytes):
            await self._journal.make_room(record_bytes)


@dataclass(frozen=True, slots=True)
class History:
    """The frames that count in a group journal, each with its record's kind."""

    frames: Sequence[tuple[FrameAt, int]]
    """The last complete snapshot's parts, then what was appended since its state was taken."""
    snapshot_end: JournalPosition | None
    """Behind the last complete snapshot; None if there is none."""


def read_history(journal: ReadableJournal) -> History:
    """Sort out a group journal's frames, without their payloads. Raises CorruptStorage, naming the position."""
    parts: list[FrameAt] = []
    beside: list[FrameAt] = []
    snapshot: list[FrameAt] = []
    snapshot_end: JournalPosition | None = None
    as_of: JournalPosition | None = None
    complete = journal.start == 0
    for frame in journal.frames(journal.start):
        if frame.kind == SNAPSHOT_BEGIN:
            parts = []
            as_of = JournalPosition(_only_number(frame))
        elif frame.kind == SNAPSHOT_END:
            if as_of is None:
                continue  # An older snapshot, whose beginning has been deleted already.
            if _only_number(frame) != len(parts):
                raise _unreadable(
                    frame, f"it ends a snapshot of {_only_number(frame)} parts, but {len(parts)} stand before it"
                )
            complete = journal.start <= as_of
            beside = [other for other in beside if other.position >= as_of]
            snapshot, parts, as_of = parts, [], None
            snapshot_end = frame.end
        elif frame.kind & PART:
            if as_of is not None:
                parts.append(frame)
        else:
            beside.append(frame)
    if not complete:
        raise CorruptStorage(
            f"a group journal begins at position {journal.start}, but no complete snapshot stands in it; "
            "restore its directory from a copy"
        )
    return History(
        [*((frame, frame.kind ^ PART) for frame in snapshot), *((frame, frame.kind) for frame in beside)], snapshot_end
    )


def decode_frame(journal: ReadableJournal, frame: FrameAt, kind: int) -> GroupRecord:
    """The record of one frame of a `History`. Raises CorruptStorage, naming the position."""
    payload = b""
    if frame.payload_bytes:
        payload = journal.read_payload(frame.position, frame.end - frame.position)
    try:
        return decode_group(kind, frame.header, payload)
    except CorruptStorage as error:
        raise _unreadable(frame, str(error)) from error


def _only_number(frame: FrameAt) -> int:
    match frame.header:
        case [int(number)]:
            return number
        case _:
            raise _unreadable(frame, f"its header must be one number, and has {len(frame.header)} fields")


def _unreadable(frame: FrameAt, what: str) -> CorruptStorage:
    return CorruptStorage(
        f"a group journal cannot be read at position {frame.position}: {what}; restore its directory from a copy"
    )
