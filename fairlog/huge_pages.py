"""Moves the heap of this process into huge pages, while it serves.

    /proc/self/maps ──▶ private memory of no file ──▶ its pieces of 2 MiB ──(7/8 in use)──▶ madvise(MADV_COLLAPSE)

Why. A transaction touches some thousands of Python objects, which lie anywhere in a heap of 60 MB: more pages of 4 KiB
than a processor keeps the addresses of. Each address that it has to look up costs a walk through page tables, and in a
virtual machine through those of its host as well. In pages of 2 MiB, thirty addresses are enough for the whole heap
(docs/decisions/0093-heap-in-huge-pages.md).

How it works. A thread looks every ten seconds for pieces of the heap that are nearly full, and asks the kernel to make
one page of each. The kernel copies the piece, which takes 2 to 4 ms; meanwhile no other thread of the process gets new
pages. A piece that is one page already costs nothing. Pieces with more room are left alone, so memory grows by a
seventh at most. Memory that is freed is given back as before.

Linux can do this since 6.1, whatever its setting for transparent huge pages. Where it cannot, the thread ends.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Thread

import structlog

PIECE_BYTES = 2 << 20
"""A huge page of x86, and of ARM if its other pages have 4 KiB."""

EVERY_S = 10.0
"""Before the first time as well: a process that ends sooner pays nothing."""

_PAGE_BYTES = mmap.PAGESIZE
_PAGES = PIECE_BYTES // _PAGE_BYTES
_IN_USE_MIN = _PAGES * 7 // 8

_MADV_COLLAPSE = 25
"""linux/mman.h. Python's `mmap` has no name for it."""

_PRIVATE, _NO_FILE = "rw-p", "0"

_ENTRY_BYTES = 8
"""Of a page in /proc/self/pagemap, little-endian; the highest bit says that the page is in memory."""
_NOT_IN_MEMORY = bytes(range(0x80))
"""The values of a highest byte without that bit."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def keep_heap_in_huge_pages() -> None:
    """Begin, in a thread that ends with the process."""
    Thread(target=_keep, name="huge-pages", daemon=True).start()


def _keep() -> None:
    moved = 0
    while True:
        time.sleep(EVERY_S)
        before = moved
        try:
            moved, refusal = collapse_heap()
        except OSError as error:
            _log.debug("the heap stays in small pages", reason=str(error))
            return
        if not moved and refusal is not None and refusal.errno == errno.EINVAL:
            _log.debug("the heap stays in small pages", reason="the kernel has no MADV_COLLAPSE")
            return
        if moved > before:
            _log.debug("the heap is in huge pages", mib=moved * PIECE_BYTES >> 20)


def collapse_heap() -> tuple[int, OSError | None]:
    """Make one page of each piece that is nearly full: how many there are now, and the last refusal.

    Raises OSError if the system does not say what is in use.
    """
    with open("/proc/self/maps", encoding="utf-8") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pieces = list(nearly_full(maps, lambda address: _pages_in_use(pagemap.fileno(), address)))
    madvise = ctypes.CDLL(None, use_errno=True).madvise  # after /proc: where that is missing, this may be, too
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    moved, refusal = 0, None
    for address in pieces:
        if madvise(address, PIECE_BYTES, _MADV_COLLAPSE) == 0:
            moved += 1
        else:
            code = ctypes.get_errno()
            refusal = OSError(code, os.strerror(code))
    return moved, refusal


def nearly_full(maps: Iterable[str], pages_in_use: Callable[[int], int]) -> Iterator[int]:
    """The addresses of the pieces that become one page.

    `maps` are the lines of /proc/self/maps (proc_pid_maps(5)). `pages_in_use` says how many pages of a piece are in
    memory; it is asked for pieces of private memory that belongs to no file.
    """
    for line in maps:
        addresses, access, _offset, _device, inode, *_ = line.split(maxsplit=5)
        if access != _PRIVATE or inode != _NO_FILE:
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        first = -(-begin // PIECE_BYTES) * PIECE_BYTES
        for address in range(first, end - PIECE_BYTES + 1, PIECE_BYTES):
            if pages_in_use(address) >= _IN_USE_MIN:
                yield address


def _pages_in_use(pagemap: int, address: int) -> int:
    entries = os.pread(pagemap, _PAGES * _ENTRY_BYTES, address // _PAGE_BYTES * _ENTRY_BYTES)
    highest = entries[_ENTRY_BYTES - 1 :: _ENTRY_BYTES]
    return len(highest.translate(None, _NOT_IN_MEMORY))
