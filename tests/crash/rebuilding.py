"""What a power cut could have left of a node's files, at any moment of a recording.

    trace ──▶ the simulation's disk, which keeps what is durable and what is not apart ──▶ images, as directories

The events of a trace are done again on `tests.simulation.disk.Disk`: its module head has the fault model, which holds
here for LMDB's file as for all others: every page and sector that was not synced, sizes, and names. `Rebuilding` goes
through a trace once, from front to back; wherever it stands, `write_image` draws one of the images that the moment
allows, and writes it as true files.

A power cut is a reboot as well, and the node asks the system whether there was one (fairlog/last_run.py). So the boot
id that it noted is made another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

from tests.crash.recording import Event, Kind, read_trace
from tests.simulation.disk import Directory, Disk, File

LOCK_FILE = "lock.mdb"
"""Shared memory of LMDB: not recorded, and worth nothing behind a reboot."""


class Rebuilding:
    """The files below `directory` as they were at some moment: `end` is the trace's size then."""

    def __init__(self, directory: Path, trace: Path, *, image: Path | None = None) -> None:
        """Before the first event of `trace`; `image` is what `directory` was made of then, all of it durable."""
        self.disk = Disk()
        self.end = 0
        self._root = str(directory.parent)
        self._directory = directory
        self._events = read_trace(trace)
        self._next: Event | None = None
        self._files: dict[int, File] = {}
        self._directories: dict[int, str] = {}
        self._syncs: dict[int, tuple[int, int]] = {}
        """By number: the inode, and the disk's moment at which it has begun."""
        self.disk.make_root(self._root)
        if image is not None:
            self._load(image)

    def _load(self, image: Path) -> None:
        for path in sorted([image, *image.rglob("*")]):
            name = str(self._directory / path.relative_to(image))
            if path.is_dir():
                self.disk.make_durable(name, Directory())
            elif path.name != LOCK_FILE:
                content = path.read_bytes()
                self.disk.make_durable(name, File(bytearray(content), bytearray(content)))

    def go_to(self, end: int) -> None:
        """Do again all that stands in the trace's first `end` bytes."""
        for event in chain([] if self._next is None else [self._next], self._events):
            if event.end > end:
                self._next = event
                return
            self._do(event)
            self.end = event.end
        self._next = None

    def write_image(self, target: Path, rng: Random) -> str:
        """One image of this moment, as the directory `target`, which must not exist; a word on what it lost."""
        image, lost = self.disk.power_cut(rng)
        for path, node in sorted(image.nodes.items()):
            if path != self._root:
                place = target / Path(path).relative_to(self._directory)
                if isinstance(node, Directory):
                    place.mkdir(parents=True)
                else:
                    place.write_bytes(node.cached)
        target.mkdir(parents=True, exist_ok=True)
        _reboot(target)
        return lost

    def differences(self) -> Iterator[str]:
        """Where the true files are others than the ones that were rebuilt: what the recorder has missed."""
        found = {str(path) for path in self._directory.rglob("*") if path.is_file() and path.name != LOCK_FILE}
        rebuilt = {path: node for path, node in self.disk.nodes.items() if isinstance(node, File)}
        yield from (f"{path} is in one of them only" for path in sorted(found ^ rebuilt.keys()))
        for path in sorted(found & rebuilt.keys()):
            if Path(path).read_bytes() != rebuilt[path].cached:
                yield f"{path} has other bytes"

    def _do(self, event: Event) -> None:
        disk = self.disk
        match event.kind:
            case Kind.CREATED:
                self._files[event.inode] = created = File()
                disk.create(event.path, created)
            case Kind.OPENED:
                node = disk.nodes[event.path]
                if isinstance(node, File):
                    self._files[event.inode] = node
                else:
                    self._directories[event.inode] = event.path
            case Kind.WRITTEN:
                write = disk.write_through if event.through else disk.write
                write(self._files[event.inode], event.number, event.data)
            case Kind.RESIZED:
                file = self._files[event.inode]
                if event.number != len(file.cached):
                    disk.truncate(file, event.number)
            case Kind.SYNC_BEGINS:
                self._syncs[event.number] = event.inode, disk.begin_sync()
            case Kind.SYNC_ENDS:
                inode, begun = self._syncs.pop(event.number)
                if inode in self._directories:
                    disk.sync_directory(self._directories[inode], begun)
                else:
                    disk.end_sync(self._files[inode], begun)
            case Kind.RENAMED:
                disk.rename(*event.path.split("\0"))
            case Kind.UNLINKED:
                if Path(event.path).name != LOCK_FILE:
                    disk.unlink(event.path)
            case Kind.MADE_DIRECTORY:
                disk.create(event.path, Directory())
            case Kind.REMOVED_DIRECTORY:
                disk.remove_directory(event.path)


def _reboot(directory: Path) -> None:
    note = directory / "last-run"
    if note.exists() and len(words := note.read_text(encoding="ascii").split(maxsplit=1)) == 2:
        note.write_text(f"00000000-before-the-power-was-cut {words[1]}", encoding="ascii")
