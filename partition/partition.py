"""One partition: its journal, the fold over it, and how far its data log can be read.

    Produce ──▶ append ──┐                                                ┌─▶ copier ─▶ data log ─▶ `visibility`
    offsets ──▶ append_record ─▶ decide ─▶ journal.append ─▶ fold ─▶ placed
    coordinator ─▶ begin, seal, commit, discard ──┤
    DeleteRecords, retention ─▶ delete_before ────┘─▶ and then the data log at once, in steps

Everything that changes a log goes the same way, in one step of the event loop: the state *decides* on a record (pure:
`produce`, `modes`, `state`), the journal gets a frame, and the state *folds* the frame. A restart folds the same
frames, and so would a replica that reads them elsewhere: what a frame means is said once, in `state`. Waiting is for
room only, and comes before the step.

A partition belongs to a shard (`ShardOfPartition`), which has one copier and one failure for all its partitions.

Not here: what a request of Kafka looks like, which error code an outcome has, when a transaction ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

import trio

from datalog.batch import BatchHeader
from datalog.interface import DataLogs, UnknownLog
from datalog.interface import NoRoom as NoRoomInDataLogs
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    StorageFailure,
    TxId,
)
from journal.failpoints import reach
from journal.interface import OpenJournal
from journal.journal import NoFiles, NoRoom
from partition import produce
from partition.answers import (
    AbortRefusal,
    ActiveProducer,
    Appended,
    Buffer,
    DuplicateOf,
    PlacedEnd,
    RefusedAppend,
)
from partition.modes import TransactionMode
from partition.placed import Placed
from partition.record_codec import encode_local
from partition.records import Fence, Forget, LocalRecord, Prepared, Start
from partition.state import PartitionState
from partition.visibility import Visibility

DELETE_BATCHES_MAX = 500
"""Deleted in one write block: 1 ms, and 9 of batches of 1 MB."""

DELETE_ROOM_BYTES = 1 << 20
"""What such a block may need on the disk before it gives room back: the pages that the batches hang on."""


class AppendedCounts:
    """What clients have written since the start: batches, and what their headers say of them."""

    __slots__ = ("batches", "records", "size_bytes")

    def __init__(self) -> None:
        self.batches = 0
        self.records = 0
        self.size_bytes = 0

    def note(self, header: BatchHeader) -> None:
        self.batches += 1
        self.records += header.record_count
        self.size_bytes += header.size_bytes


class ShardOfPartition(Protocol):
    """What a partition needs of its shard. Used on the event loop."""

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def data_logs(self) -> DataLogs: ...

    @property
    def failure(self) -> StorageFailure | None:
        """Why no partition of the shard takes writes any more; None while all is well."""
        ...

    @property
    def appended(self) -> AppendedCounts: ...

    def now_ms(self) -> int:
        """The wall clock, in ms since 1970."""
        ...

    def fail(self, failure: StorageFailure) -> None:
        """Refuse all writes from now on."""
        ...

    def refused_for_files(self, refusal: NoFiles) -> None:
        """A write was refused because no file can be opened: nothing has failed."""
        ...

    def place(self, group: tuple[Placed, ...], *, order: str | None = None) -> None:
        """Let these items become visible together, after all that was placed before (see `Copier.submit`)."""
        ...

    def is_copier_behind(self, payload_bytes: int) -> bool: ...

    async def room_in_copier(self, payload_bytes: int) -> None: ...

    def is_copier_outrun(self, batch_bytes: int) -> bool: ...

    def open_transaction_of(self, producer_id: ProducerId) -> TxId | None:
        """The transaction that the producer has open in this shard."""
        ...

    def current_epoch_of(self, producer_id: ProducerId, /) -> ProducerEpoch | None:
        """The current epoch of a transactional producer, as its coordinator has it; None if it is not one's.

        A partition that a new instance never touches learns of the new epoch in no other way (invariant 9).
        """
        ...


_Taken = TypeVar("_Taken", Appended, DuplicateOf)


class Partition:
    """The leader of one log. Made by `partition.store`; used on the event loop."""

    __slots__ = ("_decided", "_shard", "has_gone", "journal", "log", "mode", "state", "swept_through", "visibility")

    def __init__(
        self,
        state: PartitionState,
        journal: OpenJournal,
        visibility: Visibility,
        mode: TransactionMode,
        shard: ShardOfPartition,
    ) -> None:
        self.log: LogId = state.log
        self.state = state
        self.journal = journal
        self.visibility = visibility
        self.mode = mode
        self.swept_through = Offset(0)
        """No batch lies before this offset any more, as far as this run knows."""
        self.has_gone = False
        """The log is being deleted, and takes nothing more."""
        self._shard = shard
        self._decided: trio.Event | None = None
        """Set when a transaction is decided, if somebody waits for that."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Under which it is led in this run."""
        return self._shard.leader_epoch

    @property
    def is_replicated(self) -> bool:
        """Whether the journal is on a replicated log: until it is accepted, what was appended is in memory alone."""
        return self.journal.may_have_another_owner

    # --- writing, in one step -----------------------------------------------------------------

    def write(self, record: LocalRecord, payload: Buffer = b"") -> None:
        """Append a record that was decided on, fold it, and let the copier have what it places.

        Raises StorageFailure.
        """
        item = self.fold(record, payload)
        if item is not None:
            self._shard.place((item,))

    def fold(self, record: LocalRecord, payload: Buffer = b"") -> Placed | None:
        """Append a record and fold it; the caller hands what it places to the shard. Raises StorageFailure."""
        # After a failure the copier must get nothing more: it might pass a decision that was not handed to it.
        self._raise_if_failed()
        kind, header = encode_local(record)
        journal, shard = self.journal, self._shard
        now_ms = shard.now_ms()
        try:
            position = journal.append(kind, header, (payload,) if payload else (), timestamp_ms=now_ms)
        except StorageFailure as failure:
            # Nothing of a START was written if there is no room for it, and whoever wants it can wait.
            if not (isinstance(record, Start) and isinstance(failure, NoRoom)):
                shard.fail(failure)
            raise
        item = self.state.fold(record, position, journal.end, leader_epoch=shard.leader_epoch, timestamp_ms=now_ms)
        if self._decided is not None:
            self.wake()
        return item

    def _raise_if_failed(self) -> None:
        failure = self._shard.failure
        if failure is not None:
            raise failure

    # --- room, which may have to be waited for ------------------------------------------------

    def has_place(self, payload_bytes: int) -> bool:
        """Whether a batch of so many bytes can be appended in this step. False as well if it would be refused."""
        shard = self._shard
        can_write = not self.has_gone and shard.failure is None
        return can_write and self.journal.has_room(payload_bytes) and not shard.is_copier_behind(payload_bytes)

    async def _wait_for_place(self, payload_bytes: int) -> bool:
        """`wait_for_room`, once the copier's backlog has room as well."""
        if self._shard.is_copier_behind(payload_bytes):
            await self._shard.room_in_copier(payload_bytes)
        return await self.wait_for_room(payload_bytes)

    async def wait_for_room(self, payload_bytes: int) -> bool:
        """Return in a step in which the journal has room for a frame with so many bytes; False if the log has gone.

        Raises StorageFailure; NoFiles refuses this write alone.
        """
        shard, journal = self._shard, self.journal
        # Again after each wait: somebody else, who waited for the same room, may have taken it.
        while not self.has_gone and shard.failure is None and not journal.has_room(payload_bytes):
            try:
                await journal.make_room(payload_bytes)
            except NoFiles as refusal:
                shard.refused_for_files(refusal)
                raise
            except StorageFailure as failure:
                if not self.has_gone:  # else it was the deletion that closed the journal
                    shard.fail(failure)
        if self.has_gone:
            return False
        self._raise_if_failed()
        return True

    # --- what clients write -------------------------------------------------------------------

    async def append(
        self, data: Buffer, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        """Write one checked batch to the journal; its flush is under way if it has an offset.

        `data` is the whole batch, read before this returns and not kept. `came_in` is what its producer had open when
        the batch came, if it is transactional: it goes into no later transaction (MUST_ABORT, or FENCED). A repetition
        is answered as one also when its transaction has ended: clients use the sequences of refused batches again.
        Waits only for room: in the journal (it is made ahead), and in the copier's backlog. Cancelled: the batch was
        appended or not.
        """
        try:
            if not await self._wait_for_place(len(data)):
                return RefusedAppend.UNKNOWN_LOG
        except StorageFailure:
            return self._unwritten(header)
        return self.append_at_once(data, header, came_in)

    def append_at_once(
        self, data: Buffer, header: BatchHeader, came_in: TxId | None
    ) -> Appended | DuplicateOf | RefusedAppend:
        """`append`, in a step in which `has_place` says that nothing is to be waited for."""
        try:
            decision = self._decide(header, came_in)
            if isinstance(decision, RefusedAppend):
                return decision
            if isinstance(decision, DuplicateOf):
                return self._once_accepted(self._at_once_if_copied(decision, header))
            self.write(decision, data)
        except StorageFailure:
            return self._unwritten(header)
        self._shard.appended.note(header)
        return self._once_accepted(produce.appended(decision, through=self.state.folded_through))

    def _unwritten(self, header: BatchHeader) -> DuplicateOf | RefusedAppend:
        """If the batch is in the journal from an earlier try, "nothing was written" would be untrue."""
        repeated = produce.answered_before(self.state, header)
        return RefusedAppend.STORAGE if repeated is None else self._at_once_if_copied(repeated, header)

    def _at_once_if_copied(self, repeated: DuplicateOf, header: BatchHeader) -> DuplicateOf:
        """The result of a repeated batch, which waits for no flush if its first try is copied: only what is durable is.

        Else a journal that has failed since would have a client take for lost what is kept.
        """
        base = repeated.base_offset
        if base is None or base + header.record_count > self.visibility.high_watermark:
            return repeated
        return replace(repeated, durable_at=self.journal.durable)

    def _once_accepted(self, outcome: _Taken) -> _Taken:
        """The outcome, answered when the batch is accepted, if the journal is on a replicated log.

        An owner that was deposed, and does not know it, may have an earlier transaction of the producer open: the batch
        would go there, and the producer commit, with the present owner, a transaction without it.
        """
        if self.journal.may_have_another_owner and outcome.durable_at is None:
            return replace(outcome, durable_at=self.state.folded_through)
        return outcome

    async def accepted(self) -> None:
        """On a replicated log: return when all that was appended so far is accepted. Raises StorageFailure."""
        if self.journal.may_have_another_owner:
            await self.durable(self.state.folded_through)

    def _decide(self, header: BatchHeader, came_in: TxId | None) -> produce.Decision:
        producer_id, shard = header.producer_id, self._shard
        if not header.transactional:
            return produce.plain(
                self.state,
                header,
                current_epoch=shard.current_epoch_of(producer_id),
                open_transaction=shard.open_transaction_of(producer_id),
            )
        txid = produce.open_transaction(shard.open_transaction_of(producer_id), header.producer_epoch)
        if txid is RefusedAppend.FENCED:
            return txid
        if isinstance(txid, TxId) and txid == came_in:
            return produce.transactional(self.state, header, txid, self.mode)
        return produce.outside(
            self.state,
            header,
            has_ended=came_in is not None and came_in.epoch == header.producer_epoch,
            current_epoch=shard.current_epoch_of(producer_id),
        )

    def lowest_offset(self, header: BatchHeader) -> Offset | None:
        """The smallest offset that the first record of a batch can still get; it gets this one or a larger one.

        The batch was taken, and waits in its open transaction for its place. None if it does not: the transaction has
        ended, or the log is of marker mode, where batches have their offsets.
        """
        opened = self._shard.open_transaction_of(header.producer_id)
        txid = produce.open_transaction(opened, header.producer_epoch)
        return (
            None if isinstance(txid, RefusedAppend) else produce.lowest_offset(self.state, txid, header.base_sequence)
        )

    async def append_record(
        self, payload: bytes, decide: Callable[[PartitionState], LocalRecord | None]
    ) -> RefusedAppend | None:
        """Write the record on which `decide` decides; its flush is under way if it is decided.

        `decide` is asked in the very step of the append, after all waiting for room; None from it: nothing is written.
        Cancelled: it was written or not.
        """
        try:
            if not await self._wait_for_place(len(payload)):
                return RefusedAppend.UNKNOWN_LOG
            record = decide(self.state)
            if record is not None:
                self.write(record, payload)
        except StorageFailure:
            return RefusedAppend.STORAGE
        return None

    # --- what its coordinator says ------------------------------------------------------------

    async def begin(self, txid: TxId) -> LeaderEpoch | str:
        """Open the transaction: the leader epoch it was begun in, or why not, in words. Idempotent.

        A fence is written the first time that an epoch of a producer is seen here. Raises StorageFailure.
        """
        if not await self.wait_for_room(0):
            return RefusedAppend.UNKNOWN_LOG.value
        refusal = self.state.check_begin(txid)
        if refusal is not None:
            return refusal.reason.value
        if self.state.needs_fence(txid.producer_id, txid.epoch):
            self.write(Fence(txid.producer_id, txid.epoch))
        return self.state.begin(txid)

    async def prepare(self, txid: TxId, coordinator: ShardNumber) -> JournalPosition | str:
        """Prepare for another shard's coordinator: through where the journal must be on disk, or why not, in words.

        The transaction, which has lost no records, takes no more batches; behind them PREPARED is written, unless it
        stands there, or the transaction is applied. Idempotent. Raises StorageFailure.
        """
        if not await self.wait_for_room(0):
            return RefusedAppend.UNKNOWN_LOG.value
        state = self.state
        if state.applied(txid) is not None:
            return self.journal.durable
        held = state.held(txid)
        if held is None:
            # Begun and not written to: a restart has forgotten that, and not the fence.
            begun = state.resume(txid)
            if isinstance(begun, str):
                return begun
            held = state.held(txid)
            assert held is not None
        if held.prepared_for is None:
            self.write(Prepared(txid, held.records, coordinator))
        through = state.written_through(txid)
        assert through is not None, "PREPARED stands for an open transaction"
        return through

    @property
    def in_doubt(self) -> Set[TxId]:
        """The transactions here that another shard's coordinator may have committed."""
        return self.state.in_doubt

    @property
    def may_lack_commits(self) -> bool:
        """Whether another shard's coordinator may have committed what is placed here only after a restart.

        The shard has failed, and the log has something prepared.
        """
        return self._shard.failure is not None and bool(self.state.in_doubt)

    def unwritten_through(self, txid: TxId) -> JournalPosition | None:
        """Through where the journal must be flushed for all of the transaction to be on disk; None if it is."""
        through = self.state.written_through(txid)
        through = self.journal.end if through is None else through
        return through if self.journal.durable < through else None

    def commit(self, txid: TxId, number: ApplyNumber, *, timestamp_ms: int) -> Placed | None:
        """Write the decision that the transaction is committed; the caller hands what it places to the shard.

        None if nothing of it is to be placed here: then it may be discarded. Raises StorageFailure.
        """
        record = self.mode.commit(
            self.state, txid, number, coordinator_epoch=self._shard.leader_epoch, now_ms=timestamp_ms
        )
        if record is None:
            return None
        item = self.fold(record)
        assert item is not None, f"a commit places something: {record}"
        return item

    def discard(self, txid: TxId) -> None:
        """Write that the transaction, which is open here, is aborted. Raises StorageFailure."""
        shard = self._shard
        self.write(self.mode.abort(self.state, txid, coordinator_epoch=shard.leader_epoch, now_ms=shard.now_ms()))

    def open_for_abort(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> TxId | AbortRefusal | None:
        """The transaction that an administrator's abort marker means here; None if the producer has nothing open."""
        if not self.mode.has_markers:
            return AbortRefusal.NO_MARKERS
        state = self.state
        window, txid = state.windows.get(producer_id), state.open_of(producer_id)
        if window is not None and producer_epoch < window.epoch:
            return AbortRefusal.INVALID_PRODUCER_EPOCH
        if txid is None:
            return None
        if producer_epoch != txid.epoch:
            return AbortRefusal.INVALID_PRODUCER_EPOCH
        if window is not None and coordinator_epoch < window.coordinator_epoch:
            return AbortRefusal.COORDINATOR_FENCED
        return txid

    # --- how far it can be read ---------------------------------------------------------------

    async def durable(self, through: JournalPosition) -> None:
        """Return once the journal is on disk through `through`, or the log is gone. Raises StorageFailure."""
        try:
            await self.journal.flush(through)
        except StorageFailure as failure:
            if not self.has_gone:  # else it was the deletion that closed the journal
                self._shard.fail(failure)
                raise

    async def keep_pace(self, end: Offset, batch_bytes: int) -> None:
        """Return once the log is copied up to `end`, or cannot be; at once if such batches do not outrun the copier.

        So a producer is no faster than the copy.
        """
        if self._shard.is_copier_outrun(batch_bytes):
            with suppress(StorageFailure):
                await self.visibility.reach(end)

    async def decided(self, txids: Collection[TxId]) -> bool:
        """Return once none of these is open here, or the log is gone. False: its shard has failed before that."""
        while not (self.has_gone or self._shard.failure or self._are_decided(txids)):
            if self._decided is None:
                self._decided = trio.Event()
            await self._decided.wait()
        return self.has_gone or self._are_decided(txids)

    def _are_decided(self, txids: Collection[TxId]) -> bool:
        return self.state.open_transactions.keys().isdisjoint(txids)

    def wake(self) -> None:
        """Let those look again who wait for a decision."""
        if self._decided is not None:
            self._decided.set()
            self._decided = None

    @property
    def placed_end(self) -> PlacedEnd:
        """Where both ends will be when all that is placed by now can be read.

        Everything that was answered with an offset, and every transaction that was decided, is placed (invariant 13);
        but for those in doubt, of which another shard's coordinator has not told the decision yet, and for those that
        this one's has not placed yet (`Coordinator.not_placed`).
        """
        state, visibility = self.state, self.visibility
        next_offset = state.next_offset
        if next_offset == visibility.high_watermark or not self.mode.has_markers:
            stable = visibility.last_stable if self.mode.has_markers else next_offset
        else:
            begun = (each.first_offset for each in state.open_transactions.values())
            stable = min((it for it in begun if it is not None), default=next_offset)
        # DeleteRecords may have taken the beginning of an open transaction.
        return PlacedEnd(next_offset, max(stable, visibility.log_start))

    @property
    def journal_bytes(self) -> int:
        """What the journal holds, without the room ahead of its end."""
        return self.journal.end - self.journal.start

    def describe_producers(self) -> Sequence[ActiveProducer]:
        """What the partition remembers of its producers."""
        state = self.state
        open_here = {
            txid.producer_id: transaction
            for txid, transaction in state.open_transactions.items()
            if transaction.records
        }
        return [
            ActiveProducer(
                producer_id=producer_id,
                producer_epoch=window.epoch,
                last_sequence=window.batches[-1].last_sequence if window.batches else -1,
                last_timestamp_ms=window.last_use_ms,
                in_transaction=producer_id in open_here,
                first_offset=open_here[producer_id].first_offset if producer_id in open_here else None,
                coordinator_epoch=window.coordinator_epoch,
            )
            for producer_id, window in sorted(state.windows.items())
        ]

    def read_open(self) -> Mapping[TxId, Sequence[bytes]]:
        """The payloads of all batches that the journal holds for open transactions. For a worker thread.

        Raises CorruptStorage, StorageFailure.
        """
        journal = self.journal
        return {
            txid: [bytes(journal.read_payload(batch.position, batch.frame_bytes)) for batch in open_here.batches]
            for txid, open_here in self.state.open_transactions.items()
        }

    # --- what is deleted and forgotten --------------------------------------------------------

    @property
    def has_remains(self) -> bool:
        """Whether batches may lie before the log's start: a deletion was cut short, in this run or an earlier one."""
        return self.swept_through < self.visibility.log_start

    async def delete_before(self, offset: Offset) -> Offset | None:
        """Let the log begin at `offset`, durably; answers where it begins then, None if it has gone.

        `offset` is at most the high watermark. A log that begins there or later stays as it is. The journal says so
        first; then the start moves at once, and the batches before it go in steps, between which others write; a later
        call removes what is left (`has_remains`). Cancelled: the log begins there, now or before long, or where it did.
        Raises StorageFailure; NoRoom, of the journal or of the data logs, if the disk or the map is full, or if no file
        can be opened: that alone refuses no other writes.
        """
        self._raise_if_failed()
        if not await self._write_start(offset):
            return None
        return await self._delete_through(offset)

    async def _write_start(self, offset: Offset) -> bool:
        """Return once each start that this log was told, this one included, is durable; False if the log has gone."""
        state, journal = self.state, self.journal
        assert offset <= state.next_offset, (self.log, offset, state.next_offset)
        try:
            if offset > state.log_start:
                # Else a full disk would be met by the copier, when it comes to the frame, and stop it for good.
                await trio.to_thread.run_sync(self._make_room_to_delete)
            if offset > state.log_start and not journal.has_room(0):
                # A START may take of what is kept for decisions, as it gives room back; but not if room can be made.
                with suppress(NoRoom):
                    await journal.make_room(0)
            if offset > state.log_start and not self.has_gone:  # still
                self.write(Start(offset))
            # Whatever `fsync` says: what a client was told to be gone does not come back.
            await journal.sync(state.started_through)
        except (NoRoom, NoRoomInDataLogs):
            raise
        except StorageFailure as failure:
            if not self.has_gone:  # else it was the deletion that closed the journal
                self._shard.fail(failure)
                raise
        return not self.has_gone

    async def sweep(self) -> None:
        """Delete what `has_remains`; a replica does it, too. Cancelled, and raises: as `delete_before`."""
        self._raise_if_failed()
        await self._delete_through(Offset(0))

    async def _delete_through(self, offset: Offset) -> Offset | None:
        """Move the data log's start and delete all before it; answers where it begins then, None if it has gone.

        Not synced: if a loss of power undoes the last write of the data logs, the journal still says where they begin.
        """
        visibility = self.visibility
        try:
            start, more = offset, True
            while more:
                start = max(start, visibility.log_start)
                more = await trio.to_thread.run_sync(self._delete_some, offset)
                visibility.begin_at(offset)
            self.swept_through = max(self.swept_through, start)
        except UnknownLog:
            return None  # dropped meanwhile, with all its records
        except NoRoomInDataLogs:
            raise
        except StorageFailure as failure:
            self._shard.fail(failure)
            raise
        return visibility.log_start

    def _make_room_to_delete(self) -> None:
        """Raises NoRoom, and nothing is tried. In a worker thread."""
        with self._shard.data_logs.write(room_bytes=DELETE_ROOM_BYTES):
            pass

    def _delete_some(self, offset: Offset) -> bool:
        """Move the start and delete some of what lies before it; whether there may be more. In a worker thread."""
        with self._shard.data_logs.write(room_bytes=DELETE_ROOM_BYTES) as writer:
            deleted_bytes = writer.delete_before(self.log, offset, batches_max=DELETE_BATCHES_MAX)
            reach("retention.delete.before_commit")
        reach("retention.delete.after_commit")
        return deleted_bytes > 0

    def forget_producers(self, *, unused_since_ms: int) -> None:
        """Forget the producers that were last used before, as far as the journal has room. In one step."""
        for producer_id in self.state.expired(unused_since_ms=unused_since_ms):
            if self._shard.failure is None and self.journal.has_room(0):
                self.write(Forget(producer_id))

    def leave(self) -> OpenJournal:
        """The log is being deleted: it takes nothing more, and all who wait for it return. Answers its journal."""
        self.has_gone = True
        self.wake()
        self.visibility.close()
        return self.journal
