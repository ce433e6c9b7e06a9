"""Segment headers and names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import JournalPosition
from journal.segment import (
    CLOSE_MARK_OFFSET,
    SEGMENT_HEADER_BYTES,
    BadHeader,
    Fsync,
    JournalKind,
    SegmentHeader,
    base_of,
    decode_close_mark_untrusted,
    decode_segment_header_untrusted,
    encode_close_mark,
    encode_segment_header,
    file_offset,
    segment_name,
)

positions = st.integers(0, 2**60).map(lambda n: JournalPosition(n * 8))
HEADER = SegmentHeader(JournalKind.GROUP, Fsync.INTERVAL, 5, JournalPosition(800), JournalPosition(640))


@given(st.sampled_from(JournalKind), st.sampled_from(Fsync), st.integers(0, 2**32 - 1), positions, positions)
def test_segment_header_encoded_decodes_to_the_same(kind, fsync, salt, one, other) -> None:
    """Every field comes back, from 64 bytes; there is no close mark yet."""
    header = SegmentHeader(kind, fsync, salt, max(one, other), min(one, other))
    encoded = encode_segment_header(header)
    assert len(encoded) == SEGMENT_HEADER_BYTES
    assert decode_segment_header_untrusted(encoded[:CLOSE_MARK_OFFSET]) == header
    assert not any(encoded[CLOSE_MARK_OFFSET:])


def test_segment_header_with_any_bit_flipped_is_unreadable() -> None:
    """No single bit of the header can change unnoticed."""
    encoded = encode_segment_header(HEADER)
    for bit in range(CLOSE_MARK_OFFSET * 8):
        damaged = bytearray(encoded)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_segment_header_untrusted(damaged) is BadHeader.UNREADABLE


def test_segment_header_cut_short_is_unreadable() -> None:
    """Fewer than 64 bytes are no header."""
    assert (
        decode_segment_header_untrusted(encode_segment_header(HEADER)[: CLOSE_MARK_OFFSET - 1]) is BadHeader.UNREADABLE
    )


@pytest.mark.parametrize(
    ("kind", "read_from", "written"), [(JournalKind.LOCAL, 3, 4), (JournalKind.GROUP, 5, 5)], ids=["local", "group"]
)
def test_segment_of_an_earlier_version_is_told_from_damage(kind: JournalKind, read_from: int, written: int) -> None:
    """Its frames can be read, and no more is appended to it; or they cannot, and the reason says what can read them."""
    header = replace(HEADER, kind=kind)
    body = bytearray(encode_segment_header(header)[:60])
    assert body[8] == written
    for version in range(1, written):
        body[8] = version
        found = decode_segment_header_untrusted(body + crc32c(body).to_bytes(4, "little"))
        assert found == (BadHeader.EARLIER if version < read_from else replace(header, is_earlier=True))


@given(positions, st.integers(0, 2**20), st.integers(0, 2**32 - 1))
def test_close_mark_encoded_decodes_to_the_same(base: JournalPosition, eights: int, salt: int) -> None:
    """It says through where the journal was on disk, to who knows the salt, and of this segment alone."""
    durable = JournalPosition(base + 8 * eights)
    segment = encode_segment_header(HEADER)[:CLOSE_MARK_OFFSET] + encode_close_mark(durable, salt=salt)
    assert decode_close_mark_untrusted(segment, base=base, salt=salt) == durable
    assert decode_close_mark_untrusted(segment, base=base, salt=salt ^ 1) is None
    assert decode_close_mark_untrusted(segment, base=JournalPosition(durable + 8), salt=salt) is None


def test_close_mark_with_any_bit_flipped_says_nothing() -> None:
    """Nor does one that is cut short, or was never written."""
    segment = bytearray(encode_segment_header(HEADER)[:CLOSE_MARK_OFFSET] + encode_close_mark(HEADER.base, salt=5))
    for bit in range(CLOSE_MARK_OFFSET * 8, len(segment) * 8):
        segment[bit // 8] ^= 1 << bit % 8
        assert decode_close_mark_untrusted(segment, base=HEADER.base, salt=5) is None
        segment[bit // 8] ^= 1 << bit % 8
    assert decode_close_mark_untrusted(segment[:-1], base=HEADER.base, salt=5) is None
    assert decode_close_mark_untrusted(encode_segment_header(HEADER), base=HEADER.base, salt=5) is None


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (8, 6, BadHeader.VERSION),
        (8, 0, BadHeader.VERSION),
        (10, 3, BadHeader.FIELDS),
        (11, 9, BadHeader.FIELDS),
        (16, 1, BadHeader.FIELDS),
        (24, 255, BadHeader.FIELDS),
    ],
    ids=["version", "version 0", "kind", "durability", "unaligned base", "previous end"],
)
def test_segment_header_with_an_impossible_field_is_refused(offset: int, value: int, reason: BadHeader) -> None:
    """A header with a right checksum is still refused if a field says what no version can say."""
    body = bytearray(encode_segment_header(HEADER)[:60])
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
    """The base position lies after the header and the close mark."""
    assert file_offset(JournalPosition(808), JournalPosition(800)) == SEGMENT_HEADER_BYTES + 8
