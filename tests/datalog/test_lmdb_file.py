"""A cut LMDB file is refused before LMDB maps it, and a whole one never is."""

from __future__ import annotations

import os
import random
from pathlib import Path

import lmdb
import pytest

from datalog.environment import LmdbDataLogs
from datalog.lmdb_file import check_length
from fairlog_types import CorruptStorage, Offset
from tests.datalog.batches import batch
from tests.datalog.behaviour import ORDERS, mark

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
MAP_BYTES = 1 << 28


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """The file of a data log with some batches."""
    logs = LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES, sync=False)
    with logs.write() as writer:
        writer.create(ORDERS)
    for offset in range(40):
        with logs.write() as writer:
            writer.append(ORDERS, Offset(offset), 1, 1000, batch(offset, [1000], value=bytes(5000)))
            writer.put_mark(ORDERS, mark(offset + 1, offset + 1))
    logs.close()
    return tmp_path / "data.mdb"


def cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


def test_length_of_what_was_written_is_good(written: Path) -> None:
    """A file that was closed in good order is opened."""
    check_length(written)


def test_length_of_missing_or_empty_file_is_good(tmp_path: Path) -> None:
    """LMDB makes the file, and a crash right then leaves it empty: there was nothing in it."""
    check_length(tmp_path / "data.mdb")
    (tmp_path / "data.mdb").touch()
    check_length(tmp_path / "data.mdb")
    LmdbDataLogs.open(tmp_path, map_bytes=MAP_BYTES).close()


def test_length_of_cut_file_is_refused_wherever_it_was_cut(written: Path) -> None:
    """From one byte to the last but one, page boundary or not; the message has the file and both sizes."""
    whole = written.stat().st_size
    sizes = {1, 100, 151, 152, PAGE_BYTES, PAGE_BYTES + 151, 2 * PAGE_BYTES, *range(PAGE_BYTES, whole, PAGE_BYTES)}
    for size in sorted(sizes | {whole - 1, 98_304 + 17}, reverse=True):
        cut(written, size)
        with pytest.raises(CorruptStorage, match=rf"data\.mdb has {size} bytes") as caught:
            check_length(written)
        assert "was cut" in str(caught.value)


@pytest.mark.parametrize("size", [98_304, 98_305])
def test_open_cut_data_log_is_corrupt(written: Path, size: int) -> None:
    """Instead of a process that dies of SIGBUS at the first look behind the end."""
    cut(written, size)
    with pytest.raises(CorruptStorage, match=f"{size} bytes"):
        LmdbDataLogs.open(written.parent, map_bytes=MAP_BYTES)


def test_length_of_file_that_is_no_lmdb_is_left_to_lmdb(tmp_path: Path) -> None:
    """Other formats have other layouts: no length is read out of them."""
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    check_length(tmp_path / "data.mdb")


def test_length_of_file_whose_last_pages_were_never_written_is_good(tmp_path: Path) -> None:
    """Pages that were taken and given back in one transaction are behind the end, and nobody needs them."""
    path = tmp_path / "data.mdb"
    with lmdb.open(str(tmp_path), map_size=MAP_BYTES, lib_version=0) as env:
        for number in range(4):
            with env.begin(write=True) as txn:
                txn.put(b"kept", bytes(9000 + number))
        with env.begin(write=True) as txn:
            txn.put(b"passing", bytes(200_000))
            txn.delete(b"passing")
        last_page = env.info()["last_pgno"]
    assert path.stat().st_size < (last_page + 1) * PAGE_BYTES
    check_length(path)
    cut(path, 2 * PAGE_BYTES)
    with pytest.raises(CorruptStorage, match=f"{2 * PAGE_BYTES} bytes of"):
        check_length(path)


@pytest.mark.slow
def test_length_after_any_commit_is_good(tmp_path: Path) -> None:
    """Whatever is put and deleted, in whichever transaction: the free list accounts for all that is not there."""
    chance = random.Random(4711)
    shorter = 0
    keys: list[bytes] = []
    with lmdb.open(str(tmp_path), map_size=MAP_BYTES, sync=False, lib_version=0) as env:
        for _ in range(80):
            with env.begin(write=True) as txn:
                mine = [b"%08d" % chance.randrange(3000) for _ in range(chance.randrange(1, 60))]
                for key in mine:
                    txn.put(key, bytes(chance.choice([10, 100, 3000, 9000, 50_000])))
                keys += mine
                doomed = chance.choice(
                    [[], mine, chance.sample(mine, len(mine) // 2), chance.sample(keys, len(keys) // 2)]
                )
                for key in doomed:
                    txn.delete(key)
            check_length(tmp_path / "data.mdb")
            shorter += (tmp_path / "data.mdb").stat().st_size < (env.info()["last_pgno"] + 1) * PAGE_BYTES
    assert shorter > 5
