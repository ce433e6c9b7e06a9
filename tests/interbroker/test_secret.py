"""The file by which the processes of a data directory know each other."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fairlog.interbroker.secret import FILE_NAME, load, load_or_make
from fairlog_types import StorageFailure


def test_secret_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    """32 bytes, the same at each start; in a file that only its user can read."""
    secret = load_or_make(tmp_path)
    assert len(secret) == 32
    assert load_or_make(tmp_path) == load(tmp_path) == secret
    file = tmp_path / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == secret.hex() + "\n"
    assert [each.name for each in tmp_path.iterdir()] == [FILE_NAME]


def test_secret_of_another_directory_is_another(tmp_path: Path) -> None:
    """It is random."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_or_make(tmp_path / "a") != load_or_make(tmp_path / "b")


def test_draft_that_a_killed_start_has_left_is_replaced(tmp_path: Path) -> None:
    """The next start makes the secret."""
    (tmp_path / f"{FILE_NAME}.new").write_text("half")
    assert len(load_or_make(tmp_path)) == 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """They may have read it, so it is worth nothing any more."""
    load_or_make(tmp_path)
    (tmp_path / FILE_NAME).chmod(mode)
    with pytest.raises(StorageFailure, match=rf"{FILE_NAME} can be read by other users \(mode {mode:o}\): stop all"):
        load_or_make(tmp_path)


@pytest.mark.parametrize("content", [b"", b"00" * 31 + b"\n", b"00" * 40, b"x" * 64, b"\xff" * 64])
def test_file_without_a_secret_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    """Nothing is guessed: an empty secret would let everybody in."""
    (tmp_path / FILE_NAME).write_bytes(content)
    (tmp_path / FILE_NAME).chmod(0o600)
    with pytest.raises(StorageFailure, match=FILE_NAME):
        load(tmp_path)


def test_secret_that_is_missing_is_refused_by_who_does_not_make_it(tmp_path: Path) -> None:
    """A process that makes its own would know nobody."""
    with pytest.raises(StorageFailure, match=f"{FILE_NAME} cannot be used: .*No such file"):
        load(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_secret_that_cannot_be_made_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """The directory is missing."""
    with pytest.raises(StorageFailure, match=f"{FILE_NAME} cannot be made: .*No such file"):
        load_or_make(tmp_path / "gone")
