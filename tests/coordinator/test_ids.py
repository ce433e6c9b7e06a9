from __future__ import annotations

import trio

from coordinator.ids import ProducerIdBlocks


class Source:
    def __init__(self) -> None:
        self.next = 0

    async def allot_producer_ids(self, count: int) -> range:
        await trio.sleep(1)
        self.next += count
        return range(self.next - count, self.next)


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
