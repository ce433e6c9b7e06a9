"""A journal's room: frames that do not fit, a disk that is full, and a process that can open no more files."""

from __future__ import annotations

import errno
import resource

import pytest

from fairlog_types import JournalPosition, StorageFailure
from journal.journal import Journal, NoFiles, NoRoom
from tests.journals_on_files import PAYLOAD, append, numbers


async def test_journal_append_without_room_is_refused_untouched(open_journal) -> None:
    """A frame that does not fit raises NoRoom and leaves the end where it was; a small decision is given room."""
    journal = await open_journal()
    with pytest.raises(NoRoom):
        journal.append(1, [], [bytes(2000)], timestamp_ms=0)
    assert journal.end == 0
    journal.append(1, ["decision"], timestamp_ms=0)
    with pytest.raises(NoRoom):
        journal.append(1, [], [bytes(100_000)], timestamp_ms=0)
    assert [frame.header for frame in journal.frames(JournalPosition(0))] == [["decision"]]


async def test_journal_in_a_burst_of_decisions_never_refuses_one(open_journal) -> None:
    """Thousands of small frames in one step of the loop pass the reserve, the segment's end and the next one's."""
    journal = await open_journal(segment_bytes_max=128 * 1024)
    await append(journal, 0)
    for number in range(1, 5000):
        journal.append(1, [number], timestamp_ms=0)
    assert numbers(journal) == list(range(5000))
    await journal.flush(journal.end)
    await journal.close()
    journal = await open_journal()
    assert numbers(journal) == list(range(5000))


async def append_until_refused(journal: Journal, payload: bytes) -> None:
    while True:
        await append(journal, 0, payload)


async def test_journal_on_a_full_disk_still_takes_decisions(open_journal, disk) -> None:
    """Data that asks for room leaves the reserve: hundreds of decisions fit when the disk takes no more zeros."""
    journal = await open_journal()
    await append(journal, 0)
    await journal.flush(journal.end)
    disk.fail(errno.ENOSPC)
    with pytest.raises(NoRoom):
        await append_until_refused(journal, PAYLOAD)
    decisions = [["decision", number] for number in range(200)]
    first = journal.end
    for decision in decisions:
        journal.append(1, decision, timestamp_ms=0)
    with pytest.raises(NoRoom):
        await append_until_refused(journal, b"")
    assert journal.failed is None
    disk.error = None
    await journal.flush(journal.end)
    assert [frame.header for frame in journal.frames(first)] == decisions


async def test_journal_on_a_full_disk_refuses_room_and_goes_on_when_there_is_space(open_journal, disk) -> None:
    """ENOSPC is told to whoever asks for room; nothing has failed, and what fits is still taken."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.flush(journal.end)
    disk.fail(errno.ENOSPC)
    with pytest.raises(NoRoom, match="Free some space"):
        await journal.make_room(1_000_000)
    assert journal.failed is None
    disk.error = None
    journal.append(1, [2], timestamp_ms=0)
    await append(journal, 3, bytes(1_000_000))
    await journal.flush(journal.end)
    assert numbers(journal) == [1, 2, 3]


@pytest.fixture
def no_files_left():
    """Call it, and this process can open no more files; call what it answers, and it can again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def restore() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def forbid():
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        return restore

    yield forbid
    restore()


async def test_journal_without_file_descriptors_refuses_and_goes_on_when_there_are_some(
    open_journal, no_files_left, tmp_path
) -> None:
    """EMFILE is nobody's failure: nothing was written, what fits is still taken, and it passes."""
    small, full, new = [await open_journal(name) for name in ("small", "full", "new")]
    await append(small, 1)
    await append(full, 1)
    await full.roll()
    await full.flush(full.end)
    await full.close()
    full = await open_journal("full")
    some_again = no_files_left()
    for journal in (small, new):
        with pytest.raises(NoFiles, match="Raise the limit of open files"):
            await journal.make_room(1_000_000)
    with pytest.raises(NoFiles):
        new.append(1, ["decision"], timestamp_ms=0)
    with pytest.raises(NoFiles):
        full.append(1, ["decision"], timestamp_ms=0)
    with pytest.raises(NoFiles):
        await open_journal("full")
    small.append(1, [2], timestamp_ms=0)
    await small.flush(small.end)
    some_again()
    for journal in (small, full, new):
        assert journal.failed is None
        await append(journal, 3, bytes(1_000_000))
        await journal.flush(journal.end)
    assert (numbers(small), numbers(full), numbers(new)) == ([1, 2, 3], [1, 3], [3])


async def test_journal_reopened_without_file_descriptors_is_short_of_room(open_journal, no_files_left) -> None:
    """Whether its file can be opened shows when room is asked for, not in the middle of what relies on it."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.close()
    journal = await open_journal()
    some_again = no_files_left()
    assert not journal.has_room(0)
    with pytest.raises(NoFiles):
        await journal.make_room(0)
    some_again()
    await journal.make_room(0)
    no_files_left()
    assert journal.has_room(0)
    journal.append(1, [2], timestamp_ms=0)
    some_again()
    assert numbers(journal) == [1, 2]


async def test_journal_without_file_descriptors_reads_and_reclaims_later(open_journal, no_files_left, tmp_path) -> None:
    """A sealed segment that cannot be opened, and a directory: neither is the disk's failure."""
    journal = await open_journal()
    place = await append(journal, 1)
    base = await journal.roll()
    await append(journal, 2)
    await journal.flush(journal.end)
    some_again = no_files_left()
    with pytest.raises(NoFiles):
        journal.read_payload(*place)
    with pytest.raises(NoFiles):
        await journal.reclaim(base)
    some_again()
    assert journal.read_payload(*place) == PAYLOAD
    await journal.reclaim(base)
    assert journal.start == base
    assert len(list((tmp_path / "j").glob("*.journal"))) == 1


async def test_journal_without_file_descriptors_rolls_into_the_spare_it_has(
    open_journal, no_files_left, disk, tmp_path
) -> None:
    """Once there is a spare, sealing and naming need no file descriptor that could be missing."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.close()
    journal = await open_journal()
    await journal._room.make_spare()
    journal.append(1, [2], timestamp_ms=0)
    some_again = no_files_left()
    await journal.roll()
    journal.append(1, [3], timestamp_ms=0)
    await journal.flush(journal.end)
    some_again()
    assert len(list((tmp_path / "j").glob("*.journal"))) == 2
    assert numbers(journal) == [1, 2, 3]


async def test_journal_room_that_breaks_the_disk_fails_the_journal(open_journal, disk) -> None:
    """Any error but a full disk is the disk's failure, also while room is made."""
    journal = await open_journal()
    disk.fail()
    with pytest.raises(StorageFailure, match="making room failed"):
        await journal.make_room(1000)
    assert journal.failed is not None
