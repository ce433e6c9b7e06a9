"""All copies of shards that a node keeps: they come and go with the plan in the metadata.

One that fails ends the node, in good order for the others: they are handed over. Whoever starts the node again, a
service manager for example, starts all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster.reports_log import ReportsLog
from fairlog.cluster_node.engine import open_stream
from fairlog.cluster_node.ports import NodeListeners
from fairlog.cluster_node.shard_copy import CopyParts, keep_copy
from fairlog.cluster_node.standing_by import stand_by
from fairlog.config import Settings
from fairlog.exception_groups import leaves
from fairlog_types import ShardNumber
from shard.directory import ShardDirectory, shard_directories, shard_directory
from shard.joining import remove_copy
from shard.progress import CopyProgress
from stream.kafka_engine import KafkaEngine

log = structlog.get_logger("fairlog.copies")


def stream_of(shard: ShardNumber) -> str:
    """The name of the shard's stream in the engine."""
    return f"shard-{shard}"


class Copies:
    """Those of one node."""

    def __init__(
        self,
        settings: Settings,
        node: NodeNumber,
        metadata: MetadataLog,
        store: ReplicatedStore,
        engine: KafkaEngine,
        listeners: NodeListeners,
        progress: dict[ShardNumber, CopyProgress],
        reports: ReportsLog,
        failures: list[Exception],
    ) -> None:
        """`store` tells when the metadata have changed; `progress` is what `reports` reports of the copies. A copy that
        has failed for good is added to `failures`.
        """
        self._settings = settings
        self._node = node
        self._metadata = metadata
        self._store = store
        self._engine = engine
        self._listeners = listeners
        self._progress = progress
        self._reports = reports
        self._stops: dict[ShardNumber, trio.Event] = {}
        """Of those that are kept, or have yet to end."""
        self._standing_by: dict[ShardNumber, trio.CancelScope] = {}
        """Of the others."""
        self._has_ended = trio.Event()
        """Set when one of them has, and another one then: it may be wanted again by now."""
        self._failures = failures

    async def run(self, stop: trio.Event) -> None:
        """Keep what the plan says until `stop`, which is set if a copy fails; then end, and hand over what is owned."""
        for directory in await trio.to_thread.run_sync(shard_directories, self._settings.data_dir):
            if self._is_dropped(directory.number):  # since this node was here last
                await self._remove(directory)
        async with trio.open_nursery() as copies:
            while not stop.is_set():
                changed, has_ended = self._store.changed(), self._has_ended
                self._follow_the_plan(copies, stop)
                async with trio.open_nursery() as waiting:
                    for notice in (changed.wait, has_ended.wait, stop.wait):
                        waiting.start_soon(_cancel_after, notice, waiting.cancel_scope)
            self._reports.stop()
            for each in self._stops.values():
                each.set()
            for scope in self._standing_by.values():
                scope.cancel()
        await self._reports.say_last()

    def _follow_the_plan(self, nursery: trio.Nursery, stop_all: trio.Event) -> None:
        memory = self._metadata.memory
        for shard in map(ShardNumber, range(memory.shards)):
            is_to_be = not self._is_dropped(shard)
            if is_to_be and shard not in self._stops:
                if shard in self._standing_by:
                    self._standing_by.pop(shard).cancel()
                stop = self._stops[shard] = trio.Event()
                nursery.start_soon(self._keep, shard, stop, stop_all)
            elif not is_to_be and shard in self._stops:
                self._stops[shard].set()
            elif not is_to_be and shard not in self._standing_by:
                scope = self._standing_by[shard] = trio.CancelScope()
                nursery.start_soon(self._stand_by, shard, scope)

    async def _stand_by(self, shard: ShardNumber, scope: trio.CancelScope) -> None:
        with scope, structlog.contextvars.bound_contextvars(shard=shard):
            await stand_by(self._settings, self._node, shard, self._metadata, self._listeners, self._engine_is_silent)

    def _engine_is_silent(self) -> bool:
        return not self._engine.health().answers

    def _is_dropped(self, shard: ShardNumber) -> bool:
        return self._node not in self._metadata.memory.shard(shard).copies

    async def _remove(self, directory: ShardDirectory) -> None:
        try:
            await trio.to_thread.run_sync(remove_copy, directory)
        except OSError as error:
            log.warning(
                "a copy cannot be removed; the next start tries again", shard=directory.number, reason=str(error)
            )
        else:
            log.info("the copy is removed: other nodes keep the shard", shard=directory.number)

    async def _keep(self, shard: ShardNumber, stop: trio.Event, stop_all: trio.Event) -> None:
        log.info("keeps a copy", shard=shard)
        try:
            stream = await open_stream(self._engine, stream_of(shard))
            progress = self._progress[shard] = CopyProgress(self._reports.report_now)
            parts = CopyParts(
                settings=self._settings,
                node=self._node,
                shard=shard,
                metadata=self._metadata,
                stream=stream,
                listeners=self._listeners,
                reports=self._reports.reports,
                progress=progress,
                engine_is_silent=self._engine_is_silent,
            )
            await keep_copy(parts, stop)
            if self._is_dropped(shard):
                await self._remove(shard_directory(self._settings.data_dir, shard))
        except Exception as error:  # noqa: BLE001 (it is raised when the others have ended)
            reason = "; ".join(map(str, leaves(error)))
            log.error("a copy has failed, and the node ends", shard=shard, reason=reason)  # noqa: TRY400
            self._failures.append(error)
            stop_all.set()
        finally:
            del self._stops[shard]
            self._progress.pop(shard, None)
            self._has_ended.set()
            self._has_ended = trio.Event()
        log.info("stops keeping a copy", shard=shard)


async def _cancel_after(wait: Callable[[], object], scope: trio.CancelScope) -> None:
    await wait()  # type: ignore[misc]
    scope.cancel()
