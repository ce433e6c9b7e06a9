"""What every `datalog.interface.DataLogs` finds again: a suite to inherit, beside `DataLogsBehaviour`.

By timestamp and by leader epoch; producers, committed offsets and cuts.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from datalog.interface import DataLogs, EpochEnd, TimestampOffset, UnknownLog
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey, name_digest
from fairlog_types import LeaderEpoch, LogId, Offset, ProducerId
from tests.datalog.batches import batch
from tests.datalog.behaviour import COMMITS, ORDERS, PAYMENTS, DataLogsBehaviour, OpenLogs, append, committed, mark


class SearchBehaviour(DataLogsBehaviour):
    """The promises of the interface about what is looked up, one test each."""

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

    def test_groups_keep_the_newest_record(self, logs: DataLogs) -> None:
        """Later records win, also within one call; None deletes. Offsets of the same group are apart."""
        key = OffsetKey("g", "t", 0)
        with logs.write() as writer:
            writer.put_offsets(COMMITS, [GroupEntry("g", b"one"), OffsetEntry(key, committed(1)), GroupEntry("h", b"")])
            writer.put_offsets(
                COMMITS, [GroupEntry("g", b"two"), GroupEntry("g", b"three"), GroupEntry("x" * 600, b"4")]
            )
        found = {"g": b"three", "h": b"", "x" * 600: b"4"}
        assert dict(logs.groups(COMMITS)) == {name_digest(name): record for name, record in found.items()}
        with logs.write() as writer:
            writer.put_offsets(
                COMMITS, [GroupEntry("g", None), GroupEntry("never there", None), OffsetEntry(key, None)]
            )
        assert sorted(logs.groups(COMMITS)) == sorted([(name_digest("h"), b""), (name_digest("x" * 600), b"4")])
        assert logs.offsets(COMMITS) == []

    def test_groups_are_forgotten_log_by_log(self, logs: DataLogs) -> None:
        """Offsets stay, and so do the groups of other logs."""
        other, key = LogId.of_offsets(77), OffsetKey("g", "t", 0)
        with logs.write() as writer:
            writer.create(other)
            for log in (COMMITS, other):
                writer.put_offsets(log, [GroupEntry("g", b"who"), OffsetEntry(key, committed(1))])
        with logs.write() as writer:
            writer.forget_groups(COMMITS)
        assert (logs.groups(COMMITS), logs.offsets(COMMITS)) == ([], [(key, committed(1))])
        assert logs.groups(other) == [(name_digest("g"), b"who")]

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
