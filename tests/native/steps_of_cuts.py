"""From one kept cut to the next, as a reader goes that takes as little as it can."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_fairlog.native import Native, Topics


def ends_of_steps(natives: Sequence[Native], topic: str, partitions: int, committed: int) -> list[int]:
    """Where such a reader comes to, step by step, from 0 to `committed` in each partition; each step asks another node.

    All partitions have as many records, and end alike in each cut.
    """
    ends = [0]
    while ends[-1] < committed:
        starts = [(topic, partition, ends[-1]) for partition in range(partitions)]
        cut = natives[len(ends) % len(natives)].cut(Topics((topic,)), starts=starts, limit=1)
        (end,) = {part.end for part in cut}
        assert end > ends[-1]
        ends.append(end)
    return ends
