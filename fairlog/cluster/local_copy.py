"""A node's copy of what the metadata stream says, in LMDB: what it starts from, and answers while the engine is away.

The content, and how far the stream was read, are written in one transaction. So they belong together after any crash;
after a loss of power the copy may be one of earlier, and the entries since then are read again.

It has the secret by which the nodes of the cluster know each other, so the node's user alone may read it.

It is a cache. Whether it fits the stream is for `replicated` to say.
Format: docs/formats/metadata-stream.md, "The copy of each node".
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import cbor2
import lmdb
import structlog
import trio

from datalog.lmdb_file import check_length
from datalog.new_file import make_file
from fairlog.cbor_records import load, shown
from fairlog.cluster import cluster_records, rights
from fairlog.cluster.common_memory import Changes
from fairlog.cluster.metadata_content import COPY_KEY, COPY_MAGIC, COPY_VERSION
from fairlog.cluster.metadata_entry import Base
from fairlog.cluster.metadata_fold import FoldState
from fairlog.cluster.opening import StoreMismatch, content, put
from fairlog_types import CorruptStorage, StorageFailure
from stream.engine import StreamPosition

log = structlog.get_logger()

STORE_FILE = "data.mdb"

_MAP_BYTES = 256 * 1024 * 1024
"""Room for about a million topics; address space, not disk."""
_READERS = 16


class Copy(Protocol):
    """Where a node keeps its copy. `LocalCopy` is one; tests have others."""

    @property
    def content(self) -> Mapping[bytes, bytes]:
        """The records that it had when it was opened."""
        ...

    @property
    def state(self) -> FoldState | None:
        """How far they go; None if it was new."""
        ...

    async def write(self, changes: Changes, state: FoldState) -> None:
        """Change records, and note how far they go now: both or nothing. Raises StorageFailure.

        Cancelled: it is written all the same.
        """
        ...


class LocalCopy:
    """`Copy` in a directory. Make one with `open`."""

    def __init__(
        self, environment: lmdb.Environment, directory: Path, stream: str, content: Mapping[bytes, bytes]
    ) -> None:
        self.content = {key: value for key, value in content.items() if key != COPY_KEY}
        self.state = _decode(content[COPY_KEY], stream, self.content, directory) if COPY_KEY in content else None
        self._environment = environment
        self._directory = directory
        self._stream = stream

    @classmethod
    def open(cls, directory: Path, stream: str) -> LocalCopy:
        """Open the copy of the stream of this name, or make an empty one. Blocks: call it in a worker thread.

        Raises StoreMismatch if it is another stream's or a newer program's, CorruptStorage if its content is not what
        was written, StorageFailure if the disk refuses.
        """
        with _named(directory):
            make_file(directory, _open_environment)
            check_length(directory / STORE_FILE)
            _close_to_others(directory)
            environment = _open_environment(directory)
            try:
                environment.reader_check()  # a reader that was killed would hold back pages from reuse
                with environment.begin() as transaction:
                    found = content(transaction)
                return cls(environment, directory, stream, found)
            except BaseException:
                environment.close()
                raise

    async def write(self, changes: Changes, state: FoldState) -> None:
        """See `Copy.write`."""
        try:
            await trio.to_thread.run_sync(self._write_in_thread, changes, state)
        except lmdb.Error as error:
            raise StorageFailure(
                f"cannot write the copy of the metadata in {self._directory}: {error}. See to the disk, then restart"
                " the node"
            ) from error

    def close(self) -> None:
        """Let go of the files. Blocks."""
        self._environment.close()

    def _write_in_thread(self, changes: Changes, state: FoldState) -> None:
        with self._environment.begin(write=True) as transaction:
            put(transaction, {**changes, COPY_KEY: _encode(self._stream, state)})


def _open_environment(directory: Path) -> lmdb.Environment:
    return lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0, max_readers=_READERS, mode=rights.FILE_MODE)


def _close_to_others(directory: Path) -> None:
    """An earlier version made it, or somebody has opened it: the secret may be known to others."""
    closed = rights.close(directory, rights.GROUP_AND_OTHERS)
    if (mode := closed.get(file := directory / STORE_FILE)) is not None:
        log.warning("the cluster's secret could be read by others", file=str(file), mode=oct(mode))


@contextmanager
def _named(directory: Path) -> Generator[None]:
    """Names the file in what is raised, and says what can be done."""
    path = directory / STORE_FILE
    try:
        yield
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, CorruptStorage) as error:
        raise CorruptStorage(
            f"the copy of the metadata {path} cannot be read: {error}. It can be deleted: the next start makes it anew"
            " from the stream"
        ) from error
    except (lmdb.Error, OSError) as error:
        raise StorageFailure(f"cannot open the copy of the metadata in {directory}: {error}") from error


def _encode(stream: str, state: FoldState) -> bytes:
    accepted = None if state.accepted is None else list(state.accepted)
    since = [state.since_entries, state.since_bytes]
    return cbor2.dumps([COPY_MAGIC, COPY_VERSION, stream, state.next, accepted, list(state.snapshots), since])


def _decode(value: bytes, stream: str, records: Mapping[bytes, bytes], directory: Path) -> FoldState:
    """Raises StoreMismatch, CorruptStorage."""
    found = load(value, "copy")
    fields = _list(found)
    match fields[:3]:
        case [str(magic), int(version), _] if magic == COPY_MAGIC and version > COPY_VERSION:
            raise StoreMismatch(
                f"the copy of the metadata in {directory} has version {version}, and this program reads {COPY_VERSION}:"
                " run the version of Fairlog that wrote it, or delete the directory"
            )
        case [str(magic), int(version), str(other)] if (
            magic == COPY_MAGIC and version == COPY_VERSION and other != stream
        ):
            raise StoreMismatch(
                f"the copy of the metadata in {directory} is of the stream {other}, and this is {stream}: the data"
                " directory belongs to another cluster"
            )
        case [str(magic), int(version), str()] if magic == COPY_MAGIC and version == COPY_VERSION and len(fields) == 7:
            following, accepted, snapshots, since = fields[3:]
        case _:
            raise CorruptStorage(f"the record 'copy' reads {shown(found)}")
    bases, counts = _numbers(snapshots), _numbers(since)
    if not isinstance(following, int) or bases is None or counts is None or len(counts) != 2:
        raise CorruptStorage(f"the record 'copy' reads {shown(found)}")
    state = FoldState(None, None, StreamPosition(following), tuple(map(StreamPosition, bases)), *counts)
    if accepted is None and not records:
        return state
    base = _numbers(accepted)
    if base is None or len(base) != 2 or cluster_records.CLUSTER_KEY not in records:
        raise CorruptStorage(f"the record 'copy' reads {shown(found)}, beside {len(records)} records")
    cluster = cluster_records.decode_cluster(records[cluster_records.CLUSTER_KEY]).uuid
    return replace(state, cluster=cluster, accepted=Base(StreamPosition(base[0]), base[1]))


def _list(value: object) -> list[object]:
    """Empty if it is none."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _numbers(value: object) -> list[int] | None:
    """None if it is no list of integers."""
    if not isinstance(value, list) or not all(isinstance(number, int) for number in cast("list[object]", value)):
        return None
    return cast("list[int]", value)
