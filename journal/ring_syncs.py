"""Fdatasyncs through a ring of the kernel's (`uring`), each told of on the event loop.

    start(file, done) ──▶ Ring.fdatasync ──▶ kernel ──▶ eventfd ──▶ run: done(None or what went wrong)

The file is held open until then. What a failure means is the caller's matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count

import trio

from journal.segment_file import OpenFile
from journal.uring import Ring


class RingSyncs:
    """All methods are for the loop's thread."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._numbers = count()
        self._under_way: dict[int, tuple[OpenFile, Callable[[OSError | None], None]]] = {}
        # Whoever closes a journal is shielded and waits for its last flush: nobody but `close` ends `run`.
        self._running = trio.CancelScope(shield=True)
        self._ran = trio.Event()

    def start(self, file: OpenFile, done: Callable[[OSError | None], None]) -> bool:
        """Begin an fdatasync of `file`, and call `done` when it is through; False if there is no room for it now."""
        number = next(self._numbers)
        if not self._ring.fdatasync(file.fd, number):
            return False
        self._under_way[number] = file, done
        return True

    async def run(self) -> None:
        """Tell of what is through, until `close`. To be started even if its nursery is cancelled: `close` waits for it.

        So not by `Nursery.start`: that waits for a task that was started while it was cancelled, and this one is
        shielded.
        """
        try:
            with self._running:
                while True:
                    await self._tell()
        finally:
            self._ran.set()

    async def close(self) -> None:
        """Return once nothing is under way; nothing may be started any more. `run` was started, and ends."""
        self._running.cancel()
        await self._ran.wait()
        while self._under_way:
            await self._tell()
        self._ring.close()

    async def _tell(self) -> None:
        await trio.lowlevel.wait_readable(self._ring.eventfd)
        os.eventfd_read(self._ring.eventfd)
        finished = [(*self._under_way.pop(number), error) for number, error in self._ring.finished()]
        # None is under way any more: were there a fault in one `done`, `close` must not wait for those behind it.
        for _file, done, error in finished:
            done(error)
