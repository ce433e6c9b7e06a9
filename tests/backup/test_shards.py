"""Backups of directories with several shards, and of earlier versions, which had none."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from datalog import layout
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs
from fairlog.backup import taking_over
from fairlog.backup.copied_logs import CopiedLogs, CopiedShards
from fairlog.backup.making import BackupFailed, make_backup
from fairlog.backup.manifest import Manifest
from fairlog.backup.source import BackupRefused
from fairlog.backup.taking_over import take_over
from fairlog.cluster import records
from fairlog.data_directory import MANIFEST, RESTORED, RESTORING, read_cluster_store
from fairlog.directory import DirectoryUnusable, locked_directory
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from fairlog_types import CorruptStorage, LogId, StorageFailure, TxId
from journal.segment import Fsync
from partition.producer_window import ProducerWindow
from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from shard.directory import earlier_directory
from tests.backup.conftest import ENVIRONMENT, NewNode, now_ms
from tests.backup.earlier import as_of_version
from tests.backup.test_sinks import Query, rows_in
from tests.cli.in_process import FairlogCommand
from tests.node.nodes import produce, read
from tests.shards import MAP_BYTES, shard_in, split_in_two

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def stopped_with_sinks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that was stopped in good order; each batch of its sinks is in both partitions."""
    node = NodeProcess(tmp_path_factory.mktemp("sinks") / "data", dict(ENVIRONMENT))
    node.start()
    produce(node, b"plain")
    with Native.connect(node.address) as driver:
        for number in range(4):  # some in each group journal
            query = Query(node, f"sink {number}")
            for batch in range(number + 1):
                query.write(driver, batch)
    assert node.stop() == 0
    return node.data_dir


@pytest.fixture
def source(stopped_with_sinks: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_with_sinks, tmp_path / "source"))


def back_up(source: Path, target: Path) -> Manifest:
    return make_backup(source, target, now_ms=now_ms)


def restore(backup: Path) -> Manifest | None:
    return take_over(backup, map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms())


# --- several shards -----------------------------------------------------------------------------------


def test_backup_of_two_shards_has_the_logs_and_fences_of_both(
    source: Path, tmp_path: Path, fairlog: FairlogCommand
) -> None:
    """Of a stopped node: the same that a backup of one shard had, batches whose rows are in both included."""
    one = back_up(source, tmp_path / "one")
    shards = split_in_two(source)
    two = back_up(source, tmp_path / "two")
    assert set(two.files) == {"cluster/data.mdb", *(shard.name_of(shard.data_logs_file) for shard in shards)}
    assert (two.logs.keys(), two.sinks) == (one.logs.keys(), one.sinks)
    assert two.sinks is not None
    assert [fence.batch for fence in two.sinks] == [0, 1, 2, 3]
    assert fairlog("verify", tmp_path / "two")[0] == 0


def test_cut_over_two_copies_answers_what_one_copy_answers(source: Path) -> None:
    """Of every log and transaction; a copy is asked only of what is in it, or says that it does not know."""
    content = read_cluster_store(source)
    path = shard_in(source).data_logs_file
    one = CopiedLogs(path, content)
    file = mapped_lmdb(path)
    assert file is not None
    numbers = {record.number: log for log, record in one._records.items()}
    asked: list[tuple[LogId, TxId]] = []
    for item in StoredLogs(file).table(layout.PRODUCERS):
        log = numbers[layout.decode_number(item.key[: layout.LOG_NUMBER_BYTES])]
        producer_id, window = layout.decode_producer_key(item.key), ProducerWindow.decode(bytes(item.value))
        asked += ((log, TxId(producer_id, entry.epoch, entry.number)) for entry in window.applied)
    placed = {each: one.placed(*each) for each in asked}
    ends = {log: one.next_offset(log) for log in numbers.values()}
    assert {log.partition for log, _ in asked} == {0, 1}
    assert None not in placed.values()
    two = CopiedShards([CopiedLogs(shard.data_logs_file, content) for shard in split_in_two(source)])
    assert {each: two.placed(*each) for each in asked} == placed
    assert {log: two.next_offset(log) for log in ends} == ends
    assert not any(two.is_open(*each) for each in asked)


def test_shards_of_a_running_node_are_not_backed_up(source: Path, tmp_path: Path) -> None:
    """They would be copied as of two moments, and a transaction over both torn: the sentence says what to do."""
    with locked_directory(source):
        for shard in split_in_two(source):
            (shard.path / "last-run").write_text("some-boot open\n")
        with pytest.raises(BackupRefused, match=r"has 2 shards, and those of a running node .* yet: stop the node"):
            back_up(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("ended", ["open", "lost", "", None])
def test_shards_of_which_one_was_not_closed_are_not_backed_up(source: Path, tmp_path: Path, ended: str | None) -> None:
    """Its journals may have records that are in no data log, however well the others ended."""
    _, second = split_in_two(source)
    (second.path / "last-run").unlink()
    if ended is not None:
        (second.path / "last-run").write_text(f"some-boot {ended}\n")
    with pytest.raises(BackupRefused, match="the last one did not stop cleanly"):
        back_up(source, tmp_path / "target")


def test_backup_with_the_note_of_a_shard_of_another_run_is_refused(source: Path, tmp_path: Path) -> None:
    """It was put over what a node had left."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    (shard_in(backup).path / "last-run").write_text("some-boot closed\n")
    with pytest.raises(CorruptStorage, match="contains a backup and also shards/0/last-run of another run"):
        restore(backup)


def test_failed_backup_of_two_shards_leaves_nothing(source: Path, tmp_path: Path) -> None:
    """Also what was copied of the first one is gone."""
    shards = split_in_two(source)
    os.truncate(shards[1].data_logs_file, 8192)
    with pytest.raises(BackupFailed):
        back_up(source, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []


def test_backup_of_two_shards_is_not_restored_yet(source: Path, tmp_path: Path) -> None:
    """A node serves one. It says so before it changes anything."""
    split_in_two(source)
    backup = tmp_path / "backup"
    back_up(source, backup)
    with pytest.raises(CorruptStorage, match="contains a backup of 2 shards, and a node serves one as yet"):
        restore(backup)
    assert (backup / MANIFEST).exists()
    with (
        pytest.raises(DirectoryUnusable, match="has shards/1, which no process would serve, for processes is 1: start"),
        locked_directory(backup),
    ):
        pass


def test_shard_that_the_manifest_does_not_name_is_no_part_of_the_backup(source: Path, tmp_path: Path) -> None:
    """It was put there from elsewhere, or its name was taken away."""
    split_in_two(source)
    backup = tmp_path / "backup"
    back_up(source, backup)
    document = json.loads((backup / MANIFEST).read_text())
    del document["files"]["shards/1/datalog/data.mdb"]
    (backup / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(CorruptStorage, match=r"does not name shards/1/datalog/data\.mdb: the backup was changed"):
        restore(backup)


def test_cuts_of_two_shards_are_refused(source: Path) -> None:
    """What is read beside a node would be of two moments."""
    split_in_two(source)
    with pytest.raises(StorageFailure, match="has 2 shards, and a cut is of one: read it through the node"):
        LocalReader.open(source)


# --- backups of earlier versions ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_backup_of_an_earlier_version_is_verified_read_and_restored(
    source: Path, tmp_path: Path, fairlog: FairlogCommand, new_node: NewNode, version: int
) -> None:
    """Its data logs lie where that version had them; the restore puts them where they belong."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    rows = rows_in(source)
    as_of_version(backup, version)
    assert fairlog("verify", backup)[0] == 0
    assert rows_in(backup) == rows
    node = new_node(backup)
    node.start()
    assert len([*read(node), *read(node, 1)]) == sum(rows.values())
    with Native.connect(node.address) as driver:
        assert Query(node, "sink 2").is_there(driver, 2) == (version == 2)
    assert node.stop() == 0
    assert rows_in(backup) == rows
    assert not earlier_directory(backup).data_logs.exists()
    assert list(Verification(backup, has_journals=True).violations()) == []


class Died(BaseException):
    pass


def before_all(monkeypatch: pytest.MonkeyPatch, backup: Path) -> None:
    def dying(*_: object, **__: object) -> None:
        raise Died

    monkeypatch.setattr(taking_over, "continue_restored", dying)


def before_the_move(monkeypatch: pytest.MonkeyPatch, backup: Path) -> None:
    def dying(directory: Path) -> bool:
        directory.mkdir(parents=True)
        raise Died

    monkeypatch.setattr(taking_over, "make_directory", dying)


def after_the_move(monkeypatch: pytest.MonkeyPatch, backup: Path) -> None:
    def dying(*_: object, **__: object) -> None:
        raise Died

    monkeypatch.setattr(taking_over, "_settle_data_logs", dying)


@pytest.mark.parametrize("dies", [before_all, before_the_move, after_the_move])
def test_restore_of_an_earlier_backup_that_dies_is_gone_on_with(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    """On either side of the move the next start finds the data logs."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    as_of_version(backup, 2)
    rows = rows_in(backup)
    dies(monkeypatch, backup)
    with pytest.raises(Died), locked_directory(backup):
        restore(backup)
    monkeypatch.undo()
    assert (backup / RESTORING).exists()
    assert earlier_directory(backup).data_logs.exists() == (dies is not after_the_move)
    assert rows_in(backup) == rows
    with locked_directory(backup):
        assert restore(backup) is not None
    assert (backup / RESTORED).exists()
    assert shard_in(backup).data_logs_file.exists()
    assert rows_in(backup) == rows


def test_restore_of_an_earlier_backup_is_refused_to_that_version_before_anything_is_moved(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the cluster store's format: it would find no data logs, and make empty ones."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    as_of_version(backup, 2)
    before_the_move(monkeypatch, backup)
    with pytest.raises(Died):
        restore(backup)
    monkeypatch.undo()
    monkeypatch.setattr(records, "VERSION", 2)
    with pytest.raises(CorruptStorage, match="it has format 3, and this program reads up to 2"):
        read_cluster_store(backup)
