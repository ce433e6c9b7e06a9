"""The cluster store of a single node: a small LMDB environment of its own, and its content in memory.

How it works. `open` reads everything into memory and counts the start. A change takes the lock, is checked against
memory, goes to LMDB in one synced transaction in a worker thread, and only then into memory. So a reader on the event
loop sees a change when it is durable, never before. LMDB's commit is atomic: a crash leaves the old state or the new
one, and there is nothing to repair.

The first failed write closes the store for changes until a restart: it is not known what a failed commit or fsync left
on disk, and a later fsync of the same file would make it look durable (invariant 12). Reads continue.

The environment is separate from the data logs', because its few changes are fully synced while the data logs' many are
not.

What it does not do: it does not touch journals or data logs (the node does, between `delete_topic` and
`forget_topic`), and does not guard the directory against a second process (`fairlog.directory` does).
"""

from __future__ import annotations

import base64
import dataclasses
import types
import uuid
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import lmdb
import trio

from datalog.lmdb_file import check_length
from datalog.new_file import make_file
from fairlog.cluster import records
from fairlog.cluster.features import (
    FEATURES,
    Feature,
    FeatureLevels,
    FeatureUpdate,
    first_epoch,
    unsupported,
    updated_untrusted,
)
from fairlog.cluster.interface import InvalidTopic, Leader, Topic, TopicExists, UnknownTopic
from fairlog.cluster.topic_rules import check_topic_untrusted, check_total_untrusted, folded_name
from fairlog_types import CorruptStorage, LeaderEpoch, StorageFailure

_MAP_BYTES = 256 * 1024 * 1024
"""Room for about a million topics; address space, not disk."""


class StoreMismatch(Exception):
    """The directory is another node's, or was written by a newer program. The message says which."""


class EmbeddedStore:
    """`ClusterStore` for one node. Make one with `open`; see the interface for the methods' promises."""

    def __init__(
        self,
        environment: lmdb.Environment,
        directory: Path,
        node: records.NodeRecord,
        starts: int,
        next_producer_id: int,
        offsets_log_count: int,
        topics: Sequence[records.TopicRecord],
        group_journals_begun: bool,
        chosen_levels: Mapping[str, int],
        broker_configs: dict[str, Mapping[str, str]],
        group_configs: dict[str, Mapping[str, str]],
        *,
        features: Mapping[str, Feature],
    ) -> None:
        self._environment = environment
        self._directory = directory
        self._node = node
        self._starts = starts
        self._next_producer_id = next_producer_id
        self._offsets_log_count = offsets_log_count
        self._group_journals_begun = group_journals_begun
        self._broker_configs = broker_configs
        self._group_configs = group_configs
        self._by_id = {record.topic.topic_id: record.topic for record in topics if not record.deleting}
        self._by_name = {topic.name: topic for topic in self._by_id.values()}
        self._by_folded_name = {folded_name(name): name for name in self._by_name}
        self._deleting = {record.topic.topic_id: record.topic for record in topics if record.deleting}
        self._generation = 0
        self._features = FeatureLevels(features, chosen_levels, first_epoch(starts))
        self._changing = trio.Lock()
        self._failed: StorageFailure | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        node_id: int,
        group_journal_count: int,
        features: Mapping[str, Feature] = FEATURES,
    ) -> EmbeddedStore:
        """Open the store in `directory`, making both at the very first start; counts this start, durably.

        `group_journal_count` matters at the very first start only. `features` are those that this program supports.
        Blocks on the disk: call it in a worker thread. Raises StoreMismatch if the directory is another node's or a
        newer program's, CorruptStorage if its content is not what was written, StorageFailure if the disk refuses.
        """
        try:
            make_file(directory, _open_environment)
            check_length(directory / "data.mdb")
            environment = _open_environment(directory)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise CorruptStorage(
                f"the cluster store {directory / 'data.mdb'} is not readable from byte 0: {error}"
            ) from error
        except (lmdb.Error, OSError) as error:
            raise StorageFailure(f"cannot open the cluster store in {directory}: {error}") from error
        try:
            with environment.begin(write=True) as transaction:
                content = _start(transaction, directory, node_id, group_journal_count, features)
        except (lmdb.Error, OSError) as error:
            environment.close()
            raise StorageFailure(f"cannot write the cluster store in {directory}: {error}") from error
        except BaseException:
            environment.close()
            raise
        return cls(environment, directory, *content, features=features)

    def close(self) -> None:
        """Close the environment. Everything that returned is durable already."""
        self._environment.close()

    @property
    def cluster_id(self) -> str:
        return self._node.cluster_id

    @property
    def node_id(self) -> int:
        return self._node.node_id

    @property
    def starts(self) -> int:
        return self._starts

    @property
    def group_journal_count(self) -> int:
        return self._node.group_journal_count

    @property
    def offsets_log_count(self) -> int:
        return self._offsets_log_count

    @property
    def group_journals_begun(self) -> bool:
        """Whether `note_group_journals_begun` was called, in this run or an earlier one."""
        return self._group_journals_begun

    async def note_group_journals_begun(self) -> None:
        """All group journals are on disk: from now on none may be missing. Raises StorageFailure."""
        async with self._changing:
            count = records.encode_count(self._node.group_journal_count)
            await self._write({records.GROUP_JOURNALS_BEGUN_KEY: count})
            self._group_journals_begun = True

    @property
    def features(self) -> FeatureLevels:
        return self._features

    @property
    def generation(self) -> int:
        return self._generation

    def topics(self) -> Sequence[Topic]:
        return sorted(self._by_name.values(), key=lambda topic: topic.name)

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def deleting(self) -> Sequence[Topic]:
        return tuple(self._deleting.values())

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        return self._broker_configs.get(resource, {})

    def group_configs(self, group: str) -> Mapping[str, str]:
        return self._group_configs.get(group, {})

    def configured_groups(self) -> Collection[str]:
        return self._group_configs.keys()

    def leaders(self, topic: Topic) -> Sequence[Leader]:
        return [Leader(self.node_id, LeaderEpoch(self._starts))] * topic.partitions

    async def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str], now_ms: int) -> Topic:
        check_topic_untrusted(name, partitions)
        async with self._changing:
            if name in self._by_name:
                raise TopicExists(f"there is a topic {name} already")
            if (other := self._by_folded_name.get(folded_name(name))) is not None:
                raise InvalidTopic(f"the topic name {name} collides with {other}: they differ only in . against _")
            topic = Topic(name, uuid.uuid4(), partitions, types.MappingProxyType(dict(configs)), now_ms)
            await self._write({records.topic_key(topic.topic_id): _topic_value(topic)})
            self._by_id[topic.topic_id] = self._by_name[name] = topic
            self._by_folded_name[folded_name(name)] = name
            self._generation += 1
            return topic

    async def set_topic_configs(self, name: str, configs: Mapping[str, str]) -> Topic:
        async with self._changing:
            topic = self._known(name)
            return await self._replace(dataclasses.replace(topic, configs=types.MappingProxyType(dict(configs))))

    async def add_partitions(self, name: str, total: int) -> Topic:
        async with self._changing:
            topic = self._known(name)
            check_total_untrusted(topic, total)
            return await self._replace(dataclasses.replace(topic, partitions=total))

    async def set_broker_configs(self, resource: str, configs: Mapping[str, str]) -> None:
        async with self._changing:
            await self._write({records.broker_key(resource): records.encode_broker_configs(configs)})
            self._broker_configs[resource] = types.MappingProxyType(dict(configs))
            self._generation += 1

    async def set_group_configs(self, group: str, configs: Mapping[str, str]) -> None:
        async with self._changing:
            value = records.encode_group_configs(group, configs) if configs else None
            await self._write({records.group_configs_key(group): value})
            if configs:
                self._group_configs[group] = types.MappingProxyType(dict(configs))
            else:
                self._group_configs.pop(group, None)
            self._generation += 1

    async def delete_topic(self, name: str) -> Topic:
        async with self._changing:
            topic = self._known(name)
            await self._write({records.topic_key(topic.topic_id): _topic_value(topic, deleting=True)})
            del self._by_name[name], self._by_id[topic.topic_id], self._by_folded_name[folded_name(name)]
            self._deleting[topic.topic_id] = topic
            self._generation += 1
            return topic

    async def forget_topic(self, topic_id: UUID) -> None:
        async with self._changing:
            if topic_id not in self._deleting:
                assert topic_id not in self._by_id, "only a topic that is being deleted may be forgotten"
                return
            await self._write({records.topic_key(topic_id): None})
            del self._deleting[topic_id]

    async def allot_producer_ids(self, count: int) -> range:
        assert count > 0, count
        async with self._changing:
            first = self._next_producer_id
            await self._write({records.PRODUCER_IDS_KEY: records.encode_count(first + count)})
            self._next_producer_id = first + count
            return range(first, first + count)

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        async with self._changing:
            before = self._features
            chosen = updated_untrusted(before, updates)
            changed = {name: level for name, level in chosen.items() if before.chosen.get(name) != level}
            if validate_only or not changed:
                return
            await self._write(
                {records.feature_key(name): records.encode_count(level) for name, level in changed.items()}
            )
            self._features = FeatureLevels(before.supported, chosen, before.epoch + 1)
            self._generation += 1

    def _known(self, name: str) -> Topic:
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    async def _replace(self, topic: Topic) -> Topic:
        """Put a changed topic in the place of what it was. Called under the lock."""
        await self._write({records.topic_key(topic.topic_id): _topic_value(topic)})
        self._by_id[topic.topic_id] = self._by_name[topic.name] = topic
        self._generation += 1
        return topic

    async def _write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Put (or with None, delete) records in one synced transaction. Called under the lock.

        A worker thread that has begun is waited for even when the caller is cancelled, so that memory
        cannot fall behind the disk. Raises StorageFailure, and after the first one always.
        """
        if self._failed is not None:
            raise StorageFailure(str(self._failed)) from self._failed
        try:
            await trio.to_thread.run_sync(self._write_in_thread, changes)
        except lmdb.Error as error:
            self._failed = StorageFailure(
                f"cannot write the cluster store in {self._directory}: {error}; the change was refused, and so are "
                "all later ones. See to the disk, then restart the node"
            )
            raise self._failed from error

    def _write_in_thread(self, changes: Mapping[bytes, bytes | None]) -> None:
        with self._environment.begin(write=True) as transaction:
            for key, value in changes.items():
                if value is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, value)


def _open_environment(directory: Path) -> lmdb.Environment:
    return lmdb.open(str(directory), map_size=_MAP_BYTES, max_dbs=0, max_readers=16)


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _topic_value(topic: Topic, *, deleting: bool = False) -> bytes:
    return records.encode_topic(records.TopicRecord(topic, deleting))


_Content = tuple[
    records.NodeRecord,
    int,
    int,
    int,
    list[records.TopicRecord],
    bool,
    dict[str, int],
    dict[str, Mapping[str, str]],
    dict[str, Mapping[str, str]],
]
"""Node, starts, next producer id, offsets logs, topics, whether the group journals are begun, levels of features,
configs of brokers, and configs of groups."""


def _start(
    transaction: lmdb.Transaction,
    directory: Path,
    node_id: int,
    group_journal_count: int,
    features: Mapping[str, Feature],
) -> _Content:
    """Count a start, and bring a store of an older format up to this one; in the same transaction."""
    content = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    added: dict[bytes, bytes] = {}
    if not content:
        added = {
            records.FORMAT_KEY: records.encode_format(),
            records.NODE_KEY: records.encode_node(records.NodeRecord(_new_cluster_id(), node_id, group_journal_count)),
            records.STARTS_KEY: records.encode_count(0),
            records.PRODUCER_IDS_KEY: records.encode_count(0),
            records.OFFSETS_LOGS_KEY: records.encode_count(records.OFFSETS_LOGS),
        }
    else:
        _require_read(content, directory)
        added = records.brought_up(content)
    for key, value in added.items():
        transaction.put(key, value)
    node, starts, next_producer_id, offsets_logs, topics, begun, levels, brokers, groups = _read(
        {**content, **added}, directory
    )
    if node.node_id != node_id:
        raise StoreMismatch(
            f"the data in {directory.parent} is that of node {node.node_id}, but node_id is {node_id}: "
            "set node_id to what it was, or give another data directory"
        )
    if (problem := unsupported(features, levels)) is not None:
        raise StoreMismatch(
            f"in the cluster store in {directory}, {problem} Run the version of Fairlog that set it, and take it down"
            " there first (UpdateFeatures)"
        )
    transaction.put(records.STARTS_KEY, records.encode_count(starts + 1))
    return node, starts + 1, next_producer_id, offsets_logs, topics, begun, levels, brokers, groups


def _require_read(content: Mapping[bytes, bytes], directory: Path) -> None:
    """Raises StoreMismatch for a format that is not read, and CorruptStorage that names the file."""
    try:
        version = records.decode_format(content[records.FORMAT_KEY])
    except KeyError as error:
        raise _lacks(directory, error) from error
    except CorruptStorage as error:
        raise _corrupt(directory, error) from error
    if version not in records.READ_VERSIONS:
        raise StoreMismatch(
            f"the cluster store in {directory} has format {version}, and this program reads "
            f"{records.READ_VERSIONS[0]} to {records.VERSION}: "
            "run the version of Fairlog that wrote it, or a newer one"
        )


def _read(content: Mapping[bytes, bytes], directory: Path) -> _Content:
    """All records of a store of this format. Raises CorruptStorage that names the file."""
    try:
        return (
            records.decode_node(content[records.NODE_KEY]),
            records.decode_count(content[records.STARTS_KEY], "starts"),
            records.decode_count(content[records.PRODUCER_IDS_KEY], "producer-ids"),
            records.decode_count(content[records.OFFSETS_LOGS_KEY], "offsets-logs", least=1),
            [
                records.decode_topic(key, value)
                for key, value in content.items()
                if key.startswith(records.TOPIC_PREFIX)
            ],
            records.GROUP_JOURNALS_BEGUN_KEY in content,
            records.decode_features(content),
            records.decode_broker_configs(content),
            records.decode_group_configs(content),
        )
    except KeyError as error:
        raise _lacks(directory, error) from error
    except CorruptStorage as error:
        raise _corrupt(directory, error) from error


def _lacks(directory: Path, error: KeyError) -> CorruptStorage:
    return CorruptStorage(f"the cluster store {directory / 'data.mdb'} lacks the record {error}")


def _corrupt(directory: Path, error: CorruptStorage) -> CorruptStorage:
    return CorruptStorage(f"the cluster store {directory / 'data.mdb'} is corrupt: {error}")
