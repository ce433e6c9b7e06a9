from __future__ import annotations

import pytest
import trio

from coordinator.ids import ProducerIdBlocks
from fairlog_types import StorageFailure


class Source:
    def __init__(self) -> None:
        self.next = 0
        self.fails = False

    async def allot_producer_ids(self, count: int) -> range:
        await trio.sleep(1)
        if self.fails:
            raise StorageFailure("the metadata cannot be written")
        self.next += count
        return range(self.next - count, self.next)


async def test_those_who_wait_for_a_fetch_that_fails_fail_with_it(autojump_clock, nursery):
    """And not one after the other, each with a fetch of its own; whoever comes later tries again."""
    source = Source()
    source.fails = True
    blocks, failed_s = ProducerIdBlocks(source), []

    async def ask(after_s):
        await trio.sleep(after_s)  # while the fetch is under way
        with pytest.raises(StorageFailure):
            await blocks.next_id()
        failed_s.append(trio.current_time() - began_s)

    began_s = trio.current_time()
    for number in range(7):
        nursery.start_soon(ask, number / 10)
    await trio.sleep(100)
    assert failed_s == [pytest.approx(1)] * 7
    source.fails = False
    assert await blocks.next_id() == 0


async def test_ids_asked_for_at_once_are_all_different(autojump_clock, nursery):
    """Callers share a fetched block, and fetch the next one when it is used up."""
    blocks = ProducerIdBlocks(Source(), block_size=2)
    given = []

    async def ask():
        given.append(await blocks.next_id())

    for _ in range(7):
        nursery.start_soon(ask)
    await trio.sleep(100)
    assert sorted(given) == list(range(7))
