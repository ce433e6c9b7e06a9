"""Producer ids: fetched from the cluster in blocks, handed out one by one.

A block is durable before its first id is handed out, so an id is never given twice; what is left of
a block when the node stops is lost, which int64 can afford. Concurrent callers share one fetch, and its failure: it may
have taken long.
"""

from __future__ import annotations

from typing import Protocol

import trio

from fairlog_types import ProducerId, StorageFailure

BLOCK_SIZE = 1_000
"""Kafka's own block size (KIP-730)."""


class ProducerIds(Protocol):
    """Where blocks come from; the cluster store is one."""

    async def allot_producer_ids(self, count: int) -> range:
        """Allot `count` ids that nobody has had, durably. Raises StorageFailure."""
        ...


class ProducerIdBlocks:
    """Hands out ids of the present block and fetches the next block when it is used up."""

    def __init__(self, source: ProducerIds, *, block_size: int = BLOCK_SIZE) -> None:
        self._source = source
        self._block_size = block_size
        self._block = range(0)
        self._fetching = trio.Lock()
        self._failures = 0
        """How many fetches have failed."""
        self._last_failure: StorageFailure | None = None

    async def next_id(self) -> ProducerId:
        """A producer id that nobody has had. Raises StorageFailure; a cancellation loses at most one block."""
        failures_before = self._failures
        while not self._block:
            async with self._fetching:
                if self._block:
                    break
                if self._last_failure is not None and self._failures > failures_before:
                    raise self._last_failure
                self._block = await self._fetch()
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def _fetch(self) -> range:
        try:
            return await self._source.allot_producer_ids(self._block_size)
        except StorageFailure as failure:
            self._failures += 1
            self._last_failure = failure
            raise
