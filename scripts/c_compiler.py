"""A C compiler, for the small libraries that tests load under a process: one each of tests/crash and tests/history."""

from __future__ import annotations

import shutil

PACKAGES = ("gcc", "libc6-dev")

MISSING = (
    "a library for the test is compiled, and there is no cc on the path: "
    f"`apt-get install {' '.join(PACKAGES)}`, or `python3 scripts/debian.py` as root"
)


def find() -> str | None:
    """Its path, if it is there."""
    return shutil.which("cc")
