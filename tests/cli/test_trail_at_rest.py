"""Commands that change the files of a stopped node write their line into the audit trail that its settings name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlog.cli.trail_at_rest import noted
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.config_sources import load
from fairlog.data_directory import CLUSTER, read_cluster_store
from fairlog.supervisor import changes
from fairlog.trail import Action
from fairlog_types import StorageFailure
from tests.cli.in_process import FairlogCommand


class AtRest:
    """A node's data directory, and its settings."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        EmbeddedStore.prepare(self.data / CLUSTER, node_id=1, group_journal_count=16, shards=3)
        self.trail = directory / "trail.jsonl"
        self.config = directory / "fairlog.toml"
        self.config.write_text(f'data_dir = "{self.data}"\n[trail]\nfile = "{self.trail}"\n', encoding="utf-8")
        self.password = directory / "password"
        self.password.write_text("a secret, of alice\n", encoding="utf-8")

    @property
    def lines(self) -> Sequence[Mapping[str, Any]]:
        return [json.loads(line) for line in self.trail.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def node(tmp_path: Path) -> AtRest:
    return AtRest(tmp_path)


def test_changes_of_shards_have_their_lines(fairlog: FairlogCommand, node: AtRest) -> None:
    """With the new shard's number, and the process that serves it; also one that is refused."""
    assert fairlog("shard", "move", "2", "--to", "0", "--config", node.config)[0] == 0
    assert fairlog("shard", "add", "--config", node.config)[0] == 0
    status, _, errors = fairlog("shard", "move", "9", "--to", "0", "--config", node.config)
    assert status == 1
    assert fairlog("shard", "list", "--config", node.config)[0] == 0
    assert [(line["action"], line["on"], line["outcome"], line.get("to")) for line in node.lines] == [
        ("move shard", "2", "done", 0),
        ("add shard", "3", "done", None),
        ("move shard", "9", errors.removeprefix("fairlog: ").removesuffix("\n"), 0),
    ]
    assert {(line["principal"], line["peer"], line["by"]) for line in node.lines} == {("", "", "directory")}
    assert node.trail.stat().st_mode & 0o777 == 0o600


def test_changes_of_users_have_their_lines(
    fairlog: FairlogCommand, node: AtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment may name the trail as well. No line has the password."""
    monkeypatch.setenv("FAIRLOG_TRAIL_FILE", str(node.trail))
    where = ("--data-dir", node.data)
    assert fairlog("user", "add", "alice", "--password-file", node.password, *where)[0] == 0
    assert fairlog("user", "add", "alice", "--password-file", node.password, *where)[0] == 1
    assert fairlog("user", "password", "alice", "--password-file", node.password, *where)[0] == 0
    assert fairlog("user", "list", *where)[0] == 0
    assert fairlog("user", "delete", "alice", *where)[0] == 0
    assert [(line["action"], line["on"], line["outcome"] == "done") for line in node.lines] == [
        ("alter user", "alice", True),
        ("alter user", "alice", False),
        ("alter user", "alice", True),
        ("delete user", "alice", True),
    ]
    assert "of alice" not in node.trail.read_text(encoding="utf-8")


def test_trail_that_cannot_be_written_refuses_the_change(fairlog: FairlogCommand, node: AtRest) -> None:
    """As it refuses a node's start."""
    node.trail.mkdir()
    status, _, errors = fairlog("user", "add", "alice", "--password-file", node.password, "--config", node.config)
    assert status == 1
    assert "trail.file" in errors
    assert errors.endswith("; nothing was changed\n")
    assert not read_cluster_store(node.data).users


def test_change_that_the_disk_has_refused_may_have_been_made(
    fairlog: FairlogCommand, node: AtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageFailure("the disk is gone")

    monkeypatch.setattr(changes, "write", fail)
    assert fairlog("shard", "move", "2", "--to", "0", "--config", node.config)[0] == 1
    (line,) = node.lines
    assert (line["outcome"], line["reason"]) == ("unknown", "the disk is gone")


def test_change_whose_line_cannot_be_written_is_said(
    fairlog: FairlogCommand, node: AtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk shows only with the line. Nothing but the error is printed."""
    monkeypatch.setenv("FAIRLOG_TRAIL_FILE", "/dev/full")
    status, out, errors = fairlog("user", "add", "alice", "--password-file", node.password, "--data-dir", node.data)
    assert (status, out) == (1, "")
    assert errors.startswith("fairlog: alter user alice: done, but the audit trail /dev/full (trail.file) cannot be")
    assert "alice" in read_cluster_store(node.data).users


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_change_that_was_cut_short_may_have_been_made(
    node: AtRest, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    monkeypatch.setenv("FAIRLOG_TRAIL_FILE", str(node.trail))
    settings = load(flags={"data_dir": node.data}, file=None)
    with pytest.raises(error), noted(settings, Action.MOVE_SHARD, "2", to=0):
        raise error
    (line,) = node.lines
    assert (line["action"], line["on"], line["outcome"], line["to"]) == ("move shard", "2", "unknown", 0)


def test_trail_that_root_has_made_is_that_of_the_node(
    fairlog: FairlogCommand, node: AtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the node could not write to it, and would not start. One that is there stays whose it is."""
    given: list[tuple[int, int, int]] = []

    def give(made: int, user: int, group: int) -> None:
        given.append((os.fstat(made).st_ino, user, group))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", give)
    for _ in range(2):
        assert fairlog("shard", "move", "2", "--to", "0", "--config", node.config)[0] == 0
    owner = node.data.stat()
    assert given == [(node.trail.stat().st_ino, owner.st_uid, owner.st_gid)]


@pytest.mark.parametrize("is_dangling", [True, False])
def test_root_follows_no_link(
    fairlog: FairlogCommand, node: AtRest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_dangling: bool
) -> None:
    """Who owns the trail's directory would choose a file of root's."""
    target = tmp_path / "of root"
    if not is_dangling:
        target.touch()
    node.trail.symlink_to(target)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda *_: pytest.fail("the target was given away"))
    status, _, errors = fairlog("shard", "move", "2", "--to", "0", "--config", node.config)
    assert (status, "it is a symbolic link; nothing was changed" in errors) == (1, True), errors
    assert target.exists() != is_dangling
    assert is_dangling or target.read_bytes() == b""
