"""Checks that an LMDB file is as long as it says, before it is opened.

LMDB maps the file and trusts its meta pages. If a file was cut, the first access to a page after its end is a SIGBUS,
which ends the process without a message. So the length is compared first, by plain reads.

A file that is shorter than the pages ever used is not necessarily damaged: a page that was taken and freed in one
transaction is never written, and if it was the last one, the file ends before it. Such pages are in the free list,
which is read only if the file is shorter.

    page   := number u64 | pad u16 | flags u16 | lower u16 | upper u16 | node offsets u16 … (while < lower) … nodes
    meta   := page head | magic u32 | version u32 | address u64 | map size u64 | free list: tree | main: tree |
              last page u64 | transaction u64
    tree   := page size or 0 u32 | flags u16 | depth u16 | branch, leaf, overflow pages, entries, root: u64 each
    node   := low u16 | high u16 | flags u16 | key bytes u16 | key | data   (low, high: data's length; a branch's child)

Format version 1, that of LMDB 0.9, in the machine's byte order. Any other format is left to LMDB, which refuses it.

Source: https://github.com/LMDB/lmdb/blob/LMDB_0.9.33/libraries/liblmdb/mdb.c (MDB_page, MDB_meta, MDB_db, MDB_node)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fairlog_types import CorruptStorage, StorageFailure

_PAGE_HEAD = struct.Struct("=QHHHH")
_NODE_HEAD = struct.Struct("=HHHH")
_NUMBER = struct.Struct("=Q")
_META = struct.Struct("=16xII16xI36xQ48xQQ")
"""Magic, version, page size (kept in the free list's tree), the free list's root, last page, transaction."""

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_BRANCH, _LEAF = 0x01, 0x02
_IN_OVERFLOW_PAGES = 0x01
_NO_ROOT = (1 << 64) - 1
_PAGE_BYTES = range(256, (1 << 16) + 1)


class _NotThere(Exception):
    """A page that the free list needs is after the end of the file, or is not a valid page."""


@dataclass(frozen=True, slots=True)
class _Meta:
    page_bytes: int
    free_list_root: int
    last_page: int
    transaction: int


def check_length(path: Path) -> None:
    """Refuse the LMDB file at `path` if pages in use are after its end. A file that is missing or empty is a new one.

    Raises CorruptStorage with the byte counts; StorageFailure if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            _check(path, file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageFailure(f"{path} cannot be read: {error.strerror}. Check the disk, then restart.") from error


def _check(path: Path, file: BinaryIO) -> None:
    size_bytes = file.seek(0, 2)
    if size_bytes == 0:
        return
    first = _read_meta(file, 0)
    if first is None:
        if size_bytes < _META.size:
            raise CorruptStorage(f"{path} has {size_bytes} bytes, too few for an LMDB file: it was cut. Restore it.")
        return
    second = _read_meta(file, first.page_bytes)
    if second is None:
        if size_bytes < 2 * first.page_bytes:
            want = 2 * first.page_bytes
            raise CorruptStorage(f"{path} has {size_bytes} bytes, it begins with {want}: it was cut. Restore it.")
        return
    newest = max(first, second, key=lambda meta: meta.transaction)
    want = (newest.last_page + 1) * newest.page_bytes
    if size_bytes >= want:
        return
    missing = range(size_bytes // newest.page_bytes, newest.last_page + 1)
    try:
        free = _free_pages(file, newest, size_bytes)
    except (_NotThere, struct.error):
        free = set[int]()
    # How many pages there should be is what a damaged file says: nothing is made of each.
    in_use = missing.stop - missing.start - sum(page in missing for page in free)
    if in_use:
        first = next(page for page in missing if page not in free)
        raise CorruptStorage(
            f"{path} has {size_bytes} bytes of {want}: it was cut, {in_use} pages in use are gone, the first of"
            f" them at byte {first * newest.page_bytes}. Restore it."
        )


def _read_meta(file: BinaryIO, at: int) -> _Meta | None:
    file.seek(at)
    data = file.read(_META.size)
    if len(data) < _META.size:
        return None
    magic, version, page_bytes, root, last_page, transaction = _META.unpack(data)
    if (magic, version) != (_MAGIC, _VERSION) or page_bytes not in _PAGE_BYTES:
        return None
    return _Meta(page_bytes, root, last_page, transaction)


def _free_pages(file: BinaryIO, meta: _Meta, file_bytes: int) -> set[int]:
    """The numbers of all pages in the free list, as of that meta page."""
    free: set[int] = set()
    if meta.free_list_root == _NO_ROOT:
        return free
    waiting = [meta.free_list_root]
    seen: set[int] = set()
    while waiting:
        number = waiting.pop()
        if number in seen:
            raise _NotThere
        seen.add(number)
        page = _read(file, number * meta.page_bytes, meta.page_bytes, file_bytes)
        _, _, flags, lower, _ = _PAGE_HEAD.unpack_from(page)
        for (at,) in struct.iter_unpack("=H", page[_PAGE_HEAD.size : lower]):
            low, high, node_flags, key_bytes = _NODE_HEAD.unpack_from(page, at)
            if flags & _BRANCH:
                waiting.append(low | high << 16 | node_flags << 32)
            elif flags & _LEAF:
                data_at, data_bytes = at + _NODE_HEAD.size + key_bytes, low | high << 16
                if node_flags & _IN_OVERFLOW_PAGES:
                    (overflow,) = _NUMBER.unpack_from(page, data_at)
                    data = _read(file, overflow * meta.page_bytes + _PAGE_HEAD.size, data_bytes, file_bytes)
                else:
                    data = page[data_at : data_at + data_bytes]
                (count,) = _NUMBER.unpack_from(data)
                free.update(struct.unpack_from(f"={count}Q", data, _NUMBER.size))
            else:
                raise _NotThere
    return free


def _read(file: BinaryIO, at: int, size_bytes: int, file_bytes: int) -> bytes:
    if at + size_bytes > file_bytes:
        raise _NotThere
    file.seek(at)
    return file.read(size_bytes)
