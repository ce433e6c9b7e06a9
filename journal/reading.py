"""Reading frames back out of segments: in a row for recovery, one by one for the copier. Blocking.

Every frame is checked (checksum, position) each time it is read. What is not a frame where one was written
is damage: CorruptStorage names the file and the byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch
from journal.frame import (
    BadFrame,
    Frame,
    claimed_frame_bytes,
    decode_frame_untrusted,
)
from journal.segment import file_offset
from journal.segment_file import OpenFile, read_range

_WINDOW_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class FrameAt:
    """A frame as `Journal.frames` yields it: what it says, and where its payload lies."""

    position: JournalPosition
    end: JournalPosition
    """After the frame and its padding; `end - position` is the `frame_bytes` that `read_payload` takes."""
    kind: int
    leader_epoch: LeaderEpoch
    timestamp_ms: int
    """The writer's clock."""
    header: list[object]
    payload_position: JournalPosition
    payload_bytes: int


def frame_at(frame: Frame) -> FrameAt:
    """What a frame says, without its payload. Raises ValueError if its header is not one."""
    return FrameAt(
        frame.position,
        frame.end,
        frame.kind,
        frame.leader_epoch,
        frame.timestamp_ms,
        frame.header(),
        frame.payload_position,
        len(frame.payload),
    )


@dataclass(frozen=True, slots=True)
class ReadableSegment:
    """A segment to read from, and how far."""

    path: Path
    """For messages."""
    open_file: OpenFile
    base: JournalPosition
    end: JournalPosition
    salt: int


def read_frames(segment: ReadableSegment, start: JournalPosition) -> Iterator[FrameAt]:
    """Yield the segment's frames from `start`, which must be where one begins.

    Raises CorruptStorage at what is not a frame; OSError if the disk refuses.
    """
    window, window_start = bytearray(), start
    position = start
    while position < segment.end:
        frame = _decode(segment, window, window_start, position)
        if frame is BadFrame.SHORT:
            window, window_start = _read(segment, position, _WINDOW_BYTES), position
            frame = _decode(segment, window, window_start, position)
        if frame is BadFrame.SHORT and (claimed := claimed_frame_bytes(window, position)) is not None:
            window = _read(segment, position, claimed)
            frame = _decode(segment, window, window_start, position)
        if isinstance(frame, BadFrame):
            raise _corrupt(segment, position, frame.value)
        try:
            found = frame_at(frame)
        except ValueError as error:
            raise _corrupt(segment, position, str(error)) from error
        yield found
        position = frame.end


def read_payload(segment: ReadableSegment, position: JournalPosition, frame_bytes: int) -> bytearray:
    """The payload of the frame at `position` that takes `frame_bytes`, padding included.

    Raises CorruptStorage if there is no such frame; OSError if the disk refuses.
    """
    data = read_range(segment.open_file.fd, file_offset(position, segment.base), frame_bytes)
    frame = decode_frame_untrusted(data, position, salt=segment.salt)
    if isinstance(frame, BadFrame):
        raise _corrupt(segment, position, frame.value)
    payload_bytes = len(frame.payload)
    payload_start = frame.payload_position - position
    frame.payload.release()
    frame.cbor.release()
    del data[payload_start + payload_bytes :], data[:payload_start]
    return data


def _read(segment: ReadableSegment, position: JournalPosition, count: int) -> bytearray:
    offset = file_offset(position, segment.base)
    return read_range(segment.open_file.fd, offset, min(count, segment.end - position))


def _decode(
    segment: ReadableSegment, window: bytearray, window_start: JournalPosition, position: JournalPosition
) -> Frame | BadFrame:
    return decode_frame_untrusted(window, position, salt=segment.salt, offset=position - window_start)


def _corrupt(segment: ReadableSegment, position: JournalPosition, why: str) -> CorruptStorage:
    return CorruptStorage(
        f"{segment.path}: byte {file_offset(position, segment.base)} (journal position {position}): damaged frame: "
        f"{why}. Put back an intact copy of the file."
    )
