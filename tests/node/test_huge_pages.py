"""The heap in huge pages: which pieces, the kernel's work on real memory, and a node that has it."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlog.huge_pages import EVERY_S, PIECE_BYTES, collapse_heap, nearly_full
from scripts.node_process import NodeProcess
from tests.lacking import NOT_PERMITTED
from tests.node.nodes import produce, read_when

PAGE = mmap.PAGESIZE
PAGES = PIECE_BYTES // PAGE
KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
PIECE_KIB = PIECE_BYTES >> 10

needs_collapse = pytest.mark.skipif(
    KERNEL < (6, 1), reason=f"{NOT_PERMITTED}Linux {os.uname().release} has no MADV_COLLAPSE"
)


def line(begin: int, end: int, access: str = "rw-p", inode: int = 0, name: str = "") -> str:
    return f"{begin:x}-{end:x} {access} 00000000 00:00 {inode} {name}\n"


def found(*lines: str, in_use: int = PAGES) -> list[int]:
    return list(nearly_full(lines, lambda _address: in_use))


def test_pieces_are_whole_and_aligned() -> None:
    """What lies before the first multiple of 2 MiB, and after the last one, stays as it is."""
    begin = 10 * PIECE_BYTES
    assert found(line(begin, begin + 2 * PIECE_BYTES)) == [begin, begin + PIECE_BYTES]
    assert found(line(begin - PAGE, begin + 2 * PIECE_BYTES - PAGE)) == [begin]
    assert found(line(begin + PAGE, begin + 2 * PIECE_BYTES)) == [begin + PIECE_BYTES]
    assert found(line(begin + PAGE, begin + 2 * PIECE_BYTES - PAGE)) == []
    assert found(line(begin, begin + PAGE)) == []


def test_only_private_memory_of_no_file_is_looked_at() -> None:
    """The data logs' map is shared and a file's, programs are read-only; the heap has a name in brackets."""
    begin, end = 10 * PIECE_BYTES, 11 * PIECE_BYTES
    asked: list[int] = []

    def in_use(address: int) -> int:
        asked.append(address)
        return PAGES

    lines = [
        line(begin, end, "rw-s", 77, "/data/data.mdb"),
        line(begin, end, "r-xp", 78, "/usr/bin/python3 (deleted)"),
        line(begin, end, "rw-p", 79, "/usr/lib/a b.so"),
        line(begin, end, "rw-s"),
        line(begin, end, "---p"),
    ]
    assert list(nearly_full(lines, in_use)) == []
    assert asked == []
    assert found(line(begin, end, name="[heap]")) == [begin]


def test_pieces_with_room_are_left_alone() -> None:
    """A stack of which a page is used would otherwise take 2 MiB."""
    whole = line(10 * PIECE_BYTES, 11 * PIECE_BYTES)
    assert found(whole, in_use=PAGES * 7 // 8) == [10 * PIECE_BYTES]
    assert found(whole, in_use=PAGES * 7 // 8 - 1) == []


@needs_collapse
def test_full_memory_becomes_huge_pages_with_its_content() -> None:
    """And once more: nothing is left to do. What is freed is given back."""
    content = os.urandom(PIECE_BYTES)
    with memory(4) as block:
        for piece in range(4):
            block.write(piece * PIECE_BYTES, content)
        assert block.kib("AnonHugePages") == 0
        moved, _ = collapse_heap()
        assert moved >= 4
        assert block.kib("AnonHugePages") == 4 * PIECE_KIB
        assert all(block.read(piece * PIECE_BYTES, PIECE_BYTES) == content for piece in range(4))
        collapse_heap()
        assert block.kib("AnonHugePages") == 4 * PIECE_KIB
        block.free(PIECE_BYTES, 2 * PIECE_BYTES)
        collapse_heap()
        assert block.kib("AnonHugePages") == block.kib("Rss") == 2 * PIECE_KIB


@needs_collapse
def test_memory_of_which_three_quarters_are_used_does_not_grow() -> None:
    """However often it is looked at."""
    with memory(4) as block:
        for piece in range(4):
            for page in range(PAGES * 3 // 4):
                block.write(piece * PIECE_BYTES + page * PAGE, b"x")
        for _ in range(2):
            collapse_heap()
            assert block.kib("AnonHugePages") == 0
            assert block.kib("Rss") == 3 * PIECE_KIB


@needs_collapse
@pytest.mark.slow
def test_node_has_its_heap_in_huge_pages(new_node: Callable[..., NodeProcess]) -> None:
    """Some seconds after its start, and goes on serving."""
    node = new_node()
    node.start()
    smaps = Path(f"/proc/{node.pid}/smaps_rollup")
    deadline = time.monotonic() + EVERY_S + 30
    while (huge := _kib(smaps.read_text(), "AnonHugePages")) < 8 * PIECE_KIB:
        assert time.monotonic() < deadline, f"{huge} KiB are in huge pages"
        time.sleep(0.2)
    produce(node, b"written")
    assert read_when(node, 1) == [b"written"]


class Block:
    """Private memory, aligned to pieces, and a mapping of its own."""

    def __init__(self, pieces: int) -> None:
        before = {address for address, _ in _mappings()}
        self._map = mmap.mmap(-1, (pieces + 1) * PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_DONTFORK)  # so that it is not joined to another one, which has other flags
        (self._address,) = [
            address
            for address, text in _mappings()
            if address not in before and _kib(text, "Size") == (pieces + 1) * PIECE_KIB
        ]
        self._start = -self._address % PIECE_BYTES

    def write(self, at: int, content: bytes) -> None:
        self._map[self._start + at : self._start + at + len(content)] = content

    def read(self, at: int, count: int) -> bytes:
        return self._map[self._start + at : self._start + at + count]

    def free(self, at: int, count: int) -> None:
        self._map.madvise(mmap.MADV_DONTNEED, self._start + at, count)

    def kib(self, field: str) -> int:
        """Of /proc/self/smaps."""
        return _kib(dict(_mappings())[self._address], field)

    def close(self) -> None:
        self._map.close()


@contextmanager
def memory(pieces: int) -> Iterator[Block]:
    block = Block(pieces)
    try:
        yield block
    finally:
        block.close()


def _mappings() -> list[tuple[int, str]]:
    """Each mapping of this process: its address, and what /proc/self/smaps says of it."""
    texts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    return [(int(text.partition("-")[0], 16), text) for text in texts if text]


def _kib(text: str, field: str) -> int:
    matched = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    assert matched is not None, f"{field} is missing"
    return int(matched[1])
