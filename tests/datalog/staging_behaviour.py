"""What every implementation of `DataLogs` does with batches that are staged behind a log's end: a suite to inherit.

The same is asked of a log with something staged as of one without: what differs is found, whoever forgets to stop at
the log's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from datalog.interface import DataLogs, DataLogWriter, ReadRequest
from fairlog_types import LeaderEpoch, LogId, Offset
from tests.datalog.batches import batch
from tests.datalog.behaviour import (
    ORDERS,
    PAYMENTS,
    DataLogsBehaviour,
    Interrupted,
    OpenLogs,
    append,
    append_transactional,
    interrupted_write,
    mark,
)

STAGED = ([90, 40], [95], [70, 60, 50])
"""Timestamps of the batches that are staged: larger ones than those before."""
SIZES = [len(batch(0, timestamps)) for timestamps in STAGED]


def stage(writer: DataLogWriter, log: LogId, base_offset: int, timestamps_ms: Sequence[int], epoch: int = 7) -> bytes:
    """Stage a transaction's batch with these timestamps; answer its bytes."""
    data = batch(base_offset, timestamps_ms, leader_epoch=epoch, attributes=0x10)
    writer.stage(log, Offset(base_offset), len(timestamps_ms), max(timestamps_ms), data)
    return bytes(data)


def stage_all(logs: DataLogs, log: LogId = PAYMENTS, *, after: int) -> None:
    """Stage all of STAGED, each in a block of its own."""
    for timestamps in STAGED:
        with logs.write() as writer:
            stage(writer, log, after, timestamps)
        after += len(timestamps)


def staged(after: int) -> list[tuple[Offset, int, int]]:
    """What `publish` is told of STAGED."""
    told: list[tuple[Offset, int, int]] = []
    for timestamps, size in zip(STAGED, SIZES, strict=True):
        after += len(timestamps)
        told.append((Offset(after - 1), max(timestamps), size))
    return told


def answers(logs: DataLogs, log: LogId = PAYMENTS) -> list[object]:
    """All that readers, retention and compaction can ask of the log."""
    bounds = logs.bounds(log)
    offsets = [Offset(offset) for offset in range(bounds.log_start, bounds.next_offset + 8)]
    requests = [ReadRequest(log, offset, 1 << 20, committed_only=only) for offset in offsets for only in (False, True)]
    return [
        bounds,
        *(logs.read([request], bytes_max=1 << 20) for request in requests),
        logs.mark(log),
        *(logs.offset_for_timestamp(log, timestamp_ms) for timestamp_ms in range(0, 100, 5)),
        logs.max_timestamp(log),
        *(logs.end_of_epoch(log, LeaderEpoch(epoch)) for epoch in range(9)),
        *(logs.units(log, offset, batches_max=most) for offset in offsets for most in (1, 100)),
        logs.cleaned(log),
        logs.time_index_is_behind(log),
        *(logs.cut_within({log: offset}, records_max=3) for offset in offsets),
        logs.open_transactions(log),
        logs.producers(log),
    ]


class StagingBehaviour(DataLogsBehaviour):
    """The suite."""

    @pytest.mark.parametrize("shape", ["empty", "plain", "transaction", "emptied", "begun inside", "max is gone"])
    def test_staged_batches_are_nothing_to_any_reader(self, logs: DataLogs, shape: str) -> None:
        """Whatever is asked, by readers, retention or compaction: the answer is as without them."""
        end = self._fill(logs, shape)
        before = answers(logs)
        stage_all(logs, after=end)
        assert answers(logs) == before
        if shape == "max is gone":
            with logs.write() as writer:
                writer.delete_before(PAYMENTS, Offset(1))
            for _ in logs.reindexing(PAYMENTS):
                assert logs.bounds(PAYMENTS).next_offset == end
            found = logs.max_timestamp(PAYMENTS)
            assert found is not None
            assert found.timestamp_ms == 30, "reindexing has taken up what is staged"

    @staticmethod
    def _fill(logs: DataLogs, shape: str, *, at_s: float = 0.0) -> int:
        """Make PAYMENTS, which is empty, a log of that shape; answer where it ends."""
        if shape == "empty":
            return 0
        with logs.write() as writer:
            append(writer, PAYMENTS, 0, [80 if shape == "max is gone" else 10, 20])
            append_transactional(writer, PAYMENTS, 2, [30])
            append_transactional(writer, PAYMENTS, 3, [25, 15])
            writer.put_mark(PAYMENTS, mark(64, 5))
            writer.put_cut(at_s)
            if shape == "transaction":
                writer.bind(PAYMENTS, Offset(2), Offset(4))
            elif shape == "emptied":
                writer.delete_before(PAYMENTS, Offset(5))
            elif shape == "begun inside":
                writer.delete_before(PAYMENTS, Offset(4))
            elif shape == "max is gone":
                writer.replace(PAYMENTS, Offset(1), None)
        return 5

    @pytest.mark.parametrize("shape", ["empty", "plain", "transaction", "emptied", "begun inside", "max is gone"])
    def test_staged_batches_once_published_are_as_if_appended(self, logs: DataLogs, shape: str) -> None:
        """Two logs get the same, one in stages and one at once; nothing tells them apart."""
        end = self._fill(logs, shape)
        stage_all(logs, after=end)
        with logs.write() as writer:
            writer.publish(PAYMENTS, staged(end))
            writer.bind(PAYMENTS, Offset(end), Offset(end + 5))
            writer.put_mark(PAYMENTS, mark(128, end + 6))
            writer.put_cut(1.0)
        published = answers(logs)
        with logs.write() as writer:
            writer.drop(PAYMENTS)
            writer.create(PAYMENTS)
        self._fill(logs, shape, at_s=10.0)
        with logs.write() as writer:
            for timestamps, (last_offset, *_) in zip(STAGED, staged(end), strict=True):
                base_offset = last_offset + 1 - len(timestamps)
                data = batch(base_offset, timestamps, leader_epoch=7, attributes=0x10)
                writer.append(PAYMENTS, Offset(base_offset), len(timestamps), max(timestamps), data)
            writer.bind(PAYMENTS, Offset(end), Offset(end + 5))
            writer.put_mark(PAYMENTS, mark(128, end + 6))
            writer.put_cut(20.0)
        assert answers(logs) == published
        with logs.write() as writer:
            append(writer, PAYMENTS, end + 6, [1])

    def test_staged_batches_have_gone_when_the_logs_are_opened_anew(self, logs: DataLogs, open_logs: OpenLogs) -> None:
        """Nobody goes on with them: what was placed in between may be something else."""
        self._fill(logs, "plain")
        before = answers(logs)
        stage_all(logs, after=5)
        stage_all(logs, ORDERS, after=5)
        again = open_logs()
        assert answers(again) == before
        with again.write() as writer:
            append(writer, PAYMENTS, 5, [1])
            append(writer, ORDERS, 5, [1])

    def test_staged_batches_of_a_block_that_raised_are_not_there(self, logs: DataLogs) -> None:
        """The stage is written again."""
        with suppress(Interrupted), interrupted_write(logs) as writer:
            stage(writer, PAYMENTS, 0, STAGED[0])
        stage_all(logs, after=0)
        with logs.write() as writer:
            writer.publish(PAYMENTS, staged(0))
        assert logs.bounds(PAYMENTS).next_offset == 6
        assert logs.bounds(PAYMENTS).size_bytes == sum(SIZES)

    def test_append_behind_what_is_staged_is_refused(self, logs: DataLogs) -> None:
        """It would have the offset of what is to come, or stand before it."""
        stage_all(logs, after=0)
        with pytest.raises(AssertionError, match="staged"), logs.write() as writer:
            append(writer, PAYMENTS, 0, [1])
        with logs.write() as writer:
            append(writer, ORDERS, 5, [1])

    @pytest.mark.parametrize("base_offset", [0, 5, 7])
    def test_stage_not_dense_is_refused(self, logs: DataLogs, base_offset: int) -> None:
        """Behind what is staged, and nowhere else (invariant 2)."""
        stage_all(logs, after=0)
        with pytest.raises(AssertionError, match="staged up to 6"), logs.write() as writer:
            stage(writer, PAYMENTS, base_offset, [1])

    @pytest.mark.parametrize("told", [staged(0)[:-1], []], ids=["without the last", "nothing"])
    def test_publish_of_less_than_is_staged_is_refused(
        self, logs: DataLogs, told: Sequence[tuple[Offset, int, int]]
    ) -> None:
        """The rest would be in the way of the next append."""
        stage_all(logs, after=0)
        with pytest.raises(AssertionError, match="staged up to 6"), logs.write() as writer:
            writer.publish(PAYMENTS, told)
        assert logs.bounds(PAYMENTS).next_offset == 0

    def test_log_is_dropped_with_what_is_staged(self, logs: DataLogs) -> None:
        """Nothing of it is found by a log that comes after it."""
        stage_all(logs, after=0)
        with logs.write() as writer:
            writer.drop(PAYMENTS)
            writer.create(PAYMENTS)
            append(writer, PAYMENTS, 0, [1])
        assert logs.bounds(PAYMENTS).next_offset == 1

    def test_start_moves_to_the_end_before_what_is_staged(self, logs: DataLogs) -> None:
        """DeleteRecords and retention take what is there, and what comes is all there is."""
        self._fill(logs, "plain")
        stage_all(logs, after=5)
        with logs.write() as writer:
            writer.delete_before(PAYMENTS, Offset(5))
        with logs.write() as writer:
            writer.publish(PAYMENTS, staged(5))
        bounds = logs.bounds(PAYMENTS)
        assert (bounds.log_start, bounds.next_offset, bounds.size_bytes) == (5, 11, sum(SIZES))
        found = logs.max_timestamp(PAYMENTS)
        assert found is not None
        assert (found.offset, found.timestamp_ms) == (7, 95)
