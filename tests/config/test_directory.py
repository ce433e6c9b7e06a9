"""One node at a time in a data directory."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from fairlog import directory as directory_module
from fairlog.directory import (
    DirectoryInUse,
    DirectoryUnusable,
    hold_shard,
    is_in_use,
    locked_directory,
    unused_directory,
    wait_for_shards,
)
from fairlog_types import ShardNumber


def test_directory_in_use_is_refused_naming_the_process(tmp_path: Path) -> None:
    """The second node says who is there, and does not touch the lock's content."""
    with locked_directory(tmp_path / "data"):
        with (
            pytest.raises(DirectoryInUse, match=f"data directory .*data is in use by process {os.getpid()}"),
            locked_directory(tmp_path / "data"),
        ):
            pass
        assert (tmp_path / "data" / "lock").read_text() == f"{os.getpid()}\n"


def test_directory_that_was_let_go_can_be_used_again(tmp_path: Path) -> None:
    """Leaving the block, also by an error, frees the directory."""
    with pytest.raises(LookupError), locked_directory(tmp_path):
        raise LookupError
    with locked_directory(tmp_path):
        pass


@pytest.mark.slow
def test_directory_of_a_killed_process_is_free(tmp_path: Path) -> None:
    """SIGKILL leaves no stale lock behind."""
    program = (
        "import os, signal, sys; from pathlib import Path; from fairlog.directory import locked_directory\n"
        "with locked_directory(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    with locked_directory(tmp_path):
        pass


@pytest.mark.parametrize("name", ["thesis.tex", ".bashrc", "cluster.txt", "restored-from.json"])
def test_directory_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    """A mistyped path is told before anything is mixed in, not even a lock."""
    (tmp_path / name).write_text("")
    (tmp_path / "lost+found").mkdir()
    with (
        pytest.raises(DirectoryUnusable, match=rf"is not a data directory, and not empty \(it has '{name}'\): choose"),
        locked_directory(tmp_path),
    ):
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([name, "lost+found"])


@pytest.mark.parametrize(
    "names",
    [
        ["lost+found"],
        ["lock"],
        ["lock", "admin-token.new"],
        ["lock", "admin-token", "last-run", "lost+found"],
        ["lock", "broker-secret", "broker-secret.new"],
        ["lock", "broker-secret", "copies"],
        ["lock", "admin-token", "cluster", "notes.txt"],
        ["backup.json", "cluster", "shards"],
        ["backup.json", "cluster", "datalog"],
        ["backup.json.new"],
        ["restoring.json", "cluster", "shards"],
        ["restoring.json", "cluster", "datalog"],
        ["shards"],
    ],
    ids=" ".join,
)
def test_directory_that_may_be_a_nodes_is_accepted(tmp_path: Path, names: list[str]) -> None:
    """New file systems, first starts that were cut short, backups; and data of which a part is missing."""
    for name in names:
        (tmp_path / name).write_text("")
    with locked_directory(tmp_path):
        pass


def test_directory_that_cannot_be_made_is_refused_saying_why(tmp_path: Path) -> None:
    """A file in the way is named."""
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DirectoryUnusable, match=r"cannot use the data directory .*file/data: Not a directory"),
        locked_directory(tmp_path / "file" / "data"),
    ):
        pass
    with (
        pytest.raises(DirectoryUnusable, match=r"cannot use the data directory .*file: Not a directory"),
        locked_directory(tmp_path / "file"),
    ):
        pass


def test_directory_on_a_full_disk_is_refused_saying_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room for the process id is told like any other that cannot be written."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(DirectoryUnusable, match=r"cannot write .*lock: No space left on device"),
        locked_directory(tmp_path),
    ):
        pass


def test_directory_that_cannot_be_locked_is_refused_saying_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks is not taken for another node."""

    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", without_locks)
    with pytest.raises(DirectoryUnusable, match=r"cannot lock .*lock: No locks"), locked_directory(tmp_path):
        pass


def test_start_beside_a_look_at_the_directory_goes_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks whether it is in use shares its lock for an instant: a node that starts just then waits for that."""
    with locked_directory(tmp_path):
        pass
    looking = ExitStack()
    looking.enter_context(unused_directory(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _seconds: looking.close())
    with locked_directory(tmp_path):
        assert is_in_use(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is dying is not waited for."""
    monkeypatch.setattr(directory_module, "_DYING_S", 0.0)


def test_shard_in_use_is_refused_naming_the_process(tmp_path: Path, impatient: None) -> None:
    """By the next process of the shard, by the next supervisor, and by tools, until the process is gone."""
    descriptor = hold_shard(tmp_path, ShardNumber(1))
    with pytest.raises(DirectoryInUse, match=f"shards/1 is in use by process {os.getpid()}"):
        hold_shard(tmp_path, ShardNumber(1))
    with pytest.raises(DirectoryInUse, match="shards/1 is in use by process"):
        wait_for_shards(tmp_path)
    assert is_in_use(tmp_path)
    os.close(descriptor)
    wait_for_shards(tmp_path)
    assert not is_in_use(tmp_path)
    os.close(hold_shard(tmp_path, ShardNumber(1)))


def test_shard_of_a_dying_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is free as soon as the process is gone."""
    descriptor = hold_shard(tmp_path, ShardNumber(0))
    monkeypatch.setattr(time, "sleep", lambda _seconds: os.close(descriptor))
    wait_for_shards(tmp_path)
