"""Whether the last run's tail is known to be whole; and when a run begins, for this question."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fairlog import last_run
from fairlog.data_directory import last_run_ended
from fairlog.last_run import LastRun
from fairlog_types import LeaderEpoch, ShardNumber
from shard.directory import shard_directory
from tests.shards import shard_in


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the system's boot id; rewriting it is a reboot."""
    file = tmp_path / "boot_id"
    file.write_text("first-boot\n")
    monkeypatch.setattr(last_run, "_BOOT_ID", file)
    return file


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    return directory


def test_tail_of_a_directory_never_used_is_kept(boot: Path, data: Path) -> None:
    """There is nothing that could be lost."""
    assert LastRun.read(data).tail_kept


def test_tail_of_a_directory_without_its_note_is_not_known_to_be_kept(boot: Path, data: Path) -> None:
    """Journals without the note come from a copy that left it out, or from a first start that was cut short."""
    shard_in(data).journals.mkdir(parents=True)
    assert not LastRun.read(data).tail_kept


@pytest.mark.parametrize("reboot", [False, True])
def test_tail_of_a_run_that_ended_in_good_order_is_kept(boot: Path, data: Path, reboot: bool) -> None:
    """It was flushed, whatever happened since."""
    LastRun.read(data).begin(LeaderEpoch(1))
    LastRun.read(data).end()
    if reboot:
        boot.write_text("second-boot\n")
    assert LastRun.read(data).tail_kept


def test_tail_of_a_run_that_was_killed_is_kept_under_the_same_boot_only(boot: Path, data: Path) -> None:
    """The page cache outlives the process, and not the system."""
    LastRun.read(data).begin(LeaderEpoch(1))
    assert LastRun.read(data).tail_kept
    boot.write_text("second-boot\n")
    assert not LastRun.read(data).tail_kept


def test_tail_of_a_run_after_a_clean_one_counts_as_open_again(boot: Path, data: Path) -> None:
    """What the note says of an older run is over with the beginning of the next."""
    LastRun.read(data).begin(LeaderEpoch(1))
    LastRun.read(data).end()
    LastRun.read(data).begin(LeaderEpoch(1))
    boot.write_text("second-boot\n")
    assert not LastRun.read(data).tail_kept


def test_tail_without_a_boot_id_is_kept_by_a_clean_end_only(boot: Path, data: Path) -> None:
    """Where the system does not tell its boots apart, a kill is taken for a loss of power."""
    boot.unlink()
    LastRun.read(data).begin(LeaderEpoch(1))
    assert not LastRun.read(data).tail_kept
    LastRun.read(data).end()
    assert LastRun.read(data).tail_kept


@pytest.mark.parametrize("garbage", [b"", b"closed", b"a b c", b"first-boot open closed\n", b"\xff\xfe closed\n"])
def test_tail_with_an_unreadable_note_is_not_known_to_be_kept(boot: Path, data: Path, garbage: bytes) -> None:
    """What we did not write says nothing."""
    (data / "last-run").write_bytes(garbage)
    assert not LastRun.read(data).tail_kept


def test_loss_is_remembered_by_later_starts_until_the_next_one(boot: Path, data: Path) -> None:
    """What began before the start that found it may lack records, however good the runs since have ended."""
    run = LastRun.read(data)
    assert run.whole_since(LeaderEpoch(1)) == 0
    run.begin(LeaderEpoch(1))
    boot.write_text("second-boot\n")
    run = LastRun.read(data)
    assert run.whole_since(LeaderEpoch(2)) == 2
    run.begin(LeaderEpoch(2))
    run = LastRun.read(data)
    assert run.whole_since(LeaderEpoch(3)) == 2
    run.begin(LeaderEpoch(3))
    run.end()
    run = LastRun.read(data)
    assert run.whole_since(LeaderEpoch(4)) == 2
    run.begin(LeaderEpoch(4))
    run.failed()
    assert LastRun.read(data).whole_since(LeaderEpoch(5)) == 5


def test_start_that_never_served_leaves_the_loss_to_the_next(boot: Path, data: Path) -> None:
    """Others may have begun something in it: the next start, which is killed as well, does not count as the first."""
    LastRun.read(data).begin(LeaderEpoch(1))
    boot.write_text("second-boot\n")
    assert LastRun.read(data).whole_since(LeaderEpoch(2)) == 2
    assert LastRun.read(data).whole_since(LeaderEpoch(3)) == 3


def test_note_of_a_version_with_one_shard_has_two_words(boot: Path, data: Path) -> None:
    """Nobody else's transactions began there."""
    (data / "last-run").write_text("first-boot open\n")
    run = LastRun.read(data)
    assert run.tail_kept
    assert run.whole_since(LeaderEpoch(7)) == 0


def test_run_noted_leaves_no_draft_behind(boot: Path, data: Path) -> None:
    """The note is replaced in one step, so a crash finds the old one or the new one."""
    LastRun.read(data).begin(LeaderEpoch(1))
    assert [path.name for path in data.iterdir()] == ["last-run"]


def test_tail_of_a_run_in_which_a_write_failed_is_not_known_to_be_kept(boot: Path, data: Path) -> None:
    """What is in memory may never come to the disk; neither the same boot nor an orderly end changes that."""
    run = LastRun.read(data)
    run.begin(LeaderEpoch(1))
    run.failed()
    assert not LastRun.read(data).tail_kept
    run.end()
    assert not LastRun.read(data).tail_kept


def test_tail_that_was_cut_at_the_start_is_not_kept_until_the_run_has_begun(boot: Path, data: Path) -> None:
    """A crash behind the cut leaves no trace of it in the journals, so it is noted before."""
    LastRun.read(data).begin(LeaderEpoch(1))
    run = LastRun.read(data)
    assert run.tail_kept
    run.tail_cut(interrupted=False)
    assert not run.tail_kept
    assert not LastRun.read(data).tail_kept
    run.begin(LeaderEpoch(1))
    assert LastRun.read(data).tail_kept


def test_tail_of_a_write_that_a_kill_interrupted_is_kept(boot: Path, data: Path) -> None:
    """Nobody was answered for the frame that is there in part; all before it is there."""
    LastRun.read(data).begin(LeaderEpoch(1))
    run = LastRun.read(data)
    run.tail_cut(interrupted=True)
    assert run.tail_kept
    assert LastRun.read(data).tail_kept


def test_tail_that_looks_interrupted_behind_an_orderly_end_is_not_kept(boot: Path, data: Path) -> None:
    """Such a run has interrupted nothing: something else has damaged the journal."""
    LastRun.read(data).begin(LeaderEpoch(1))
    LastRun.read(data).end()
    run = LastRun.read(data)
    run.tail_cut(interrupted=True)
    assert not run.tail_kept
    assert not LastRun.read(data).tail_kept


def test_failed_write_that_cannot_be_noted_is_logged(boot: Path, data: Path) -> None:
    """The disk that failed may refuse the note, too."""
    run = LastRun.read(data)
    (data / "last-run.new").mkdir()
    with capture_logs() as logs:
        run.failed()
    assert [line["log_level"] for line in logs] == ["warning"]


def test_tail_of_a_shard_follows_from_its_own_note(boot: Path, data: Path) -> None:
    """Of several shards one may be killed and another closed; the note of the whole directory has no say."""
    first, second = (shard_directory(data, ShardNumber(number)) for number in range(2))
    first.journals.mkdir(parents=True)
    second.path.mkdir()
    (data / "last-run").write_text("first-boot closed\n")
    assert not LastRun.read(data, first).tail_kept
    assert LastRun.read(data, second).tail_kept
    LastRun.read(data, first).begin(LeaderEpoch(1))
    LastRun.read(data, second).begin(LeaderEpoch(1))
    assert last_run_ended(data) == "open"
    LastRun.read(data, first).end()
    assert last_run_ended(data) == "open"
    boot.write_text("second-boot\n")
    assert (LastRun.read(data, first).tail_kept, LastRun.read(data, second).tail_kept) == (True, False)
    LastRun.read(data, second).end()
    assert last_run_ended(data) == "closed"
