"""A wall clock that jumps: for one process, by a small library that is loaded before the C library (`clock.c`).

The library is compiled here. Monotonic clocks go on as they are, as they do when an administrator or NTP sets the time.
"""

from __future__ import annotations

import mmap
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
_OFFSET = struct.Struct("=q")


class WallClock:
    """The clock of whoever runs with its `environment`; right until it is made to jump."""

    def __init__(self, directory: Path) -> None:
        """The library and the clock's file go into `directory`. Raises CalledProcessError."""
        library, path = directory / "clock.so", directory / "clock"
        command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(library), str(SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        path.write_bytes(_OFFSET.pack(0))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), _OFFSET.size)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(path)}

    def jump(self, seconds: float) -> None:
        """From now on it is so many seconds fast; negative: slow."""
        _OFFSET.pack_into(self._offset, 0, round(seconds * 1e9))
