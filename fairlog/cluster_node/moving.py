"""An operator's wish that a node owns a shard: judged by what this node sees, and put into the metadata.

The plan goes by it from then on (`placing`). docs/decisions/0070-shards-are-moved-by-a-wish.md says why it is a wish.
"""

from __future__ import annotations

from fairlog.admin_http.cluster_view import MoveAnswer, MoveOutcome
from fairlog.cluster.cluster_memory import NoSuchNode, NoSuchShard
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.metadata_log import OutcomeUnknown
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster_node.status import UP_AGE_S, ClusterStatus
from fairlog_types import ShardNumber, StorageFailure


async def move(
    store: ReplicatedStore, status: ClusterStatus, shard: int, node: int | None, *, hears: bool
) -> MoveAnswer:
    """Ask that `node` owns `shard` whenever it can; None: take that back.

    `hears`: this node has heard the others for the last UP_AGE_S. If it has not, it cannot tell who is down.
    """
    if hears and any(each.number == node and not each.is_up for each in status.nodes):
        return MoveAnswer(
            MoveOutcome.DOWN,
            f"node {node} is down: it was not heard within {UP_AGE_S:.0f} s. Start it, or name another one",
        )
    try:
        await store.wish(ShardNumber(shard), None if node is None else NodeNumber(node))
    except (NoSuchShard, NoSuchNode) as error:
        return MoveAnswer(MoveOutcome.UNKNOWN, str(error))
    except OutcomeUnknown as error:
        return MoveAnswer(MoveOutcome.NOT_KNOWN, str(error))
    except StorageFailure as error:
        return MoveAnswer(MoveOutcome.ENGINE_AWAY, str(error))
    if node is None:
        return MoveAnswer(MoveOutcome.ASKED, f"shard {shard} is spread with the others again")
    return MoveAnswer(MoveOutcome.ASKED, f"shard {shard} is to be node {node}'s")
