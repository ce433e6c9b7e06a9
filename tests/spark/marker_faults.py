"""Every fault of a log in marker mode that the audit finds, and exactly what is found of it.

There a transaction's batches are in the log before it is decided, and a marker decides it: it may be gone, be of
another producer's epoch, or commit what nobody knows of. Some faults are none: what looks like one, and is as it
should be.

Of the log the offsets are those of `tests.spark.audited`.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.group_records import GroupRecord
from fairlog_types import LogId
from tests.spark.audited import MARKER_BATCHES, put_window
from tests.spark.planted_faults import (
    append,
    append_transaction,
    batch_at,
    batch_of,
    change,
    compact,
    fault,
    in_markers,
    lane,
    marker_of,
    nothing,
    sink_commit,
)
from tests.verify.planting import Planted, with_header


@fault("the marker is gone", ("hole", 3), ("transaction without its marker", 2))
def lost_marker(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.put_batches({3: None}, at)
    return ()


@fault("a batch of another epoch is within", ("older epoch", 1), ("sequence", 6))
def older_epoch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 1, producer_epoch=7)
    return ()


@fault("the marker commits more", ("torn transaction", 2))
def more_committed(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """The batch that was aborted behind the marker stands before it."""
    marker, more = batch_at(planted, at, 3), batch_at(planted, at, 4)
    planted.put_batches({3: with_header(more, base_offset=3), 4: with_header(marker, base_offset=4)}, at)
    return ()


@fault("the marker and its batch are of another epoch", ("torn transaction", 2), ("sequence", 4))
def other_epoch(planted: Planted, at: int) -> Sequence[GroupRecord]:
    for key in (2, 3):
        change(planted, at, key, producer_epoch=9)
    return ()


@fault("a marker commits what nobody knows of", ("transaction of nobody", MARKER_BATCHES))
def unknown_commit(planted: Planted, at: int) -> Sequence[GroupRecord]:
    data, marker = batch_at(planted, at, 2), batch_at(planted, at, 3)
    append(planted, at, with_header(data, base_sequence=50))
    append(planted, at, marker)
    return ()


@fault("the log starts later, and a marker commits what nobody knows of", ("transaction of nobody", MARKER_BATCHES))
def unknown_commit_behind_the_start(planted: Planted, at: int) -> Sequence[GroupRecord]:
    planted.change_record(lambda record: setattr(record, "log_start", 1), at)
    return unknown_commit.plant(planted, at)


@fault(
    "a producer's only transaction is placed elsewhere",
    ("transaction without its marker", MARKER_BATCHES - 1),
    ("transaction of nobody", MARKER_BATCHES),
)
def placed_elsewhere(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append_transaction(planted, at, 1)
    put_window(planted, at, in_markers(at), MARKER_BATCHES - 1)
    return ()


@fault("transactions lie within one another")
def interleaved(planted: Planted, at: int) -> Sequence[GroupRecord]:
    outer, inner = in_markers(at), in_markers(at, 1)
    for producer, sequence in ((outer, 0), (inner, 0), (outer, 1)):
        append(planted, at, batch_of(planted, at, producer, sequence))
    for each in (inner, outer):
        append(planted, at, marker_of(each.producer_id))
    put_window(planted, at, outer, MARKER_BATCHES, records=2)
    put_window(planted, at, inner, MARKER_BATCHES + 1)
    return ()


@fault("between a sink's lanes there are their markers")
def lanes_in_markers(planted: Planted, at: int) -> Sequence[GroupRecord]:
    sink, log = 1000 + at, planted.log(at)
    places: dict[int, dict[LogId, int]] = {}
    for slot in range(2):
        places[slot] = {log: planted.record(at).next_offset}
        append(planted, at, batch_of(planted, at, lane(sink, slot), 0))
        append(planted, at, marker_of(lane(sink, slot).producer_id))
    return sink_commit(sink, 0, {slot: {log: 1} for slot in places}, places)


@fault("the log starts within a transaction")
def started_within(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """What is left of it begins where nobody has one."""
    append_transaction(planted, at, 2)
    put_window(planted, at, in_markers(at), MARKER_BATCHES, records=2)
    planted.change_record(lambda record: setattr(record, "log_start", MARKER_BATCHES + 1), at)
    return ()


@fault("compaction has taken the end of a transaction")
def compacted_end(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append_transaction(planted, at, 2)
    put_window(planted, at, in_markers(at), MARKER_BATCHES, records=2)
    compact(planted, at, MARKER_BATCHES + 1)
    return ()


@fault("compaction has taken the beginning of a later transaction")
def compacted_beginning(planted: Planted, at: int) -> Sequence[GroupRecord]:
    """The marker of the one before stands where compaction was: it does not tell where this one began."""
    append_transaction(planted, at, 1)
    append_transaction(planted, at, 2, first_sequence=1)
    put_window(planted, at, in_markers(at), MARKER_BATCHES + 2, records=2)
    compact(planted, at, MARKER_BATCHES + 2)
    return ()


@fault("a window has forgotten a producer's first transaction")
def forgotten(planted: Planted, at: int) -> Sequence[GroupRecord]:
    append_transaction(planted, at, 1)
    append_transaction(planted, at, 1, first_sequence=1)
    put_window(planted, at, in_markers(at), MARKER_BATCHES + 2)
    return ()


@fault("a control batch that ends nothing", ("control batch", 0))
def senseless_marker(planted: Planted, at: int) -> Sequence[GroupRecord]:
    change(planted, at, 0, attributes=0x30)
    return ()


MARKER_FAULTS = (
    nothing,
    lost_marker,
    older_epoch,
    more_committed,
    other_epoch,
    unknown_commit,
    unknown_commit_behind_the_start,
    placed_elsewhere,
    interleaved,
    lanes_in_markers,
    started_within,
    compacted_end,
    compacted_beginning,
    forgotten,
    senseless_marker,
)
"""By partition of the topic of marker mode."""
