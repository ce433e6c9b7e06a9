"""All records of an embedded store together, as values: for tools, and for a node that starts from a backup. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlog.cluster import records
from fairlog.cluster.interface import Topic
from fairlog_types import CorruptStorage


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What a store holds."""

    node: records.NodeRecord
    starts: int
    next_producer_id: int
    served: Sequence[Topic]
    deleting: Sequence[Topic]
    group_journals_begun: bool
    """All of them are on disk."""
    feature_levels: Mapping[str, int]
    """Those that were set, by the features' names."""
    broker_configs: Mapping[str, Mapping[str, str]]
    """What clients have set, by the broker's id in decimal, or nothing for all brokers."""
    group_configs: Mapping[str, Mapping[str, str]]
    """What clients have set, by the consumer group's id."""


def read_content(content: Mapping[bytes, bytes]) -> StoreContent:
    """Read a store's keys and values, of this format or an older one. Raises CorruptStorage."""
    try:
        version = records.decode_format(content[records.FORMAT_KEY])
        if version > records.VERSION:
            raise CorruptStorage(f"it has format {version}, and this program reads up to {records.VERSION}")
        topics = [
            records.decode_topic(key, value) for key, value in content.items() if key.startswith(records.TOPIC_PREFIX)
        ]
        return StoreContent(
            records.decode_node(content[records.NODE_KEY]),
            records.decode_count(content[records.STARTS_KEY], "starts"),
            records.decode_count(content[records.PRODUCER_IDS_KEY], "producer-ids"),
            [record.topic for record in topics if not record.deleting],
            [record.topic for record in topics if record.deleting],
            records.GROUP_JOURNALS_BEGUN_KEY in content,
            records.decode_features(content),
            records.decode_broker_configs(content),
            records.decode_group_configs(content),
        )
    except KeyError as error:
        raise CorruptStorage(f"it lacks the record {error}") from error
