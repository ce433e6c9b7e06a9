"""`cluster`: what counts as the time of a failover, and of a hand-over. The scenario needs three brokers of Kafka."""

from __future__ import annotations

import pytest
from benchmarks.cluster import longest_wait_ms, outage_ms


def commits(*answered_ms: int) -> list[tuple[int, int]]:
    return [((at - 5) * 1_000_000, at * 1_000_000) for at in answered_ms]


def test_outage_lasts_from_the_kill_to_the_end_of_the_longest_silence() -> None:
    """An answer that was on its way, and a pause that comes later and is shorter, change nothing."""
    assert outage_ms(100_000_000, commits(50, 90, 101, 3600, 3620, 4000)) == 3500


def test_longest_wait_is_between_two_answers_after_the_hand_over_has_begun() -> None:
    """What came before, and how long the first answer took, do not count."""
    assert longest_wait_ms(100_000_000, commits(10, 190, 200, 900, 1000)) == 700
    with pytest.raises(ValueError, match="nothing was committed"):
        longest_wait_ms(100_000_000, commits(50, 190))


def test_outage_that_does_not_end_is_an_error() -> None:
    """A client that commits nothing more must not look like a fast failover."""
    with pytest.raises(ValueError, match="nothing was committed"):
        outage_ms(100_000_000, commits(50, 90))
