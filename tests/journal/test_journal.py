"""A journal over real files: appending, reading, closing and opening again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import JournalPosition, StorageFailure
from journal.frame import ENVELOPE_BYTES
from journal.journal import Fsync, Journal
from journal.segment import SEGMENT_HEADER_BYTES, decode_close_mark_untrusted
from journal.segment_file import SegmentFile
from tests.journals_on_files import PAYLOAD, append, numbers


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


async def test_journal_frames_larger_than_the_reading_window_are_read(open_journal) -> None:
    """Frames of every size up to beyond a segment's limit come back, in a row and alone."""
    journal = await open_journal(segment_bytes_max=512 * 1024)
    sizes = [10, 262_100, 1_000_000, 0, 300_000, 2_000_000, 1]
    places = [await append(journal, number, b"z" * size) for number, size in enumerate(sizes)]
    await journal.flush(journal.end)
    assert [frame.payload_bytes for frame in journal.frames(JournalPosition(0))] == sizes
    assert [len(journal.read_payload(*place)) for place in places] == sizes
    await journal.close()
