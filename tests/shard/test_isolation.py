"""Waiting by isolation level: what is decided wakes readers of committed records, and nothing else does."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from fairlog_types import LogId, Offset
from partition.modes import MARKERS
from tests.shard.runs import A, Run, is_waiting, transaction, wait_for_more

T0, T1 = transaction(7), transaction(8)


async def waits(run: Run, offset: int) -> bool:
    """Does a reader of committed records wait there?"""
    ends: dict[LogId, Offset] = {A: Offset(offset)}
    return await is_waiting(lambda: wait_for_more(run, ends, committed_only=True))


async def begin_and_write(run: Run, *transactions: tuple[object, Sequence[bytes]]) -> None:
    for txid, values in transactions:
        await run.begin(txid, A)
        await run.write(txid, A, *values)
    await run.partitions.drain()


async def test_reader_of_committed_records_sleeps_while_undecided_ones_come(open_run) -> None:
    """Plain records behind an open transaction wake the readers of everything, not those who may not read them."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.plain(A, b"plain")
        await begin_and_write(run, (T0, [b"open"]))
        assert run[A].visibility.last_stable_offset == 1
        assert not await waits(run, 0)
        woken = 0

        async def count_wakes() -> None:
            nonlocal woken
            await wait_for_more(run, {A: Offset(1)}, committed_only=True)
            woken += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_wakes)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                with trio.fail_after(30):
                    end = run[A].visibility.high_watermark
                    assert end is not None
                    nursery.start_soon(run.plain, A, b"behind")
                    await wait_for_more(run, {A: end})
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert woken == 0
            await run.prepare(T0, A)
            run.place(T0, A)
        assert woken == 1
        assert run[A].visibility.last_stable_offset == run[A].visibility.high_watermark == 6


async def test_reader_of_committed_records_wakes_when_the_oldest_transaction_ends(open_run) -> None:
    """However it ends; the end of a later one changes nothing for those who wait at the first."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await begin_and_write(run, (T0, [b"oldest"]), (T1, [b"later"]))
        await run.prepare(T1, A)
        run.place(T1, A)
        await run.partitions.drain()
        assert await waits(run, 0)
        run.discard(T0, A)
        await run.partitions.drain()
        assert not await waits(run, 0)
        assert run[A].visibility.last_stable_offset == 4


async def test_last_stable_offset_of_a_log_that_is_not_led_is_none(open_run) -> None:
    """As with the high watermark."""
    async with open_run() as run:
        await run.start()
        assert run.partitions.get(A) is None
