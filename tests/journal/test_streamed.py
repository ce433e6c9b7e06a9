"""Journals on a replicated log, as their owner appends to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

import pytest
import trio
import trio.testing

from coordinator.group_journal import GroupJournal
from coordinator.group_records import ExpiredRecord, GroupRecord
from fairlog_types import JournalPosition, StorageFailure
from journal import segment_file, streamed
from journal.journal import Fsync, Journal, JournalKind, NoRoom
from stream.fold import Fold, Frames
from tests.journal.streamed_shard import EPOCH, NOW_MS, Shard, land, numbers, write
from tests.journal.streamed_shard import shard as shard
from tests.journals_on_files import FakeSync
from tests.stream.owners import NAME, fence, owner


class Waiter:
    """Waits in a task for what a journal promises."""

    def __init__(self, nursery: trio.Nursery, wait: Callable[..., object], *args: object) -> None:
        self.done = False
        self.failure: StorageFailure | None = None
        self.scope = trio.CancelScope()
        nursery.start_soon(self._run, wait, args)

    async def _run(self, wait: Callable[..., object], args: Sequence[object]) -> None:
        try:
            with self.scope:
                await wait(*args)  # type: ignore[misc]
                self.done = True
        except StorageFailure as failure:
            self.failure = failure


# Appending and waiting


async def test_frame_is_durable_and_in_the_file_when_it_is_accepted(shard: Shard) -> None:
    """Until then `end` alone knows of it, and nobody can read it."""
    journal = await shard.open()
    assert (journal.start, journal.end, journal.durable) == (0, 0, 0)
    end = write(journal, 1)
    assert (journal.start, journal.end, journal.durable) == (0, end, 0)
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, journal.flush, end)
        await trio.testing.wait_all_tasks_blocked()
        assert (waiter.done, numbers(journal), journal.durable) == (False, [], 0)
        shard.stream.land()
        assert (numbers(journal), journal.durable) == ([1], end)
    assert waiter.done
    (frame,) = journal.frames(JournalPosition(0))
    assert (frame.leader_epoch, frame.timestamp_ms, frame.kind, frame.end) == (EPOCH, NOW_MS, 5, end)
    assert journal.read_payload(JournalPosition(0), end) == b"payload"
    await journal.flush(end)
    await journal.close()


async def test_flush_of_one_journal_appends_what_all_hold_as_one_entry(shard: Shard) -> None:
    """In the order in which it was appended, whichever journal it is of: what was written in one step counts as one."""
    a, b, group = await shard.open("local/a"), await shard.open("local/b"), await shard.open("group/0")
    for number, journal in enumerate((a, group, b, a)):
        write(journal, number)
    b.start_flush()
    await land(shard)
    assert len(shard.stream.entries) == 2
    folded = Fold(NAME)
    folded.step(folded.next_position, shard.stream.entries[0])
    frames = folded.step(folded.next_position, shard.stream.entries[1])
    assert isinstance(frames, Frames)
    assert [frame.journal for frame in frames.frames] == ["local/a", "group/0", "local/b", "local/a"]
    assert [journal.durable for journal in (a, b, group)] == [journal.end for journal in (a, b, group)]
    for journal in (a, b, group):
        await journal.close()


async def test_waiters_go_on_when_theirs_is_accepted_and_no_earlier(shard: Shard) -> None:
    """Each by itself, also if another one has given up."""
    journal = await shard.open()
    async with trio.open_nursery() as nursery:
        waiters: list[Waiter] = []
        for number in range(4):
            waiters.append(Waiter(nursery, journal.flush, write(journal, number)))
            await trio.testing.wait_all_tasks_blocked()
        late = Waiter(nursery, journal.flush, journal.end)
        assert len(shard.stream.under_way) == 4
        waiters[1].scope.cancel()
        for landed in range(4):
            shard.stream.land()
            await trio.testing.wait_all_tasks_blocked()
            assert [waiter.done for waiter in waiters] == [n <= landed and n != 1 for n in range(4)]
        assert late.done
    assert numbers(journal) == [0, 1, 2, 3]
    await journal.close()


async def test_flush_while_as_much_is_under_way_as_may_be_comes_to_its_turn(shard: Shard) -> None:
    """What is appended then goes with the next entry, without another flush."""
    journal = await shard.open()
    async with trio.open_nursery() as nursery:
        for number in range(9):
            Waiter(nursery, journal.flush, write(journal, number))
            await trio.testing.wait_all_tasks_blocked()
        while shard.stream.under_way:
            shard.stream.land()
            await trio.testing.wait_all_tasks_blocked()
    assert journal.durable == journal.end
    assert len(shard.stream.entries) == 1 + 5
    await journal.close()


async def test_flush_of_a_deposed_owner_fails_and_nothing_is_written(shard: Shard) -> None:
    """It is told that nobody knows, now and later; what is accepted can be read on."""
    journal = await shard.open()
    first = write(journal, 1)
    journal.start_flush()
    await land(shard)
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, journal.flush, write(journal, 2))
        await trio.testing.wait_all_tasks_blocked()
        shard.stream.put(fence(owner("b"), 2))
        shard.stream.land()
    assert waiter.failure is not None
    assert "b owns" in str(waiter.failure)
    assert (journal.durable, numbers(journal)) == (first, [1])
    assert journal.failed is not None
    assert not journal.has_room(1)
    await journal.flush(first)
    for refused in (journal.flush(journal.end), journal.make_room(1), journal.sync(), journal.roll()):
        with pytest.raises(StorageFailure, match="b owns"):
            await refused
    with pytest.raises(StorageFailure, match="b owns"):
        write(journal, 3)
    journal.start_flush()
    await journal.close()


async def test_sync_waits_for_the_acceptance_and_not_for_the_disk(shard: Shard, disk: FakeSync) -> None:
    """What the replicated log has accepted is kept; what the file loses comes again."""
    journal = await shard.open()
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, journal.sync)
        await trio.testing.wait_all_tasks_blocked()
        assert waiter.done, "there is nothing"
        write(journal, 1)
        waiter = Waiter(nursery, journal.sync)
        await trio.testing.wait_all_tasks_blocked()
        assert not waiter.done
        disk.hold()
        shard.stream.land()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert waiter.done
        disk.let_go()
    await journal.close()


async def test_what_stands_for_deleted_frames_is_on_disk_before(shard: Shard, disk: FakeSync) -> None:
    """A snapshot, for example: its segment must not be lost when those before it are deleted."""
    journal = await shard.open()
    write(journal, 1)
    shard.writer.flush()
    await trio.testing.wait_all_tasks_blocked()
    shard.stream.land()
    await journal.roll()
    write(journal, 2)
    shard.writer.flush()
    await trio.testing.wait_all_tasks_blocked()
    shard.stream.land()
    disk.hold()
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, journal.reclaim, journal.end)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (waiter.done, journal.start) == (False, 0)
        disk.let_go()
    assert waiter.done
    assert journal.start > 0
    await journal.close()


# Closing


async def test_close_wakes_whoever_waits_and_forgets_what_is_not_accepted(shard: Shard) -> None:
    """A log is deleted while the engine is away; what of it is accepted later goes nowhere, and others' goes on."""
    a, b = await shard.open("local/a"), await shard.open("local/b")
    async with trio.open_nursery() as nursery:
        write(b, 1)
        write(a, 1)
        write(b, 2)
        waiters = [Waiter(nursery, journal.flush, journal.end) for journal in (a, b)]
        await trio.testing.wait_all_tasks_blocked()
        await a.close()
        await trio.testing.wait_all_tasks_blocked()
        assert [waiter.failure is not None for waiter in waiters] == [True, False]
        await a.close()
        with pytest.raises(StorageFailure, match="closed"):
            write(a, 2)
        shard.stream.land()
    assert waiters[1].done
    assert (numbers(b), b.durable) == ([1, 2], b.end)
    await b.close()
    again = await shard.open("local/a")
    assert numbers(again) == []
    await a.close()
    write(again, 3)
    again.start_flush()
    await land(shard)
    assert again.durable == again.end, "the first one is closed twice, this one is not"
    await again.close()


async def test_close_wakes_whoever_waits_for_room(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is away, and the log is deleted: nobody waits for the engine then."""
    monkeypatch.setattr(streamed, "UNACCEPTED_BYTES_MAX", 10_000)
    a, b = await shard.open("local/a"), await shard.open("local/b")
    await a.make_room(10_000)
    write(a, 1, bytes(10_000))
    async with trio.open_nursery() as nursery:
        waiters = [Waiter(nursery, journal.make_room, 1) for journal in (a, b)]
        await trio.testing.wait_all_tasks_blocked()
        assert [waiter.done for waiter in waiters] == [False, False]
        await a.close()
        await trio.testing.wait_all_tasks_blocked()
        assert waiters[0].failure is not None
        assert (waiters[1].done, waiters[1].failure) == (False, None)
        shard.stream.land()
    assert waiters[1].done
    assert b.has_room(1)
    await b.close()


# Room


async def test_writers_wait_while_too_much_is_in_memory(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all journals together; what they wait for is flushed, and they go on when it is accepted, or nothing is."""
    monkeypatch.setattr(streamed, "UNACCEPTED_BYTES_MAX", 10_000)
    a, b = await shard.open("local/a"), await shard.open("local/b")
    await a.make_room(10_000)
    await b.make_room(1)
    assert b.has_room(1)
    write(a, 1, bytes(10_000))
    assert not b.has_room(1)
    async with trio.open_nursery() as nursery:
        waiter, other = Waiter(nursery, b.make_room, 1), Waiter(nursery, a.make_room, 1)
        await trio.testing.wait_all_tasks_blocked()
        other.scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not waiter.done
        shard.stream.land()
    assert waiter.done
    assert b.has_room(1)
    await a.make_room(10_000)
    write(a, 2, bytes(10_000))
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, b.make_room, 1)
        await trio.testing.wait_all_tasks_blocked()
        shard.stream.leave_unknown()
    assert waiter.failure is not None
    await a.close()
    await b.close()


async def test_room_is_there_for_all_that_is_not_accepted(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was promised to earlier frames is not promised again: each is taken without making room on the spot."""
    journal = await shard.open()
    for number in range(12):
        payload = bytes(7_000 * (number % 4 + 1))
        while not journal.has_room(len(payload)):
            await journal.make_room(len(payload))
        write(journal, number, payload)
        if number % 3 == 0:
            journal.start_flush()
            await trio.testing.wait_all_tasks_blocked()

    def no_room(*_: object) -> None:
        raise AssertionError("the room that was promised is not there")

    monkeypatch.setattr("journal.preallocation.Preallocation.make_now", no_room)
    await land(shard)
    journal.start_flush()
    await land(shard)
    assert numbers(journal) == list(range(12))
    monkeypatch.undo()
    await journal.close()


async def test_frames_find_room_though_a_segment_was_begun_before_they_were_accepted(shard: Shard) -> None:
    """The room that they were promised was in the segment before."""
    journal = await shard.open("group/0")
    write(journal, 0)
    async with trio.open_nursery() as nursery:
        rolled = Waiter(nursery, journal.roll)
        await trio.testing.wait_all_tasks_blocked()
        await journal.make_room(5_000_000)
        end = write(journal, 1, bytes(5_000_000))
        shard.stream.land()
    assert rolled.done
    assert shard.ended == []
    journal.start_flush()
    await land(shard)
    assert journal.failed is None
    assert (numbers(journal), journal.durable) == ([0, 1], end)
    await journal.close()


async def test_full_disk_refuses_room_and_nothing_has_failed(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told before the frame is appended, as with journals on files."""
    journal = await shard.open()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(segment_file, "_lay_out", full)
        with pytest.raises(NoRoom, match="no room for more frames"):
            await journal.make_room(1000)
    assert journal.failed is None
    await journal.make_room(1000)
    write(journal, 1, bytes(1000))
    journal.start_flush()
    await land(shard)
    assert numbers(journal) == [1]
    await journal.close()


# A file that refuses what was accepted


async def test_file_that_refuses_a_frame_gets_none_after_it_and_is_not_said_to_be_on_disk(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither do the others: their frames in that entry are missing. A start finds all files sound, and reads on."""
    a, b = await shard.open("local/a"), await shard.open("local/b")
    for journal in (a, b):
        await journal.make_room(100)
        write(journal, 0)
    a.start_flush()
    await land(shard)
    await shard.journals.sync_files()
    before = b.durable
    write(b, 1)
    write(a, 1)
    write(b, 2, b"longer than the others")
    a.start_flush()
    await trio.testing.wait_all_tasks_blocked()
    write(b, 3)
    a.start_flush()
    await trio.testing.wait_all_tasks_blocked()
    assert len(shard.stream.under_way) == 2
    real = Journal.append_received

    def refuses(journal: Journal, data: bytes) -> JournalPosition:
        if journal is a._file:
            raise StorageFailure("the disk is full")
        return real(journal, data)

    monkeypatch.setattr(Journal, "append_received", refuses)
    async with trio.open_nursery() as nursery:
        waiter = Waiter(nursery, b.flush, b.end)
        await trio.testing.wait_all_tasks_blocked()
        await land(shard)
    assert waiter.failure is not None
    assert a.failed is not None
    assert b.failed is not None
    assert b.durable > before
    assert numbers(b) == [0, 1]
    for _ in range(2):
        with pytest.raises(StorageFailure, match="the disk is full"):
            await shard.journals.sync_files()
    monkeypatch.undo()
    for journal in (a, b):
        await journal.close()
    replica = shard.replica()
    opened = {name: await replica.open(shard.directory / name, JournalKind.LOCAL) for name in ("local/a", "local/b")}
    fold = Fold(NAME)
    for data in shard.stream.entries:
        folded = fold.step(fold.next_position, data)
        for name, frame in folded.frames if isinstance(folded, Frames) else ():
            opened[name].take(frame)
    assert [numbers(journal) for journal in opened.values()] == [[0, 1], [0, 1, 2, 3]]
    for journal in opened.values():
        await journal.close()


async def test_files_that_could_not_be_synced_are_not_forgotten(shard: Shard, disk: FakeSync) -> None:
    """Whoever asks again hears of them, or has them synced: the stream may be trimmed after that."""
    a, b = await shard.open("local/a"), await shard.open("group/0")
    for journal in (a, b):
        await journal.make_room(100)
        write(journal, 1)
    a.start_flush()
    await land(shard)
    disk.hold()
    with trio.move_on_after(0.01) as given_up:
        await shard.journals.sync_files()
    assert given_up.cancelled_caught
    async with trio.open_nursery() as nursery:
        both = [Waiter(nursery, shard.journals.sync_files) for _ in range(2)]
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert [again.done for again in both] == [False, False]
        disk.let_go()
    assert [again.done for again in both] == [True, True]
    write(b, 2)
    b.start_flush()
    await land(shard)
    disk.hold()
    async with trio.open_nursery() as nursery:
        again = Waiter(nursery, shard.journals.sync_files)
        await trio.testing.wait_all_tasks_blocked(0.01)
        write(b, 3)
        b.start_flush()
        await land(shard)
        disk.let_go()
    assert again.done
    await shard.journals.sync_files()
    assert b._file._synced == b.durable == b.end, "with what was taken while the first one was at it"
    disk.synced.clear()
    await shard.journals.sync_files()
    assert disk.synced == []
    write(a, 2)
    a.start_flush()
    await land(shard)
    disk.fail()
    for _ in range(2):
        with pytest.raises(StorageFailure):
            await shard.journals.sync_files()
    disk.error = None
    await b.close()
    with pytest.raises(StorageFailure):
        await a.close()


async def test_sync_of_files_covers_what_is_being_closed(shard: Shard, disk: FakeSync) -> None:
    """It was taken before: a mark that says so must not be written sooner."""
    journal = await shard.open()
    await journal.make_room(100)
    write(journal, 1)
    journal.start_flush()
    await land(shard)
    disk.hold()
    async with trio.open_nursery() as nursery:
        closed = Waiter(nursery, journal.close)
        await trio.testing.wait_all_tasks_blocked(0.01)
        synced = Waiter(nursery, shard.journals.sync_files)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert (closed.done, synced.done) == (False, False)
        disk.let_go()
    assert closed.done
    assert synced.done


# Segments


async def test_roll_answers_where_the_next_frame_will_be(shard: Shard) -> None:
    """In that very step, whatever was appended while it waited; all before it can be reclaimed, segment by segment."""
    journal = await shard.open("group/0")
    write(journal, 0)
    answers: list[tuple[JournalPosition, JournalPosition]] = []

    async def roll() -> None:
        answers.append((await journal.roll(), journal.end))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(roll)
        await trio.testing.wait_all_tasks_blocked()
        second = write(journal, 1)
        shard.stream.land()
    ((as_of, end),) = answers
    assert as_of == end == second
    write(journal, 2)
    journal.start_flush()
    await land(shard)
    await journal.sync()
    await journal.reclaim(as_of)
    assert numbers(journal, as_of) == [2]
    assert 0 < journal.start <= as_of
    await journal.close()


async def test_cancelled_waits_change_nothing(shard: Shard, disk: FakeSync, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives up flush, sync, room or roll leaves a journal that takes and keeps frames as before."""
    journal = await shard.open("group/0")
    number = 0
    for method in ("flush", "sync", "roll"):
        end = write(journal, number)
        number += 1
        async with trio.open_nursery() as nursery:
            waiter = Waiter(nursery, getattr(journal, method), *([end] if method == "flush" else []))
            await trio.testing.wait_all_tasks_blocked()
            waiter.scope.cancel()
        journal.start_flush()
        await land(shard)
        assert journal.durable == end
    real = segment_file._lay_out

    def waits_for_the_disk(fd: int, offset: int, count: int, *, allocated: bool) -> None:
        disk(fd)
        real(fd, offset, count, allocated=allocated)

    monkeypatch.setattr(segment_file, "_lay_out", waits_for_the_disk)
    for method in ("roll", "make_room"):  # in their second half, with the disk
        write(journal, number)
        number += 1
        journal.start_flush()
        await land(shard)
        disk.hold()
        async with trio.open_nursery() as nursery:
            waiter = Waiter(nursery, getattr(journal, method), *([300_000] if method == "make_room" else []))
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not waiter.done
            waiter.scope.cancel()
        disk.let_go()
    assert await journal.roll() == journal.end
    write(journal, number)
    journal.start_flush()
    await land(shard)
    assert numbers(journal) == list(range(number + 1))
    await journal.close()


async def test_snapshot_of_a_group_journal_stands_while_others_append(shard: Shard) -> None:
    """What was appended while it began is in its state, what comes after is replayed behind it."""
    journal = await shard.open("group/0")
    group = GroupJournal(journal, lambda: NOW_MS)
    state: list[GroupRecord] = []

    def append(name: str) -> None:
        state.append(ExpiredRecord(name))
        group.append(state[-1])

    append("before")
    async with trio.open_nursery() as nursery:
        snapshot = Waiter(nursery, group.snapshot, lambda: list(state))
        await trio.testing.wait_all_tasks_blocked()
        append("while its segment begins")
        shard.stream.land()
        while not shard.stream.under_way:  # noqa: ASYNC110 - the disk has its part in it
            await trio.sleep(0.001)
        append("while it is on its way")
        while not snapshot.done:
            shard.stream.land_all()
            await trio.sleep(0.001)
    append("after")
    journal.start_flush()
    await land(shard)
    assert journal.start > 0, "what was before it is gone"
    await journal.close()
    again = await shard.open("group/0")
    replayed = list(GroupJournal(again, lambda: NOW_MS).replay())
    assert [record.transactional_id for record in replayed] == [  # type: ignore[union-attr]
        "before",
        "while its segment begins",
        "while it is on its way",
        "after",
    ]
    await again.close()


async def test_journal_without_a_frame_is_not_taken_for_a_lost_one(shard: Shard) -> None:
    """It may have no file: the stream says what there was. `begin_under_present_setting` is about the file."""
    journal = shard.journals.unbegun(shard.directory / "local/a", JournalKind.LOCAL)
    assert journal.begun
    await journal.begin()
    assert (journal.begun_with, journal.end) == (Fsync.COMMIT, 0)
    await journal.begin_under_present_setting()
    await journal.advance(JournalPosition(0))
    with pytest.raises(AssertionError, match="not skipped"):
        await journal.advance(JournalPosition(8))
    await journal.close()


async def test_file_that_fails_at_its_close_is_known_to_have_failed(shard: Shard, disk: FakeSync) -> None:
    """As long as the process lives nobody may open it again: what was not on disk may be lost without an error."""
    journal = await shard.open()
    await journal.make_room(100)
    write(journal, 1)
    journal.start_flush()
    await land(shard)
    assert shard.journals.failed_file is None
    disk.error = errno.EIO
    with pytest.raises(StorageFailure):
        await journal.close()
    assert shard.journals.failed_file is not None
