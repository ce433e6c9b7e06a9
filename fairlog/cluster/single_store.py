"""The store of a node on one machine, with what a cluster of one shard has agreed on: for a backup of its copy. Pure.

Topics, configs, features and counters are the same in both. What is left out is about several machines: nodes, who
owns the shard, and configs of single brokers, whose ids do not come again.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlog.cluster import cluster_records, records

_SAME = (records.TOPIC_PREFIX, records.FEATURE_PREFIX, records.GROUP_CONFIGS_PREFIX, records.ACCESS_PREFIX)
_FOR_ALL_BROKERS = records.broker_key("")
_SAME_KEYS = (records.STARTS_KEY, records.PRODUCER_IDS_KEY, records.OFFSETS_LOGS_KEY, _FOR_ALL_BROKERS)


def single_store(metadata: Mapping[bytes, bytes], node_id: int) -> dict[bytes, bytes]:
    """The records of node `node_id`'s store, of those of the metadata. Raises CorruptStorage; KeyError."""
    assert records.decode_shards(metadata) == 1, "shards of a cluster have no moment in common"
    cluster = cluster_records.decode_cluster(metadata[cluster_records.CLUSTER_KEY])
    node = records.NodeRecord(cluster.cluster_id, node_id, cluster.group_journal_count)
    same = {key: value for key, value in metadata.items() if key.startswith(_SAME) or key in _SAME_KEYS}
    is_locked = any(key.startswith(records.ACCESS_PREFIX) for key in same)
    version = records.LOCKED_VERSION if is_locked else records.VERSION
    return {records.FORMAT_KEY: records.encode_format(version), records.NODE_KEY: records.encode_node(node), **same}
