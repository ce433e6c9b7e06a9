"""An LMDB file read as bytes, without LMDB: for tools that must say what is wrong with a file, and where.

LMDB maps the file and trusts it. A page that is not what LMDB expects ends the process, in C, without a message; and
LMDB's own refusals do not name a byte. So tools that look for damage read the pages with this module: every page is
checked before it is used, and the first that cannot be right raises `DamagedPage`, with its byte.

    meta 0 | meta 1 | pages …         the newer of the two metas counts; it names two trees:
    free list: transaction → pages that are free again; in the order of the numbers, not of their bytes
    main:      key → value, or name → tree (a named database)
    tree:      branch pages ─▶ leaf pages ─▶ values, or overflow pages for what is larger than a quarter of a page

`datalog.lmdb_file` describes the form of the pages: format version 1, that of LMDB 0.9, in the machine's byte order.
Fairlog does not use duplicate keys, which have trees of their own in LMDB, and they are not read.

Pure: the file is a buffer. It must not change meanwhile: it is the file of a stopped node, or a read transaction holds
its pages (`datalog.snapshot`).

Source: https://github.com/LMDB/lmdb/blob/LMDB_0.9.33/libraries/liblmdb/mdb.c (MDB_page, MDB_meta, MDB_db, MDB_node)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_PAGE_HEAD = struct.Struct("=QHHHH")
_OVERFLOW_COUNT = struct.Struct("=12xI")
_POINTER = struct.Struct("=H")
_NODE_HEAD = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")
_META_HEAD = struct.Struct("=16xIIQQ")
_TREE = struct.Struct("=IHHQQQQQ")
_META_TAIL = struct.Struct("=QQ")
_TREE_BYTES = 48
assert _TREE.size == _TREE_BYTES
_FREE_AT = _META_HEAD.size
_MAIN_AT = _FREE_AT + _TREE_BYTES
_TAIL_AT = _MAIN_AT + _TREE_BYTES
META_BYTES = _TAIL_AT + _META_TAIL.size

_MAGIC = 0xBEEFC0DE
_MAGIC_AT = 16
_VERSION = 1
_BRANCH, _LEAF, _OVERFLOW, _META = 0x01, 0x02, 0x04, 0x08
_KINDS = _BRANCH | _LEAF | _OVERFLOW | _META
_IN_OVERFLOW_PAGES, _NAMES_A_TREE = 0x01, 0x02
_NO_ROOT = (1 << 64) - 1
_PAGE_BYTES = frozenset(1 << power for power in range(9, 17))
_DEPTH_MAX = 32
"""LMDB's own bound (CURSOR_STACK)."""


class DamagedPage(ValueError):
    """The file is not what LMDB writes. The message begins with the byte."""

    def __init__(self, byte: int, what: str) -> None:
        super().__init__(f"byte {byte}: {what}")
        self.byte = byte


@dataclass(frozen=True, slots=True)
class Tree:
    """The record of a tree."""

    at: int
    """The byte of the file where the record begins."""
    depth: int
    entries: int
    root: int | None
    """A page number; None for an empty tree."""


@dataclass(frozen=True, slots=True)
class Item:
    """One key of a tree. `value` is a view of the file; for a named database it is the tree's record."""

    key: bytes
    value: memoryview
    at: int
    """The byte of the file where the value begins."""
    tree: Tree | None = None
    """The tree that the key names, if it names one."""


@dataclass(frozen=True, slots=True)
class Meta:
    """One of the two pages with which an LMDB file begins."""

    page_bytes: int
    map_bytes: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


def is_lmdb_untrusted(head: bytes | memoryview) -> bool:
    """Whether a file that begins with these bytes claims to be LMDB's; 20 are enough."""
    return len(head) >= _MAGIC_AT + 4 and int.from_bytes(head[_MAGIC_AT : _MAGIC_AT + 4], "little") == _MAGIC


class LmdbFile:
    """The state of one transaction, in the bytes of a file."""

    def __init__(self, data: memoryview, *, transaction: int | None = None) -> None:
        """Read the newer meta page, or that of `transaction`. Raises DamagedPage; KeyError if there is no such meta
        page.
        """
        self._data = data
        metas = _metas(data)
        self.meta = max(metas, key=lambda meta: meta.transaction)
        if transaction is not None:
            self.meta = {meta.transaction: meta for meta in metas}[transaction]
        self._page_bytes = self.meta.page_bytes
        self._reached = bytearray(min(self.meta.last_page, len(data) // self._page_bytes) + 1)
        """One byte for each page, 1 after it was reached: no page belongs to two trees."""

    def unread(self) -> LmdbFile:
        """The same state, with no tree read yet."""
        return LmdbFile(self._data, transaction=self.meta.transaction)

    def items(self, tree: Tree, *, start: bytes = b"") -> Iterator[Item]:
        """The tree's keys in order, from the first not less than `start`; pages are checked as they are reached.

        Raises DamagedPage, after the items before the damage. Call it once for each tree: a page that is reached a
        second time counts as damage.
        """
        before: bytes | None = None
        for item in self._all(tree, start):
            if before is not None and item.key <= before:
                raise DamagedPage(item.at, f"the key {item.key.hex()} comes after {before.hex()}")
            before = item.key
            yield item

    def free_list(self) -> list[Item]:
        """The free pages by transaction: a key is its number, a value is a count and that many page numbers. Raises
        DamagedPage.
        """
        found: list[Item] = []
        before = -1
        for item in self._all(self.meta.free):
            if len(item.key) != _NUMBER.size or len(item.value) < _NUMBER.size:
                raise DamagedPage(item.at, "an entry of the free list has an impossible size")
            (transaction,) = _NUMBER.unpack(item.key)
            if transaction <= before:
                raise DamagedPage(item.at, f"transaction {transaction} comes after {before} in the free list")
            before = transaction
            found.append(item)
        return found

    def check_free_list(self) -> int:
        """Compare the free list with the pages read so far; returns how many pages are free. Raises DamagedPage.

        A page that is free and in use is damage: the next write would take it.
        """
        free: set[int] = set()
        for item in self.free_list():
            (count,) = _NUMBER.unpack_from(item.value)
            if (count + 1) * _NUMBER.size > len(item.value):
                raise DamagedPage(item.at, f"an entry of the free list names {count} pages and is too short for them")
            for page in struct.unpack_from(f"={count}Q", item.value, _NUMBER.size):
                if page > self.meta.last_page or page in free:
                    raise DamagedPage(item.at, f"page {page} is in the free list, twice or beyond the last page")
                free.add(page)
        for page in sorted(free):
            if page < len(self._reached) and self._reached[page]:
                raise DamagedPage(page * self._page_bytes, f"page {page} is both in the free list and in use")
        return len(free)

    def _all(self, tree: Tree, start: bytes = b"") -> Iterator[Item]:
        """Like `items`, but in any order."""
        if tree.root is None:
            if tree.entries or tree.depth:
                raise DamagedPage(tree.at, f"a tree without a root has {tree.entries} entries, depth {tree.depth}")
            return
        if not 1 <= tree.depth <= _DEPTH_MAX:
            raise DamagedPage(tree.at, f"a tree has the depth {tree.depth}")
        count = 0
        for item in self._below(tree.root, tree.depth, tree.at, start):
            count += 1
            yield item
        if count != tree.entries and not start:
            raise DamagedPage(tree.at, f"a tree should have {tree.entries} entries, but has {count}")

    def _below(self, number: int, depth: int, from_byte: int, start: bytes) -> Iterator[Item]:
        page_start = self._take(number, 1, from_byte)
        nodes = list(self._nodes(number, page_start, _LEAF if depth == 1 else _BRANCH))
        for index, (at, key, size_or_child, flags) in enumerate(nodes):
            if depth == 1:
                if key >= start:
                    yield self._leaf(page_start, at, key, size_or_child, flags)
            elif index + 1 == len(nodes) or nodes[index + 1][1] > start:
                yield from self._below(size_or_child | flags << 32, depth - 1, at, start)

    def _nodes(self, number: int, start: int, kind: int) -> Iterator[tuple[int, bytes, int, int]]:
        """For each node of a page: its position, its key, 32 bits of size or child, and its flags."""
        page_number, _, flags, lower, upper = _PAGE_HEAD.unpack_from(self._data, start)
        if page_number != number or flags & _KINDS != kind:
            wanted = "leaf" if kind == _LEAF else "branch"
            raise DamagedPage(
                start, f"{wanted} page {number} was expected; it says page {page_number}, flags {flags:#x}"
            )
        if not _PAGE_HEAD.size <= lower <= upper <= self._page_bytes or lower % _POINTER.size:
            raise DamagedPage(start, f"page {number} has the impossible bounds {lower} and {upper}")
        for pointer_at in range(start + _PAGE_HEAD.size, start + lower, _POINTER.size):
            (pointer,) = _POINTER.unpack_from(self._data, pointer_at)
            if not upper <= pointer <= self._page_bytes - _NODE_HEAD.size:
                raise DamagedPage(pointer_at, f"page {number} points to byte {pointer} of itself")
            at = start + pointer
            low, high, node_flags, key_bytes = _NODE_HEAD.unpack_from(self._data, at)
            key_at = at + _NODE_HEAD.size
            if key_at + key_bytes > start + self._page_bytes:
                raise DamagedPage(at, f"a key of {key_bytes} bytes reaches beyond its page")
            yield at, bytes(self._data[key_at : key_at + key_bytes]), low | high << 16, node_flags

    def _leaf(self, page_start: int, at: int, key: bytes, size: int, flags: int) -> Item:
        value_at = at + _NODE_HEAD.size + len(key)
        if flags & _IN_OVERFLOW_PAGES:
            if value_at + _NUMBER.size > page_start + self._page_bytes:
                raise DamagedPage(at, "a page number reaches beyond its page")
            (overflow,) = _NUMBER.unpack_from(self._data, value_at)
            value_at = self._overflow(overflow, size, at)
        elif value_at + size > page_start + self._page_bytes:
            raise DamagedPage(at, f"a value of {size} bytes reaches beyond its page")
        value = self._data[value_at : value_at + size]
        if not flags & _NAMES_A_TREE:
            return Item(key, value, value_at)
        if size != _TREE_BYTES:
            raise DamagedPage(at, f"a tree's record has {size} bytes, not {_TREE_BYTES}")
        return Item(key, value, value_at, _tree(self._data, value_at))

    def _overflow(self, number: int, size: int, from_byte: int) -> int:
        """Where the value of this many bytes begins."""
        count = (_PAGE_HEAD.size + size - 1) // self._page_bytes + 1
        start = self._take(number, count, from_byte)
        page_number, _, flags, _, _ = _PAGE_HEAD.unpack_from(self._data, start)
        (claimed,) = _OVERFLOW_COUNT.unpack_from(self._data, start)
        if (page_number, flags & _KINDS, claimed) != (number, _OVERFLOW, count):
            raise DamagedPage(
                start,
                f"{count} overflow pages from {number} on were expected; it says page {page_number}, flags {flags:#x},"
                f" {claimed} pages",
            )
        return start + _PAGE_HEAD.size

    def _take(self, number: int, count: int, from_byte: int) -> int:
        """Where the pages begin; they must exist and belong to no other tree."""
        if not 2 <= number <= self.meta.last_page - count + 1:
            raise DamagedPage(from_byte, f"page {number} is referenced, but the last is {self.meta.last_page}")
        start = number * self._page_bytes
        if start + count * self._page_bytes > len(self._data):
            raise DamagedPage(from_byte, f"page {number} is referenced, but is after the end of the file")
        pages = slice(number, number + count)
        if any(self._reached[pages]):
            raise DamagedPage(from_byte, f"page {number + self._reached[pages].index(1)} is referenced twice")
        self._reached[pages] = bytes([1]) * count
        return start


def _metas(data: memoryview) -> list[Meta]:
    first = _read_meta(data, 0)
    starts = [first.page_bytes] if first is not None else sorted(_PAGE_BYTES)
    second = next((meta for start in starts if (meta := _read_meta(data, start)) is not None), None)
    found = [meta for meta in (first, second) if meta is not None]
    if not found:
        raise DamagedPage(0, "neither of the two meta pages can be read")
    return found


def _read_meta(data: memoryview, at: int) -> Meta | None:
    if len(data) < at + META_BYTES:
        return None
    _, _, flags, _, _ = _PAGE_HEAD.unpack_from(data, at)
    magic, version, _, map_bytes = _META_HEAD.unpack_from(data, at)
    (page_bytes,) = struct.unpack_from("=I", data, at + _FREE_AT)
    if (magic, version) != (_MAGIC, _VERSION) or not flags & _META or page_bytes not in _PAGE_BYTES:
        return None
    last_page, transaction = _META_TAIL.unpack_from(data, at + _TAIL_AT)
    return Meta(page_bytes, map_bytes, _tree(data, at + _FREE_AT), _tree(data, at + _MAIN_AT), last_page, transaction)


def _tree(data: memoryview, at: int) -> Tree:
    _, _, depth, _, _, _, entries, root = _TREE.unpack_from(data, at)
    return Tree(at, depth, entries, None if root == _NO_ROOT else root)
