"""Parts of the supervisor in the test's own process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import trio

from fairlog.config import Settings
from fairlog.data_directory import MANIFEST, RESTORING
from fairlog.directory import DirectoryUnusable
from fairlog.supervisor import supervising
from fairlog.supervisor.assignment import Halt
from fairlog.supervisor.supervising import say, supervise


async def test_process_that_is_just_ending_may_be_spoken_to() -> None:
    """Before its standard input is closed here, and after that."""
    process = await trio.lowlevel.open_process(["true"], stdin=subprocess.PIPE)
    await process.wait()
    await say(process, Halt(1))
    assert process.stdin is not None
    await process.stdin.aclose()
    await say(process, Halt(1))


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("topics", "start the node with --processes 2, or give the shard to another process first "),
        (MANIFEST, "start the node with --processes 2$"),
        (RESTORING, "start the node with --processes 2$"),
    ],
)
def test_backup_with_too_few_processes_is_not_told_to_move_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, advice: str
) -> None:
    """That would be refused: a backup is started in first."""
    (tmp_path / file).touch()
    monkeypatch.setattr(supervising, "shards_of", lambda _: 2)
    with pytest.raises(DirectoryUnusable, match=f"shard 1 .* is served by process 1, but processes is 1: {advice}"):
        supervise(Settings(data_dir=tmp_path), [], lambda _: None, {})
