"""kcat, librdkafka's command-line client from Debian: tests/clients/test_kcat.py runs it."""

from __future__ import annotations

import shutil

PACKAGES = ("kcat",)

MISSING = (
    "the wire is tested with kcat, and there is none on the path: "
    f"`apt-get install {' '.join(PACKAGES)}` (Debian 12 or newer), or `python3 scripts/debian.py` as root"
)


def find() -> str | None:
    """Its path, if it is installed."""
    return shutil.which("kcat")
