"""Which shard coordinates a consumer group, and which a transactional id. Pure.

    group             the leader of its offsets log: members and offsets are in one place
    transactional id  the shard that has its group journal, where the id's past is

So all brokers give the same answer without asking each other. A changed group separator may give a transactional id
another group journal, and so another coordinator, which does not know the id: clients of several shards keep theirs.
"""

from __future__ import annotations

from coordinator.transaction_groups import group_of, journal_of
from fairlog.cluster.interface import ClusterStore
from fairlog_types import LogId, ShardNumber


def shard_of_group(cluster: ClusterStore, offsets_log: LogId) -> ShardNumber:
    """Who coordinates the groups whose offsets are in this log."""
    return cluster.placement.shard_of(offsets_log, together=False)


def shard_of_transactional_id(cluster: ClusterStore, transactional_id: str, group_separator: str) -> ShardNumber:
    """Who coordinates the id, by the separator that is set now."""
    journal = journal_of(group_of(transactional_id, group_separator), cluster.group_journal_count)
    return cluster.placement.shard_of_group_journal(journal)
