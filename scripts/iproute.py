"""ip, the program for Linux's networks: tests/limits uses it to cut a client's connection."""

from __future__ import annotations

import shutil

PACKAGES = ("iproute2",)

MISSING = (
    "a client's line is cut with ip, and there is none on the path: "
    f"`apt-get install {' '.join(PACKAGES)}`, or `python3 scripts/debian.py` as root"
)


def find() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("ip")
