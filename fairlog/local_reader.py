"""Reading topics by name from another process, straight from a node's data directory, while it runs or is stopped.

    with LocalReader.open(Path("fairlog-data")) as reader:
        with reader.cut() as cut:
            for topic in cut.topics():
                for partition in cut.partitions(topic):
                    start = cut.bounds(topic, partition).log_start
                    for record in cut.records(topic, partition, start):
                        print(topic, partition, record.offset, record.value)

It is `datalog.plain_reader` with names: what a cut is, how long it may be held and what it costs stands there and in
docs/reading-directly.md. Names are in the cluster store, an LMDB environment of its own, and are read just after the
cut has begun: a topic that was made since has no log in the cut and is left out; one that was deleted since has no
name any more and is left out as well.

Blocking, for any program; the node itself does not use it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import lmdb

from datalog.decoding import Record
from datalog.foreign import ForeignEnvironment
from datalog.interface import Bounds
from datalog.plain_reader import Cut, DataLogReader
from fairlog.cluster import records
from fairlog.cluster.embedded import StoreMismatch
from fairlog.cluster.interface import Topic, UnknownTopic
from fairlog.data_directory import CLUSTER
from fairlog.directory import DirectoryUnusable, require_present_layout
from fairlog_types import CorruptStorage, LogId, StorageFailure
from shard.directory import ShardDirectory, shard_directories


class UnknownPartition(Exception):
    """The topic has no such partition."""


class TopicsCut:
    """All topics as of one moment; from `LocalReader.cut`, and good until its block ends."""

    def __init__(self, cut: Cut, logs: Mapping[str, Mapping[int, LogId]]) -> None:
        self._cut = cut
        self._logs = logs
        self.number = cut.number
        """Of the node's commit that this cut is as of. Two cuts with the same number show the same."""

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self._logs)

    def partitions(self, topic: str) -> list[int]:
        """A topic's partitions, from 0. Raises UnknownTopic."""
        return sorted(self._of(topic))

    def bounds(self, topic: str, partition: int) -> Bounds:
        """What can be read: offsets from `log_start` up to, and without, `next_offset`.

        Raises UnknownTopic, UnknownPartition.
        """
        return self._cut.bounds(self._log(topic, partition))

    def records(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        *,
        before: int | None = None,
        committed_only: bool = True,
    ) -> Iterator[Record]:
        """The committed records, or all, from `from_offset` on, in order; up to, and without, `before` if it is given.

        Raises UnknownTopic, UnknownPartition, and what `Cut.records` raises.
        """
        log = self._log(topic, partition)
        return self._cut.records(log, from_offset, before=before, committed_only=committed_only)

    def _of(self, topic: str) -> Mapping[int, LogId]:
        try:
            return self._logs[topic]
        except KeyError:
            raise UnknownTopic(f"there is no topic {topic}") from None

    def _log(self, topic: str, partition: int) -> LogId:
        logs = self._of(topic)
        if partition not in logs:
            raise UnknownPartition(f"topic {topic} has no partition {partition}; it has {len(logs)}")
        return logs[partition]


class LocalReader:
    """Reads a node's topics from another process; make one with `open`, close it by `with` or `close`."""

    def __init__(self, data_logs: DataLogReader, store: ForeignEnvironment) -> None:
        self._data_logs = data_logs
        self._store = store

    @classmethod
    def open(cls, data_dir: Path) -> LocalReader:
        """Open a node's data directory, read-only; nothing is made or changed there, no lock of the node is taken.

        As long as a node runs there, this user must be able to write to `lock.mdb` of the data logs and of the cluster
        store. Raises StorageFailure, also of the kind UnknownFormat; StoreMismatch; CorruptStorage.
        """
        data_logs = DataLogReader.open(_only_shard(data_dir).data_logs)
        try:
            reader = cls(data_logs, ForeignEnvironment.open(data_dir / CLUSTER, databases_max=0))
        except BaseException:
            data_logs.close()
            raise
        try:
            reader._topics()
        except BaseException:
            reader.close()
            raise
        return reader

    def __enter__(self) -> LocalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close; open cuts end. Twice is as good as once."""
        self._store.close()
        self._data_logs.close()

    @contextmanager
    def cut(self) -> Generator[TopicsCut]:
        """All topics as of now, for as long as the block lasts.

        Raises StorageFailure, CorruptStorage, StoreMismatch.
        """
        with self._data_logs.cut() as cut:
            logs = set(cut.logs())
            named = {
                topic.name: {log.partition: log for log in topic.logs() if log in logs} for topic in self._topics()
            }
            yield TopicsCut(cut, {name: partitions for name, partitions in named.items() if partitions})

    def _topics(self) -> list[Topic]:
        directory = self._store.directory
        try:
            txn = self._store.begin()
            try:
                with txn.cursor() as cursor:
                    content = {bytes(key): bytes(value) for key, value in cursor}
                self._store.still_peaceful(txn)
            finally:
                txn.abort()
        except lmdb.Error as error:
            raise StorageFailure(f"cannot read the cluster store in {directory}: {error}") from error
        return _topics_in(content, directory)


def _only_shard(data_dir: Path) -> ShardDirectory:
    """Raises StorageFailure: a cut is one read transaction, and two environments have none in common."""
    try:
        require_present_layout(data_dir)
        shards = [shard for shard in shard_directories(data_dir) if shard.data_logs.is_dir()]
    except (DirectoryUnusable, OSError) as error:
        raise StorageFailure(str(error)) from error
    if not shards or not (data_dir / CLUSTER).is_dir():
        raise StorageFailure(f"{data_dir} is not the data directory of a node: it has no data logs and {CLUSTER} in it")
    if len(shards) > 1:
        raise _several(data_dir, len(shards))
    return shards[0]


def _several(data_dir: Path, shards: int) -> StorageFailure:
    return StorageFailure(f"{data_dir} has {shards} shards, and a cut is of one: read it through the node")


def _topics_in(content: Mapping[bytes, bytes], directory: Path) -> list[Topic]:
    """The topics among the store's records. Raises StoreMismatch, CorruptStorage that names the file.

    Also StorageFailure if there are several shards: one that was added has no directory before its first start.
    """
    try:
        version = records.decode_format(content[records.FORMAT_KEY])
        if version > records.GROWN_VERSION:
            raise StoreMismatch(
                f"the cluster store in {directory} has format {version}, and this program reads up to "
                f"{records.GROWN_VERSION}: run the version of Fairlog that wrote it, or a newer one"
            )
        if (shards := records.decode_shards(content)) > 1:
            raise _several(directory.parent, shards)
        found = [
            records.decode_topic(key, value, 1)
            for key, value in content.items()
            if key.startswith(records.TOPIC_PREFIX)
        ]
    except KeyError as error:
        raise CorruptStorage(f"the cluster store {directory / 'data.mdb'} lacks the record {error}") from error
    except CorruptStorage as error:
        raise CorruptStorage(f"the cluster store {directory / 'data.mdb'} is corrupt: {error}") from error
    return [record.topic for record in found if not record.deleting]
