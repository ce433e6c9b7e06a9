"""Which frames of a group journal count: the last complete snapshot, and what was appended since. Pure.

A snapshot is written while other records are appended beside it::

    … r1 r2 r3 │ r4 BEGIN(as_of │, n) part part r5 part END(3) r6 …
               └─ a new segment began, and the state was taken, here

The state is taken in one step with the position `as_of` and the number `n` of the last PREPARE_COMMIT (0 if there was
none), and its records are frames of kinds of their own (*parts*). A
replay therefore gives: the parts of the last snapshot that has its END, then every other record from its
`as_of` on (r4 r5 r6). A snapshot without END, cut short by a crash or a cancellation, is as if it had never
begun.

The node replays by it, and so do those who only look at the files: `fairlog verify`, and the tasks of `fairlog audit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.group_records import GroupRecord, decode_group
from fairlog_types import CorruptStorage, JournalPosition
from journal.reading import FrameAt

SNAPSHOT_BEGIN = 0x10
SNAPSHOT_END = 0x11
PART = 0x80
"""Added to a record's kind where it is part of a snapshot."""


class ReadableJournal(Protocol):
    """What a replay needs of a journal; `Journal` has it, and so has `journal.read_only`."""

    @property
    def start(self) -> JournalPosition: ...

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]: ...

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray: ...


@dataclass(frozen=True, slots=True)
class History:
    """The frames that count in a group journal, each with its record's kind."""

    frames: Sequence[tuple[FrameAt, int]]
    """The last complete snapshot's parts, then what was appended since its state was taken."""
    snapshot_end: JournalPosition | None
    """Behind the last complete snapshot; None if there is none."""
    snapshot_commit_number: int
    """That of the last PREPARE_COMMIT before that snapshot's state; 0 if there is none."""


def read_history(journal: ReadableJournal) -> History:
    """Sort out a group journal's frames, without their payloads. Raises CorruptStorage, naming the position."""
    parts: list[FrameAt] = []
    beside: list[FrameAt] = []
    snapshot: list[FrameAt] = []
    snapshot_end: JournalPosition | None = None
    as_of: JournalPosition | None = None
    commit_number = snapshot_commit_number = 0
    complete = journal.start == 0
    for frame in journal.frames(journal.start):
        if frame.kind == SNAPSHOT_BEGIN:
            parts = []
            begun_as_of, commit_number = _numbers(frame, 2)
            as_of = JournalPosition(begun_as_of)
        elif frame.kind == SNAPSHOT_END:
            if as_of is None:
                continue  # An older snapshot, whose beginning has been deleted already.
            (count,) = _numbers(frame, 1)
            if count != len(parts):
                raise _unreadable(frame, f"it ends a snapshot of {count} parts, but {len(parts)} stand before it")
            complete = journal.start <= as_of
            beside = [other for other in beside if other.position >= as_of]
            snapshot, parts, as_of = parts, [], None
            snapshot_end, snapshot_commit_number = frame.end, commit_number
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
        [*((frame, frame.kind ^ PART) for frame in snapshot), *((frame, frame.kind) for frame in beside)],
        snapshot_end,
        snapshot_commit_number,
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


def _numbers(frame: FrameAt, count: int) -> list[int]:
    numbers = [field for field in frame.header if isinstance(field, int)]
    if not len(numbers) == len(frame.header) == count:
        raise _unreadable(frame, f"its header must have {count} numbers, and is {list(frame.header)}")
    return numbers


def _unreadable(frame: FrameAt, what: str) -> CorruptStorage:
    return CorruptStorage(
        f"a group journal cannot be read at position {frame.position}: {what}; restore its directory from a copy"
    )


class SnapshotsCopied:
    """Of a group journal that is copied frame by frame: what of it a snapshot has made needless."""

    def __init__(self) -> None:
        self._as_of: JournalPosition | None = None

    def note(self, frame: FrameAt) -> JournalPosition | None:
        """The next frame has been copied; before the answer nothing counts any more, once the copy is on disk.

        Raises CorruptStorage.
        """
        if frame.kind == SNAPSHOT_BEGIN:
            as_of, _ = _numbers(frame, 2)
            self._as_of = JournalPosition(as_of)
        elif frame.kind == SNAPSHOT_END:
            as_of, self._as_of = self._as_of, None
            return as_of
        return None
