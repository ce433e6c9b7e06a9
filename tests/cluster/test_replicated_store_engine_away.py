"""The store of several machines, when its engine is away, or appends with an unknown outcome: who waits for what."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import trio
import trio.testing

from fairlog.cluster import metadata_log
from fairlog.cluster.interface import TopicExists
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_log import MetadataLog, OutcomeUnknown
from fairlog.cluster.replicated import ReplicatedStore
from fairlog_types import ShardNumber, StorageFailure
from stream.engine import StreamPosition
from tests.cluster.replicated_nodes import FOUNDING, ONE, STREAM, Nodes, run_with_jumping_clock
from tests.stream.model_engine import CALM, Faults, ModelStream


async def test_node_starts_from_its_copy_while_the_engine_is_away(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It answers as before, says of changes that their outcome is unknown, and goes on when the engine is back."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            topic = await store.create_topic("orders", partitions=2, configs={}, now_ms=5)
        stream = await nodes.cluster.engine("node-1").open_stream(STREAM)
        copy = LocalCopy.open(tmp_path / "node-1", STREAM)
        nodes.cluster.go_away()
        async with trio.open_nursery() as nursery:
            log = MetadataLog(stream, copy)
            nursery.start_soon(log.run)
            await log.found(FOUNDING)
            store = ReplicatedStore(log, ONE, ShardNumber(0))
            await store.catch_up()
            assert store.topics() == [topic]
            before = trio.current_time()
            with pytest.raises(OutcomeUnknown, match=r"stream c\.metadata did not show it in time. Ask again"):
                await store.create_topic("late", partitions=1, configs={}, now_ms=6)
            assert trio.current_time() - before <= metadata_log.ANSWER_SECONDS + 2
            nodes.cluster.come_back()
            await store.create_topic("new", partitions=1, configs={}, now_ms=7)
            nursery.cancel_scope.cancel()
        copy.close()

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_engine_that_is_away_is_not_asked_for_each_request(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A hundred requests wait for it together, not one after the other; nor does each ask for the end."""

    async def body(nodes: Nodes) -> None:
        asked = 0

        async def end(self: ModelStream) -> StreamPosition:
            nonlocal asked
            asked += 1
            return await real(self)

        real = ModelStream.end
        async with nodes.store() as store:
            with mock.patch.object(ModelStream, "end", end):
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(store.catch_up)
                assert 1 <= asked <= 2
                nodes.cluster.go_away()
                before = trio.current_time()
                for _ in range(3):
                    async with trio.open_nursery() as nursery:
                        for _ in range(100):
                            nursery.start_soon(store.catch_up)
                assert trio.current_time() - before < 3
                assert asked <= 5

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_engine_that_appends_to_know_its_end_keeps_nobody_waiting(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Each question moves the end on, so it is asked once."""

    async def body(nodes: Nodes) -> None:
        for _ in range(2):
            with trio.fail_after(1):
                async with nodes.store(1) as one, nodes.store(2) as two:
                    await one.alter_broker_configs("", lambda _: {"a": "1"})
                    await two.catch_up()
                    assert two.broker_configs("") == {"a": "1"}

    await run_with_jumping_clock(tmp_path, Faults(end_appends=1.0), body)


async def test_append_of_unknown_outcome_is_appended_again_as_it_is(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """All copies of a proposal are one: the caller is answered once, and nothing is made twice."""

    async def body(nodes: Nodes) -> None:
        nodes.cluster.faults = Faults(untold=1.0, read_s_max=0.5)
        async with nodes.store() as store:
            for number in range(5):
                assert await store.allot_producer_ids(10) == range(number * 10, number * 10 + 10)
        assert len(nodes.entries) > len(set(nodes.entries)) >= 6

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_lands_after_its_caller_was_told_that_nobody_knows_is_made(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """So nobody is ever told that it was not made. The next change of this node is decided with it."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            late: list[bytes] = []

            def swallow(_self: object, data: bytes, done: object) -> None:
                late.append(data)

            with mock.patch.object(ModelStream, "append", swallow), pytest.raises(OutcomeUnknown):
                await store.create_topic("orders", partitions=1, configs={}, now_ms=5)
            assert len(set(late)) == 1
            nodes.cluster.land(STREAM, late[0])
            with pytest.raises(TopicExists):
                await store.create_topic("orders", partitions=1, configs={}, now_ms=6)
            nodes.cluster.land(STREAM, late[0])
            await store.catch_up()
            assert [topic.created_ms for topic in store.topics()] == [5]

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_lands_after_another_on_its_base_is_void_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Its caller was told nothing, and the next change does not wait for it."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            late: list[bytes] = []
            with mock.patch.object(ModelStream, "append", lambda _self, data, _done: late.append(data)):
                with trio.move_on_after(1):
                    await store.create_topic("orders", partitions=1, configs={}, now_ms=5)
            await store.create_topic("other", partitions=1, configs={}, now_ms=6)
            nodes.cluster.land(STREAM, late[0])
            await store.catch_up()
            assert [topic.name for topic in store.topics()] == ["other"]

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_is_too_large_is_refused_and_nothing_else(nodes: Nodes) -> None:
    """An engine has a limit; the next change is made."""
    async with nodes.store() as store:
        with mock.patch.object(ModelStream, "entry_bytes_max", property(lambda _: 400)):
            with pytest.raises(StorageFailure, match="has room for 400: nothing was changed"):
                await store.alter_broker_configs("", lambda _: {"a": "x" * 400})
            await store.alter_broker_configs("", lambda _: {"a": "x"})
