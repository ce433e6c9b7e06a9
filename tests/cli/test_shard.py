"""`fairlog shard` in a data directory that no node uses, and where there is none."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairlog.cluster.embedded import EmbeddedStore
from fairlog.data_directory import CLUSTER, read_cluster_store
from fairlog.directory import locked_directory
from fairlog.supervisor.control import NAME, control_socket
from shard.directory import FIRST_SHARD, shard_directory
from tests.cli.in_process import FairlogCommand

NOBODY = 65534


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory of three shards."""
    EmbeddedStore.prepare(tmp_path / CLUSTER, node_id=1, group_journal_count=16, shards=3)
    return tmp_path


def processes(fairlog: FairlogCommand, data: Path) -> list[int]:
    status, out, errors = fairlog("shard", "list", "--json", "--data-dir", str(data))
    assert (status, errors) == (0, "")
    return [shard["process"] for shard in json.loads(out)]


def test_shards_at_rest_are_listed_as_away(fairlog: FairlogCommand, data: Path) -> None:
    """Where they listen, the next start says."""
    status, out, _ = fairlog("shard", "list", "--data-dir", str(data))
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[1:] == [[str(k), str(k + 1), "-", str(k), "-", "away"] for k in range(3)]


def test_shard_at_rest_moves_for_the_next_start(fairlog: FairlogCommand, data: Path) -> None:
    """Into any process that there may be; which there are, the next start says."""
    status, out, _ = fairlog("shard", "move", "2", "--to", "0", "--data-dir", str(data))
    assert (status, out) == (0, "shard 2 will be served by process 0 from the next start on\n")
    assert processes(fairlog, data) == [0, 1, 0]
    assert fairlog("shard", "move", "0", "--to", "63", "--data-dir", str(data))[0] == 0
    assert processes(fairlog, data) == [63, 1, 0]


def test_shard_is_added_at_rest(fairlog: FairlogCommand, data: Path) -> None:
    """To the process that is named."""
    status, out, _ = fairlog("shard", "add", "--to", "1", "--data-dir", str(data))
    assert (status, out) == (0, "shard 3 was added: broker 4, served by process 1 from the next start on\n")
    assert processes(fairlog, data) == [0, 1, 2, 1]
    assert read_cluster_store(data).shards == 4


def test_shard_is_added_at_rest_to_a_node_of_any_id(fairlog: FairlogCommand, tmp_path: Path) -> None:
    """The id that the node was made with counts; the setting may be in the node's file."""
    EmbeddedStore.prepare(tmp_path / CLUSTER, node_id=7, group_journal_count=16, shards=1)
    shard_directory(tmp_path, FIRST_SHARD).path.mkdir(parents=True)
    status, out, errors = fairlog("shard", "add", "--to", "1", "--data-dir", str(tmp_path))
    assert (status, out, errors) == (0, "shard 1 was added: broker 8, served by process 1 from the next start on\n", "")


def test_shard_added_at_rest_goes_to_the_process_with_the_fewest(fairlog: FairlogCommand, data: Path) -> None:
    """Of those that have shards: the settings of the node, which say how many there are, may be in its file."""
    assert fairlog("shard", "move", "2", "--to", "0", "--data-dir", str(data))[0] == 0
    for added in ([0, 1, 0, 1], [0, 1, 0, 1, 0]):
        assert fairlog("shard", "add", "--data-dir", str(data))[0] == 0
        assert processes(fairlog, data) == added


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["move", "3", "--to", "0"], ": there are 3, from 0 on"),
        (["move", "1", "--to", "64"], "there is no process 64: there are at most 64, from 0 on"),
        (["add", "--to", "64"], "there is no process 64"),
    ],
)
def test_change_that_is_not_possible_is_refused(
    fairlog: FairlogCommand, data: Path, arguments: list[str], words: str
) -> None:
    """In a sentence; nothing is changed."""
    status, out, errors = fairlog("shard", *arguments, "--data-dir", str(data))
    assert (status, out) == (1, "")
    assert words in errors
    assert processes(fairlog, data) == [0, 1, 2]


def test_node_without_a_control_socket_cannot_be_asked_to_move_shards(fairlog: FairlogCommand, data: Path) -> None:
    """It is of one process, or is starting, or has a warning in its log. What to do is told."""
    with locked_directory(data):
        status, _, errors = fairlog("shard", "move", "1", "--to", "0", "--data-dir", str(data))
    assert status == 1
    assert "is in use by process" in errors
    assert "has no control socket: try again if the node is still starting; else stop it, or restart it" in errors


@pytest.fixture
def open_to_all(fairlog: FairlogCommand) -> Iterator[Path]:
    """A data directory that other users can get to, unlike one in tmp_path."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        EmbeddedStore.prepare(Path(made) / "data" / CLUSTER, node_id=1, group_journal_count=16, shards=3)
        assert processes(fairlog, Path(made) / "data") == [0, 1, 2]  # and the command has imported what it needs
        yield Path(made) / "data"


@contextmanager
def permitted(path: Path, mode: int) -> Generator[None]:
    """Within the block this process may do no more with `path` than the mode says."""
    before = path.stat().st_mode
    path.chmod(mode)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(NOBODY)  # root may do anything
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(before)


def refusal_without_permission(fairlog: FairlogCommand, data: Path, path: Path, mode: int) -> str:
    with permitted(path, mode):
        status, out, errors = fairlog("shard", "list", "--data-dir", str(data))
    assert (status, out) == (1, "")
    return errors


@pytest.mark.parametrize("mode", [0o000, 0o111])
def test_directory_that_one_may_not_look_into_is_refused(fairlog: FairlogCommand, open_to_all: Path, mode: int) -> None:
    """In a sentence, with what to do: at all, or only at what is named."""
    errors = refusal_without_permission(fairlog, open_to_all, open_to_all, mode)
    assert errors == f"fairlog: cannot look into {open_to_all}: Permission denied; run this as the node's user\n"


def test_supervisor_of_another_user_is_not_asked(fairlog: FairlogCommand, open_to_all: Path) -> None:
    """Its socket is for the node's user."""
    with control_socket(open_to_all):
        errors = refusal_without_permission(fairlog, open_to_all, open_to_all / NAME, 0o000)
    assert f"cannot connect to {open_to_all / NAME}: Permission denied; run this as the node's user" in errors


def test_store_that_one_may_not_read_is_refused(fairlog: FairlogCommand, open_to_all: Path) -> None:
    """In a sentence, with what to do."""
    errors = refusal_without_permission(fairlog, open_to_all, open_to_all / CLUSTER / "data.mdb", 0o000)
    assert "data.mdb cannot be read: Permission denied; run this as the node's user" in errors


@pytest.mark.parametrize("command", [["list"], ["add"], ["move", "0", "--to", "0"]])
def test_directory_without_data_has_no_shards(fairlog: FairlogCommand, tmp_path: Path, command: list[str]) -> None:
    """A mistyped path is not made a data directory."""
    status, _, errors = fairlog("shard", *command, "--data-dir", str(tmp_path / "typo"))
    assert status == 1
    assert "typo is no data directory of a node: name one with --data-dir" in errors
    assert not (tmp_path / "typo").exists()


def test_damaged_allotment_is_told_in_a_sentence(fairlog: FairlogCommand, data: Path) -> None:
    """With what to do."""
    (data / "allotment").write_text("{}")
    for command in (["list"], ["move", "0", "--to", "1"]):
        status, _, errors = fairlog("shard", *command, "--data-dir", str(data))
        assert status == 1
        assert "allotment does not say which process serves which shard: remove it" in errors
