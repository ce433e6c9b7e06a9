"""Flushes that take long by a coin, put under a real node: journals are durable one before the other.

A power cut is worth the trial where some of a transaction's journals are durable and others are not yet. Where all
flushes are quick, as in memory or on a good disk, there are next to no such moments, and whether forty power cuts
meet one is luck. On a disk that others use, too, there is nearly always one. So the programs that run a node for power
cuts (`lossy_disk`, `recording`) install this first, below what they write down:

    os.fdatasync, os.fsync   of a journal's segment sleep for a while first, if the coin says so
    Ring.fdatasync           takes nothing then, as if it had no room: a thread does it instead, and sleeps

A flush that begins later, or takes longer, is one that any disk may show: nothing is forgotten here, and no order that
somebody waits for is changed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from journal.uring import Ring

VARIABLE = "UNEVEN_FLUSHES"
LONG_FLUSH_S = 0.05
LONG_SHARE = 0.5
"""Of the flushes: those that take long."""
JOURNAL_SUFFIXES = (".journal", ".new")  # a segment gets room under another name, then is renamed into place


class UnevenFlushes:
    """Wraps the calls of `os` and of `Ring`; the coins are `rng`'s. A long flush sleeps for `long_s` seconds."""

    def __init__(self, rng: random.Random, long_s: float) -> None:
        from journal.uring import Ring

        self._rng, self._long_s = rng, long_s
        self._ring, self._real_ring_sync = Ring, Ring.fdatasync
        self._left_by_ring: set[int] = set()
        """Inodes of which the next flush in a thread takes long."""

    def install(self) -> None:
        real_fdatasync, real_fsync = os.fdatasync, os.fsync
        os.fdatasync = lambda fd: self.sync(real_fdatasync, fd)
        os.fsync = lambda fd: self.sync(real_fsync, fd)
        # A function, for it becomes a method of the ring; a bound method would not be given the ring.
        self._ring.fdatasync = lambda ring, fd, number: self.ring_sync(ring, fd, number)  # type: ignore # noqa: PLW0108

    def sync(self, real: Callable[[Any], None], fd: Any, /) -> None:
        inode = inode_of_journal(fd if isinstance(fd, int) else fd.fileno())
        if inode is not None and (inode in self._left_by_ring or self._takes_long()):
            self._left_by_ring.discard(inode)
            time.sleep(self._long_s)
        real(fd)

    def ring_sync(self, ring: Ring, fd: int, number: int, /) -> bool:
        inode = inode_of_journal(fd)
        if inode is not None and self._takes_long():
            self._left_by_ring.add(inode)
            return False
        return self._real_ring_sync(ring, fd, number)

    def _takes_long(self) -> bool:
        return self._rng.random() < LONG_SHARE


def inode_of_journal(fd: int) -> int | None:
    """The inode if this is a journal's segment, None if it is another file."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
    return os.fstat(fd).st_ino if Path(path).suffix in JOURNAL_SUFFIXES else None


def environment(seed: object, *, long_s: float = LONG_FLUSH_S) -> dict[str, str]:
    """What a node's environment needs for `install`; `seed` decides which flushes take `long_s` seconds longer."""
    return {VARIABLE: f"{long_s}:{seed}"}


def install() -> None:
    """Install what the environment asks for, which is taken from it; if it asks for nothing, do nothing."""
    long_s, _, seed = os.environ.pop(VARIABLE, "").partition(":")
    if long_s:
        UnevenFlushes(random.Random(seed), float(long_s)).install()
