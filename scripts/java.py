"""A Java for Spark's tests: found by JAVA_HOME or on the path, or installed from Debian's packages (`debian.py`)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 17
"""Spark 4 requires 17."""

PACKAGES = ("openjdk-17-jre-headless",)

MISSING = (
    f"Spark's tests need Java {VERSION_MIN} or newer: set JAVA_HOME, or install Debian's {PACKAGES[0]} "
    "(as root, python3 scripts/debian.py does)"
)


def find() -> str | None:
    """The path of a `java` that is new enough, or None."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None or not Path(program).exists():
        return None
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    return program if version and int(version[1]) >= VERSION_MIN else None
