"""When a cut over all shards is kept, for readers who are far behind and want only some records.

Each shard looks every CHECK_S whether it has copied RECORDS_PER_CUT since the last cut that was kept, or anything and
SECONDS_PER_CUT have passed. Then it has the taker of cuts take one (`shard.cutting`), which all shards keep. So a limit
is rounded up by what is copied meanwhile. A node to which nobody writes takes no cuts.

A node of one shard has nothing of this: its data logs keep cuts of their own (`datalog.cuts`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from fairlog_types import StorageFailure
from shard.cut_messages import NoCut

CHECK_S = 1.0
"""How often a shard looks, and so how often cuts are kept at the most: commits wait while one is taken."""

RECORDS_PER_CUT = 10_000
"""In one of the shards: the smallest micro-batch that is of use."""

SECONDS_PER_CUT = 10.0
"""With fewer records. A reader who is not far behind gets the cut of now."""


class KeptCuts:
    """One shard's."""

    def __init__(self, copied_records: Callable[[], int]) -> None:
        """`copied_records` tells how many this shard has copied since its start."""
        self._copied_records = copied_records
        self._kept_records = 0
        self._kept_s = trio.current_time()

    def kept(self) -> None:
        """A cut is kept, whoever had it taken."""
        self._kept_records = self._copied_records()
        self._kept_s = trio.current_time()

    @property
    def is_due(self) -> bool:
        """Whether a cut should be kept now."""
        new_records = self._copied_records() - self._kept_records
        return new_records >= RECORDS_PER_CUT or (
            new_records > 0 and trio.current_time() - self._kept_s >= SECONDS_PER_CUT
        )

    async def run(self, keep: Callable[[], Awaitable[NoCut | None]]) -> None:
        """Have all shards keep a cut (`Cutting.keep`) whenever one is due; until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            if self.is_due:
                try:
                    await keep()
                except StorageFailure:  # this shard stops
                    return
