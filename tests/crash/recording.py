"""Everything that a node does to its files, written down in order: by LMDB in C and by the node itself alike.

The node runs with a small library loaded before the C library (`recorder.c`, compiled here); so its own code has no
part in this, and what is recorded is what is shipped. `python -m tests.crash.recording serve …` is the node with the
one thing added that does not pass the C library: the syncs of io_uring.

`read_trace` gives the events, each with the number of bytes of the trace up to and with it. A client that looks at the
trace's size when it has an answer knows by that number what had been done before: `Dated` keeps such numbers.

Event: bytes u32 | kind u8 | flags u8 | path bytes u16 | inode u64 | number u64 | path | data, in the machine's order.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TypeVar

from tests.crash import uneven_flushes

SOURCE = Path(__file__).with_name("recorder.c")
PROGRAM = ("-m", "tests.crash.recording")
"""To be run in place of `-m fairlog.cli`."""

_EVENT = struct.Struct("=IBBHQQ")

K = TypeVar("K")
V = TypeVar("V")


class Kind(IntEnum):
    """What was done. `recorder.c` has the same list."""

    OPENED = 1
    CREATED = 2
    WRITTEN = 3
    RESIZED = 4
    SYNC_BEGINS = 5
    SYNC_ENDS = 6
    RENAMED = 7
    UNLINKED = 8
    MADE_DIRECTORY = 9
    REMOVED_DIRECTORY = 10


@dataclass(frozen=True, slots=True)
class Event:
    """One call that has succeeded, or a sync that begins."""

    kind: Kind
    through: bool
    """WRITTEN: it is durable with that."""
    inode: int
    number: int
    """WRITTEN: the offset. OPENED, CREATED, RESIZED: the file's size. SYNC_BEGINS, SYNC_ENDS: which sync."""
    path: str
    """OPENED, CREATED and what changes names; of RENAMED both, with a NUL between them."""
    data: bytes
    end: int
    """The trace's size behind it."""


@cache
def library() -> Path:
    """The recorder, compiled for this machine. Raises CalledProcessError."""
    path = Path(mkdtemp(prefix="recorder-")) / "recorder.so"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(path), str(SOURCE)]
    subprocess.run([*command, "-ldl", "-lpthread"], check=True)
    return path


def environment(data_dir: Path, trace: Path) -> dict[str, str]:
    """What a node's environment needs for all that it does to `data_dir`, and to its name, to go into `trace`."""
    assert data_dir.parent == data_dir.parent.resolve(), f"{data_dir} has symbolic links in it"
    return {"LD_PRELOAD": str(library()), "RECORDER_ROOT": str(data_dir.parent), "RECORDER_TRACE": str(trace)}


def read_trace(trace: Path, *, start: int = 0) -> Iterator[Event]:
    """The events from byte `start` on. One that the end of the process has cut short is left out."""
    with trace.open("rb") as file:
        file.seek(start)
        end = start
        while len(head := file.read(_EVENT.size)) == _EVENT.size:
            size, kind, flags, path_bytes, inode, number = _EVENT.unpack(head)
            rest = file.read(size - _EVENT.size)
            if len(rest) < size - _EVENT.size:
                return
            end += size
            yield Event(Kind(kind), bool(flags), inode, number, rest[:path_bytes].decode(), rest[path_bytes:], end)


class Dated(dict[K, V]):
    """A dictionary that remembers when each of its entries was made: at which size of the trace."""

    def __init__(self, trace: Path) -> None:
        super().__init__()
        self._trace = trace
        self.made: list[tuple[int, K, V]] = []

    def __setitem__(self, key: K, value: V) -> None:
        self.made.append((self._trace.stat().st_size, key, value))
        super().__setitem__(key, value)

    def as_of(self, size: int) -> dict[K, V]:
        """The entries as they were when the trace had this size."""
        return {key: value for at, key, value in self.made if at <= size}


def _record_rings() -> None:
    """Let the syncs of io_uring be written down as well."""
    from journal.uring import Ring

    recorder = ctypes.CDLL(None)
    recorder.recorder_sync_begin.restype = ctypes.c_uint64
    recorder.recorder_sync_end.argtypes = [ctypes.c_uint64]
    real_sync, real_finished = Ring.fdatasync, Ring.finished
    under_way: dict[tuple[int, int], int] = {}

    def fdatasync(ring: Ring, fd: int, number: int) -> bool:
        begun = recorder.recorder_sync_begin(fd)
        taken = real_sync(ring, fd, number)
        if taken:
            under_way[id(ring), number] = begun
        return taken

    def finished(ring: Ring) -> list[tuple[int, OSError | None]]:
        outcomes = real_finished(ring)
        for number, error in outcomes:
            begun = under_way.pop((id(ring), number), 0)
            if error is None:
                recorder.recorder_sync_end(begun)
        return outcomes

    Ring.fdatasync = fdatasync
    Ring.finished = finished


def main() -> None:
    os.environ.pop("LD_PRELOAD", None)  # for this process only
    uneven_flushes.install()
    _record_rings()
    from tests.simulation.planted_node import main as node

    node()


if __name__ == "__main__":
    main()
