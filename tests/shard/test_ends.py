"""Where logs end with all that was answered or decided (invariant 13), at leaders on real journals; and who waits."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import memory_stream_pair

from fairlog.broker import Broker
from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.frames import FrameReader
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client
from fairlog.kafka.connection import Connection
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router
from fairlog_types import LogId, Offset, ShardNumber
from partition.modes import JOURNAL, MARKERS
from shard.ends import AskedEnds, EndRefusal
from tests.clients.raw_client import batch, list_offset_request, produce_request
from tests.kafka.asking import REQUESTS
from tests.kafka.in_memory import Memory
from tests.shard.neighbours import log_of, open_cluster
from tests.shard.runs import A, Run, is_waiting, transaction

OpenRun = Callable[..., AbstractAsyncContextManager[Run]]
T0, T1 = transaction(7), transaction(8)
PIPELINED = 5


def ends(run: Run, log: LogId) -> tuple[int, int]:
    end = run[log].placed_end
    assert end is not None
    return end


async def serving(run: Run) -> tuple[Broker, LogId]:
    """A node in memory, but for its leaders and data logs; and its topic's log, with one record in it."""
    memory = Memory()
    memory.topics.create_now("t")
    log = memory.log("t")
    await run.start(log)
    await run.plain(log, b"first")
    await run.partitions.drain()
    return replace(memory.broker, partitions=run.partitions, data_logs=run.data_logs), log


# --- what is placed ------------------------------------------------------------------------------


async def test_end_of_what_is_placed_is_known_before_the_copy(open_run: OpenRun) -> None:
    """A plain batch is placed when it is written; the copy may be far behind."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"copied")
        await run.partitions.drain()
        run.disk.hold()
        await run.plain(A, b"1", b"2")
        assert (ends(run, A), run[A].visibility.high_watermark) == ((3, 3), 1)
        run.disk.let_go()
        await run.partitions.drain()
        assert (ends(run, A), run[A].visibility.high_watermark) == ((3, 3), 3)


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_end_of_what_is_placed_has_what_is_decided_and_not_what_is_open(open_run: OpenRun, mode: Any) -> None:
    """In both modes, to readers of committed records and to others, before the copy."""
    markers = mode is MARKERS
    async with open_run() as run:
        await run.start(A, mode=mode)
        await run.begin(T0, A)
        await run.begin(T1, A)
        await run.write(T0, A, b"1")
        await run.write(T1, A, b"2")
        assert ends(run, A) == ((2, 0) if markers else (0, 0))
        await run.prepare(T0, A)
        run.disk.hold()
        run.place(T0, A)
        assert ends(run, A) == ((3, 1) if markers else (1, 1))
        run.discard(T1, A)
        assert ends(run, A) == ((4, 4) if markers else (1, 1))
        assert run[A].visibility.last_stable_offset == 0
        run.disk.let_go()
        await run.partitions.drain()
        assert ends(run, A) == (run[A].visibility.high_watermark, run[A].visibility.last_stable_offset)


async def test_last_stable_offset_placed_is_not_before_the_start(open_run: OpenRun) -> None:
    """DeleteRecords may have taken the beginning of an open transaction."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T0, A)
        await run.write(T0, A, b"1", b"2")
        await run.partitions.drain()
        await run[A].delete_before(Offset(2))
        run.disk.hold()
        await run.plain(A, b"3")
        assert ends(run, A) == (3, 2)


# --- who asks ------------------------------------------------------------------------------------


async def test_question_is_answered_with_the_copy_and_not_with_what_came_later(open_run: OpenRun) -> None:
    """What is written behind the question is not waited for."""
    async with open_run() as run:
        broker, log = await serving(run)
        run.disk.hold()
        await run.plain(log, b"before")
        asked = await AskedEnds.ask(broker, [log])
        assert (asked.can_be_read, asked.end(log)) == (False, 2)
        assert await is_waiting(lambda: asked.reached(log))
        await run.plain(log, b"after")
        run.disk.let_go()
        assert await asked.reached(log) is None
        assert (run[log].visibility.high_watermark or 0) >= 2


async def test_question_after_a_flush_has_failed_is_refused(open_run: OpenRun) -> None:
    """What was answered is not read before the restart, and may be lost: no end is given."""
    async with open_run() as run:
        broker, log = await serving(run)
        run.disk.failing = "/"
        await run.plain(log, b"answered")
        asked = await AskedEnds.ask(broker, [log])
        assert await asked.reached(log) is EndRefusal.STORAGE


async def test_question_for_a_log_that_is_dropped_is_no_error_of_its_own(open_run: OpenRun) -> None:
    """Whoever asked finds that the log is gone."""
    async with open_run() as run:
        broker, log = await serving(run)
        run.disk.hold()
        await run.plain(log, b"v")
        asked = await AskedEnds.ask(broker, [log, A])
        run.disk.let_go()
        await run.partitions.drop([log])
        assert (await asked.reached(log), await asked.reached(A)) == (None, None)


async def test_question_after_a_commit_over_shards_waits_for_its_decision(tmp_path: Path) -> None:
    """The commit is answered, and the other shard does not know it yet: no end is given there without it."""
    own, other = log_of(0), log_of(1)
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        cluster.way.lost = 0  # behind the cut nothing that was lost is asked for again
        writer = await cluster.writer("t")
        await writer.write({own: [b"own"], other: [b"other"]})
        disk, shard = cluster.disks[ShardNumber(1)], cluster.shards[ShardNumber(1)]
        partition = shard.partitions.by_log[other]
        disk.hold(f"local/{other}")
        committed = trio.Event()

        async def commit() -> None:
            assert await writer.end() is None
            committed.set()

        nursery.start_soon(commit)
        with trio.fail_after(10):
            while not partition.state.in_doubt:  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.01)
            cluster.way.cut.add((ShardNumber(0), ShardNumber(1)))
            disk.let_go()
            await committed.wait()
            broker = replace(Memory().broker, partitions=shard.partitions, data_logs=shard.data_logs)
            asked = await AskedEnds.ask(broker, [other])
            assert (asked.can_be_read, asked.end(other)) == (False, 0)
            assert await is_waiting(lambda: asked.reached(other))
            cluster.way.cut.clear()
            assert await asked.reached(other) is None
            assert (asked.end(other), partition.visibility.high_watermark) == (1, 1)


async def test_question_beside_a_commit_over_shards_without_its_decision_is_refused_in_time(tmp_path: Path) -> None:
    """The coordinator's shard is away: the question may be asked again. One for a log that goes away is no error."""
    other = log_of(1)
    async with open_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        writer = await cluster.writer("t")
        await writer.write({other: [b"other"]})
        shard = cluster.shards[ShardNumber(1)]
        partition = shard.partitions.by_log[other]
        cluster.disks[ShardNumber(1)].hold(f"local/{other}")
        nursery.start_soon(writer.end)
        with trio.fail_after(10):
            while not partition.state.in_doubt:  # noqa: ASYNC110 - nobody tells of it
                await trio.sleep(0.01)
            broker = replace(Memory().broker, partitions=shard.partitions, data_logs=shard.data_logs)
            asked = await AskedEnds.ask(broker, [other], wait_s=0.0)
            assert await asked.reached(other) is EndRefusal.NOT_YET
            patient = await AskedEnds.ask(broker, [other])
            answers: list[EndRefusal | None] = []

            async def ask() -> None:
                answers.append(await patient.reached(other))

            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert answers == []
                cluster.disks[ShardNumber(1)].let_go()
                await shard.partitions.drop([other])
            assert answers == [None]


# --- requests of one connection ------------------------------------------------------------------


async def test_produce_pipelined_shares_flushes(open_run: OpenRun) -> None:
    """All are in the journal before the first is on disk; so the others take one flush together."""
    async with open_run() as run:
        broker, log = await serving(run)
        ours, theirs = memory_stream_pair()
        run.nursery.start_soon(connection(ours, broker).serve)
        run.disk.hold()
        before = run.disk.syncs
        await theirs.send_all(framed(*[produce_request("t", 0, bytes(batch([b"v"]))) for _ in range(PIPELINED)]))
        await has_come_to(run, log, 1 + PIPELINED)
        assert run[log].visibility.high_watermark == 1
        run.disk.let_go()
        answers = FrameReader(theirs, frame_bytes_max=1 << 20)
        for number in range(1, PIPELINED + 1):
            frame = await answers.next_frame()
            assert frame is not None
            row = REQUESTS[0][1].decode(bytes(frame)[4:], version=7).responses[0].partition_responses[0]
            assert (row.error_code, row.base_offset) == (0, number)
        assert 1 <= run.disk.syncs - before <= 2


async def test_request_after_produce_on_its_connection_sees_it(open_run: OpenRun) -> None:
    """ListOffsets is taken up when the Produce before it is answered, also if that one waits for the disk."""
    async with open_run() as run:
        broker, log = await serving(run)
        ours, theirs = memory_stream_pair()
        run.nursery.start_soon(connection(ours, broker).serve)
        run.disk.hold()
        await theirs.send_all(
            framed(produce_request("t", 0, bytes(batch([b"v"]))), list_offset_request("t", 0, timestamp_ms=-1))
        )
        await has_come_to(run, log, 2)
        run.disk.let_go()
        answers = FrameReader(theirs, frame_bytes_max=1 << 20)
        assert await answers.next_frame() is not None
        frame = await answers.next_frame()
        assert frame is not None
        row = REQUESTS[2][1].decode(bytes(frame)[5:], version=7).topics[0].partitions[0]
        assert (row.error_code, row.offset) == (0, 2)


async def has_come_to(run: Run, log: LogId, end: int) -> None:
    """Wait until so much is in the journal; not so long that the disk, which is held, gives up."""
    with trio.fail_after(5):
        while ends(run, log)[0] < end:
            await trio.testing.wait_all_tasks_blocked(0.001)


def connection(stream: trio.abc.Stream, broker: Broker) -> Connection:
    return Connection(
        stream,
        Client(1, "peer:1"),
        Router(broker, ALL),
        frame_bytes_max=1 << 20,
        budget=FrameBudget(),
        answers=AnswerBudget(),
    )


def framed(*requests: Any) -> bytes:
    with io.BytesIO() as out:
        for request in requests:
            request.with_header(correlation_id=5, client_id="pipelining")
            out.write(request.encode(header=True, framed=True))
        return out.getvalue()
