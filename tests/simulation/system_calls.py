"""The simulated disk under the calls of `os`, with its faults: what a call fails with, where the machine may die.

For paths below ROOT, and the descriptors that come of them, the functions of `os` that the journals use work on a
`Disk`; all else goes to the system. As in `tests/crash/lossy_disk.py`, the node's own code has no part in this.

Fault model: a write or a sync fails with EIO; what makes a file longer, or makes a file, fails with ENOSPC while the
disk is full; the machine dies at a call. A write that fails writes nothing, or takes a part and says how much, as
Linux does.

Checked here, because only the disk sees it: invariant 12 (after a frame could not be written or synced nothing more
is written to that file), and 11 for local journals (`may_delete` is asked before a segment goes).
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulation.disk import Directory, Disk, File
from tests.simulation.world import Crashed, World

ROOT = "/simulated"
_FIRST_DESCRIPTOR = 1 << 20
_DESCRIPTORS_EACH = 1 << 24
_REST_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class Opened:
    path: str
    node: File | Directory


@dataclass(slots=True)
class DiskFaults:
    """How often what goes wrong, as probabilities; changed while the run goes on."""

    write_error: float = 0.0
    sync_error: float = 0.0
    commit_error: float = 0.0
    """Of each part of a commit of the data logs (`memory_lmdb`), which knows no calls."""
    full: bool = False


class SystemCalls:
    """What the node calls in place of `os`."""

    def __init__(self, world: World, disk: Disk, *, slow_sync_s: float, root: str = ROOT, number: int = 0) -> None:
        """`number` is that of the process, of several; each has a root of its own."""
        self.world = world
        self.root = root
        self.disk = disk
        self.faults = DiskFaults()
        self.maybe_pause: Callable[[], None] = lambda: None
        self.may_delete: Callable[[str], None] = lambda _path: None
        self.die_at_call: int | None = None
        """So many calls from now the machine dies."""
        self.log: Callable[[str, str], None] = lambda _call, _path: None
        self._rng = world.stream("disk")
        self._slow_sync_s = slow_sync_s
        self._descriptors: dict[int, Opened] = {}
        self._own = range(_FIRST_DESCRIPTOR + number * _DESCRIPTORS_EACH, 1 << 62)[:_DESCRIPTORS_EACH]
        self._next = self._own.start
        self._failed: set[int] = set()
        """Files that a write or a sync has failed on since the start; by identity."""

    def restart(self, disk: Disk) -> None:
        self.disk = disk
        self._descriptors.clear()
        self._failed.clear()
        self.die_at_call = None

    def sync_delay(self) -> float:
        """Most are quick, some are not."""
        return self._rng.random() ** 3 * self._slow_sync_s

    # --- what may happen at any call ---

    def _at_call(self, call: str, path: str) -> None:
        self.maybe_pause()
        if self.world.crashed:
            raise Crashed
        self.world.count("system calls")
        if self.die_at_call is not None:
            self.die_at_call -= 1
            if self.die_at_call <= 0:
                self.die_at_call = None
                self.world.on_crash(f"at {call} {path.removeprefix(self.root)}")
                raise Crashed

    def _perhaps_full(self, path: str) -> None:
        if self.faults.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # --- the calls ---

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        name = os.fspath(path)
        self._at_call("open", name)
        node = self.disk.nodes.get(name)
        if node is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            self._perhaps_full(name)
            node = File()
            self.disk.create(name, node)
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        assert not flags & os.O_TRUNC
        self._next += 1
        self._descriptors[self._next] = Opened(name, node)
        return self._next

    def _opened(self, fd: int) -> Opened:
        opened = self._descriptors.get(fd)
        if opened is None:
            raise Crashed  # of a machine that is dead
        return opened

    def _file(self, fd: int) -> tuple[str, File]:
        opened = self._opened(fd)
        assert isinstance(opened.node, File)
        return opened.path, opened.node

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        path, file = self._file(fd)
        self._at_call("write", path)
        return self._write(path, file, offset, bytes(data), frame=False)

    def pwritev(self, fd: int, buffers: Sequence[Any], offset: int) -> int:
        path, file = self._file(fd)
        self._at_call("write", path)
        return self._write(path, file, offset, b"".join(buffers), frame=True)

    def _write(self, path: str, file: File, offset: int, data: bytes, *, frame: bool) -> int:
        if frame and id(file) in self._failed:
            self.world.violate(12, f"{path} is written to after it has failed")
        if offset + len(data) > len(file.cached):
            self._perhaps_full(path)
        if self._rng.random() < self.faults.write_error:
            # Never all but zeros, which are there before: such a frame is whole, whatever the call says.
            part = self._rng.randint(0, len(data)) - _REST_BYTES_MIN
            if part <= 0:
                self._fail("write", path, file, failed=frame)
            self.disk.write(file, offset, data[:part])
            if frame:
                self._failed.add(id(file))
            self.world.count("failed system calls")
            self.world.note("disk", f"write of {path.removeprefix(self.root)}: {part} of {len(data)} bytes are taken")
            return part
        self.disk.write(file, offset, data)
        return len(data)

    def _fail(self, call: str, path: str, file: File, *, failed: bool = True) -> None:
        if failed:
            self._failed.add(id(file))
        self.world.count("failed system calls")
        self.world.note("disk", f"{call} of {path.removeprefix(self.root)} fails: EIO")
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def preadv(self, fd: int, buffers: Sequence[Any], offset: int) -> int:
        path, file = self._file(fd)
        self._at_call("read", path)
        done = 0
        for buffer in buffers:
            part = file.cached[offset + done : offset + done + len(buffer)]
            buffer[: len(part)] = part
            done += len(part)
        return done

    def ftruncate(self, fd: int, size: int) -> None:
        path, file = self._file(fd)
        self._at_call("truncate", path)
        self.disk.truncate(file, size)

    def fstat(self, fd: int) -> os.stat_result:
        return _status(self._opened(fd).node)

    def begin_fdatasync(self, fd: int) -> int:
        path, file = self._file(fd)
        self._at_call("fdatasync", path)
        if id(file) in self._failed:
            self.world.violate(12, f"{path} is synced again after it has failed")
        return self.disk.begin_sync()

    def end_fdatasync(self, fd: int, begun: int) -> None:
        path, file = self._file(fd)
        self._at_call("fdatasync's end", path)
        self._sync(path, file, begun, is_flush=True)

    def fdatasync(self, fd: int) -> None:
        """In the flusher's threads: of a flush, or of zeros, or of the segment that is sealed."""
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        opened = self._opened(fd)
        self._at_call("sync", opened.path)
        begun = self.disk.begin_sync()
        self.maybe_pause()
        self._at_call("sync's end", opened.path)
        if isinstance(opened.node, File):
            self._sync(opened.path, opened.node, begun, is_flush=False)
        else:
            self.disk.sync_directory(opened.path, begun)

    def _sync(self, path: str, file: File, begun: int, *, is_flush: bool) -> None:
        if self._rng.random() < self.faults.sync_error:
            self.disk.fail_sync(file, begun)
            self._fail("sync", path, file, failed=is_flush)
        self.disk.end_sync(file, begun)

    def rename(self, source: Any, target: Any) -> None:
        self._at_call("rename", os.fspath(target))
        self.disk.rename(os.fspath(source), os.fspath(target))

    def unlink(self, path: Any) -> None:
        name = os.fspath(path)
        self._at_call("unlink", name)
        self.may_delete(name)
        self.disk.unlink(name)

    def link(self, source: Any, target: Any) -> None:
        self._at_call("link", os.fspath(target))
        self.disk.link(os.fspath(source), os.fspath(target))

    def rmdir(self, path: Any) -> None:
        self._at_call("rmdir", os.fspath(path))
        self.disk.remove_directory(os.fspath(path))

    def walk(self, path: Any) -> Iterator[tuple[str, list[str], list[str]]]:
        """As `os.walk`, from the top down."""
        name = os.fspath(path)
        kinds: tuple[list[str], list[str]] = ([], [])
        for child in self.listdir(name):
            kinds[isinstance(self.disk.nodes[f"{name}/{child}"], File)].append(child)
        yield name, *kinds
        for child in kinds[0]:
            yield from self.walk(f"{name}/{child}")

    def rmtree(self, path: Any, ignore_errors: bool = False) -> None:
        """In place of `shutil.rmtree`, which has its own calls."""
        name = os.fspath(path)
        try:
            for child in self.listdir(name):
                if isinstance(self.disk.nodes[f"{name}/{child}"], Directory):
                    self.rmtree(f"{name}/{child}", ignore_errors)
                else:
                    self.unlink(f"{name}/{child}")
            self.rmdir(name)
        except Crashed:
            raise
        except OSError:
            if not ignore_errors:
                raise

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        name = os.fspath(path)
        self._at_call("mkdir", name)
        self._perhaps_full(name)
        self.disk.create(name, Directory())

    def listdir(self, path: Any) -> list[str]:
        self._at_call("list", os.fspath(path))
        return self.disk.children(os.fspath(path))

    def stat(self, path: Any, *, follow_symlinks: bool = True) -> os.stat_result:
        if self.world.crashed:
            raise Crashed
        node = self.disk.nodes.get(os.fspath(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return _status(node)

    # --- in place of the system's ---

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name in ("open", "rename", "unlink", "mkdir", "listdir", "stat", "link", "rmdir", "walk"):
                call = self._by_path(getattr(os, name), getattr(self, name))
                stack.enter_context(mock.patch.object(os, name, call))
            stack.enter_context(mock.patch.object(shutil, "rmtree", self._by_path(shutil.rmtree, self.rmtree)))
            for name in ("pwrite", "pwritev", "preadv", "ftruncate", "fstat", "fsync", "fdatasync"):
                call = self._by_number(getattr(os, name), getattr(self, name))
                stack.enter_context(mock.patch.object(os, name, call))
            yield

    def _by_path(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and (str(path) + "/").startswith(self.root + "/"):
                return simulated(path, *args, **kwargs)
            return real(path, *args, **kwargs)

        return call

    def _by_number(self, real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(fd, int) and fd in self._own:
                return simulated(fd, *args, **kwargs)
            return real(fd, *args, **kwargs)

        return call


def _close(fd: int, *, _real: Callable[[int], None] = os.close) -> None:
    if fd < _FIRST_DESCRIPTOR:
        _real(fd)


# For good: what is left of a run's open files goes when the garbage collector comes to it.
os.close = _close


def _status(node: File | Directory) -> os.stat_result:
    if isinstance(node, Directory):
        return os.stat_result((stat.S_IFDIR | 0o750, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    return os.stat_result((stat.S_IFREG | 0o640, 0, 0, 1, 0, 0, len(node.cached), 0, 0, 0))
