"""The lossy disk loses only what a power cut could lose, and does lose it."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.lossy_disk import Ledger, lose_unsynced, owed


@pytest.fixture
def disk(tmp_path: Path) -> tuple[Ledger, int, Path]:
    """A ledger, and a journal segment of 4 KiB of zeros with its descriptor."""
    path = tmp_path / "data" / "00000000000000000000.journal"
    path.parent.mkdir()
    path.write_bytes(bytes(4096))
    return Ledger(tmp_path / "ledger"), os.open(path, os.O_RDWR), path


def test_lossy_disk_keeps_what_was_flushed(disk: tuple[Ledger, int, Path], tmp_path: Path) -> None:
    """Bytes written before an fdatasync that returned are never lost."""
    ledger, fd, path = disk
    ledger.pwritev(fd, [b"durable", b" and kept"], 0)
    ledger.sync(os.fdatasync, fd)
    assert owed(tmp_path / "ledger") == []
    assert lose_unsynced(tmp_path / "data", tmp_path / "ledger", random.Random(1)) == 0
    assert path.read_bytes()[:16] == b"durable and kept"
    os.close(fd)


def test_lossy_disk_loses_unflushed_sectors_one_by_one(disk: tuple[Ledger, int, Path], tmp_path: Path) -> None:
    """Of what was not flushed, some sectors survive and some are zeros again."""
    ledger, fd, path = disk
    ledger.pwrite(fd, b"x" * 4096, 0)
    lost = lose_unsynced(tmp_path / "data", tmp_path / "ledger", random.Random(1))
    sectors = [path.read_bytes()[start : start + 512] for start in range(0, 4096, 512)]
    assert set(sectors) == {b"x" * 512, bytes(512)}
    assert lost == sum(sector == bytes(512) for sector in sectors) * 512
    os.close(fd)


def test_lossy_disk_gives_back_what_was_overwritten(disk: tuple[Ledger, int, Path], tmp_path: Path) -> None:
    """A lost sector has its old content, not zeros."""
    ledger, fd, path = disk
    ledger.pwrite(fd, b"old" * 100, 0)
    ledger.sync(os.fdatasync, fd)
    ledger.pwrite(fd, b"new" * 100, 0)
    rng = random.Random(0)
    rng.random = lambda: 0.0  # type: ignore[method-assign]
    lose_unsynced(tmp_path / "data", tmp_path / "ledger", rng)
    assert path.read_bytes()[:300] == b"old" * 100
    os.close(fd)


def test_lossy_disk_owes_what_was_written_while_a_flush_ran(disk: tuple[Ledger, int, Path], tmp_path: Path) -> None:
    """A flush answers for what was written before it began, and for no more; two may overlap."""
    ledger, fd, _path = disk
    ledger.pwrite(fd, b"first", 0)

    def outer(descriptor: int) -> None:
        ledger.pwrite(descriptor, b"second", 512)
        ledger.sync(lambda inner: ledger.pwrite(inner, b"third", 1024), descriptor)

    ledger.sync(outer, fd)
    assert [each.offset for each in owed(tmp_path / "ledger")] == [1024]
    os.close(fd)


def test_lossy_disk_forgets_the_debts_of_a_deleted_file(disk: tuple[Ledger, int, Path], tmp_path: Path) -> None:
    """The file that gets the inode number next inherits nothing."""
    ledger, fd, path = disk
    ledger.pwrite(fd, b"x" * 100, 0)
    ledger.unlink(path)
    assert owed(tmp_path / "ledger") == []
    os.close(fd)


def test_lossy_disk_looks_at_journals_only(tmp_path: Path) -> None:
    """Other files are none of its business."""
    ledger = Ledger(tmp_path / "ledger")
    with (tmp_path / "other").open("w+b") as file:
        ledger.pwrite(file.fileno(), b"x", 0)
        ledger.sync(os.fsync, file.fileno())
    assert (tmp_path / "ledger").read_bytes() == b""
