"""The copy of the metadata on each node: content and position together, and what is refused."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from uuid import UUID

import cbor2
import lmdb
import pytest
from structlog.testing import capture_logs

from fairlog.cluster import cluster_records
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.local_copy import COPY_KEY, LocalCopy
from fairlog.cluster.metadata_entry import Base
from fairlog.cluster.metadata_fold import FoldState
from fairlog.cluster.opening import StoreMismatch
from fairlog_types import CorruptStorage, StorageFailure
from stream.engine import StreamPosition

CLUSTER = UUID(int=1)
FIRST = cluster_records.first_records(
    ClusterRecord(cluster_records.cluster_id_of(CLUSTER), 4, bytes(32)), shards=1, offsets_logs=4, group_separator=""
)
STATE = FoldState(
    CLUSTER, Base(StreamPosition(7), 99), StreamPosition(9), (StreamPosition(2), StreamPosition(5)), 3, 400
)
OpenCopy = Callable[..., LocalCopy]


@pytest.fixture
def open_copy(tmp_path: Path) -> Iterator[OpenCopy]:
    """Opens (again) the copy in one directory."""
    opened: list[LocalCopy] = []

    def reopen(stream: str = "c.metadata") -> LocalCopy:
        while opened:
            opened.pop().close()
        opened.append(LocalCopy.open(tmp_path / "metadata", stream))
        return opened[0]

    yield reopen
    for copy in opened:
        copy.close()


def put_raw(directory: Path, records: Mapping[bytes, bytes | None]) -> None:
    with lmdb.open(str(directory / "metadata")) as environment, environment.begin(write=True) as transaction:
        for key, value in records.items():
            if value is None:
                transaction.delete(key)
            else:
                transaction.put(key, value)


async def write_and_close(copy: LocalCopy) -> None:
    await copy.write(FIRST, STATE)
    copy.close()


def test_copy_that_is_new_has_nothing(open_copy: OpenCopy) -> None:
    """Also when it is opened again before anything was written."""
    for _ in range(2):
        copy = open_copy()
        assert (copy.content, copy.state) == ({}, None)


async def test_copy_keeps_content_and_position(open_copy: OpenCopy) -> None:
    """All of the state, so that the next start reads only what is new."""
    copy = open_copy()
    await copy.write(FIRST | {b"k": b"1", b"gone": b"x"}, FoldState(CLUSTER, Base(StreamPosition(0), 1)))
    await copy.write({b"k": b"2", b"gone": None}, STATE)
    copy = open_copy()
    assert copy.content == FIRST | {b"k": b"2"}
    assert copy.state == STATE


async def test_copy_of_a_stream_without_a_cluster_has_a_position_only(open_copy: OpenCopy) -> None:
    """Foreign bytes may come before the foundation."""
    await open_copy().write({}, FoldState(next=StreamPosition(4)))
    copy = open_copy()
    assert (copy.content, copy.state) == ({}, FoldState(next=StreamPosition(4)))


async def test_write_that_fails_changes_neither(open_copy: OpenCopy) -> None:
    """A transaction is whole or not there: here one record cannot be written after another was."""
    copy = open_copy()
    await copy.write(FIRST, STATE)
    with pytest.raises(StorageFailure, match=r"cannot write the copy of the metadata in .*metadata: mdb_put"):
        await copy.write({b"k": b"1", b"x" * 600: b"too long a key"}, FoldState(CLUSTER, STATE.accepted))
    copy = open_copy()
    assert (copy.content, copy.state) == (FIRST, STATE)


async def test_copy_of_another_stream_is_refused_naming_both(open_copy: OpenCopy) -> None:
    """The data directory is another cluster's."""
    await open_copy("one.metadata").write(FIRST, STATE)
    with pytest.raises(StoreMismatch, match=r"of the stream one\.metadata, and this is two\.metadata"):
        open_copy("two.metadata")
    assert open_copy("one.metadata").state == STATE


async def test_copy_of_a_newer_version_is_refused(open_copy: OpenCopy, tmp_path: Path) -> None:
    """It may say what this program does not know."""
    await write_and_close(open_copy())
    put_raw(tmp_path, {COPY_KEY: cbor2.dumps(["fairlog-metadata-copy", 2, "c.metadata"])})
    with pytest.raises(StoreMismatch, match="has version 2, and this program reads 1"):
        open_copy()


@pytest.mark.parametrize(
    "value",
    [
        b"\xff",
        cbor2.dumps(1),
        cbor2.dumps(["other", 1, "c.metadata", 9, [7, 99], [], [0, 0]]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", 9, [7, 99], []]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", "9", [7, 99], [], [0, 0]]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", 9, [7], [], [0, 0]]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", 9, None, [], [0, 0]]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", 9, [7, 99], ["2"], [0, 0]]),
        cbor2.dumps(["fairlog-metadata-copy", 1, "c.metadata", 9, [7, 99], [], [0]]),
    ],
)
async def test_copy_with_a_strange_record_is_refused_saying_that_it_can_go(
    open_copy: OpenCopy, tmp_path: Path, value: bytes
) -> None:
    """A cache that cannot be read is not guessed at, and needs no repair."""
    await write_and_close(open_copy())
    put_raw(tmp_path, {COPY_KEY: value})
    with pytest.raises(CorruptStorage, match=r"data\.mdb cannot be read: .*'copy'.*It can be deleted"):
        open_copy()


async def test_copy_without_its_cluster_is_refused(open_copy: OpenCopy, tmp_path: Path) -> None:
    """Content that lost its identity."""
    await write_and_close(open_copy())
    put_raw(tmp_path, {cluster_records.CLUSTER_KEY: None})
    with pytest.raises(CorruptStorage, match="cannot be read"):
        open_copy()


def test_copy_that_is_no_lmdb_file_is_refused(open_copy: OpenCopy, tmp_path: Path) -> None:
    """A file full of something else."""
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptStorage, match=r"data\.mdb cannot be read: .*It can be deleted"):
        open_copy()


def test_copy_is_for_the_nodes_user_alone(open_copy: OpenCopy, tmp_path: Path) -> None:
    """It has the cluster's secret. One that others could read is closed to them."""
    open_copy()
    files = [tmp_path / "metadata" / name for name in ("data.mdb", "lock.mdb")]
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    files[0].chmod(0o644)
    with capture_logs() as logs:
        open_copy()
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert [line["event"] for line in logs] == ["the cluster's secret could be read by others"]
    with capture_logs() as logs:
        open_copy()
    assert logs == []


async def test_copy_of_a_backup_is_refused(open_copy: OpenCopy, tmp_path: Path) -> None:
    """It has no secret: with none, everybody would be a node of the cluster."""
    await write_and_close(open_copy())
    put_raw(tmp_path, {cluster_records.CLUSTER_KEY: cluster_records.without_secret(FIRST[cluster_records.CLUSTER_KEY])})
    with pytest.raises(CorruptStorage, match="has no secret: it is that of a backup"):
        open_copy()
