"""A disk that forgets what was not flushed, put under a real node; and the crash image it leaves.

SIGKILL leaves the page cache alone: a node that forgot to flush loses nothing by it. A power cut would. So the
node is run as `python -m tests.crash.lossy_disk serve …`, which wraps a few calls of the `os` module, and of
`journal.uring`, before it imports the node, and keeps a ledger of what a disk would owe:

    os.pwrite, os.pwritev    the bytes of this range of this file are written, not durable (noted before the write)
    os.fdatasync, os.fsync   of this file, what was written before the call began is durable (noted after it returned)
    Ring.fdatasync           the same, through io_uring (noted when the ring tells of it)
    os.unlink                the file owes nothing any more

The ledger is written with write(2), so it survives SIGKILL. `lose_unsynced` then makes the crash image: of every
range that is still owed, each 512-byte sector is lost or kept by a coin, as a disk may have written back any of
them. A lost sector has its old content again, which the ledger kept if it was not zeros.

A power cut is a reboot as well, and the node asks the system whether there was one (fairlog/last_run.py). So the boot
id that it noted is made another one.

Its flushes are uneven (tests/crash/uneven_flushes.py), so that a power cut finds journals behind one another.

What it does not do, and `images` does: lose directory entries or truncations, and pages of LMDB (which writes in C,
and whose file is left as it is: every state of it is legal, since the copier copies only what is durable in a journal).
A flush that fails, or a sync of a sync'd range that lies, are other faults.

Where a write and a flush race, the ledger takes the byte for durable: it errs on the side of losing less.

The node's own code has no part in this: what is tested is what is shipped.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.crash import uneven_flushes
from tests.crash.uneven_flushes import JOURNAL_SUFFIXES, inode_of_journal

if TYPE_CHECKING:
    from journal.uring import Ring

SECTOR_BYTES = 512
LEDGER_VARIABLE = "LOSSY_DISK_LEDGER"
PROGRAM = ("-m", "tests.crash.lossy_disk")
"""To be run in place of `-m fairlog.cli`."""


@dataclass(frozen=True, slots=True)
class Owed:
    """A range of a file that was written and never flushed, with what was there before."""

    inode: int
    offset: int
    before: bytes


# --- under the node ------------------------------------------------------------------------------


class Ledger:
    """Wraps the calls of `os`. One line of JSON per event; a line is one write(2), so threads do not mix."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._real_pwrite, self._real_pwritev = os.pwrite, os.pwritev
        self._real_fdatasync, self._real_fsync = os.fdatasync, os.fsync
        self._real_unlink = os.unlink
        from journal.uring import Ring

        self._ring = Ring
        self._real_ring_sync, self._real_ring_finished = Ring.fdatasync, Ring.finished
        self._in_ring: dict[int, tuple[int, int]] = {}
        self._flushes = itertools.count()

    def install(self) -> None:
        os.pwrite = self.pwrite
        os.pwritev = self.pwritev  # type: ignore[assignment]
        os.fdatasync = lambda fd: self.sync(self._real_fdatasync, fd)
        os.fsync = lambda fd: self.sync(self._real_fsync, fd)
        os.unlink = self.unlink  # type: ignore[assignment]
        # Functions, for these become methods of the ring; a bound method would not be given the ring.
        self._ring.fdatasync = lambda ring, fd, number: self.ring_sync(ring, fd, number)  # type: ignore # noqa: PLW0108
        self._ring.finished = lambda ring: self.ring_finished(ring)  # type: ignore # noqa: PLW0108

    def pwrite(self, fd: int, data: Any, offset: int, /) -> int:
        self._owe(fd, memoryview(data).nbytes, offset)
        return self._real_pwrite(fd, data, offset)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int, flags: int = 0, /) -> int:
        self._owe(fd, sum(memoryview(buffer).nbytes for buffer in buffers), offset)
        return self._real_pwritev(fd, buffers, offset, flags)

    def sync(self, real: Any, fd: Any, /) -> None:
        inode = inode_of_journal(fd if isinstance(fd, int) else fd.fileno())
        if inode is None:
            real(fd)
            return
        # Ranges whose lines stand before this one were written before the flush began; later ones are still owed.
        self._note({"flush": inode, "id": (begun := next(self._flushes))})
        real(fd)
        self._note({"flushed": inode, "id": begun})

    def ring_sync(self, ring: Ring, fd: int, number: int, /) -> bool:
        inode = inode_of_journal(fd)
        if inode is not None:
            self._in_ring[number] = inode, (begun := next(self._flushes))
            self._note({"flush": inode, "id": begun})
        return self._real_ring_sync(ring, fd, number)

    def ring_finished(self, ring: Ring, /) -> list[tuple[int, OSError | None]]:
        outcomes = self._real_ring_finished(ring)
        for number, error in outcomes:
            if number in self._in_ring and error is None:
                inode, begun = self._in_ring.pop(number)
                self._note({"flushed": inode, "id": begun})
        return outcomes

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and Path(path).suffix in JOURNAL_SUFFIXES:
            self._note({"gone": os.stat(path).st_ino})  # before another file gets the number
        self._real_unlink(path, dir_fd=dir_fd)

    def _owe(self, fd: int, count: int, offset: int) -> None:
        inode = inode_of_journal(fd)
        if inode is not None:
            before = os.pread(fd, count, offset)
            self._note({"write": inode, "at": offset, "bytes": count, "before": before.hex() if any(before) else ""})

    def _note(self, event: dict[str, object]) -> None:
        os.write(self._fd, json.dumps(event).encode() + b"\n")


# --- after the kill ------------------------------------------------------------------------------


def owed(ledger: Path) -> list[Owed]:
    """The ranges that were written and not flushed, in the order in which they were written."""
    open_ranges: dict[int, list[Owed]] = {}
    covered: dict[tuple[int, int], int] = {}
    for event in _events(ledger):
        match event:
            case {"write": inode, "at": offset, "bytes": count, "before": before}:
                old = bytes.fromhex(before).ljust(count, b"\0")
                open_ranges.setdefault(inode, []).append(Owed(inode, offset, old))
            case {"flush": inode, "id": number}:
                covered[inode, number] = len(open_ranges.get(inode, ()))
            case {"flushed": inode, "id": number}:
                done = covered.pop((inode, number))
                del open_ranges.get(inode, [])[:done]
                # A second flush that was under way meanwhile covers so many fewer of what is left.
                for other, count in covered.items():
                    if other[0] == inode:
                        covered[other] = max(0, count - done)
            case {"gone": inode}:
                open_ranges.pop(inode, None)
            case _:
                raise AssertionError(f"not an event of the ledger: {event}")
    return [each for ranges in open_ranges.values() for each in ranges]


def _events(ledger: Path) -> Iterator[dict[str, Any]]:
    for line in ledger.read_bytes().splitlines():
        yield json.loads(line)


def lose_unsynced(data_dir: Path, ledger: Path, rng: random.Random) -> int:
    """Turn the files of a killed node into what a power cut could have left; the number of bytes lost.

    Empties the ledger: what is on the disk now is durable, and the next start begins with no debts.
    """
    paths = {path.stat().st_ino: path for path in data_dir.rglob("*") if path.suffix in JOURNAL_SUFFIXES}
    lost = 0
    for each in reversed(owed(ledger)):  # the newest first, so that the oldest content wins where ranges overlap
        path = paths.get(each.inode)
        if path is None:
            continue  # deleted meanwhile
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            for start, end in _sectors(each.offset, min(each.offset + len(each.before), size)):
                if rng.random() < 0.5:
                    os.pwrite(file.fileno(), each.before[start - each.offset : end - each.offset], start)
                    lost += end - start
    ledger.write_bytes(b"")
    _reboot(data_dir)
    return lost


def _reboot(data_dir: Path) -> None:
    note = data_dir / "last-run"
    if note.exists():
        _boot_id, rest = note.read_text(encoding="ascii").split(maxsplit=1)
        note.write_text(f"00000000-before-the-power-was-cut {rest}", encoding="ascii")


def _sectors(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The range cut at multiples of SECTOR_BYTES."""
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield start, stop
        start = stop


def main() -> None:
    uneven_flushes.install()
    Ledger(Path(os.environ.pop(LEDGER_VARIABLE))).install()
    from tests.simulation.planted_node import main as node

    node()


if __name__ == "__main__":
    main()
