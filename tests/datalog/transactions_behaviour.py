"""What every `datalog.interface.DataLogs` does with open and aborted transactions: a suite to inherit.

It goes on from `DataLogsBehaviour`, and has that inside.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from datalog.interface import (
    AbortedTransaction,
    DataLogs,
    DataLogWriter,
    OffsetOutOfRange,
    OpenInLog,
    ReadRequest,
    ReadResult,
    UnknownLog,
)
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from tests.datalog.behaviour import (
    ORDERS,
    DataLogsBehaviour,
    OpenLogs,
    append,
    append_transactional,
    interrupted_write,
    read_one,
)


def append_open(writer: DataLogWriter, log: LogId, offset: int, *, producer_id: int) -> OpenInLog:
    """Append the first batch, of one record, of a transaction that is open then."""
    append_transactional(writer, log, offset, [40])
    opened = OpenInLog(TxId(ProducerId(producer_id), ProducerEpoch(3), 7), LeaderEpoch(2), Offset(offset), 1)
    writer.put_open(log, opened)
    return opened


def abort(writer: DataLogWriter, log: LogId, offset: int, *, producer_id: int) -> AbortedTransaction:
    """Append the marker that aborts the producer's open transaction, and say so."""
    opened = writer.delete_open(log, ProducerId(producer_id))
    assert opened is not None
    append_transactional(writer, log, offset, [40])
    stable = writer.last_stable_offset(log)
    aborted = AbortedTransaction(ProducerId(producer_id), opened.first_offset, Offset(offset), stable)
    writer.put_aborted(log, aborted)
    return aborted


def read_committed(logs: DataLogs, log: LogId, offset: int, bytes_max: int = 1 << 20) -> ReadResult:
    """The answer to a reader of committed records."""
    (answer,) = logs.read([ReadRequest(log, Offset(offset), bytes_max, committed_only=True)], bytes_max=1 << 20)
    assert isinstance(answer, ReadResult)
    return answer


class TransactionsBehaviour(DataLogsBehaviour):
    """The promises of the interface about transactions that are marked in the log, one test each."""

    def test_log_without_markers_is_stable_to_its_end(self, logs: DataLogs) -> None:
        """Where nothing is open, readers of committed records read what all others read."""
        assert logs.bounds(ORDERS).last_stable_offset == Offset(5)
        assert logs.open_transactions(ORDERS) == []
        assert read_committed(logs, ORDERS, 0) == ReadResult(
            ORDERS, read_one(logs, ORDERS, 0), Offset(5), Offset(0), Offset(5)
        )

    def test_open_transaction_holds_the_last_stable_offset(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """Readers of committed records stop where the oldest open transaction begins, also after a restart."""
        with logs.write() as writer:
            first = append_open(writer, ORDERS, 5, producer_id=1)
            second = append_open(writer, ORDERS, 6, producer_id=2)
            assert writer.last_stable_offset(ORDERS) == Offset(5)
        logs = open_logs()
        assert logs.open_transactions(ORDERS) == [first, second]
        assert logs.bounds(ORDERS).last_stable_offset == Offset(5)
        assert read_committed(logs, ORDERS, 3).batches == read_one(logs, ORDERS, 3)[:1]
        for behind in (5, 6, 7):
            assert read_committed(logs, ORDERS, behind) == ReadResult(ORDERS, [], Offset(7), Offset(0), Offset(5))
        (answer,) = logs.read([ReadRequest(ORDERS, Offset(8), 100, committed_only=True)], bytes_max=100)
        assert answer == OffsetOutOfRange(ORDERS, Offset(7), Offset(0))

    def test_last_stable_offset_moves_to_the_next_open_transaction(self, logs: DataLogs) -> None:
        """It moves when the oldest one ends, whichever ended before, and to the log's end with the last."""
        with logs.write() as writer:
            opened = [append_open(writer, ORDERS, 5 + at, producer_id=9 - at) for at in range(3)]
            assert writer.delete_open(ORDERS, ProducerId(8)) == opened[1]
            assert writer.last_stable_offset(ORDERS) == Offset(5)
            assert writer.delete_open(ORDERS, ProducerId(9)) == opened[0]
            assert writer.last_stable_offset(ORDERS) == Offset(7)
        assert logs.open_transactions(ORDERS) == [opened[2]]
        with logs.write() as writer:
            assert writer.delete_open(ORDERS, ProducerId(7)) == opened[2]
            assert writer.delete_open(ORDERS, ProducerId(7)) is None
        assert logs.bounds(ORDERS).last_stable_offset == Offset(8)

    def test_last_stable_offset_does_not_pass_what_only_an_interrupted_block_has_ended(self, logs: DataLogs) -> None:
        """Their ends are undone with the block, and the next oldest is looked for among them as before."""
        with logs.write() as writer:
            for at in range(4):
                append_open(writer, ORDERS, 5 + at, producer_id=at)
        with logs.write() as writer:
            writer.delete_open(ORDERS, ProducerId(0))
        with interrupted_write(logs) as writer:
            writer.delete_open(ORDERS, ProducerId(1))
            writer.delete_open(ORDERS, ProducerId(2))
        with logs.write() as writer:
            writer.delete_open(ORDERS, ProducerId(1))
            assert writer.last_stable_offset(ORDERS) == Offset(7)
        assert logs.bounds(ORDERS).last_stable_offset == Offset(7)

    def test_last_stable_offset_waits_for_the_second_transaction_of_who_had_one(self, logs: DataLogs) -> None:
        """A producer that ended one and began another counts by where the other begins."""
        with logs.write() as writer:
            for at in range(4):
                append_open(writer, ORDERS, 5 + at, producer_id=at)
            writer.delete_open(ORDERS, ProducerId(0))
            writer.delete_open(ORDERS, ProducerId(2))
            append_open(writer, ORDERS, 9, producer_id=2)
            for producer_id, stable in ((1, 8), (3, 9), (2, 10)):
                writer.delete_open(ORDERS, ProducerId(producer_id))
                assert writer.last_stable_offset(ORDERS) == Offset(stable)

    def test_open_transaction_grows_and_keeps_its_beginning(self, logs: DataLogs) -> None:
        """A further batch changes the number of records alone."""
        with logs.write() as writer:
            opened = append_open(writer, ORDERS, 5, producer_id=1)
            append_transactional(writer, ORDERS, 6, [40, 41])
            writer.put_open(ORDERS, replace(opened, records=3))
        assert logs.open_transactions(ORDERS) == [replace(opened, records=3)]
        assert logs.bounds(ORDERS).last_stable_offset == Offset(5)

    def test_open_transaction_in_place_of_an_undecided_one_is_our_bug(self, logs: DataLogs) -> None:
        """A producer's transaction cannot begin before its last one has ended."""
        with logs.write() as writer:
            opened = append_open(writer, ORDERS, 5, producer_id=1)
        with pytest.raises(AssertionError, match="not decided"), logs.write() as writer:
            writer.put_open(ORDERS, replace(opened, txid=opened.txid._replace(number=8)))

    def test_aborted_transactions_are_told_with_what_was_read(self, logs: DataLogs) -> None:
        """Those that overlap the batches read, none before and none behind; and none to readers of all records."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            one = abort(writer, ORDERS, 6, producer_id=1)
            append(writer, ORDERS, 7, [50])
            append_open(writer, ORDERS, 8, producer_id=1)
            two = abort(writer, ORDERS, 9, producer_id=1)
        assert read_committed(logs, ORDERS, 0).aborted == (one, two)
        size = len(read_one(logs, ORDERS, 5)[0])
        assert read_committed(logs, ORDERS, 5, bytes_max=size).aborted == (one,)
        assert read_committed(logs, ORDERS, 6).aborted == (one, two)
        assert read_committed(logs, ORDERS, 7).aborted == (two,)
        assert read_committed(logs, ORDERS, 7, bytes_max=1).aborted == ()
        assert read_committed(logs, ORDERS, 10).aborted == ()
        (answer,) = logs.read([ReadRequest(ORDERS, Offset(5), 1 << 20)], bytes_max=1 << 20)
        assert isinstance(answer, ReadResult)
        assert answer.aborted == ()

    def test_aborted_transaction_around_others_is_found_behind_them(self, logs: DataLogs) -> None:
        """A long one that ends after many short ones is told to whoever reads where they lie."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            shorts: list[AbortedTransaction] = []
            for at in range(6, 16, 2):
                append_open(writer, ORDERS, at, producer_id=2)
                shorts.append(abort(writer, ORDERS, at + 1, producer_id=2))
            long = abort(writer, ORDERS, 16, producer_id=1)
            append_open(writer, ORDERS, 17, producer_id=2)
            abort(writer, ORDERS, 18, producer_id=2)
        assert {short.last_stable_offset for short in shorts} == {Offset(5)}
        assert long.last_stable_offset == Offset(17)
        size = len(read_one(logs, ORDERS, 8)[0])
        assert read_committed(logs, ORDERS, 8, bytes_max=size).aborted == (shorts[1], long)

    def test_aborted_transaction_with_a_wrong_last_stable_offset_is_our_bug(self, logs: DataLogs) -> None:
        """It bounds the readers' search, so it must be what the log has."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            append_transactional(writer, ORDERS, 6, [0])
        with pytest.raises(AssertionError, match="after"), logs.write() as writer:
            writer.put_aborted(ORDERS, AbortedTransaction(ProducerId(1), Offset(5), Offset(6), Offset(7)))

    def test_aborted_transactions_of_a_block_that_raises_are_forgotten(self, logs: DataLogs) -> None:
        """What is open and what was aborted changes with the batches, or not at all."""
        with logs.write() as writer:
            opened = append_open(writer, ORDERS, 5, producer_id=1)
        with interrupted_write(logs) as writer:
            abort(writer, ORDERS, 6, producer_id=1)
        assert logs.open_transactions(ORDERS) == [opened]
        assert logs.bounds(ORDERS).last_stable_offset == Offset(5)
        with logs.write() as writer:
            aborted = abort(writer, ORDERS, 6, producer_id=1)
        assert read_committed(logs, ORDERS, 5).aborted == (aborted,)

    def test_delete_before_forgets_aborted_transactions_before_the_start(self, logs: DataLogs) -> None:
        """They go with their markers; one that reaches over the start stays."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            abort(writer, ORDERS, 6, producer_id=1)
            append_open(writer, ORDERS, 7, producer_id=1)
            two = abort(writer, ORDERS, 8, producer_id=1)
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(8))
        assert read_committed(logs, ORDERS, 8).aborted == (two,)

    def test_delete_before_into_an_open_transaction_moves_the_last_stable_offset(self, logs: DataLogs) -> None:
        """It is never before the log's start; the transaction stays open for what is left of it."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            append_transactional(writer, ORDERS, 6, [40])
            writer.delete_before(ORDERS, Offset(6))
        assert logs.bounds(ORDERS).last_stable_offset == Offset(6)
        assert read_committed(logs, ORDERS, 6).batches == []
        with logs.write() as writer:
            aborted = abort(writer, ORDERS, 7, producer_id=1)
        assert aborted.first_offset == Offset(5)
        assert read_committed(logs, ORDERS, 6).aborted == (aborted,)

    def test_drop_forgets_open_and_aborted_transactions(self, logs: DataLogs) -> None:
        """A log that is made anew under the same name has none."""
        with logs.write() as writer:
            append_open(writer, ORDERS, 5, producer_id=1)
            abort(writer, ORDERS, 6, producer_id=1)
            append_open(writer, ORDERS, 7, producer_id=1)
        with logs.write() as writer:
            writer.drop(ORDERS)
            writer.create(ORDERS)
        assert logs.open_transactions(ORDERS) == []
        assert logs.bounds(ORDERS).last_stable_offset == Offset(0)
        with logs.write() as writer:
            append(writer, ORDERS, 0, [50] * 9)
        assert read_committed(logs, ORDERS, 0).aborted == ()

    def test_transactions_of_an_unknown_log_raise(self, logs: DataLogs) -> None:
        """Asking and telling raise UnknownLog alike."""
        missing = LogId.of_topic(UUID(int=9), 9)
        with pytest.raises(UnknownLog):
            logs.open_transactions(missing)
        with logs.write() as writer:
            with pytest.raises(UnknownLog):
                writer.delete_open(missing, ProducerId(1))
            with pytest.raises(UnknownLog):
                writer.last_stable_offset(missing)
