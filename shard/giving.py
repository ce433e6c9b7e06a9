"""Gives a copy of a shard's directory to a node that joins, while the shard goes on: the giver's side.

    sync the journals ─▶ link their segments ─▶ send the mark, the segments as they were, the data logs as they are then

A copy is what a loss of power could leave in this moment, and a start goes on from that: the directory holds a prefix
of the shard's fold (decision 61). Of the files it asks three things:

1. The segments hold everything through the mark. So they are listed after a sync that began when the fold was there.
   What they hold beyond it may be there or not. Their close marks are left out: they speak of the file here.
2. Nothing is missing that was deleted meanwhile. Hard links keep the segments until they are sent. If one was deleted
   before it was linked, everything is done again.
3. The data logs are not older than the segments. What was deleted of the journals before is in them.

Only a copy that knows all of its journals is given: a replica that has caught up, an owner that has recovered. It may
change its role while it is given. One copy is given at a time: more would only take longer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio
from crc32c import crc32c

from datalog.interface import DataLogs
from fairlog_types import CorruptStorage, StorageFailure
from journal.segment import CLOSE_MARK_BYTES, CLOSE_MARK_OFFSET
from journal.segment_file import OpenFile, make_root, read_range
from journal.streamed import StreamedJournals
from shard.copy_parts import (
    FILE_BYTES_MAX,
    CopyBegins,
    CopyEnds,
    FileBegins,
    FileBytes,
    FileEnds,
    Part,
)
from shard.directory import ShardDirectory, links_for_copy
from shard.stream_mark import encode_mark
from stream.fold import FoldState

logger = structlog.get_logger("fairlog.giving")

_TRIES = 10
"""To link all segments before one of them is deleted. A journal deletes some every few megabytes."""

Send = Callable[[Part], Awaitable[None]]
"""Sends the next part; takes as long as the one who receives it."""


class NothingToGive(Exception):
    """There is no copy to be had here, or not now. The message says why."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The copy here, in its present role."""

    directory: ShardDirectory
    data_logs: DataLogs
    journals: StreamedJournals
    stream: str
    state: Callable[[], FoldState]
    """Where the fold is; all that it has accepted is in the files."""
    is_complete: Callable[[], bool]
    """Whether all journals are open, and what is in the data logs can be believed."""


@dataclass(frozen=True, slots=True)
class _Segment:
    name: str
    """In the shard's directory."""
    path: Path
    """Of the link."""
    size: int


class Giver:
    """Gives copies of the node's copy of a shard, in whatever role that is."""

    def __init__(self) -> None:
        self._source: _Source | None = None
        self._gives = False

    @contextmanager
    def gives(
        self,
        directory: ShardDirectory,
        data_logs: DataLogs,
        journals: StreamedJournals,
        stream: str,
        state: Callable[[], FoldState],
        is_complete: Callable[[], bool],
    ) -> Generator[None]:
        """Give copies of this, until the block is left, once `is_complete`. `state` is where the fold is."""
        self._source = _Source(directory, data_logs, journals, stream, state, is_complete)
        try:
            yield
        finally:
            self._source = None

    async def give(self, stream: str, send: Send) -> None:
        """Send a copy of the shard whose stream this is, as of now.

        It must have ended before the storage is closed. Raises NothingToGive, perhaps after parts of it were sent,
        StorageFailure, CorruptStorage, and what `send` raises.
        """
        source = self._source
        if source is None or not source.is_complete():
            raise NothingToGive("the copy here is not complete: it is just being opened, or reads what it has missed")
        if source.stream != stream:
            raise NothingToGive(f"this is a copy of the stream {source.stream}, not of {stream}")
        if self._gives:
            raise NothingToGive("another node is just getting a copy here")
        self._gives = True
        try:
            await self._give(source, send)
        finally:
            self._gives = False

    async def _give(self, source: _Source, send: Send) -> None:
        directory = source.directory
        links = links_for_copy(directory.data_dir, directory.number, secrets.token_hex(4))
        try:
            mark, segments = await _linked(source, links)
            total = source.data_logs.space().used_bytes + sum(segment.size for segment in segments)
            await send(CopyBegins(mark.position, total))
            await _send_bytes(directory.name_in(directory.stream_mark), encode_mark(source.stream, mark), send)
            for segment in segments:
                await _send_segment(segment, send)
            await _send_data_logs(directory.name_in(directory.data_logs_file), source.data_logs, send)
            await send(CopyEnds(len(segments) + 2))
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(partial(shutil.rmtree, links, ignore_errors=True))


async def _linked(source: _Source, links: Path) -> tuple[FoldState, Sequence[_Segment]]:
    """A mark, and links to segments that hold everything through there. Raises NothingToGive, StorageFailure."""
    for _ in range(_TRIES):
        mark = source.state()
        try:
            await source.journals.sync_files()
        except StorageFailure as failure:
            raise NothingToGive(str(failure)) from failure
        named = source.journals.named_segments()  # in the step of the loop in which the sync has ended
        try:
            found = await trio.to_thread.run_sync(_link_all, source.directory, named, links)
        except OSError as error:
            raise StorageFailure(f"the journals cannot be linked in {links}: {error}") from error
        if found is not None:
            return mark, found
    raise NothingToGive("the journals delete their segments faster than they can be linked; ask again")


def _link_all(directory: ShardDirectory, named: Sequence[tuple[Path, int]], links: Path) -> Sequence[_Segment] | None:
    """Link these segments; None if one of them is gone. Raises OSError."""
    shutil.rmtree(links, ignore_errors=True)
    make_root(links, below=directory.data_dir)
    found: list[_Segment] = []
    for number, (path, size) in enumerate(named):
        link = links / str(number)
        try:
            os.link(path, link)
        except FileNotFoundError:
            return None
        found.append(_Segment(directory.name_in(path), link, size))
    return found


async def _send_bytes(name: str, data: bytes, send: Send) -> None:
    await send(FileBegins(name))
    await send(FileBytes(data))
    await send(FileEnds(len(data), crc32c(data)))


async def _send_segment(segment: _Segment, send: Send) -> None:
    await send(FileBegins(segment.name))
    crc = 0
    try:
        file = await trio.to_thread.run_sync(OpenFile, segment.path, os.O_RDONLY)
        for start in range(0, segment.size, FILE_BYTES_MAX):
            data = await trio.to_thread.run_sync(read_range, file.fd, start, min(FILE_BYTES_MAX, segment.size - start))
            if start == 0:
                data[CLOSE_MARK_OFFSET : CLOSE_MARK_OFFSET + CLOSE_MARK_BYTES] = bytes(CLOSE_MARK_BYTES)
            crc = crc32c(data, crc)
            await send(FileBytes(bytes(data)))
    except OSError as error:
        raise StorageFailure(f"{segment.name} cannot be read: {error}") from error
    await send(FileEnds(segment.size, crc))


async def _send_data_logs(name: str, data_logs: DataLogs, send: Send) -> None:
    await send(FileBegins(name))
    size, crc = 0, 0
    try:
        read_from, write_to = os.pipe2(os.O_CLOEXEC)
    except OSError as error:
        raise StorageFailure(f"{name} cannot be read: {error}") from error
    with suppress(OSError):  # a user may have only so much memory for pipes
        fcntl.fcntl(write_to, fcntl.F_SETPIPE_SZ, FILE_BYTES_MAX)
    failures: list[Exception] = []

    async def copy() -> None:
        try:
            await trio.to_thread.run_sync(data_logs.copy_into, write_to, limiter=trio.CapacityLimiter(1))
        except (StorageFailure, CorruptStorage) as failure:
            failures.append(failure)  # also if nobody reads any more
        finally:
            os.close(write_to)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy)
        async with trio.lowlevel.FdStream(read_from) as pipe:
            try:
                while data := await pipe.receive_some(FILE_BYTES_MAX):
                    size, crc = size + len(data), crc32c(data, crc)
                    await send(FileBytes(bytes(data)))
            except Exception as error:  # noqa: BLE001 - raised below, and not in a group
                failures.append(error)
    if failures:
        raise failures[0]
    await send(FileEnds(size, crc))
