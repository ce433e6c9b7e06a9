"""What a coordinator has the partitions of a shard do: begin, seal, prepare, place, discard.

    begin ─▶ Fence           seal ─▶ nothing is written, and no more batches are taken
    prepare ─▶ flush         place ─▶ the decision of every log, in one step ─▶ the copier, as one group

All of a transaction's logs in the shard get their decision in one step without a checkpoint, and go to the copier as
one group: this is what makes them visible in one LMDB transaction (invariant 7) and in the group's order (invariant 6).
Which record a decision is, each log's mode says (`partition.modes`); a transaction may have logs of both.
A log that was added and not written to takes part as well, with 0 records: in marker mode it gets its marker with the
others, also after a crash in between; in journal mode nothing is placed there, and the transaction is forgotten.

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
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    Placement,
    StorageFailure,
    TxId,
)
from journal.failpoints import planted, reach
from journal.journal import NoFiles
from partition.answers import RefusedAppend
from partition.partition import Partition
from partition.placed import Placed
from partition.producer_window import AppliedTransaction
from shard.partitions import Partitions

logger = structlog.get_logger("fairlog.participant")


class Participant:
    """A shard's part in transactions. Implements `coordinator.messages.Participants`."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        offsets_decided: Callable[[LogId, TxId, Offset | None], None] = lambda _log, _txid, _visible_at: None,
    ) -> None:
        """`offsets_decided` is called when a transaction that wrote to an offsets log is decided.

        It gets the offset of that log at which its part is visible, or None if it is discarded. It must not raise.
        """
        self._partitions = partitions
        self._open = partitions.open_by_producer
        self._offsets_decided = offsets_decided
        self._found_open: dict[TxId, list[LogId]] = {}
        """While the shard recovers: what the journals have of transactions that are not decided."""
        self._resumed: set[TxId] = set()
        """Of these, what its coordinator goes on with; it may be sealed already."""
        self._next_apply_number = 0

    def recall(self, partition: Partition) -> None:
        """A log with a past is led: note what is open there, and go on after the apply numbers that it knows."""
        for txid in partition.state.open_transactions:
            self._found_open.setdefault(txid, []).append(partition.state.log)
        for window in partition.state.windows.values():
            for applied in window.applied:
                self._next_apply_number = max(self._next_apply_number, applied.apply_number + 1)

    def discard_orphans(self) -> None:
        """Abort what is open and was neither resumed nor decided by its coordinator: it belongs to no one."""
        for txid, logs in self._found_open.items():
            for log in logs:
                partition = self._partitions.get(log)
                if txid not in self._resumed and partition is not None and partition.state.held(txid) is not None:
                    logger.info("orphan discarded", log=str(log), txid=str(txid))
                    self._discard_in(partition, txid)
        self._found_open.clear()
        self._resumed.clear()

    # --- what the coordinator says ------------------------------------------------------------

    async def begin(self, message: Begin) -> Begun:
        """See `Participants.begin`. The fence is written the first time an epoch of a producer is seen in a log."""
        self._partitions.raise_if_failed()
        epochs: dict[LogId, LeaderEpoch] = {}
        refused: dict[LogId, str] = {}
        for log in message.logs:
            try:
                partition = self._partitions.get(log)
                answer = RefusedAppend.UNKNOWN_LOG.value if partition is None else await partition.begin(message.txid)
            except NoFiles as failure:
                answer = str(failure)
            if isinstance(answer, str):
                refused[log] = answer
            else:
                epochs[log] = answer
        if epochs:
            self._open[message.txid.producer_id] = message.txid
        return Begun(epochs, refused)

    def resume(self, message: Begin) -> Resumed:
        """See `Participants.resume`. Its batches are known from the journals; from here on it takes more of them."""
        txid = message.txid
        epochs: dict[LogId, LeaderEpoch] = {}
        lost: dict[LogId, str] = {}
        for log in dict.fromkeys((*message.logs, *self._found_open.get(txid, ()))):
            partition = self._partitions.get(log)
            if partition is None:
                continue
            answer = partition.state.resume(txid)
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
            partition = self._partitions.get(log)
            held = None if partition is None else partition.state.seal(txid)
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
        self._partitions.raise_if_failed()
        refused: dict[LogId, str] = {}
        gone: dict[LogId, str] = {}
        flushing: dict[LogId, tuple[Partition, JournalPosition]] = {}
        for message in messages:
            txid = message.txid
            for log, expected in message.expected.items():
                partition = self._partitions.get(log)
                if partition is None:
                    logger.warning("transaction goes without a deleted log", txid=str(txid), log=str(log))
                    continue
                reason = partition.state.holds(txid, expected.leader_epoch, expected.records)
                if reason is not None:
                    refused.setdefault(log, reason)
                    if not partition.journal.begun:
                        gone[log] = str(self._partitions.journal_directory(log))
                elif expected.records:
                    through = partition.unwritten_through(txid)
                    if through is not None:
                        known = flushing.get(log)
                        flushing[log] = partition, through if known is None else max(known[1], through)
        if planted("skip-flush-of-one-participant"):
            flushing = dict(list(flushing.items())[1:])
        for partition, _ in flushing.values():
            partition.journal.start_flush()
        for log, (partition, through) in flushing.items():
            try:
                await partition.durable(through)
            except StorageFailure as failure:
                refused[log] = str(failure)
        return Prepared(refused, gone)

    def place(self, message: ApplyCommit) -> None:
        """See `Participants.place`."""
        self.place_together((message,))

    def place_together(self, messages: Sequence[ApplyCommit]) -> None:
        """See `Participants.place_together`: no checkpoint from the first decision to the hand-over of the group."""
        partitions = self._partitions
        partitions.raise_if_failed()
        number = self._apply_number(messages)
        group: list[Placed] = []
        offsets: list[tuple[Partition, TxId]] = []
        unwritten: list[tuple[Partition, TxId]] = []
        try:
            for message in messages:
                txid = message.txid
                for log in message.logs[: -1 if planted("leave-one-log-undecided") else None]:
                    partition = partitions.get(log)
                    if partition is None or partition.state.applied(txid) is not None:
                        continue
                    item = partition.commit(txid, number, timestamp_ms=message.timestamp_ms)
                    if item is None:
                        unwritten.append((partition, txid))
                        continue
                    group.append(item)
                    if log.kind == LogKind.OFFSETS.value:
                        offsets.append((partition, txid))
                    reach("coordinator.place.between_logs")
        except (StorageFailure, OSError) as failure:
            # Some logs hold the decision and some do not: nothing of it may be copied in this run.
            partitions.fail(StorageFailure(str(failure)))
            raise
        if group:
            partitions.place(tuple(group), order=messages[0].sink)
        for partition, txid in offsets:
            self._offsets_decided(partition.log, txid, partition.state.next_offset)
        for partition, txid in unwritten:
            if partition.state.held(txid) is not None:
                self._discard_in(partition, txid)

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
            partition = self._partitions.get(log)
            applied = None if partition is None else partition.state.applied(txid)
            if applied is not None:
                return applied.apply_number
        return None

    def placed(self, message: ApplyCommit) -> tuple[Placement, ...]:
        """See `Participants.placed`.

        In a log of marker mode, where others' records stand between those of the transaction, a place tells where its
        first one is, and how many there are.
        """
        return tuple(
            Placement(partition.log, applied.base_offset, applied.record_count)
            for partition, applied in self._parts_of(message)
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
        visible_at: dict[Partition, Offset] = {}
        for message in messages:
            for partition, applied in self._parts_of(message):
                offset = partition.mode.visible_at(partition.state, applied)
                visible_at[partition] = max(visible_at.get(partition, Offset(0)), offset)
        for partition, offset in visible_at.items():
            await partition.visibility.reach(offset)
        led = self._partitions.by_log
        return [Applied(tuple(place for place in placed if place.log in led)) for placed in places]

    def _parts_of(self, message: ApplyCommit) -> Iterator[tuple[Partition, AppliedTransaction]]:
        """Where records of the transaction were placed, in the order of its logs."""
        for log in message.logs:
            partition = self._partitions.get(log)
            applied = None if partition is None else partition.state.applied(message.txid)
            if partition is not None and applied is not None and applied.record_count:
                yield partition, applied

    def discard(self, message: DiscardTransaction) -> None:
        """See `Participants.discard`."""
        if self._open.get(message.txid.producer_id) == message.txid:
            del self._open[message.txid.producer_id]
        for log in message.logs:
            partition = self._partitions.get(log)
            if partition is not None and partition.state.held(message.txid) is not None:
                self._discard_in(partition, message.txid)

    def _discard_in(self, partition: Partition, txid: TxId) -> None:
        try:
            partition.discard(txid)
        except StorageFailure as failure:
            # Undecided is as good as aborted: the next start aborts it, and until then nothing more is written.
            logger.warning("abort not written", log=str(partition.log), txid=str(txid), reason=str(failure))
        if partition.log.kind == LogKind.OFFSETS.value:
            self._offsets_decided(partition.log, txid, None)
