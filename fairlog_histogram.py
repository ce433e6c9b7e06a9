"""Durations counted in buckets: what the rooms measure on their hot paths, and what whoever watches reads.

A histogram is a row of whole numbers that is made once. Observing a duration finds its bucket by bisection and adds
one: some 200 ns, nothing allocated, nothing locked; all of it on the event loop. Reading copies the row. Like
`fairlog_types` this stands below every room; what the buckets are called outside is for the node to say.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS_S = (0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets in seconds, each included; above the last there is one more. Two or three to a power of
ten, as Prometheus' own; they begin where a request that touches no disk ends."""


@dataclass(frozen=True, slots=True)
class Durations:
    """What a histogram held at one moment."""

    counts: tuple[int, ...]
    """One for each of BOUNDS_S, and one for what is longer."""
    sum_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts durations. One thread observes and reads."""

    __slots__ = ("_counts", "_sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def read(self) -> Durations:
        """What was counted so far."""
        return Durations(tuple(self._counts), self._sum_s)
