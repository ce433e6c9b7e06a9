"""What an operator is answered who moves a shard, and what stands in the metadata then."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import trio
from trio.testing import MockClock

from fairlog.admin_http.cluster_view import MoveOutcome
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster_node.moving import move
from fairlog_types import ShardNumber, StorageFailure
from tests.cluster.replicated_nodes import FOUNDING, ONE, THREE, TWO, Nodes, node_record
from tests.cluster_admin import WELL, cluster_status
from tests.stream.model_engine import ModelCluster, open_model

SHARD = ShardNumber(1)


@pytest.fixture
async def engine() -> AsyncIterator[ModelCluster]:
    async with open_model(random.Random(1)) as engine:
        yield engine


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """It goes on by itself, for the log waits for threads."""
    mock_clock.rate = 1.0
    return mock_clock


@pytest.fixture
async def log(tmp_path: Path, engine: ModelCluster, clock: MockClock) -> AsyncIterator[MetadataLog]:
    """Of a cluster of three nodes."""
    async with Nodes(tmp_path, engine).log("node-1") as log:
        for number in (ONE, TWO, THREE):
            await ReplicatedStore(log, number, ShardNumber(0)).announce(node_record(f"{number}.example"))
        yield log


@pytest.fixture
def store(log: MetadataLog) -> ReplicatedStore:
    return ReplicatedStore(log, ONE, ShardNumber(0))


async def test_wish_is_in_the_metadata_until_it_is_taken_back(store: ReplicatedStore, log: MetadataLog) -> None:
    answer = await move(store, cluster_status(), SHARD, THREE, hears=True)
    assert answer == (MoveOutcome.ASKED, "shard 1 is to be node 3's")
    assert log.memory.wishes == {SHARD: THREE}
    answer = await move(store, cluster_status(), SHARD, None, hears=True)
    assert answer == (MoveOutcome.ASKED, "shard 1 is spread with the others again")
    assert log.memory.wishes == {}
    assert (await move(store, cluster_status(), SHARD, None, hears=True)).outcome is MoveOutcome.ASKED


@pytest.mark.parametrize(
    ("shard", "node", "sentence"),
    [
        (3, 1, "there is no shard 3: there are 3, from 0 on"),
        (1, 4, "there is no node 4 in the cluster: there are 1, 2, 3"),
        (10**30, 1, f"there is no shard {10**30}: there are 3, from 0 on"),
    ],
)
async def test_what_does_not_exist_is_named(
    store: ReplicatedStore, log: MetadataLog, shard: int, node: int, sentence: str
) -> None:
    assert await move(store, cluster_status(), shard, node, hears=True) == (MoveOutcome.UNKNOWN, sentence)
    assert log.memory.wishes == {}


async def test_node_that_is_down_is_refused(store: ReplicatedStore, log: MetadataLog) -> None:
    """A wish for it that stands already is taken back nevertheless."""
    await store.wish(SHARD, THREE)
    status = cluster_status()
    down = replace(status, nodes=[replace(node, is_up=node.number != THREE) for node in status.nodes])
    answer = await move(store, down, 0, THREE, hears=True)
    assert answer.outcome is MoveOutcome.DOWN
    assert answer.message == "node 3 is down: it was not heard within 10 s. Start it, or name another one"
    assert log.memory.wishes == {SHARD: THREE}
    assert (await move(store, down, SHARD, None, hears=True)).outcome is MoveOutcome.ASKED


async def test_node_that_hears_nobody_takes_nobody_for_down(store: ReplicatedStore, log: MetadataLog) -> None:
    """It has just started, or was cut off for a moment. Who plans knows better."""
    status = cluster_status()
    nobody = replace(status, nodes=[replace(node, is_up=node.number == ONE) for node in status.nodes])
    assert (await move(store, nobody, SHARD, THREE, hears=False)).outcome is MoveOutcome.ASKED
    assert log.memory.wishes == {SHARD: THREE}


async def test_engine_that_was_away_when_it_was_last_heard_is_asked(store: ReplicatedStore, log: MetadataLog) -> None:
    """It may be back."""
    away = replace(cluster_status(), engine=replace(WELL, answers=False, said="3 of 3 are down"))
    assert (await move(store, away, SHARD, THREE, hears=True)).outcome is MoveOutcome.ASKED
    assert log.memory.wishes == {SHARD: THREE}


async def test_engine_that_goes_away_meanwhile_leaves_it_open(
    store: ReplicatedStore, engine: ModelCluster, clock: MockClock
) -> None:
    """The wish may yet be made."""
    clock.rate = 50.0
    engine.go_away()
    answer = await move(store, cluster_status(), SHARD, THREE, hears=True)
    assert answer.outcome is MoveOutcome.NOT_KNOWN
    assert "it is not known whether the change was made" in answer.message


async def test_stream_that_fails_after_the_wish_was_appended_leaves_it_open(
    tmp_path: Path, engine: ModelCluster, clock: MockClock
) -> None:
    """The wish is in the stream, and other nodes may have read it; only this one has ended."""
    directory = tmp_path / "failing"
    stream = await engine.engine("failing").open_stream("c.metadata")
    copy = LocalCopy.open(directory, "c.metadata")
    log = MetadataLog(stream, copy)
    with pytest.raises(ExceptionGroup) as ended:  # noqa: PT012
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            await log.found(FOUNDING)
            store = ReplicatedStore(log, ONE, ShardNumber(0))
            await store.announce(node_record("1.example"))
            failing = mock.patch.object(copy, "write", side_effect=StorageFailure("the disk is full"))
            with failing, trio.CancelScope(shield=True):
                answer = await move(store, cluster_status(), SHARD, ONE, hears=True)
    copy.close()
    assert "the disk is full" in str(ended.value.exceptions)
    assert answer.outcome is MoveOutcome.NOT_KNOWN
    assert answer.message == "it is not known whether the change was made, or will be: the disk is full"
