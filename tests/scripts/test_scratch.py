"""scripts/scratch.py: where the tests' files are, and when they go."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import scratch


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directories stand for memory, which has room, and for the system's."""
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(scratch, "ROOM", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))


def test_files_are_in_memory_and_go(tmp_path: Path) -> None:
    with scratch.directory() as made:
        (made / "file").touch()
        assert made.parent == tmp_path / "memory"
    assert not made.exists()


def test_files_of_a_run_that_is_not_green_stay_and_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), scratch.directory() as made:
        sys.exit(1)
    assert made.is_dir()
    assert str(made) in capsys.readouterr().out


@pytest.mark.parametrize(("memory", "room"), [("memory", 1 << 60), ("missing", 1)])
def test_files_are_on_the_disk_without_memory_or_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, room: int
) -> None:
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / memory)
    monkeypatch.setattr(scratch, "ROOM", room)
    with scratch.directory() as made:
        assert made.parent == tmp_path / "disk"
