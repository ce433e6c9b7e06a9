"""A journal's segment in readable form: its header, every frame, the torn tail or the damage where it is. Pure.

After bytes that are not a frame, the search continues as recovery's does, and what it finds is shown as well.
Recovery's table decides whether the gap is damage: a segment that has a successor must be whole; in the last one a
later frame can be the witness that the missing part was on disk; everything else is a torn tail, as a crash leaves it
and as a running node shows it while it writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from datalog.offset_entries import GroupEntry, MalformedEntries, decode_offset_entries
from fairlog.inspection.batches import show_batch
from fairlog.inspection.lines import Line
from fairlog.inspection.persisted_groups import show_group_entry
from fairlog.inspection.records import kind_in_words, record_fields
from fairlog_types import CorruptStorage, JournalPosition
from journal.frame import Buffer, Frame, decode_frame_untrusted
from journal.recovery import TAIL_TABLE, Head, Rest, Tail, Verdict, later_frames, scan_tail
from journal.segment import (
    BadHeader,
    JournalKind,
    SegmentHeader,
    decode_close_mark_untrusted,
    decode_segment_header_untrusted,
    file_offset,
)
from partition.record_codec import OPEN_BATCH, PLAIN_BATCH, TRANSACTIONAL_BATCH

_BATCHES = (PLAIN_BATCH, TRANSACTIONAL_BATCH, OPEN_BATCH)


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a file is shown."""

    start: int = 0
    """Frames from this position on; of data logs: batches from this offset on."""
    count: int | None = None
    """At most so many frames; of data logs: so many batches of each log. None: all."""
    records: bool = False
    """Look into batches."""


def show_segment(content: Buffer, *, sealed: bool, offsets_log: bool, selection: Selection) -> Iterator[Line]:
    """The whole file `content`.

    `sealed`: the journal has a later segment. `offsets_log`: payloads are lists of committed offsets, not batches.
    """
    header = decode_segment_header_untrusted(content)
    if isinstance(header, BadHeader):
        only_zeros = not any(memoryview(content))
        if only_zeros and not sealed:
            yield Line("segment without a header, nothing but zeros: a crash in its making", {"bytes": len(content)})
        else:
            yield Line("segment", {"bytes": len(content)}, f"byte 0: {header.value}")
        return
    tail = scan_tail(content, base=header.base, salt=header.salt)
    yield _header_line(header, content, sealed)
    left = _Left(selection)
    for frame in _row(content, header, tail):
        if left.takes(frame):
            yield from _show_frame(header, frame, offsets_log, selection)
    if tail.rest is Rest.ZEROS:
        if sealed and file_offset(tail.hole, header.base) < len(content):
            byte = file_offset(tail.hole, header.base)
            yield Line(
                "zeros", {"position": tail.hole}, f"byte {byte}: a segment that has a successor ends with a frame"
            )
        return
    yield _hole_line(header, tail, sealed)
    for frame in later_frames(content, tail.hole, base=header.base, salt=header.salt):
        if left.takes(frame):
            yield from _show_frame(header, frame, offsets_log, selection)


class _Left:
    """Counts what is shown."""

    def __init__(self, selection: Selection) -> None:
        self._start = selection.start
        self._left = selection.count

    def takes(self, frame: Frame) -> bool:
        if frame.position < self._start or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        return True


def _header_line(header: SegmentHeader, content: Buffer, sealed: bool) -> Line:
    return Line(
        f"segment of a {header.kind.name.lower()} journal",
        {
            "base": header.base,
            "previous_end": header.previous_end,
            "fsync": header.fsync,
            "salt": f"{header.salt:08x}",
            "bytes": len(content),
            "sealed": sealed,
            "closed_at": decode_close_mark_untrusted(content, base=header.base, salt=header.salt),
        },
    )


def _row(content: Buffer, header: SegmentHeader, tail: Tail) -> Iterator[Frame]:
    """The unbroken row of frames, which `tail` has found."""
    position = header.base
    while position < tail.hole:
        offset = file_offset(position, header.base)
        frame = decode_frame_untrusted(content, position, salt=header.salt, offset=offset)
        assert isinstance(frame, Frame), (position, frame)
        yield frame
        position = frame.end


def _show_frame(header: SegmentHeader, frame: Frame, offsets_log: bool, selection: Selection) -> Iterator[Line]:
    byte = file_offset(frame.position, header.base)
    fields: dict[str, object] = {"position": frame.position}
    what = kind_in_words(header.kind, frame.kind)
    damage = None
    try:
        fields.update(record_fields(header.kind, frame.kind, frame.header(), lambda: bytes(frame.payload)))
    except (CorruptStorage, ValueError) as error:
        damage = f"byte {byte}: {error}"
    fields.update(
        {
            "leader_epoch": frame.leader_epoch,
            "written_ms": frame.timestamp_ms,
            "durable": frame.durable,
            "payload_bytes": len(frame.payload),
        }
    )
    yield Line(what, fields, damage)
    is_batch = header.kind is JournalKind.LOCAL and frame.kind in _BATCHES
    if not is_batch:
        return
    payload_byte = file_offset(frame.payload_position, header.base)
    if not offsets_log:
        yield from show_batch(frame.payload, payload_byte, records=selection.records, depth=1)
        return
    try:
        entries = decode_offset_entries(frame.payload)
    except MalformedEntries as error:
        yield Line("committed offsets", {}, f"byte {payload_byte}: {error}", 1)
        return
    for entry in entries if selection.records else ():
        if isinstance(entry, GroupEntry):
            yield show_group_entry(entry, payload_byte)
        else:
            yield Line("committed offset", {"key": entry.key, "value": entry.value}, None, 1)


def _hole_line(header: SegmentHeader, tail: Tail, sealed: bool) -> Line:
    byte = file_offset(tail.hole, header.base)
    fields: dict[str, object] = {
        "position": tail.hole,
        "byte": byte,
        "bytes": tail.content_end - tail.hole,
        "frames_behind_it": tail.later_frames,
    }
    why = "zeros" if tail.bad is None else tail.bad.value
    row = TAIL_TABLE[Head.WHOLE, tail.rest]
    if sealed:
        return Line("no frame", fields, f"byte {byte}: {why}, in a segment that has a successor")
    if row.verdict is Verdict.REFUSE:
        return Line(
            "no frame", fields, f"byte {byte}: {why}, yet a later frame or the close mark knew it to be on disk"
        )
    return Line("torn tail", {**fields, "why": f"{why}: {row.why}"})


def durable_elsewhere(line: Line, through: JournalPosition) -> Line:
    """A torn tail that a frame of another file knew to be on disk is damage after all."""
    position = line.fields.get("position")
    if line.what != "torn tail" or not isinstance(position, int) or through <= position:
        return line
    damage = f"byte {line.fields['byte']}: a frame of the next segment knew it to be on disk"
    return Line("no frame", line.fields, damage)
