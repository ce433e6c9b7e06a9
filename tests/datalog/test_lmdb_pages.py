"""An LMDB file read as bytes holds what LMDB says, and damage anywhere in it is named, never met."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datalog.lmdb_pages import DamagedPage, LmdbFile
from datalog.snapshot import lmdb_snapshot, mapped_lmdb
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog_types import CorruptStorage, LogId
from tests.datalog.golden_data_log import DUMP, ENVIRONMENT

PAGE_BYTES = 4096

keys = st.binary(min_size=1, max_size=40)
values = st.one_of(st.binary(max_size=200), st.integers(0, 40_000).map(bytes))
contents = st.dictionaries(keys, values, max_size=60)
names = st.sampled_from([b"one", b"two", b"three"])


def write(directory: Path, databases: Mapping[bytes, Mapping[bytes, bytes]], *, drop: bool = False) -> Path:
    """A file with these named databases; with `drop` half of the keys are deleted again, which fills the free list."""
    with lmdb.open(str(directory), map_size=1 << 28, max_dbs=8, sync=False) as env:
        for name, content in databases.items():
            database = env.open_db(name)
            with env.begin(write=True, db=database) as txn:
                for key, value in content.items():
                    txn.put(key, value)
            if drop:
                with env.begin(write=True, db=database) as txn:
                    for key in list(content)[::2]:
                        txn.delete(key)
    return directory / "data.mdb"


def read_all(file: LmdbFile) -> dict[bytes, dict[bytes, bytes]]:
    found: dict[bytes, dict[bytes, bytes]] = {}
    for named in file.items(file.meta.main):
        assert named.tree is not None
        found[named.key] = {item.key: bytes(item.value) for item in file.items(named.tree)}
    file.check_free_list()
    return found


def open_file(path: Path) -> LmdbFile:
    file = mapped_lmdb(path)
    assert file is not None
    return file


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(databases=st.dictionaries(names, contents, min_size=1), drop=st.booleans())
def test_file_of_any_content_reads_as_lmdb_reads_it(
    tmp_path_factory: pytest.TempPathFactory, databases: dict[bytes, dict[bytes, bytes]], drop: bool
) -> None:
    """All keys and values of all databases, small ones and those in overflow pages, in order; nothing else."""
    path = write(tmp_path_factory.mktemp("lmdb"), databases, drop=drop)
    expected = {
        name: {key: value for at, (key, value) in enumerate(content.items()) if not drop or at % 2}
        for name, content in databases.items()
    }
    found = read_all(open_file(path))
    assert found == expected
    assert all(list(content) == sorted(content) for content in found.values())


def test_items_from_a_start_are_those_behind_it(tmp_path: Path) -> None:
    """A seek gives the same as reading from the beginning, wherever it starts, in a tree of several levels."""
    content = {at.to_bytes(4, "big"): bytes(at % 90) for at in range(0, 6000, 3)}
    path = write(tmp_path, {b"one": content})
    for start in (0, 1, 2, 3, 2999, 5996, 5997, 5998, 9000):
        file = open_file(path)
        (named,) = file.items(file.meta.main)
        assert named.tree is not None
        assert named.tree.depth > 1
        found = [item.key for item in file.items(named.tree, start=start.to_bytes(4, "big"))]
        assert found == [key for key in content if key >= start.to_bytes(4, "big")]


def test_golden_environment_reads_as_its_dump(tmp_path: Path) -> None:
    """The data logs' golden file, read without LMDB, gives the dump that was made with it."""
    (tmp_path / "data.mdb").write_bytes(gzip.decompress(ENVIRONMENT.read_bytes()))
    file = open_file(tmp_path / "data.mdb")
    lines: list[str] = []
    for named in file.items(file.meta.main):
        assert named.tree is not None
        lines.append(f"[{named.key.decode()}]")
        lines += [f"{item.key.hex()}  {item.value.hex()}" for item in file.items(named.tree)]
    assert [line.split() for line in lines] == [line.split() for line in DUMP.read_text().splitlines()]


@pytest.fixture
def busy(tmp_path: Path) -> bytes:
    """A file with several levels, overflow pages and a free list."""
    rng = random.Random(1)
    content = {rng.randbytes(8): bytes(rng.choice((10, 300, 9000))) for _ in range(400)}
    return write(tmp_path, {b"one": content, b"two": content}, drop=True).read_bytes()


@pytest.mark.slow
def test_damage_anywhere_is_named_or_harmless(busy: bytes) -> None:
    """Whatever bytes are overwritten: all is read, or DamagedPage says where; never another error."""
    rng = random.Random(2)
    named: list[DamagedPage] = []
    for turn in range(400):
        # Every other time near a page's head, where what LMDB trusts stands.
        at = rng.randrange(len(busy)) if turn % 2 else rng.randrange(len(busy) // PAGE_BYTES) * PAGE_BYTES
        at = min(at + rng.randrange(80), len(busy) - 8)
        damaged = bytearray(busy)
        damaged[at : at + 8] = rng.randbytes(8)
        try:
            read_all(LmdbFile(memoryview(damaged)))
        except DamagedPage as error:
            named.append(error)
    assert len(named) > 10
    assert all(str(error).startswith(f"byte {error.byte}: ") and 0 <= error.byte <= len(busy) for error in named)


def test_every_page_in_use_is_known_by_its_head(busy: bytes) -> None:
    """Number and kind stand in every page's head: of the pages in use, each one that is overwritten is found."""
    file = LmdbFile(memoryview(busy))
    read_all(file)
    heads = [
        page
        for page in range(2, len(busy) // PAGE_BYTES)
        if file._reached[page] and int.from_bytes(busy[page * PAGE_BYTES :][:8], "little") == page
    ]
    assert len(heads) > 30
    for page in heads[::7]:
        damaged = bytearray(busy)
        damaged[page * PAGE_BYTES : page * PAGE_BYTES + 12] = b"\xff" * 12
        with pytest.raises(DamagedPage):
            read_all(LmdbFile(memoryview(damaged)))


@pytest.mark.parametrize("size", [0, 1, 151, 4096, 4096 * 2, 4096 * 3 + 17, -1])
def test_cut_file_is_damage_and_no_crash(busy: bytes, tmp_path: Path, size: int) -> None:
    """Cut wherever: either there is nothing (an empty file), or CorruptStorage or DamagedPage says where it ends."""
    path = tmp_path / "data.mdb"
    path.write_bytes(busy[:size])
    if size == 0:
        assert mapped_lmdb(path) is None
        return
    with pytest.raises((CorruptStorage, DamagedPage), match="byte"):
        read_all(open_file(path))


def test_page_that_is_free_and_in_use_is_found(busy: bytes) -> None:
    """The free list is held against what was read: the next write would overwrite a page in use."""
    file = LmdbFile(memoryview(bytearray(busy)))
    free = file.free_list()[0]
    damaged = bytearray(busy)
    (named, _) = LmdbFile(memoryview(damaged)).items(file.meta.main)
    assert named.tree is not None
    assert named.tree.root is not None
    damaged[free.at + 8 : free.at + 16] = named.tree.root.to_bytes(8, "little")
    with pytest.raises(DamagedPage, match="free list"):
        read_all(LmdbFile(memoryview(damaged)))


def test_free_list_stands_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    """256 stands behind 255, though its first byte is the smaller one: LMDB compares them as numbers."""
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=8, sync=False) as env:
        one = env.open_db(b"one")
        while env.info()["last_txnid"] < 250:
            with env.begin(write=True, db=one) as txn:
                txn.put(b"key", bytes(5000))
        with env.begin():  # A reader: what is freed meanwhile stays in the list, by transaction.
            while env.info()["last_txnid"] < 260:
                with env.begin(write=True, db=one) as txn:
                    txn.put(b"key", bytes(5000))
    file = open_file(tmp_path / "data.mdb")
    listed = [int.from_bytes(item.key, sys.byteorder) for item in file.free_list()]
    assert {255, 256} <= set(listed)
    read_all(file.unread())


def test_free_list_out_of_order_is_damage(busy: bytes) -> None:
    """Two entries that stand in another order are named."""
    damaged = bytearray(busy)
    first, second = LmdbFile(memoryview(damaged)).free_list()[:2]
    for item, key in ((first, second.key), (second, first.key)):
        damaged[item.at - len(key) : item.at] = key
    with pytest.raises(DamagedPage, match="comes after"):
        read_all(LmdbFile(memoryview(damaged)))


def test_snapshot_stays_as_it_was_while_others_write(tmp_path: Path) -> None:
    """The pages of the snapshot's moment are held, though a writer would use them anew."""
    content = {at.to_bytes(2, "big"): bytes(5000) for at in range(50)}
    path = write(tmp_path, {b"one": content})
    script = (
        "import lmdb, sys\n"
        "env = lmdb.open(sys.argv[1], map_size=1 << 28, max_dbs=8, sync=False)\n"
        "one = env.open_db(b'one')\n"
        "for turn in range(20):\n"
        "    with env.begin(write=True, db=one) as txn:\n"
        "        for at in range(50): txn.put(at.to_bytes(2, 'big'), b'x' * 5000)\n"
    )
    with lmdb_snapshot(path) as file:
        assert file is not None
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
        assert read_all(file) == {b"one": content}
    with lmdb_snapshot(path) as file:
        assert file is not None
        assert read_all(file)[b"one"][b"\0\0"] == b"x" * 5000


def test_snapshot_of_a_file_that_nobody_has_open_makes_no_file(tmp_path: Path) -> None:
    """A copy without lock.mdb is only read."""
    path = write(tmp_path, {b"one": {b"a": b"b"}})
    (tmp_path / "lock.mdb").unlink()
    with lmdb_snapshot(path) as file:
        assert file is not None
        assert read_all(file) == {b"one": {b"a": b"b"}}
    assert [each.name for each in tmp_path.iterdir()] == ["data.mdb"]


@pytest.mark.parametrize(
    "name", ["", "x", "t-1-0", f"t-{'0' * 32}", f"t-{'0' * 32}--1", f"t-{'G' * 32}-0", "o-topic-0x", "fairlog.meta"]
)
def test_name_of_no_log_is_none(name: str) -> None:
    """Only what `str` of a LogId gives is one."""
    assert parse_log_untrusted(name.encode()) is None


def test_name_of_a_log_is_read() -> None:
    """A topic's partition, and a shard of the committed offsets."""
    for log in (LogId("t", "0123456789abcdef" * 2, 7), LogId.of_offsets(3)):
        assert parse_log_untrusted(str(log).encode()) == log


def test_file_that_is_no_data_log_is_told_so(tmp_path: Path) -> None:
    """An LMDB file of somebody else is not taken for data logs."""
    path = write(tmp_path, {b"one": {b"a": b"b"}})
    with pytest.raises(ValueError, match="holds no data logs"):
        StoredLogs(open_file(path))
