"""A journal whose disk fails: it is closed for writing, those who wait are told, and nothing durable is lost."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal import failpoints
from journal.segment import SEGMENT_HEADER_BYTES
from tests.journals_on_files import append, numbers


async def test_journal_after_a_failed_fsync_is_closed_for_writing(open_journal, disk) -> None:
    """Waiters and appends get StorageFailure, nothing is synced again, reads go on (invariant 12)."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.flush(journal.end)
    durable = journal.durable
    await append(journal, 2)
    disk.fail()
    with pytest.raises(StorageFailure, match="restart the node"):
        await journal.flush(journal.end)
    synced = len(disk.synced)
    disk.error = None
    assert journal.failed is not None
    with pytest.raises(StorageFailure):
        journal.append(1, [3], timestamp_ms=0)
    with pytest.raises(StorageFailure):
        await journal.make_room(10)
    with pytest.raises(StorageFailure):
        await journal.flush(journal.end)
    with pytest.raises(StorageFailure):
        await journal.roll()
    journal.start_flush()
    await journal.flush(durable)
    assert numbers(journal) == [1, 2]
    with pytest.raises(StorageFailure):
        await journal.close()
    assert len(disk.synced) == synced


async def test_journal_failing_wakes_every_waiter(open_journal, disk) -> None:
    """All that wait for the flush learn of its failure, and those who wait for room too."""
    journal = await open_journal()
    await append(journal, 1)
    disk.hold()
    refused = []

    async def wait() -> None:
        with pytest.raises(StorageFailure):
            await journal.flush(journal.end)
        refused.append("flush")

    async def wait_for_room() -> None:
        with pytest.raises(StorageFailure):
            await journal.make_room(10_000_000)
        refused.append("room")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(wait)
        nursery.start_soon(wait_for_room)
        await trio.testing.wait_all_tasks_blocked(0.01)
        disk.fail()
        disk.let_go()
    assert sorted(refused) == ["flush", "flush", "room"]


async def test_journal_failing_wakes_those_who_wait_for_room(open_journal, disk) -> None:
    """They are told at once, though the room they wait for is still being made."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.flush(journal.end)
    disk.hold()

    async def fail() -> None:
        while not disk.waiting:  # the room comes first
            await trio.testing.wait_all_tasks_blocked(0.01)
        failpoints.arm({"FAIRLOG_FAILPOINT": "journal.append.after:fail:1"})
        try:
            with pytest.raises(StorageFailure, match="writing a frame failed"):
                journal.append(1, [], timestamp_ms=0)
        finally:
            failpoints.arm({})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail)
        with pytest.raises(StorageFailure, match="writing a frame failed"):
            await journal.make_room(10_000_000)
        assert disk.waiting
        disk.let_go()


@pytest.mark.parametrize(
    "name",
    [
        "journal.append.after",
        "journal.flush.before",
        "journal.flush.after",
        "journal.make_room.after",
        "journal.roll.before_seal",
        "journal.roll.before_publish",
        "journal.roll.after_publish",
    ],
)
async def test_journal_failing_at_any_point_keeps_what_was_durable(open_journal, name: str) -> None:
    """Wherever the disk breaks, a restart finds all that a flush returned for, and only what was appended."""
    journal = await open_journal(segment_bytes_max=64 * 1024)
    await append(journal, 0)
    await journal.flush(journal.end)
    durable = 0
    failpoints.arm({"FAIRLOG_FAILPOINT": f"{name}:fail:1"})
    try:
        for number in range(1, 200):
            await append(journal, number)
            if number % 5 == 0:
                await journal.flush(journal.end)
                durable = number
        pytest.fail(f"{name} was never reached")
    except StorageFailure:
        assert journal.failed is not None
    finally:
        failpoints.arm({})
    with pytest.raises(StorageFailure):
        await journal.close()
    journal = await open_journal(segment_bytes_max=64 * 1024)
    found = numbers(journal)
    assert found == list(range(len(found)))
    assert len(found) > durable
    await append(journal, len(found))
    await journal.flush(journal.end)
    await journal.close()


async def test_journal_that_cannot_begin_says_so(open_journal, disk) -> None:
    """Neither a spare that cannot be made nor a segment that cannot be flushed is taken for begun."""
    journal = await open_journal()
    disk.fail()
    with pytest.raises(StorageFailure):
        await journal.begin()


async def test_journal_payload_damaged_on_disk_names_file_and_byte(open_journal, tmp_path) -> None:
    """Damage found while reading is CorruptStorage with the place."""
    journal = await open_journal()
    position, frame_bytes = await append(journal, 1)
    position, frame_bytes = await append(journal, 2)
    await journal.flush(journal.end)
    segment = tmp_path / "j" / f"{0:020}.journal"
    with segment.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + position + 100)
        file.write(b"damage")
    where = rf"{segment.name}: byte {SEGMENT_HEADER_BYTES + position} \(journal position {position}\)"
    with pytest.raises(CorruptStorage, match=where):
        journal.read_payload(position, frame_bytes)
    with pytest.raises(CorruptStorage, match=where):
        numbers(journal)
    with pytest.raises(CorruptStorage):
        journal.read_payload(JournalPosition(position + 8), 100)
