"""Topics and everything that belongs to them: the cluster store's entry, the journals and the data logs.

    create:  cluster store ──▶ lead its partitions ──▶ answered
    grow:    lead the new partitions ──▶ cluster store ──▶ answered
    configs: cluster store ──▶ answered; code that acts on one reads it where it is needed
    delete:  cluster store: marked ──▶ answered ──▶ journals and data logs removed ──▶ cluster store: forgotten

The next start repairs a crash between two steps: `recover` leads the partitions of every topic in the store, and `run`
removes marked topics. A topic whose partitions cannot be led is deleted again: at the next start it could not be led
either. New partitions of a topic are led before the store knows them, since they could not be removed again: until
then no client can write to them, and what a crash, or a refusal, leaves of them is empty, and removed.

With several shards, each of these nodes leads its part of every topic, and all of them change the same cluster store.
What another one has made, grown or deleted there, this one hears of soon, and leads or drops its own part (`run`). A
topic's creation is answered when the part of the node that was asked is led.

Changes take turns: many clients may ask for a new topic at once, which each would auto-create; and a change of configs
reads what it changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import structlog
import trio

from fairlog.cluster.interface import ClusterStore, InvalidPartitions, InvalidTopic, Topic, UnknownTopic
from fairlog.cluster.topic_rules import check_total_untrusted
from fairlog.topic_configs import is_together, mode_of
from fairlog_types import CorruptStorage, LogId, StorageFailure
from partition.modes import TransactionMode
from shard.shard import Shard

log = structlog.get_logger()

NODE_PARTITIONS_MAX = 50_000
"""Of all topics together. The data logs' environment has room for 65,536 databases between two starts, and logs that
were dropped since the last one still count there."""


REMOVE_AGAIN_S = 60
"""Between two attempts to remove what a deleted topic has left, or to lead what another node has made. What stands in
the way may pass, such as a want of file descriptors."""


class LocalTopics:
    """The topics of a node that leads the partitions of one shard. Implements `fairlog.broker.Topics`."""

    def __init__(
        self,
        cluster: ClusterStore,
        shard: Shard,
        now_ms: Callable[[], int],
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_deleted` hears that a topic is no longer there, once that is durable."""
        self._on_deleted = on_deleted
        self._cluster = cluster
        self._shard = shard
        self._now_ms = now_ms
        self._changing = trio.Lock()
        self._marked = trio.Event()
        self._alone = cluster.is_alone
        self._led: dict[UUID, int] = {}
        """How many partitions each topic had when this shard's part of it was led last. Of several shards only."""

    async def recover(self) -> None:
        """Lead this shard's partitions of all topics. Raises CorruptStorage, StorageFailure."""
        leftovers = await trio.to_thread.run_sync(self._partitions_never_added)
        if leftovers:
            log.info("partitions that were never added are removed", logs=[str(each) for each in leftovers])
            await self._shard.drop(leftovers)
        logs: dict[TransactionMode, list[LogId]] = {}
        topics = self._cluster.topics()
        for topic in topics:
            logs.setdefault(mode_of(topic), []).extend(self._own_logs(topic))
        for mode, of_mode in logs.items():
            await self._shard.lead(of_mode, mode)
        self._led = {} if self._alone else {topic.topic_id: topic.partitions for topic in topics}

    def _own_logs(self, topic: Topic, *, first: int = 0) -> Sequence[LogId]:
        """The logs of the topic that this shard leads, from partition `first` on."""
        logs = topic.logs()[first:]
        if self._alone:
            return logs
        placement, shard, together = self._cluster.placement, self._cluster.shard, is_together(topic)
        over = topic.spread_over
        return [each for each in logs if placement.shard_of(each, together=together, over=over) == shard]

    def _partitions_never_added(self) -> list[LogId]:
        """The data logs that lie behind a topic's last partition. In a worker thread. Raises CorruptStorage."""
        totals = {
            topic.topic_id.hex: topic.partitions for topic in (*self._cluster.topics(), *self._cluster.deleting())
        }
        data_logs = self._shard.data_logs
        beyond = [each for each in data_logs.logs() if each.partition >= totals.get(each.topic, each.partition + 1)]
        for each in beyond:
            if data_logs.bounds(each).next_offset:
                raise CorruptStorage(
                    f"the data log {each} has records, but its topic has {totals[each.topic]} partitions: the cluster "
                    "store is older than the data logs. Put back the one that belongs to them."
                )
        return beyond

    async def create(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """See `fairlog.broker.Topics.create`. Cancelled: the topic was made, with its partitions, or it was not."""
        async with self._changing:
            if (problem := why_no_room_for(self._cluster, partitions)) is not None:
                raise InvalidTopic(problem)
            unled: StorageFailure | None = None
            with trio.CancelScope(shield=True):
                topic = await self._cluster.create_topic(
                    name, partitions=partitions, configs=configs, now_ms=self._now_ms()
                )
                try:
                    await self._lead(topic)
                except StorageFailure as failure:
                    unled = failure
                if unled is not None:
                    await self._cluster.delete_topic(name)
                    self._marked.set()
                    raise unled
                log.info("topic created", topic=name, topic_id=str(topic.topic_id), partitions=partitions)
                return topic
        raise AssertionError("a shielded step is not cancelled")

    async def _lead(self, topic: Topic, *, first: int = 0) -> None:
        """Lead this shard's part of a topic, from partition `first` on. Raises StorageFailure, CorruptStorage."""
        await self._shard.lead(self._own_logs(topic, first=first), mode_of(topic))
        if not self._alone:
            self._led[topic.topic_id] = topic.partitions

    async def add_partitions(self, name: str, total: int, *, validate_only: bool) -> Topic:
        """See `fairlog.broker.Topics.add_partitions`. Cancelled: they are there, or they are not."""
        async with self._changing:
            topic = self._known(name)
            check_total_untrusted(topic, total)
            if (problem := why_no_room_for(self._cluster, total - topic.partitions)) is not None:
                raise InvalidPartitions(problem)
            if validate_only:
                return topic
            with trio.CancelScope(shield=True):
                return await self._grow(topic, total)
        raise AssertionError("a shielded step is not cancelled")

    async def _grow(self, topic: Topic, total: int) -> Topic:
        new = self._own_logs(replace(topic, partitions=total), first=topic.partitions)
        try:
            await self._shard.lead(new, mode_of(topic))
            grown = await self._cluster.add_partitions(topic.name, total)
        except (StorageFailure, UnknownTopic, InvalidPartitions) as failure:
            refused = failure
        else:
            log.info("partitions added", topic=topic.name, topic_id=str(topic.topic_id), partitions=total)
            return grown
        now = self._cluster.topic_by_id(topic.topic_id)
        partitions = 0 if now is None else now.partitions  # another node may have deleted the topic, or let it grow
        with suppress(StorageFailure):  # what is left is removed by the next start
            await self._shard.drop([each for each in new if each.partition >= partitions])
        raise refused

    async def alter_configs(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Topic:
        """See `fairlog.broker.Topics.alter_configs`."""
        async with self._changing:
            before = self._known(name)
            changed = await self._cluster.alter_topic_configs(name, change)
        if changed.configs != before.configs:
            log.info("topic configs changed", topic=name, topic_id=str(changed.topic_id), configs=dict(changed.configs))
        return changed

    def _known(self, name: str) -> Topic:
        topic = self._cluster.topic(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    async def delete(self, topic_id: UUID) -> None:
        """See `fairlog.broker.Topics.delete`."""
        async with self._changing:
            topic = self._cluster.topic_by_id(topic_id)
            if topic is None:
                raise UnknownTopic(f"there is no topic with the id {topic_id}")
            await self._cluster.delete_topic(topic.name)
        log.info("topic deleted", topic=topic.name, topic_id=str(topic_id))
        self._on_deleted()
        self._marked.set()

    async def run(self) -> None:
        """Remove what deleted topics leave behind, and lead what other nodes have made; until cancelled.

        However often it takes. Raises CorruptStorage.
        """
        put_off: set[UUID] = set()
        while True:
            self._marked = trio.Event()
            notice = self._marked if self._alone else self._cluster.changed()
            if self._alone:
                await self._remove_deleted(put_off)
            else:
                # In turn with this node's own changes: what one of them is about to lead, another node may delete.
                async with self._changing:
                    await self._remove_deleted(put_off)
                    await self._follow(put_off)
            with trio.move_on_after(REMOVE_AGAIN_S if put_off else math.inf):
                await notice.wait()

    async def _remove_deleted(self, put_off: set[UUID]) -> None:
        for topic in self._cluster.deleting():
            try:
                await self._shard.drop(self._own_logs(topic))
                await self._cluster.forget_topic(topic.topic_id)
            except StorageFailure as failure:
                if topic.topic_id not in put_off:  # once, not for each attempt
                    log.warning("deleted topic not removed yet", **_named(topic), reason=str(failure))
                put_off.add(topic.topic_id)
            else:
                if topic.topic_id in put_off:
                    log.info("deleted topic removed after all", **_named(topic))
                put_off.discard(topic.topic_id)
                if self._led.pop(topic.topic_id, None) is not None:
                    self._on_deleted()

    async def _follow(self, put_off: set[UUID]) -> None:
        """Lead this shard's part of what is new in the store."""
        for topic in self._cluster.topics():
            led = self._led.get(topic.topic_id, 0)
            if led == topic.partitions:
                continue
            try:
                await self._lead(topic, first=led)
            except StorageFailure as failure:
                if topic.topic_id not in put_off:
                    log.warning("new partitions not led yet", **_named(topic), reason=str(failure))
                put_off.add(topic.topic_id)
            else:
                put_off.discard(topic.topic_id)


def why_no_room_for(cluster: ClusterStore, partitions: int) -> str | None:
    """Why so many partitions more cannot be made; None if they can."""
    taken = sum(topic.partitions for topic in (*cluster.topics(), *cluster.deleting()))
    if taken + partitions <= NODE_PARTITIONS_MAX:
        return None
    return f"{partitions} partitions more would make {taken + partitions}; a node leads {NODE_PARTITIONS_MAX}"


def _named(topic: Topic) -> dict[str, str]:
    return {"topic": topic.name, "topic_id": str(topic.topic_id)}
