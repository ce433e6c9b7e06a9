"""Failpoints: unarmed they are nothing; armed they strike once, at the nth time, under a known name."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import failpoints
from tests.crash.over_shards import TOGETHER
from tests.crash.test_sinks_over_shards import POINTS as POINTS_OF_SINKS

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.arm({})


def test_failpoint_unarmed_does_nothing() -> None:
    """Reaching a point costs nothing and does nothing."""
    failpoints.reach("journal.flush.before")


def test_failpoint_armed_to_fail_raises_once_at_the_nth_time() -> None:
    """The nth passage raises an I/O error; those before, those after and other points do not."""
    failpoints.arm({"FAIRLOG_FAILPOINT": "journal.flush.before:fail:2"})
    failpoints.reach("journal.flush.before")
    failpoints.reach("journal.flush.after")
    with pytest.raises(OSError, match=r"journal\.flush\.before") as caught:
        failpoints.reach("journal.flush.before")
    assert caught.value.errno == errno.EIO
    failpoints.reach("journal.flush.before")


@pytest.mark.slow
def test_failpoint_armed_to_kill_kills_the_process() -> None:
    """The process is gone by SIGKILL: nothing is cleaned up."""
    program = (
        "from journal.failpoints import arm, reach; arm({'FAIRLOG_FAILPOINT': 'journal.append.after:kill:1'}); "
        "reach('journal.append.after'); print('alive')"
    )
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b""


@pytest.mark.parametrize(
    "text",
    [
        "nowhere:kill:1",
        "journal.flush.before",
        "journal.flush.before:burn:1",
        "journal.flush.before:kill:0",
        "journal.flush.before:kill:x",
    ],
)
def test_failpoint_specification_that_is_wrong_is_refused(text: str) -> None:
    """A crash test that names nothing must not pass for one that found nothing."""
    with pytest.raises(ValueError, match="FAIRLOG_FAILPOINT"):
        failpoints.arm({"FAIRLOG_FAILPOINT": text})


@pytest.mark.slow
def test_failpoint_in_the_environment_is_armed_by_the_program_only() -> None:
    """An import arms nothing, and cannot end the program that imports: whoever runs a node arms."""
    program = "from journal.failpoints import reach; reach('journal.append.after'); print('alive')"
    environment = {"FAIRLOG_FAILPOINT": "journal.append.after:kill:1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"alive\n")


@pytest.mark.slow
def test_node_with_a_wrong_failpoint_ends_with_a_sentence(tmp_path: Path) -> None:
    """The names are listed, and nothing is run."""
    data = tmp_path / "data"
    command = [sys.executable, "-m", "fairlog.cli", "serve", "--data-dir", str(data)]
    environment = {"FAIRLOG_FAILPOINT": "bogus", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("fairlog: FAIRLOG_FAILPOINT='bogus' is not ")
    assert "journal.flush.before" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not data.exists()


def test_failpoint_unregistered_name_is_our_bug() -> None:
    """While any point is armed, reaching one that is not in the table stops."""
    failpoints.arm({"FAIRLOG_FAILPOINT": "journal.flush.before:fail:1"})
    with pytest.raises(AssertionError, match="no failpoint"):
        failpoints.reach("no.such.point")


def test_failpoint_names_in_the_code_are_all_registered() -> None:
    """Each `reach` in the rooms names a row, and each row of the journal and of what shards do together is reached."""
    reached: set[str] = set()
    for room in ("journal", "partition", "coordinator", "copier", "shard", "fairlog"):
        for module in (ROOT / room).rglob("*.py"):
            if module.name != "failpoints.py":
                reached |= set(re.findall(r'\breach\(\s*"([^"]+)"', module.read_text()))
    assert reached <= {*failpoints.FAILPOINTS, *failpoints.BETWEEN_SHARDS}
    assert {name for name in failpoints.FAILPOINTS if name.startswith("journal.")} <= reached
    assert set(failpoints.BETWEEN_SHARDS) <= reached


def test_each_point_between_shards_has_its_kill() -> None:
    """In one of the two tests that kill a process there, while shards do something together."""
    killed = {*TOGETHER, *(point for point, _process in POINTS_OF_SINKS)}
    assert set(failpoints.BETWEEN_SHARDS) <= killed


def test_point_between_shards_can_only_kill() -> None:
    """No disk is asked there that could refuse."""
    name = next(iter(failpoints.BETWEEN_SHARDS))
    with pytest.raises(ValueError, match=name):
        failpoints.arm({"FAIRLOG_FAILPOINT": f"{name}:fail:1"})
