"""Journals on real files, with an fdatasync that a test can count, hold and fail."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from threading import Event, Lock

import pytest

from fairlog_types import JournalPosition, LeaderEpoch
from journal.flush import Flusher, open_flusher
from journal.journal import Journal, JournalKind, JournalSettings

PAYLOAD = b"p" * 1000


class FakeSync:
    """Stands in for fdatasync: says what was synced, in order; can be held back, and can fail.

    It does not touch the disk: what a test reads back comes from the page cache.
    """

    def __init__(self) -> None:
        self.synced: list[str] = []
        self.error: int | None = None
        self.fail_only: str = ""
        self._lock = Lock()
        self._go = Event()
        self._go.set()
        self.waiting = 0

    def __call__(self, fd: int) -> None:
        name = os.readlink(f"/proc/self/fd/{fd}")
        with self._lock:
            self.waiting += 1
        assert self._go.wait(10), "a test held the disk and never let go"
        with self._lock:
            self.waiting -= 1
            self.synced.append(name)
        if self.error is not None and self.fail_only in name:
            raise OSError(self.error, os.strerror(self.error))

    def hold(self) -> None:
        """Let every sync wait from now on."""
        self._go.clear()

    def let_go(self) -> None:
        self._go.set()

    async def hold_at_roll(self, journal: Journal) -> JournalPosition:
        """Begin a new segment, and answer its base; once its room is made every sync waits, so it has no name yet."""
        self.let_go()
        await journal._room.make_spare()  # pyright: ignore[reportPrivateUsage]
        self.hold()
        return await journal.roll()

    def fail(self, error: int = errno.EIO, *, only: str = "") -> None:
        """Let every sync of a file whose name contains `only` fail from now on."""
        self.error, self.fail_only = error, only


@pytest.fixture
def disk() -> FakeSync:
    return FakeSync()


@pytest.fixture
async def flusher(disk: FakeSync) -> AsyncGenerator[Flusher, None]:
    async with open_flusher(threads=4, sync=disk) as opened:
        yield opened
        disk.let_go()


OpenJournal = Callable[..., Awaitable[Journal]]


@pytest.fixture
def open_journal(flusher: Flusher, tmp_path: Path) -> OpenJournal:
    """Open the journal `name` of this test, local, with the settings given by keyword."""

    async def open_one(name: str = "j", *, kind: JournalKind = JournalKind.LOCAL, **settings: object) -> Journal:
        return await Journal.open(
            tmp_path / name,
            kind=kind,
            settings=JournalSettings(**settings),  # pyright: ignore[reportArgumentType]
            flusher=flusher,
            leader_epoch=LeaderEpoch(7),
        )

    return open_one


async def append(journal: Journal, number: int, payload: bytes = PAYLOAD) -> tuple[JournalPosition, int]:
    """Position and frame_bytes of one more frame, with room made as the leaders make it."""
    if not journal.has_room(len(payload)):
        await journal.make_room(len(payload))
    position = journal.append(5, [number], [payload], timestamp_ms=0)
    return position, journal.end - position


def numbers(journal: Journal, start: JournalPosition | None = None) -> list[object]:
    return [frame.header[0] for frame in journal.frames(journal.start if start is None else start)]
