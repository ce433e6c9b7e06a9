"""Backups of a node of several machines: of its only shard one like any other, of several shards one to be read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fairlog.backup.making import BackupFailed, make_backup
from fairlog.backup.source import BackupRefused
from fairlog.cluster import cluster_records, records
from fairlog.data_directory import (
    CLUSTER_STORE,
    MANIFEST,
    METADATA_COPY,
    RESTORED,
    metadata_records,
    read_cluster_store,
)
from fairlog.directory import locked_directory
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from scripts.node_process import NodeDidNotStart, NodeProcess
from tests.cli.in_process import FairlogCommand
from tests.clients.raw_client import NONE, RawClient, batch
from tests.cluster_directory import CLUSTER, ORDERS, SECRET, make_directory, make_single, write_metadata

pytestmark = pytest.mark.slow

NODE_ID = 2
VALUES = {0: [b"first of 0", b"one"], 1: [b"first of 1", b"two"]}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """Of a cluster with one shard."""
    trio.run(make_single, tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def several(tmp_path: Path) -> Path:
    trio.run(make_directory, tmp_path / "several")
    return tmp_path / "several"


def back_up(source: Path, target: Path) -> None:
    make_backup(source, target, now_ms=lambda: 1, node_id=NODE_ID)


def values_in(data_dir: Path) -> dict[int, list[bytes]]:
    with LocalReader.open(data_dir) as reader, reader.cut() as cut:
        return {
            partition: [record.value or b"" for record in cut.records("orders", partition, 0)]
            for partition in cut.partitions("orders")
            if cut.bounds("orders", partition).next_offset
        }


def test_backup_of_a_clusters_only_shard_is_like_that_of_one_machine(single: Path, tmp_path: Path) -> None:
    """It has a cluster store with all that the metadata had, and nothing of several machines."""
    with locked_directory(single):  # the node runs
        back_up(single, tmp_path / "backup")
    store = read_cluster_store(tmp_path / "backup")
    assert store.node == records.NodeRecord(CLUSTER.cluster_id, NODE_ID, CLUSTER.group_journal_count)
    assert store.served == [ORDERS]
    assert (store.next_producer_id, dict(store.group_configs)) == (5000, {"g": {"consumer.session.timeout.ms": "9000"}})
    assert dict(store.broker_configs) == {"": {"log.retention.ms": "7"}}
    files = {str(path.relative_to(tmp_path / "backup")) for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    assert files == {MANIFEST, CLUSTER_STORE, "shards/0/datalog/data.mdb"}
    assert list(Verification(tmp_path / "backup", has_journals=False).violations()) == []
    assert values_in(tmp_path / "backup") == VALUES


def test_node_on_one_machine_goes_on_from_a_clusters_only_shard(single: Path, tmp_path: Path) -> None:
    """Offsets continue where the copy ends."""
    back_up(single, tmp_path / "backup")
    shutil.copytree(tmp_path / "backup", tmp_path / "restored")
    node = NodeProcess(tmp_path / "restored", {"FAIRLOG_NODE_ID": str(NODE_ID)})
    node.start()
    try:
        with RawClient(node.address) as client:
            assert client.produce("orders", 0, bytes(batch([b"after"])))[:2] == (NONE, 2)
        assert node.stop() == 0, node.log_tail()
    finally:
        node.kill()
    assert (tmp_path / "restored" / RESTORED).exists()
    assert values_in(tmp_path / "restored")[0] == [*VALUES[0], b"after"]
    assert list(Verification(tmp_path / "restored", has_journals=True).violations()) == []


def test_backup_of_several_shards_is_read_and_checked(several: Path, tmp_path: Path, fairlog: FairlogCommand) -> None:
    """Also while the node runs. The command says what it is not."""
    backup = tmp_path / "backup"
    with locked_directory(several):
        code, out, err = fairlog("backup", backup, "--data-dir", several)
    assert code == 0, err
    assert "copies of shards have no moment in common: it can be read (fairlog consume --data-dir) and checked" in err
    assert "backed up 4 logs" in out
    listed = json.loads((backup / MANIFEST).read_text())
    assert sorted(listed["files"]) == [METADATA_COPY, "shards/0/datalog/data.mdb", "shards/2/datalog/data.mdb"]
    assert {log["topic"] for log in listed["logs"].values()} == {"orders"}
    code, out, _ = fairlog("verify", backup)
    assert code == 0, out
    assert "of 3 shards there are copies of 0, 2" in out
    code, out, _ = fairlog("consume", "orders", "--until-end", "--json", "--data-dir", backup)
    assert (code, len(out.splitlines())) == (0, 7)


@pytest.mark.parametrize("kind", ["single", "several"])
def test_secret_of_the_cluster_is_in_no_backup(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    """Whoever knows it is taken for a node."""
    source: Path = request.getfixturevalue(kind)
    assert SECRET in (source / METADATA_COPY).read_bytes()
    back_up(source, tmp_path / "backup")
    files = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert [path for path in files if SECRET in path.read_bytes()] == []
    assert [path for path in files if path.stat().st_mode & 0o007] == []


def test_backup_of_several_shards_has_the_metadata(several: Path, tmp_path: Path, fairlog: FairlogCommand) -> None:
    """All of them but the secret; tools read it, also to show it."""
    back_up(several, tmp_path / "backup")
    before, after = metadata_records(several), metadata_records(tmp_path / "backup")
    cluster = cluster_records.decode_shown_cluster(after.pop(cluster_records.CLUSTER_KEY))
    assert cluster == replace(cluster_records.decode_cluster(before.pop(cluster_records.CLUSTER_KEY)), secret=b"")
    assert after == before
    code, out, _ = fairlog("inspect", tmp_path / "backup" / METADATA_COPY)
    assert code == 0, out
    assert CLUSTER.cluster_id in out


def test_backup_of_several_shards_that_was_damaged_is_found_out(
    several: Path, tmp_path: Path, fairlog: FairlogCommand
) -> None:
    back_up(several, tmp_path / "backup")
    path = tmp_path / "backup" / METADATA_COPY
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    code, out, _ = fairlog("verify", tmp_path / "backup")
    assert code == 1
    assert "does not have the SHA-256 of the backup's manifest" in out


def test_no_node_starts_from_several_shards(several: Path, tmp_path: Path) -> None:
    """Neither alone nor in a cluster; the backup stays what it is."""
    back_up(several, tmp_path / "backup")
    before = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    for environment, sentence in (
        ({}, "have no moment in common: no node can be started from it. Read it with fairlog consume"),
        (
            {"FAIRLOG_JOURNAL_ENGINE": "kafka://127.0.0.1:1", "FAIRLOG_CLUSTER_NAME": "c"},
            "is a backup: a node of several machines begins with an empty data directory",
        ),
    ):
        node = NodeProcess(tmp_path / "backup", environment)
        with pytest.raises(NodeDidNotStart):
            node.start()
        assert sentence in node.log_tail()
    assert {path: path.read_bytes() for path in before} == before


def test_what_has_no_copy_or_no_metadata_is_refused(tmp_path: Path) -> None:
    trio.run(write_metadata, tmp_path / "empty")
    with pytest.raises(BackupRefused, match="has no copy of a shard in it"):
        back_up(tmp_path / "empty", tmp_path / "backup")
    trio.run(make_directory, tmp_path / "damaged")
    path = tmp_path / "damaged" / METADATA_COPY
    path.write_bytes(path.read_bytes()[:4096])
    with pytest.raises((BackupRefused, BackupFailed), match="copy of the metadata cannot be read"):
        back_up(tmp_path / "damaged", tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
