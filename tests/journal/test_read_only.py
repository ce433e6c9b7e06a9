"""A journal opened read-only is what a recovery would make of its files, and no file is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlog_types import CorruptStorage, JournalPosition
from journal.journal import Fsync, Journal, JournalKind
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import SEGMENT_HEADER_BYTES, segment_name
from journal.segment_file import begin_at
from tests.journal.test_reopen import fill, found, overwrite


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def look(directory: Path) -> ReadOnlyJournal:
    """Open it read-only, and see that nothing was changed."""
    before = bytes_of(directory) if directory.exists() else {}
    try:
        return open_read_only(directory, kind=JournalKind.LOCAL)
    finally:
        assert (bytes_of(directory) if directory.exists() else {}) == before


def numbers(opened: ReadOnlyJournal) -> list[object]:
    return [frame.header[0] for frame in opened.frames(opened.start)]


async def assert_as_recovered(opened: ReadOnlyJournal, open_journal, name: str) -> Journal:
    """A recovery of the same files finds the same frames between the same ends."""
    seen = (numbers(opened), opened.start, opened.end)
    journal = await open_journal(name)
    assert seen == (found(journal), journal.start, journal.end)
    return journal


@pytest.fixture
def copied(tmp_path: Path):
    """Copy the files of journal `j` as they lie there now."""

    def copy() -> Path:
        while True:
            try:
                return Path(shutil.copytree(tmp_path / "j", tmp_path / "copied"))
            except shutil.Error:  # a spare segment got its name between listing and copying
                shutil.rmtree(tmp_path / "copied")

    return copy


async def test_read_only_of_several_segments_is_what_recovery_finds(open_journal, copied) -> None:
    """Sealed segments and the last one; payloads can be read back; it was closed in good order."""
    journal = await open_journal()
    for part in range(3):
        await journal.roll()
        positions = await fill(journal, range(part * 10, part * 10 + 10))
    await journal.close()
    opened = look(copied())
    assert opened.closed
    assert opened.torn is None
    assert opened.begun_with is Fsync.COMMIT
    assert len(opened.segments) == 3
    assert opened.read_payload(positions[0], positions[1] - positions[0]) == b"p" * 100
    await assert_as_recovered(opened, open_journal, "copied")


async def test_read_only_of_a_torn_tail_is_what_recovery_keeps(open_journal, copied) -> None:
    """What the next start would cut is left out, and told."""
    journal = await open_journal()
    await fill(journal, range(5))
    torn = await fill(journal, range(5, 9), sync=False)
    segment = copied() / segment_name(JournalPosition(0))
    overwrite(segment, torn[1] + 40, b"torn")
    opened = look(segment.parent)
    assert opened.torn is not None
    assert (opened.torn.file, opened.torn.position) == (segment, torn[1])
    await assert_as_recovered(opened, open_journal, "copied")


async def test_read_only_of_a_segment_without_a_name_is_what_recovery_adopts(
    open_journal, copied, disk, tmp_path
) -> None:
    """Killed while the next segment takes frames and the full one is not sealed: all frames are there."""
    journal = await open_journal()
    await fill(journal, range(5))
    await journal._room.make_spare()
    disk.hold()
    journal._switch(journal.end)
    await fill(journal, range(5, 8), sync=False)
    directory = copied()
    disk.let_go()
    assert any(path.suffix == ".new" for path in directory.iterdir())
    opened = look(directory)
    assert numbers(opened) == list(range(8))
    await assert_as_recovered(opened, open_journal, "copied")


async def test_read_only_of_damage_is_what_recovery_refuses(open_journal, copied) -> None:
    """Both name the file and the byte, with the same words."""
    journal = await open_journal()
    positions = await fill(journal, range(5))
    await fill(journal, range(5, 8), sync=False)
    segment = copied() / segment_name(JournalPosition(0))
    overwrite(segment, positions[2] + 40, b"damage")
    with pytest.raises(CorruptStorage, match=rf"byte {SEGMENT_HEADER_BYTES + positions[2]} ") as seen:
        look(segment.parent)
    with pytest.raises(CorruptStorage) as refused:
        await open_journal("copied")
    assert str(seen.value) == str(refused.value)


async def test_read_only_of_damage_in_a_sealed_segment_is_found_as_it_is_read(open_journal, copied) -> None:
    """Sealed segments are judged by their ends; each frame is checked when it is read."""
    journal = await open_journal()
    positions = await fill(journal, range(5))
    await journal.roll()
    await fill(journal, range(5, 8))
    await journal.close()
    segment = copied() / segment_name(JournalPosition(0))
    overwrite(segment, positions[3] + 40, b"damage")
    opened = look(segment.parent)
    with pytest.raises(CorruptStorage, match=f"journal position {positions[3]}"):
        numbers(opened)


async def test_read_only_of_a_missing_segment_is_refused(open_journal, copied) -> None:
    """A gap between two segments is seen by what the later one says of the earlier one's end."""
    journal = await open_journal()
    for part in range(3):
        await journal.roll()
        await fill(journal, range(part * 10, part * 10 + 10))
    await journal.close()
    directory = copied()
    sorted(directory.iterdir())[1].unlink()
    with pytest.raises(CorruptStorage, match="segment missing or short"):
        look(directory)


async def test_read_only_of_nothing_is_empty(tmp_path: Path) -> None:
    """A log that was never written to has no directory."""
    opened = look(tmp_path / "nothing")
    assert (opened.start, opened.end, numbers(opened)) == (0, 0, [])


async def test_journal_that_begins_behind_0_goes_on_there(open_journal, tmp_path: Path) -> None:
    """`begin_at` makes an empty journal of which a restart takes the next frame at that position; twice is as once."""
    for _ in range(2):
        begin_at(tmp_path / "j", JournalKind.LOCAL, Fsync.COMMIT, JournalPosition(4096))
    opened = look(tmp_path / "j")
    assert (opened.start, opened.end) == (4096, 4096)
    journal = await open_journal()
    assert (journal.start, journal.end, journal.begun_with) == (4096, 4096, Fsync.COMMIT)
    assert (await fill(journal, range(3)))[0] == 4096
    await journal.close()
    assert numbers(look(tmp_path / "j")) == [0, 1, 2]
