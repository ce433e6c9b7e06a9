"""What the scenario `hung` makes of the times that it was given."""

from __future__ import annotations

import pytest
from benchmarks.hung import last_seen, longest_stall_s, waits_ms

MS = 1_000_000


def test_waits_of_records_seen_later_are_in_milliseconds() -> None:
    """A wait is from produce() to poll(), by the record's number, in whatever order they were seen."""
    assert waits_ms({1: 5 * MS, 2: 6 * MS}, {2: 8 * MS, 1: 6 * MS, 3: 9 * MS}) == [1.0, 2.0]


def test_waits_of_a_record_never_seen_are_refused() -> None:
    """A record that was lost is no short wait: the round fails."""
    with pytest.raises(ValueError, match="1 of 2 were never seen"):
        waits_ms({1: 0, 2: 0}, {1: 5})


def test_last_seen_of_several_records_is_the_latest() -> None:
    """A transaction is seen when the last of its records is."""
    assert last_seen([(7, 30), (8, 10), (7, 20)]) == {7: 30, 8: 10}


def test_longest_stall_at_the_beginning_counts_from_there() -> None:
    """A consumer that saw nothing until the end has stalled from the moment when the transaction was left open."""
    assert longest_stall_s(1000 * MS, [31_000 * MS, 31_001 * MS]) == 30.0


def test_longest_stall_in_the_middle_is_between_two_that_were_seen() -> None:
    """Otherwise it is the longest time between two, whatever the order of the list."""
    assert longest_stall_s(0, [4000 * MS, 1000 * MS, 3500 * MS]) == 2.5


def test_longest_stall_of_nothing_seen_is_none() -> None:
    """Without a record there is nothing that could have been waited for."""
    assert longest_stall_s(0, []) == 0.0
