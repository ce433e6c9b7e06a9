"""The owner of a shard trims its stream, before what enough copies have on disk, by their reports."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog
import trio

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.reports import Reports, trim_to
from fairlog_types import ShardNumber
from stream.engine import EngineAway, Stream, StreamPosition

log = structlog.get_logger()

TRIM_EVERY_S = 5.0
"""As often as marks are written."""


async def keep_trimmed(
    stream: Stream,
    shard: ShardNumber,
    owner: NodeNumber,
    reports: Reports,
    *,
    mark: Callable[[], StreamPosition],
    members: Callable[[], Collection[NodeNumber]],
    replicas: int,
) -> None:
    """Trim the stream of a shard as long as the node `owner` owns it; until cancelled.

    `mark` is the position of the owner's own mark, and `members` are the nodes that are to keep a copy, as it is then.
    An engine that is away is asked again the next time.
    """
    trimmed = StreamPosition(0)
    while True:
        await trio.sleep(TRIM_EVERY_S)
        before = trim_to(owner, mark(), members(), reports.of(shard), replicas)
        if before is not None and before > trimmed:
            try:
                await stream.trim(before)
            except EngineAway as away:
                log.warning("a shard's stream is not trimmed", stream=stream.name, reason=str(away))
            else:
                trimmed = before
