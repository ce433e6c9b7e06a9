"""What every `datalog.interface.DataLogs` does when records go: a suite to inherit, beside `DataLogsBehaviour`.

Deletion from the start, at once and in portions, and batches that a cleaning puts in another's place.
"""

from __future__ import annotations

import pytest

from datalog.interface import Bounds, Cleaned, Cleaning, DataLogs, OffsetOutOfRange, ReadRequest, TimestampOffset, Unit
from datalog.keyed import open_batch, without
from fairlog_types import Offset
from tests.datalog.behaviour import (
    ORDERS,
    PAYMENTS,
    DataLogsBehaviour,
    OpenLogs,
    append,
    append_transactional,
    read_one,
)


class RemovalBehaviour(DataLogsBehaviour):
    """The promises of the interface about what is taken away, one test each."""

    def test_delete_before_at_batch_border_removes_what_lies_before(self, logs: DataLogs) -> None:
        """Batches before the offset are gone, and reading before it is out of range."""
        first, second = read_one(logs, ORDERS, 0)
        with logs.write() as writer:
            assert writer.delete_before(ORDERS, Offset(3)) == len(first)
        assert logs.bounds(ORDERS) == Bounds(Offset(3), Offset(5), len(second), Offset(5))
        assert read_one(logs, ORDERS, 3) == [second]
        (answer,) = logs.read([ReadRequest(ORDERS, Offset(2), 1000)], bytes_max=1000)
        assert answer == OffsetOutOfRange(ORDERS, Offset(5), Offset(3))

    def test_delete_before_inside_batch_keeps_the_batch(self, logs: DataLogs) -> None:
        """The log starts inside a batch, which is still read whole (clients skip what lies before)."""
        whole = read_one(logs, ORDERS, 0)
        with logs.write() as writer:
            assert writer.delete_before(ORDERS, Offset(2)) == 0
        assert logs.bounds(ORDERS).log_start == 2
        assert read_one(logs, ORDERS, 2) == whole

    def test_delete_before_end_empties_and_appends_go_on(self, logs: DataLogs) -> None:
        """Offsets are never given twice, also not after everything was deleted (invariant 2)."""
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(5))
        assert logs.bounds(ORDERS) == Bounds(Offset(5), Offset(5), 0, Offset(5))
        assert logs.max_timestamp(ORDERS) is None
        with logs.write() as writer:
            only = append(writer, ORDERS, 5, [1])
        assert read_one(logs, ORDERS, 5) == [only]

    def test_delete_before_log_start_or_behind_end_changes_nothing(self, logs: DataLogs) -> None:
        """Retention may repeat itself; beyond the end is the caller's mistake."""
        with logs.write() as writer:
            assert writer.delete_before(ORDERS, Offset(0)) == 0
        with pytest.raises(ValueError, match="ends at 5"), logs.write() as writer:
            writer.delete_before(ORDERS, Offset(6))
        assert logs.bounds(ORDERS).log_start == 0

    def test_delete_before_many_batches_removes_each(self, open_logs: OpenLogs) -> None:
        """A thousand batches over many pages go, and exactly these."""
        logs = open_logs()
        with logs.write() as writer:
            writer.create(ORDERS)
            for offset in range(2000):
                append(writer, ORDERS, offset, [offset])
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(1000))
        batches = read_one(logs, ORDERS, 1000)
        assert [int.from_bytes(data[:8], "big") for data in batches] == list(range(1000, 2000))
        assert logs.bounds(ORDERS).size_bytes == sum(map(len, batches))

    def test_delete_before_in_portions_starts_the_log_at_once(self, logs: DataLogs) -> None:
        """Readers find the new start with the first portion; what is left before it goes with the next ones."""
        with logs.write() as writer:
            for offset in range(5, 10):
                append(writer, ORDERS, offset, [30 + offset])
        (last,) = read_one(logs, ORDERS, 9)
        sizes: list[int] = []
        while not sizes or sizes[-1]:
            with logs.write() as writer:
                sizes.append(writer.delete_before(ORDERS, Offset(9), batches_max=2))
            assert logs.bounds(ORDERS).log_start == 9
            assert read_one(logs, ORDERS, 9) == [last]
            assert logs.units(ORDERS, Offset(0), batches_max=9) == [Unit(Offset(9), Offset(9), 1, len(last), 39)]
            assert logs.offset_for_timestamp(ORDERS, 0) == TimestampOffset(Offset(9), 39)
        assert len(sizes) == 4
        assert logs.bounds(ORDERS).size_bytes == len(last)

    def test_units_are_transactions_or_single_batches(self, logs: DataLogs) -> None:
        """What was bound goes together, from wherever inside it one begins; a limit of batches cuts no unit."""
        with logs.write() as writer:
            sizes = [len(append_transactional(writer, ORDERS, at, [at, 99 - at])) for at in (5, 7, 9)]
            writer.bind(ORDERS, Offset(5), Offset(8))
        units = logs.units(ORDERS, Offset(0), batches_max=10)
        assert [(unit.base_offset, unit.last_offset, unit.batches) for unit in units] == [
            (0, 2, 1),
            (3, 4, 1),
            (5, 8, 2),
            (9, 10, 1),
        ]
        assert units[2] == Unit(Offset(5), Offset(8), 2, sizes[0] + sizes[1], 94)
        assert logs.units(ORDERS, Offset(7), batches_max=1) == units[2:3]
        assert logs.units(ORDERS, Offset(1), batches_max=1) == units[:1]
        assert logs.units(ORDERS, Offset(11), batches_max=1) == []
        with logs.write() as writer:
            writer.unbind(ORDERS, Offset(8))
        assert [unit.batches for unit in logs.units(ORDERS, Offset(0), batches_max=10)] == [1] * 5

    def test_units_of_one_log_do_not_reach_into_another(self, logs: DataLogs) -> None:
        """What is bound in one log says nothing of others, whatever their numbers."""
        with logs.write() as writer:
            append_transactional(writer, ORDERS, 5, [1])
            for at in (0, 1):
                append_transactional(writer, PAYMENTS, at, [1])
            writer.bind(PAYMENTS, Offset(0), Offset(1))
        assert [unit.batches for unit in logs.units(ORDERS, Offset(0), batches_max=10)] == [1, 1, 1]
        assert [unit.batches for unit in logs.units(PAYMENTS, Offset(0), batches_max=10)] == [2]

    def test_replace_leaves_a_hole_that_readers_read_over(self, logs: DataLogs) -> None:
        """Asked for an offset that was compacted away, a read gives the next batch; the log keeps its bounds."""
        first, second = read_one(logs, ORDERS, 0)
        with logs.write() as writer:
            assert writer.replace(ORDERS, Offset(2), None)
        for offset in (0, 1, 2, 3):
            assert read_one(logs, ORDERS, offset) == [second]
        assert logs.bounds(ORDERS) == Bounds(Offset(0), Offset(5), len(second), Offset(5))
        assert logs.offset_for_timestamp(ORDERS, 0) == TimestampOffset(Offset(3), 20)
        with logs.write() as writer:
            assert len(append(writer, ORDERS, 5, [30])) < len(first)
        assert len(read_one(logs, ORDERS, 1)) == 2

    def test_replace_puts_a_part_in_the_place_of_a_batch(self, logs: DataLogs) -> None:
        """The batch with fewer records stands under the same offsets; the one asked for by timestamp is found in it."""
        whole, second = read_one(logs, ORDERS, 0)
        opened = open_batch(whole)
        part = without(opened, opened.records[1:2])
        with logs.write() as writer:
            assert writer.replace(ORDERS, Offset(2), part)
        assert read_one(logs, ORDERS, 0) == [part, second]
        assert read_one(logs, ORDERS, 2) == [part, second]
        assert logs.bounds(ORDERS).size_bytes == len(part) + len(second)
        assert logs.offset_for_timestamp(ORDERS, 0) == TimestampOffset(Offset(1), 11)
        assert logs.offset_for_timestamp(ORDERS, 12) == TimestampOffset(Offset(3), 20)

    def test_replace_of_a_batch_that_is_gone_does_nothing(self, logs: DataLogs) -> None:
        """What retention has deleted meanwhile is not put back."""
        whole = read_one(logs, ORDERS, 0)[0]
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(3))
        with logs.write() as writer:
            assert not writer.replace(ORDERS, Offset(2), whole)
            assert not writer.replace(ORDERS, Offset(2), None)
        assert len(read_one(logs, ORDERS, 3)) == 1
        assert logs.bounds(ORDERS).log_start == 3

    def test_replace_of_the_last_batch_or_by_another_is_refused(self, logs: DataLogs) -> None:
        """The log's end hangs on its last batch; and what takes a batch's place is a part of it."""
        first, second = read_one(logs, ORDERS, 0)
        with pytest.raises(AssertionError, match="last batch"), logs.write() as writer:
            writer.replace(ORDERS, Offset(4), None)
        with pytest.raises(AssertionError, match="take the place"), logs.write() as writer:
            writer.replace(ORDERS, Offset(2), second)
        assert read_one(logs, ORDERS, 0) == [first, second]

    def test_replace_of_the_batch_with_the_max_leaves_searches_right(self, logs: DataLogs) -> None:
        """Also before the time index is made anew; then it is not behind any more."""
        with logs.write() as writer:
            append(writer, ORDERS, 5, [18, 1])
            writer.replace(ORDERS, Offset(4), None)
        assert logs.time_index_is_behind(ORDERS)
        for _ in range(2):
            assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(5), 18)
            assert logs.offset_for_timestamp(ORDERS, 13) == TimestampOffset(Offset(5), 18)
            assert logs.offset_for_timestamp(ORDERS, 19) is None
            for _ in logs.reindexing(ORDERS):
                pass
            assert not logs.time_index_is_behind(ORDERS)

    def test_cleaned_is_kept_over_a_restart(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """How far compaction has come, and its marks for tombstones; a new log has none."""
        assert logs.cleaned(ORDERS) == Cleaned(Offset(0), 0, None, ())
        done = Cleaned(Offset(3), 7, Offset(0), (Cleaning(Offset(2), 50, 1), Cleaning(Offset(3), 60, 0)))
        with logs.write() as writer:
            writer.put_cleaned(ORDERS, done)
        logs = open_logs()
        assert logs.cleaned(ORDERS) == done
        later = Cleaned(Offset(3), 7, None, done.history[1:])
        with logs.write() as writer:
            writer.put_cleaned(ORDERS, later)
        assert logs.cleaned(ORDERS) == later
        assert logs.cleaned(PAYMENTS) == Cleaned(Offset(0), 0, None, ())

    def test_clean_bytes_follow_deletion(self, logs: DataLogs) -> None:
        """What is deleted before the point to which a log is clean is not counted as clean any more."""
        first, second = read_one(logs, ORDERS, 0)
        with logs.write() as writer:
            writer.put_cleaned(ORDERS, Cleaned(Offset(5), len(first) + len(second), None, ()))
            writer.delete_before(ORDERS, Offset(3))
        assert logs.cleaned(ORDERS).clean_bytes == len(second)
