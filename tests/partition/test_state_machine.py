"""The fold over a local journal, driven through any order of events, and restarted at any point of the copy.

The model is naive: it keeps every batch ever accepted and every record ever placed, and derives from them what
must be answered. The state under test is compared with it at each step; and with itself, restored from the
data log's point of view at every item that the copier may have stopped behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlog_types import (
    NO_APPLY_NUMBER,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from partition.placed import (
    WITHOUT_RECORDS,
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
    BATCHES_KEPT,
    NO_SEQUENCE,
    BatchCheck,
    BatchRefusal,
    DuplicateOf,
    ProducerWindow,
    Refused,
)
from partition.record_codec import decode_local, encode_local, replay_local
from partition.records import (
    Apply,
    Discard,
    Fence,
    Forget,
    LocalRecord,
    Marker,
    OpenBatch,
    PlainBatch,
    Prepared,
    Start,
    TransactionalBatch,
)
from partition.state import Held, OpenTransaction, PartitionState

SEQUENCES = 2**31
COORDINATOR = ShardNumber(3)
PRODUCERS = st.integers(1, 3).map(ProducerId)
COUNTS = st.sampled_from([1, 2, 3, 7, 2**27])
"""The large one brings sequences behind their wrap within one run."""
HOW = st.sampled_from(["next"] * 6 + ["repeat", "repeat", "gap", "older epoch", "newer epoch", "newer epoch, gap"])
HOW_IN_EPOCH = st.sampled_from(["next"] * 4 + ["repeat", "gap"])


@dataclass(frozen=True)
class Frame:
    """Stands in for `journal.FrameAt`."""

    position: JournalPosition
    end: JournalPosition
    kind: int
    leader_epoch: LeaderEpoch
    timestamp_ms: int
    header: tuple[int, ...]


@dataclass
class Producer:
    """All that one producer did since it became known."""

    epoch: ProducerEpoch
    batches: list[tuple[int, int, Offset | None]] = field(default_factory=list)
    """(first sequence, count, base offset) of its epoch."""
    last_use_ms: int = 0

    @property
    def next_sequence(self) -> int:
        return (self.batches[-1][0] + self.batches[-1][1]) % SEQUENCES if self.batches else 0

    def expected(self, epoch: int, first: int, count: int) -> BatchCheck:
        if epoch < self.epoch:
            return Refused(BatchRefusal.FENCED)
        if epoch > self.epoch:
            return ACCEPT if first == 0 else Refused(BatchRefusal.OUT_OF_ORDER)
        if first == self.next_sequence:
            return ACCEPT
        if not self.batches:
            return Refused(BatchRefusal.UNKNOWN_PRODUCER)
        for age, (known_first, known_count, base_offset) in enumerate(reversed(self.batches)):
            if (known_first, known_count) == (first, count):
                return DuplicateOf(base_offset, True) if age < BATCHES_KEPT else DuplicateOf(None, False)
        return Refused(BatchRefusal.OUT_OF_ORDER)


@dataclass
class Transaction:
    """An open transaction as the model sees it: the positions and counts of its batches, and where they begin."""

    leader_epoch: LeaderEpoch
    batches: list[tuple[JournalPosition, int]] = field(default_factory=list)
    first_offset: Offset | None = None
    first_sequence: int | None = None
    sealed: bool = False
    prepared_at: JournalPosition | None = None

    @property
    def records(self) -> int:
        return sum(count for _, count in self.batches)


class LocalStateMachine(RuleBasedStateMachine):
    """One log, three producers, and a leader that does what it should: check, append, fold."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.end = JournalPosition(0)
        self.frames: list[Frame] = []
        self.placed: list[Placed] = []
        self.next_offset = Offset(0)
        self.log_start = Offset(0)
        self.producers: dict[ProducerId, Producer] = {}
        self.transactions: dict[TxId, Transaction] = {}
        self.applied: dict[TxId, tuple[int, Offset, int]] = {}
        self.numbers = 0

    @initialize(log_is=st.sampled_from(["journal", "offsets", "markers"]))
    def open(self, log_is: str) -> None:
        self.offsets_log = offsets_log = log_is == "offsets"
        self.markers = log_is == "markers"
        self.log = LogId.of_offsets(3) if offsets_log else LogId("t", "ab" * 16, 0)
        self.state = PartitionState(self.log, LeaderEpoch(1))

    # ---------------------------------------------------------------- the leader

    def write(self, record: LocalRecord, payload_bytes: int = 0) -> Placed | None:
        """Append and fold, as a leader does; the frame goes through the codec."""
        kind, header = encode_local(record)
        assert decode_local(kind, header) == record
        position = self.end
        self.end = JournalPosition(position + 64 + payload_bytes)
        frame = Frame(position, self.end, kind, self.state.leader_epoch, self.now_ms, header)
        self.frames.append(frame)
        placed = self.state.fold(
            record, position, self.end, leader_epoch=self.state.leader_epoch, timestamp_ms=self.now_ms
        )
        if placed is None:
            assert isinstance(record, TransactionalBatch | Prepared)
        else:
            self.place(placed)
        return placed

    def place(self, placed: Placed) -> None:
        """The copier's view: every item moves the mark, and data goes exactly behind the data."""
        assert placed.log == self.log
        assert placed.end == self.end
        assert placed.replay_from == min([self.end, *map(self.pinned_from, self.transactions.values())])
        if isinstance(placed, PlacedMarker):
            assert placed.offset == self.next_offset, "invariant 2: offsets are dense"
            self.next_offset = Offset(self.next_offset + 1)
        elif not isinstance(placed, WITHOUT_RECORDS):
            assert placed.base_offset == self.next_offset, "invariant 2: offsets are dense"
        if isinstance(placed, PlacedBatch):
            self.next_offset = Offset(self.next_offset + placed.batch.record_count)
        elif isinstance(placed, PlacedTransaction):
            assert placed.record_count == sum(batch.record_count for batch in placed.batches)
            self.next_offset = Offset(self.next_offset + placed.record_count)
        self.placed.append(placed)

    def pinned_from(self, transaction: Transaction) -> JournalPosition:
        """Where a restart has to begin to read, for the sake of this one."""
        if transaction.batches and not self.markers:
            return transaction.batches[0][0]
        return self.end if transaction.prepared_at is None else transaction.prepared_at

    def known(self, producer_id: ProducerId, epoch: ProducerEpoch) -> Producer:
        producer = self.producers.get(producer_id)
        if producer is None or producer.epoch < epoch:
            producer = self.producers[producer_id] = Producer(epoch)
        producer.last_use_ms = self.now_ms
        return producer

    def attempt(self, producer_id: ProducerId, how: str, count: int, pick: int) -> tuple[ProducerEpoch, int, int]:
        """(epoch, first sequence, count) of what a client might send."""
        producer = self.producers.get(producer_id, Producer(ProducerEpoch(5)))
        if how == "repeat" and producer.batches:
            first, known_count, _ = producer.batches[pick % len(producer.batches)]
            return producer.epoch, first, known_count
        if how == "gap":
            return producer.epoch, (producer.next_sequence + 1 + pick % 5) % SEQUENCES, count
        if how == "older epoch":
            return ProducerEpoch(producer.epoch - 1), producer.next_sequence, count
        if how == "newer epoch":
            return ProducerEpoch(producer.epoch + 1), 0, count
        if how == "newer epoch, gap":
            return ProducerEpoch(producer.epoch + 1), 1, count
        return producer.epoch, producer.next_sequence, count

    def expected(self, producer_id: ProducerId, epoch: ProducerEpoch, first: int, count: int) -> BatchCheck:
        producer = self.producers.get(producer_id)
        if producer is None:
            return ACCEPT if first == 0 else Refused(BatchRefusal.UNKNOWN_PRODUCER)
        return producer.expected(epoch, first, count)

    @rule(count=COUNTS)
    def plain_without_idempotence(self, count: int) -> None:
        """A producer without an id is always accepted."""
        assert self.state.check_plain(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, count) == ACCEPT
        placed = self.write(
            PlainBatch(self.state.next_offset, count, 1, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE), 128
        )
        assert isinstance(placed, PlacedBatch)
        assert placed.window is None

    @rule(producer_id=PRODUCERS, how=HOW, count=COUNTS, pick=st.integers(0, 20))
    def plain(self, producer_id: ProducerId, how: str, count: int, pick: int) -> None:
        """An idempotent batch is judged as the whole history of its producer says."""
        epoch, first, count = self.attempt(producer_id, how, count, pick)
        check = self.state.check_plain(producer_id, epoch, first, count)
        assert check == self.expected(producer_id, epoch, first, count)
        if check != ACCEPT:
            return
        base_offset = self.state.next_offset
        placed = self.write(PlainBatch(base_offset, count, 1, producer_id, epoch, first), 128)
        assert isinstance(placed, PlacedBatch)
        assert placed.window == self.state.windows[producer_id]
        self.known(producer_id, epoch).batches.append((first, count, base_offset))

    @rule(producer_id=PRODUCERS, bump=st.sampled_from([0, 0, 0, 0, 1, -1]), counts=st.lists(COUNTS, max_size=4))
    def begin(self, producer_id: ProducerId, bump: int, counts: list[int]) -> None:
        """A transaction begins behind the fence of its epoch, unless that epoch is fenced itself."""
        known = self.producers.get(producer_id)
        epoch = ProducerEpoch((known.epoch if known else 5) + bump)
        txid = TxId(producer_id, epoch, self.numbers)
        self.numbers += 1
        if known and epoch < known.epoch:
            assert self.state.check_begin(txid) == Refused(BatchRefusal.FENCED)
            return
        assert self.state.check_begin(txid) is None
        assert self.state.needs_fence(producer_id, epoch) == (known is None or epoch > known.epoch)
        if self.state.needs_fence(producer_id, epoch):
            placed = self.write(Fence(producer_id, epoch))
            assert isinstance(placed, PlacedState)
            self.known(producer_id, epoch)
        assert self.state.begin(txid) == self.state.leader_epoch
        assert self.state.begin(txid) == self.state.leader_epoch
        self.transactions[txid] = Transaction(self.state.leader_epoch)
        for count in counts:
            self.transactional(txid, self.producers[producer_id].next_sequence, count)

    @precondition(lambda self: self.transactions)
    @rule(data=st.data(), how=HOW_IN_EPOCH, count=COUNTS, pick=st.integers(0, 20))
    def batch_of_open_transaction(self, data: st.DataObject, how: str, count: int, pick: int) -> None:
        """A batch of a transaction that began here is judged by epoch, by sequence, and by the seal."""
        txid = data.draw(st.sampled_from(list(self.transactions)))
        _, first, count = self.attempt(txid.producer_id, how, count, pick)
        self.transactional(txid, first, count)

    @rule(producer_id=PRODUCERS, how=HOW, count=COUNTS, pick=st.integers(0, 20))
    def batch_of_no_transaction(self, producer_id: ProducerId, how: str, count: int, pick: int) -> None:
        """A batch of a transaction that did not begin here, or is decided, is never appended."""
        epoch, first, count = self.attempt(producer_id, how, count, pick)
        self.transactional(TxId(producer_id, epoch, 1_000_000), first, count)

    def transactional(self, txid: TxId, first: int, count: int) -> None:
        producer_id, epoch = txid.producer_id, txid.epoch
        known = self.producers.get(producer_id)
        transaction = self.transactions.get(txid)
        if self.offsets_log:
            first = NO_SEQUENCE
            fenced = known is not None and epoch < known.epoch
            expected: BatchCheck = Refused(BatchRefusal.FENCED) if fenced else ACCEPT
        else:
            expected = self.expected(producer_id, epoch, first, count)
        if expected != Refused(BatchRefusal.FENCED) and not isinstance(expected, DuplicateOf):
            if transaction is None:
                expected = Refused(BatchRefusal.NOT_OPEN)
            elif transaction.sealed:
                expected = Refused(BatchRefusal.SEALED)
        if isinstance(expected, DuplicateOf) and transaction is not None and not transaction.sealed:
            own = self.state.open_transactions[txid].first_sequence
            assert own == transaction.first_sequence
            if own is None or first < own:
                expected = Refused(BatchRefusal.OUT_OF_ORDER)  # a new record under the number of an older one
        check = self.state.check_transactional(txid, first, count)
        assert check == expected
        if check != ACCEPT:
            return
        assert transaction is not None
        base_offset = self.append(txid, transaction, first, count)
        producer = self.known(producer_id, epoch)
        if not self.offsets_log:
            producer.batches.append((first, count, base_offset))

    def append(self, txid: TxId, transaction: Transaction, first: int, count: int) -> Offset | None:
        """Write the batch as the log's mode has it; answer where it was placed, if it was."""
        position, base_offset = self.end, self.state.next_offset
        transaction.batches.append((position, count))
        if len(transaction.batches) == 1:
            transaction.first_sequence = first
        if not self.markers:
            assert self.write(TransactionalBatch(txid, count, 1, first), 256) is None
            return None
        if transaction.first_offset is None:
            transaction.first_offset = base_offset
        placed = self.write(OpenBatch(txid, base_offset, count, 1, first), 256)
        assert isinstance(placed, PlacedBatch)
        assert placed.part == OpenPart(txid, transaction.leader_epoch, transaction.first_offset, transaction.records)
        return base_offset

    @precondition(lambda self: self.transactions)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        """Sealing says what is held, as often as it is asked."""
        txid = data.draw(st.sampled_from(list(self.transactions)))
        transaction = self.transactions[txid]
        transaction.sealed = True
        for _ in range(2):
            assert self.state.seal(txid) == self.held(transaction)

    @precondition(lambda self: self.transactions)
    @rule(data=st.data())
    def prepare(self, data: st.DataObject) -> None:
        """For a coordinator in another shard: it takes no more batches, also after a restart, and cannot go on then."""
        txid = data.draw(st.sampled_from(list(self.transactions)))
        transaction = self.transactions[txid]
        if transaction.prepared_at is not None:
            return
        transaction.prepared_at, transaction.sealed = self.end, True
        assert self.write(Prepared(txid, transaction.records, COORDINATOR)) is None
        assert self.state.written_through(txid) == self.end
        assert self.state.resume(txid) == f"{self.log} has prepared it"

    def held(self, transaction: Transaction) -> Held:
        prepared_for = None if transaction.prepared_at is None else COORDINATOR
        return Held(transaction.leader_epoch, transaction.records, prepared_for)

    @precondition(lambda self: self.transactions)
    @rule(data=st.data())
    def apply(self, data: st.DataObject) -> None:
        """An applied transaction is placed whole, in produce order, in one piece (invariant 3)."""
        txid = data.draw(st.sampled_from(list(self.transactions)))
        transaction = self.transactions[txid]
        assert self.state.holds(txid, transaction.leader_epoch, transaction.records) is None
        assert self.state.holds(txid, transaction.leader_epoch, transaction.records + 1) is not None
        del self.transactions[txid]
        self.place_applied(txid, transaction)

    @rule(producer_id=PRODUCERS, epoch=st.integers(4, 7).map(ProducerEpoch))
    def apply_what_was_never_written_to(self, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        """A participant without a single batch, whose begin a restart forgot, is applied all the same."""
        txid = TxId(producer_id, epoch, self.numbers)
        self.numbers += 1
        assert self.state.holds(txid, LeaderEpoch(0), 0) is None
        assert self.state.holds(txid, LeaderEpoch(0), 1) is not None
        self.place_applied(txid, Transaction(LeaderEpoch(0)))

    def place_applied(self, txid: TxId, transaction: Transaction) -> None:
        number = ApplyNumber(len(self.frames))
        base_offset = self.state.next_offset
        placed: Placed | None
        if self.markers:
            placed = self.write(Marker(txid, number, base_offset, True, 3, 5))
            assert isinstance(placed, PlacedMarker)
            base_offset = base_offset if transaction.first_offset is None else transaction.first_offset
        else:
            placed = self.write(Apply(txid, number, base_offset, transaction.records, 5))
            assert isinstance(placed, PlacedTransaction)
            assert [(batch.position, batch.record_count) for batch in placed.batches] == transaction.batches
        assert placed.window == self.state.windows[txid.producer_id]
        self.applied[txid] = (number, base_offset, transaction.records)
        self.known(txid.producer_id, txid.epoch)
        entry = self.state.applied(txid)
        assert entry is not None
        assert entry[2:] == self.applied[txid]
        assert self.state.holds(txid, LeaderEpoch(77), transaction.records) is None
        assert self.state.holds(txid, LeaderEpoch(77), transaction.records + 1) is not None
        assert self.state.held(txid) is None

    @precondition(lambda self: self.transactions)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        """An aborted transaction places nothing but a marker, and its producer's sequence goes on where it was."""
        self.discard_one(data.draw(st.sampled_from(list(self.transactions))))

    def discard_one(self, txid: TxId) -> None:
        before = self.state.next_offset
        del self.transactions[txid]
        if self.markers:
            assert isinstance(self.write(Marker(txid, NO_APPLY_NUMBER, before, False, 3, 5)), PlacedMarker)
        else:
            assert isinstance(self.write(Discard(txid)), PlacedState)
            assert self.state.next_offset == before
        assert self.state.held(txid) is None
        assert self.state.applied(txid) is None
        self.known(txid.producer_id, txid.epoch)

    @rule(producer_id=PRODUCERS, bump=st.sampled_from([0, 0, 1]))
    def fence(self, producer_id: ProducerId, bump: int) -> None:
        """From a fence on, older epochs are refused."""
        known = self.producers.get(producer_id)
        epoch = ProducerEpoch((known.epoch if known else 5) + bump)
        self.write(Fence(producer_id, epoch))
        self.known(producer_id, epoch)
        older = ProducerEpoch(epoch - 1)
        assert self.state.check_plain(producer_id, older, 0, 1) == Refused(BatchRefusal.FENCED), "invariant 9"
        assert self.state.check_begin(TxId(producer_id, older, 0)) == Refused(BatchRefusal.FENCED)

    @rule(ms=st.integers(-2000, 2000))
    def time_passes(self, ms: int) -> None:
        """The wall clock goes on, or is set back."""
        self.now_ms += ms

    @rule(idle_ms=st.integers(0, 2000))
    def forget_idle_producers(self, idle_ms: int) -> None:
        """Producers are forgotten by their last use, but none that has an open transaction."""
        since = self.now_ms - idle_ms
        busy = {txid.producer_id for txid in self.transactions}
        idle = {pid for pid, known in self.producers.items() if known.last_use_ms < since} - busy
        expired = self.state.expired(unused_since_ms=since)
        assert set(expired) == idle
        for producer_id in expired:
            placed = self.write(Forget(producer_id))
            assert isinstance(placed, PlacedState)
            assert placed.window is None
            del self.producers[producer_id]
            self.applied = {txid: place for txid, place in self.applied.items() if txid.producer_id != producer_id}

    @precondition(lambda self: not self.offsets_log)
    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        """The log begins where it was told to, and never earlier than before; offsets and producers stay."""
        offset = Offset(int(self.next_offset * part))
        self.log_start = max(self.log_start, offset)
        placed = self.write(Start(offset))
        assert placed == PlacedStart(self.log, offset, self.end, placed.replay_from)
        assert self.state.started_through == self.end

    # ---------------------------------------------------------------- restarts

    def restored(self, copied: int, *, is_ahead: bool) -> tuple[PartitionState, list[Placed]]:
        """The state after a restart that finds the first `copied` items in the data log; and what it places.

        `is_ahead`: the data log begins already where the journal's last word says.
        """
        windows: dict[ProducerId, ProducerWindow] = {}
        mark = (JournalPosition(0), JournalPosition(0))
        next_offset, log_start = Offset(0), Offset(0)
        parts: dict[TxId, OpenPart] = {}
        for item in self.placed[:copied]:
            mark = (item.end, item.replay_from)
            if isinstance(item, PlacedStart):
                log_start = max(log_start, item.offset)
                continue
            if isinstance(item, PlacedMarker):
                parts.pop(item.txid, None)
                next_offset = Offset(item.offset + 1)
            elif isinstance(item, PlacedBatch):
                if item.part is not None:
                    parts[item.part.txid] = item.part
                next_offset = Offset(item.base_offset + item.batch.record_count)
            elif isinstance(item, PlacedTransaction):
                next_offset = Offset(item.base_offset + item.record_count)
            if item.producer_id == NO_PRODUCER_ID:
                continue
            if item.window is None:
                windows.pop(item.producer_id, None)
            else:
                windows[item.producer_id] = ProducerWindow.decode(item.window.encode())
        state = PartitionState(self.log, LeaderEpoch(self.state.leader_epoch + 1))
        state.restore(
            copied_through=mark[0],
            replay_from=mark[1],
            next_offset=next_offset,
            log_start=self.log_start if is_ahead else log_start,
            windows=windows,
            open_parts=reversed(parts.values()),
            first_sequences=self.first_sequences(),
        )
        placed: list[Placed] = []
        for frame in self.frames:
            if frame.position >= mark[1]:
                placed += replay_local([frame], state)
        return state, placed

    def first_sequences(self) -> dict[TxId, int]:
        """Of the first batch of each transaction: what the data log's batch says at an open part's first offset."""
        firsts: dict[TxId, int] = {}
        for frame in self.frames:
            record = decode_local(frame.kind, frame.header)
            if isinstance(record, OpenBatch):
                firsts.setdefault(record.txid, record.first_sequence)
        return firsts

    def check_restored(self, copied: int, *, is_ahead: bool) -> PartitionState:
        state, placed = self.restored(copied, is_ahead=is_ahead)
        assert placed == self.placed[copied:], "invariant 4"
        assert state.next_offset == self.state.next_offset
        assert state.log_start == self.state.log_start
        assert state.windows == self.state.windows, "the frames' times are all that a window goes by"
        assert without_memory(state) == without_memory(self.state)
        assert state.pinned_from(self.end) == self.state.pinned_from(self.end)
        return state

    @rule(data=st.data(), is_ahead=st.booleans())
    def restart(self, data: st.DataObject, is_ahead: bool) -> None:
        """A restart anywhere behind the copy gives the state that was live, but for what was memory only."""
        self.state = self.check_restored(data.draw(st.integers(0, len(self.placed))), is_ahead=is_ahead)
        self.transactions = {
            txid: replace(transaction, sealed=transaction.prepared_at is not None)
            for txid, transaction in self.transactions.items()
            if transaction.batches or transaction.prepared_at is not None
        }

    def teardown(self) -> None:
        """At the end: a restart behind any item gives the same."""
        if hasattr(self, "state"):
            for copied in range(len(self.placed) + 1):
                self.check_restored(copied, is_ahead=copied % 2 == 0)

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        """The open transactions, the windows and the next offset are the model's."""
        if not hasattr(self, "state"):
            return
        assert self.state.next_offset == self.next_offset
        assert self.state.log_start == self.log_start
        assert set(self.state.windows) == set(self.producers)
        for producer_id, known in self.producers.items():
            assert self.state.windows[producer_id].epoch == known.epoch
        assert set(self.state.open_transactions) == set(self.transactions)
        for txid, transaction in self.transactions.items():
            held = self.state.held(txid)
            assert held == self.held(transaction)
            assert self.state.open_transactions[txid].first_offset == transaction.first_offset


def without_memory(state: PartitionState) -> dict[TxId, OpenTransaction]:
    """The open transactions but for what a restart forgets."""
    return {
        txid: replace(
            transaction,
            first_sequence=None,
            sealed=transaction.prepared_for is not None,
            written_through=JournalPosition(0),
        )
        for txid, transaction in state.open_transactions.items()
        if transaction.records or transaction.prepared_for is not None
    }


TestPartitionState = pytest.mark.slow(LocalStateMachine.TestCase)
TestPartitionState.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
