"""The mark of a stream: golden, round, damaged, and of another stream."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import CorruptStorage, LeaderEpoch
from shard.stream_mark import read_mark, write_mark
from stream.engine import StreamPosition
from stream.entry import Owner
from stream.fold import FoldState

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "stream-mark-1.bin"
PAGE = ROOT / "docs" / "formats" / "stream-mark.md"

STREAM = "orders.shard-0"
STATE = FoldState(
    StreamPosition(1234),
    LeaderEpoch(4),
    Owner("fairlog-2", bytes(range(16))),
    17,
    0xC0FFEE11,
    handed_over=True,
)

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


def test_golden_mark_is_what_the_code_writes_and_reads(tmp_path: Path) -> None:
    """The format does not change by accident."""
    path = tmp_path / "stream-mark"
    write_mark(path, STREAM, STATE)
    assert path.read_bytes() == GOLDEN.read_bytes()
    assert read_mark(GOLDEN, STREAM) == STATE


def test_golden_mark_is_what_the_page_shows() -> None:
    """The hex dump in the documentation is the golden file."""
    rows = re.findall(r"^[0-9a-f]{8}  ((?:[0-9a-f]{2} ?)+)", PAGE.read_text(), re.MULTILINE)
    assert b"".join(bytes.fromhex(row) for row in rows) == GOLDEN.read_bytes()


@given(st.builds(
    FoldState,
    st.integers(-1, 2**62).map(StreamPosition),
    U32.map(LeaderEpoch),
    st.none() | st.builds(Owner, st.text(max_size=9), st.binary(min_size=16, max_size=16)),
    U64,
    U32,
    st.booleans(),
))  # fmt: skip
def test_mark_written_is_read(tmp_path_factory: pytest.TempPathFactory, state: FoldState) -> None:
    """A fold goes on exactly where it was; also over a mark that was there, and a draft that a kill has left."""
    path = tmp_path_factory.mktemp("shard") / "stream-mark"
    assert read_mark(path, STREAM) is None
    write_mark(path, STREAM, STATE)
    path.with_suffix(".new").write_bytes(bytes(1000))
    assert read_mark(path, STREAM) == STATE
    write_mark(path, STREAM, state)
    assert read_mark(path, STREAM) == state


def test_mark_with_any_bit_flipped_is_damaged(tmp_path: Path) -> None:
    """What it says decides what is read: it is never guessed."""
    path, data = tmp_path / "stream-mark", GOLDEN.read_bytes()
    for bit in range(len(data) * 8):
        if 5 <= bit // 8 < 8:
            continue  # room for later versions
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptStorage, match="stream-mark is damaged"):
            read_mark(path, STREAM)
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(CorruptStorage, match="stream-mark is damaged"):
            read_mark(path, STREAM)


def test_mark_of_another_stream_is_refused(tmp_path: Path) -> None:
    """The directory belongs to another cluster, or another shard: both names are told."""
    path = tmp_path / "stream-mark"
    write_mark(path, STREAM, STATE)
    with pytest.raises(CorruptStorage, match=rf"a copy of the stream {re.escape(STREAM)}, not of other\.shard-0"):
        read_mark(path, "other.shard-0")
