"""Fetch by isolation level, from a topic whose transactions end with markers."""

from __future__ import annotations

import pytest
import trio

from datalog.interface import AbortedTransaction
from fairlog.kafka.errors import ErrorCode
from fairlog_types import Offset, ProducerId
from tests.kafka.test_fetch import ALL_VERSIONS, FETCH, fill, lines, request

__all__ = ["fill"]

ONE = AbortedTransaction(ProducerId(7), Offset(0), Offset(3), Offset(2))
TWO = AbortedTransaction(ProducerId(8), Offset(2), Offset(5), Offset(6))


@pytest.fixture
def open_from_two(memory, fill):
    """Three batches of two records; what begins at offset 2 is undecided."""
    memory.topics.create_now("t")
    fill(batches=3)
    memory.leaders.undecided[memory.log("t")] = Offset(2)


@ALL_VERSIONS
async def test_read_committed_stops_at_the_last_stable_offset(ask, memory, open_from_two, version):
    """The decided batches come, and both ends are told; a reader of everything gets everything."""
    committed = lines(await ask(FETCH, version, **request(memory, {0: 0}, version=version, isolation_level=1)))[0]
    assert (committed.high_watermark, committed.last_stable_offset, len(committed.records)) == (6, 2, 100)
    every = lines(await ask(FETCH, version, **request(memory, {0: 0}, version=version)))[0]
    assert (every.high_watermark, every.last_stable_offset, len(every.records)) == (6, 2, 300)


@ALL_VERSIONS
async def test_read_committed_is_told_what_was_aborted(ask, memory, fill, version):
    """Producer and first offset of each, in every version; a reader of everything is told nothing."""
    memory.topics.create_now("t")
    fill(batches=3)
    memory.leaders.aborted[memory.log("t")] = [ONE, TWO]
    answer = lines(await ask(FETCH, version, **request(memory, {0: 0}, version=version, isolation_level=1)))[0]
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [(7, 0), (8, 2)]
    answer = lines(await ask(FETCH, version, **request(memory, {0: 0}, version=version)))[0]
    assert answer.aborted_transactions is None


async def test_aborted_transaction_is_told_once_though_it_was_read_twice(ask, memory, fill, autojump_clock):
    """A long poll that reads on while it waits does not repeat what overlaps both reads."""
    memory.topics.create_now("t")
    fill()
    memory.leaders.aborted[memory.log("t")] = [ONE]
    async with trio.open_nursery() as nursery:

        async def append_later():
            await trio.sleep(0.1)
            memory.leaders.aborted[memory.log("t")].append(TWO)
            fill()

        nursery.start_soon(append_later)
        asked = request(memory, {0: 0}, max_wait_ms=5000, min_bytes=150, isolation_level=1)
        answer = lines(await ask(FETCH, 12, **asked))[0]
    assert [(each.producer_id, each.first_offset) for each in answer.aborted_transactions] == [(7, 0), (8, 2)]
    assert len(answer.records) == 200


@pytest.mark.parametrize("offset", [2, 4, 6])
async def test_read_committed_waits_at_the_last_stable_offset_without_reading(
    ask, memory, fill, open_from_two, offset, autojump_clock
):
    """What it may not read yet neither wakes it nor costs a call into the data logs, however much of it comes."""
    async with trio.open_nursery() as nursery:

        async def append_later():
            for _ in range(3):
                await trio.sleep(0.1)
                fill()

        nursery.start_soon(append_later)
        before = trio.current_time()
        asked = request(memory, {0: offset}, max_wait_ms=500, isolation_level=1)
        answer = lines(await ask(FETCH, 12, **asked))[0]
    assert trio.current_time() - before == pytest.approx(0.5)
    assert (answer.error_code, answer.last_stable_offset) == (0, 2)
    assert bytes(answer.records) == b""
    assert memory.data_logs.reads == 0


async def test_read_committed_is_woken_when_the_transaction_ends(ask, memory, open_from_two, autojump_clock):
    """The decision is what it has waited for."""
    async with trio.open_nursery() as nursery:

        async def decide_later():
            await trio.sleep(0.2)
            memory.leaders.decide(memory.log("t"))

        nursery.start_soon(decide_later)
        before = trio.current_time()
        asked = request(memory, {0: 2}, max_wait_ms=5000, isolation_level=1)
        answer = lines(await ask(FETCH, 12, **asked))[0]
    assert trio.current_time() - before == pytest.approx(0.2)
    assert (answer.last_stable_offset, len(answer.records)) == (6, 200)


async def test_read_committed_behind_the_end_is_out_of_range(ask, memory, open_from_two):
    """Only what lies between the two ends is waited for."""
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 7}, max_wait_ms=60_000, isolation_level=1)))[0]
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
