"""`cluster`: what counts as the time of a failover. The scenario itself needs three brokers of Kafka."""

from __future__ import annotations

import pytest
from benchmarks.cluster import outage_ms


def commits(*answered_ms: int) -> list[tuple[int, int]]:
    return [((at - 5) * 1_000_000, at * 1_000_000) for at in answered_ms]


def test_outage_lasts_from_the_kill_to_the_end_of_the_longest_silence() -> None:
    """An answer that was on its way, and a pause that comes later and is shorter, change nothing."""
    assert outage_ms(100_000_000, commits(50, 90, 101, 3600, 3620, 4000)) == 3500


def test_outage_that_does_not_end_is_an_error() -> None:
    """A client that commits nothing more must not look like a fast failover."""
    with pytest.raises(ValueError, match="nothing was committed"):
        outage_ms(100_000_000, commits(50, 90))
