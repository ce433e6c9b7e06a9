"""Segment headers and names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import JournalPosition
from journal.segment import (
    SEGMENT_HEADER_BYTES,
    BadHeader,
    Fsync,
    JournalKind,
    SegmentHeader,
    base_of,
    decode_segment_header_untrusted,
    encode_segment_header,
    file_offset,
    segment_name,
)

positions = st.integers(0, 2**60).map(lambda n: JournalPosition(n * 8))
HEADER = SegmentHeader(JournalKind.GROUP, Fsync.INTERVAL, 5, JournalPosition(800), JournalPosition(640))


@given(st.sampled_from(JournalKind), st.sampled_from(Fsync), st.integers(0, 2**32 - 1), positions, positions)
def test_segment_header_encoded_decodes_to_the_same(kind, fsync, salt, one, other) -> None:
    """Every field comes back, from 64 bytes."""
    header = SegmentHeader(kind, fsync, salt, max(one, other), min(one, other))
    encoded = encode_segment_header(header)
    assert len(encoded) == SEGMENT_HEADER_BYTES
    assert decode_segment_header_untrusted(encoded + b"frames") == header


def test_segment_header_with_any_bit_flipped_is_unreadable() -> None:
    """No single bit of the header can change unnoticed."""
    encoded = encode_segment_header(HEADER)
    for bit in range(len(encoded) * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_segment_header_untrusted(damaged) is BadHeader.UNREADABLE


def test_segment_header_cut_short_is_unreadable() -> None:
    """Fewer than 64 bytes are no header."""
    assert decode_segment_header_untrusted(encode_segment_header(HEADER)[:-1]) is BadHeader.UNREADABLE


@pytest.mark.parametrize(("kind", "written"), [(JournalKind.LOCAL, 2), (JournalKind.GROUP, 4)], ids=["local", "group"])
def test_segment_of_an_older_version_is_read(kind: JournalKind, written: int) -> None:
    """What is written is of the newest version of its kind of journal; an older segment reads as it did."""
    from crc32c import crc32c

    header = replace(HEADER, kind=kind)
    body = bytearray(encode_segment_header(header)[:-4])
    assert body[8] == written
    for version in range(1, written):
        body[8] = version
        assert decode_segment_header_untrusted(body + crc32c(body).to_bytes(4, "little")) == header


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, 5, BadHeader.VERSION),
        (10, 3, BadHeader.FIELDS),
        (11, 9, BadHeader.FIELDS),
        (16, 1, BadHeader.FIELDS),
        (24, 255, BadHeader.FIELDS),
    ],
    ids=["version", "kind", "durability", "unaligned base", "previous end"],
)
def test_segment_header_with_an_impossible_field_is_refused(offset: int, value: int, reason: BadHeader) -> None:
    """A header with a right checksum is still refused if a field says what no version can say."""
    from crc32c import crc32c

    body = bytearray(encode_segment_header(HEADER)[:-4])
    body[offset] = value
    assert decode_segment_header_untrusted(body + crc32c(body).to_bytes(4, "little")) is reason


@given(positions)
def test_segment_name_tells_its_base(base: JournalPosition) -> None:
    """The position comes back out of the name."""
    assert base_of(segment_name(base)) == base


@given(positions, positions)
def test_segment_names_sort_as_positions_do(one: JournalPosition, other: JournalPosition) -> None:
    """A listing by name is a listing by position."""
    assert (segment_name(one) < segment_name(other)) == (one < other)


@pytest.mark.parametrize(
    "name",
    ["", "1.journal", "00000000000000000000", "0000000000000000000x.journal", "spare-1.new", "²" * 20 + ".journal"],
)
def test_segment_base_of_another_name_is_none(name: str) -> None:
    """Files that are no segments are not taken for any."""
    assert base_of(name) is None


def test_segment_file_offset_counts_the_header() -> None:
    """The base position lies behind the header."""
    assert file_offset(JournalPosition(808), JournalPosition(800)) == SEGMENT_HEADER_BYTES + 8
