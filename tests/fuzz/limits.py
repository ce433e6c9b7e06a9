"""What an input may take: so much computing, so much memory.

Time is the process's own (`ITIMER_VIRTUAL`), so that a busy machine makes no findings. Memory is how far the largest
resident size has grown since the process began to fuzz, so what leaks from one input to the next is found as well.
RLIMIT_AS makes a MemoryError of what would take all there is.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS_MAX = 1.0
"""Of computing, for one input."""

_ROOM_BYTES = 1 << 30
"""Of address space, beyond what an input may take: allocators reserve more than they use."""


class TooSlow(Exception):
    """An input took too long."""


class TooLarge(Exception):
    """An input took too much memory."""


class Limits:
    """Of one process. To be made when everything is imported."""

    def __init__(self, *, seconds_max: float, memory_bytes_max: int) -> None:
        self._seconds_max = seconds_max
        self._memory_bytes_max = memory_bytes_max
        signal.signal(signal.SIGVTALRM, self._ring)
        with open("/proc/self/statm", encoding="ascii") as statm:
            now_bytes = int(statm.read().split()[0]) * resource.getpagesize()
        most = now_bytes + memory_bytes_max + _ROOM_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
        self._before = _resident_bytes_max()

    @contextmanager
    def watch(self) -> Generator[None, None, None]:
        """Around one input. Raises TooSlow from within, TooLarge at the end."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self._seconds_max)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        now = _resident_bytes_max()
        if now - self._before > self._memory_bytes_max:
            raise TooLarge(f"{(now - self._before) >> 20} MiB more than before, at most {self._memory_bytes_max >> 20}")

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"more than {self._seconds_max} s of computing")


def _resident_bytes_max() -> int:
    """Not `ru_maxrss`, which begins with what the process had that made this one."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) << 10
