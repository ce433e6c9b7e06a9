"""Backups of directories with several shards, and of earlier versions, which had none."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from fairlog.backup import making, taking_over
from fairlog.backup.making import BackupFailed, make_backup
from fairlog.backup.manifest import Manifest
from fairlog.backup.taking_over import take_over
from fairlog.cluster import records
from fairlog.cluster.growing import add_shard
from fairlog.data_directory import CLUSTER, MANIFEST, RESTORED, RESTORING, read_cluster_store
from fairlog.directory import locked_directory
from fairlog.last_run import move_note
from fairlog.local_reader import LocalReader
from fairlog.verify.verification import Verification
from fairlog_types import CorruptStorage, StorageFailure
from journal.segment import Fsync
from pyspark_fairlog.native import Native
from scripts.node_process import ROOT, NodeProcess
from shard.directory import earlier_directory
from tests.backup.conftest import ENVIRONMENT, NewNode, now_ms
from tests.backup.earlier import as_of_version
from tests.backup.test_sinks import Query, rows_in
from tests.cli.in_process import FairlogCommand
from tests.cli.processes import FAIRLOG
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
    return take_over(backup, node_id=1, group_separator="", map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms())


# --- several shards -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_running", [False, True])
def test_backup_without_one_of_the_shards_is_refused(
    source: Path, tmp_path: Path, fairlog: FairlogCommand, is_running: bool
) -> None:
    """The rest would pass for all."""
    split_in_two(source)
    shutil.rmtree(source / "shards" / "1")
    with locked_directory(source) if is_running else nullcontext():
        code, out, err = fairlog("backup", tmp_path / "target", "--data-dir", source)
    assert (code, out) == (1, "")
    assert f"{source} is not a data directory: it does not contain shards/1/datalog/data.mdb" in err
    assert not (tmp_path / "target").exists()


def test_backup_while_a_shard_is_added_is_taken_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a supervisor, which has the directory all the time. The cluster store, which is copied last, would
    be of one shard more than there are data logs: nobody could restore it."""
    copy, target = making._copy, tmp_path / "target"

    def copy_and_add(*arguments: object) -> None:
        copy(*arguments)  # type: ignore[arg-type]
        if read_cluster_store(source).shards == 1:
            add_shard(source / CLUSTER, node_id=1, move_note=lambda: move_note(source))

    monkeypatch.setattr(making, "_copy", copy_and_add)
    with pytest.raises(BackupFailed, match=r"a shard was added to the node in .* meanwhile, and is not .*; try again"):
        back_up(source, target)
    assert list(target.iterdir()) == []


def test_copy_of_a_stopped_nodes_shards_is_verified(source: Path, tmp_path: Path, fairlog: FairlogCommand) -> None:
    """The whole directory, with its journals."""
    split_in_two(source)
    shutil.copytree(source, tmp_path / "copy")
    assert fairlog("verify", tmp_path / "copy")[0] == 0


def test_backup_with_the_note_of_a_shard_of_another_run_is_refused(source: Path, tmp_path: Path) -> None:
    """It was put over what a node had left."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    (shard_in(backup).path / "last-run").write_text("some-boot closed\n")
    with pytest.raises(CorruptStorage, match="contains a backup and also shards/0/last-run of another run"):
        restore(backup)


def add_a_shard(backup: Path, *, named: bool) -> None:
    """Put a second shard into a backup of one; `named`: its manifest names it."""
    shutil.copytree(shard_in(backup).path, backup / "shards" / "1")
    document = json.loads((backup / MANIFEST).read_text())
    if named:
        document["files"]["shards/1/datalog/data.mdb"] = document["files"]["shards/0/datalog/data.mdb"]
    (backup / MANIFEST).write_text(json.dumps(document))


def test_backup_with_a_shard_that_the_cluster_store_does_not_know_is_refused(source: Path, tmp_path: Path) -> None:
    """Whoever has put it there has changed the manifest, too."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    add_a_shard(backup, named=True)
    with pytest.raises(CorruptStorage, match="is of 1 shards, from 0 on, and contains 0, 1: it was changed"):
        restore(backup)
    assert (backup / MANIFEST).exists()


def test_shard_that_the_manifest_does_not_name_is_no_part_of_the_backup(source: Path, tmp_path: Path) -> None:
    """It was put there from elsewhere, or its name was taken away."""
    backup = tmp_path / "backup"
    back_up(source, backup)
    add_a_shard(backup, named=False)
    with pytest.raises(CorruptStorage, match=r"does not name shards/1/datalog/data\.mdb: the backup was changed"):
        restore(backup)


def test_cuts_of_two_shards_are_refused(source: Path) -> None:
    """What is read beside a node would be of two moments."""
    split_in_two(source)
    refused = "has 2 shards, and a cut is of one: read it through the node"
    with LocalReader.open(source) as reader, pytest.raises(StorageFailure, match=refused), reader.cut():
        pass


def test_cuts_are_refused_as_soon_as_a_second_shard_is_added(source: Path) -> None:
    """Also to a reader that was open before; the added shard has no directory yet."""
    refused = "has 2 shards, and a cut is of one: read it through the node"
    with LocalReader.open(source) as reader:
        add = [*FAIRLOG, "shard", "add", "--data-dir", str(source)]
        subprocess.run(add, check=True, cwd=ROOT)  # LMDB has an environment open once in a process
        with pytest.raises(StorageFailure, match=refused), reader.cut():
            pass
    with LocalReader.open(source) as reader, pytest.raises(StorageFailure, match=refused), reader.cut():
        pass


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
    monkeypatch.setattr(records, "READ_VERSIONS", (1, 2))
    with pytest.raises(CorruptStorage, match="it has format 3, and this program reads up to 2"):
        read_cluster_store(backup)
