"""scripts/scratch.py: where the tests' files are, and when they go."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest
import scratch


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two directories stand for memory, where 1024 bytes are available, and for the system's."""
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(scratch, "ROOM", 1)
    monkeypatch.setattr(scratch, "MEMORY_INFORMATION", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    1 kB\n", "ascii")
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


def test_next_run_deletes_what_earlier_ones_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit), scratch.directory() as in_memory:
        sys.exit(1)
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "ROOM", 1 << 60)
        with pytest.raises(KeyboardInterrupt), scratch.directory() as on_disk:
            raise KeyboardInterrupt
    assert on_disk.parent == tmp_path / "disk"
    assert on_disk.is_dir()
    with scratch.directory():
        assert not in_memory.exists()
        assert not on_disk.exists()


def test_run_that_goes_on_keeps_its_files_beside_another_one() -> None:
    with scratch.directory() as first:
        with scratch.directory() as second:
            assert first.is_dir()
            assert second != first
        assert first.is_dir()


@pytest.mark.parametrize(("memory", "room"), [("memory", 1 << 60), ("memory", 1025), ("missing", 1)])
def test_files_are_on_the_disk_without_memory_or_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str, room: int
) -> None:
    monkeypatch.setattr(scratch, "MEMORY", tmp_path / memory)
    monkeypatch.setattr(scratch, "ROOM", room)
    with scratch.directory() as made:
        assert made.parent == tmp_path / "disk"
