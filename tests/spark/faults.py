"""Every fault of plain batches and of copied transactions that the audit finds, and exactly what is found of it.

What is found of a fault beside its own kind is what it brings with it: of a transaction whose place is wrong, records
are missing there. Some faults are none: what looks like one, and is as it should be.

Of the log the offsets are those of `tests.spark.audited`.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.group_records import BeginRecord, CommittedRecord, GroupRecord, PrepareAbortRecord
from coordinator.lane_ids import lane_id
from fairlog_types import LeaderEpoch, Offset, Placement
from tests.spark.audited import PLACES, RECORDS, WIDE, put_raw_window, put_window
from tests.spark.planted_faults import (
    NOTHING_PLANTED,
    PLAIN,
    append,
    batch_at,
    change,
    change_applied,
    committed,
    fault,
    lane,
    marker_of,
    name,
    nothing,
    one,
    prepared,
    sink_commit,
)
from tests.verify.planting import Planted, flip, with_header

# --- batches ----------------------------------------------------------------------------------------


@fault("a bit has turned", ("damaged batch", 7), ("torn transaction", 7))
def turned_bit(planted: Planted, at: int) -> Sequence[GroupRecord]:
    flip(planted.data_logs, planted.byte_of(b"one of 1", at))
    return ()


@fault("a batch is gone", ("hole", 3))
def lost_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({3: None}, at)
    return ()


@fault("the first batch is gone", ("hole", 0))
def lost_first_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({0: None}, at)
    return ()


@fault("compaction has left a hole")
def compacted(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({3: None}, at)
    planted.change_record(lambda record: setattr(record, "holes_before", 4), at)
    return ()


@fault("there is a hole behind what compaction has left", ("hole", 3))
def hole_behind_compaction(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({1: None, 3: None}, at)
    planted.change_record(lambda record: setattr(record, "holes_before", 3), at)
    return ()


@fault("what is before the log's start waits to be removed")
def started_later(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.change_record(lambda record: setattr(record, "log_start", 6), at)
    return ()


@fault("what was before the log's start is removed")
def removed(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches(dict.fromkeys(range(6)), at)
    planted.change_record(lambda record: setattr(record, "log_start", 6), at)
    return ()


@fault("a batch stands under another's last offset", ("wrong key", 1))
def wrong_key(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 1, last_offset_delta=1)
    return ()


@fault("two batches share an offset", ("offset twice", 11))
def offset_twice(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 13, base_offset=11, last_offset_delta=2)
    return ()


@fault("a control batch that is no marker", ("control batch", 1))
def control_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 1, attributes=0x30)
    return ()


@fault("a marker in a topic without them", ("control batch", RECORDS))
def marker(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append(planted, at, marker_of(12345))
    return ()


@fault("the log's record is ahead of the log", ("wrong end", RECORDS + 1))
def wrong_end(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.change_record(lambda record: setattr(record, "next_offset", record.next_offset + 1), at)
    return ()


@fault("the last batch is gone", ("wrong end", RECORDS), ("torn transaction", RECORDS - 1))
def lost_last_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({RECORDS - 1: None}, at)
    return ()


# --- sequences --------------------------------------------------------------------------------------


@fault("a batch is there again", ("sequence", RECORDS))
def repeated_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append(planted, at, batch_at(planted, at, 3))
    return ()


@fault("a batch comes behind a newer epoch's", ("sequence", RECORDS + 1))
def late_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    data = batch_at(planted, at, 4)
    append(planted, at, with_header(data, producer_epoch=1, base_sequence=0))
    append(planted, at, with_header(data, base_sequence=3))
    return ()


@fault("sequences go on with 0 behind the last one")
def sequences_in_a_circle(planted: Planted, at: int) -> Sequence[GroupRecord]:
    of = {"producer_id": 901, "producer_epoch": 0}
    append(planted, at, with_header(batch_at(planted, at, 13), **of, base_sequence=(1 << 31) - 1))
    append(planted, at, with_header(batch_at(planted, at, 1), **of, base_sequence=1))
    return ()


@fault("a producer that was forgotten begins again")
def forgotten_producer(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append(planted, at, with_header(batch_at(planted, at, 4), base_sequence=0))
    return ()


@fault("a producer's first batch is there again", ("batch twice", RECORDS))
def repeated_first_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append(planted, at, batch_at(planted, at, 2))
    return ()


# --- places -----------------------------------------------------------------------------------------


@fault(
    "the window has another place",
    ("contradicting places", 8),
    ("places overlap", 8),
    ("transaction of nobody", 10),
)
def other_place(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change_applied(planted, at, base_offset=8)
    return ()


@fault("the window has another count", ("contradicting places", 9))
def other_count(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change_applied(planted, at, record_count=3)
    return ()


@fault("two transactions are placed at one offset", ("places overlap", 5), ("torn transaction", 4))
def overlapping(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 4, records=2)
    return ()


@fault("a transaction is placed behind the end", ("place behind the end", 1000))
def behind_the_end(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 1000)
    return ()


@fault("a transaction's batch has become a plain one", ("torn transaction", 7))
def torn(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 8, **PLAIN)
    return ()


@fault("a large batch of a transaction has become a plain one", ("torn transaction", 18))
def torn_far_away(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 18 + 2 * WIDE - 1, **PLAIN)
    return ()


@fault("another's batch is within", ("torn transaction", 7), ("stranger in a transaction", 8))
def stranger(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 8, producer_id=12345)
    return ()


@fault("a transaction's batch is copied twice", ("transaction of nobody", RECORDS))
def copied_twice(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append(planted, at, with_header(batch_at(planted, at, 7), base_sequence=99))
    return ()


# --- what group journals tell -----------------------------------------------------------------------


@fault(
    "a later commit lies before an earlier one", ("wrong order", 3), ("torn transaction", 3), ("torn transaction", 4)
)
def wrong_order(planted: Planted, at: int) -> Sequence[GroupRecord]:
    log = planted.log(at)
    return [committed(one(at, 0), at, {log: (4, 1)}), committed(one(at, 1), at, {log: (3, 1)})]


@fault(
    "a sink's later batch lies before an earlier one",
    ("wrong order", 3),
    ("torn transaction", 3),
    ("torn transaction", 4),
)
def wrong_order_of_batches(planted: Planted, at: int) -> Sequence[GroupRecord]:
    log = planted.log(at)
    return [*sink_commit(at, 0, {0: {log: 1}}, {0: {log: 4}}), *sink_commit(at, 1, {1: {log: 1}}, {1: {log: 3}})]


@fault(
    "a lane's later batch lies before an earlier one",
    ("wrong order", 3),
    ("torn transaction", 3),
    ("torn transaction", 4),
)
def wrong_order_of_a_lane(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """Wrong among its id's transactions, and among its sink's: it is told once."""
    log = planted.log(at)
    return [*sink_commit(at, 0, {0: {log: 1}}, {0: {log: 4}}), *sink_commit(at, 1, {0: {log: 1}}, {0: {log: 3}})]


@fault("a snapshot has commits in the order of their ids", ("torn transaction", 3), ("torn transaction", 4))
def told_by_a_snapshot(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """Of a sink's lanes it tells one by one: which batch was earlier it does not say."""
    log = planted.log(at)
    return [
        CommittedRecord(lane(at, slot), lane_id(name(at), slot), (Placement(log, Offset(base), 1),), 0)
        for slot, base in ((0, 4), (1, 3))
    ]


@fault("lanes of a batch are apart", ("lanes apart", 4), ("torn transaction", 2), ("torn transaction", 4))
def lanes_apart(planted: Planted, at: int) -> Sequence[GroupRecord]:
    log = planted.log(at)
    return sink_commit(at, 0, {0: {log: 1}, 1: {log: 1}}, {0: {log: 2}, 1: {log: 4}})


@fault("lanes of a batch are the wrong way round", ("lanes apart", 2), ("torn transaction", 2), ("torn transaction", 3))
def lanes_swapped(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """Of one batch: its group has committed no other."""
    log = planted.log(at)
    return sink_commit(at, 0, {0: {log: 1}, 1: {log: 1}}, {0: {log: 3}, 1: {log: 2}})


@fault("lanes of a prepared batch are apart", ("lanes apart", 4), ("torn transaction", 2), ("torn transaction", 4))
def prepared_lanes_apart(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """As a kill leaves it: the windows have it, and SINK_COMMITTED is not written."""
    for slot, base in ((0, 2), (1, 4)):
        put_window(planted, at, lane(at, slot), base)
    return sink_commit(at, 0, {0: {planted.log(at): 1}, 1: {planted.log(at): 1}})


@fault("less is committed than was prepared", ("records lost or added", 3), ("torn transaction", 3))
def less_committed(planted: Planted, at: int) -> Sequence[GroupRecord]:
    log = planted.log(at)
    return [prepared(one(at), at, {log: 3}), committed(one(at), at, {log: (3, 1)})]


@fault("nothing is committed where something was prepared", ("records lost or added", None))
def nothing_committed(planted: Planted, at: int) -> Sequence[GroupRecord]:
    return [prepared(one(at), at, {planted.log(at): 1}), committed(one(at), at, {})]


@fault("less is placed than was prepared", ("records lost or added", 2), ("torn transaction", 2))
def less_placed(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 2)
    return [prepared(one(at), at, {planted.log(at): 2})]


@fault("a transaction is missing in another log", ("half a transaction", 4), ("torn transaction", 4))
def half(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 4)
    return [prepared(one(at), at, {planted.log(at): 1, planted.log(NOTHING_PLANTED): 1})]


@fault("a lane of a sink's batch is missing in another log", ("half a transaction", 4), ("torn transaction", 4))
def half_a_batch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, lane(at, 0), 4)
    return sink_commit(at, 0, {0: {planted.log(at): 1}, 1: {planted.log(NOTHING_PLANTED): 1}})


@fault("what is prepared is placed nowhere yet")
def nowhere(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """A kill came between the decision and the copy: the next start places it."""
    return [prepared(one(at), at, {planted.log(at): 1, planted.log(NOTHING_PLANTED): 1})]


@fault("what is aborted is placed", ("never committed", 4), ("torn transaction", 4))
def aborted(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 4)
    return [PrepareAbortRecord(one(at), name(at), (planted.log(at),), 0)]


@fault("what has only begun is placed", ("never committed", 4), ("torn transaction", 4))
def begun(planted: Planted, at: int) -> Sequence[GroupRecord]:
    put_window(planted, at, one(at), 4)
    return [BeginRecord(one(at), name(at), {planted.log(at): LeaderEpoch(1)}, 0)]


@fault("a transaction was placed in two steps", ("apply numbers differ", 9))
def placed_in_two_steps(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change_applied(planted, at, apply_number=999 + at)
    return ()


@fault(
    "a sink's batch was placed in two steps",
    ("apply numbers differ", 3),
    ("torn transaction", 2),
    ("torn transaction", 3),
)
def batch_placed_in_two_steps(planted: Planted, at: int) -> Sequence[GroupRecord]:
    for slot in range(2):
        put_window(planted, at, lane(at, slot), 2 + slot, apply_number=77 + slot)
    return sink_commit(at, 0, {0: {planted.log(at): 1}, 1: {planted.log(at): 1}})


@fault("a sink's batch is committed and was not prepared", ("damaged transactions", None), in_log=False)
def unprepared(planted: Planted, at: int) -> Sequence[GroupRecord]:
    return sink_commit(at, 0, {}, {0: {}})


@fault("a window cannot be read", ("damaged transactions", None))
def damaged_window(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """The last of all windows: none is read behind it."""
    put_raw_window(planted, at, 1 << 40, b"no window")
    return ()


@fault(
    "a page is none",
    ("damaged batch", 0),
    ("damaged batch", RECORDS // 2),
    ("wrong end", RECORDS),
    *(("torn transaction", place) for place in PLACES),
)
def unfit_page(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """No batch of the log can be read, in neither of its two ranges."""
    page = planted.byte_of(b"two of 2", at) // 4096 * 4096
    for byte in range(page, page + 8):
        flip(planted.data_logs, byte)
    return ()


FAULTS = (
    nothing,
    turned_bit,
    lost_batch,
    lost_first_batch,
    compacted,
    hole_behind_compaction,
    started_later,
    removed,
    wrong_key,
    offset_twice,
    control_batch,
    marker,
    wrong_end,
    lost_last_batch,
    repeated_batch,
    late_batch,
    sequences_in_a_circle,
    forgotten_producer,
    repeated_first_batch,
    other_place,
    other_count,
    overlapping,
    behind_the_end,
    torn,
    torn_far_away,
    stranger,
    copied_twice,
    wrong_order,
    wrong_order_of_batches,
    wrong_order_of_a_lane,
    told_by_a_snapshot,
    lanes_apart,
    lanes_swapped,
    prepared_lanes_apart,
    less_committed,
    nothing_committed,
    less_placed,
    half,
    half_a_batch,
    nowhere,
    aborted,
    begun,
    placed_in_two_steps,
    batch_placed_in_two_steps,
    unprepared,
    unfit_page,
    damaged_window,
)
"""By partition. What harms what is read behind it stands last."""
