"""What the partitions of a shard do when a coordinator tells them to: begin, prepare, apply, discard.

    begin ─▶ Fence        prepare ─▶ no more batches, count, flush
    discard ─▶ abort      apply ─▶ the decision of every log, in one step ─▶ the copier, as one unit

All of a transaction's logs in the shard get their decision in one step without a checkpoint, and go to the copier as
one unit: this is what makes them visible in one LMDB transaction (invariant 7) and in the group's order (invariant 6).
Which record a decision is, each log's mode says (`partition.modes`); a transaction may have logs of both.
A log that was added but not written to takes part as well, with 0 records: in marker mode it gets its marker with the
others, also after a crash in between; in journal mode nothing is placed there, and the log forgets the transaction.

The lanes of a sink's batch are prepared by one call, with one flush of each of their logs, and applied by one call, as
one unit: their records in one log follow each other. Their common apply number says that they belong together, also
after a crash that has destroyed some of the decisions, because the rest is placed again under the same number.

While the shard recovers, *apply* is only noted; when every coordinator that matters has said what it had decided, all
of it is placed in one order (`place_order`). The coordinators of other shards matter if a transaction is open here that
the own coordinator does not name. A transaction that none of them names is aborted: its coordinator had aborted it, and
the message was lost.

A coordinator of another shard may start again alone, too. The transactions that it had here and does not go on with are
aborted.

In a log of marker mode an administrator may ask for the abort of what a producer has open
(`Partition.open_for_abort`). It is aborted by its coordinator, as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog
import trio

from coordinator.messages import (
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Prepare,
    Prepared,
    Resume,
    Resumed,
    Stopped,
    Undecided,
)
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    LogId,
    LogKind,
    Offset,
    Placement,
    ProducerId,
    ShardNumber,
    StorageFailure,
    TxId,
)
from journal.failpoints import reach
from journal.journal import NoFiles
from partition.answers import RefusedAppend
from partition.partition import Partition
from partition.placed import Placed
from shard.adding import AddLog
from shard.partitions import Partitions
from shard.place_order import SaidAgain, place_order

logger = structlog.get_logger("fairlog.participant")


class LocalPreparation:
    """What `prepare` has found in the logs, and the flushes that it has started. A `Preparation`."""

    __slots__ = ("_flushing", "_partitions", "_prepared", "expected")

    def __init__(self, partitions: Partitions, prepared: Prepared) -> None:
        self.expected: dict[TxId, Mapping[LogId, Expected]] = {}
        self._partitions = partitions
        self._prepared = prepared
        self._flushing: dict[Partition, JournalPosition] = {}

    def wait_for(self, partition: Partition, txid: TxId) -> None:
        """The outcome waits until the partition's part of the transaction is on disk."""
        through = partition.unwritten_through(txid)
        if through is not None:
            self._flushing[partition] = max(self._flushing.get(partition, through), through)

    def start(self) -> None:
        """Start all flushes."""
        for partition in self._flushing:
            partition.journal.start_flush()

    async def outcome(self) -> Prepared:
        """See `Preparation.outcome`.

        A shard that refuses writes prepares nothing: it could not place what the producer was told is committed.
        """
        self._partitions.raise_if_failed()
        refused = dict(self._prepared.refused)
        for partition, through in self._flushing.items():
            try:
                await partition.durable(through)
            except StorageFailure as failure:
                refused[partition.log] = str(failure)
        return replace(self._prepared, refused=refused) if refused else self._prepared


class LocalApplication:
    """Where `apply` has placed records, and what must be copied until all can be read. An `Application`."""

    __slots__ = ("_durable_through", "_partitions", "_placements", "_recovered", "_visible_at")

    def __init__(self, partitions: Partitions, recovered: trio.Event) -> None:
        """`recovered` is set when everything that was noted during recovery has been placed."""
        self._partitions = partitions
        self._recovered = recovered
        self._placements: list[tuple[Placement, ...]] = []
        self._visible_at: dict[Partition, Offset] = {}
        self._durable_through: dict[Partition, JournalPosition] = {}

    def note(self, txid: TxId, logs: Iterable[LogId]) -> None:
        """The next message is placed, in these logs.

        In a log of marker mode, where others' records lie between those of the transaction, a place says where its
        first record is, and how many there are; it is visible together with everything that is in the log by now.

        A log without records has nothing to make visible. But if it is PREPARED on disk, its decision must be on disk,
        too, before the answer: no coordinator would send it again after a loss of power.
        """
        places: list[Placement] = []
        for log in logs:
            partition = self._partitions.get(log)
            applied = None if partition is None else partition.state.applied(txid)
            if partition is None or applied is None:
                continue
            if not applied.record_count:
                self._durable_through[partition] = partition.journal.end
            else:
                places.append(Placement(log, applied.base_offset, applied.record_count))
                offset = partition.mode.visible_at(partition.state, applied)
                self._visible_at[partition] = max(self._visible_at.get(partition, offset), offset)
        self._placements.append(tuple(places))

    async def visible(self) -> Sequence[Applied]:
        """See `Application.visible`: each log is waited for once."""
        if not self._recovered.is_set():
            await self._recovered.wait()
        for partition, through in self._durable_through.items():
            await partition.durable(through)
        for partition, offset in self._visible_at.items():
            await partition.visibility.reach(offset)
        led = self._partitions.by_log
        return [Applied(tuple(place for place in places if place.log in led)) for places in self._placements]


class Participant:
    """A shard's part in transactions. Implements `coordinator.messages.Participants`."""

    def __init__(
        self,
        partitions: Partitions,
        *,
        whole_since: Callable[[], LeaderEpoch],
        offsets_decided: Callable[[LogId, TxId, Offset | None], None] = lambda _log, _txid, _visible_at: None,
    ) -> None:
        """`whole_since` is asked once all logs are led: their journals may be found cut short when they are opened.

        `offsets_decided` is called when a transaction that wrote to an offsets log is decided. It gets the offset of
        that log at which its part is visible, or None if it is discarded. It must not raise.
        """
        self._partitions = partitions
        self._open = partitions.open_by_producer
        self._offsets_decided = offsets_decided
        self._found_open: dict[TxId, list[LogId]] = {}
        """While the shard recovers: the undecided transactions in the journals, with their logs."""
        self._resumed: set[TxId] = set()
        """Those of them that their coordinators go on with; they may be sealed already."""
        self._said_again: list[tuple[Sequence[ApplyCommit], LocalApplication]] | None = []
        """The applies that coordinators have sent since the start; None once they are placed."""
        self._ended: set[TxId] = set()
        """While the shard recovers: what other shards' coordinators have aborted. See `finish_recovery`."""
        self._recovered = trio.Event()
        self._next_apply_number = 0
        self._whole_since = whole_since
        self._coordinators: dict[TxId, ShardNumber] = {}
        """The coordinators, in other shards, of undecided transactions, as far as they have said so."""
        self._unsaid: dict[ShardNumber, set[TxId]] = {}
        """By coordinator that has started again: its transactions here, until it says which of them go on."""
        self._said_all: set[ShardNumber] = set()
        """The shards whose coordinators have said, since the start of this shard, what is undecided."""
        self._heard = trio.Event()
        """Set, and replaced, when one of them says so, or is given up."""
        self._given_up: set[ShardNumber] = set()

    @property
    def whole_since(self) -> LeaderEpoch:
        """The leader epoch since which nothing that was appended here was lost.

        That of the last start that could not trust what the run before had left. What began earlier and has not
        PREPARED may lack records.
        """
        return self._whole_since()

    def recall(self, partition: Partition) -> None:
        """A log with a past is led: note its open transactions, and go on after the apply numbers that it knows."""
        for txid in partition.state.open_transactions:
            self._found_open.setdefault(txid, []).append(partition.state.log)
        for window in partition.state.windows.values():
            for applied in window.applied:
                self._next_apply_number = max(self._next_apply_number, applied.apply_number + 1)

    async def hear_coordinators(self, others: Collection[ShardNumber]) -> None:
        """Wait until the other shards' coordinators that matter have said what is undecided; the own one has."""
        told: set[ShardNumber] = set()
        while awaited := self._awaited(others):
            for shard in sorted(awaited - told):
                logger.info("waiting for the coordinator of another shard", other_shard=shard)
            told |= awaited
            await self._heard.wait()

    async def hear(self, coordinator: ShardNumber) -> None:
        """Wait until that shard's coordinator has said, since the start of this shard, what is undecided.

        Raises Stopped if this shard stops before that.
        """
        while coordinator not in self._said_all:
            if coordinator in self._given_up:
                raise Stopped("this shard has stopped before another one has said what is undecided")
            await self._heard.wait()

    def give_up(self, shard: ShardNumber) -> None:
        """This shard stops, and that one is lost: `hear` does not wait for it."""
        self._given_up.add(shard)
        self._tell()

    def _tell(self) -> None:
        self._heard.set()
        self._heard = trio.Event()

    def has_added(self, message: AddLog) -> bool:
        """Whether the producer has a transaction open in this epoch to which the log was added, see `note_added`."""
        txid, partition = self._open.get(message.producer_id), self._partitions.get(message.log)
        if txid is None or txid.epoch != message.producer_epoch or partition is None:
            return False
        return partition.state.has_added(txid, message.transactional_id)

    def note_added(self, message: AddLog) -> None:
        """The coordinator has written down that the producer's transaction has the log."""
        txid, partition = self._open.get(message.producer_id), self._partitions.get(message.log)
        if txid is not None and txid.epoch == message.producer_epoch and partition is not None:
            partition.state.note_added(txid, message.transactional_id)

    def _awaited(self, others: Collection[ShardNumber]) -> set[ShardNumber]:
        """The shards that must speak first, because a transaction is open here that no coordinator has named yet.

        A PREPARED transaction names its coordinator; any other may belong to any of them.
        """
        applied = {message.txid for messages, _ in self._said_again or () for message in messages}
        awaited: set[ShardNumber] = set()
        for txid, logs in self._found_open.items():
            if txid in self._resumed or txid in applied or txid in self._ended:
                continue
            for log in logs:
                partition = self._partitions.get(log)
                held = None if partition is None else partition.state.held(txid)
                if held is not None:
                    awaited.update(others if held.prepared_for is None else (held.prepared_for,))
        return awaited - self._said_all

    def finish_recovery(self) -> None:
        """Every coordinator that matters has said what it had decided: place it, and abort what none of them has named.

        Each producer's transactions come in the order in which they began: in a log of marker mode the producer's first
        marker ends all that it has written there. Raises StorageFailure.
        """
        assert self._said_again is not None, "a shard recovers once"
        noted, self._said_again = self._said_again, None
        decided = {message.txid for messages, _ in noted for message in messages}
        orphans: dict[ProducerId, list[TxId]] = {}
        for txid in sorted({*self._found_open, *self._ended} - decided, reverse=True):
            orphans.setdefault(txid.producer_id, []).append(txid)
        order = place_order([SaidAgain(messages[0].group, self._survived(messages)) for messages, _ in noted])
        for index in order:
            for message in noted[index][0]:
                of_producer = orphans.get(message.txid.producer_id, [])
                while of_producer and of_producer[-1] < message.txid:
                    self._discard_if_orphan(of_producer.pop())
            self._place(*noted[index])
        for txid in sorted({*self._found_open, *self._ended}):
            self._discard_if_orphan(txid)
        self._found_open.clear()
        self._ended.clear()
        self._resumed.clear()
        self._recovered.set()

    def _discard_if_orphan(self, txid: TxId) -> None:
        """Abort a transaction that is open and that no coordinator has resumed or decided."""
        if txid in self._ended:
            self._discard_everywhere(txid)
            return
        for log in self._found_open[txid]:
            partition = self._partitions.get(log)
            held = None if partition is None else partition.state.held(txid)
            if partition is None or held is None:
                continue
            if txid not in self._resumed or self._is_torn(partition, txid, held.leader_epoch):
                logger.info("orphan discarded", log=str(log), txid=str(txid))
                self._discard_if_possible(partition, txid)

    # --- the coordinators of other shards -----------------------------------------------------

    def note_coordinator(self, shard: ShardNumber, txid: TxId) -> None:
        """A command of that shard's coordinator names the transaction: it is the coordinator's, and goes on."""
        self._coordinators[txid] = shard
        self._unsaid.get(shard, set()).discard(txid)

    def begins(self, shard: ShardNumber, txid: TxId) -> None:
        """That shard's coordinator begins a producer's next transaction: abort the producer's earlier ones in doubt.

        The coordinator would say so later anyway. But in a log of marker mode the producer's first marker ends all that
        it has written there. If the coordinator had decided to commit one of them, it has said so before.
        """
        self.note_coordinator(shard, txid)
        for earlier in [it for it in self._unsaid.get(shard, ()) if it.producer_id == txid.producer_id]:
            self._unsaid[shard].discard(earlier)
            self._end(earlier)

    def coordinator_restarted(self, shard: ShardNumber) -> None:
        """Its transactions here are in doubt, until it has said which of them go on."""
        had = {txid for txid, coordinator in self._coordinators.items() if coordinator == shard}
        self._unsaid.setdefault(shard, set()).update(had)

    def said_all(self, shard: ShardNumber, undecided: Mapping[TxId, Undecided]) -> None:
        """It has said what it had decided, and goes on with these: abort its other ones, and take batches again.

        If a log cannot go on with a transaction, it takes no more batches of it, and *prepare* refuses it. The
        coordinator does not name logs that are just being added: they may have begun before this was heard.
        """
        for txid, (logs, is_closed) in undecided.items():
            was_open = self._open.get(txid.producer_id) == txid
            self._coordinators[txid] = shard
            led = {log: partition for log in logs if (partition := self._partitions.get(log)) is not None}
            resumed = [self._resume_in(partition, txid, logs[log]) for log, partition in led.items()]
            if is_closed:
                for partition in led.values():
                    partition.state.seal(txid)
            elif not any(isinstance(answer, str) for answer in resumed):
                self._open[txid.producer_id] = txid
            self._note_resumed(txid)
            held = any(partition.state.held(txid) is not None for partition in led.values())
            if not held and not (was_open and self._is_held(txid)):
                self._forget(txid)  # it is applied here; no more commands for it will come
        reach("participant.said_all.resumed")
        for txid in self._unsaid.pop(shard, set()) - undecided.keys():
            self._end(txid)
        reach("participant.said_all.done")
        self._said_all.add(shard)
        self._tell()

    def _end(self, txid: TxId) -> None:
        """Its coordinator, in another shard, does not go on with it: abort it."""
        self._forget(txid)
        if self._said_again is not None:
            self._ended.add(txid)
        else:
            self._discard_everywhere(txid)

    def _is_held(self, txid: TxId) -> bool:
        return any(partition.state.held(txid) is not None for partition in self._partitions.by_log.values())

    def _discard_everywhere(self, txid: TxId) -> None:
        for partition in list(self._partitions.by_log.values()):
            if partition.state.held(txid) is not None:
                logger.info("orphan discarded", log=str(partition.log), txid=str(txid))
                self._discard_if_possible(partition, txid)

    def _resume_in(self, partition: Partition, txid: TxId, begun_in: LeaderEpoch) -> LeaderEpoch | str:
        """See `PartitionState.resume`. After a loss of power only transactions that began since then go on."""
        if self._is_torn(partition, txid, begun_in):
            return f"{partition.log} may have lost records of {txid}"
        return partition.state.resume(txid)

    def _is_torn(self, partition: Partition, txid: TxId, begun_in: LeaderEpoch) -> bool:
        """Whether the transaction, begun in that leader epoch, may have lost records, and so can never be prepared.

        If nothing of it is here, all of it may have been lost. PREPARED is on disk, and says that nothing is missing.
        """
        held = partition.state.held(txid)
        return begun_in < self.whole_since and (held is None or held.prepared_for is None)

    def _forget(self, txid: TxId) -> None:
        """It takes no more batches here, and its coordinator will not name it again."""
        if self._open.get(txid.producer_id) == txid:
            del self._open[txid.producer_id]
        self._coordinators.pop(txid, None)

    def _note_resumed(self, txid: TxId) -> None:
        if self._said_again is not None:
            self._resumed.add(txid)

    # --- the coordinator's messages -----------------------------------------------------------

    async def begin_for(self, coordinator: ShardNumber, message: Begin) -> Begun:
        """As `begin`, for the coordinator of that shard, which is noted: also if `said_all` comes meanwhile."""
        begun = await self.begin(message)
        if begun.leader_epochs:
            self._coordinators[message.txid] = coordinator
            reach("participant.begun")
        return begun

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
            self._note_resumed(message.txid)  # logs may hold records of it from a start that was killed
        elif self._open.get(message.txid.producer_id) != message.txid:
            self._coordinators.pop(message.txid, None)
        return Begun(epochs, refused)

    async def resume(self, message: Resume) -> Resumed:
        """See `Participants.resume`. Its batches are known from the journals; from now on it takes more."""
        txid = message.txid
        epochs: dict[LogId, LeaderEpoch] = {}
        lost: dict[LogId, str] = {}
        for log, begun_in in {**self._logs_with(txid), **message.logs}.items():
            partition = self._partitions.get(log)
            if partition is None:
                continue
            answer = self._resume_in(partition, txid, begun_in)
            if isinstance(answer, str):
                lost[log] = answer
            else:
                epochs[log] = answer
        if not lost:
            self._open[txid.producer_id] = txid
            self._note_resumed(txid)
        return Resumed(epochs, lost)

    def _logs_with(self, txid: TxId) -> dict[LogId, LeaderEpoch]:
        """The logs in which the transaction has begun, written down by its coordinator or not, and the leader epochs.

        One that takes batches may have begun in this start, even while the shard recovers. The others were found in
        the journals.
        """
        takes_batches = self._open.get(txid.producer_id) == txid
        logs = self._partitions.by_log if takes_batches else self._found_open.get(txid, ())
        held = {log: partition.state.held(txid) for log in logs if (partition := self._partitions.get(log)) is not None}
        return {log: it.leader_epoch for log, it in held.items() if it is not None}

    async def admit(self) -> None:
        """See `Participants.admit`. In one shard a cut is taken at one instant, so commits need not wait."""

    def prepare(self, messages: Sequence[Prepare]) -> LocalPreparation:
        """See `Participants.prepare`."""
        refused: dict[LogId, str] = {}
        gone: dict[LogId, str] = {}
        preparation = LocalPreparation(self._partitions, Prepared(refused, gone))
        for message in messages:
            txid = message.txid
            if self._open.get(txid.producer_id) == txid:
                del self._open[txid.producer_id]
            found: dict[LogId, Expected] = {}
            for log in message.logs:
                partition = self._partitions.get(log)
                if partition is None:
                    logger.warning("transaction goes without a deleted log", txid=str(txid), log=str(log))
                    continue
                held = partition.state.seal(txid)
                if held is not None:
                    found[log] = Expected(held.leader_epoch, held.records)
                expected = found.get(log) if message.expected is None else message.expected[log]
                if expected is None:
                    continue
                reason = partition.state.holds(txid, expected.leader_epoch, expected.records)
                if reason is not None:
                    refused.setdefault(log, reason)
                    if not partition.journal.begun:
                        gone[log] = str(self._partitions.journal_directory(log))
                elif expected.records:
                    preparation.wait_for(partition, txid)
            preparation.expected[txid] = found
        preparation.start()
        return preparation

    async def prepare_for(self, coordinator: ShardNumber, messages: Sequence[Prepare]) -> Prepared:
        """Prepare for the coordinator of that shard, which is noted: write PREPARED, with the count, in each log.

        Answers when all is on disk. Raises StorageFailure. A log that cannot be written refuses a transaction that is
        prepared for the first time. If a coordinator that has started again asks, it raises: that one may be committed.
        """
        self._partitions.raise_if_failed()
        is_again = any(message.expected is not None for message in messages)
        refused: dict[LogId, str] = {}
        gone: dict[LogId, str] = {}
        counts: dict[TxId, dict[LogId, Expected]] = {}
        flushing: dict[Partition, JournalPosition] = {}
        for message in messages:
            txid = message.txid
            if self._open.get(txid.producer_id) == txid:
                del self._open[txid.producer_id]
            counts[txid] = {}
            for log, leader_epoch in message.logs.items():
                partition = self._partitions.get(log)
                if partition is None:
                    logger.warning("transaction goes without a deleted log", txid=str(txid), log=str(log))
                    continue
                if message.only_closes:
                    partition.state.seal(txid)
                    continue
                if is_again and leader_epoch >= self.whole_since and not partition.journal.begun:
                    refused.setdefault(log, f"{log} has no journal")
                    gone[log] = str(self._partitions.journal_directory(log))
                    continue
                try:
                    found = await self._prepare_in(partition, txid, leader_epoch, coordinator, is_again=is_again)
                except NoFiles as failure:
                    if is_again:
                        raise
                    found = str(failure)
                if isinstance(found, str):
                    if not partition.has_gone:
                        refused.setdefault(log, found)
                    continue
                reach("participant.prepare.appended")
                records, through = found
                counts[txid][log] = Expected(leader_epoch, records)
                flushing[partition] = max(flushing.get(partition, through), through)
        for partition in flushing:
            partition.journal.start_flush()
        for partition, through in flushing.items():
            try:
                await partition.durable(through)
            except StorageFailure as failure:
                if is_again:
                    raise
                refused.setdefault(partition.log, str(failure))
        reach("participant.prepare.flushed")
        return Prepared(refused, gone, counts)

    async def _prepare_in(
        self,
        partition: Partition,
        txid: TxId,
        leader_epoch: LeaderEpoch,
        coordinator: ShardNumber,
        *,
        is_again: bool,
    ) -> tuple[int, JournalPosition] | str:
        """How many records the log has prepared, and through which position; or why it cannot.

        After a loss of power only PREPARED says that no record from before is missing. A transaction that its
        coordinator has aborted while this waited for its turn or for room must not begin again: it would never end.
        """
        state = partition.state
        has_room = await partition.wait_for_room(0)
        if has_room and state.applied(txid) is None and self._coordinators.get(txid) != coordinator:
            return f"{txid} was aborted meanwhile"
        if is_again and leader_epoch >= self.whole_since and txid.producer_id not in state.windows:
            # It was applied so long ago that its producer has been forgotten, or the log has no records of it.
            return 0, partition.journal.durable
        if state.applied(txid) is None and self._is_torn(partition, txid, leader_epoch):
            return f"{partition.log} may have lost records of {txid}"
        through = await partition.prepare(txid, coordinator)
        if isinstance(through, str):
            return through
        applied, held = state.applied(txid), state.held(txid)
        if applied is not None:
            return applied.record_count, through
        return 0 if held is None else held.records, through

    def are_awaited(self, logs: Iterable[LogId]) -> bool:
        """See `Participants.are_awaited`."""
        led = map(self._partitions.get, logs)
        return any(partition is not None and partition.visibility.is_watched for partition in led)

    def apply(self, messages: Sequence[ApplyCommit]) -> LocalApplication:
        """See `Participants.apply`."""
        self._partitions.raise_if_failed()
        application = LocalApplication(self._partitions, self._recovered)
        if not messages:
            return application
        if self._said_again is None:
            self._place(messages, application)
        else:
            self._said_again.append((messages, application))
        return application

    def _place(self, messages: Sequence[ApplyCommit], application: LocalApplication) -> None:
        """Write the decisions; no checkpoint from the first one to the copier's `place`. Raises StorageFailure."""
        partitions = self._partitions
        self._raise_if_one_refuses(messages)
        number = self._apply_number(messages)
        group: list[Placed] = []
        offsets: list[tuple[Partition, TxId]] = []
        unwritten: list[tuple[Partition, TxId]] = []
        try:
            for message in messages:
                txid = message.txid
                for log in message.logs:
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
            # Some logs have the decision and some do not: nothing of it may be copied in this run.
            partitions.fail(StorageFailure(str(failure)))
            raise
        if group:
            partitions.place(tuple(group), order=messages[0].group)
        for partition, txid in offsets:
            self._offsets_decided(partition.log, txid, partition.state.next_offset)
        for partition, txid in unwritten:
            if partition.state.held(txid) is not None:
                self._discard_if_possible(partition, txid)
        for message in messages:
            application.note(message.txid, message.logs)
            self._coordinators.pop(message.txid, None)

    def _raise_if_one_refuses(self, messages: Sequence[ApplyCommit]) -> None:
        """On a replicated log, what some of the logs have is accepted, and replicas place it without the rest.

        One journal's file may have failed a moment ago, and nobody has come to it yet. Raises StorageFailure.
        """
        for log in (log for message in messages for log in message.logs):
            partition = self._partitions.get(log)
            if partition is not None and partition.journal.failed is not None:
                self._partitions.fail(partition.journal.failed)
                raise partition.journal.failed

    def _apply_number(self, messages: Sequence[ApplyCommit]) -> ApplyNumber:
        """The number under which a part of any of them was placed before, else a new one."""
        survived = self._survived(messages)
        if survived is not None:
            return survived
        number = ApplyNumber(self._next_apply_number)
        self._next_apply_number += 1
        return number

    def _survived(self, messages: Sequence[ApplyCommit]) -> ApplyNumber | None:
        """The number under which some log has placed one of these transactions; None if none has."""
        for message in messages:
            for log in message.logs:
                partition = self._partitions.get(log)
                applied = None if partition is None else partition.state.applied(message.txid)
                if applied is not None:
                    return applied.apply_number
        return None

    def discard_for_other(self, message: DiscardTransaction) -> None:
        """As `discard`, for another shard's coordinator. While this shard recovers, `finish_recovery` does it."""
        if self._said_again is None:
            self.discard(message)
            reach("participant.discarded")
        else:
            self._end(message.txid)

    def discard(self, message: DiscardTransaction) -> None:
        """See `Participants.discard`. If it raises, the logs before the failure keep their abort."""
        self._forget(message.txid)
        for log in message.logs:
            partition = self._partitions.get(log)
            if partition is not None and partition.state.held(message.txid) is not None:
                self._discard_in(partition, message.txid)

    def _discard_in(self, partition: Partition, txid: TxId) -> None:
        partition.discard(txid)
        if partition.log.kind == LogKind.OFFSETS.value:
            self._offsets_decided(partition.log, txid, None)

    def _discard_if_possible(self, partition: Partition, txid: TxId) -> None:
        """No coordinator waits for this abort: if it cannot be written, the next start aborts the transaction."""
        try:
            self._discard_in(partition, txid)
        except StorageFailure as failure:
            logger.warning("abort not written", log=str(partition.log), txid=str(txid), reason=str(failure))
