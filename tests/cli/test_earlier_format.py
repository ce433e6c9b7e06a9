"""A directory that an earlier version has written is refused by whatever would read it, in one sentence."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from fairlog.directory import DirectoryUnusable, locked_directory
from fairlog_types import JournalPosition
from journal.segment import (
    VERSIONS,
    Fsync,
    JournalKind,
    SegmentHeader,
    encode_segment_header,
    segment_name,
)
from tests.cli.in_process import FairlogCommand, fairlog_command

START = JournalPosition(0)


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process: exit code, stdout, stderr."""
    return fairlog_command(monkeypatch, capsys)


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """What an earlier node may have left, where it had it; its journals' frames do not matter."""
    directory = tmp_path / "data"
    for name in ("cluster", "datalog"):
        (directory / name).mkdir(parents=True)
        (directory / name / "data.mdb").write_bytes(b"read by nobody here")
    header = encode_segment_header(SegmentHeader(JournalKind.GROUP, Fsync.COMMIT, 5, START, START))
    content = bytearray(header[:60])
    struct.pack_into("<H", content, 8, VERSIONS[JournalKind.GROUP] - 1)
    for number in range(2):
        journal = directory / "journals" / "group" / str(number)
        journal.mkdir(parents=True)
        (journal / segment_name(START)).write_bytes(content + crc32c(content).to_bytes(4, "little") + b"frames")
    (directory / "last-run").write_text("boot closed")
    return directory


@pytest.fixture
def fairlog_in_its_own_process() -> FairlogCommand:
    """For the node, which sets up logging for good."""

    def run(*arguments: object) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "fairlog.cli", *map(str, arguments)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    return run


REFUSAL = (
    "was written by an earlier Fairlog, whose layout and journals this one does not read: go on with that version, or "
    "make a backup with it (fairlog backup) and start this one in a copy of the backup"
)


def files_of(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.slow
def test_start_in_a_directory_of_an_earlier_format_is_refused_with_what_to_do(
    fairlog_in_its_own_process: FairlogCommand, earlier: Path
) -> None:
    """One sentence, before anything is read or changed: stay with that version, or take its backup along."""
    before = files_of(earlier)
    found = fairlog_in_its_own_process("serve", "--data-dir", earlier, "--listen", "127.0.0.1:0", "--admin", "off")
    assert found == (1, "", f"fairlog: {earlier} {REFUSAL}\n")
    assert files_of(earlier) == before


def before_any_topic(earlier: Path) -> None:
    shutil.rmtree(earlier / "journals")


def without_data_logs(earlier: Path) -> None:
    shutil.rmtree(earlier / "datalog")


def with_a_restore_begun(earlier: Path) -> None:
    (earlier / "restoring.json").touch()


def with_a_restore_done(earlier: Path) -> None:
    (earlier / "restored-from.json").touch()
    shutil.rmtree(earlier / "journals")


STATES = [before_any_topic, without_data_logs, with_a_restore_begun, with_a_restore_done]


@pytest.mark.parametrize("state", STATES, ids=[state.__name__ for state in STATES])
def test_directory_that_an_earlier_version_has_left_in_any_state_is_refused(
    earlier: Path, state: Callable[[Path], None]
) -> None:
    """Also one of which a part is missing, or in which that version has made journals while it restored a backup."""
    state(earlier)
    with pytest.raises(DirectoryUnusable) as refused, locked_directory(earlier):
        pass
    assert str(refused.value) == f"{earlier} {REFUSAL}"


@pytest.mark.parametrize("note", ["backup.json", "backup.json.new", "restoring.json"])
def test_backup_by_an_earlier_version_is_not_refused(earlier: Path, note: str) -> None:
    """Its data logs lie where that version has them; the start in it decides."""
    shutil.rmtree(earlier / "journals")
    (earlier / note).touch()
    with locked_directory(earlier):
        pass


@pytest.mark.parametrize("command", ["verify", "backup", "audit", "consume"])
def test_directory_of_an_earlier_format_is_refused_with_what_to_do(
    fairlog: FairlogCommand, earlier: Path, command: str
) -> None:
    """The same sentence, and nothing is looked at or written."""
    target = earlier.parent / "backup"
    before = files_of(earlier)
    more = {"backup": (target, "--data-dir"), "consume": ("topic", "--data-dir")}
    arguments = (*more.get(command, ()), earlier)
    code, out, err = fairlog(command, *arguments)
    assert (code, out, err) == (2 if command == "audit" else 1, "", f"fairlog: {earlier} {REFUSAL}\n")
    assert files_of(earlier) == before
    assert not target.exists()


def test_segment_of_an_earlier_format_is_not_called_damaged(fairlog: FairlogCommand, earlier: Path) -> None:
    """`inspect` says what it is, and shows nothing of it."""
    segment = earlier / "journals" / "group" / "1" / segment_name(START)
    code, out, err = fairlog("inspect", segment)
    assert (code, out) == (1, "")
    assert f"{segment}: the journal is of an earlier format, which this Fairlog does not read" in err
