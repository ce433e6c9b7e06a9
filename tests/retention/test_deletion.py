"""What goes by age and by size, as a pure rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalog.interface import Bounds, Unit
from fairlog.retention.deletion import Limits, start_within
from fairlog_types import Offset

KEEP_ALL = Limits(None, None)


def units_of(timestamps_ms: list[int], sizes: list[int] | None = None) -> list[Unit]:
    """Units of ten offsets each, from offset 100 on; of 1 byte if no sizes are given."""
    sizes = sizes or [1] * len(timestamps_ms)
    return [
        Unit(Offset(100 + 10 * number), Offset(109 + 10 * number), 1, size, timestamp_ms)
        for number, (timestamp_ms, size) in enumerate(zip(timestamps_ms, sizes, strict=True))
    ]


def deleted(limits: Limits, units: list[Unit], *, undecided_from: int | None = None) -> int:
    """How many of the units go, of which those from a number on are not decided."""
    size_bytes = sum(unit.size_bytes for unit in units)
    end = Offset(100 + 10 * len(units))
    stable = end if undecided_from is None else Offset(100 + 10 * undecided_from)
    start = start_within(limits, units, Bounds(Offset(100), end, size_bytes, stable))
    assert (start - 100) % 10 == 0
    return (start - 100) // 10


@pytest.mark.parametrize(
    ("timestamps_ms", "count"),
    [
        ([], 0),
        ([49], 1),
        ([50], 0),
        ([10, 20, 60, 70], 2),
        ([10, 20, 30], 3),
        ([60, 10, 10], 0),
        ([10, 9_999, 10, 10], 1),
        ([10, -1, 60], 1),
        ([-1, 10, 60], 2),
        ([10, -1, -1, 20, 60], 4),
        ([-1, -1], 0),
        ([0, 60], 1),
    ],
)
def test_units_go_by_age_from_the_start_to_the_first_that_is_young(timestamps_ms: list[int], count: int) -> None:
    """The largest timestamp decides. One in the future keeps all behind it; one without goes with the next."""
    assert deleted(Limits(50, None), units_of(timestamps_ms)) == count


@pytest.mark.parametrize(
    ("bytes_max", "count"), [(0, 4), (1, 3), (20, 3), (21, 2), (60, 1), (90, 1), (91, 0), (200, 0)]
)
def test_units_go_by_size_as_long_as_enough_is_left(bytes_max: int, count: int) -> None:
    """What is left is never less than the limit, and exceeds it by less than the unit that stands first."""
    assert deleted(Limits(None, bytes_max), units_of([1] * 4, [10, 40, 30, 20])) == count


def test_either_limit_is_enough() -> None:
    """A unit that is young goes if there is too much, and one that is old goes if there is little."""
    assert deleted(Limits(50, 2), units_of([60, 60, 60, 60])) == 2
    assert deleted(Limits(50, 100), units_of([10, 10, 60, 60])) == 2
    assert deleted(Limits(50, 3), units_of([60, 10, 60, 60])) == 2
    assert deleted(KEEP_ALL, units_of([0] * 4)) == 0


@pytest.mark.parametrize(("undecided_from", "count"), [(0, 0), (1, 1), (3, 3), (4, 4)])
def test_units_that_are_not_decided_stay_whatever_their_age(undecided_from: int, count: int) -> None:
    """A log with markers starts at its last stable offset at the latest."""
    units = units_of([10] * 4)
    assert deleted(Limits(50, None), units, undecided_from=undecided_from) == count
    assert deleted(Limits(None, 0), units, undecided_from=undecided_from) == count


@given(
    st.lists(st.tuples(st.integers(-1, 9), st.integers(1, 5)), max_size=12),
    st.none() | st.integers(0, 10),
    st.none() | st.integers(0, 40),
)
def test_what_goes_is_exactly_what_may(
    kept: list[tuple[int, int]], expired_before_ms: int | None, bytes_max: int | None
) -> None:
    """The first unit that is left may not go; and of those that went the last one might, and no dated one before."""
    units = units_of([timestamp for timestamp, _ in kept], [size for _, size in kept])
    count = deleted(Limits(expired_before_ms, bytes_max), units)

    def may_go(number: int) -> bool:
        rest = sum(unit.size_bytes for unit in units[number + 1 :])
        old = expired_before_ms is not None and 0 <= units[number].max_timestamp_ms < expired_before_ms
        return old or (bytes_max is not None and rest >= bytes_max)

    assert all(may_go(number) or units[number].max_timestamp_ms < 0 for number in range(count))
    assert count == 0 or may_go(count - 1)
    left = [number for number in range(count, len(units)) if units[number].max_timestamp_ms >= 0]
    assert not left or not may_go(left[0])
