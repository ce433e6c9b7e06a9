"""Go, for the Go client's programs in tests/engines: found on the path. It is not installed: Debian 12's is too old.

A Go that is older than go.mod requires, down to VERSION_MIN, downloads the newer toolchain from the module proxy
itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess

VERSION_MIN = (1, 21)

MISSING = (
    f"the Go client's programs need Go {VERSION_MIN[0]}.{VERSION_MIN[1]} or newer on the path: https://go.dev/dl "
    "(Debian has one from Debian 13 on: `apt-get install golang-go`)"
)


def find() -> str | None:
    """The path of a `go` that is new enough, or None."""
    program = shutil.which("go")
    if program is None:
        return None
    said = subprocess.run([program, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    return program if version and (int(version[1]), int(version[2])) >= VERSION_MIN else None
