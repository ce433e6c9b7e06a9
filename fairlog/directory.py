"""One node at a time in a data directory, and no node in a directory that is not Fairlog's.

`DATA/lock` is locked with flock(2) for as long as the node lives. The system releases it when the process ends, however
it ends, so there is no stale lock to remove by hand; the process id inside is for the message only. flock and not
fcntl's record locks: those are lost as soon as any code in the process closes the file.

A directory that has files, but none that only a node or a backup makes, belongs to something else: the path is
mistyped. It is refused before anything is created in it. Missing parts of a node's own data are not checked here: the
node knows what it needs, and says so.

A directory that an earlier version has written is refused here, too: for the node and for every tool, before either
has looked at anything else. Its journals are not read any more, nor are its files where they belong. It is known by its
place: what belongs to a shard lay in the data directory itself. So it does in backups of earlier versions, which are
read and restored.

Several processes that serve one data directory are one node: their supervisor holds `DATA/lock`, and who serves a shard
`DATA/shards/<number>/lock`, to the very end. When a supervisor is killed its processes follow it, a moment
later; the next supervisor finds by these locks that some are not gone yet, and waits.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fairlog.data_directory import CLUSTER, MANIFEST, METADATA, RESTORING, UNFINISHED
from fairlog_types import ShardNumber
from journal.segment_file import make_directory, sync_directory
from shard.directory import (
    COPIES,
    EARLIER_NAMES,
    SHARDS,
    earlier_directory,
    shard_directories,
    shard_directory,
)

_SIGNS = frozenset({CLUSTER, METADATA, SHARDS, *EARLIER_NAMES, MANIFEST, RESTORING, UNFINISHED})
"""One of these is there as soon as there is anything to lose."""

_NO_SIGNS = frozenset(
    {
        "lock",
        "last-run",
        "last-run.new",
        "admin-token",
        "admin-token.new",
        "broker-secret",
        "broker-secret.new",
        "allotment",
        COPIES,
        "allotment.new",
        "supervisor.sock",
        "lost+found",
    }
)
"""What a node's first start makes before its data, and may have left alone, or what is nothing without data; and what
mkfs makes."""


_LOCK = "lock"

_DYING_S = 10.0
"""For so long a process that was killed, or whose supervisor was, may still hold its shard: a write may have to end."""
_LOOK_S = 0.2
"""Who looks whether a directory is in use (`is_in_use`) has it for much less than that."""
_POLL_S = 0.02


class DirectoryInUse(Exception):
    """Another process has the data directory. The message names both."""


class DirectoryUnusable(Exception):
    """The data directory cannot be made or written, or is not one. The message says why."""


@contextmanager
def locked_directory(directory: Path) -> Generator[None]:
    """Hold `directory`, making it if need be.

    Blocks for a moment while another process has it. Raises DirectoryInUse, DirectoryUnusable.
    """
    try:
        make_directory(directory)
        with suppress(PermissionError):  # who may not look into it has not made anything there
            sync_directory(directory.parent)  # a start that was killed may have made the directory, and not come here
        _refuse_foreign(directory)
        require_present_layout(directory)
        descriptor = _open_lock(directory)
    except FileExistsError as error:
        raise DirectoryUnusable(f"cannot use the data directory {directory}: Not a directory") from error
    except OSError as error:
        raise DirectoryUnusable(f"cannot use the data directory {directory}: {error.strerror}") from error
    try:
        _lock(directory, descriptor, fcntl.LOCK_EX, wait_s=_LOOK_S)
        _write_holder(directory, descriptor)
        yield
    finally:
        os.close(descriptor)


def hold_shard(data_dir: Path, number: ShardNumber) -> int:
    """Hold a shard, making its directory if need be, until the answer, a descriptor, is closed.

    Blocks for some seconds while another process has it. Raises DirectoryInUse, DirectoryUnusable.
    """
    directory = shard_directory(data_dir, number).path
    try:
        make_directory(directory)
        descriptor = _open_lock(directory)
    except OSError as error:
        raise DirectoryUnusable(f"cannot use the directory {directory}: {error.strerror}") from error
    try:
        _lock(directory, descriptor, fcntl.LOCK_EX, wait_s=_DYING_S)
        _write_holder(directory, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def wait_for_shards(data_dir: Path) -> None:
    """Wait some seconds for the processes of a supervisor that is gone. Blocks.

    Raises DirectoryInUse, DirectoryUnusable.
    """
    with ExitStack() as stack:
        _share_shards(stack, data_dir, wait_s=_DYING_S)


@contextmanager
def unused_directory(directory: Path) -> Generator[None]:
    """Keep nodes out of `directory` while it is read. Nothing in it is made or changed; others may read it, too.

    Raises DirectoryInUse, DirectoryUnusable. A directory that never had a node has no lock, and needs none.
    """
    try:
        require_present_layout(directory)
    except OSError as error:
        raise DirectoryUnusable(f"cannot read {directory}: {error.strerror}") from error
    with ExitStack() as stack:
        _share(stack, directory)
        _share_shards(stack, directory)
        yield


def is_in_use(directory: Path) -> bool:
    """Whether a node has the directory just now. Raises DirectoryUnusable."""
    try:
        with unused_directory(directory):
            return False
    except DirectoryInUse:
        return True


def _refuse_foreign(directory: Path) -> None:
    names = set(os.listdir(directory))
    foreign = sorted(names - _NO_SIGNS)
    if foreign and not names & _SIGNS:
        raise DirectoryUnusable(
            f"{directory} is not a data directory, and not empty (it has {foreign[0]!r}): choose an empty "
            "directory, or a new one, with data_dir (--data-dir)"
        )


def require_present_layout(directory: Path) -> None:
    """Raise DirectoryUnusable if an earlier version has written the directory, unless it is a backup; OSError.

    A restore that an earlier version has begun is refused once it has made journals: that version must finish it.
    """
    if (directory / MANIFEST).exists() or (directory / UNFINISHED).exists():
        return
    earlier = earlier_directory(directory)
    if earlier.journals.exists() or (earlier.data_logs.exists() and not (directory / RESTORING).exists()):
        raise DirectoryUnusable(
            f"{directory} was written by an earlier Fairlog, whose layout and journals this one does not read: go on "
            "with that version, or make a backup with it (fairlog backup) and start this one in a copy of the backup"
        )


def _share_shards(stack: ExitStack, data_dir: Path, *, wait_s: float = 0) -> None:
    try:
        shards = shard_directories(data_dir)
    except OSError as error:
        raise DirectoryUnusable(f"cannot read {data_dir}: {error.strerror}") from error
    for shard in shards:
        if shard.path != data_dir:  # as it is in a backup of an earlier version
            _share(stack, shard.path, wait_s=wait_s)


def _share(stack: ExitStack, directory: Path, *, wait_s: float = 0) -> None:
    """Keep away, until `stack` is left, whoever would hold the directory; one without a lock never had anyone."""
    try:
        descriptor = os.open(directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        raise DirectoryUnusable(f"cannot read {directory / _LOCK}: {error.strerror}") from error
    stack.callback(os.close, descriptor)
    _lock(directory, descriptor, fcntl.LOCK_SH, wait_s=wait_s)


def _open_lock(directory: Path) -> int:
    return os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _write_holder(directory: Path, descriptor: int) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        raise DirectoryUnusable(f"cannot write {directory / _LOCK}: {error.strerror}") from error


def _lock(directory: Path, descriptor: int, how: int, *, wait_s: float = 0) -> None:
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise DirectoryInUse(f"data directory {directory} is in use by process {holder}") from error
            time.sleep(_POLL_S)
        except OSError as error:
            raise DirectoryUnusable(f"cannot lock {directory / _LOCK}: {error.strerror}") from error
        else:
            return
