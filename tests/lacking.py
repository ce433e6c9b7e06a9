"""Tests that are skipped, and which of them CI may skip.

Whoever runs the tests on a machine of their own may lack a program, a kernel's feature or a permission: the test that
needs it is skipped and says what is missing. CI installs what can be installed (`.ci/run`), so there a skip is a
failure, unless its reason begins with one of ALLOWED_ON_CI: no installation helps there. `tests/conftest.py` passes
each report to `judge`.

A reason with NOT_PERMITTED has to come from the system's own refusal. That our code makes nothing of what the system
offers is a defect, and no reason to skip.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import pytest

from scripts import golang

NOT_PERMITTED = "not permitted on this machine: "
TAKES_LONG = "takes long: "
ONE_PROCESS_ONLY = "one process only: "
"""Only where somebody asks for several with `--processes`."""
ALLOWED_ON_CI = (NOT_PERMITTED, TAKES_LONG, ONE_PROCESS_ONLY, golang.MISSING)
"""Go is not installed, for Debian 12 has none that is new enough."""

_REFUSALS = ("not permitted", "denied", "must be superuser")
"""What programs say when the system refuses: EPERM, EACCES, and mount(8) of a user."""


def judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    """On CI, make a failure of a skip that is not allowed there."""
    if "CI" not in os.environ or not report.skipped or hasattr(report, "wasxfail"):
        return
    assert isinstance(report.longrepr, tuple), "a skip has a place and a reason"
    path, line, said = report.longrepr
    reason = said.removeprefix("Skipped: ")
    if not reason.startswith(ALLOWED_ON_CI):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: CI has to be able to do this, and skips it: {reason}"


def refused(what: str, said: str) -> str | None:
    """The reason to skip if `said` is how a program reports the system's refusal, else None."""
    return f"{NOT_PERMITTED}{what}: {said.strip()}" if any(word in said.lower() for word in _REFUSALS) else None


@contextmanager
def small_disk(mount: Path, size: str) -> Generator[Path]:
    """A file system of its own, in memory, mounted at `mount`, which is made; `size` as for mount(8)."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(mount)]
    mounted = run(command, check=False, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C"})
    if mounted.returncode:
        reason = refused("mounting", mounted.stderr)
        assert reason is not None, mounted.stderr
        pytest.skip(reason)
    try:
        yield mount
    finally:
        run(["umount", "-l", mount], check=True)
