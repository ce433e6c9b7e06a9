"""Reading topics by name from another process, straight from a node's data directory, while it runs or is stopped.

    with LocalReader.open(Path("fairlog-data")) as reader:
        with reader.cut() as cut:
            for topic in cut.topics():
                for partition in cut.partitions(topic):
                    start = cut.bounds(topic, partition).log_start
                    for record in cut.records(topic, partition, start):
                        print(topic, partition, record.offset, record.value)

It is `datalog.plain_reader` with names: what a cut is, how long it may be held and what it costs stands there and in
docs/reading-directly.md. Names are in the cluster store or, of a node of several machines, in its copy of the cluster's
metadata: an LMDB environment of its own. They are read just after the cut has begun: a topic that was made since has no
log in the cut and is left out; one that was deleted since has no name any more and is left out as well.

A cut is of one shard, which has a part of each topic's partitions. Two shards have no moment in common: on one machine
each has a copier of its own, and the copies that a node of several machines keeps are as far as it has come with each.

Blocking, for any program; the node itself does not use it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
from fairlog.cluster.metadata_content import COPY_KEY, read_metadata
from fairlog.data_directory import CLUSTER, METADATA, is_of_several_machines
from fairlog.directory import DirectoryUnusable, require_present_layout
from fairlog.topic_configs import is_together
from fairlog_types import CorruptStorage, LogId, ShardNumber, StorageFailure
from shard.directory import ShardDirectory, shard_directories
from shard.placement import Placement


class UnknownPartition(Exception):
    """The topic has no such partition."""


class TopicsCut:
    """All topics of a shard as of one moment; from `LocalReader.cut`, and good until its block ends."""

    def __init__(self, cut: Cut, logs: Mapping[str, Mapping[int, LogId]]) -> None:
        self._cut = cut
        self._logs = logs
        self.number = cut.number
        """Of the node's commit that this cut is as of. Two cuts with the same number show the same."""

    def topics(self) -> list[str]:
        """The names of all topics that have a partition in the shard, sorted."""
        return sorted(self._logs)

    def partitions(self, topic: str) -> list[int]:
        """The partitions that the shard has of a topic, in order: with one shard all, from 0. Raises UnknownTopic."""
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

    def __init__(
        self, data_dir: Path, data_logs: Mapping[ShardNumber, DataLogReader], store: ForeignEnvironment
    ) -> None:
        self._data_dir = data_dir
        self._data_logs = data_logs
        self._store = store

    @classmethod
    def open(cls, data_dir: Path) -> LocalReader:
        """Open a node's data directory, read-only; nothing is made or changed there, no lock of the node is taken.

        As long as a node runs there, this user must be able to write to `lock.mdb` of the data logs and of the cluster
        store, or of the copy of the metadata. Raises StorageFailure, also of the kind UnknownFormat; StoreMismatch;
        CorruptStorage.
        """
        shards, names = _parts(data_dir)
        with ExitStack() as stack:
            data_logs: dict[ShardNumber, DataLogReader] = {}
            for shard in shards:
                data_logs[shard.number] = stack.enter_context(DataLogReader.open(shard.data_logs))
            reader = cls(data_dir, data_logs, ForeignEnvironment.open(names, databases_max=0))
            stack.callback(reader._store.close)
            reader._names()
            stack.pop_all()
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
        for data_logs in self._data_logs.values():
            data_logs.close()

    @property
    def shards(self) -> Sequence[int]:
        """The shards that were in the directory when it was opened: of a node of several machines, its copies."""
        return tuple(self._data_logs)

    @contextmanager
    def cut(self, shard: int | None = None) -> Generator[TopicsCut]:
        """All topics of a shard as of now, for as long as the block lasts. If there is one shard, it need not be named.

        Raises StorageFailure, also if there are several and none is named, or if it is not here; CorruptStorage,
        StoreMismatch.
        """
        with self._of(shard).cut() as cut:
            names = self._names()
            if shard is None and names.placement.shards > 1:
                raise self._several(names.placement.shards)
            logs = set(cut.logs())
            named = {topic.name: {log.partition: log for log in topic.logs() if log in logs} for topic in names.topics}
            yield TopicsCut(cut, {name: partitions for name, partitions in named.items() if partitions})

    def placed(self) -> Mapping[str, Sequence[int]]:
        """The shard of each partition of each topic, as of now: also of those that are not here.

        Raises as `cut`.
        """
        names = self._names()
        return {
            topic.name: [
                names.placement.shard_of(log, together=is_together(topic), over=topic.spread_over)
                for log in topic.logs()
            ]
            for topic in names.topics
        }

    def _of(self, shard: int | None) -> DataLogReader:
        if shard is None:
            if len(self._data_logs) > 1:
                raise self._several(len(self._data_logs))
            shard = next(iter(self._data_logs))
        if shard not in self._data_logs:
            raise StorageFailure(f"{self._data_dir} has no shard {shard}: it has {_listed(self.shards)}")
        return self._data_logs[ShardNumber(shard)]

    def _several(self, shards: int) -> StorageFailure:
        return StorageFailure(
            f"{self._data_dir} has {shards} shards, and a cut is of one: read it through the node, or name a shard "
            f"({_listed(self.shards)})"
        )

    def _names(self) -> _Names:
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
            raise StorageFailure(f"cannot read the topics' names in {directory}: {error}") from error
        return _names_in(content, directory)


@dataclass(frozen=True, slots=True)
class _Names:
    topics: Sequence[Topic]
    placement: Placement


def _parts(data_dir: Path) -> tuple[Sequence[ShardDirectory], Path]:
    """The shards that are here, at least one, and where the topics' names are. Raises StorageFailure."""
    names = data_dir / (METADATA if is_of_several_machines(data_dir) else CLUSTER)
    try:
        require_present_layout(data_dir)
        shards = [shard for shard in shard_directories(data_dir) if shard.data_logs.is_dir()]
    except (DirectoryUnusable, OSError) as error:
        raise StorageFailure(str(error)) from error
    if not shards and names.name == METADATA:
        raise StorageFailure(f"{data_dir} is that of a node of several machines, and has no copy of a shard in it")
    if not shards or not names.is_dir():
        raise StorageFailure(f"{data_dir} is not the data directory of a node: it has no data logs and {CLUSTER} in it")
    return shards, names


def _listed(shards: Sequence[int]) -> str:
    return ", ".join(map(str, shards))


def _names_in(content: Mapping[bytes, bytes], directory: Path) -> _Names:
    """The topics among the records. Raises StoreMismatch, CorruptStorage that names the file."""
    path = directory / "data.mdb"
    if COPY_KEY in content:
        try:
            metadata = read_metadata(content)
        except CorruptStorage as error:
            raise CorruptStorage(f"{path}: {error}") from error
        return _Names(metadata.served, metadata.placement)
    try:
        version = records.decode_format(content[records.FORMAT_KEY])
        if version > records.READ_VERSIONS[-1]:
            raise StoreMismatch(
                f"the cluster store in {directory} has format {version}, and this program reads up to "
                f"{records.READ_VERSIONS[-1]}: run the version of Fairlog that wrote it, or a newer one"
            )
        shards = records.decode_shards(content)
        placement = Placement(shards, records.decode_first_shards(content, shards))
        found = records.decode_topics(content, shards)
    except KeyError as error:
        raise CorruptStorage(f"the cluster store {path} lacks the record {error}") from error
    except CorruptStorage as error:
        raise CorruptStorage(f"the cluster store {path} is corrupt: {error}") from error
    return _Names([record.topic for record in found if not record.deleting], placement)
