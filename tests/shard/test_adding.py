"""A leader adds its log to a transaction that another shard coordinates, as often as it is asked, once."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from coordinator.answers import Granted, Refusal
from coordinator.messages import Begin, Stopped
from fairlog_types import LogId, ProducerEpoch, ShardNumber, StorageFailure
from partition.answers import Appended
from shard.adding import AddLog
from shard.conversation import Command
from tests.shard.neighbours import Cluster, Writer, log_of, open_cluster

LEADER, COORDINATOR = ShardNumber(0), ShardNumber(1)
LOG = log_of(0)
"""Led by LEADER."""


async def add(cluster: Cluster, writer: Writer, log: LogId = LOG, *, epoch: int | None = None) -> Refusal | None:
    granted = writer.granted
    message = AddLog(writer.name, granted.producer_id, granted.epoch if epoch is None else ProducerEpoch(epoch), log)
    return await cluster.shards[LEADER].add_log(COORDINATOR, message)


def commands(cluster: Cluster, kind: type) -> set[int]:
    """The numbers of those that were said."""
    return {
        message.number
        for _, _, message in cluster.way.carried
        if isinstance(message, Command) and isinstance(message.body, kind)
    }


async def end(writer: Writer, *, commit: bool = True) -> None:
    """As in transaction version 2: the next one has an epoch of its own. The logs hear of it before this returns."""
    it = writer.granted
    granted = await writer.cluster.coordinator(writer.shard).end_epoch(writer.name, it.producer_id, it.epoch, commit)
    assert isinstance(granted, Granted), granted
    writer.granted, writer.sequences = granted, {}
    with trio.fail_after(20):
        partitions = writer.cluster.shards[LEADER].partitions.by_log.values()
        while any(each.state.open_transactions for each in partitions):  # noqa: ASYNC110
            await trio.sleep(0.01)


async def test_log_that_its_leader_adds_takes_part(tmp_path: Path) -> None:
    """The coordinator is told of nothing else, and is asked once in each transaction."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        for number, value in enumerate((b"1", b"2", b"3"), 1):
            assert await add(cluster, writer) is None
            assert await add(cluster, writer) is None
            assert len(commands(cluster, AddLog)) == number
            assert isinstance(await writer.append(LOG, value), Appended)
            await end(writer, commit=value != b"2")
        assert await cluster.values(LOG) == {LOG: [b"1", b"3"]}


async def test_log_of_a_topic_that_the_coordinator_has_not_heard_of_is_added(tmp_path: Path) -> None:
    """Regression: the first batch for a new topic was refused, as if there were no such partition."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        cluster.not_known_yet.add(LOG)
        assert await add(cluster, writer) is None
        assert isinstance(await writer.append(LOG, b"v"), Appended)
        await end(writer)
        assert await cluster.values(LOG) == {LOG: [b"v"]}


async def test_log_is_not_added_to_an_epoch_that_has_ended(tmp_path: Path) -> None:
    """A late batch begins nothing, whatever the producer has open by now."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        assert await add(cluster, writer) is None
        late = writer.granted.epoch
        await end(writer, commit=False)
        assert await add(cluster, writer, epoch=late) is Refusal.FENCED
        assert await add(cluster, writer) is None
        assert await add(cluster, writer, epoch=late) is Refusal.FENCED


async def test_log_that_has_begun_is_not_added_before_its_coordinator_says_so(tmp_path: Path) -> None:
    """It may not have heard that it has begun: a commit would go without this log, and what was taken would be lost."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        writer, leader = await cluster.writer("t", COORDINATOR), cluster.shards[LEADER]
        nursery.start_soon(add, cluster, writer)
        with trio.fail_after(20):
            while not commands(cluster, Begin):  # noqa: ASYNC110
                await trio.lowlevel.checkpoint()
            cluster.way.cut.add((LEADER, COORDINATOR))
            while not leader.partitions.open_transaction_of(writer.granted.producer_id):  # noqa: ASYNC110
                await trio.sleep(0.001)
        with trio.move_on_after(0.1) as waiting:
            await add(cluster, writer)
        assert waiting.cancelled_caught
        cluster.way.cut.clear()
        with trio.fail_after(20):
            assert await add(cluster, writer) is None


async def test_log_that_takes_no_more_batches_is_asked_about(tmp_path: Path) -> None:
    """It is being ended, and only its coordinator knows how."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        assert await add(cluster, writer) is None
        partition = cluster.shards[LEADER].partitions.by_log[LOG]
        (txid,) = partition.state.open_transactions
        partition.state.seal(txid)
        assert await add(cluster, writer) is None
        assert len(commands(cluster, AddLog)) == 2


async def test_producer_that_the_coordinator_does_not_know_is_refused(tmp_path: Path) -> None:
    """It says so, also if the log has another id's transaction of this producer."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        assert await add(cluster, writer) is None
        writer.name = "another"
        assert await add(cluster, writer) is Refusal.UNKNOWN_PRODUCER_ID_MAPPING


async def test_coordinator_that_is_down_is_asked_once_and_answers_when_it_is_back(tmp_path: Path) -> None:
    """However often the producer sends its batch meanwhile, having given up each time."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t", COORDINATOR)
        await cluster.shards[LEADER].hear(COORDINATOR)
        left = cluster.kill(COORDINATOR)
        for _ in range(5):
            with trio.move_on_after(0.05) as waiting:
                await add(cluster, writer)
            assert waiting.cancelled_caught
        assert len(commands(cluster, AddLog)) == 1
        await cluster.start_again(COORDINATOR, left)
        with trio.fail_after(20):
            assert await add(cluster, writer) is None
        assert isinstance(await writer.append(LOG, b"v"), Appended)
        await end(writer)
        assert await cluster.values(LOG) == {LOG: [b"v"]}


@pytest.mark.parametrize("lost_first", [True, False])
async def test_stop_waits_for_no_coordinator_that_is_down(tmp_path: Path, lost_first: bool) -> None:
    """A shard that has just started may be asked for something of which only that coordinator knows."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.kill(COORDINATOR)
        await cluster.start_again(LEADER, cluster.kill(LEADER))
        shard = cluster.shards[LEADER]
        stopped = trio.Event()

        async def hear() -> None:
            with pytest.raises(Stopped):
                await shard.hear(COORDINATOR)
            stopped.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hear)
            await trio.testing.wait_all_tasks_blocked(0.01)
            steps = [lambda: shard.disconnected(COORDINATOR), shard.stop]
            for step in steps if lost_first else reversed(steps):
                assert not stopped.is_set()
                step()
            with trio.fail_after(5):
                await stopped.wait()


async def test_coordinator_that_has_not_recovered_answers_when_it_has(tmp_path: Path) -> None:
    """Before that it knows no producer."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t", COORDINATOR)
        await cluster.shards[LEADER].hear(COORDINATOR)
        await cluster.reopen(COORDINATOR, cluster.kill(COORDINATOR))
        answers: list[Refusal | None] = []

        async def ask() -> None:
            answers.append(await add(cluster, writer))

        nursery.start_soon(ask)
        await trio.sleep(0.3)
        assert commands(cluster, AddLog)
        assert answers == []
        await cluster.recover(COORDINATOR)
        with trio.fail_after(20):
            while not answers:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert answers == [None]


async def test_open_transaction_outlives_the_kill_of_its_leader(tmp_path: Path) -> None:
    """A log that it had added takes batches, and one that it adds afterwards does."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer, other = await cluster.writer("t", COORDINATOR), log_of(0, 1)
        assert await add(cluster, writer) is None
        assert isinstance(await writer.append(LOG, b"before"), Appended)
        await cluster.start_again(LEADER, cluster.kill(LEADER))
        for log in (LOG, other):  # the first one was added; this start is to hear so again
            assert await add(cluster, writer, log) is None
            assert isinstance(await writer.append(log, b"after"), Appended)
        await end(writer)
        assert await cluster.values(LOG, other) == {LOG: [b"before", b"after"], other: [b"after"]}


async def test_shard_that_stops_waits_for_no_coordinator(tmp_path: Path) -> None:
    """What comes of the question does not matter to it any more."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t", COORDINATOR)
        await cluster.shards[LEADER].hear(COORDINATOR)
        cluster.kill(COORDINATOR)

        async def stop() -> None:
            await trio.sleep(0.05)
            cluster.shards[LEADER].close_links()

        nursery.start_soon(stop)
        with pytest.raises(StorageFailure, match="stopped before"):
            await add(cluster, writer)


async def test_coordinator_that_stops_leaves_the_question_to_its_next_start(tmp_path: Path) -> None:
    """It has not heard that the log has begun. "The disk refused" would be untrue, and the batch would be refused."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        writer = await cluster.writer("t", COORDINATOR)
        answers: list[Refusal | None] = []

        async def ask() -> None:
            answers.append(await add(cluster, writer))

        nursery.start_soon(ask)
        with trio.fail_after(20):
            while not commands(cluster, Begin):  # noqa: ASYNC110
                await trio.lowlevel.checkpoint()
        cluster.way.cut.add((LEADER, COORDINATOR))
        await trio.sleep(0.1)
        cluster.shards[COORDINATOR].close_links()
        await trio.sleep(0.1)
        assert answers == []
        left = cluster.kill(COORDINATOR)
        cluster.way.cut.clear()
        await cluster.start_again(COORDINATOR, left)
        with trio.fail_after(20):
            while not answers:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert answers == [None]
