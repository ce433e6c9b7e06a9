"""The fold over a local journal, case by case: what stands in the answers, and what is refused as corrupt."""

from __future__ import annotations

import pytest

from fairlog_types import (
    NO_APPLY_NUMBER,
    ApplyNumber,
    CorruptStorage,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from partition.placed import (
    BatchRef,
    OpenPart,
    Placed,
    PlacedBatch,
    PlacedMarker,
    PlacedStart,
    PlacedState,
    PlacedTransaction,
)
from partition.producer_window import (
    ACCEPT,
    NO_SEQUENCE,
    AppliedTransaction,
    BatchRefusal,
    DuplicateOf,
    ProducerWindow,
    Refused,
    WindowBatch,
)
from partition.records import (
    Apply,
    Discard,
    Fence,
    Forget,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Start,
    TransactionalBatch,
)
from partition.state import PartitionState

LOG = LogId("t", "0f" * 16, 4)
EPOCH = ProducerEpoch(2)
PRODUCER = ProducerId(9)
TXID = TxId(PRODUCER, EPOCH, 0)
LEADER_EPOCH = LeaderEpoch(5)


class Leader:
    """Appends frames of 100 bytes and folds them."""

    def __init__(self, log: LogId = LOG) -> None:
        self.state = PartitionState(log, LEADER_EPOCH)
        self.end = JournalPosition(0)

    def write(self, record: LocalRecord) -> Placed | None:
        position, self.end = self.end, JournalPosition(self.end + 100)
        return self.state.fold(record, position, self.end, leader_epoch=LEADER_EPOCH, timestamp_ms=self.end)


@pytest.fixture
def leader() -> Leader:
    """A leader whose log holds two open batches of TXID (5 records), at positions 100 and 200."""
    leader = Leader()
    leader.write(Fence(PRODUCER, EPOCH))
    leader.state.begin(TXID)
    leader.write(TransactionalBatch(TXID, 2, 11, 0))
    leader.write(TransactionalBatch(TXID, 3, 12, 2))
    return leader


def apply(base_offset: int, records: int, txid: TxId = TXID) -> Apply:
    return Apply(txid, ApplyNumber(77), Offset(base_offset), records, 1234)


def test_fold_apply_places_the_batches_as_one_piece(leader: Leader) -> None:
    """The item names every batch by its frame, and shows the window that remembers the placement."""
    assert leader.write(apply(0, 5)) == PlacedTransaction(
        log=LOG,
        base_offset=Offset(0),
        txid=TXID,
        apply_number=ApplyNumber(77),
        leader_epoch=LEADER_EPOCH,
        record_count=5,
        batches=(
            BatchRef(JournalPosition(100), 100, 2, 11, 0),
            BatchRef(JournalPosition(200), 100, 3, 12, 2),
        ),
        window=ProducerWindow(
            epoch=EPOCH,
            batches=(WindowBatch(0, 1, None), WindowBatch(2, 4, None)),
            applied=(AppliedTransaction(EPOCH, 0, ApplyNumber(77), Offset(0), 5),),
            last_use_ms=400,
            as_of=JournalPosition(400),
        ),
        end=JournalPosition(400),
        replay_from=JournalPosition(400),
        timestamp_ms=1234,
    )
    assert leader.state.next_offset == 5


def test_fold_apply_without_batches_places_a_part_of_no_records() -> None:
    """A participant that nothing was written to gives its item too: the transaction stays one group."""
    leader = Leader()
    placed = leader.write(apply(0, 0))
    assert isinstance(placed, PlacedTransaction)
    assert (placed.record_count, placed.batches, placed.base_offset) == (0, (), 0)
    assert placed.window.find_applied(TXID) == AppliedTransaction(EPOCH, 0, ApplyNumber(77), Offset(0), 0)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (apply(1, 5), "the APPLY of 9.2.0 places 5 records at offset 1, but the log goes on at offset 0"),
        (apply(0, 4), "the APPLY of 9.2.0 places 4 records, but 5 stand before it"),
        (apply(0, 1, TxId(PRODUCER, EPOCH, 1)), "places 1 records, but 0 stand before it"),
        (
            PlainBatch(Offset(3), 1, 0, ProducerId(-1), ProducerEpoch(-1), -1),
            "a plain batch places 1 records at offset 3",
        ),
        (
            PlainBatch(Offset(0), 1, 0, PRODUCER, ProducerEpoch(1), 0),
            "producer 9 goes on in epoch 1 with sequence 0, but it was in epoch 2 and before sequence 5",
        ),
        (TransactionalBatch(TXID, 1, 0, 6), "with sequence 6, but it was in epoch 2 and before sequence 5"),
        (Start(Offset(1)), "a START lets the log begin at offset 1, which ends at 0"),
    ],
)
def test_fold_contradiction_is_corrupt_and_changes_nothing(leader: Leader, record: LocalRecord, says: str) -> None:
    """What cannot be is refused with log and position, and the state is as before."""
    windows, held = dict(leader.state.windows), leader.state.held(TXID)
    with pytest.raises(CorruptStorage, match="at position 300") as refused:
        leader.write(record)
    assert str(LOG) in str(refused.value)
    assert says in str(refused.value)
    assert leader.state.folded_through == 300
    assert leader.state.windows == windows
    assert leader.state.held(TXID) == held == (LEADER_EPOCH, 5, None)
    assert leader.state.next_offset == 0


def test_replay_from_stays_at_the_oldest_open_transaction(leader: Leader) -> None:
    """What is decided meanwhile moves the mark, but not the place where a restart begins to read."""
    other = TxId(ProducerId(10), EPOCH, 0)
    assert leader.state.pinned_from(leader.end) == 100
    leader.write(TransactionalBatch(other, 1, 0, 0))
    plain = leader.write(PlainBatch(Offset(0), 1, 0, ProducerId(-1), ProducerEpoch(-1), -1))
    assert plain is not None
    assert (plain.end, plain.replay_from) == (500, 100)
    applied = leader.write(apply(1, 5))
    assert applied is not None
    assert (applied.end, applied.replay_from) == (600, 300)
    discarded = leader.write(Discard(other))
    assert discarded is not None
    assert (discarded.end, discarded.replay_from) == (700, 700)


def test_discard_of_a_transaction_keeps_the_sequence(leader: Leader) -> None:
    """The next transaction of the epoch goes on with the sequence behind the discarded batches."""
    leader.write(Discard(TXID))
    after = TxId(PRODUCER, EPOCH, 1)
    leader.state.begin(after)
    assert leader.state.check_transactional(after, 5, 1) == ACCEPT
    assert leader.state.check_transactional(after, 0, 1) == Refused(BatchRefusal.OUT_OF_ORDER)
    assert leader.state.next_offset == 0


def test_check_transactional_repetition_of_a_decided_batch_is_a_duplicate(leader: Leader) -> None:
    """A late repetition is answered as such and appended to nothing."""
    leader.write(apply(0, 5))
    later = TxId(PRODUCER, EPOCH, 1)
    assert leader.state.check_transactional(TXID, 2, 3) == DuplicateOf(None, remembered=True)
    assert leader.state.check_transactional(later, 2, 3) == DuplicateOf(None, remembered=True)
    assert leader.state.check_transactional(TXID, 5, 1) == Refused(BatchRefusal.NOT_OPEN)


@pytest.mark.parametrize("decision", [apply(0, 5), Discard(TXID)], ids=["committed", "aborted"])
def test_check_transactional_sequence_of_an_earlier_transaction_is_no_repetition(
    leader: Leader, decision: Apply | Discard
) -> None:
    """A new record under an old number (librdkafka, after an abort) is refused, and not answered as if it were kept."""
    leader.write(decision)
    later = TxId(PRODUCER, EPOCH, 1)
    leader.state.begin(later)
    for first, count in [(0, 2), (2, 3)]:
        assert leader.state.check_transactional(later, first, count) == Refused(BatchRefusal.OUT_OF_ORDER)
    leader.write(TransactionalBatch(later, 1, 0, 5))
    assert leader.state.check_transactional(later, 2, 3) == Refused(BatchRefusal.OUT_OF_ORDER)
    assert leader.state.check_transactional(later, 5, 1) == DuplicateOf(None, remembered=True)
    for sequence in range(6, 12):
        leader.write(TransactionalBatch(later, 1, 0, sequence))
    assert leader.state.check_transactional(later, 5, 1) == DuplicateOf(None, remembered=False)
    assert leader.state.check_transactional(later, 2, 3) == Refused(BatchRefusal.OUT_OF_ORDER)
    leader.state.seal(later)
    assert leader.state.check_transactional(later, 11, 1) == DuplicateOf(None, remembered=True)


def test_check_transactional_sealed_takes_no_more_batches(leader: Leader) -> None:
    """What is being prepared does not grow; a repetition of what it holds is still one."""
    assert leader.state.seal(TXID) == (LEADER_EPOCH, 5, None)
    assert leader.state.check_transactional(TXID, 5, 1) == Refused(BatchRefusal.SEALED)
    assert leader.state.check_transactional(TXID, 0, 2) == DuplicateOf(None, remembered=True)


def test_check_transactional_fenced_comes_first(leader: Leader) -> None:
    """Behind the fence of a newer epoch not even a repetition of the old one is answered."""
    leader.write(Fence(PRODUCER, ProducerEpoch(3)))
    for first, count in [(0, 2), (5, 1)]:
        assert leader.state.check_transactional(TXID, first, count) == Refused(BatchRefusal.FENCED)


def test_apply_behind_a_newer_fence_is_placed(leader: Leader) -> None:
    """A transaction that has prepared is rolled forward although its producer is fenced by now."""
    leader.write(Fence(PRODUCER, ProducerEpoch(3)))
    placed = leader.write(apply(0, 5))
    assert isinstance(placed, PlacedTransaction)
    assert placed.window.epoch == 3
    assert leader.state.holds(TXID, LEADER_EPOCH, 5) is None


def test_check_transactional_without_sequence_only_in_offsets_logs() -> None:
    """Committed offsets have no sequence; a batch of a topic must have one."""
    for log, expected in [(LogId.of_offsets(1), ACCEPT), (LOG, Refused(BatchRefusal.OUT_OF_ORDER))]:
        leader = Leader(log)
        leader.write(Fence(PRODUCER, EPOCH))
        leader.state.begin(TXID)
        assert leader.state.check_transactional(TXID, NO_SEQUENCE, 1) == expected


@pytest.mark.parametrize(
    ("leader_epoch", "records", "says"),
    [
        (LEADER_EPOCH, 5, None),
        (LEADER_EPOCH, 4, "holds 5 records of 9.2.0, where 4 are expected"),
        (LEADER_EPOCH, 0, "holds 5 records of 9.2.0, where 0 are expected"),
        (LeaderEpoch(6), 5, "has begun 9.2.0 in leader epoch 5, not 6"),
    ],
)
def test_holds_open_transaction_compares_epoch_and_count(
    leader: Leader, leader_epoch: LeaderEpoch, records: int, says: str | None
) -> None:
    """A participant prepares only in the epoch in which it began, and only with exactly what is expected."""
    answer = leader.state.holds(TXID, leader_epoch, records)
    assert answer is None if says is None else says in str(answer)


def test_holds_applied_transaction_compares_the_count(leader: Leader) -> None:
    """Preparing again after the apply succeeds, in any leader epoch, if the count is the same."""
    leader.write(apply(0, 5))
    assert leader.state.holds(TXID, LeaderEpoch(99), 5) is None
    assert "has applied 9.2.0 with 5 records, not 4" in str(leader.state.holds(TXID, LEADER_EPOCH, 4))


def test_holds_lost_transaction_is_refused(leader: Leader) -> None:
    """Nothing held where records are expected: the data did not survive, the transaction cannot commit."""
    leader.write(Discard(TXID))
    assert "holds nothing of 9.2.0, where 5 records are expected" in str(leader.state.holds(TXID, LEADER_EPOCH, 5))


def test_begin_without_its_fence_is_our_bug() -> None:
    """A leader writes the fence first; otherwise an older epoch could slip in behind."""
    with pytest.raises(AssertionError, match="without its fence"):
        Leader().state.begin(TXID)


def test_fold_frame_twice_is_our_bug(leader: Leader) -> None:
    """A frame is folded once."""
    with pytest.raises(AssertionError):
        leader.state.fold(
            Discard(TXID), JournalPosition(200), JournalPosition(300), leader_epoch=LEADER_EPOCH, timestamp_ms=0
        )


def test_forget_unknown_again_and_its_window_deleted(leader: Leader) -> None:
    """A forgotten producer is unknown: its item tells the data log to delete, and it begins with 0 again."""
    assert leader.state.expired(unused_since_ms=10**6) == []
    leader.write(Discard(TXID))
    assert leader.state.expired(unused_since_ms=400) == []
    assert leader.state.expired(unused_since_ms=401) == [PRODUCER]
    placed = leader.write(Forget(PRODUCER))
    assert placed == PlacedState(LOG, PRODUCER, None, JournalPosition(500), JournalPosition(500))
    assert leader.state.check_plain(PRODUCER, EPOCH, 5, 1) == Refused(BatchRefusal.UNKNOWN_PRODUCER)
    assert leader.state.check_plain(PRODUCER, EPOCH, 0, 1) == ACCEPT


def test_fold_start_moves_the_start_and_never_back(leader: Leader) -> None:
    """Each gives its item, with which the mark moves; the open transaction pins the journal as before."""
    leader.write(PlainBatch(Offset(0), 9, 0, ProducerId(-1), ProducerEpoch(-1), -1))
    at = JournalPosition(100)
    assert leader.write(Start(Offset(7))) == PlacedStart(LOG, Offset(7), JournalPosition(500), at)
    assert leader.write(Start(Offset(4))) == PlacedStart(LOG, Offset(4), JournalPosition(600), at)
    assert (leader.state.log_start, leader.state.started_through, leader.state.next_offset) == (7, 600, 9)
    assert leader.write(Start(Offset(9))) == PlacedStart(LOG, Offset(9), JournalPosition(700), at)
    assert leader.state.log_start == 9


def test_fold_start_before_the_mark_places_nothing() -> None:
    """The data log begins there, or later, by now: the frame is only read again for the sake of what is open."""
    state = PartitionState(LOG, LEADER_EPOCH)
    state.restore(
        copied_through=JournalPosition(200),
        replay_from=JournalPosition(100),
        next_offset=Offset(9),
        log_start=Offset(8),
        windows={},
    )
    for position, placed in (
        (100, None),
        (200, PlacedStart(LOG, Offset(7), JournalPosition(300), JournalPosition(300))),
    ):
        end = JournalPosition(position + 100)
        record = Start(Offset(7))
        assert state.fold(record, JournalPosition(position), end, leader_epoch=LEADER_EPOCH, timestamp_ms=0) == placed
    assert (state.log_start, state.started_through) == (8, 300)


def test_fold_start_of_an_offsets_log_is_corrupt() -> None:
    """It is a table, and has no records that could be deleted."""
    with pytest.raises(CorruptStorage, match="which is a table"):
        Leader(LogId.of_offsets(3)).write(Start(Offset(0)))


# ---------------------------------------------------------------------------- marker mode


@pytest.fixture
def marking() -> Leader:
    """A leader whose log holds two batches of TXID (5 records), readable at offsets 0 and 2, and a plain one at 5."""
    leader = Leader()
    leader.write(Fence(PRODUCER, EPOCH))
    leader.state.begin(TXID)
    leader.write(OpenBatch(TXID, Offset(0), 2, 11, 0))
    leader.write(OpenBatch(TXID, Offset(2), 3, 12, 2))
    leader.write(PlainBatch(Offset(5), 1, 0, ProducerId(-1), ProducerEpoch(-1), -1))
    return leader


def marker(offset: int, *, committed: bool = True, txid: TxId = TXID) -> Marker:
    return Marker(txid, ApplyNumber(77) if committed else NO_APPLY_NUMBER, Offset(offset), committed, 3, 1234)


def test_open_batch_is_placed_at_once_and_pins_no_journal() -> None:
    """The item says where it goes, and what its transaction holds with it; a restart need not read its frame."""
    leader = Leader()
    leader.write(Fence(PRODUCER, EPOCH))
    leader.state.begin(TXID)
    placed = leader.write(OpenBatch(TXID, Offset(0), 2, 11, 0))
    assert placed == PlacedBatch(
        log=LOG,
        base_offset=Offset(0),
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        leader_epoch=LEADER_EPOCH,
        batch=BatchRef(JournalPosition(100), 100, 2, 11, 0),
        window=ProducerWindow(EPOCH, (WindowBatch(0, 1, Offset(0)),), (), 200, JournalPosition(200)),
        end=JournalPosition(200),
        replay_from=JournalPosition(200),
        part=OpenPart(TXID, LEADER_EPOCH, Offset(0), 2),
    )


def firsts_of(state: PartitionState) -> list[Offset | None]:
    """Where each open transaction begins in the log."""
    return [it.first_offset for it in state.open_transactions.values()]


def test_open_batches_are_known_by_their_first_offset_until_the_marker(marking: Leader) -> None:
    """Each transaction by its own; its marker stands behind them all, and ends no other."""
    later = TxId(ProducerId(10), EPOCH, 0)
    assert (marking.state.next_offset, firsts_of(marking.state)) == (6, [0])
    marking.write(OpenBatch(later, Offset(6), 1, 0, 0))
    placed = marking.write(marker(7))
    assert isinstance(placed, PlacedMarker)
    assert (placed.offset, placed.committed, placed.coordinator_epoch) == (7, True, 3)
    assert (marking.state.next_offset, firsts_of(marking.state)) == (8, [6])
    marking.write(marker(8, committed=False, txid=later))
    assert (marking.state.next_offset, firsts_of(marking.state)) == (9, [])


def test_marker_of_a_commit_is_remembered_as_where_the_transaction_begins(marking: Leader) -> None:
    """Preparing or placing it again is answered from the window, also in a later leader epoch."""
    placed = marking.write(marker(6))
    assert isinstance(placed, PlacedMarker)
    assert placed.window.applied == (AppliedTransaction(EPOCH, 0, ApplyNumber(77), Offset(0), 5),)
    assert placed.window.coordinator_epoch == 3
    assert marking.state.holds(TXID, LeaderEpoch(99), 5) is None
    assert marking.state.holds(TXID, LEADER_EPOCH, 4) is not None


def test_marker_of_an_abort_leaves_nothing_that_could_be_committed(marking: Leader) -> None:
    """Behind it the log holds nothing of the transaction: it refuses the commit of what was written."""
    marking.write(marker(6, committed=False))
    assert marking.state.applied(TXID) is None
    assert "holds nothing" in str(marking.state.holds(TXID, LEADER_EPOCH, 5))


def test_marker_where_nothing_was_written_takes_an_offset(marking: Leader) -> None:
    """As in Kafka every log of the transaction gets one; that of an untouched log is its whole part."""
    other = TxId(ProducerId(10), EPOCH, 0)
    placed = marking.write(marker(6, txid=other))
    assert isinstance(placed, PlacedMarker)
    assert placed.window.applied == (AppliedTransaction(EPOCH, 0, ApplyNumber(77), Offset(6), 0),)
    assert firsts_of(marking.state) == [0]


def test_check_transactional_repetition_of_an_open_batch_has_its_offset(marking: Leader) -> None:
    """A repeated batch is answered with the offset that it has, open or decided."""
    assert marking.state.check_transactional(TXID, 2, 3) == DuplicateOf(Offset(2), remembered=True)
    marking.write(marker(6))
    assert marking.state.check_transactional(TXID, 2, 3) == DuplicateOf(Offset(2), remembered=True)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (marker(7), "the marker of 9.2.0 places 1 records at offset 7, but the log goes on at offset 6"),
        (OpenBatch(TXID, Offset(7), 1, 0, 5), "a batch of 9.2.0 places 1 records at offset 7"),
        (OpenBatch(TXID, Offset(6), 1, 0, 6), "with sequence 6, but it was in epoch 2 and before sequence 5"),
        (apply(6, 5), "the APPLY of 9.2.0 places 5 records, but 0 stand before it"),
    ],
)
def test_fold_contradiction_in_a_marker_log_is_corrupt(marking: Leader, record: LocalRecord, says: str) -> None:
    """Offsets, sequences and the kind of decision must fit what stands before."""
    windows = dict(marking.state.windows)
    with pytest.raises(CorruptStorage, match="at position 400") as refused:
        marking.write(record)
    assert says in str(refused.value)
    assert (marking.state.next_offset, firsts_of(marking.state)) == (6, [0])
    assert marking.state.windows == windows


def test_fold_marker_of_batches_that_are_held_is_corrupt(leader: Leader) -> None:
    """A marker places nothing, so it cannot end a transaction whose batches are not placed."""
    with pytest.raises(CorruptStorage, match="whose batches are not placed"):
        leader.write(marker(0))


def test_restore_knows_what_the_data_log_has_open(marking: Leader) -> None:
    """Behind a restart the open transaction holds what was copied, and goes on from there."""
    state = PartitionState(LOG, LeaderEpoch(6))
    state.restore(
        copied_through=marking.end,
        replay_from=marking.end,
        next_offset=Offset(6),
        log_start=Offset(0),
        windows=marking.state.windows,
        open_parts=[OpenPart(TXID, LEADER_EPOCH, Offset(0), 5)],
    )
    assert state.holds(TXID, LEADER_EPOCH, 5) is None
    assert firsts_of(state) == [0]
    assert state.open_of(PRODUCER) == TXID
