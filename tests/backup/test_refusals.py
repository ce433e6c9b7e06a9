"""A backup that cannot be made is refused or taken away; one that is not whole is never started from."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlog.backup import making, taking_over
from fairlog.backup.making import BackupFailed, make_backup
from fairlog.backup.source import BackupRefused, require_source
from fairlog.backup.taking_over import take_over
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.opening import StoreMismatch
from fairlog.cluster.restored import PRODUCER_IDS_PER_SECOND, continue_restored
from fairlog.data_directory import MANIFEST, RESTORED, RESTORING, UNFINISHED
from fairlog.directory import hold_shard, locked_directory
from fairlog.verify.verification import Verification
from fairlog_types import CorruptStorage
from journal.segment import Fsync
from scripts.node_process import ROOT, NodeProcess
from shard.directory import FIRST_SHARD
from tests import lacking
from tests.backup.conftest import ENVIRONMENT, NewNode, Restore, back_up, now_ms
from tests.cli.in_process import FairlogCommand
from tests.node.nodes import TOPIC, produce, read, refusal, wait_for_the_copy
from tests.shards import shard_in

MAP_BYTES = 64 * 2**20


def contents(directory: Path) -> dict[Path, bytes]:
    """Of all files but LMDB's lock files, in which readers stand."""
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock.mdb"}


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a node that was stopped in good order, with some records in two partitions."""
    node = NodeProcess(tmp_path_factory.mktemp("stopped") / "data", dict(ENVIRONMENT))
    node.start()
    produce(node, *(b"%d" % number + bytes(1000) for number in range(50)))
    produce(node, b"other", partition=1)
    assert node.stop() == 0
    return node.data_dir


@pytest.fixture
def source(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "source"))


@pytest.fixture
def backup(source: Path, tmp_path: Path) -> Path:
    """A whole backup of it."""
    make_backup(source, tmp_path / "backup", now_ms=now_ms)
    return tmp_path / "backup"


def start_of(directory: Path) -> object:
    return take_over(directory, node_id=1, group_separator="", map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms())


# --- making one -----------------------------------------------------------------------------------


def not_empty(source: Path, target: Path) -> None:
    target.mkdir()
    (target / "letters").touch()


def unfinished(source: Path, target: Path) -> None:
    target.mkdir()
    (target / UNFINISHED).touch()


def no_data_directory(source: Path, target: Path) -> None:
    (source / "cluster" / "data.mdb").unlink()


def damaged_store(source: Path, target: Path) -> None:
    (source / "cluster" / "data.mdb").write_bytes(bytes(8192))


def a_backup_itself(source: Path, target: Path) -> None:
    (source / MANIFEST).touch()


def killed(source: Path, target: Path) -> None:
    (source / "last-run").write_text("some-boot open\n")


def a_file(source: Path, target: Path) -> None:
    target.touch()


REFUSED = [
    (not_empty, "is not empty (it has letters)"),
    (unfinished, "contains an unfinished backup"),
    (no_data_directory, "is not a data directory: it does not contain cluster/data.mdb"),
    (damaged_store, "cannot be backed up, because its cluster store cannot be read: .*cluster/data.mdb"),
    (a_backup_itself, "is itself a backup: copy it"),
    (killed, "no node runs in .* did not stop cleanly"),
    (a_file, "cannot write into"),
]


@pytest.mark.parametrize(("prepare", "words"), REFUSED, ids=[prepare.__name__ for prepare, _ in REFUSED])
@pytest.mark.slow
def test_backup_that_cannot_be_made_is_refused_and_touches_nothing(
    fairlog: FairlogCommand, source: Path, tmp_path: Path, prepare: Callable[[Path, Path], None], words: str
) -> None:
    """One sentence, exit code 1, both directories as they were."""
    target = tmp_path / "target"
    prepare(source, target)
    before = contents(tmp_path)
    code, out, err = fairlog("backup", target, "--data-dir", source)
    assert (code, out) == (1, "")
    assert err.startswith("fairlog: ")
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), err), err
    assert contents(tmp_path) == before


def test_backup_by_a_program_whose_lmdb_is_not_patched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not say which batches of sinks are in the copy."""
    monkeypatch.setattr(making.lmdb, "version", lambda *, subpatch: (0, 9, 33, 0))
    with pytest.raises(BackupRefused, match=r"was built without its patch .* install the one from PyPI"):
        make_backup(tmp_path / "source", tmp_path / "target", now_ms=now_ms)
    assert not (tmp_path / "target").exists()


@pytest.mark.slow
def test_backup_into_the_data_directory_is_refused(source: Path) -> None:
    """It would become a part of the next one."""
    with pytest.raises(BackupRefused, match="is inside the data directory"):
        make_backup(source, source / "backup", now_ms=now_ms)
    assert not (source / "backup").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("note", "order", "may"), [("open", 1, True), ("open", -1, False), ("lost", 1, False)])
def test_node_that_has_not_recovered_is_not_backed_up(source: Path, note: str, order: int, may: bool) -> None:
    """While a node recovers, a transaction may be copied in part: its `last-run` is older than its lock then."""
    with locked_directory(source):
        (source / "last-run").write_text(f"some-boot {note}\n")
        locked_at = (source / "lock").stat().st_mtime_ns
        os.utime(source / "last-run", ns=(locked_at + order, locked_at + order))
        if may:
            require_source(source)
            return
        with pytest.raises(BackupRefused, match="does not serve yet, or its disk has failed"):
            require_source(source)


@pytest.mark.slow
def test_node_whose_only_shard_is_started_again_is_not_backed_up_until_it_has_recovered(source: Path) -> None:
    """By a supervisor, which had the directory before: `last-run` is of the process that was killed."""
    with locked_directory(source):
        (source / "last-run").write_text("some-boot open\n")
        require_source(source)
        shard = hold_shard(source, FIRST_SHARD)
        later = (source / "last-run").stat().st_mtime_ns + 1
        os.utime(shard, ns=(later, later))
        with pytest.raises(BackupRefused, match="does not serve yet, or its disk has failed"):
            require_source(source)
        os.utime(source / "last-run", ns=(later, later))
        require_source(source)
        os.close(shard)


@pytest.mark.slow
@pytest.mark.parametrize("lock", ["lock", "shards/0/lock"])
def test_backup_of_a_node_that_was_started_again_meanwhile_is_taken_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """Killed and started between the look at the directory and the copy: what was copied may be of its recovery."""
    copy = making._copy

    def copy_from_another_run(*arguments: object) -> None:
        (source / lock).write_text("1\n")
        copy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(making, "_copy", copy_from_another_run)
    with pytest.raises(BackupFailed, match=r"a node was started in .* meanwhile"):
        make_backup(source, tmp_path / "target", now_ms=now_ms)
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("at", ["the first file", "the second file", "the manifest"])
def test_backup_that_fails_is_taken_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A disk that fails at any point: the target is as empty as before, the source as it was; it may be tried again."""
    before = contents(source)
    copied: list[object] = []
    copy, write = making._copy, making._write

    def failing_copy(environment: object, *rest: object) -> None:
        copied.append(environment)
        copy(environment, *rest)  # type: ignore[arg-type]
        if at == ("the first file" if len(copied) == 1 else "the second file"):
            raise OSError(28, "No space left on device")

    def failing_write(path: Path, data: bytes) -> None:
        write(path, data)
        if data and at == "the manifest":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "_copy", failing_copy)
    monkeypatch.setattr(making, "_write", failing_write)
    with pytest.raises(BackupFailed, match=r"failed and was removed: .*No space left"):
        make_backup(source, tmp_path / "target", now_ms=now_ms)
    assert list((tmp_path / "target").iterdir()) == []
    assert contents(source) == before
    monkeypatch.undo()
    make_backup(source, tmp_path / "target", now_ms=now_ms)
    assert list(Verification(tmp_path / "target", has_journals=False).violations()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with lacking.small_disk(tmp_path / "small", "256k") as mount:
        yield mount


@pytest.mark.slow
def test_full_disk_is_told_in_a_sentence_and_the_node_goes_on(
    new_node: NewNode, fairlog: FairlogCommand, small_disk: Path
) -> None:
    """A real one, in the middle of LMDB's copy, of a node that runs."""
    node = new_node()
    node.start()
    produce(node, *(bytes(90_000) for _ in range(8)))
    wait_for_the_copy(node.address, TOPIC)
    code, out, err = fairlog("backup", small_disk / "backup", "--data-dir", node.data_dir)
    assert (code, out) == (1, "")
    assert "failed and was removed: the disk is full" in err
    assert "The node's data was not changed" in err
    assert list((small_disk / "backup").iterdir()) == []
    produce(node, b"and on")
    assert read(node)[-1] == b"and on"
    assert node.stop() == 0
    assert list(Verification(node.data_dir, has_journals=True).violations()) == []


@pytest.mark.slow
def test_copy_that_the_system_cuts_off_is_taken_away(source: Path, tmp_path: Path) -> None:
    """A limit on the size of files, as for a full quota: the command says so."""
    command = [sys.executable, "-m", "fairlog.cli", "backup", str(tmp_path / "target"), "--data-dir", str(source)]
    limit = 64 * 1024
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 1
    assert "failed and was removed" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.slow
def test_backup_that_was_interrupted_is_known_and_refused_everywhere(
    new_node: NewNode, fairlog: FairlogCommand, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ctrl-C, or a kill, which leaves the same: no start, no verification, no other backup over it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(making, "_checked", interrupted)
    code, _, err = fairlog("backup", tmp_path / "target", "--data-dir", source)
    monkeypatch.undo()
    assert (code, "interrupted: " in err) == (130, True)
    assert (tmp_path / "target" / UNFINISHED).exists()
    assert not (tmp_path / "target" / MANIFEST).exists()
    before = contents(tmp_path / "target")
    assert "contains an unfinished backup" in refusal(new_node(tmp_path / "target"))
    assert fairlog("verify", tmp_path / "target")[0] == 1
    assert "an unfinished backup" in fairlog("backup", tmp_path / "target", "--data-dir", source)[2]
    assert {path: data for path, data in contents(tmp_path / "target").items() if path.name != "lock"} == before


# --- starting from one ------------------------------------------------------------------------------


def damage_a_byte(backup: Path) -> None:
    data = bytearray(shard_in(backup).data_logs_file.read_bytes())
    data[-1] ^= 1
    shard_in(backup).data_logs_file.write_bytes(data)


def cut_a_file(backup: Path) -> None:
    os.truncate(shard_in(backup).data_logs_file, 8192)


def lose_a_file(backup: Path) -> None:
    (backup / "cluster" / "data.mdb").unlink()


def garble_the_manifest(backup: Path) -> None:
    (backup / MANIFEST).write_text("{")


def lose_a_file_and_its_name(backup: Path) -> None:
    document = json.loads((backup / MANIFEST).read_text())
    del document["files"]["shards/0/datalog/data.mdb"]
    (backup / MANIFEST).write_text(json.dumps(document))
    shard_in(backup).data_logs_file.unlink()


def put_it_over_a_node(backup: Path) -> None:
    shard_in(backup).local_journals.mkdir(parents=True)


DAMAGED = [
    (damage_a_byte, "shards/0/datalog/data.mdb does not have the SHA-256 of the backup's manifest"),
    (cut_a_file, "shards/0/datalog/data.mdb has 8192 bytes, but the backup's manifest says"),
    (lose_a_file, "cluster/data.mdb is missing: the backup was not copied completely"),
    (lose_a_file_and_its_name, "does not name shards/0/datalog/data.mdb: the backup was changed"),
    (garble_the_manifest, "backup.json: the manifest is not JSON"),
    (put_it_over_a_node, "contains a backup and also shards/0/journals of another run"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "words"), DAMAGED, ids=[damage.__name__ for damage, _ in DAMAGED])
def test_backup_that_is_not_whole_is_never_started_from(
    new_node: NewNode, backup: Path, damage: Callable[[Path], None], words: str
) -> None:
    """The node says in one sentence which file is wrong, and changes nothing."""
    damage(backup)
    before = contents(backup)
    assert words in refusal(new_node(backup))
    assert {path: data for path, data in contents(backup).items() if path.name != "lock"} == before


@pytest.mark.slow
def test_backup_from_the_future_is_refused(backup: Path) -> None:
    """Ids and epochs go on from the clock: one that was set back would give out ids twice."""
    with pytest.raises(CorruptStorage, match=r"was made \d+ s after this machine.s current time: set its clock"):
        take_over(
            backup, node_id=1, group_separator="", map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms() - 60_000
        )
    assert (backup / MANIFEST).exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [MANIFEST, RESTORING])
def test_backup_of_another_node_is_refused_before_anything_in_it_is_changed(backup: Path, name: str) -> None:
    """With the right node_id it can be started from afterwards."""
    (backup / MANIFEST).rename(backup / name)
    before = contents(backup)
    with pytest.raises(StoreMismatch, match=r"backup is that of node 1, but node_id is 2: set node_id to what it was"):
        take_over(backup, node_id=2, group_separator="", map_bytes=MAP_BYTES, fsync=Fsync.COMMIT, now_ms=now_ms())
    assert contents(backup) == before
    assert start_of(backup)


@pytest.mark.slow
@pytest.mark.parametrize("at", ["continue_restored", "_settle_data_logs", "begin_at", "begin_at again", "the end"])
def test_start_that_dies_while_it_takes_a_backup_over_is_gone_on_with(
    new_node: NewNode, restore: Restore, backup: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Wherever: the next start goes on, though the files are not those of the manifest any more."""
    node = restore(backup)

    class Died(BaseException):
        pass

    calls = 0
    name = at.removesuffix(" again")
    real = getattr(taking_over, name, None)

    def dying(*arguments: object, **named: object) -> object:
        nonlocal calls
        calls += 1
        answer = real(*arguments, **named) if real is not None else None
        if calls == (2 if at.endswith("again") else 1):
            raise Died
        return answer

    if real is not None:
        monkeypatch.setattr(taking_over, name, dying)
    else:
        rename = Path.rename

        def dying_rename(path: Path, target: Path) -> Path:
            if Path(target).name == RESTORED:
                raise Died
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", dying_rename)
    with pytest.raises(Died):
        start_of(node.data_dir)
    monkeypatch.undo()
    assert (node.data_dir / RESTORING).exists()
    node.start()
    assert (node.data_dir / RESTORED).exists()
    assert not (node.data_dir / RESTORING).exists()
    assert len(read(node)) == 50
    produce(node, b"and on")
    assert node.stop() == 0, node.log_tail()
    assert list(Verification(node.data_dir, has_journals=True).violations()) == []


def test_directory_that_is_no_backup_is_left_alone(tmp_path: Path) -> None:
    """Of every ordinary start."""
    assert start_of(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


# --- what must not be given out twice ------------------------------------------------------------------


async def test_restored_store_jumps_ahead_of_all_that_was_given_out_since(tmp_path: Path) -> None:
    """Producer ids and leader epoch go on from the clock, never back, and the identity stays."""
    directory = tmp_path / "cluster"
    store = EmbeddedStore.open(directory, node_id=1, group_journal_count=2)
    await store.allot_producer_ids(5000)
    cluster_id = store.cluster_id
    store.close()
    now = 1_800_000_000_000
    for at, expected in ((now, now), (now, now), (now + 60_000, now + 60_000), (now - 60_000, now + 60_000)):
        continue_restored(directory, now_ms=at)
        content = continue_restored(directory, now_ms=0)
        assert content.next_producer_id == expected // 1000 * PRODUCER_IDS_PER_SECOND
        assert content.starts == expected // 60_000
    store = EmbeddedStore.open(directory, node_id=1, group_journal_count=2)
    assert store.cluster_id == cluster_id
    assert store.starts == (now + 60_000) // 60_000 + 1
    first = (await store.allot_producer_ids(10))[0]
    assert first == (now + 60_000) // 1000 * PRODUCER_IDS_PER_SECOND
    assert first < 2**53
    store.close()


def test_backup_of_a_directory_that_is_not_there_is_refused(new_node: NewNode) -> None:
    """Before anything is made."""
    node = new_node()
    with pytest.raises(BackupRefused):
        back_up(node, node.data_dir.parent / "backup")
    assert not (node.data_dir.parent / "backup").exists()
