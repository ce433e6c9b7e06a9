"""The histogram that the rooms observe into."""

from __future__ import annotations

import pytest

from fairlog_histogram import BOUNDS_S, Histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [
        (0.0, 0),
        (BOUNDS_S[0], 0),
        (BOUNDS_S[0] * 1.0001, 1),
        (BOUNDS_S[-1], len(BOUNDS_S) - 1),
        (BOUNDS_S[-1] * 2, len(BOUNDS_S)),
        (-1.0, 0),
    ],
)
def test_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    """Bounds belong to their bucket, as Prometheus' `le` says."""
    histogram = Histogram()
    histogram.observe(seconds)
    read = histogram.read()
    assert [index for index, count in enumerate(read.counts) if count] == [bucket]
    assert (read.count, read.sum_s) == (1, seconds)


def test_what_was_read_does_not_change() -> None:
    """A scrape in another thread reads a copy."""
    histogram = Histogram()
    before = histogram.read()
    histogram.observe(1.0)
    assert before.count == 0
