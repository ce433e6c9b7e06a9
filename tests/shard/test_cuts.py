"""Cuts as the leaders give them: of now, and with a limit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from datalog import cuts
from fairlog_types import LogId, Offset
from partition.answers import LogCut
from partition.modes import MARKERS
from tests.datalog.behaviour import append
from tests.shard.runs import A, B, C, transaction


def ends(cut: Mapping[LogId, LogCut]) -> list[Offset]:
    """Of A and B."""
    return [cut[A].end, cut[B].end]


async def test_cut_gives_all_logs_that_are_led_as_of_one_moment(open_run) -> None:
    """Start and end of each; a log that is not led here is left out."""
    async with open_run() as run:
        await run.start(A, B)
        await run.commit(transaction(7), {A: b"a", B: b"b"})
        await run.partitions.drain()
        await run[A].delete_before(Offset(1))
        whole = {A: LogCut(Offset(1), Offset(1), Offset(1)), B: LogCut(Offset(0), Offset(1), Offset(1))}
        assert run.partitions.cut([A, B, C]) == whole
        assert await run.partitions.cut_within(dict.fromkeys((A, B, C), Offset(0)), records_max=1) == whole


async def test_cut_within_a_limit_splits_no_transaction(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each start at most the limit, or one cut; and from one to the next the reader comes to the end."""
    monkeypatch.setattr(cuts, "RECORDS_PER_CUT", 1)
    async with open_run() as run:
        await run.start(A, B)
        for number in range(6):
            await run.commit(transaction(7, number), {A: b"a", B: b"b"}, sequence=number)
            await run.partitions.drain()
        at = {A: Offset(0), B: Offset(0)}
        seen: list[list[Offset]] = []
        while run.partitions.cut(at)[A].readable_end > at[A]:
            cut = await run.partitions.cut_within(at, records_max=5)
            assert [cut[log].readable_end for log in (A, B)] == [6, 6]
            seen.append(ends(cut))
            at = {log: part.end for log, part in cut.items()}
        assert seen == [[2, 2], [4, 4], [6, 6]]
        first = await run.partitions.cut_within({A: Offset(0), B: Offset(0)}, records_max=1)
        assert ends(first) == [1, 1]


async def test_cut_within_a_limit_stops_before_an_open_transaction_of_marker_mode(open_run) -> None:
    """Nobody is sent to read committed records where there are none yet."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(transaction(7), A)
        await run.write(transaction(7), A, b"a")
        await run.prepare(transaction(7), A)
        run.place(transaction(7), A)
        await run.begin(transaction(8), A)
        await run.write(transaction(8), A, b"b")
        await run.partitions.drain()
        assert run.partitions.cut([A])[A] == LogCut(Offset(0), Offset(2), Offset(2))
        for limit in (1, 100):
            assert await run.partitions.cut_within({A: Offset(0)}, records_max=limit) == run.partitions.cut([A])


async def test_cut_within_a_limit_is_not_ahead_of_what_this_loop_knows(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier has committed and not told yet: no reader is sent where the high watermark is not."""
    monkeypatch.setattr(cuts, "RECORDS_PER_CUT", 1)
    async with open_run() as run:
        await run.start(A, B)
        await run.commit(transaction(7), {A: b"a", B: b"b"})
        await run.partitions.drain()
        known = run.partitions.cut([A, B])
        with run.data_logs.write() as writer:
            append(writer, A, 1, [1])
            writer.put_cut(0.0)
        assert await run.partitions.cut_within(dict.fromkeys((A, B), Offset(0)), records_max=10) == known


async def test_cut_within_a_limit_leaves_out_a_log_that_is_dropped_meanwhile(open_run) -> None:
    """The others are answered for."""
    async with open_run() as run:
        await run.start(A, B)
        await run.commit(transaction(7), {A: b"a", B: b"b"})
        await run.partitions.drain()
        with run.data_logs.write() as writer:
            writer.drop(A)
        found = await run.partitions.cut_within(dict.fromkeys((A, B), Offset(0)), records_max=10)
        assert found == {B: LogCut(Offset(0), Offset(1), Offset(1))}
