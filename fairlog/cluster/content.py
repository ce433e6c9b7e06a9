"""All records of an embedded store together, as values: for tools, and for a node that starts from a backup. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from fairlog.cluster import records
from fairlog.cluster.interface import Topic
from fairlog.security.users import USERS, User
from fairlog_types import CorruptStorage, ShardNumber
from shard.placement import Placement


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What a store holds."""

    node: records.NodeRecord
    starts: int
    """Of its one shard; of several, their starts and the changes of features, all together."""
    shards: int
    """How many there are."""
    started: Mapping[ShardNumber, records.ShardRecord]
    """How far each of them has come; one that never started is not there."""
    next_producer_id: int
    served: Sequence[Topic]
    deleting: Sequence[Topic]
    dropped: Mapping[UUID, Collection[ShardNumber]]
    """Of topics that are being deleted, the shards that have no log of theirs any more, if it is not the only one."""
    addresses: Mapping[int, records.AddressRecord]
    """Where brokers were last reached, by node id, if there are several."""
    feature_levels: Mapping[str, int]
    """Those that were set, by the features' names."""
    broker_configs: Mapping[str, Mapping[str, str]]
    """What clients have set, by the broker's id in decimal, or nothing for all brokers."""
    group_configs: Mapping[str, Mapping[str, str]]
    """What clients have set, by the consumer group's id."""
    first_shards: int | None = None
    """How many shards there were at the first start; None if none was added since."""
    group_separator: str | None = None
    """What stands between group and member in transactional ids (empty: nothing); None if no first start fixed it."""
    users: Mapping[str, User] = field(default_factory=dict[str, User])
    """Who can sign in, by name."""

    @property
    def placement(self) -> Placement:
        """Which shard has what."""
        return Placement(self.shards, self.first_shards)

    @property
    def group_journals_begun(self) -> bool:
        """All of them are on disk, in all shards that have any: those that were added have none."""
        having = map(ShardNumber, range(self.placement.at_first))
        return all(shard in self.started and self.started[shard].group_journals_begun for shard in having)


def read_content(content: Mapping[bytes, bytes]) -> StoreContent:
    """Read a store's keys and values, of this format or an older one. Raises CorruptStorage."""
    try:
        version = records.decode_format(content[records.FORMAT_KEY])
        if version > records.READ_VERSIONS[-1]:
            raise CorruptStorage(f"it has format {version}, and this program reads up to {records.READ_VERSIONS[-1]}")
        starts = records.decode_count(content[records.STARTS_KEY], "starts")
        shards = records.decode_shards(content)
        topics = records.decode_topics(content, shards)
        started = records.decode_shard_records(content, shards)
        if shards == 1:
            started = {ShardNumber(0): records.ShardRecord(starts, records.GROUP_JOURNALS_BEGUN_KEY in content)}
        separator = content.get(records.GROUP_SEPARATOR_KEY)
        dropped: dict[UUID, set[ShardNumber]] = {}
        for topic_id, shard in records.decode_dropped(content, shards):
            dropped.setdefault(topic_id, set()).add(shard)
        return StoreContent(
            records.decode_node(content[records.NODE_KEY]),
            starts,
            shards,
            started,
            records.decode_count(content[records.PRODUCER_IDS_KEY], "producer-ids"),
            [record.topic for record in topics if not record.deleting],
            [record.topic for record in topics if record.deleting],
            dropped,
            records.decode_addresses(content),
            records.decode_features(content),
            records.decode_broker_configs(content),
            records.decode_group_configs(content),
            records.decode_first_shards(content, shards),
            None if separator is None else records.decode_group_separator(separator),
            {each.name: cast("User", each.value) for each in records.decode_access(content) if each.kind == USERS.name},
        )
    except KeyError as error:
        raise CorruptStorage(f"it lacks the record {error}") from error
