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
        self._fetches = 0
        """How many were begun."""
        self._failed: StorageFailure | None = None
        self._failed_at = 0
        """Why the last fetch that failed did, and which one it was."""

    async def next_id(self) -> ProducerId:
        """A producer id that nobody has had. Raises StorageFailure; a cancellation loses at most one block."""
        asked = self._fetches
        while not self._block:
            async with self._fetching:
                if self._failed is not None and self._failed_at > asked:
                    raise self._failed
                if not self._block:
                    self._block = await self._fetch()
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def _fetch(self) -> range:
        self._fetches += 1
        number = self._fetches
        try:
            return await self._source.allot_producer_ids(self._block_size)
        except StorageFailure as failure:
            self._failed, self._failed_at = failure, number
            raise
