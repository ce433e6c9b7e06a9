"""Bytes of the parts of a copy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard.copy_parts import (
    FILE_BYTES_MAX,
    PART_BYTES_MAX,
    AskForCopy,
    CannotGive,
    CopyBegins,
    CopyEnds,
    FileBegins,
    FileBytes,
    FileEnds,
    Part,
    decode_part_untrusted,
    encode_part,
)
from stream.engine import StreamPosition

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "shard-copy-1.txt"
PAGE = ROOT / "docs" / "formats" / "shard-copy.md"

EXAMPLES: list[Part] = [
    AskForCopy("orders.shard-3"),
    CannotGive("another node is just getting a copy here"),
    CopyBegins(StreamPosition(1234567), 5_000_000_000),
    FileBegins("journals/group/2/00000000000000004096.journal"),
    FileBytes(bytes(range(16))),
    FileEnds(16, 0xD9C908EB),
    CopyEnds(12),
]

TEXTS, COUNTS = st.text(max_size=40), st.integers(0, 1 << 62)
PARTS = st.one_of(
    st.builds(AskForCopy, TEXTS),
    st.builds(CannotGive, TEXTS),
    st.builds(CopyBegins, st.integers(-1, 1 << 62).map(StreamPosition), COUNTS),
    st.builds(FileBegins, TEXTS),
    st.builds(FileBytes, st.binary(max_size=100)),
    st.builds(FileEnds, COUNTS, st.integers(0, (1 << 32) - 1)),
    st.builds(CopyEnds, COUNTS),
)


def test_parts_written_are_those_of_the_golden_file() -> None:
    """The bytes do not change by accident, and the page shows them."""
    assert [encode_part(part).hex() for part in EXAMPLES] == GOLDEN.read_text().splitlines()
    assert GOLDEN.read_text() in PAGE.read_text()
    assert [decode_part_untrusted(bytes.fromhex(line)) for line in GOLDEN.read_text().splitlines()] == EXAMPLES


@given(PARTS)
def test_part_written_is_read(part: Part) -> None:
    assert decode_part_untrusted(encode_part(part)) == part


def test_largest_part_has_as_many_bytes_of_a_file_as_are_allowed() -> None:
    data = encode_part(FileBytes(bytes(FILE_BYTES_MAX)))
    assert len(data) == PART_BYTES_MAX
    assert decode_part_untrusted(data) == FileBytes(bytes(FILE_BYTES_MAX))
    assert decode_part_untrusted(data + b"x") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x07",
        b"\x01\xff",
        b"\x02",
        b"\x02\x80",
        b"\x02\x82\x21\x00",
        b"\x02\x82\x00\x20",
        b"\x03\xff",
        b"\x05\x82\x00",
        b"\x05\x82\x00\x20",
        b"\x06\x81\x20",
    ],
)
def test_bytes_that_are_no_part_are_told(data: bytes) -> None:
    assert decode_part_untrusted(data) is None


@given(st.binary(max_size=60))
def test_any_bytes_are_a_part_or_not(data: bytes) -> None:
    """Nothing raises."""
    decode_part_untrusted(data)
