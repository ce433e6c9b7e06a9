"""What every implementation of `datalog.interface.DataLogs` does: a suite to inherit.

    class TestMine(DataLogsBehaviour):
        @pytest.fixture
        def open_logs(self) -> Callable[[], DataLogs]: ...

`open_logs()` opens the same storage each time it is called, after closing what it opened before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from uuid import UUID

import pytest

from datalog.interface import (
    Bounds,
    Cleaned,
    Cleaning,
    DataLogs,
    DataLogWriter,
    EpochEnd,
    LogMissing,
    Mark,
    OffsetOutOfRange,
    ReadRequest,
    ReadResult,
    TimestampOffset,
    Unit,
    UnknownLog,
)
from datalog.keyed import open_batch, without
from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerId
from tests.datalog.batches import batch

ORDERS = LogId.of_topic(UUID(int=1), 0)
PAYMENTS = LogId.of_topic(UUID(int=1), 1)
COMMITS = LogId.of_offsets(3)
OpenLogs = Callable[[], DataLogs]


def append(writer: DataLogWriter, log: LogId, base_offset: int, timestamps_ms: Sequence[int]) -> bytes:
    """Append a batch with these timestamps; answer its bytes."""
    data = batch(base_offset, timestamps_ms)
    writer.append(log, Offset(base_offset), len(timestamps_ms), max(timestamps_ms), data)
    return bytes(data)


def append_transactional(writer: DataLogWriter, log: LogId, base_offset: int, timestamps_ms: Sequence[int]) -> bytes:
    """Append a batch that was produced in a transaction; answer its bytes."""
    data = batch(base_offset, timestamps_ms, attributes=0x10)
    writer.append(log, Offset(base_offset), len(timestamps_ms), max(timestamps_ms), data)
    return bytes(data)


def mark(position: int, next_offset: int) -> Mark:
    return Mark(JournalPosition(position), JournalPosition(position), Offset(next_offset))


def read_one(logs: DataLogs, log: LogId, offset: int, bytes_max: int = 1 << 20) -> list[bytes]:
    """The batches of one log from `offset`."""
    (answer,) = logs.read([ReadRequest(log, Offset(offset), bytes_max)], bytes_max=1 << 20)
    assert isinstance(answer, ReadResult)
    return answer.batches


def committed(offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(Offset(offset), 4, metadata, 1_700_000_000_000)


class Interrupted(Exception):
    """Stands for whatever goes wrong inside a write block."""


@contextmanager
def interrupted_write(logs: DataLogs) -> Iterator[DataLogWriter]:
    """A write block that raises at its end."""
    with ExitStack() as stack:
        stack.enter_context(suppress(Interrupted))
        writer = stack.enter_context(logs.write())
        yield writer
        raise Interrupted


class DataLogsBehaviour:
    """The promises of the interface, one test each."""

    @pytest.fixture
    def open_logs(self) -> OpenLogs:
        raise NotImplementedError

    @pytest.fixture
    def logs(self, open_logs: OpenLogs) -> DataLogs:
        """ORDERS holds offsets 0–2 (one batch) and 3–4 (another); PAYMENTS and COMMITS are empty."""
        logs = open_logs()
        with logs.write() as writer:
            for log in (ORDERS, PAYMENTS, COMMITS):
                writer.create(log)
            append(writer, ORDERS, 0, [10, 11, 12])
            append(writer, ORDERS, 3, [20, 15])
            writer.put_mark(ORDERS, mark(512, 5))
        return logs

    def test_create_new_log_starts_empty_at_zero(self, open_logs: OpenLogs) -> None:
        """A created log can be read at offset 0 and has the mark (0, 0, 0)."""
        logs = open_logs()
        with logs.write() as writer:
            writer.create(ORDERS)
        assert logs.mark(ORDERS) == mark(0, 0)
        assert logs.bounds(ORDERS) == Bounds(Offset(0), Offset(0), 0, Offset(0))
        assert read_one(logs, ORDERS, 0) == []

    def test_create_existing_log_keeps_its_records(self, logs: DataLogs) -> None:
        """Creating a log again changes nothing: a restarted node may say it twice."""
        before = read_one(logs, ORDERS, 0)
        with logs.write() as writer:
            writer.create(ORDERS)
        assert read_one(logs, ORDERS, 0) == before

    def test_logs_lists_all_by_name(self, logs: DataLogs) -> None:
        """`logs` names every log, offsets logs too, in the order of their names."""
        assert logs.logs() == sorted([ORDERS, PAYMENTS, COMMITS], key=str)

    def test_read_from_batch_start_returns_bytes_as_appended(self, open_logs: OpenLogs) -> None:
        """What is read is, byte for byte, what was appended."""
        logs = open_logs()
        with logs.write() as writer:
            writer.create(ORDERS)
            first, second = append(writer, ORDERS, 0, [1, 2]), append(writer, ORDERS, 2, [3])
        assert read_one(logs, ORDERS, 0) == [first, second]
        assert read_one(logs, ORDERS, 2) == [second]

    def test_read_inside_batch_returns_whole_batch(self, logs: DataLogs) -> None:
        """An offset in the middle of a batch gives the batch whole, and those behind it."""
        whole = read_one(logs, ORDERS, 0)
        for offset in (1, 2):
            assert read_one(logs, ORDERS, offset) == whole
        assert read_one(logs, ORDERS, 4) == whole[1:]

    def test_read_at_end_returns_nothing(self, logs: DataLogs) -> None:
        """The next offset is readable and empty; the answer says where the log ends."""
        (answer,) = logs.read([ReadRequest(ORDERS, Offset(5), 1000)], bytes_max=1000)
        assert answer == ReadResult(ORDERS, [], Offset(5), Offset(0), Offset(5))

    @pytest.mark.parametrize("offset", [-1, 6])
    def test_read_outside_log_says_out_of_range(self, logs: DataLogs, offset: int) -> None:
        """Before the start and behind the end the answer is the range itself."""
        (answer,) = logs.read([ReadRequest(ORDERS, Offset(offset), 1000)], bytes_max=1000)
        assert answer == OffsetOutOfRange(ORDERS, Offset(5), Offset(0))

    def test_read_unknown_log_answers_for_it_alone(self, logs: DataLogs) -> None:
        """A missing log does not spoil the answers of the others, which stand in the order of the requests."""
        missing = LogId.of_topic(UUID(int=9), 9)
        requests = [ReadRequest(missing, Offset(0), 1000), ReadRequest(ORDERS, Offset(0), 1000)]
        answers = logs.read(requests, bytes_max=1000)
        assert answers[0] == LogMissing(missing)
        assert isinstance(answers[1], ReadResult)
        assert len(answers[1].batches) == 2

    def test_read_limit_of_log_stops_before_exceeding(self, logs: DataLogs) -> None:
        """No batch is added that would exceed the log's limit, and one that just fits is."""
        first, second = read_one(logs, ORDERS, 0)
        assert read_one(logs, ORDERS, 0, len(first) + len(second)) == [first, second]
        assert read_one(logs, ORDERS, 0, len(first) + len(second) - 1) == [first]

    def test_read_limit_smaller_than_first_batch_still_returns_it(self, logs: DataLogs) -> None:
        """The first batch found at all is returned whatever its size (KIP-74)."""
        assert len(read_one(logs, ORDERS, 0, 1)) == 1

    def test_read_limit_of_request_is_shared_by_logs(self, logs: DataLogs) -> None:
        """At-least-one holds once per read, for the first log that has something; later logs keep to what is left."""
        with logs.write() as writer:
            append(writer, PAYMENTS, 0, [1])
        requests = [ReadRequest(log, Offset(at), 1000) for log, at in ((ORDERS, 5), (PAYMENTS, 0), (ORDERS, 0))]
        sizes = [len(answer.batches) for answer in logs.read(requests, bytes_max=1) if isinstance(answer, ReadResult)]
        assert sizes == [0, 1, 0]

    @pytest.mark.parametrize("base_offset", [4, 6])
    def test_append_not_dense_is_refused(self, logs: DataLogs, base_offset: int) -> None:
        """A hole or an overlap never gets into a log (invariant 2)."""
        with pytest.raises(AssertionError, match="invariant 2"), logs.write() as writer:
            append(writer, ORDERS, base_offset, [30])
        assert logs.bounds(ORDERS).next_offset == 5

    def test_append_batch_that_disagrees_with_arguments_is_refused(self, logs: DataLogs) -> None:
        """A batch whose header was not patched, or that counts other records, is our bug and is not stored."""
        with pytest.raises(AssertionError), logs.write() as writer:
            writer.append(ORDERS, Offset(5), 1, 30, batch(0, [30]))
        with pytest.raises(AssertionError), logs.write() as writer:
            writer.append(ORDERS, Offset(5), 2, 30, batch(5, [30]))
        with pytest.raises(AssertionError), logs.write() as writer:
            writer.append(ORDERS, Offset(5), 1, 30, batch(5, [30]) + b"more")

    def test_write_block_that_raises_leaves_nothing(self, logs: DataLogs) -> None:
        """All of a block or none of it, over all logs and tables."""
        late = LogId.of_topic(UUID(int=7), 0)
        with interrupted_write(logs) as writer:
            append(writer, ORDERS, 5, [30])
            append(writer, PAYMENTS, 0, [30])
            writer.put_mark(ORDERS, mark(600, 6))
            assert writer.mark(ORDERS) == mark(600, 6)
            writer.put_producer(ORDERS, ProducerId(1), b"state")
            writer.create(late)
            writer.drop(COMMITS)
        assert logs.mark(ORDERS) == mark(512, 5)
        assert logs.bounds(PAYMENTS).next_offset == 0
        assert logs.producers(ORDERS) == []
        assert logs.mark(late) is None
        assert logs.mark(COMMITS) == mark(0, 0)

    def test_write_block_after_one_that_raised_works(self, logs: DataLogs) -> None:
        """An undone block leaves no trace in the next one, also not of a log it had created or dropped."""
        late = LogId.of_topic(UUID(int=7), 0)
        with interrupted_write(logs) as writer:
            writer.create(late)
            append(writer, late, 0, [1])
            writer.drop(ORDERS)
        with logs.write() as writer:
            writer.create(late)
            append(writer, late, 0, [2])
            append(writer, ORDERS, 5, [3])
        assert len(read_one(logs, late, 0)) == 1
        assert len(read_one(logs, ORDERS, 0)) == 3

    def test_write_block_inside_another_is_refused(self, logs: DataLogs) -> None:
        """One thread cannot wait for itself: it is told so, and the outer block goes on."""
        with logs.write() as writer:
            with pytest.raises(AssertionError), logs.write():
                pass
            append(writer, ORDERS, 5, [30])
        assert logs.bounds(ORDERS).next_offset == 6

    def test_write_to_unknown_log_is_refused(self, logs: DataLogs) -> None:
        """Every change needs a log that exists."""
        missing = LogId.of_topic(UUID(int=9), 9)
        changes: list[Callable[[DataLogWriter], object]] = [
            lambda writer: append(writer, missing, 0, [1]),
            lambda writer: writer.put_mark(missing, mark(1, 0)),
            lambda writer: writer.put_offsets(missing, []),
            lambda writer: writer.put_producer(missing, ProducerId(1), b""),
            lambda writer: writer.delete_producer(missing, ProducerId(1)),
            lambda writer: writer.delete_before(missing, Offset(0)),
            lambda writer: writer.bind(missing, Offset(0), Offset(0)),
            lambda writer: writer.unbind(missing, Offset(0)),
            lambda writer: writer.replace(missing, Offset(0), None),
            lambda writer: writer.put_cleaned(missing, Cleaned(Offset(0), 0, None, ())),
        ]
        for change in changes:
            with pytest.raises(UnknownLog), logs.write() as writer:
                change(writer)

    def test_queries_of_unknown_log_are_refused(self, logs: DataLogs) -> None:
        """Every query of one log needs one that exists; only `mark` answers None, for recovery asks before creating."""
        missing = LogId.of_topic(UUID(int=9), 9)
        queries: list[Callable[[], object]] = [
            lambda: logs.bounds(missing),
            lambda: logs.offset_for_timestamp(missing, 0),
            lambda: logs.max_timestamp(missing),
            lambda: logs.end_of_epoch(missing, LeaderEpoch(0)),
            lambda: logs.producers(missing),
            lambda: logs.offsets(missing),
            lambda: logs.committed_offsets(missing, []),
            lambda: logs.offset_groups(missing),
            lambda: logs.units(missing, Offset(0), batches_max=1),
            lambda: logs.cleaned(missing),
            lambda: logs.time_index_is_behind(missing),
            lambda: list(logs.reindexing(missing)),
        ]
        for query in queries:
            with pytest.raises(UnknownLog):
                query()
        assert logs.mark(missing) is None

    def test_mark_going_back_is_refused(self, logs: DataLogs) -> None:
        """The copied-through mark only moves forward: otherwise a replay would copy twice (invariant 4)."""
        with pytest.raises(AssertionError), logs.write() as writer:
            writer.put_mark(ORDERS, mark(511, 5))
        assert logs.mark(ORDERS) == mark(512, 5)

    def test_mark_that_disagrees_with_batches_is_refused(self, logs: DataLogs) -> None:
        """Mark and batches change together, so a mark that names another end is a bug (invariant 4)."""
        for next_offset in (4, 6):
            with pytest.raises(AssertionError), logs.write() as writer:
                writer.put_mark(ORDERS, mark(600, next_offset))

    def test_reopened_logs_hold_what_was_committed(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """Closing and opening changes nothing that can be asked."""
        with logs.write() as writer:
            writer.put_producer(ORDERS, ProducerId(7), b"seven")
            writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey("g", "t", 0), committed(5))])
            writer.delete_before(ORDERS, Offset(2))

        def everything(logs: DataLogs) -> list[object]:
            about: list[object] = [
                (log, logs.mark(log), logs.bounds(log), logs.producers(log), logs.offsets(log)) for log in logs.logs()
            ]
            return [*about, read_one(logs, ORDERS, 2), logs.offset_for_timestamp(ORDERS, 12)]

        before = everything(logs)
        assert everything(open_logs()) == before

    def test_reopened_logs_can_be_appended_to(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """A restart goes on where the log ended."""
        logs = open_logs()
        with logs.write() as writer:
            append(writer, ORDERS, 5, [30])
        assert len(read_one(logs, ORDERS, 0)) == 3

    def test_drop_removes_all_that_belongs_to_the_log(self, logs: DataLogs) -> None:
        """A dropped log is unknown; made again, it starts empty and without the old one's producers."""
        with logs.write() as writer:
            writer.put_producer(ORDERS, ProducerId(7), b"seven")
            writer.put_producer(PAYMENTS, ProducerId(7), b"other")
        with logs.write() as writer:
            writer.drop(ORDERS)
        assert ORDERS not in logs.logs()
        assert logs.read([ReadRequest(ORDERS, Offset(0), 10)], bytes_max=10) == [LogMissing(ORDERS)]
        with logs.write() as writer:
            writer.create(ORDERS)
        assert logs.mark(ORDERS) == mark(0, 0)
        assert logs.producers(ORDERS) == []
        assert logs.producers(PAYMENTS) == [(ProducerId(7), b"other")]
        assert logs.max_timestamp(ORDERS) is None
        assert read_one(logs, ORDERS, 0) == []

    def test_drop_and_create_in_one_block_starts_afresh(self, logs: DataLogs) -> None:
        """The new log of the same name has nothing of the old one."""
        with logs.write() as writer:
            writer.drop(ORDERS)
            writer.create(ORDERS)
            only = append(writer, ORDERS, 0, [99])
        assert read_one(logs, ORDERS, 0) == [only]

    def test_drop_unknown_log_does_nothing(self, logs: DataLogs) -> None:
        """Dropping twice is as good as once."""
        with logs.write() as writer:
            writer.drop(LogId.of_topic(UUID(int=9), 9))
        assert len(logs.logs()) == 3

    def test_dropped_log_stays_away_after_reopening(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """What was dropped does not come back with a restart."""
        with logs.write() as writer:
            writer.drop(ORDERS)
        logs = open_logs()
        assert ORDERS not in logs.logs()
        with logs.write() as writer:
            writer.create(ORDERS)
        assert read_one(logs, ORDERS, 0) == []

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

    @pytest.mark.parametrize(
        ("timestamp_ms", "expected"),
        [(0, (0, 10)), (10, (0, 10)), (11, (1, 11)), (13, (3, 20)), (20, (3, 20))],
    )
    def test_offset_for_timestamp_finds_the_first_record(
        self, logs: DataLogs, timestamp_ms: int, expected: tuple[int, int]
    ) -> None:
        """The record is named exactly, also in the middle of a batch."""
        offset, timestamp = expected
        assert logs.offset_for_timestamp(ORDERS, timestamp_ms) == TimestampOffset(Offset(offset), timestamp)

    def test_offset_for_timestamp_behind_all_finds_none(self, logs: DataLogs) -> None:
        """No record is that young; an empty log has none at all."""
        assert logs.offset_for_timestamp(ORDERS, 21) is None
        assert logs.offset_for_timestamp(PAYMENTS, 0) is None

    def test_offset_for_timestamp_never_answers_before_log_start(self, logs: DataLogs) -> None:
        """Records before the start are gone, though their batch is kept; the search goes on behind it."""
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(2))
        assert logs.offset_for_timestamp(ORDERS, 0) == TimestampOffset(Offset(2), 12)
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(4))
        assert logs.offset_for_timestamp(ORDERS, 16) is None

    def test_max_timestamp_names_the_record_that_has_it(self, logs: DataLogs) -> None:
        """Not the last record, and not the batch: the record; also after retention has taken the old maximum."""
        with logs.write() as writer:
            append(writer, ORDERS, 5, [1, 18, 18])
        assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(3), 20)
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(5))
        assert logs.max_timestamp(ORDERS) == TimestampOffset(Offset(6), 18)

    def test_leader_epoch_ends_where_the_next_one_begins(self, logs: DataLogs) -> None:
        """Also one without records, one before the first and one behind the last; the log's start cuts it."""
        log, empty = LogId.of_topic(UUID(int=3), 0), LogId.of_topic(UUID(int=3), 1)
        with logs.write() as writer:
            writer.create(log)
            writer.create(empty)
            for base_offset, records, epoch in ((0, 3, 2), (3, 2, 2), (5, 4, 3), (9, 1, 6)):
                data = batch(base_offset, [10] * records, leader_epoch=epoch)
                writer.append(log, Offset(base_offset), records, 10, data)
        ends = {epoch: logs.end_of_epoch(log, LeaderEpoch(epoch)) for epoch in range(8)}
        assert ends == {
            0: EpochEnd(None, Offset(0)),
            1: EpochEnd(None, Offset(0)),
            2: EpochEnd(LeaderEpoch(2), Offset(5)),
            3: EpochEnd(LeaderEpoch(3), Offset(9)),
            4: EpochEnd(LeaderEpoch(3), Offset(9)),
            5: EpochEnd(LeaderEpoch(3), Offset(9)),
            6: EpochEnd(LeaderEpoch(6), Offset(10)),
            7: EpochEnd(LeaderEpoch(6), Offset(10)),
        }
        assert logs.end_of_epoch(empty, LeaderEpoch(4)) == EpochEnd(None, Offset(0))
        with logs.write() as writer:
            writer.delete_before(log, Offset(7))
        assert logs.end_of_epoch(log, LeaderEpoch(2)) == EpochEnd(None, Offset(7))
        assert logs.end_of_epoch(log, LeaderEpoch(3)) == EpochEnd(LeaderEpoch(3), Offset(9))
        with logs.write() as writer:
            writer.delete_before(log, Offset(10))
        assert logs.end_of_epoch(log, LeaderEpoch(6)) == EpochEnd(None, Offset(10))

    def test_producers_keep_the_newest_state_in_order_of_ids(self, logs: DataLogs) -> None:
        """One state per log and producer; deleting forgets it, and twice is as good as once."""
        with logs.write() as writer:
            for producer_id, state in ((300, b"a"), (2, b"b"), (300, b"c"), (70_000, b"d")):
                writer.put_producer(ORDERS, ProducerId(producer_id), state)
            writer.put_producer(PAYMENTS, ProducerId(2), b"other")
        assert logs.producers(ORDERS) == [(2, b"b"), (300, b"c"), (70_000, b"d")]
        with logs.write() as writer:
            writer.delete_producer(ORDERS, ProducerId(2))
            writer.delete_producer(ORDERS, ProducerId(2))
        assert logs.producers(ORDERS) == [(300, b"c"), (70_000, b"d")]
        assert logs.producers(PAYMENTS) == [(2, b"other")]

    def test_offsets_keep_the_newest_value_per_key(self, logs: DataLogs) -> None:
        """Later entries win, also within one call; None deletes."""
        first, second = OffsetKey("g", "t", 0), OffsetKey("g", "t", 1)
        with logs.write() as writer:
            writer.put_offsets(COMMITS, [OffsetEntry(first, committed(1)), OffsetEntry(second, committed(2))])
            writer.put_offsets(COMMITS, [OffsetEntry(first, committed(3)), OffsetEntry(first, committed(4, "note"))])
            writer.put_mark(COMMITS, mark(64, 4))
        assert sorted(logs.offsets(COMMITS)) == [(first, committed(4, "note")), (second, committed(2))]
        with logs.write() as writer:
            writer.put_offsets(COMMITS, [OffsetEntry(first, None)])
        assert logs.offsets(COMMITS) == [(second, committed(2))]
        assert logs.mark(COMMITS) == mark(64, 4)

    def test_offsets_of_one_group_leave_out_others(self, logs: DataLogs) -> None:
        """Groups are told apart however long and alike their names are."""
        groups = ["g", "gg", "", "x" * 40_000, "x" * 40_000 + "y"]
        with logs.write() as writer:
            for number, group in enumerate(groups):
                writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey(group, "t" * 249, 0), committed(number))])
        for number, group in enumerate(groups):
            assert logs.offsets(COMMITS, group) == [(OffsetKey(group, "t" * 249, 0), committed(number))]
        assert logs.offsets(COMMITS, "none") == []

    def test_committed_offsets_answer_key_by_key(self, logs: DataLogs) -> None:
        """One answer per key asked for, in their order, None for what was never committed or is deleted."""
        kept, gone, other = OffsetKey("g", "t", 0), OffsetKey("g", "t", 1), OffsetKey("h", "t", 0)
        with logs.write() as writer:
            writer.put_offsets(COMMITS, [OffsetEntry(kept, committed(5, "m")), OffsetEntry(gone, committed(6))])
            writer.put_offsets(COMMITS, [OffsetEntry(gone, None)])
        found = logs.committed_offsets(COMMITS, [other, kept, gone, kept])
        assert found == [None, committed(5, "m"), None, committed(5, "m")]
        assert logs.committed_offsets(COMMITS, []) == []

    def test_offset_groups_name_each_group_with_its_newest_commit(self, logs: DataLogs) -> None:
        """Whoever has offsets, with the time of the newest; a group without any is not named."""
        old, new = (CommittedOffset(Offset(1), -1, "", ms) for ms in (1_000, 2_000))
        with logs.write() as writer:
            for key, value in (("g", new), ("h", old), ("i", old)):
                writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey(key, "t", 0), value)])
            writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey("g", "t", 1), old)])
            writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey("i", "t", 0), None)])
        assert logs.offset_groups(COMMITS) == {"g": 2_000, "h": 1_000}

    def test_cut_within_a_limit_ends_between_two_blocks(self, logs: DataLogs) -> None:
        """Of several logs, as of the same block; the limit is kept, or rounded up to one block's end."""
        with logs.write() as writer:
            append(writer, PAYMENTS, 0, [1])
            writer.put_cut(0.0)
        for number in range(2):
            with logs.write() as writer:
                append(writer, ORDERS, 5 + 2 * number, [1, 1])
                append(writer, PAYMENTS, 1 + number, [1])
                writer.put_cut(1.0 + number)
        expected = {1: (5, 1), 6: (5, 1), 8: (5, 1), 9: (7, 2), 11: (7, 2), 12: (9, 3), 99: (9, 3)}
        for records_max, ends in expected.items():
            cut = logs.cut_within({ORDERS: Offset(0), PAYMENTS: Offset(0)}, records_max=records_max)
            assert cut == dict(zip((ORDERS, PAYMENTS), ends, strict=True))
        assert logs.cut_within({PAYMENTS: Offset(1)}, records_max=1) == {PAYMENTS: Offset(2)}
        assert logs.cut_within({PAYMENTS: Offset(7)}, records_max=1) == {PAYMENTS: Offset(7)}
        assert logs.cut_within({}, records_max=1) == {}

    def test_cut_within_a_limit_survives_reopening(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """What no cut was kept of before is part of the first one kept behind."""
        with logs.write() as writer:
            append(writer, PAYMENTS, 0, [1])
        logs = open_logs()
        with logs.write() as writer:
            append(writer, ORDERS, 5, [1])
            writer.put_cut(0.0)
        with logs.write() as writer:
            append(writer, ORDERS, 6, [1])
        starts = {ORDERS: Offset(0), PAYMENTS: Offset(0)}
        assert logs.cut_within(starts, records_max=7) == {ORDERS: Offset(6), PAYMENTS: Offset(1)}
        assert logs.cut_within(starts, records_max=8) == {ORDERS: Offset(7), PAYMENTS: Offset(1)}

    def test_cut_within_a_limit_counts_from_where_the_log_starts(self, logs: DataLogs) -> None:
        """What is gone is nobody's to read; a log that is empty by now ends where it starts."""
        for number in range(3):
            with logs.write() as writer:
                append(writer, ORDERS, 5 + number, [1])
                writer.put_cut(float(number))
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(6))
        assert logs.cut_within({ORDERS: Offset(0)}, records_max=1) == {ORDERS: Offset(7)}
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(8))
        assert logs.cut_within({ORDERS: Offset(0)}, records_max=1) == {ORDERS: Offset(8)}

    def test_cut_of_what_is_no_topics_log_is_refused(self, logs: DataLogs) -> None:
        """A log that does not exist, and a table of committed offsets."""
        with logs.write() as writer:
            writer.drop(PAYMENTS)
        with pytest.raises(UnknownLog):
            logs.cut_within({ORDERS: Offset(0), PAYMENTS: Offset(0)}, records_max=1)
        with pytest.raises(ValueError, match="is a table"):
            logs.cut_within({COMMITS: Offset(0)}, records_max=1)

    def test_offsets_log_has_no_batches_to_read(self, logs: DataLogs) -> None:
        """An offsets log is a table: reading it as batches finds nothing."""
        assert logs.read([ReadRequest(COMMITS, Offset(0), 10)], bytes_max=10) == [LogMissing(COMMITS)]

    def test_sync_after_writes_returns(self, logs: DataLogs) -> None:
        """Syncing is allowed at any time between writes."""
        logs.sync()
        assert logs.mark(ORDERS) == mark(512, 5)
