"""Flushes through io_uring, and without it where it is refused."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import LeaderEpoch
from journal import flush, uring
from journal.flush import open_flusher
from journal.journal import Journal, JournalKind, JournalSettings
from journal.ring_syncs import RingSyncs
from journal.segment_file import OpenFile
from journal.uring import ENTRIES, Ring, open_ring
from tests.lacking import NOT_PERMITTED

IO_URING_SETUP = 425
"""The number of the system call, on every machine."""
PARAMS_BYTES = 120


def ring_or_skip() -> Ring:
    """A ring; skips the test where the system itself refuses one."""
    ring = open_ring()
    if ring is None:
        if platform.machine() not in uring._ORDERED_MACHINES:
            pytest.skip(f"{NOT_PERMITTED}a ring on the processor {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        made = libc.syscall(ctypes.c_long(IO_URING_SETUP), 1, ctypes.create_string_buffer(PARAMS_BYTES))
        assert made < 0, "the system has io_uring, and open_ring makes nothing of it"
        pytest.skip(f"{NOT_PERMITTED}io_uring: {os.strerror(ctypes.get_errno())}")
    return ring


@pytest.fixture
def ring() -> Generator[Ring, None, None]:
    opened = ring_or_skip()
    yield opened
    opened.close()


def outcomes_of(ring: Ring, count: int) -> dict[int, OSError | None]:
    outcomes: dict[int, OSError | None] = {}
    while len(outcomes) < count:
        assert select.select([ring.eventfd], [], [], 10)[0]
        os.eventfd_read(ring.eventfd)
        outcomes.update(ring.finished())
    return outcomes


def refused_with(code: int) -> Callable[..., int]:
    """A system call that is refused."""

    def call(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def nothing_taken(*_: object) -> int:
    """A system call that succeeds and has done nothing."""
    return 0


def new_file(path: Path) -> OpenFile:
    opened = OpenFile(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(opened.fd, b"frame", 0)
    return opened


async def open_journal(directory: Path, flusher: flush.Flusher) -> Journal:
    return await Journal.open(
        directory,
        kind=JournalKind.LOCAL,
        settings=JournalSettings(),
        flusher=flusher,
        leader_epoch=LeaderEpoch(1),
    )


def test_ring_tells_of_each_fdatasync_by_its_number(ring: Ring, tmp_path: Path) -> None:
    """Those that succeed and one that fails, side by side: every outcome has its own number."""
    files = [new_file(tmp_path / str(number)) for number in range(3)]
    for number, file in enumerate(files):
        assert ring.fdatasync(file.fd, 2**40 + number)
    assert ring.fdatasync(9_999, 7)
    outcomes = outcomes_of(ring, 4)
    failure = outcomes.pop(7)
    assert isinstance(failure, OSError)
    assert failure.errno == errno.EBADF
    assert outcomes == {2**40 + number: None for number in range(3)}


def test_ring_that_is_full_begins_nothing_and_goes_on_afterwards(ring: Ring, tmp_path: Path) -> None:
    """More than ENTRIES at a time are refused, none is lost, and the rings wrap around."""
    file = new_file(tmp_path / "file")
    for _ in range(5):
        for number in range(ENTRIES):
            assert ring.fdatasync(file.fd, number)
        assert not ring.fdatasync(file.fd, 99)
        assert outcomes_of(ring, ENTRIES) == dict.fromkeys(range(ENTRIES))


@pytest.mark.parametrize("answer", [refused_with(errno.EBUSY), nothing_taken], ids=["refused", "nothing taken"])
def test_ring_that_the_kernel_does_not_enter_has_begun_nothing(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., int]
) -> None:
    """The entry is taken back: the next call does not carry it out along with its own."""
    file = new_file(tmp_path / "file")
    with monkeypatch.context() as patched:
        patched.setattr(uring, "_call", answer)
        assert not ring.fdatasync(file.fd, 1)
    assert ring.fdatasync(file.fd, 2)
    assert outcomes_of(ring, 1) == {2: None}


async def test_syncs_closed_have_told_of_what_was_under_way(tmp_path: Path) -> None:
    """Closing waits for the kernel, and the file stays open until then though nobody else holds it."""
    syncs = RingSyncs(ring_or_skip())
    told: list[OSError | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(syncs.run)
        for number in range(5):
            assert syncs.start(new_file(tmp_path / str(number)), told.append)
        await syncs.close()
    assert told == [None] * 5


async def test_syncs_of_which_one_is_told_in_vain_still_close(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in whoever is told is raised by `run`, and does not make `close` wait for those behind it."""

    def fault(_: OSError | None) -> None:
        raise AssertionError("a fault of the program")

    syncs = RingSyncs(ring)
    for number in range(3):
        assert syncs.start(new_file(tmp_path / str(number)), fault)
    together = list(outcomes_of(ring, 3).items())
    monkeypatch.setattr(ring, "finished", lambda: together)
    os.eventfd_write(ring.eventfd, 1)
    with pytest.raises(AssertionError, match="a fault"):
        await syncs.run()
    with trio.fail_after(30):
        await syncs.close()


async def test_flusher_that_is_opened_while_it_is_cancelled_can_be_left(ring: Ring, tmp_path: Path) -> None:
    """As in a start that is told to stop, or of which another part has failed."""
    with trio.CancelScope() as cancelled:
        cancelled.cancel()
        async with open_flusher():
            pass
        await trio.lowlevel.checkpoint()
    assert cancelled.cancelled_caught


async def test_journals_flushed_through_the_ring_are_durable(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends of several journals become durable, and what the threads were for before goes through the ring."""
    synced: list[int] = []
    fdatasync = Ring.fdatasync

    def noted(ring: Ring, fd: int, number: int) -> bool:
        synced.append(fd)
        return fdatasync(ring, fd, number)

    monkeypatch.setattr(Ring, "fdatasync", noted)
    async with open_flusher() as flusher:
        journals = [await open_journal(tmp_path / str(number), flusher) for number in range(3)]
        for journal in journals:
            await journal.begin()
        synced.clear()
        for _ in range(10):
            for journal in journals:
                journal.append(1, [7], (b"batch",), timestamp_ms=0)
                journal.start_flush()
            for journal in journals:
                await journal.flush(journal.end)
                assert journal.durable == journal.end
        assert len(set(synced)) == 3
        for journal in journals:
            await journal.close()


async def test_journal_whose_fdatasync_fails_in_the_ring_fails(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel says of the disk is final for the journal, as it is from a thread (invariant 12)."""
    finished = Ring.finished

    def broken(ring: Ring) -> list[tuple[int, OSError | None]]:
        return [(number, OSError(errno.EIO, "broken")) for number, _ in finished(ring)]

    async with open_flusher() as flusher:
        journal = await open_journal(tmp_path / "j", flusher)
        await journal.begin()
        monkeypatch.setattr(Ring, "finished", broken)
        journal.append(1, [7], timestamp_ms=0)
        with pytest.raises(Exception, match="broken"):
            await journal.flush(journal.end)
        assert journal.failed is not None
        with pytest.raises(Exception, match="broken"):
            await journal.close()


async def test_journal_closed_under_a_shield_is_flushed_though_all_is_cancelled(ring: Ring, tmp_path: Path) -> None:
    """Outcomes are told of until the flusher is left: a cancelled node still closes its journals."""
    closed = False
    with trio.CancelScope() as everything:
        async with open_flusher() as flusher:
            journal = await open_journal(tmp_path / "j", flusher)
            await journal.begin()
            everything.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(30):
                await trio.testing.wait_all_tasks_blocked(0.01)
                journal.append(1, [7], timestamp_ms=0)
                await journal.flush(journal.end)
                await journal.close()
                closed = True
    assert closed


def test_ring_is_not_had_where_reads_may_be_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has no barrier between a completion's tail and the completion."""
    monkeypatch.setattr(uring.platform, "machine", lambda: "aarch64")
    assert open_ring() is None


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.ENOSYS])
async def test_flusher_without_io_uring_flushes_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """A sandbox or a kernel that refuses the system call costs nothing but its speed."""
    monkeypatch.setattr(uring, "_call", refused_with(refusal))
    assert open_ring() is None
    async with open_flusher() as flusher:
        journal = await open_journal(tmp_path / "j", flusher)
        await journal.begin()
        journal.append(1, [7], timestamp_ms=0)
        await journal.flush(journal.end)
        assert journal.durable == journal.end
        await journal.close()


async def test_flusher_with_another_sync_does_not_pass_it_by(tmp_path: Path) -> None:
    """What is put in fdatasync's place is called for every flush."""
    synced: list[int] = []
    async with open_flusher(sync=synced.append) as flusher:
        journal = await open_journal(tmp_path / "j", flusher)
        await journal.begin()
        before = len(synced)
        journal.append(1, [7], timestamp_ms=0)
        await journal.flush(journal.end)
        assert len(synced) > before
        await journal.close()
