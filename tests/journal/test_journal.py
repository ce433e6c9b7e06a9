"""A journal over real files: appending, flushing, rolling, reading, failing, closing."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal import failpoints
from journal.frame import ENVELOPE_BYTES
from journal.journal import Fsync, Journal, NoFiles, NoRoom
from journal.segment import SEGMENT_HEADER_BYTES, decode_close_mark_untrusted
from journal.segment_file import SegmentFile

PAYLOAD = b"p" * 1000


async def append(journal: Journal, number: int, payload: bytes = PAYLOAD) -> tuple[JournalPosition, int]:
    """Position and frame_bytes of one more frame, with room made as the leaders make it."""
    if not journal.has_room(len(payload)):
        await journal.make_room(len(payload))
    position = journal.append(5, [number], [payload], timestamp_ms=0)
    return position, journal.end - position


def numbers(journal: Journal, start: JournalPosition | None = None) -> list[object]:
    return [frame.header[0] for frame in journal.frames(journal.start if start is None else start)]


def open_files(directory: Path) -> int:
    links = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{entry}"))
        except FileNotFoundError:
            continue
    return sum(link.startswith(str(directory)) for link in links)


async def test_journal_never_written_leaves_nothing_on_disk(open_journal, tmp_path) -> None:
    """An empty journal opens, reads and closes without a directory, a file or an fd."""
    journal = await open_journal()
    assert (journal.start, journal.end, journal.durable) == (0, 0, 0)
    assert not journal.has_room(1)
    assert list(journal.frames(JournalPosition(0))) == []
    await journal.close()
    assert list(tmp_path.iterdir()) == []


async def test_journal_appended_frames_are_read_back(open_journal) -> None:
    """Frames come back in order with their fields; a payload is read by its frame's place; from any frame on."""
    journal = await open_journal()
    places = [await append(journal, number, bytes([number]) * number) for number in range(50)]
    frames = list(journal.frames(JournalPosition(0)))
    assert [(frame.position, frame.end - frame.position) for frame in frames] == places
    assert [(frame.kind, frame.leader_epoch, frame.header) for frame in frames] == [(5, 7, [n]) for n in range(50)]
    assert [frame.payload_bytes for frame in frames] == list(range(50))
    for number, (position, frame_bytes) in enumerate(places):
        payload = journal.read_payload(position, frame_bytes)
        assert isinstance(payload, bytearray)
        assert payload == bytes([number]) * number
    assert numbers(journal, places[30][0]) == list(range(30, 50))


async def test_journal_closed_and_opened_goes_on(open_journal, tmp_path) -> None:
    """After a clean close nothing is cut, all is durable, and positions go on where they were."""
    end = JournalPosition(0)
    for life in range(3):
        journal = await open_journal()
        assert journal.durable == journal.end == end
        assert numbers(journal) == list(range(life))
        await append(journal, life)
        end = journal.end
        await journal.close()
        assert open_files(tmp_path) == 0


async def test_journal_closed_without_news_does_not_grow(open_journal, disk) -> None:
    """Opening and closing again writes nothing, not even the close mark."""
    journal = await open_journal()
    await append(journal, 1)
    end = journal.end
    await journal.close()
    del disk.synced[:]
    for _ in range(2):
        journal = await open_journal()
        assert journal.end == end
        disk.synced.clear()
        await journal.close()
        await journal.close()
        assert disk.synced == []


async def test_journal_closed_while_a_segment_is_being_sealed_is_marked_in_the_last_one(
    open_journal, disk, tmp_path, monkeypatch
) -> None:
    """The mark is written when all else is on disk and has its name, and its sync is one that began after it."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.sync()
    base = await disk.hold_at_roll(journal)
    await append(journal, 2)
    synced_before: list[str] = []
    real = SegmentFile.mark_closed

    def mark_closed(segment: SegmentFile) -> None:
        assert (segment.base, segment.end, segment.published) == (base, journal.end, True)
        synced_before.extend(disk.synced)
        real(segment)

    monkeypatch.setattr(SegmentFile, "mark_closed", mark_closed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.close)
        await trio.testing.wait_all_tasks_blocked(0.01)
        disk.let_go()
    last = tmp_path / "j" / f"{base:020}.journal"
    assert [Path(name).suffix for name in synced_before[-2:]] == [".journal", ".new"], "the full one, then the last one"
    assert disk.synced[len(synced_before) :] == [str(last)]
    salt = int.from_bytes(last.read_bytes()[12:16], "little")
    assert decode_close_mark_untrusted(last.read_bytes(), base=base, salt=salt) == journal.end


async def test_journal_whose_close_mark_is_not_synced_is_not_closed_well(open_journal, disk) -> None:
    """Whoever is told that it was closed can rely on the mark."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.sync()
    disk.fail()
    with pytest.raises(StorageFailure):
        await journal.close()


REPLICATED = [(kind, number) for number, kind in enumerate([1, 2, 3, 255, 1, 2])]


async def replicated(journal: Journal, frames: Sequence[tuple[int, int]]) -> None:
    for kind, number in frames:
        await journal.make_room(1000)
        journal.append(kind, [number], [PAYLOAD[:number]], timestamp_ms=number)


def bytes_of(journal: Journal, directory: Path) -> list[tuple[int, bytes]]:
    """The replicated part of every frame, at its position."""
    found: list[tuple[int, bytes]] = []
    for frame in journal.frames(journal.start):
        path = max(path for path in directory.glob("*.journal") if int(path.name[:20]) <= frame.position)
        at = SEGMENT_HEADER_BYTES + frame.position - int(path.name[:20])
        found.append((frame.position, path.read_bytes()[at : at + frame.end - frame.position][ENVELOPE_BYTES:]))
    return found


async def test_journal_positions_and_bytes_depend_on_what_is_appended_alone(open_journal, tmp_path) -> None:
    """Two nodes write the same frames; one of them syncs, rolls, closes and changes its setting in between."""
    calm = await open_journal("calm")
    await replicated(calm, REPLICATED)
    await calm.flush(calm.end)
    journal = await open_journal("busy")
    for number, (frame, fsync) in enumerate(zip(REPLICATED, [*Fsync, *Fsync], strict=True)):
        await replicated(journal, [frame])
        await journal.sync()
        if number % 2:
            await journal.roll()
        await journal.close()
        journal = await open_journal("busy", fsync=fsync)
        await journal.begin_under_present_setting()
    assert len(list((tmp_path / "busy").glob("*.journal"))) > 3
    assert bytes_of(journal, tmp_path / "busy") == bytes_of(calm, tmp_path / "calm")
    assert journal.end == calm.end


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


async def test_journal_rolled_while_empty_stays(open_journal) -> None:
    """Rolling twice does not make empty segments."""
    journal = await open_journal()
    await append(journal, 1)
    assert await journal.roll() == journal.end
    assert await journal.roll() == journal.end
    assert len(journal._segments) == 2
    await journal.sync()


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


async def test_journal_closed_refuses_and_lets_go_of_its_files(open_journal, tmp_path) -> None:
    """After close nothing is appended, and no fd is left, whatever was read before."""
    journal = await open_journal()
    place = await append(journal, 1)
    await journal.roll()
    await append(journal, 2)
    await journal.flush(journal.end)
    assert journal.read_payload(*place) == PAYLOAD
    await journal.close()
    assert open_files(tmp_path) == 0
    with pytest.raises(StorageFailure, match="closed"):
        journal.append(1, [], timestamp_ms=0)
    with pytest.raises(StorageFailure, match="closed"):
        await journal.make_room(1)


async def test_journal_reopened_opens_no_file_before_the_first_append(open_journal, tmp_path) -> None:
    """A thousand idle journals cost no file descriptors; one that is written to costs one."""
    journal = await open_journal()
    await append(journal, 1)
    await journal.close()
    journal = await open_journal()
    assert open_files(tmp_path) == 0
    await append(journal, 2)
    assert open_files(tmp_path) == 1


async def test_journal_begun_is_on_disk_before_its_first_frame(open_journal, tmp_path) -> None:
    """It can be told from one that was lost; and a journal without frames is closed without one."""
    journal = await open_journal()
    assert not journal.begun
    for _ in range(2):
        await journal.begin()
        assert journal.begun
        assert [path.name for path in (tmp_path / "j").iterdir()] == [f"{0:020}.journal"]
        await journal.close()
        journal = await open_journal()
        assert (journal.begun, journal.end) == (True, 0)
    await append(journal, 1)
    assert numbers(journal) == [1]


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


async def test_journal_frames_larger_than_the_reading_window_are_read(open_journal) -> None:
    """Frames of every size up to beyond a segment's limit come back, in a row and alone."""
    journal = await open_journal(segment_bytes_max=512 * 1024)
    sizes = [10, 262_100, 1_000_000, 0, 300_000, 2_000_000, 1]
    places = [await append(journal, number, b"z" * size) for number, size in enumerate(sizes)]
    await journal.flush(journal.end)
    assert [frame.payload_bytes for frame in journal.frames(JournalPosition(0))] == sizes
    assert [len(journal.read_payload(*place)) for place in places] == sizes
    await journal.close()


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
