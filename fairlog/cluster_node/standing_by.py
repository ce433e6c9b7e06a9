"""At the ports of a shard of which this node has no copy: tells clients where to go, and no more (`fairlog.bystander`).

All ports of a node are open, so a client may come to any of them: with an address that it has kept, or that somebody
has given it. Without an answer it would wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio

from fairlog.bystander import make_bystander
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster_node.ports import NodeListeners
from fairlog.config import Settings
from fairlog.kafka.server import Server
from fairlog.live_settings import LiveSettings
from fairlog.native.protocol import NativeProtocol
from fairlog_types import ShardNumber


async def stand_by(
    settings: Settings,
    node: NodeNumber,
    shard: ShardNumber,
    metadata: MetadataLog,
    listeners: NodeListeners,
    engine_is_silent: Callable[[], bool],
) -> None:
    """Answer clients of the shard on this node, until cancelled."""
    store = ReplicatedStore(metadata, node, shard)
    try:
        live = LiveSettings(replace(settings, node_id=store.node_id), store)
        broker = make_bystander(store, live, listeners.advertised_of(shard), engine_is_silent=engine_is_silent)
        server = Server(broker, [NativeProtocol(broker)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow)
            await server.serve([door.another() for door in listeners.of_shard[shard].clients])
    finally:
        store.close()
