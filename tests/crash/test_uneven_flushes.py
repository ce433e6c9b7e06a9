"""Some flushes take long, and meanwhile others return; nothing else is changed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.uring import Ring
from tests.crash import uneven_flushes
from tests.crash.lossy_disk import Ledger, owed
from tests.crash.uneven_flushes import LONG_FLUSH_S, UnevenFlushes

LONG, SHORT = 0.0, 1.0


def flushes(*coins: float) -> UnevenFlushes:
    """With these coins, and no more."""
    rng, left = random.Random(0), iter(coins)
    rng.random = lambda: next(left)  # type: ignore[method-assign]
    return UnevenFlushes(rng, LONG_FLUSH_S)


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Two segments' descriptors."""
    fds = [os.open(tmp_path / f"{number}.journal", os.O_RDWR | os.O_CREAT) for number in range(2)]
    yield fds[0], fds[1]
    for fd in fds:
        os.close(fd)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(uneven_flushes.time, "sleep", seconds.append)
    return seconds


def test_uneven_flushes_leave_one_journal_owed_while_another_is_durable(
    journals: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that are flushed together one is on disk while the other is not: what a power cut is to meet."""
    slow, quick = journals
    ledger, uneven = Ledger(tmp_path / "ledger"), flushes(LONG, SHORT)

    def flush(fd: int) -> None:
        ledger.sync(lambda fd: uneven.sync(os.fdatasync, fd), fd)

    owed_meanwhile: list[int] = []

    def sleep(seconds: float) -> None:
        flush(quick)
        owed_meanwhile.extend(each.inode for each in owed(tmp_path / "ledger"))

    monkeypatch.setattr(uneven_flushes.time, "sleep", sleep)
    for fd in journals:
        ledger.pwrite(fd, b"x", 0)
    flush(slow)
    assert owed_meanwhile == [os.fstat(slow).st_ino]
    assert owed(tmp_path / "ledger") == []


def test_uneven_flush_that_a_ring_is_given_is_left_to_a_thread(journals: tuple[int, int], slept: list[float]) -> None:
    """The ring is driven by the event loop, which may not sleep: it takes nothing, and the thread's flush is long."""
    uneven = flushes(LONG, SHORT)
    assert not uneven.ring_sync(Ring.__new__(Ring), journals[0], 1)
    uneven.sync(os.fdatasync, journals[0])
    assert slept == [LONG_FLUSH_S]
    uneven.sync(os.fdatasync, journals[0])
    assert slept == [LONG_FLUSH_S]


def test_uneven_flushes_are_those_of_journals_alone(tmp_path: Path, slept: list[float]) -> None:
    """No coin is tossed for other files."""
    with (tmp_path / "other").open("w+b") as file:
        flushes().sync(os.fsync, file)
    assert slept == []
