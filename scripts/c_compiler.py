"""A C compiler, for small libraries that tests preload into a process: one in tests/crash, one in tests/history."""

from __future__ import annotations

import shutil

PACKAGES = ("gcc", "libc6-dev")

MISSING = (
    "a library for the test is compiled, and there is no cc on the path: "
    f"`apt-get install {' '.join(PACKAGES)}`, or `python3 scripts/debian.py` as root"
)


def find() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("cc")
