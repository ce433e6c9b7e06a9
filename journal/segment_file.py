"""What is done to segment files: create, make room, seal, publish, read. Blocking; for worker threads.

A segment's life on disk (`Journal` says when):

    create   `spare-<n>.new`, with room in it, synced. Room is bought here: a full disk shows here.
    begin    the header goes in; frames follow in the room. Still without its own name.
    extend   more room behind, in growing chunks, through an open file of its own
    seal     sync, cut off the unused room, sync: now it is exactly as long as its frames
    publish  once the segment before is sealed and this one is on disk: rename to `<base>.journal`, sync the directory

The order of seal and publish is what lets recovery be strict: whatever a segment with a successor lacks is damage.

Room reads as zeros. For small frames the zeros are written, because a later fdatasync of overwritten blocks changes no
metadata: 94 against 150 µs for 4 KiB. For large ones blocks are allocated, and no byte is written twice; a file system
that cannot do that gets zeros all the same. `extend` opens the file anew because Linux reports a failed write-back once
per open file: its fdatasync must not swallow the error that the flusher has to see (invariant 12).
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from fairlog_types import JournalPosition, StorageFailure
from journal.failpoints import reach
from journal.segment import (
    CLOSE_MARK_OFFSET,
    NEW_SUFFIX,
    SEGMENT_HEADER_BYTES,
    Fsync,
    JournalKind,
    SegmentHeader,
    base_of,
    decode_segment_header_untrusted,
    encode_close_mark,
    encode_segment_header,
    segment_name,
)

Sync = Callable[[int], None]
"""fdatasync, or what a test puts in its place."""

_ZEROS = bytes(1 << 20)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CANNOT_ALLOCATE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Of the file system; of a sandbox; and how C libraries other than glibc may say either."""


class OpenFile:
    """A file descriptor that is closed when its last user lets go of it.

    There is no `close`, because no user knows that it is the last one: the loop drops a segment's file when it is
    sealed or closed, while the copier's thread may read from it, and a flusher's thread or the kernel (io_uring) may
    sync it. Whoever closed it would close it under the others, and the next file to be opened gets the same number: a
    sync or a read would go to that one. The count of references is all the locking that this needs. When the file is
    closed does not matter: what has to be on disk was synced before.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int) -> None:
        self.fd = -1
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o640)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that has a successor: whole, on disk, never written again."""

    path: Path
    base: JournalPosition
    end: JournalPosition
    salt: int


class SegmentFile:
    """A segment that takes, or will take, frames. The loop owns it; threads only use `open_file` and the paths."""

    __slots__ = (
        "_directory",
        "_directory_file",
        "_new_path",
        "base",
        "end",
        "file_bytes",
        "open_file",
        "published",
        "salt",
    )

    def __init__(self, directory: Path, new_path: Path | None, *, file_bytes: int) -> None:
        self._directory = directory
        self._new_path = new_path
        self.published = new_path is None
        self.file_bytes = file_bytes
        """Header, frames and the room behind them."""
        self.salt = 0
        self.base = JournalPosition(0)
        self.end = JournalPosition(0)
        """Behind the last frame written. Read by the flusher's thread just before it syncs."""
        self.open_file: OpenFile | None = None
        self._directory_file: OpenFile | None = None
        """Opened when room is bought, so that `publish` cannot fail for want of a file descriptor."""

    @classmethod
    def create(cls, directory: Path, new_name: str, file_bytes: int, sync: Sync, *, allocated: bool) -> SegmentFile:
        """Make a spare of `file_bytes` of room, on disk. Raises OSError (and leaves no file) if the disk is full.

        `allocated`: blocks that read as zeros, rather than zeros that are written.
        """
        if not make_directory(directory) and not _has_segments(directory):
            # A process that was killed may have made it, before it came to put its name on disk.
            sync_directory(directory.parent)
        segment = cls(directory, directory / new_name, file_bytes=file_bytes)
        try:
            opened = OpenFile(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            segment.open_file = opened
            _lay_out(opened.fd, 0, file_bytes, allocated=allocated)
            sync(opened.fd)
            segment._directory_file = OpenFile(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            segment.path.unlink(missing_ok=True)
            raise
        return segment

    @classmethod
    def reopened(
        cls, directory: Path, *, base: JournalPosition, end: JournalPosition, salt: int, file_bytes: int
    ) -> SegmentFile:
        """The journal's last segment after a restart; its file is opened when it is first needed."""
        segment = cls(directory, None, file_bytes=file_bytes)
        segment.base, segment.end, segment.salt = base, end, salt
        return segment

    @property
    def path(self) -> Path:
        """Where the file is just now; it moves once, in `publish`."""
        if self._new_path is not None and not self.published:
            return self._new_path
        return self._directory / segment_name(self.base)

    @property
    def room_end(self) -> JournalPosition:
        """The position at which the room ends."""
        return JournalPosition(self.base + self.file_bytes - SEGMENT_HEADER_BYTES)

    def writable(self) -> OpenFile:
        """The file to write to, opened if need be. Called on the loop only. Raises OSError."""
        if self.open_file is None:
            self.open_file = OpenFile(self.path, os.O_RDWR)
        return self.open_file

    def begin(self, kind: JournalKind, fsync: Fsync, *, base: JournalPosition, previous_end: JournalPosition) -> None:
        """Give a spare its place: write the header. Frames may follow at once. Raises OSError."""
        self.salt = secrets.randbits(32)
        header = SegmentHeader(kind, fsync, self.salt, base, previous_end)
        write_all(self.writable().fd, encode_segment_header(header), 0)
        self.base = self.end = base

    def begin_again(self, fsync: Fsync, sync: Sync) -> None:
        """Let the header of a segment without frames say another setting, and the present version; its close mark goes.

        A crash leaves the old header, the new one, or an unreadable one before zeros, which a start writes anew. Raises
        OSError.
        """
        assert self.end == self.base, "what was promised of a frame stays as it was promised"
        opened = OpenFile(self.path, os.O_RDWR)
        header = decode_segment_header_untrusted(read_range(opened.fd, 0, SEGMENT_HEADER_BYTES))
        assert isinstance(header, SegmentHeader), "the journal was opened with it"
        write_all(opened.fd, encode_segment_header(replace(header, fsync=fsync, is_earlier=False)), 0)
        sync(opened.fd)

    def mark_closed(self) -> None:
        """Write the close mark: all of the journal is on disk. Still to be synced. Raises OSError."""
        write_all(self.writable().fd, encode_close_mark(self.end, salt=self.salt), CLOSE_MARK_OFFSET)

    def extend(self, more_bytes: int, sync: Sync, *, allocated: bool) -> None:
        """Make `more_bytes` of room behind what there is, of the kind that `create` says, and sync. Raises OSError."""
        extra = self._open_apart()
        _lay_out(extra.fd, self.file_bytes, more_bytes, allocated=allocated)
        sync(extra.fd)

    def _open_apart(self) -> OpenFile:
        # The flusher may publish the file meanwhile; it moves once and forwards, so at most one attempt can miss.
        try:
            return OpenFile(self.path, os.O_RDWR)
        except FileNotFoundError:
            return OpenFile(self._directory / segment_name(self.base), os.O_RDWR)

    def sync(self, sync: Sync) -> JournalPosition:
        """Put its frames on disk; answers through which position."""
        through, opened = self.end, self.open_file
        if opened is not None:
            sync(opened.fd)
        return through

    def seal(self, sync: Sync) -> None:
        """Nothing is appended any more: put it on disk and cut off the unused room. Raises OSError."""
        reach("journal.roll.before_seal")
        self.sync(sync)
        # Still closed if nothing was appended to it since the restart.
        opened = self.open_file or OpenFile(self.path, os.O_RDWR)
        os.ftruncate(opened.fd, SEGMENT_HEADER_BYTES + self.end - self.base)
        os.fsync(opened.fd)

    def as_sealed(self) -> SealedSegment:
        """What remains of it when it is sealed and its successor has its name. Lets go of the file."""
        self.open_file = None
        return SealedSegment(self._directory / segment_name(self.base), self.base, self.end, self.salt)

    def publish(self) -> None:
        """Give the file its own name; its content and all segments before it must be on disk. Raises OSError."""
        reach("journal.roll.before_publish")
        os.rename(self.path, self._directory / segment_name(self.base))
        self.published = True
        assert self._directory_file is not None
        os.fsync(self._directory_file.fd)
        self._directory_file = None
        reach("journal.roll.after_publish")


def begin_at(
    directory: Path,
    kind: JournalKind,
    fsync: Fsync,
    base: JournalPosition,
    frames: Callable[[int], bytes] = lambda _: b"",
) -> None:
    """Make a journal whose first frame is, or will be, at `base`, on disk when this returns.

    For what has its past somewhere else: in a backup. `frames` gives the frames that the journal begins with, for the
    salt of its segment. Does nothing to a journal that has a segment. Raises OSError.
    """
    if not make_directory(directory):
        if _has_segments(directory):
            return
        sync_directory(directory.parent)  # as in `SegmentFile.create`
    salt = secrets.randbits(32)
    header = SegmentHeader(kind, fsync, salt, base, base)
    draft = directory / f"spare-0{NEW_SUFFIX}"
    opened = OpenFile(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write_all(opened.fd, encode_segment_header(header) + frames(salt), 0)
    os.fsync(opened.fd)
    draft.rename(directory / segment_name(base))
    sync_directory(directory)


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at `offset`. Raises OSError."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def write_zeros(fd: int, offset: int, count: int) -> None:
    """Write `count` zeros at `offset`. Raises OSError."""
    view = memoryview(_ZEROS)
    for start in range(0, count, len(view)):
        write_all(fd, view[: count - start], offset + start)


def _lay_out(fd: int, offset: int, count: int, *, allocated: bool) -> None:
    if allocated:
        allocate(fd, offset, count)
    else:
        write_zeros(fd, offset, count)


def allocate(fd: int, offset: int, count: int) -> None:
    """Have `count` bytes behind the file's end at `offset`: they read as zeros, and writing them needs no more space.

    Where the file system cannot, zeros are written: here, or in glibc, which writes one into every block.
    Raises OSError; then the file may have grown.
    """
    try:
        os.posix_fallocate(fd, offset, count)
    except OSError as error:
        if error.errno not in _CANNOT_ALLOCATE:
            raise
        write_zeros(fd, offset, count)


def read_range(fd: int, offset: int, count: int) -> bytearray:
    """Read `count` bytes at `offset`, fewer only where the file ends. Raises OSError."""
    data = bytearray(count)
    view = memoryview(data)
    done = 0
    while done < count:
        read = os.preadv(fd, [view[done:]], offset + done)
        if read == 0:
            break
        done += read
    view.release()
    del data[done:]
    return data


def let_go_of_cache(fd: int, offset: int, count: int) -> None:
    """Tell the system that this range, which is on disk, will hardly be read again: a hint, that it may disregard.

    Only whole pages are named: of those at the ends other parts may be dirty, and would be written out at once.
    """
    start, end = -(-offset // _PAGE_BYTES) * _PAGE_BYTES, (offset + count) // _PAGE_BYTES * _PAGE_BYTES
    if start < end:
        with suppress(OSError):
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)


def _has_segments(directory: Path) -> bool:
    return any(base_of(path.name) is not None for path in directory.iterdir())


def make_directory(directory: Path) -> bool:
    """Make `directory` and what is missing above it, each entry on disk; False if it was there. Raises OSError."""
    if directory.is_dir():
        return False
    make_directory(directory.parent)
    # Opened first: were it refused behind the mkdir, the next attempt would find the directory and not sync its entry.
    parent = OpenFile(directory.parent, os.O_RDONLY | os.O_DIRECTORY)
    directory.mkdir(exist_ok=True)
    os.fsync(parent.fd)
    return True


def make_root(directory: Path, *, below: Path) -> None:
    """Make the directory in which journals are, for a start: its path from `below` on is on disk then.

    Also if an earlier start made it that was killed before it came to that. Raises StorageFailure.
    """
    try:
        make_directory(directory)
        for place in takewhile(lambda place: place != below, (directory, *directory.parents)):
            sync_directory(place.parent)
    except OSError as error:
        raise StorageFailure(f"the directory {directory} of the journals cannot be made: {error}") from error


def sync_directory(directory: Path) -> None:
    """Put a directory's entries on disk. Raises OSError."""
    opened = OpenFile(directory, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(opened.fd)
