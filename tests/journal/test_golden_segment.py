"""The segment format on disk, byte by byte: code, golden file and documentation agree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from fairlog_types import JournalPosition, LeaderEpoch
from journal.frame import Frame, decode_frame_untrusted, encode_frame
from journal.recovery import Rest, scan_tail
from journal.segment import (
    CLOSE_MARK_OFFSET,
    SEGMENT_HEADER_BYTES,
    Fsync,
    JournalKind,
    SegmentHeader,
    decode_segment_header_untrusted,
    encode_close_mark,
    encode_segment_header,
    file_offset,
)

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "journal-segment-4.bin"
EARLIER = ROOT / "tests" / "golden" / "journal-segment-3.bin"
PAGE = ROOT / "docs" / "formats" / "journal-segment.md"

BASE = JournalPosition(1024)
HEADER = SegmentHeader(JournalKind.LOCAL, Fsync.COMMIT, 0x5EED5A17, BASE, BASE)
FRAMES = [
    (1, [42, 3], [b""]),
    (2, [0, 2, 1_700_000_000_000, 42, 3, 0], [b"a batch's ", b"bytes"]),
]


def segment() -> bytes:
    """A segment of two frames, the second written when the first was durable, closed cleanly."""
    content = encode_segment_header(HEADER)
    for kind, header, payload in FRAMES:
        end = JournalPosition(BASE + len(content) - SEGMENT_HEADER_BYTES)
        content += b"".join(
            encode_frame(
                position=end,
                durable=end,
                leader_epoch=LeaderEpoch(7),
                timestamp_ms=1_763_632_800_000,
                kind=kind,
                header=header,
                payload=payload,
                salt=HEADER.salt,
            )
        )
    end = JournalPosition(BASE + len(content) - SEGMENT_HEADER_BYTES)
    mark = encode_close_mark(end, salt=HEADER.salt)
    return content[:CLOSE_MARK_OFFSET] + mark + content[SEGMENT_HEADER_BYTES:]


def test_golden_segment_is_what_the_code_writes() -> None:
    """The format does not change by accident."""
    assert segment() == GOLDEN.read_bytes()


def test_golden_segment_is_what_the_code_reads() -> None:
    """Every field of the golden file is read as it is documented."""
    golden = GOLDEN.read_bytes()
    assert decode_segment_header_untrusted(golden) == HEADER
    position = BASE
    for kind, header, payload in FRAMES:
        frame = decode_frame_untrusted(golden, position, salt=HEADER.salt, offset=file_offset(position, BASE))
        assert isinstance(frame, Frame)
        assert (frame.kind, frame.header(), bytes(frame.payload)) == (kind, header, b"".join(payload))
        assert (frame.durable, frame.leader_epoch, frame.timestamp_ms) == (position, 7, 1_763_632_800_000)
        position = frame.end
    tail = scan_tail(golden, base=BASE, salt=HEADER.salt)
    assert (tail.hole, tail.rest, tail.closed) == (position, Rest.ZEROS, True)


def test_golden_segment_of_version_3_is_read_as_an_earlier_one() -> None:
    """Only its header differs; its frames are those of a local journal as it was before logs had starts there."""
    golden, earlier = GOLDEN.read_bytes(), EARLIER.read_bytes()
    assert decode_segment_header_untrusted(earlier) == replace(HEADER, is_earlier=True)
    assert (earlier[8], golden[8]) == (3, 4)
    assert earlier[CLOSE_MARK_OFFSET:] == golden[CLOSE_MARK_OFFSET:]
    tail = scan_tail(earlier, base=BASE, salt=HEADER.salt)
    assert (tail.rest, tail.closed) == (Rest.ZEROS, True)


def test_golden_segment_is_what_the_page_shows() -> None:
    """The hex dump in the documentation is the golden file."""
    rows = re.findall(r"^([0-9a-f]{8})  ((?:[0-9a-f]{2} ?)+)", PAGE.read_text(), re.MULTILINE)
    dump = b""
    for offset, row in rows:
        assert int(offset, 16) == len(dump)
        dump += bytes.fromhex(row)
    assert dump == GOLDEN.read_bytes()
