"""A Java compiler, for the programs in tests/engines and the benchmark: `javac`, found by JAVA_HOME or on the path."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGES = ("openjdk-17-jdk-headless",)

MISSING = (
    "programs in Java are compiled, and there is no javac: set JAVA_HOME to a JDK of 17 or newer, or "
    f"install Debian's {PACKAGES[0]} (as root, python3 scripts/debian.py does)"
)


def find() -> str | None:
    """The path of `javac`, if there is one."""
    home = os.environ.get("JAVA_HOME")
    beside = shutil.which("javac", path=str(Path(home, "bin"))) if home else None
    return beside or shutil.which("javac")
