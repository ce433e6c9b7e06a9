"""The coordinator's shell: brings requests to the machine one by one, and runs its effects.

How it works. Each transactional id has a slot with its `Producer`. A request *takes its turn*: while
another request of the same id is being carried out it waits, and different ids never wait for each other.
The exception is an id whose transaction is being decided: then the machine is asked at once, so that
AddPartitions hears CONCURRENT instead of hanging, and EndTxn repeated gets the decision that is coming.
A turn is: `step`, then the effects in their order; if the last one asked something, `step` again with
the answer. `step` and the writing of records have no await between them unless a journal needs room.

A turn is shielded from cancellation: it waits for disks only, and a client that hangs up in the middle of a
commit must not leave it undecided. What waits for the copy is not shielded.

    end(commit):  seal, PREPARE_COMMIT ──┬─ group journal flush ─┬─▶ place ─▶ answer
                                         └─ prepare (all logs) ──┘     └▶ applied ─▶ COMMITTED   (in `run`)

Failures. If a group journal fails, all requests of its groups are refused until a restart, and the node is told
(`on_failure`); a commit whose PREPARE_COMMIT was written is answered "effect unknown". If a participant fails
while it prepares, the transaction is aborted. If placing or copying fails, nothing more is placed (order!), every
request is refused, and what is committed waits for the restart.

Memory is ahead of the journal between a step and the end of its effects. If an effect fails, it stays ahead, so nothing
may be built on it: a disk that fails closes the journal until a restart; anything else is a fault of the program,
and stops the node (`run` raises it).

Keeps invariants 5, 6 and 8 to 10 by way of the machine (machine.py) and the order (order.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
import trio
from crc32c import crc32c

from coordinator import events as ev
from coordinator import recovery
from coordinator.answers import Answer, Description, Granted, Refusal
from coordinator.ids import ProducerIdBlocks, ProducerIds
from coordinator.machine import answer_unwritten, due, group_of, idle_before, kind_of, prepare_commit_record, step
from coordinator.messages import ApplyCommit, DiscardTransaction, Participants, Prepare
from coordinator.order import CommitOrder
from coordinator.producer import Producer
from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState
from fairlog_types import (
    NO_PRODUCER_ID,
    ApplyNumber,
    JournalPosition,
    LogId,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from journal.failpoints import planted, reach
from journal.group_journal import GroupJournal
from journal.group_records import AbortedRecord, GroupRecord

DECISION_PATIENCE_S = 5.0
"""So long InitProducerId and a repeated EndTxn wait for a decision before they hear CONCURRENT. A decision is
one flush away; a client waits 30 seconds or more for an answer."""

SNAPSHOT_BYTES_MIN = 4 * 2**20
"""A group journal is replayed at ~100 MB/s, so this much costs a restart some hundredths of a second."""

SNAPSHOT_BYTES_PER_ID = 256
"""About what an id takes in a snapshot: a journal is cut when it has outgrown its own snapshot."""

_PREPARED_AT_ONCE = 64
"""In recovery."""

_YIELD_EVERY = 500
"""So many ids are looked at before the event loop gets its turn."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Slot:
    """One transactional id, and who waits for it."""

    __slots__ = ("appended", "busy", "journal", "opened_s", "producer", "used_s", "waiting")

    def __init__(self, producer: Producer, journal: int) -> None:
        self.producer = producer
        self.journal = journal
        self.appended = JournalPosition(0)
        """Behind the id's last record."""
        self.busy = False
        self.opened_s: float | None = None
        """When the last transaction of this run began, by the clock of the event loop, which does not jump."""
        self.used_s = trio.current_time()
        """The last request, by the same clock; it may lie before the start of the run."""
        self.waiting: trio.lowlevel.ParkingLot | None = None


@dataclass(slots=True)
class _Copying:
    """A committed transaction until it is visible: what its line in the log is made of."""

    slot: _Slot
    partitions: int
    records: int
    open_ms: float | None
    prepare_ms: float | None
    decided_s: float


class Coordinator:
    """The transactions of all groups that this node leads. `recover` comes first, then `run` beside all else."""

    def __init__(
        self,
        *,
        journals: Sequence[GroupJournal],
        participants: Participants,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        now_ms: Callable[[], int],
        on_failure: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`now_ms` is the wall clock, for what is written down; time-outs and expiry do not depend on it within a run.

        `on_failure` hears why a group journal is closed for writing: the disk has failed for everybody.
        """
        self._journals = journals
        self._on_failure = on_failure
        self._participants = participants
        self._ids = ProducerIdBlocks(producer_ids)
        self._settings = settings
        self._now_ms = now_ms
        self._slots: dict[str, _Slot] = {}
        self._owners: dict[ProducerId, str] = {}
        self._order = CommitOrder()
        self._copying: dict[TxId, _Copying] = {}
        self._to_copy, self._copies = trio.open_memory_channel[ApplyCommit](math.inf)
        self._failures: list[Exception | None] = [None] * len(journals)
        self._participants_failure: Exception | None = None
        self._fault: Exception | None = None
        self._faulty = trio.Event()

    # ------------------------------------------------------------------------------------ the public face

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        connection: int,
    ) -> Granted | Refusal:
        """Make the caller the one current producer of `transactional_id`; without an id, a fresh producer.

        What the id's last instance left open is aborted, and what it committed is visible when this answers.
        `producer_id` and `epoch` are -1, or what the client had before (KIP-360). `connection` is the ordinal
        of the client's connection: a repetition on the same one is answered alike.
        """
        if transactional_id is None:
            try:
                return Granted(await self._ids.next_id(), ProducerEpoch(0))
            except StorageFailure as failure:
                _log.error("no producer ids", failure=str(failure))
                return Refusal.STORAGE
        event = ev.Init(timeout_ms, producer_id, epoch, connection, self._settings, self._now_ms())
        answer = await self._request(transactional_id, event)
        assert isinstance(answer, Granted | Refusal)
        return answer

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int,
    ) -> Mapping[LogId, Refusal | None] | Refusal:
        """Begin a transaction if none is open, and let it write to `logs`; None for each log that it may write to.

        A log that is refused does not hinder the others.
        """
        event = ev.Add(producer_id, epoch, tuple(logs), connection, self._now_ms())
        answer = await self._request(transactional_id, event)
        assert isinstance(answer, Mapping | Refusal)
        return answer

    async def end(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        """Commit or abort the open transaction. None: it is done, and for a commit this survives any crash.

        Cancelling does not stop a commit that has begun.
        """
        event = ev.End(producer_id, epoch, commit, connection, self._now_ms())
        answer = await self._request(transactional_id, event)
        assert answer is None or isinstance(answer, Refusal)
        return answer

    async def abort_open(self, transactional_id: str) -> Refusal | None:
        """An operator aborts the open transaction, as if it had timed out. None: nothing is open now."""
        event = ev.Forced(self._settings.fence_on_timeout, self._now_ms())
        answer = await self._request(transactional_id, event)
        assert answer is None or isinstance(answer, Refusal)
        return answer

    def describe(self, transactional_id: str) -> Description | None:
        """The id as it stands, or None if it is unknown."""
        slot = self._slots.get(transactional_id)
        return None if slot is None or slot.producer.state is IdState.UNKNOWN else _description(slot.producer)

    def describe_all(self) -> Sequence[Description]:
        """All transactional ids, in no particular order."""
        producers = (slot.producer for slot in self._slots.values())
        return [_description(producer) for producer in producers if producer.state is not IdState.UNKNOWN]

    def transactional_id_of(self, producer_id: ProducerId) -> str | None:
        """Whose producer id this is, or None if it is not (or no longer) a transactional producer's."""
        return self._owners.get(producer_id)

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """The current epoch of a transactional producer; None if the producer id is not one's."""
        owner = self._owners.get(producer_id)
        return None if owner is None else self._slots[owner].producer.epoch

    # -------------------------------------------------------------------------------------- restart and run

    async def recover(self, *, tail_kept: bool = False) -> None:
        """Decide what the last run left undecided, before anything is served. Does not wait for the copy.

        `tail_kept` says that everything which was appended before the stop is still there: the journals
        were closed cleanly, or the process died and the machine lived on. Without it, every transactional
        id must abort once before it may go on (docs/decisions/0004-restart-and-open-transactions.md).
        Raises StorageFailure or CorruptStorage if that is impossible; the node cannot start then.
        """
        replays = [await trio.to_thread.run_sync(_replay, journal) for journal in self._journals]
        for index, one in enumerate(replays):
            for transactional_id, producer in one.producers.items():
                slot = self._slots[transactional_id] = _Slot(Producer(transactional_id), index)
                slot.used_s -= idle_before(producer, self._settings, self._now_ms()) / 1000
                self._become(slot, producer)
        for index, one in enumerate(replays):
            for txid, record in one.half_aborted.items():
                slot = self._slots.get(record.transactional_id) or _Slot(Producer(record.transactional_id), index)
                self._participants.discard(DiscardTransaction(txid, record.logs))
                await self._append(slot, AbortedRecord(txid, record.transactional_id, self._now_ms()))
        for slot in list(self._slots.values()):
            await self._carry_out(slot, ev.Restarted(tail_kept, self._now_ms()))
        await self._prepare_again(recovery.in_doubt(replays))
        if self._participants_failure is not None:
            raise self._participants_failure
        for index, journal in enumerate(self._journals):
            appended = max((slot.appended for slot in self._slots.values() if slot.journal == index), default=0)
            await journal.flush(JournalPosition(appended))

    async def _prepare_again(self, doubtful: Sequence[recovery.InDoubt]) -> None:
        """Prepare what is in doubt, place it in order, and withdraw what cannot be prepared."""
        refused: dict[TxId, Mapping[LogId, str]] = {}
        failures: list[StorageFailure] = []
        limit = trio.CapacityLimiter(_PREPARED_AT_ONCE)

        async def prepare(one: recovery.InDoubt) -> None:
            slot = self._slots[one.transactional_id]
            decided = one.decided
            try:
                async with limit:
                    # The old PREPARE_COMMIT may be in the page cache only; flushing a second one flushes both.
                    await self._append(slot, prepare_commit_record(one.transactional_id, decided))
                    answer = await self._participants.prepare(Prepare(decided.txid, decided.expected))
                    refused[decided.txid] = answer.refused
                    await self._journals[slot.journal].flush(slot.appended)
            except StorageFailure as failure:
                failures.append(failure)

        async with trio.open_nursery() as nursery:
            for one in doubtful:
                nursery.start_soon(prepare, one)
        if failures:
            raise failures[0]
        prepared = [one for one in doubtful if not refused[one.decided.txid]]
        for one in doubtful:
            txid = one.decided.txid
            if refused[txid]:
                _log.warning("transaction did not survive the crash", txid=str(txid), refused=_words(refused[txid]))
                await self._carry_out(self._slots[one.transactional_id], ev.Withdrawn(txid, self._now_ms()))
        surviving: dict[TxId, ApplyNumber | None] = {
            one.decided.txid: self._participants.surviving_apply_number(one.decided.txid, tuple(one.decided.expected))
            for one in prepared
        }
        for one in recovery.place_order(prepared, surviving):
            message = one.decided.apply()
            records = sum(it.records for it in one.decided.expected.values())
            self._copying[message.txid] = _Copying(
                self._slots[one.transactional_id], len(message.logs), records, None, None, trio.current_time()
            )
            self._participants.place(message)
            self._to_copy.send_nowait(message)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Time-outs, expiry, snapshots, and the tail of commits that are being copied; until cancelled.

        Raises what stopped a turn half way, unless it was the disk: the node must not go on.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._raise_fault)
            nursery.start_soon(self._check_now_and_then)
            task_status.started()
            async for message in self._copies:
                nursery.start_soon(self._finish, message)

    async def _raise_fault(self) -> None:
        await self._faulty.wait()
        assert self._fault is not None
        raise self._fault

    async def _check_now_and_then(self) -> None:
        while True:
            await trio.sleep(self._settings.check_interval_ms / 1000)
            for count, (transactional_id, slot) in enumerate(list(self._slots.items())):
                if count % _YIELD_EVERY == 0:
                    await trio.lowlevel.checkpoint()
                if slot.busy or self._is_refusing(slot):
                    continue
                ages_ms = (_open_ms(slot) or 0.0, _ms_since(slot.used_s))
                event = due(slot.producer, *ages_ms, self._settings, self._now_ms())
                if event is not None and self._slots.get(transactional_id) is slot:
                    await self._take_turn(slot, event)
            await self._take_snapshots()

    async def _take_snapshots(self) -> None:
        for index, journal in enumerate(self._journals):
            slots = [slot for slot in self._slots.values() if slot.journal == index]
            threshold = max(SNAPSHOT_BYTES_MIN, len(slots) * SNAPSHOT_BYTES_PER_ID)
            if self._failures[index] is None and journal.bytes_since_snapshot > threshold:
                try:
                    await journal.snapshot(recovery.snapshot_records(slot.producer for slot in slots))
                except (StorageFailure, OSError) as failure:
                    self._fail(index, failure)

    # ------------------------------------------------------------------------------------ requests and turns

    def _slot(self, transactional_id: str) -> _Slot:
        slot = self._slots.get(transactional_id)
        if slot is None:
            journal = crc32c(group_of(transactional_id).encode()) % len(self._journals)
            slot = _Slot(Producer(transactional_id), journal)
        return slot

    def _is_refusing(self, slot: _Slot) -> bool:
        return self._participants_failure is not None or self._failures[slot.journal] is not None

    async def _request(self, transactional_id: str, event: ev.Event) -> Answer:
        """Take a turn, or several; while the id is PREPARING, ask the machine out of turn."""
        deadline: float | None = None
        while True:
            slot = self._slot(transactional_id)
            if self._is_refusing(slot):
                return answer_unwritten(slot.producer, event)
            if not slot.busy:
                answer = await self._take_turn(slot, event)
                if not isinstance(answer, ev.WaitForCopy):
                    return answer
                await _park(slot)
            elif slot.producer.state is IdState.PREPARING:
                (effect,) = step(slot.producer, event)[1]
                if isinstance(effect, ev.AnswerWith):
                    return effect.answer
                assert isinstance(effect, ev.WaitForDecision)
                deadline = deadline or trio.current_time() + DECISION_PATIENCE_S
                with trio.move_on_at(deadline) as patience:
                    await _park(slot)
                if patience.cancelled_caught:
                    return Refusal.CONCURRENT
            else:
                await _park(slot)

    async def _take_turn(self, slot: _Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Carry the event out while nobody else steps this id. A slot is known as long as its id is."""
        assert not slot.busy
        slot.busy = True
        self._slots[slot.producer.transactional_id] = slot
        try:
            return await self._carry_out_or_fail(slot, event)
        finally:
            slot.busy = False
            if slot.producer.state is IdState.UNKNOWN:
                del self._slots[slot.producer.transactional_id]
            _wake(slot)

    async def _carry_out_or_fail(self, slot: _Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """`_carry_out`, with a failure of the group journal turned into the answer. A fault stops the node."""
        try:
            return await self._carry_out(slot, event)
        except (StorageFailure, OSError) as failure:
            self._fail(slot.journal, failure)
            # The first record that a commit writes is PREPARE_COMMIT.
            is_commit = isinstance(event, ev.End) and event.commit
            return Refusal.STORAGE_EFFECT_UNKNOWN if is_commit else Refusal.STORAGE
        except Exception as fault:
            self._fail(slot.journal, fault)
            self._fault = fault
            self._faulty.set()
            raise

    async def _carry_out(self, slot: _Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Step, run the effects, step with the answer, … Raises StorageFailure if the group journal fails."""
        following: ev.Event | None = event
        prepare_ms: float | None = None
        with trio.CancelScope(shield=True) as shield:
            while following is not None:
                event, following = following, None
                producer, effects = step(slot.producer, event)
                if producer is not slot.producer and isinstance(event, ev.Init | ev.Add | ev.End):
                    slot.used_s = trio.current_time()
                self._become(slot, producer)
                for effect in effects:
                    match effect:
                        case ev.Append(record):
                            await self._append(slot, record)
                        case ev.Flush():
                            await self._journals[slot.journal].flush(slot.appended)
                        case ev.AnswerWith(answer):
                            return answer
                        case ev.AskBegin():
                            following = await self._begin(effect)
                            if following is None:
                                return Refusal.STORAGE
                        case ev.AskSeal():
                            following = self._seal(effect)
                        case ev.EnterOrder(txid):
                            self._order.enter(group_of(producer.transactional_id), txid)
                        case ev.AskPrepare():
                            started_s = trio.current_time()
                            following = await self._prepare(slot, effect)
                            prepare_ms = _ms_since(started_s)
                        case ev.Apply(message):
                            self._decide(slot, message, prepare_ms)
                        case ev.LeaveOrder(txid):
                            self._place(self._order.leave(group_of(producer.transactional_id), txid))
                        case ev.Release(message):
                            self._discard(message)
                        case ev.Discard(message, record):
                            if not self._discard(message):
                                return Refusal.STORAGE
                            await self._append(slot, record)
                            _log_aborted(slot, message, kind_of(event).name.lower())
                        case ev.AwaitCopied():
                            shield.shield = False
                            while slot.producer.decided and not self._is_refusing(slot):
                                await _park(slot)
                            shield.shield = True
                            if self._is_refusing(slot):
                                return Refusal.STORAGE
                        case ev.AskProducerId():
                            following = await self._with_fresh_id(event)
                            if following is None:
                                return Refusal.STORAGE
                        case ev.WaitForCopy():
                            return effect
                        case ev.WaitForDecision():
                            raise AssertionError("a turn has begun while a transaction is being decided")
        return None

    def _become(self, slot: _Slot, producer: Producer) -> None:
        before = slot.producer
        slot.producer = producer
        if producer.transaction is not None and before.transaction is None:
            slot.opened_s = trio.current_time()
        if producer.producer_id != before.producer_id:
            self._owners.pop(before.producer_id, None)
            if producer.producer_id != NO_PRODUCER_ID:
                self._owners[producer.producer_id] = producer.transactional_id

    async def _append(self, slot: _Slot, record: GroupRecord) -> None:
        journal = self._journals[slot.journal]
        while not journal.has_room(record):
            await journal.make_room(record)
        slot.appended = journal.append(record)

    # ----------------------------------------------------------------------- what the participants are asked

    async def _begin(self, effect: ev.AskBegin) -> ev.LogsBegun | None:
        try:
            begun = await self._participants.begin(effect.message)
        except StorageFailure as failure:
            self._stop(failure)
            return None
        if begun.refused:
            _log.info("logs refused", txid=str(effect.message.txid), refused=_words(begun.refused))
        return ev.LogsBegun(effect.requested, begun.leader_epochs, self._now_ms())

    async def _with_fresh_id(self, event: ev.Event) -> ev.Init | None:
        assert isinstance(event, ev.Init)
        try:
            return replace(event, fresh_id=await self._ids.next_id())
        except StorageFailure as failure:
            _log.error("no producer ids", failure=str(failure))
            return None

    def _seal(self, effect: ev.AskSeal) -> ev.Sealed:
        expected = self._participants.seal(effect.txid, effect.logs)
        deleted = [str(log) for log in effect.logs if log not in expected]
        if deleted:
            _log.warning("commit goes without deleted logs", txid=str(effect.txid), logs=deleted)
        return ev.Sealed(expected, self._now_ms())

    async def _prepare(self, slot: _Slot, effect: ev.AskPrepare) -> ev.Prepared | ev.Refused:
        """The one flush delay: the group journal and all participants at once.

        Right behind PREPARE_COMMIT: COMMITTED of an earlier transaction, appended meanwhile, must not be waited for.
        """
        message = effect.message
        through = slot.appended
        journal = self._journals[slot.journal]
        journal.start_flush()
        if planted("apply-before-prepared"):
            self._participants.place(ApplyCommit(message.txid, tuple(message.expected), self._now_ms()))
        refused: Mapping[LogId, str] = {}
        if message.expected:
            try:
                refused = (await self._participants.prepare(message)).refused
            except StorageFailure as failure:
                refused = dict.fromkeys(message.expected, str(failure))
        if refused:
            _log.warning("transaction cannot be prepared", txid=str(message.txid), refused=_words(refused))
            return ev.Refused(self._now_ms())
        await journal.flush(through)
        reach("coordinator.prepared")
        return ev.Prepared(self._now_ms())

    def _decide(self, slot: _Slot, message: ApplyCommit, prepare_ms: float | None) -> None:
        decided = slot.producer.decided[-1]
        records = sum(it.records for it in decided.expected.values())
        open_ms = _open_ms(slot)
        self._copying[message.txid] = _Copying(
            slot, len(message.logs), records, open_ms, prepare_ms, trio.current_time()
        )
        self._place(self._order.decide(group_of(slot.producer.transactional_id), message))

    def _place(self, messages: Sequence[ApplyCommit]) -> None:
        """Place in this order. After a failure nothing is placed any more, lest the order suffer."""
        for message in messages:
            if self._participants_failure is not None:
                return
            try:
                reach("coordinator.place.before")
                self._participants.place(message)
                reach("coordinator.place.after")
            except (StorageFailure, OSError) as failure:
                self._stop(failure)
                return
            self._to_copy.send_nowait(message)

    def _discard(self, message: DiscardTransaction) -> bool:
        """Whether the participants took note."""
        try:
            self._participants.discard(message)
        except StorageFailure as failure:
            self._stop(failure)
            return False
        return True

    async def _finish(self, message: ApplyCommit) -> None:
        """Wait until a placed transaction is visible, and write COMMITTED."""
        try:
            applied = await self._participants.applied(message)
        except StorageFailure as failure:
            self._stop(failure)
            return
        copying = self._copying.pop(message.txid)
        slot = copying.slot
        await self._carry_out_or_fail(slot, ev.Copied(message.txid, applied.placements, self._now_ms()))
        _wake(slot)
        _log.info(
            "transaction",
            txid=str(message.txid),
            transactional_id=slot.producer.transactional_id,
            outcome="committed",
            partitions=copying.partitions,
            records=copying.records,
            open_ms=copying.open_ms,
            prepare_ms=copying.prepare_ms,
            apply_ms=_ms_since(copying.decided_s),
        )

    # ---------------------------------------------------------------------------------------------- failures

    def _fail(self, journal: int, failure: Exception) -> None:
        """The group journal is closed for writing: its groups are refused until a restart, and the node is told."""
        if self._failures[journal] is None:
            self._failures[journal] = failure
            _log.error("group journal failed; transactions are refused until a restart", failure=str(failure))
            self._wake_all()
            self._on_failure(str(failure))

    def _stop(self, failure: Exception) -> None:
        """The participants cannot write: nothing more is placed, and all is refused until a restart."""
        if self._participants_failure is None:
            self._participants_failure = failure
            _log.error("partitions cannot be written; transactions are refused until a restart", failure=str(failure))
            self._wake_all()

    def _wake_all(self) -> None:
        for slot in self._slots.values():
            _wake(slot)


async def _park(slot: _Slot) -> None:
    """Wait until something changes for this id."""
    if slot.waiting is None:
        slot.waiting = trio.lowlevel.ParkingLot()
    await slot.waiting.park()


def _wake(slot: _Slot) -> None:
    lot, slot.waiting = slot.waiting, None
    if lot is not None:
        lot.unpark_all()


def _ms_since(then_s: float) -> float:
    return round((trio.current_time() - then_s) * 1000, 2)


def _open_ms(slot: _Slot) -> float | None:
    return None if slot.opened_s is None else _ms_since(slot.opened_s)


def _words(refused: Mapping[LogId, str]) -> dict[str, str]:
    return {str(log): why for log, why in refused.items()}


def _log_aborted(slot: _Slot, message: DiscardTransaction, cause: str) -> None:
    _log.info(
        "transaction",
        txid=str(message.txid),
        transactional_id=slot.producer.transactional_id,
        outcome="aborted",
        cause=cause,
        partitions=len(message.logs),
        open_ms=_open_ms(slot),
    )


def _replay(journal: GroupJournal) -> recovery.Replay:
    return recovery.replay(journal.replay())


def _description(producer: Producer) -> Description:
    transaction = producer.transaction
    return Description(
        producer.transactional_id,
        producer.producer_id,
        producer.epoch,
        producer.timeout_ms,
        producer.state.name,
        None if transaction is None else producer.txid,
        None if transaction is None else transaction.started_ms,
        () if transaction is None else tuple(transaction.logs),
        tuple(it.txid for it in producer.decided),
        producer.committed,
    )
