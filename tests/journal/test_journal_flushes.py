"""A journal's flushes: what is durable when, and who waits for it."""

from __future__ import annotations

import trio
import trio.testing

from journal.journal import Fsync
from journal.segment import SEGMENT_HEADER_BYTES
from tests.journals_on_files import append


async def test_journal_flush_returns_when_the_disk_has_it(open_journal, disk) -> None:
    """`durable` follows the disk, and a waiter is woken only by it."""
    journal = await open_journal()
    await append(journal, 1)
    disk.hold()
    journal.start_flush()
    woken = trio.Event()

    async def wait() -> None:
        await journal.flush(journal.end)
        woken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert not woken.is_set()
        assert journal.durable == 0
        disk.let_go()
    assert journal.durable == journal.end


async def test_journal_flush_of_what_is_durable_takes_no_turn_of_the_loop(open_journal) -> None:
    """Whoever waits for several journals pays for the slowest one only; a cancelled caller is told all the same."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.flush(journal.end)
    turn = trio.Event()

    async def take_turn() -> None:
        turn.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_turn)
        await journal.flush(journal.end)
        assert not turn.is_set()
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.flush(journal.end)
    assert scope.cancelled_caught


async def test_journal_many_waiters_share_few_flushes(open_journal, disk) -> None:
    """Fifty commits that wait at the same time need a handful of syncs, not fifty."""
    journal = await open_journal()
    await journal.make_room(50 * 2000)
    before = len(disk.synced)

    async def commit(number: int) -> None:
        await append(journal, number)
        await journal.flush(journal.end)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(commit, number)
    assert len(disk.synced) - before <= 3


async def test_journal_frames_carry_what_was_durable_when_they_were_written(open_journal, tmp_path) -> None:
    """A frame is a witness only of what was synced before it, whatever `durable` tells others."""
    for fsync in Fsync:
        journal = await open_journal(fsync.value, fsync=fsync)
        await append(journal, 1)
        await journal.sync()
        synced = journal.end
        await append(journal, 2)
        position, frame_bytes = await append(journal, 3)
        segment = next((tmp_path / fsync.value).glob("*.journal"))
        with segment.open("rb") as file:
            file.seek(SEGMENT_HEADER_BYTES + position)
            assert int.from_bytes(file.read(frame_bytes)[4:12], "little") == synced
        await journal.close()


async def test_journal_that_need_not_sync_answers_at_once(open_journal, disk) -> None:
    """With fsync=never nothing but a close, a roll or `sync` waits for the disk."""
    journal = await open_journal(fsync=Fsync.NEVER)
    await append(journal, 0)
    await journal.sync()
    del disk.synced[:]
    await append(journal, 1)
    assert journal.durable == journal.end
    journal.start_flush()
    await journal.flush(journal.end)
    assert disk.synced == []
    await journal.sync()
    assert len(disk.synced) == 1
    await append(journal, 2)
    await journal.close()
    assert len(disk.synced) == 3


async def test_journal_with_an_interval_is_synced_when_it_has_passed(open_journal, disk, autojump_clock) -> None:
    """What is appended is on disk an interval later, without anyone asking, and then the disk is left alone."""
    journal = await open_journal(fsync=Fsync.INTERVAL, fsync_interval_ms=100)
    await append(journal, 0)
    await journal.sync()
    del disk.synced[:]
    await append(journal, 1)
    await append(journal, 2)
    assert disk.synced == []
    await trio.sleep(0.101)
    await journal.sync()
    await trio.sleep(10)
    assert len(disk.synced) == 1


async def test_journal_flush_cancelled_leaves_the_flush_going(open_journal, disk) -> None:
    """Whoever gives up waiting takes nothing back."""
    journal = await open_journal()
    await append(journal, 1)
    disk.hold()
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.flush(journal.end)
    disk.let_go()
    await journal.flush(journal.end)
    assert journal.durable == journal.end
