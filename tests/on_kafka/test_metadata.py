"""Metadata of several nodes on each kind of engine: snapshots, trims, a node that was away and one that is new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
import trio

from fairlog.cluster import metadata_snapshots
from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.interface import Topic
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_log import Founding, MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog_types import ShardNumber
from stream.kafka_engine import KafkaStream
from tests.stream.model_engine import Faults, ModelStream
from tests.stream.rigs import ModelRig, Rig, World

pytestmark = pytest.mark.slow

STREAM = "metadata"


@pytest.fixture(params=["model", "three_replicas"])
def rig(request: pytest.FixtureRequest) -> Rig:
    """Each kind of engine; on Kafka with three brokers."""
    return ModelRig(Faults(end_appends=1.0)) if request.param == "model" else request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after a few changes, in several entries."""
    monkeypatch.setattr(metadata_snapshots, "SNAPSHOT_ENTRIES", 5)
    for stream in (KafkaStream, ModelStream):
        monkeypatch.setattr(stream, "entry_bytes_max", property(lambda _: 300))


class Nodes:
    """Nodes with a copy each, in a directory."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._directory = directory

    @asynccontextmanager
    async def store(self, number: int) -> AsyncIterator[ReplicatedStore]:
        async with self._world.open_engine(f"node-{number}") as engine:
            stream = await engine.open_stream(STREAM)
            copy = LocalCopy.open(self._directory / str(number), stream.name)
            try:
                async with trio.open_nursery() as nursery:
                    log = MetadataLog(stream, copy)
                    nursery.start_soon(log.run)
                    await log.found(Founding(1, 4, 4, "-"))
                    yield ReplicatedStore(log, NodeNumber(number), ShardNumber(0))
                    nursery.cancel_scope.cancel()
            finally:
                copy.close()

    async def start(self) -> int:
        async with self._world.open_engine("somebody") as engine:
            return await (await engine.open_stream(STREAM)).start()


def test_nodes_agree_and_a_new_one_begins_at_a_snapshot(rig: Rig, tmp_path: Path) -> None:
    """No topic is lost, no id is given twice, and the stream is trimmed."""

    async def write(self: LocalCopy, changes: object, state: object) -> None:
        await trio.lowlevel.checkpoint()  # the model's clock does not wait for threads
        self._write_in_thread(changes, state)  # type: ignore[arg-type]

    async def trial(world: World) -> None:
        nodes, ids, topics = Nodes(world, tmp_path), list[range](), list[Topic]()

        async def work(store: ReplicatedStore, first: int) -> None:
            for number in range(first, first + 8):
                topics.append(await store.create_topic(f"t{number}", partitions=2, configs={}, now_ms=number))
                ids.append(await store.allot_producer_ids(10))

        async with nodes.store(3):
            pass
        async with nodes.store(1) as one, nodes.store(2) as two:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, one, 10)
                nursery.start_soon(work, two, 20)
            with trio.fail_after(30):
                while not await nodes.start():
                    ids.append(await one.allot_producer_ids(10))
            await two.catch_up()
            assert one.topics() == two.topics()
        assert sorted(each for block in ids for each in block) == list(range(len(ids) * 10))
        async with nodes.store(3) as away, nodes.store(4) as new:
            for store in (away, new):
                await store.catch_up()
                assert store.topics() == sorted(topics, key=lambda topic: topic.name)
                ids.append(await store.allot_producer_ids(10))
        assert len({block.start for block in ids}) == len(ids)

    with mock.patch.object(LocalCopy, "write", write):
        rig.run(trial)
