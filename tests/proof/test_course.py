"""Slices as processes: their counts, what is kept of those that have found something, and that one ends all."""

from __future__ import annotations

import errno
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import trio

from fairlog_types import CorruptStorage
from scripts.node_process import NodeDidNotStart, NodeNotReady
from tests.crash.harness import CrashTestFailed
from tests.proof.amounts import Amount, Kind, Progress
from tests.proof.course import BROKEN, COUNTS, NO_VERDICT, Course
from tests.proof.slices import verdict_on

pytestmark = pytest.mark.slow

KIND = Kind("images", Amount.IMAGES, 6, 2)
SLEEPER = Kind("kills", Amount.KILLS, 1, 1)
LONG_S = 3600.0


def course(
    directory: Path, program: Callable[[Kind, str], str], kinds: tuple[Kind, ...] = (KIND,), jobs: int = 2
) -> Course:
    """One whose slices are these Python programs; `directory` is a variable in them."""

    def command(kind: Kind, seed: str, place: Path) -> Sequence[str]:
        return sys.executable, "-c", f"directory = {str(place)!r}\n{program(kind, seed)}"

    return Course(Progress("s", kinds), directory, jobs, print, command)


def counting(_kind: Kind, _seed: str) -> str:
    counts = json.dumps({Amount.IMAGES.value: 2})
    return f"open(directory + '/{COUNTS}', 'w').write('{counts}')"


def test_course_goes_on_until_enough_is_done_and_leaves_nothing(tmp_path: Path) -> None:
    """Slices that find nothing are counted, and their directories are gone."""
    done = course(tmp_path, counting)
    trio.run(done.run, LONG_S)
    assert done.progress.complete
    assert done.progress.begun["images"] == 3
    assert list(tmp_path.iterdir()) == []


def test_course_begins_nothing_when_the_time_is_over(tmp_path: Path) -> None:
    """The time is the caller's limit, whatever is missing."""
    done = course(tmp_path, counting)
    trio.run(done.run, 0.0)
    assert done.progress.begun.total() == 0


def test_course_ends_at_the_first_broken_promise_and_keeps_its_evidence(tmp_path: Path) -> None:
    """The others are interrupted; what the slice has said stays."""

    def program(kind: Kind, _seed: str) -> str:
        return "import time; time.sleep(3600)" if kind is SLEEPER else f"print('lost'); raise SystemExit({BROKEN})"

    done = course(tmp_path, program, (KIND, SLEEPER))
    trio.run(done.run, LONG_S)
    assert done.progress.broken == ["s.images.0"]
    assert [path.name for path in tmp_path.iterdir()] == ["s.images.0"]
    assert (tmp_path / "s.images.0" / "log").read_text() == "lost\n"


def test_course_ends_well_when_what_was_interrupted_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory cannot be deleted then; the table is to be written all the same."""

    def program(kind: Kind, _seed: str) -> str:
        return "import time; time.sleep(3600)" if kind is SLEEPER else f"raise SystemExit({BROKEN})"

    def not_empty(_directory: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.ENOTEMPTY, "somebody has made a file meanwhile")

    monkeypatch.setattr(shutil, "rmtree", not_empty)
    done = course(tmp_path, program, (KIND, SLEEPER))
    trio.run(done.run, LONG_S)
    assert done.progress.broken == ["s.images.0"]


def test_course_goes_on_behind_a_slice_without_a_verdict_and_names_it(tmp_path: Path) -> None:
    """It has counted nothing, so another one takes its place; it is no success, either."""

    def program(kind: Kind, seed: str) -> str:
        return f"raise SystemExit({NO_VERDICT})" if seed.endswith(".0") else counting(kind, seed)

    done = course(tmp_path, program, jobs=1)
    trio.run(done.run, LONG_S)
    assert done.progress.complete
    assert done.progress.undecided == ["s.images.0"]
    assert done.progress.begun["images"] == 4


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CrashTestFailed("violations"), BROKEN),
        (CorruptStorage("the disk"), BROKEN),
        (NodeDidNotStart("it ended"), BROKEN),
        (caused(CrashTestFailed("it does not start again"), NodeDidNotStart("it ended")), BROKEN),
        (caused(CrashTestFailed("it does not start again"), NodeNotReady("20 s")), NO_VERDICT),
        (TimeoutError("a client"), NO_VERDICT),
    ],
)
def test_verdict_tells_a_broken_promise_from_a_slow_machine(error: Exception, expected: int) -> None:
    """What a node has done is held against it; what the machine did not do in time is not."""
    assert verdict_on(error) == expected
