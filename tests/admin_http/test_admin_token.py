"""The file with the token."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fairlog.admin_http.admin_token import FILE_NAME, load_or_make, matches
from fairlog_types import StorageFailure


def test_token_is_made_once_for_the_node_alone(tmp_path: Path) -> None:
    """The first start makes it, 0600 and of 192 bits; later ones find it."""
    token = load_or_make(tmp_path)
    file = tmp_path / FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) == 32
    assert load_or_make(tmp_path) == token
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_token_of_another_directory_is_another(tmp_path: Path) -> None:
    """It is random."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert load_or_make(tmp_path / "a") != load_or_make(tmp_path / "b")


def test_token_after_a_start_that_was_killed_is_made_whole(tmp_path: Path) -> None:
    """What lies half written beside it is not taken for it."""
    (tmp_path / f"{FILE_NAME}.new").write_text("ha")
    assert len(load_or_make(tmp_path)) == 32


def test_token_that_others_could_read_is_closed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A warning says that it should be changed."""
    file = tmp_path / FILE_NAME
    file.write_text("0123456789abcdef\n")
    file.chmod(0o644)
    assert load_or_make(tmp_path) == "0123456789abcdef"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "could be read by others" in capfd.readouterr().out


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff" * 40])
def test_token_file_without_a_token_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """Nothing is guessed: an empty token would let everybody in."""
    (tmp_path / FILE_NAME).write_bytes(content)
    (tmp_path / FILE_NAME).chmod(0o600)
    with pytest.raises(StorageFailure, match=FILE_NAME):
        load_or_make(tmp_path)


def test_token_matches_itself_alone() -> None:
    """Whatever a client sends, also what is not ASCII."""
    assert matches("secret", "secret")
    for other in ("", "secre", "secrets", "SECRET", "sécret"):
        assert not matches("secret", other)
