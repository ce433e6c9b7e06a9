"""What is done otherwise for large frames: their room is allocated, and their memory is given back."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlog_types import JournalPosition, StorageFailure
from journal.frame import LARGE_FRAME_BYTES
from journal.journal import Fsync, Journal, NoRoom
from journal.segment import SEGMENT_HEADER_BYTES
from journal.segment_file import allocate

SMALL, LARGE = bytes(range(256)) * 4, bytes(range(256)) * (LARGE_FRAME_BYTES // 256)
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CANNOT = [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL]


@dataclass
class FakeFileSystem:
    """Notes what is asked of it, and may be unable to allocate, or refuse."""

    allocated: list[tuple[int, int]] = field(default_factory=list)
    let_go: list[tuple[int, int]] = field(default_factory=list)
    error: int | None = None
    _allocate: Callable[[int, int, int], None] = os.posix_fallocate
    _advise: Callable[[int, int, int, int], None] = os.posix_fadvise

    def posix_fallocate(self, fd: int, offset: int, count: int) -> None:
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        self.allocated.append((offset, count))
        self._allocate(fd, offset, count)

    def posix_fadvise(self, fd: int, offset: int, count: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        self.let_go.append((offset, count))
        self._advise(fd, offset, count, advice)


@pytest.fixture
def file_system(monkeypatch) -> FakeFileSystem:
    fake = FakeFileSystem()
    monkeypatch.setattr(os, "posix_fallocate", fake.posix_fallocate)
    monkeypatch.setattr(os, "posix_fadvise", fake.posix_fadvise)
    return fake


async def append(journal: Journal, number: int, payload: bytes) -> tuple[JournalPosition, int]:
    if not journal.has_room(len(payload)):
        await journal.make_room(len(payload))
    position = journal.append(5, [number], [payload], timestamp_ms=0)
    return position, journal.end - position


def numbers(journal: Journal) -> list[object]:
    return [frame.header[0] for frame in journal.frames(journal.start)]


def segment(directory: Path) -> Path:
    (path,) = directory.glob("*.journal")
    return path


async def test_room_for_small_frames_is_not_allocated(open_journal, file_system) -> None:
    """What is made beforehand, in the background and for one who waits: all of it is zeros that are written."""
    journal = await open_journal()
    for number in range(1000):
        await append(journal, number, SMALL)
    await journal.close()
    assert file_system.allocated == []


async def test_room_for_large_frames_is_allocated_in_segments_and_spares(open_journal, file_system) -> None:
    """Also what is made in the background, of which nobody has asked; the frames are found again."""
    journal = await open_journal(segment_bytes_max=4 * 2**20)
    for number in range(40):
        await append(journal, number, LARGE)
    await journal.close()
    assert sum(count for _, count in file_system.allocated) >= 40 * len(LARGE)
    assert any(offset == 0 for offset, _ in file_system.allocated)
    assert any(offset > 0 for offset, _ in file_system.allocated)
    journal = await open_journal()
    assert numbers(journal) == list(range(40))


async def test_room_is_made_for_the_frames_that_are_being_appended(open_journal, file_system) -> None:
    """When large frames are followed by small ones, the room that is made next is zeros again; and back."""
    journal = await open_journal()
    await append(journal, 0, LARGE)
    assert file_system.allocated
    while journal.has_room(len(SMALL)):
        journal.append(5, [1], [SMALL], timestamp_ms=0)
    await journal.make_room(len(SMALL))  # the growth that a small frame has begun
    del file_system.allocated[:]
    for _ in range(1000):
        await append(journal, 2, SMALL)
    assert file_system.allocated == []
    for _ in range(20):
        await append(journal, 3, LARGE)
    assert file_system.allocated


@pytest.mark.parametrize("payload", [SMALL, LARGE], ids=["zeros", "allocated"])
async def test_room_of_either_kind_is_bought_and_reads_as_zeros(open_journal, tmp_path, payload) -> None:
    """Once there is room the file is as long, the disk has given its blocks, and behind the end there are zeros."""
    journal = await open_journal()
    await append(journal, 1, payload)
    await journal.flush(journal.end)
    await journal.make_room(len(payload))
    path = segment(tmp_path / "j")
    content, size = path.read_bytes(), path.stat().st_size
    assert size >= SEGMENT_HEADER_BYTES + journal.end + len(payload)
    assert path.stat().st_blocks * 512 >= size
    assert not any(content[SEGMENT_HEADER_BYTES + journal.end :])


@pytest.mark.parametrize("error", CANNOT)
async def test_room_where_nothing_can_be_allocated_is_zeros(open_journal, file_system, tmp_path, error: int) -> None:
    """A file system without fallocate, or a sandbox, costs the second write and nothing else."""
    file_system.error = error
    journal = await open_journal()
    for number in range(20):
        await append(journal, number, LARGE)
    await journal.flush(journal.end)
    path = segment(tmp_path / "j")
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    await journal.close()
    journal = await open_journal()
    assert numbers(journal) == list(range(20))


def test_allocate_overwrites_nothing_before_its_range(file_system, tmp_path) -> None:
    """Neither the blocks nor the zeros in their place touch what is in the file."""
    for error in (None, errno.EOPNOTSUPP):
        file_system.error = error
        path = tmp_path / str(error)
        path.write_bytes(b"x" * 5000)
        with path.open("r+b") as file:
            allocate(file.fileno(), 5000, 3000)
        assert path.read_bytes() == b"x" * 5000 + bytes(3000)


async def test_room_that_a_full_disk_cannot_allocate_is_refused(open_journal, file_system) -> None:
    """ENOSPC is told to whoever asks for room; nothing has failed, small frames are taken, and it passes."""
    journal = await open_journal()
    await append(journal, 1, LARGE)
    await journal.flush(journal.end)
    file_system.error = errno.ENOSPC
    with pytest.raises(NoRoom, match="Free some space"):
        await journal.make_room(10 * len(LARGE))
    assert journal.failed is None
    journal.append(5, [2], timestamp_ms=0)
    file_system.error = None
    await append(journal, 3, LARGE * 10)
    await journal.flush(journal.end)
    assert numbers(journal) == [1, 2, 3]


async def test_room_whose_allocation_breaks_fails_the_journal(open_journal, file_system) -> None:
    """An error of the disk is its failure, and not a file system that cannot allocate."""
    file_system.error = errno.EIO
    journal = await open_journal()
    with pytest.raises(StorageFailure, match="making room failed"):
        await journal.make_room(len(LARGE))
    assert journal.failed is not None


async def test_large_frames_torn_by_a_power_cut_are_cut_and_the_room_serves_on(open_journal, tmp_path) -> None:
    """In allocated room, too, sectors that were not written are zeros: what was flushed stays, the torn frame goes."""
    journal = await open_journal()
    for number in range(2):
        await append(journal, number, LARGE)
    await journal.flush(journal.end)
    torn_at = journal.end
    await append(journal, 2, LARGE)
    torn_end = journal.end
    content = bytearray(segment(tmp_path / "j").read_bytes())
    for sector in range((SEGMENT_HEADER_BYTES + torn_at) // 512 + 1, torn_end // 512, 2):
        content[sector * 512 : sector * 512 + 512] = bytes(512)
    (tmp_path / "crashed").mkdir()
    (tmp_path / "crashed" / segment(tmp_path / "j").name).write_bytes(content)
    crashed = await open_journal("crashed")
    assert (numbers(crashed), crashed.end) == ([0, 1], torn_at)
    await append(crashed, 3, LARGE)
    await crashed.close()
    assert numbers(await open_journal("crashed")) == [0, 1, 3]


async def test_frame_that_is_large_and_on_disk_gives_its_memory_back_when_copied(
    open_journal, file_system, tmp_path
) -> None:
    """The whole pages of the frame, and no others, in sealed segments, too; it can be read again."""
    journal = await open_journal(segment_bytes_max=2**20)
    places = [await append(journal, number, LARGE) for number in range(6)]
    await journal.flush(journal.end)
    bases = [int(path.stem) for path in (tmp_path / "j").glob("*.journal")]
    for position, frame_bytes in places:
        assert journal.read_payload(position, frame_bytes) == LARGE
        journal.let_go(position, frame_bytes)
        ((offset, count),) = file_system.let_go
        start = SEGMENT_HEADER_BYTES + position - max(base for base in bases if base <= position)
        assert (offset % PAGE_BYTES, count % PAGE_BYTES) == (0, 0)
        assert start <= offset < start + PAGE_BYTES
        assert start + frame_bytes - PAGE_BYTES < offset + count <= start + frame_bytes
        file_system.let_go.clear()
    assert journal.read_payload(*places[0]) == LARGE


async def test_frame_that_is_small_or_not_on_disk_stays_in_memory(open_journal, file_system) -> None:
    """A call for each small frame would cost more than it gives, and pages that are dirty would be written out."""
    journal = await open_journal()
    small = await append(journal, 1, LARGE[: LARGE_FRAME_BYTES // 2])
    await journal.flush(journal.end)
    journal.let_go(*small)
    journal.let_go(*await append(journal, 2, LARGE))
    journal = await open_journal("unsynced", fsync=Fsync.NEVER)
    journal.let_go(*await append(journal, 1, LARGE))
    assert file_system.let_go == []


async def test_frame_whose_file_is_not_open_any_more_is_let_go_of_without_a_word(open_journal, file_system) -> None:
    """It is a hint: for its sake no file is opened, and a journal that was closed or deleted is not asked."""
    journal = await open_journal()
    place = await append(journal, 1, LARGE)
    await journal.close()
    journal.let_go(*place)
    reopened = await open_journal()
    reopened.let_go(*place)
    assert file_system.let_go == []
