"""What to make of a journal's segments after a crash: a scan that finds, and a table that decides.

Only the last segment can be torn: a segment gets its name when all before it is whole and on disk
(`segment_file.publish`). So the last is scanned frame by frame, and the others are held against their
neighbours. The scan takes frames while they are valid. Where they stop is the *hole*; behind it lie zeros (the
preallocated room), or something. Something is either what a crash left of writes that nobody had been told
were durable, or damage to what somebody was told. The frames themselves say which: each carries
the position through which the journal was on disk when it was written. A valid frame behind the hole that knew
bytes at the hole to be on disk is a witness, and the journal is refused; without a witness, nothing durable is
missing, and the tail is cut. A segment that follows without a name yet (`reopen`) can hold such a witness, too.

The other way round: a damaged tail that nothing valid follows is taken for torn. That is why a clean close leaves a
close mark beside the header: from then on, damage to any frame before it has a witness.

`TAIL_TABLE` and `SEALED_TABLE` hold every case, labelled; a test walks all of them.
Pure: no I/O. Keeps invariant 5 on the journal's side (nothing that was durable is cut).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from fairlog_types import JournalPosition
from journal.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    POSITION_OFFSET,
    BadFrame,
    Buffer,
    Frame,
    check_frame_untrusted,
    claimed_frame_bytes,
    decode_frame_untrusted,
    padded,
)
from journal.segment import SEGMENT_HEADER_BYTES, decode_close_mark_untrusted, file_offset

_ZEROS = bytes(64 * 1024)

PAGE_BYTES = 4096
"""Of the page cache, at least."""


class Head(Enum):
    """What a segment's header turned out to be."""

    WHOLE = "whole"
    FOREIGN = "whole, but of another base, kind or version"
    UNREADABLE = "unreadable"


class Rest(Enum):
    """What lies behind the last segment's valid frames (or behind an unreadable header)."""

    ZEROS = "zeros"
    GARBAGE = "something, but no frame"
    UNWITNESSED = "later frames, none of which knew the hole to be durable"
    WITNESSED = "a later frame, or a close mark, that knew the hole to be durable"


class Joint(Enum):
    """How a segment that is not the last meets the next one."""

    MEETS = "it ends where the next says that it ends"
    SHORT = "it ends before"
    LONG = "it ends behind"


class Verdict(Enum):
    """What to do with a segment."""

    KEEP = "keep"
    CUT = "cut at the hole"
    RENEW = "write the header anew"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a decision table: its label, what to do, and why (part of the message where it refuses)."""

    label: str
    verdict: Verdict
    why: str


_FOREIGN_WHY = "its header is of another journal or version"
_HEADLESS_WHY = "its header is unreadable and something lies behind it"
_CLEAN = Row("clean end", Verdict.KEEP, "only preallocated zeros follow")
_TORN = Row("torn tail", Verdict.CUT, "a frame was being written")
_REORDERED = Row("torn tail, later frames", Verdict.CUT, "pages reached the disk out of order; none was durable")
_DAMAGED = Row("hole with a witness", Verdict.REFUSE, "frames that were on disk are damaged or missing")
_NEWBORN = Row("crash in creation", Verdict.RENEW, "the header is missing, and there was never a frame")
_HEADLESS = Row("header lost", Verdict.REFUSE, _HEADLESS_WHY)
_FOREIGN = Row("foreign header", Verdict.REFUSE, _FOREIGN_WHY)

TAIL_TABLE: Mapping[tuple[Head, Rest], Row] = {
    (Head.WHOLE, Rest.ZEROS): _CLEAN,
    (Head.WHOLE, Rest.GARBAGE): _TORN,
    (Head.WHOLE, Rest.UNWITNESSED): _REORDERED,
    (Head.WHOLE, Rest.WITNESSED): _DAMAGED,
    (Head.UNREADABLE, Rest.ZEROS): _NEWBORN,
    # Without the header there is no salt, so nothing behind it can be told for a frame; all of it counts as content.
    (Head.UNREADABLE, Rest.GARBAGE): _HEADLESS,
    (Head.UNREADABLE, Rest.UNWITNESSED): _HEADLESS,
    (Head.UNREADABLE, Rest.WITNESSED): _HEADLESS,
    (Head.FOREIGN, Rest.ZEROS): _FOREIGN,
    (Head.FOREIGN, Rest.GARBAGE): _FOREIGN,
    (Head.FOREIGN, Rest.UNWITNESSED): _FOREIGN,
    (Head.FOREIGN, Rest.WITNESSED): _FOREIGN,
}
"""The last segment: every head with every rest."""

_SEALED = Row("sealed", Verdict.KEEP, "whole when the next segment got its name")
_GAP = Row("segment missing or short", Verdict.REFUSE, "the next segment continues from a later position")
_OVERLAP = Row("segment too long", Verdict.REFUSE, "the next segment continues from an earlier position")
_SEALED_HEADLESS = Row("sealed header lost", Verdict.REFUSE, "its header is unreadable")

SEALED_TABLE: Mapping[tuple[Head, Joint], Row] = {
    (Head.WHOLE, Joint.MEETS): _SEALED,
    (Head.WHOLE, Joint.SHORT): _GAP,
    (Head.WHOLE, Joint.LONG): _OVERLAP,
    (Head.UNREADABLE, Joint.MEETS): _SEALED_HEADLESS,
    (Head.UNREADABLE, Joint.SHORT): _SEALED_HEADLESS,
    (Head.UNREADABLE, Joint.LONG): _SEALED_HEADLESS,
    (Head.FOREIGN, Joint.MEETS): _FOREIGN,
    (Head.FOREIGN, Joint.SHORT): _FOREIGN,
    (Head.FOREIGN, Joint.LONG): _FOREIGN,
}
"""Every other segment: every head with every joint. Its frames are checked when they are read."""


@dataclass(frozen=True, slots=True)
class Witness:
    """What frames outside of the last segment, or none, say of it."""

    frames: int
    through: JournalPosition
    """The furthest position that one of them knew to be durable."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What the scan found in the last segment."""

    hole: JournalPosition
    """Behind the last frame of the unbroken row: where the journal ends, unless it is refused."""
    witnessed: JournalPosition
    """What the unbroken row and the close mark vouch for: through here it was on disk before the crash."""
    rest: Rest
    bad: BadFrame | None
    """Why there is no frame at the hole; None if only zeros follow."""
    content_end: JournalPosition
    """Behind the last byte that is not zero (at least the hole)."""
    later_frames: int
    """Valid frames behind the hole."""
    later_witness: JournalPosition
    """The furthest position that one of them, or the close mark, knew to be durable; 0 without any."""
    closed: bool
    """Whether the journal was closed where the unbroken row ends, and nothing follows it."""
    interrupted: bool = False
    """Whether all that follows the row is the beginning of one frame, up to a page's end. A write during which the
    process was killed looks so; nothing that was appended before it is missing then."""


def content_bytes(buffer: Buffer) -> int:
    """The length of `buffer` without its trailing zeros."""
    view = memoryview(buffer)
    end = len(view)
    while end:
        start = max(0, end - len(_ZEROS))
        chunk = bytes(view[start:end])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        end = start
    return 0


def scan_tail(buffer: Buffer, *, base: JournalPosition, salt: int) -> Tail:
    """Read the last segment's frames from its whole file content `buffer` (with header and close mark).

    After a hole only multiples of 8 at whose place a frame would have its own position are tried as frames, so that a
    tail full of data is searched in one pass. The search goes on after each frame found, so what a payload contains is
    not counted.
    """
    content = max(SEGMENT_HEADER_BYTES, content_bytes(buffer))
    position, witnessed = base, base
    bad: BadFrame | None = None
    # A frame's padding is part of it, and zeros: so frames are decoded against the whole buffer, not the content.
    view = memoryview(buffer)
    while file_offset(position, base) < content:
        head = check_frame_untrusted(view, position, salt=salt, offset=file_offset(position, base))
        if isinstance(head, BadFrame):
            bad = head
            break
        position = JournalPosition(position + padded(head.frame_bytes))
        witnessed = JournalPosition(max(witnessed, head.durable))
    mark = decode_close_mark_untrusted(view, base=base, salt=salt)
    later, witness = 0, mark or JournalPosition(0)
    witnessed = max(witnessed, witness)
    if bad is not None:
        for frame in later_frames(buffer, position, base=base, salt=salt):
            later += 1
            witness = max(witness, frame.durable)
    if witness > position:
        rest = Rest.WITNESSED
    elif later:
        rest = Rest.UNWITNESSED
    else:
        rest = Rest.ZEROS if bad is None else Rest.GARBAGE
    content_end = position if bad is None else JournalPosition(base + content - SEGMENT_HEADER_BYTES)
    return Tail(
        position,
        witnessed,
        rest,
        bad,
        content_end,
        later,
        witness,
        closed=rest is Rest.ZEROS and mark == position,
        interrupted=rest is Rest.GARBAGE and _is_interrupted_write(view, position, content, base=base),
    )


def _is_interrupted_write(
    buffer: memoryview, position: JournalPosition, content: int, *, base: JournalPosition
) -> bool:
    """Whether the frame that was begun at `position` breaks off at a page's end, before its own.

    A frame is written by one call, and a call that a kill interrupts has written whole pages of the file. Damage, and
    what a loss of power leaves, may look so as well; who knows that neither has happened can tell.
    """
    start = file_offset(position, base)
    claim = claimed_frame_bytes(buffer, position, offset=start)
    broken_off_at = -(-content // PAGE_BYTES) * PAGE_BYTES
    return broken_off_at < start + (HEADER_BYTES if claim is None else claim)


def heard(tail: Tail, witness: Witness) -> Tail:
    """The tail with a witness from behind its segment: if it knew the hole to be durable, it counts as one within."""
    if witness.through <= tail.hole:
        return tail
    return replace(
        tail,
        rest=Rest.WITNESSED,
        later_frames=tail.later_frames + witness.frames,
        later_witness=max(tail.later_witness, witness.through),
    )


def scan_witness(buffer: Buffer, *, base: JournalPosition, salt: int) -> Witness:
    """What the frames of a segment, given as its whole file content, say of the journal before it."""
    frames = later_frames(buffer, base, base=base, salt=salt)
    return Witness(len(frames), max((frame.durable for frame in frames), default=JournalPosition(0)))


def later_frames(buffer: Buffer, hole: JournalPosition, *, base: JournalPosition, salt: int) -> list[Frame]:
    """The valid frames at and behind `hole`, found as `scan_tail` says."""
    view = memoryview(buffer)
    content = max(SEGMENT_HEADER_BYTES, content_bytes(buffer))
    first_word = file_offset(hole, base) + POSITION_OFFSET
    words_end = min(content + ALIGNMENT, len(view))
    words = view[first_word : max(first_word, words_end - (words_end - first_word) % ALIGNMENT)]
    frames: list[Frame] = []
    behind = hole
    for index, (word,) in enumerate(struct.iter_unpack("<Q", words)):
        position = JournalPosition(hole + index * ALIGNMENT)
        if word == position and position >= behind:
            frame = decode_frame_untrusted(view, position, salt=salt, offset=file_offset(position, base))
            if isinstance(frame, Frame):
                frames.append(frame)
                behind = frame.end
    return frames
