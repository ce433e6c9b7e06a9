"""Programs that tests need and pip does not have: found on the path, or installed from Debian's packages.

    python3 scripts/debian.py        installs missing ones with apt-get

Only this script, and scripts/test.py on CI, installs anything outside .venv, and only as root, because apt-get needs
it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

import browser
import c_compiler
import iproute
import java
import jdk
import kcat
import maven
import postgresql


def ensure() -> None:
    """Find all programs, or install them. Exits with an error message if this is not possible."""
    for program in (browser, c_compiler, iproute, kcat, java, jdk, maven, postgresql):
        if program.find() is None:
            _install(program.PACKAGES, program.MISSING)
        if program.find() is None:
            sys.exit(program.MISSING)


def _install(packages: Sequence[str], missing: str) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(missing)
    print(f"installing {' and '.join(packages)} …", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "--quiet", "--quiet", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stdout[-2000:]}\napt-get {command[0]} failed: see above; {missing}")


if __name__ == "__main__":
    ensure()
