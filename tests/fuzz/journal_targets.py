"""Readers of journals: frames, segments, directories, records."""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from crc32c import crc32c

from coordinator.group_history import decode_frame, read_history
from coordinator.group_records import decode_group, encode_group
from fairlog.inspection.segments import Selection, show_segment
from fairlog_types import CorruptStorage, JournalPosition
from journal.frame import (
    ENVELOPE_BYTES,
    HEADER_BYTES,
    BadFrame,
    claimed_frame_bytes,
    decode_frame_untrusted,
    encode_frame,
    padded,
)
from journal.read_only import open_read_only
from journal.reopen import reopen
from journal.segment import (
    CLOSE_MARK_OFFSET,
    NEW_SUFFIX,
    SEGMENT_HEADER_BYTES,
    Fsync,
    JournalKind,
    SegmentHeader,
    decode_segment_header_untrusted,
    encode_close_mark,
    encode_segment_header,
    segment_name,
)
from partition.producer_window import ProducerWindow, check_sequence
from partition.record_codec import decode_local, encode_local
from tests.fuzz.odd_cbor import with_odd_items
from tests.fuzz.target import Target
from tests.journal.golden_frames import EPOCH, GOLDEN, SALT, golden_bytes

_LOCAL_FRAMES = ("local-journal-frames-3.txt",)
_GROUP_FRAMES = ("group-journal-frames-5.txt",)
_WINDOWS = ("producer-window-1.txt", "producer-window-2.txt")
_SEGMENTS = ("journal-segment-3.bin",)
_EVERYTHING = Selection(records=True)
_U16 = struct.Struct("<H")
_SCRATCH = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else None
"""Memory, where the system has it: thousands of small directories a minute."""


def read_frame(data: bytes) -> None:
    """One frame where it stands, and one behind another."""
    for offset in (0, 8):
        frame = decode_frame_untrusted(data, JournalPosition(offset), salt=SALT, offset=offset)
        claimed_frame_bytes(data, JournalPosition(offset), offset=offset)
        if not isinstance(frame, BadFrame):
            assert HEADER_BYTES + len(frame.cbor) + len(frame.payload) == frame.frame_bytes, (
                "a frame that is not all there"
            )
            with suppress(ValueError):
                frame.header()


def read_segment(data: bytes) -> None:
    """As `fairlog inspect` shows it; recovery's scan is part of it."""
    for sealed, offsets_log in ((False, False), (True, True)):
        for line in show_segment(data, sealed=sealed, offsets_log=offsets_log, selection=_EVERYTHING):
            str(line)


def read_mended_segment(data: bytes) -> None:
    read_segment(mend_segment(data))


def mend_segment(data: bytes) -> bytes:
    """A segment whose header and frames, as far as their lengths lead, have right sums and positions."""
    segment = bytearray(data)
    if len(segment) < SEGMENT_HEADER_BYTES:
        return data
    segment[60:64] = _u32(crc32c(bytes(segment[:60])))
    salt, base = int.from_bytes(segment[12:16], "little"), int.from_bytes(segment[16:24], "little")
    segment[76:80] = _u32(crc32c(bytes(segment[64:76]), salt))
    at = SEGMENT_HEADER_BYTES
    while at + HEADER_BYTES <= len(segment):
        frame_bytes = ENVELOPE_BYTES + int.from_bytes(segment[at + 32 : at + 36], "little")
        if not HEADER_BYTES <= frame_bytes <= len(segment) - at:
            break
        position = base + at - SEGMENT_HEADER_BYTES
        segment[at + 16 : at + 24] = (position & (1 << 64) - 1).to_bytes(8, "little")
        segment[at + 12 : at + 16] = _u32(crc32c(bytes(segment[at + 16 : at + frame_bytes])))
        segment[at : at + 4] = _u32(crc32c(bytes(segment[at + 4 : at + 24]), salt))
        at += padded(frame_bytes)
    return bytes(segment)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def read_local_record(data: bytes) -> None:
    """A kind, and a frame's CBOR."""
    with suppress(ValueError):
        header = _header(data[1:])
        with suppress(CorruptStorage):
            _named(lambda: decode_local(data[0] if data else 0, header))
            record = decode_local(data[0], header)
            assert decode_local(*encode_local(record)) == record, f"{record} reads otherwise when it is written again"


def read_group_record(data: bytes) -> None:
    """A kind, the length of a frame's CBOR, that, and the payload."""
    if len(data) < 3:
        return
    (size,) = _U16.unpack_from(data, 1)
    with suppress(ValueError):
        header = _header(data[3 : 3 + size])
        with suppress(CorruptStorage):
            _named(lambda: decode_group(data[0], header, data[3 + size :]))
            record = decode_group(data[0], header, data[3 + size :])
            assert decode_group(*encode_group(record)) == record, f"{record} reads otherwise when it is written again"


def _named(read: Callable[[], object]) -> None:
    """A ValueError is named of a frame's header alone."""
    try:
        read()
    except ValueError as error:
        raise AssertionError("a record's reader has raised what it does not name") from error


def _header(cbor: bytes) -> list[object]:
    """As the frame's reader gives it. Raises ValueError, as that does."""
    parts = encode_frame(
        position=JournalPosition(0),
        durable=JournalPosition(0),
        leader_epoch=EPOCH,
        timestamp_ms=0,
        kind=1,
        header=(),
        salt=SALT,
    )
    frame = decode_frame_untrusted(b"".join(parts), JournalPosition(0), salt=SALT)
    assert not isinstance(frame, BadFrame)
    object.__setattr__(frame, "cbor", memoryview(cbor))
    return frame.header()


def read_window(data: bytes) -> None:
    with suppress(CorruptStorage):
        window = ProducerWindow.decode(data)
        assert ProducerWindow.decode(window.encode()) == window, f"{window} reads otherwise when it is written again"
        check_sequence(window, window.epoch, window.next_sequence, 1)


def read_local_directory(data: bytes) -> None:
    _read_directory(data, JournalKind.LOCAL)


def read_group_directory(data: bytes) -> None:
    _read_directory(data, JournalKind.GROUP)


def _read_directory(data: bytes, kind: JournalKind) -> None:
    """Opened read-only as tools do, reopened as a node does; what was reopened is whole, and reads so again."""
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as name:
        directory = Path(name)
        for number, (flags, segment) in enumerate(split_files(data)):
            header = decode_segment_header_untrusted(segment)
            base = header.base if isinstance(header, SegmentHeader) else JournalPosition(0)
            suffix = f".{number}{NEW_SUFFIX}" if flags & 1 else ""
            (directory / f"{segment_name(base)}{suffix}").write_bytes(segment)
        with suppress(CorruptStorage):
            found = open_read_only(directory, kind=kind)
            _read_journal(found, kind)
        with suppress(CorruptStorage):
            reopened = reopen(directory, kind=kind, fsync=Fsync.COMMIT, sync=lambda fd: None)
            again = open_read_only(directory, kind=kind)
            assert again.torn is None, "a journal that was mended is torn"
            if reopened.last is not None:
                assert again.end == reopened.last.end, "a mended journal ends elsewhere"


def _read_journal(found, kind: JournalKind) -> None:
    if kind is JournalKind.GROUP:
        for frame, record_kind in read_history(found).frames:
            decode_frame(found, frame, record_kind)
        return
    for frame in found.frames(found.start):
        with suppress(CorruptStorage):
            decode_local(frame.kind, frame.header)
        assert len(found.read_payload(frame.position, frame.end - frame.position)) == frame.payload_bytes


def split_files(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Files of a directory: for each, flags and the length as a u16, then its bytes. Checksums are mended on a flag."""
    at = 0
    while at + 3 <= len(data) and at < 1 << 15:
        flags = data[at]
        (size,) = _U16.unpack_from(data, at + 1)
        segment = data[at + 3 : at + 3 + size]
        yield flags, mend_segment(segment) if flags & 2 else segment
        at += 3 + size


def joined_files(*files: tuple[int, bytes]) -> bytes:
    return b"".join(bytes([flags]) + _U16.pack(len(segment)) + segment for flags, segment in files)


def _frames(names: Iterable[str]) -> Iterator[tuple[int, bytes, bytes]]:
    """Kind, CBOR and payload of golden frames."""
    for name in names:
        data, position = golden_bytes(name), 0
        while position < len(data):
            frame = decode_frame_untrusted(data, JournalPosition(position), salt=SALT, offset=position)
            assert not isinstance(frame, BadFrame)
            yield frame.kind, bytes(frame.cbor), bytes(frame.payload)
            position = frame.end


def _segment(frames: bytes, kind: JournalKind, *, base: int = 0, previous_end: int | None = None) -> bytes:
    """Golden frames as a segment; right when it is mended."""
    position = JournalPosition(base)
    before = position if previous_end is None else JournalPosition(previous_end)
    return mend_segment(encode_segment_header(SegmentHeader(kind, Fsync.COMMIT, SALT, position, before)) + frames)


def _closed(segment: bytes, durable: int) -> bytes:
    mark = encode_close_mark(JournalPosition(durable), salt=SALT)
    return segment[:CLOSE_MARK_OFFSET] + mark + segment[SEGMENT_HEADER_BYTES:]


def _segments() -> list[bytes]:
    found = [(GOLDEN / name).read_bytes() for name in _SEGMENTS]
    found += [_segment(golden_bytes(name), JournalKind.LOCAL) for name in _LOCAL_FRAMES]
    found += [_segment(golden_bytes(name), JournalKind.GROUP) for name in _GROUP_FRAMES]
    return [segment.rstrip(b"\0") + bytes(64) for segment in found]


def _directories(names: Iterable[str], kind: JournalKind) -> Iterator[bytes]:
    """One segment; one that is closed; two; one and a spare that continues it."""
    for name in names:
        frames = golden_bytes(name)
        end = len(frames)
        first = _segment(frames, kind)
        closed = _closed(first, end)
        later = _segment(frames, kind, base=end, previous_end=end) + bytes(32)
        yield joined_files((2, first + bytes(64)))
        yield joined_files((0, closed))
        yield joined_files((2, first), (2, later))
        yield joined_files((2, first), (3, later))
        yield joined_files((2, first[:-20] + bytes(84)), (3, later))


TARGETS = (
    Target("frame", "a journal's frame", read_frame, lambda: map(golden_bytes, (*_LOCAL_FRAMES, *_GROUP_FRAMES))),
    Target("segment", "a journal's segment", read_segment, _segments),
    Target("segment-mended", "the same, checksums made right", read_mended_segment, _segments),
    Target(
        "local-record",
        "a record of a local journal",
        read_local_record,
        lambda: [
            bytes([kind]) + each for kind, cbor, _ in _frames(_LOCAL_FRAMES) for each in (cbor, *with_odd_items(cbor))
        ],
    ),
    Target(
        "group-record",
        "a record of a group journal, a part of a snapshot",
        read_group_record,
        lambda: [
            bytes([kind & 0x7F]) + _U16.pack(len(each)) + each + payload
            for kind, cbor, payload in _frames(_GROUP_FRAMES)
            for each in (cbor, *with_odd_items(cbor))
        ],
    ),
    Target(
        "producer-window",
        "a producer's window",
        read_window,
        lambda: [each for name in _WINDOWS for cbor in [golden_bytes(name)] for each in (cbor, *with_odd_items(cbor))],
    ),
    Target(
        "local-directory",
        "a local journal's directory, opened read-only and recovered",
        read_local_directory,
        lambda: _directories(_LOCAL_FRAMES, JournalKind.LOCAL),
    ),
    Target(
        "group-directory",
        "a group journal's directory with its snapshot",
        read_group_directory,
        lambda: _directories(_GROUP_FRAMES, JournalKind.GROUP),
    ),
)
