"""The fault model of the simulated disk: what was synced is never lost, and all else can be, in every way."""

from __future__ import annotations

from random import Random

from tests.simulation.disk import PAGE_BYTES, SECTOR_BYTES, Directory, Disk, File

SEEDS = range(150)


def new_disk() -> Disk:
    disk = Disk()
    disk.make_root("/d")
    return disk


def new_file(disk: Disk, content: bytes = b"") -> File:
    """A file whose entry and content are on disk."""
    file = File()
    disk.create("/d/f", file)
    disk.write(file, 0, content)
    disk.end_sync(file, disk.begin_sync())
    disk.sync_directory("/d", disk.begin_sync())
    return file


def after_cuts(disk: Disk, path: str = "/d/f") -> set[bytes | None]:
    """What the file may hold after a power cut; None if it may be gone."""
    found: set[bytes | None] = set()
    for seed in SEEDS:
        node = disk.power_cut(Random(seed))[0].nodes.get(path)
        assert not isinstance(node, Directory)
        found.add(None if node is None else bytes(node.cached))
    return found


def test_disk_write_that_was_synced_survives_every_power_cut() -> None:
    """A sync that returned has put on disk all that was written before it began."""
    disk = new_disk()
    file = new_file(disk, b"old!")
    disk.write(file, 0, b"new!")
    disk.end_sync(file, disk.begin_sync())
    assert after_cuts(disk) == {b"new!"}


def test_disk_write_after_the_sync_began_may_be_lost() -> None:
    """What is written while a sync is under way is not covered by it."""
    disk = new_disk()
    file = new_file(disk, b"old!")
    begun = disk.begin_sync()
    disk.write(file, 0, b"new!")
    disk.end_sync(file, begun)
    assert {b"old!", b"new!"} <= after_cuts(disk)


def test_disk_unsynced_sectors_are_lost_each_for_itself() -> None:
    """Of a write over two sectors either may be there without the other, in whatever order they were written."""
    disk = new_disk()
    file = new_file(disk, bytes(2 * SECTOR_BYTES))
    disk.write(file, 0, b"a" * SECTOR_BYTES + b"b" * SECTOR_BYTES)
    found = {content.rstrip(b"\0") if content[:1] == b"a" else content for content in after_cuts(disk) if content}
    assert b"a" * SECTOR_BYTES in found, "the first alone"
    assert bytes(SECTOR_BYTES) + b"b" * SECTOR_BYTES in found, "the second alone"


def test_disk_write_is_torn_at_any_byte() -> None:
    """A part of a write may be there, of any length."""
    disk = new_disk()
    file = new_file(disk, bytes(20))
    disk.write(file, 0, b"x" * 20)
    assert len(after_cuts(disk)) > 10


def test_disk_size_of_an_unsynced_growth_is_any() -> None:
    """A file that grew may be as short as it was, or as long as it became, with zeros where nothing came."""
    disk = new_disk()
    file = new_file(disk, b"head")
    disk.write(file, 4, b"tail" * PAGE_BYTES)
    sizes = {len(content) for content in after_cuts(disk) if content is not None}
    assert min(sizes) == 4
    assert max(sizes) == 4 + 4 * PAGE_BYTES


def test_disk_page_written_back_takes_all_that_the_cache_held() -> None:
    """A later version of a page is never there without the earlier writes that are in it."""
    disk = new_disk()
    file = new_file(disk, bytes(8))
    disk.write(file, 0, b"aa")
    disk.write(file, 4, b"bb")
    assert b"\0\0\0\0bb\0\0" not in after_cuts(disk)


def test_disk_failed_sync_strands_its_pages() -> None:
    """After a sync that failed, the next one says nothing of those pages: they may be lost all the same."""
    disk = new_disk()
    file = new_file(disk, b"old!")
    disk.write(file, 0, b"new!")
    disk.fail_sync(file, disk.begin_sync())
    disk.end_sync(file, disk.begin_sync())
    assert bytes(file.cached) == b"new!"
    assert {b"old!", b"new!"} <= after_cuts(disk)


def test_disk_stranded_page_written_again_is_synced() -> None:
    """Writing to a stranded page makes it dirty as a whole: then a sync covers it."""
    disk = new_disk()
    file = new_file(disk, b"old!")
    disk.write(file, 0, b"new!")
    disk.fail_sync(file, disk.begin_sync())
    disk.write(file, 3, b"?")
    disk.end_sync(file, disk.begin_sync())
    assert after_cuts(disk) == {b"new?"}


def test_disk_file_without_its_directory_synced_may_be_gone() -> None:
    """The sync of a file says nothing of its name."""
    disk = new_disk()
    file = File()
    disk.create("/d/f", file)
    disk.write(file, 0, b"content")
    disk.end_sync(file, disk.begin_sync())
    assert after_cuts(disk) == {None, b"content"}
    disk.sync_directory("/d", disk.begin_sync())
    assert after_cuts(disk) == {b"content"}


def test_disk_rename_moves_as_one() -> None:
    """After a rename the file has the old name or the new one: never both, never none."""
    disk = new_disk()
    new_file(disk, b"content")
    disk.rename("/d/f", "/d/g")
    for seed in SEEDS:
        assert len(disk.power_cut(Random(seed))[0].children("/d")) == 1
    assert None in after_cuts(disk)
    assert None in after_cuts(disk, "/d/g")


def test_disk_unlink_without_a_sync_may_not_have_been() -> None:
    """What was deleted may be back."""
    disk = new_disk()
    new_file(disk, b"content")
    disk.unlink("/d/f")
    assert after_cuts(disk) == {None, b"content"}
