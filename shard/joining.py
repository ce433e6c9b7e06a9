"""Makes a node's copy of a shard of the parts of another one: the side of the node that joins.

    DATA/copies/<number>.joining/   every part written, every file checked and synced
        └─ rename ─▶ DATA/shards/<number>/     the one that was there goes to DATA/copies/<number>.replaced, and away

The rename is the moment. A crash before it leaves nothing of the copy, one after it leaves all of it. A directory that
is replaced is in the way of the rename, so a crash between the two leaves neither; nor would it have been of use.
`remove_leftovers` takes away at a start what earlier runs have left.

Blocking, but for `falls_short`; for worker threads. Nobody uses the shard's directory meanwhile.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import trio
from crc32c import crc32c

from fairlog_types import CorruptStorage, StorageFailure
from journal.segment_file import OpenFile, make_root, sync_directory, write_all
from shard.copy_parts import CopyBegins, CopyEnds, FileBegins, FileBytes, FileEnds, Part
from shard.directory import COPIES, ShardDirectory, belongs_to_copy, draft_of_copy, replaced_by_copy
from shard.stream_mark import read_mark
from stream.engine import Stream

LOCK = "lock"
"""Whoever serves the shard may hold this file (`fairlog.directory`): it goes along."""


class BadCopy(Exception):
    """What was sent is not a whole copy of this shard. The message says why."""


async def falls_short(directory: ShardDirectory, stream: Stream) -> bool:
    """Whether what the shard's directory needs has been trimmed from its stream, so that it has to be made anew.

    It may be so a moment later, too: then `play_roles` raises EntryGone. Raises EngineAway, StorageFailure;
    CorruptStorage if the directory is a copy of another stream.
    """
    start = await stream.start()
    try:
        mark = await trio.to_thread.run_sync(read_mark, directory.stream_mark, stream.name)
    except OSError as error:
        raise StorageFailure(f"{directory.stream_mark} cannot be read: {error}") from error
    return start > (0 if mark is None else max(0, mark.position))


def remove_leftovers(data_dir: Path) -> None:
    """Remove what copies have left that were being given or made when the last run ended. Raises OSError."""
    with suppress(FileNotFoundError):
        shutil.rmtree(data_dir / COPIES)


def remove_copy(directory: ShardDirectory) -> None:
    """Remove the shard's directory, if there is one, all at one moment, so that no part of it is taken for a copy.

    Raises OSError.
    """
    if not directory.path.exists():
        return
    old = replaced_by_copy(directory.data_dir, directory.number)
    make_root(old.parent, below=directory.data_dir)
    shutil.rmtree(old, ignore_errors=True)
    directory.path.rename(old)
    sync_directory(directory.path.parent)
    sync_directory(old.parent)
    shutil.rmtree(old)


class Draft:
    """A copy that is being made."""

    def __init__(self, directory: ShardDirectory, stream: str) -> None:
        """Of the shard that will be in `directory`, whose stream has this name. Raises OSError, StorageFailure."""
        self._directory = directory
        self._stream = stream
        self._draft = draft_of_copy(directory.data_dir, directory.number)
        self._begins: CopyBegins | None = None
        self._ended = False
        self._names: set[str] = set()
        self._file: OpenFile | None = None
        self._size = 0
        self._crc = 0
        self.discard()
        make_root(self._draft.path, below=directory.data_dir)

    def take(self, part: Part) -> None:
        """Write the next part. Raises BadCopy, OSError."""
        is_between = self._begins is not None and self._file is None and not self._ended
        match part:
            case CopyBegins() if self._begins is None:
                self._begins = part
            case FileBegins(name) if is_between:
                self._begin_file(name)
            case FileBytes(data) if self._file is not None:
                write_all(self._file.fd, data, self._size)
                self._size += len(data)
                self._crc = crc32c(data, self._crc)
            case FileEnds(size, crc) if self._file is not None:
                self._end_file(self._file, size, crc)
            case CopyEnds(files) if is_between:
                self._end(files)
            case _:
                raise BadCopy(f"a {type(part).__name__} came where none belongs")

    def install(self) -> None:
        """Put the copy, which has ended, in the place of the shard's directory. Raises OSError."""
        assert self._ended
        target, old = self._directory.path, replaced_by_copy(self._directory.data_dir, self._directory.number)
        if (target / LOCK).exists():
            os.link(target / LOCK, self._draft.path / LOCK)
            sync_directory(self._draft.path)
        make_root(target.parent, below=self._directory.data_dir)
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            target.rename(old)
        try:
            self._draft.path.rename(target)
        except OSError:
            with suppress(FileNotFoundError):
                old.rename(target)
            raise
        sync_directory(target.parent)
        sync_directory(old.parent)
        shutil.rmtree(old, ignore_errors=True)

    def discard(self) -> None:
        """Remove it. Raises OSError."""
        self._file = None
        with suppress(FileNotFoundError):
            shutil.rmtree(self._draft.path)

    def _begin_file(self, name: str) -> None:
        if not belongs_to_copy(name) or name in self._names:
            raise BadCopy(f"a file {name!r} came, which a copy of a shard does not have, or has already")
        path = self._draft.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._names.add(name)
        self._file = OpenFile(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._size = self._crc = 0

    def _end_file(self, file: OpenFile, size: int, crc: int) -> None:
        if (size, crc) != (self._size, self._crc):
            raise BadCopy(
                f"a file of {size} bytes with the checksum {crc:08x} was sent, and {self._size} bytes with "
                f"{self._crc:08x} came"
            )
        os.fsync(file.fd)
        self._file = None

    def _end(self, files: int) -> None:
        draft = self._draft
        needed = {draft.name_in(draft.stream_mark), draft.name_in(draft.data_logs_file)}
        if files != len(self._names) or not needed <= self._names:
            raise BadCopy(f"{files} files were sent, and these came: {', '.join(sorted(self._names)[:5])} …")
        try:
            mark = read_mark(draft.stream_mark, self._stream)
        except CorruptStorage as error:
            raise BadCopy(str(error)) from error
        assert self._begins is not None
        if mark is None or mark.position != self._begins.mark:
            raise BadCopy(f"its mark was said to be at {self._begins.mark}, and it is another one")
        for place, _, _ in os.walk(draft.path):
            sync_directory(Path(place))
        self._ended = True
