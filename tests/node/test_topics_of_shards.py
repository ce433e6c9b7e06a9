"""Topics over several shards: each node leads its part of what any of them makes, and drops it with the topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from fairlog.cluster.interface import InvalidPartitions, Topic, UnknownTopic
from fairlog.topics import LocalTopics
from fairlog_types import LogId, Offset, StorageFailure
from partition.answers import Appended
from tests.node.shared_store import SharedStore, StoreView
from tests.shard.runs import Run, base_of

pytestmark = pytest.mark.slow

SHARDS = 3


class Node:
    """One of the nodes: its part of the topics, over a shard of its own."""

    def __init__(self, view: StoreView, run: Run) -> None:
        self.view, self.run = view, run
        self.deletions = 0
        self.topics = LocalTopics(view, run, run.clock, on_deleted=self._note)  # type: ignore[arg-type]

    def _note(self) -> None:
        self.deletions += 1

    def led(self, topic: Topic) -> set[int]:
        """The partitions of the topic that the node leads, whatever the store says."""
        return {log.partition for log in self.run.partitions.by_log if log.topic == topic.topic_id.hex}

    def due(self, topic: Topic) -> set[int]:
        """Those that it is to lead."""
        place = self.view.placement.shard_of
        together = topic.configs.get("fairlog.placement") == "together"
        return {log.partition for log in topic.logs() if place(log, together=together) == self.view.shard}


@asynccontextmanager
async def open_nodes(
    open_run, directory: Path, store: SharedStore, *, follow: bool = True
) -> AsyncIterator[list[Node]]:
    """All nodes over their directories; they hear of each other's changes if they `follow`."""
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for shard in range(SHARDS):
            run = await stack.enter_async_context(open_run(directory / str(shard)))
            node = Node(store.view(shard), run)
            await node.topics.recover()
            await run.serve()
            nodes.append(node)
        async with trio.open_nursery() as nursery:
            for node in nodes if follow else ():
                nursery.start_soon(node.topics.run)
            yield nodes
            nursery.cancel_scope.cancel()


@pytest.fixture
def store() -> SharedStore:
    return SharedStore(SHARDS)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.001)


def all_lead_their_parts(nodes: list[Node], topic: Topic) -> bool:
    return all(node.led(topic) == node.due(topic) for node in nodes)


@pytest.mark.parametrize("configs", [{}, {"fairlog.placement": "together"}], ids=str)
async def test_topic_created_at_one_node_is_led_by_all_in_parts(open_run, tmp_path, store, configs) -> None:
    """The node that was asked leads its own when it answers, the others soon; and all of them after a restart."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        topic = await nodes[1].topics.create("t", partitions=7, configs=configs)
        assert nodes[1].led(topic) == nodes[1].due(topic)
        await until(lambda: all_lead_their_parts(nodes, topic))
        assert sum(len(node.led(topic)) for node in nodes) == 7
        assert sorted(len(node.led(topic)) for node in nodes) == ([0, 0, 7] if configs else [2, 2, 3])
    async with open_nodes(open_run, tmp_path, store, follow=False) as nodes:
        assert all_lead_their_parts(nodes, topic)


async def test_topic_that_grows_at_one_node_is_led_by_all_in_parts(open_run, tmp_path, store) -> None:
    """What was led goes on."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        topic = await nodes[0].topics.create("t", partitions=2, configs={})
        await until(lambda: all_lead_their_parts(nodes, topic))
        grown = await nodes[2].topics.add_partitions("t", 9, validate_only=False)
        assert nodes[2].led(grown) == nodes[2].due(grown)
        await until(lambda: all_lead_their_parts(nodes, grown))
        for node in nodes:
            for partition in node.led(grown):
                assert base_of(await plain(node, topic, partition)) == Offset(0)


async def test_topic_deleted_at_one_node_is_dropped_by_all(open_run, tmp_path, store) -> None:
    """Each drops its part, and tells the offsets of it; then nobody has it."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        topic = await nodes[0].topics.create("t", partitions=7, configs={})
        await until(lambda: all_lead_their_parts(nodes, topic))
        await nodes[2].topics.delete(topic.topic_id)
        await until(lambda: not store.deleting)
        assert [node.led(topic) for node in nodes] == [set()] * SHARDS
        assert not any(log.topic == topic.topic_id.hex for node in nodes for log in node.run.data_logs.logs())
        assert all(node.deletions for node in nodes)


async def test_topic_deleted_while_it_is_being_created_leaves_nothing(open_run, tmp_path, store, monkeypatch) -> None:
    """Another node sees it before its maker leads it; the maker drops what it has just led."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        maker, lead = nodes[0], nodes[0].run.partitions.lead

        async def lead_late(logs, *arguments, **more) -> None:
            other = nodes[1].view.topic("t")
            if other is not None:
                await nodes[1].topics.delete(other.topic_id)
            await trio.testing.wait_all_tasks_blocked(0.001)
            await lead(logs, *arguments, **more)

        monkeypatch.setattr(maker.run.partitions, "lead", lead_late)
        topic = await maker.topics.create("t", partitions=7, configs={})
        await until(lambda: not store.deleting)
        assert [node.led(topic) for node in nodes] == [set()] * SHARDS


async def test_partitions_refused_since_another_node_was_faster_keep_what_was_written(
    open_run, tmp_path, store, monkeypatch
) -> None:
    """Those that were led for the refused request are there now, and may have records."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        topic = await nodes[0].topics.create("t", partitions=1, configs={})
        await until(lambda: all_lead_their_parts(nodes, topic))
        add_partitions = nodes[0].view.add_partitions

        async def add(name: str, total: int) -> Topic:
            grown = await nodes[1].topics.add_partitions(name, total + 2, validate_only=False)
            for partition in nodes[0].led(grown):
                assert isinstance(await plain(nodes[0], topic, partition), Appended)
            return await add_partitions(name, total)

        monkeypatch.setattr(nodes[0].view, "add_partitions", add)
        with pytest.raises(InvalidPartitions):
            await nodes[0].topics.add_partitions("t", 7, validate_only=False)
        grown = store.by_id[topic.topic_id]
        assert grown.partitions == 9
        await until(lambda: all_lead_their_parts(nodes, grown))
        written = {p: await plain(nodes[0], topic, p) for p in nodes[0].led(grown) if p < 7}
        assert len(written) >= 2
        assert {base_of(outcome) for outcome in written.values()} == {Offset(1)}


async def plain(node: Node, topic: Topic, partition: int) -> object:
    """Write a record to a partition that the node leads."""
    return await node.run.plain(LogId.of_topic(topic.topic_id, partition), b"v")


async def test_partitions_of_a_topic_that_another_node_has_deleted_are_not_left(
    open_run, tmp_path, store, monkeypatch
) -> None:
    """They were led for a request that comes to nothing."""
    async with open_nodes(open_run, tmp_path, store) as nodes:
        topic = await nodes[0].topics.create("t", partitions=1, configs={})
        add_partitions = nodes[0].view.add_partitions

        async def add(name: str, total: int) -> Topic:
            await nodes[1].topics.delete(topic.topic_id)
            return await add_partitions(name, total)

        monkeypatch.setattr(nodes[0].view, "add_partitions", add)
        with pytest.raises(UnknownTopic):
            await nodes[0].topics.add_partitions("t", 9, validate_only=False)
        await until(lambda: not store.deleting)
        assert [node.led(topic) for node in nodes] == [set()] * SHARDS


async def test_topic_of_another_node_that_cannot_be_led_for_now_is_led_later(
    open_run, tmp_path, store, monkeypatch
) -> None:
    """What stands in the way may pass; it is said once, and the node goes on."""
    monkeypatch.setattr("fairlog.topics.REMOVE_AGAIN_S", 0.01)
    async with open_nodes(open_run, tmp_path, store) as nodes:
        lead, refusals = nodes[2].run.partitions.lead, [StorageFailure("no file descriptors")] * 3

        async def lead_after_refusals(logs, *arguments, **more) -> None:
            if refusals:
                raise refusals.pop()
            await lead(logs, *arguments, **more)

        monkeypatch.setattr(nodes[2].run.partitions, "lead", lead_after_refusals)
        with capture_logs() as lines:
            topic = await nodes[0].topics.create("t", partitions=7, configs={})
            await until(lambda: all_lead_their_parts(nodes, topic))
    assert [line["event"] for line in lines if "led" in line["event"]] == ["new partitions not led yet"]
