"""What every cluster store holds, as values, kept in step with its records. Pure.

Topics, configs, features, producer ids, and who may do what: a store of one machine has these (`memory`), and one of
several (`cluster_memory`). Each adds what it alone has, by `_decode_own`.

Whatever happens to a record comes in by `apply`, which knows each record's bytes as they were. So another process'
changes cost a comparison of bytes, and only the records that differ are decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from uuid import UUID

from fairlog.cluster import records
from fairlog.cluster.features import Feature, FeatureLevels, first_epoch
from fairlog.cluster.interface import Topic
from fairlog.cluster.topic_rules import folded_name
from fairlog.security.access_kind import AccessKind
from fairlog_types import ShardNumber

V = TypeVar("V")

Changes = Mapping[bytes, bytes | None]
"""Records as they become; None for one that goes."""


class CommonMemory:
    """What all stores hold. Made with no content; the class below it applies the first one."""

    def __init__(self, content: Mapping[bytes, bytes], features: Mapping[str, Feature]) -> None:
        """Read what never changes. Raises CorruptStorage; KeyError for a missing record."""
        self.offsets_logs = records.decode_count(content[records.OFFSETS_LOGS_KEY], "offsets-logs", least=1)
        self.shards = records.decode_shards(content)
        self.first_shards = records.decode_first_shards(content, self.shards)
        self.total_starts = records.decode_count(content[records.STARTS_KEY], "starts")
        """What all take the features' epoch from; see `_counts_levels`."""
        self.next_producer_id = records.decode_count(content[records.PRODUCER_IDS_KEY], "producer-ids")
        self.broker_configs: dict[str, Mapping[str, str]] = {}
        self.group_configs: dict[str, Mapping[str, str]] = {}
        self.access: dict[str, dict[str, object]] = {}
        """Of each kind's name (`fairlog.security.kinds`), the values by name."""
        self.by_id: dict[UUID, Topic] = {}
        self.by_log_topic: dict[str, Topic] = {}
        """By the `topic` of its logs: who leads a log is asked some twelve times in a transaction's life."""
        self.by_name: dict[str, Topic] = {}
        self.by_folded_name: dict[str, str] = {}
        self.deleting: dict[UUID, Topic] = {}
        self.dropped: dict[UUID, set[ShardNumber]] = {}
        """Which shards have dropped the logs of a topic that is being deleted; noted if there are several."""
        self.features = FeatureLevels(features, {}, first_epoch(self.total_starts))
        self._raw: dict[bytes, bytes] = {}

    @property
    def raw(self) -> Mapping[bytes, bytes]:
        """All records."""
        return self._raw

    def forgotten_by(self, topic_id: UUID, shard: ShardNumber) -> Changes:
        """What notes that the shard has dropped a topic that is being deleted: the last one removes all of it."""
        if topic_id not in self.deleting:
            return {}
        noted = self.dropped.get(topic_id, set())
        if len(noted | {shard}) < self.shards:
            return {records.dropped_key(topic_id, shard): records.encode_dropped()}
        gone = [records.topic_key(topic_id), *(records.dropped_key(topic_id, noting) for noting in noted)]
        return dict.fromkeys(gone)

    def with_access(self, kind: AccessKind[V], values: Mapping[str, V | None]) -> Changes:
        """What sets or, with None, removes names of a table."""
        changes = self.effective(
            {
                records.access_key(kind.name, name): None if value is None else records.encode_access(kind, name, value)
                for name, value in values.items()
            }
        )
        return changes and {**changes, **self.effective({records.FORMAT_KEY: self._locked_format})}

    def with_levels(self, chosen: Mapping[str, int]) -> Changes:
        """What sets features to these levels."""
        before = self.features.chosen
        changes = {
            records.feature_key(name): records.encode_count(level)
            for name, level in chosen.items()
            if before.get(name) != level
        }
        if changes and self._counts_levels:
            changes[records.STARTS_KEY] = records.encode_count(self.total_starts + 1)
        return changes

    def effective(self, changes: Changes) -> dict[bytes, bytes | None]:
        """Those of the changes that change anything."""
        return {key: value for key, value in changes.items() if self._raw.get(key) != value}

    def differences(self, content: Mapping[bytes, bytes]) -> dict[bytes, bytes | None]:
        """How the store differs from what is known, if `content` is all that it has."""
        gone: dict[bytes, bytes | None] = dict.fromkeys(self._raw.keys() - content.keys())
        return self.effective(content) | gone

    def apply(self, changes: Changes) -> bool:
        """Take in changed records; True if a reader could see a difference.

        Raises CorruptStorage, and has taken in nothing then.
        """
        before = {key: self._raw[key] for key in changes if key in self._raw}
        after = {key: value for key, value in changes.items() if value is not None}
        # All of it is decoded before anything of it is taken in.
        old_topics, topics = (records.decode_topics(each, self.shards) for each in (before, after))
        old_groups, groups = records.decode_group_configs(before), records.decode_group_configs(after)
        broker_configs = records.decode_broker_configs(after)
        old_access, access = records.decode_access(before), records.decode_access(after)
        levels = records.decode_features(after)
        dropped = records.decode_dropped(after, self.shards)
        counts = {
            key: records.decode_count(after[key], key.decode())
            for key in (records.STARTS_KEY, records.PRODUCER_IDS_KEY)
            if key in after
        }
        gone = changes.keys() - after.keys()
        take_in_own = self._decode_own(after, gone)

        for key in gone:
            self._raw.pop(key, None)
        self._raw |= after
        self._replace_topics(old_topics, topics)
        self.next_producer_id = counts.get(records.PRODUCER_IDS_KEY, self.next_producer_id)
        self.broker_configs |= broker_configs
        for group in old_groups.keys() - groups.keys():
            del self.group_configs[group]
        self.group_configs |= groups
        for kind, name, _ in old_access:
            del self.access[kind][name]
        for kind, name, value in access:
            self.access.setdefault(kind, {})[name] = value
        for topic_id in self.dropped.keys() - self.deleting.keys():
            del self.dropped[topic_id]  # the notes go with the topic
        for topic_id, shard in dropped:
            self.dropped.setdefault(topic_id, set()).add(shard)
        started = counts.get(records.STARTS_KEY, self.total_starts) != self.total_starts
        self.total_starts = counts.get(records.STARTS_KEY, self.total_starts)
        own = take_in_own()
        if levels or started:
            self._set_features(levels)
        # A topic that is forgotten is not among them: nobody sees it go.
        return bool(
            topics or old_groups or groups or broker_configs or old_access or access or levels or started or own
        )

    def _decode_own(self, after: Mapping[bytes, bytes], gone: Collection[bytes], /) -> Callable[[], bool]:
        """Decode what this kind of store alone has, of records as they become, and of keys of records that go.

        What is answered takes it in, and tells whether a reader could see a difference. Raises CorruptStorage.
        """
        raise NotImplementedError

    @property
    def _locked_format(self) -> bytes:
        """The record `format` of a store that says who may do what."""
        raise NotImplementedError

    @property
    def _counts_levels(self) -> bool:
        """Whether changes of features' levels are counted in the store. One process alone can count by itself."""
        raise NotImplementedError

    def _replace_topics(self, old: list[records.TopicRecord], new: list[records.TopicRecord]) -> None:
        """First all that were: a name may have passed from one to the other."""
        for record in old:
            topic = record.topic
            if record.deleting:
                del self.deleting[topic.topic_id]
            else:
                del self.by_id[topic.topic_id], self.by_log_topic[topic.topic_id.hex]
                del self.by_name[topic.name], self.by_folded_name[folded_name(topic.name)]
        for record in new:
            topic = record.topic
            if record.deleting:
                self.deleting[topic.topic_id] = topic
            else:
                self.by_id[topic.topic_id] = self.by_log_topic[topic.topic_id.hex] = self.by_name[topic.name] = topic
                self.by_folded_name[folded_name(topic.name)] = topic.name

    def _set_features(self, levels: Mapping[str, int]) -> None:
        before = self.features
        alone = not self._counts_levels
        epoch = before.epoch + 1 if alone and levels else first_epoch(self.total_starts)
        self.features = FeatureLevels(before.supported, {**before.chosen, **levels}, epoch)
