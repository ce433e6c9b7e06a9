"""What a coordinator has this node's leaders do: begin, seal, prepare, place, discard.

    begin ─▶ Fence           seal ─▶ nothing is written, and no more batches are taken
    prepare ─▶ flush         place ─▶ the decision of every log, in one step ─▶ the copier, as one group

All of a transaction's logs on this node get their decision in one step without a checkpoint, and go to the copier as
one group: this is what makes them visible in one LMDB transaction (invariant 7) and in the group's order (invariant 6).
Which record a decision is, each log's mode says (`partition.modes`); a transaction may have logs of both.
A log that was added and not written to takes part as well, with 0 records: in marker mode it gets its marker with the
others, also after a crash in between; in journal mode nothing is placed there, and its leader forgets the transaction.

The lanes of a group commit are prepared with one flush of each of their logs (`prepare_together`), and placed in one
step and as one group (`place_together`): what several of them have written to one log follows each other there. That
they belong together, their common apply number tells; also after a crash that has destroyed some of the decisions, for
the rest is placed again under the same number.

In a log of marker mode an administrator may ask for the abort of what a producer has open (`open_for_abort`). It is
aborted by its coordinator, as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog

from coordinator.messages import (
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Prepare,
    Prepared,
    Resumed,
)
from fairlog.led_logs import LedLog, LedLogStore
from fairlog.led_writer import LedWriter
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.failpoints import planted, reach
from journal.journal import Journal, NoFiles
from partition.answers import AbortRefusal, RefusedAppend
from partition.placed import Placed
from partition.producer_window import AppliedTransaction
from partition.records import Fence

logger = structlog.get_logger("fairlog.participants")


class LocalParticipants:
    """This node's part in transactions. Implements `coordinator.messages.Participants`."""

    def __init__(self, writer: LedWriter, store: LedLogStore) -> None:
        self._writer = writer
        self._store = store
        self._tell_decided: Callable[[LogId, TxId, Offset | None], None] = _told_to_nobody
        self._open: dict[ProducerId, TxId] = {}
        """The transaction that each producer has open on this node: Produce names the producer only."""
        self._found_open: dict[TxId, list[LogId]] = {}
        """While the node recovers: what the journals have of transactions that are not decided."""
        self._resumed: set[TxId] = set()
        """Of these, what its coordinator goes on with; it may be sealed already."""
        self._next_apply_number = 0

    def tell_decided_offsets(self, decided: Callable[[LogId, TxId, Offset | None], None]) -> None:
        """See `fairlog.leaders.LocalLeaders.tell_decided_offsets`."""
        self._tell_decided = decided

    def recall(self, leader: LedLog) -> None:
        """A log with a past is led: note what is open there, and go on after the apply numbers that it knows."""
        for txid in leader.state.open_transactions:
            self._found_open.setdefault(txid, []).append(leader.state.log)
        for window in leader.state.windows.values():
            for applied in window.applied:
                self._next_apply_number = max(self._next_apply_number, applied.apply_number + 1)

    def discard_orphans(self) -> None:
        """Abort what is open and was neither resumed nor decided by its coordinator: it belongs to no one."""
        for txid, logs in self._found_open.items():
            for log in logs:
                leader = self._writer.led.get(log)
                if txid not in self._resumed and leader is not None and leader.state.held(txid) is not None:
                    logger.info("orphan discarded", log=str(log), txid=str(txid))
                    self._discard_in(log, leader, txid)
        self._found_open.clear()
        self._resumed.clear()

    def open_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> TxId | RefusedAppend:
        """The transaction that the producer has open on this node, or why there is none for it."""
        txid = self._open.get(producer_id)
        if txid is None or txid.epoch < epoch:
            return RefusedAppend.NOT_IN_TRANSACTION
        return RefusedAppend.FENCED if txid.epoch > epoch else txid

    def open_of(self, producer_id: ProducerId) -> TxId | None:
        """The transaction that the producer has open on this node, of whatever epoch."""
        return self._open.get(producer_id)

    # --- what the coordinator says ------------------------------------------------------------

    async def begin(self, message: Begin) -> Begun:
        """See `Participants.begin`. The fence is written the first time an epoch of a producer is seen in a log."""
        self._writer.raise_if_failed()
        epochs: dict[LogId, LeaderEpoch] = {}
        refused: dict[LogId, str] = {}
        for log in message.logs:
            try:
                leader = await self._writer.leader_with_room(log, 0)
            except NoFiles as failure:
                refused[log] = str(failure)
                continue
            if leader is None:
                refused[log] = "this node does not lead the log"
                continue
            refusal = leader.state.check_begin(message.txid)
            if refusal is not None:
                refused[log] = refusal.reason.value
                continue
            if leader.state.needs_fence(message.txid.producer_id, message.txid.epoch):
                self._writer.write(leader, Fence(message.txid.producer_id, message.txid.epoch))
            epochs[log] = leader.state.begin(message.txid)
        if epochs:
            self._open[message.txid.producer_id] = message.txid
        return Begun(epochs, refused)

    def resume(self, message: Begin) -> Resumed:
        """See `Participants.resume`. Its batches are known from the journals; from here on it takes more of them."""
        txid = message.txid
        epochs: dict[LogId, LeaderEpoch] = {}
        lost: dict[LogId, str] = {}
        for log in dict.fromkeys((*message.logs, *self._found_open.get(txid, ()))):
            leader = self._writer.led.get(log)
            if leader is None:
                continue
            answer = leader.state.resume(txid)
            if isinstance(answer, str):
                lost[log] = answer
            else:
                epochs[log] = answer
        if not lost:
            self._open[txid.producer_id] = txid
            self._resumed.add(txid)
        return Resumed(epochs, lost)

    def seal(self, txid: TxId, logs: tuple[LogId, ...]) -> Mapping[LogId, Expected]:
        """See `Participants.seal`."""
        if self._open.get(txid.producer_id) == txid:
            del self._open[txid.producer_id]
        expected: dict[LogId, Expected] = {}
        for log in logs:
            leader = self._writer.led.get(log)
            held = None if leader is None else leader.state.seal(txid)
            if held is not None:
                expected[log] = Expected(held.leader_epoch, held.records)
        return expected

    async def prepare(self, message: Prepare) -> Prepared:
        """See `Participants.prepare`."""
        return await self.prepare_together((message,))

    async def prepare_together(self, messages: Sequence[Prepare]) -> Prepared:
        """See `Participants.prepare_together`: all flushes are started before the first is waited for.

        A node that refuses writes prepares nothing: it could not place what the producer is told to be committed.
        """
        self._writer.raise_if_failed()
        refused: dict[LogId, str] = {}
        gone: dict[LogId, str] = {}
        flushing: dict[LogId, tuple[Journal, JournalPosition]] = {}
        for message in messages:
            txid = message.txid
            for log, expected in message.expected.items():
                leader = self._writer.led.get(log)
                if leader is None:
                    logger.warning("transaction goes without a deleted log", txid=str(txid), log=str(log))
                    continue
                reason = leader.state.holds(txid, expected.leader_epoch, expected.records)
                if reason is not None:
                    refused.setdefault(log, reason)
                    if not leader.journal.begun:
                        gone[log] = str(self._store.journal_directory(log))
                elif expected.records:
                    through = leader.state.written_through(txid)
                    through = leader.journal.end if through is None else through
                    if leader.journal.durable < through:
                        known = flushing.get(log)
                        flushing[log] = leader.journal, through if known is None else max(known[1], through)
        if planted("skip-flush-of-one-participant"):
            flushing = dict(list(flushing.items())[1:])
        for journal, _ in flushing.values():
            journal.start_flush()
        for log, (journal, through) in flushing.items():
            try:
                await journal.flush(through)
            except StorageFailure as failure:
                if log in self._writer.led:
                    self._writer.fail(failure)
                    refused[log] = str(failure)
        return Prepared(refused, gone)

    def place(self, message: ApplyCommit) -> None:
        """See `Participants.place`."""
        self.place_together((message,))

    def place_together(self, messages: Sequence[ApplyCommit]) -> None:
        """See `Participants.place_together`: no checkpoint from the first decision to the hand-over of the group."""
        writer = self._writer
        writer.raise_if_failed()
        number = self._apply_number(messages)
        group: list[Placed] = []
        offsets_decided: list[tuple[LogId, TxId]] = []
        unwritten: list[tuple[LogId, LedLog, TxId]] = []
        try:
            for message in messages:
                txid = message.txid
                for log in message.logs[: -1 if planted("leave-one-log-undecided") else None]:
                    leader = writer.led.get(log)
                    if leader is None or leader.state.applied(txid) is not None:
                        continue
                    record = leader.mode.commit(
                        leader.state,
                        txid,
                        number,
                        coordinator_epoch=writer.leader_epoch,
                        now_ms=message.timestamp_ms,
                    )
                    if record is None:
                        unwritten.append((log, leader, txid))
                        continue
                    item = writer.fold(leader, record)
                    assert item is not None, f"a commit places something: {record}"
                    group.append(item)
                    if log.kind == LogKind.OFFSETS.value:
                        offsets_decided.append((log, txid))
                    reach("coordinator.place.between_logs")
        except (StorageFailure, OSError) as failure:
            # Some logs hold the decision and some do not: nothing of it may be copied in this run.
            writer.fail(StorageFailure(str(failure)))
            raise
        if group:
            writer.submit(tuple(group), order=messages[0].sink)
        for log, txid in offsets_decided:
            self._tell_decided(log, txid, writer.led[log].state.next_offset)
        for log, leader, txid in unwritten:
            if leader.state.held(txid) is not None:
                self._discard_in(log, leader, txid)

    def _apply_number(self, messages: Sequence[ApplyCommit]) -> ApplyNumber:
        """The one under which a part of any of them was placed before, else a new one."""
        for message in messages:
            survived = self.surviving_apply_number(message.txid, message.logs)
            if survived is not None:
                return survived
        number = ApplyNumber(self._next_apply_number)
        self._next_apply_number += 1
        return number

    def surviving_apply_number(self, txid: TxId, logs: Iterable[LogId]) -> ApplyNumber | None:
        """See `Participants.surviving_apply_number`."""
        for log in logs:
            leader = self._writer.led.get(log)
            applied = None if leader is None else leader.state.applied(txid)
            if applied is not None:
                return applied.apply_number
        return None

    def placed(self, message: ApplyCommit) -> tuple[Placement, ...]:
        """See `Participants.placed`.

        In a log of marker mode, where others' records stand between those of the transaction, a place tells where its
        first one is, and how many there are.
        """
        return tuple(
            Placement(log, applied.base_offset, applied.record_count) for log, _, applied in self._parts_of(message)
        )

    async def applied(self, message: ApplyCommit) -> Applied:
        """See `Participants.applied`. Raises StorageFailure if this run will not get there."""
        (applied,) = await self.applied_together((message,))
        return applied

    async def applied_together(self, messages: Sequence[ApplyCommit]) -> Sequence[Applied]:
        """See `Participants.applied_together`.

        What is waited for is found before the first wait: in a log of marker mode it is all that stands there by then,
        and asked anew for each transaction it would move on with what others write.
        """
        places = [self.placed(message) for message in messages]
        visible_at: dict[LogId, Offset] = {}
        for message in messages:
            for log, led, applied in self._parts_of(message):
                visible_at[log] = max(visible_at.get(log, Offset(0)), led.mode.visible_at(led.state, applied))
        for log, offset in visible_at.items():
            await self._writer.visible(log, offset)
        led = self._writer.led
        return [Applied(tuple(place for place in placed if place.log in led)) for placed in places]

    def _parts_of(self, message: ApplyCommit) -> Iterator[tuple[LogId, LedLog, AppliedTransaction]]:
        """Where records of the transaction were placed, in the order of its logs."""
        for log in message.logs:
            leader = self._writer.led.get(log)
            applied = None if leader is None else leader.state.applied(message.txid)
            if leader is not None and applied is not None and applied.record_count:
                yield log, leader, applied

    def discard(self, message: DiscardTransaction) -> None:
        """See `Participants.discard`."""
        if self._open.get(message.txid.producer_id) == message.txid:
            del self._open[message.txid.producer_id]
        for log in message.logs:
            leader = self._writer.led.get(log)
            if leader is not None and leader.state.held(message.txid) is not None:
                self._discard_in(log, leader, message.txid)

    def _discard_in(self, log: LogId, leader: LedLog, txid: TxId) -> None:
        writer = self._writer
        record = leader.mode.abort(leader.state, txid, coordinator_epoch=writer.leader_epoch, now_ms=writer.now_ms())
        try:
            writer.write(leader, record)
        except StorageFailure as failure:
            # Undecided is as good as aborted: the next start aborts it, and until then nothing more is written.
            logger.warning("abort not written", log=str(log), txid=str(txid), reason=str(failure))
        if log.kind == LogKind.OFFSETS.value:
            self._tell_decided(log, txid, None)

    # --- what an administrator says -----------------------------------------------------------

    def open_for_abort(
        self, log: LogId, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: int
    ) -> TxId | AbortRefusal | None:
        """See `fairlog.broker.Leaders.open_for_abort`."""
        leader = self._writer.led.get(log)
        if leader is None:
            return AbortRefusal.UNKNOWN_LOG
        if not leader.mode.has_markers:
            return AbortRefusal.NO_MARKERS
        state = leader.state
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


def _told_to_nobody(log: LogId, txid: TxId, visible_at: Offset | None) -> None:
    """Nobody keeps an index of pending offsets (yet)."""
