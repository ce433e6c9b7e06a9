"""PostgreSQL's server, for tests/examples/test_two_phase_commit.py: found on the path, or where Debian installs it."""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGES = ("postgresql",)

MISSING = (
    "two-phase commit is tested with PostgreSQL, and there is no initdb on the path or in /usr/lib/postgresql: "
    f"`apt-get install {' '.join(PACKAGES)}` (Debian 12 or newer), or `python3 scripts/debian.py` as root"
)


def find() -> Path | None:
    """The directory of `initdb` and `pg_ctl`, if they are installed; the newest of several versions."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    # Debian has them in a directory for each version, which is not on the path.
    found = [each.parent for each in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda each: int(each.parent.name), default=None)
