"""What every implementation of `datalog.interface.DataLogs` does: suites to inherit, and here what all of them rest on.

    class TestMine(RemovalBehaviour, SearchBehaviour, TransactionsBehaviour, StagingBehaviour):
        @pytest.fixture
        def open_logs(self) -> Callable[[], DataLogs]: ...

`open_logs()` opens the same storage each time it is called, after closing what it opened before. Here stand the words
of the suites, the logs that they begin with, and what is promised of creating, appending, reading and dropping;
`removal_behaviour`, `search_behaviour`, `transactions_behaviour` and `staging_behaviour` go on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from uuid import UUID

import pytest

from datalog.interface import (
    Bounds,
    Cleaned,
    DataLogs,
    DataLogWriter,
    LogMissing,
    Mark,
    OffsetOutOfRange,
    ReadRequest,
    ReadResult,
    UnknownLog,
)
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey
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
    """The promises of the interface about logs and their batches, one test each."""

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
            lambda writer: writer.forget_groups(missing),
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
            lambda: logs.groups(missing),
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
            writer.put_offsets(COMMITS, [OffsetEntry(OffsetKey("g", "t", 0), committed(5)), GroupEntry("g", b"who")])
            writer.delete_before(ORDERS, Offset(2))

        def everything(logs: DataLogs) -> list[object]:
            about: list[object] = [
                (log, logs.mark(log), logs.bounds(log), logs.producers(log), logs.offsets(log), logs.groups(log))
                for log in logs.logs()
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

    def test_offsets_log_has_no_batches_to_read(self, logs: DataLogs) -> None:
        """An offsets log is a table: reading it as batches finds nothing."""
        assert logs.read([ReadRequest(COMMITS, Offset(0), 10)], bytes_max=10) == [LogMissing(COMMITS)]

    def test_sync_after_writes_returns(self, logs: DataLogs) -> None:
        """Syncing is allowed at any time between writes."""
        logs.sync()
        assert logs.mark(ORDERS) == mark(512, 5)
