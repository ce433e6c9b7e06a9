"""A journal's segments: rolling, sealing, naming, reclaiming, and positions that are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal.journal import Fsync
from journal.segment import SEGMENT_HEADER_BYTES, JournalKind, segment_name
from journal.segment_file import begin_at
from tests.journals_on_files import PAYLOAD, append, numbers


@pytest.mark.parametrize("advanced", [False, True])
async def test_journal_without_frames_in_its_last_segment_changes_its_setting_in_place(
    open_journal, tmp_path, advanced: bool
) -> None:
    """The header says the new setting; position, name and joint are as they were, also after a restart."""
    journal = await open_journal()
    await append(journal, 1)
    if advanced:
        await journal.advance(JournalPosition(journal.end + 800))
    else:
        await journal.roll()
        await journal.flush(journal.end)
    end = journal.end
    await journal.close()
    names = sorted((tmp_path / "j").iterdir())
    for fsync in (Fsync.NEVER, Fsync.COMMIT):
        journal = await open_journal(fsync=fsync)
        assert journal.begun_with is not fsync
        await journal.begin_under_present_setting()
        await journal.close()
        journal = await open_journal(fsync=fsync)
        assert (journal.begun_with, journal.end, numbers(journal)) == (fsync, end, [1])
        assert sorted((tmp_path / "j").iterdir()) == names
    await append(journal, 2)
    assert numbers(journal) == [1, 2]


@pytest.mark.parametrize("torn", range(0, SEGMENT_HEADER_BYTES, 3))
async def test_journal_whose_empty_segment_lost_its_header_while_it_changed_goes_on(
    open_journal, tmp_path, torn: int
) -> None:
    """A crash in the rewriting leaves any mixture of the two headers: whole, or before zeros."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.roll()
    await journal.flush(journal.end)
    end = journal.end
    await journal.close()
    last = max((tmp_path / "j").glob("*.journal"))
    before = last.read_bytes()
    journal = await open_journal(fsync=Fsync.NEVER)
    await journal.begin_under_present_setting()
    after = last.read_bytes()
    last.write_bytes(before[:torn] + after[torn:])
    journal = await open_journal(fsync=Fsync.NEVER)
    assert (journal.end, numbers(journal)) == (end, [1])
    await append(journal, 2)
    assert numbers(journal) == [1, 2]


async def test_journal_that_cannot_change_its_setting_has_failed(open_journal, disk) -> None:
    """The frames that would follow were promised something else."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.roll()
    await journal.close()
    journal = await open_journal(fsync=Fsync.NEVER)
    disk.fail()
    with pytest.raises(StorageFailure, match="beginning a segment again"):
        await journal.begin_under_present_setting()
    assert journal.failed is not None


async def test_journal_rolls_through_segments_and_reads_across_them(open_journal, tmp_path) -> None:
    """Frames go on from one segment to the next; all are found again, now and after a restart."""
    journal = await open_journal(segment_bytes_max=64 * 1024)
    places = []
    for number in range(300):
        places.append(await append(journal, number))
        if number % 50 == 0:
            await journal.flush(journal.end)
    await journal.flush(journal.end)
    segments = sorted((tmp_path / "j").glob("*.journal"))
    assert len(segments) >= 5
    assert all(segment.stat().st_size <= 64 * 1024 for segment in segments)
    assert numbers(journal) == list(range(300))
    assert all(journal.read_payload(*place) == PAYLOAD for place in places)
    await journal.close()
    assert [path.suffix for path in (tmp_path / "j").iterdir()] == [".journal"] * len(segments)
    journal = await open_journal(segment_bytes_max=64 * 1024)
    assert numbers(journal, places[123][0]) == list(range(123, 300))
    assert journal.read_payload(*places[200]) == PAYLOAD


async def test_journal_seals_the_full_segment_before_it_names_the_next(open_journal, disk, tmp_path) -> None:
    """The order on disk is: the old segment synced, the new one synced, the new one named."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.flush(journal.end)
    del disk.synced[:]
    base = await disk.hold_at_roll(journal)
    await append(journal, 2)
    with trio.fail_after(10):
        while not disk.waiting:
            await trio.testing.wait_all_tasks_blocked(0.01)
    assert sorted(path.name for path in (tmp_path / "j").glob("*.journal")) == [f"{0:020}.journal"]
    disk.let_go()
    await journal.flush(journal.end)
    assert (tmp_path / "j" / f"{base:020}.journal").exists()
    names = [Path(name).name for name in disk.synced if "spare" in name or "journal" in name]
    assert names.index(f"{0:020}.journal") < len(names) - 1 - names[::-1].index("spare-2.new")


async def test_journal_rolled_while_empty_stays(open_journal, tmp_path) -> None:
    """Rolling twice does not make empty segments."""
    journal = await open_journal()
    await append(journal, 1)
    assert await journal.roll() == journal.end
    assert await journal.roll() == journal.end
    await journal.close()
    assert len(list((tmp_path / "j").glob("*.journal"))) == 2


async def test_journal_reclaims_whole_segments_only_and_never_the_last(open_journal, tmp_path) -> None:
    """Segments go when they end at or before the position; the one that contains it stays, and so does the last."""
    journal = await open_journal()
    bases = []
    for number in range(4):
        bases.append(await journal.roll())
        await append(journal, number)
    await journal.sync()
    await journal.reclaim(JournalPosition(bases[2] - 8))
    assert journal.start == bases[1]
    await journal.reclaim(bases[2])
    assert journal.start == bases[2]
    await journal.reclaim(journal.end)
    assert journal.start == bases[3]
    assert numbers(journal) == [3]
    with pytest.raises(CorruptStorage, match="Segments are missing"):
        list(journal.frames(bases[0]))
    with pytest.raises(CorruptStorage, match="before the journal's start"):
        journal.read_payload(bases[0], 40)
    await journal.close()
    journal = await open_journal()
    assert (journal.start, numbers(journal)) == (bases[3], [3])


@pytest.mark.parametrize("rolled", [True, False], ids=["rolled", "restored"])
@pytest.mark.parametrize("named", [True, False], ids=["named before", "named with it"])
async def test_segment_that_replaced_an_empty_one_is_not_reclaimed_in_its_place(
    open_journal, tmp_path, rolled: bool, named: bool
) -> None:
    """A frame that is larger than a segment follows in one of its own, which has the empty one's position and name."""
    large = bytes(2**18)
    if rolled:
        journal = await open_journal(segment_bytes_max=2**16)
        await append(journal, 1)
        base = await journal.roll()
        if named:
            await journal.sync()
    else:
        begin_at(tmp_path / "j", JournalKind.LOCAL, Fsync.COMMIT, base := JournalPosition(800))
        journal = await open_journal(segment_bytes_max=2**16)
    await append(journal, 2, large)
    await journal.sync()
    await journal.reclaim(base)
    assert (journal.start, numbers(journal)) == (base, [2])
    assert [path.name for path in (tmp_path / "j").glob("*.journal")] == [segment_name(base)]
    await journal.roll()
    await append(journal, 3)
    await journal.sync()
    await journal.reclaim(journal.end)
    assert numbers(journal) == [3]
    await journal.close()
    assert numbers(await open_journal()) == [3]


async def test_journal_advanced_never_uses_the_skipped_positions(open_journal) -> None:
    """After a loss of the tail the journal goes on behind what others remember, and a restart finds it whole."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.advance(JournalPosition(100))
    assert journal.end > 1000
    await journal.advance(JournalPosition(999_997))
    assert journal.end == journal.durable == 1_000_000
    position, _ = await append(journal, 2)
    assert position == 1_000_000
    await journal.close()
    journal = await open_journal()
    assert numbers(journal) == [1, 2]
    assert numbers(journal, JournalPosition(500_000)) == [2]


async def test_journal_advanced_while_empty_begins_there(open_journal) -> None:
    """A journal that lost everything begins at the position that it is moved to."""
    journal = await open_journal()
    await journal.advance(JournalPosition(4096))
    await append(journal, 1)
    await journal.close()
    journal = await open_journal()
    assert (journal.start, numbers(journal)) == (4096, [1])


async def test_journal_read_in_a_thread_while_rolling_and_reclaiming(open_journal) -> None:
    """The copier's thread reads what is durable while the loop seals, renames and deletes."""
    journal = await open_journal(segment_bytes_max=64 * 1024)
    for number in range(400):
        place = await append(journal, number)
        await journal.flush(journal.end)
        assert await trio.to_thread.run_sync(journal.read_payload, *place) == PAYLOAD
        if number % 100 == 99:
            await journal.reclaim(place[0])
    await journal.close()
