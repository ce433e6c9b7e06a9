"""Producers that were idle for long are forgotten, in memory, on disk, and by every later replay alike."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest
import trio
import trio.testing

from fairlog_types import Offset
from partition.answers import Appended, RefusedAppend
from tests.shard.runs import A, B, C, Clock, Run, base_of, transaction

MINUTE_MS = 60_000


def known(run: Run) -> list[int]:
    return [it.producer_id for it in run[A].describe_producers()]


async def on_disk(run: Run) -> list[int]:
    await run.partitions.drain()
    return [producer_id for producer_id, _ in await trio.to_thread.run_sync(run.data_logs.producers, A)]


async def pass_time(run: Run, ms: int) -> None:
    """Both clocks: the node's, and the one by which it wakes up."""
    run.clock.ms += ms
    await trio.sleep(ms / 1000)


async def test_producer_idle_for_too_long_is_forgotten_in_memory_and_on_disk(open_run, autojump_clock) -> None:
    """A minute without a batch, and nothing is kept; who has written meanwhile, or is in a transaction, is known on."""
    async with open_run(producer_expiration_ms=MINUTE_MS, timeout_s=inf) as run:
        await run.start(A)
        for producer_id in (3, 4):
            await run.plain(A, b"v", producer_id=producer_id, epoch=0, sequence=0)
        hung = transaction(5)
        await run.begin(hung, A)
        await run.write(hung, A, b"v")
        assert await on_disk(run) == [3, 4, 5]
        await pass_time(run, MINUTE_MS - 1000)
        await run.plain(A, b"v", producer_id=4, epoch=0, sequence=1)
        await pass_time(run, MINUTE_MS)
        assert known(run) == [4, 5]
        assert await on_disk(run) == [4, 5]
        assert await run.plain(A, b"w", producer_id=3, epoch=0, sequence=1) is RefusedAppend.UNKNOWN_PRODUCER
        assert isinstance(await run.plain(A, b"w", producer_id=3, epoch=0, sequence=0), Appended)
        assert await run.write(hung, A, b"w", sequence=1) == Appended(None, None)


@pytest.mark.parametrize("copied", [False, True])
async def test_producer_forgotten_stays_so_after_a_restart(
    open_run, autojump_clock, tmp_path: Path, copied: bool
) -> None:
    """The FORGET stands in the journal: a replay forgets at the same place, and knows who came back behind it."""
    clock = Clock()
    async with open_run(producer_expiration_ms=MINUTE_MS, timeout_s=inf, clock=clock) as run:
        await run.start(A)
        for producer_id in (3, 4):
            await run.plain(A, b"v", producer_id=producer_id, epoch=0, sequence=0)
        await run.partitions.drain()
        await pass_time(run, 3 * MINUTE_MS)
        assert known(run) == []
        await run.plain(A, b"back", producer_id=4, epoch=0, sequence=0)
        if copied:
            await run.partitions.drain()
        crashed = run.crash(tmp_path / "crashed")
    async with open_run(crashed, producer_expiration_ms=MINUTE_MS, timeout_s=inf, clock=clock) as again:
        await again.start(A)
        assert known(again) == [4]
        assert await on_disk(again) == [4]
        assert base_of(await again.plain(A, b"next", producer_id=4, epoch=0, sequence=1)) == Offset(3)


async def test_producer_expiry_on_a_failing_disk_refuses_writes_and_keeps_the_node(
    open_run, autojump_clock, arm: Callable[[str], None]
) -> None:
    """A FORGET that cannot be written is one more failed write: reads go on, and the producer is still known."""
    async with open_run(producer_expiration_ms=MINUTE_MS, timeout_s=inf) as run:
        await run.start(A)
        await run.plain(A, b"v", producer_id=3, epoch=0, sequence=0)
        await run.partitions.drain()
        arm("journal.append.after:fail:1")
        await pass_time(run, 3 * MINUTE_MS)
        assert await run.plain(A, b"w") is RefusedAppend.STORAGE
        assert await run.values(A) == [b"v"]
        assert known(run) == [3]


class WatchedClock(Clock):
    """Tells when somebody asks for the time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = trio.Event()

    def __call__(self) -> int:
        self.asked.set()
        return super().__call__()


async def test_producer_expiry_passes_over_a_log_that_is_being_dropped(open_run, autojump_clock) -> None:
    """Its journal is being closed and takes no FORGET: that is no failure of the disk, and the node goes on."""
    clock = WatchedClock()
    async with open_run(producer_expiration_ms=MINUTE_MS, timeout_s=inf, clock=clock) as run:
        await run.start(A, B, C)
        await run.plain(C, b"v", producer_id=3, epoch=0, sequence=0)
        await run.partitions.drain()
        clock.ms += 2 * MINUTE_MS
        clock.asked = trio.Event()
        await clock.asked.wait()  # the look at all logs has begun, with A
        run.disk.hold()
        await run.plain(C, b"not on disk yet")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.partitions.drop, [C])
            await trio.testing.wait_all_tasks_blocked(0.02)
            run.disk.let_go()
        assert run.partitions.failure is None
        assert isinstance(await run.plain(A, b"v"), Appended)
