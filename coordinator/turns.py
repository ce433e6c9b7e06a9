"""Turns: an event of one id is carried out, effect by effect, while nobody else steps that id.

How it works. A turn is: `step`, then the effects in their order; if the last one asked something, `step` again with
the answer. `step` and the writing of records have no await between them unless a journal needs room. Where a turn
waits for a disk it is shielded from cancellation: a client that hangs up in the middle of a commit must not leave it
undecided. What waits for the copy is not shielded.

    commit:  prepare ─┬─ counts ─▶ PREPARE_COMMIT ─▶ group journal flush ─┬─▶ apply ─▶ answer
                      └─ flush of all logs ───────────────────────────────┘      └▶ visible ─▶ COMMITTED   (in `run`)

Failures. If a group journal fails, its groups are refused until a restart, and the node is told (`on_failure`); a
commit whose PREPARE_COMMIT was written is answered "effect unknown". If a participant fails while it prepares, the
transaction is aborted. If placing or copying fails, nothing more is placed (order!), every request is refused, and
what is committed waits for the restart.

Room for the records of a turn is made before its step, so a want of file descriptors refuses the request and is no
failure: nothing has changed.

Memory is ahead of the journal between a step and the end of its effects. If an effect fails, it stays ahead, so nothing
may be built on it: a disk that fails closes the journal until a restart; anything else is a fault of the program,
and stops the node (`run` raises it).

Keeps invariants 5, 6 and 8 to 10 by way of the machine (machine.py) and the order (order.py). Who is to have a
turn, and when, is the matter of service.py, restarting.py and housekeeping.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import structlog
import trio
from crc32c import crc32c

from coordinator import events as ev
from coordinator.answers import Answer, Refusal
from coordinator.ending import answer_unwritten
from coordinator.group_journal import GroupJournal
from coordinator.group_records import GroupRecord, PrepareAbortRecord
from coordinator.ids import ProducerIdBlocks, ProducerIds
from coordinator.machine import kind_of, step
from coordinator.messages import Application, ApplyCommit, DiscardTransaction, Participants, Preparation
from coordinator.order import CommitOrder
from coordinator.producer import Decided, Producer
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.lane_ids import group_of
from coordinator.slots import Slot, ms_since, open_ms_of, park, wake
from coordinator.states import EventKind, IdState
from coordinator.watching import Copying, Ended, History, Step, Tally
from fairlog_types import NO_PRODUCER_ID, JournalPosition, LogId, Placement, ProducerId, StorageFailure, TxId
from journal.failpoints import reach
from journal.journal import NoFiles

T = TypeVar("T")

_NO_FILES_PAUSE_S = 0.5
"""Between two attempts to write COMMITTED while no file can be opened."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Recorded(Protocol):
    """What has records in a group journal: a slot, or a sink."""

    @property
    def journal(self) -> int: ...

    appended: JournalPosition
    """Behind its last record."""


class Turns:
    """All transactional ids, their group journals, and what is being carried out for them."""

    def __init__(
        self,
        *,
        journals: Sequence[GroupJournal],
        participants: Participants,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        now_ms: Callable[[], int],
        on_failure: Callable[[str], None],
    ) -> None:
        """The arguments are `Coordinator`'s."""
        self.journals = journals
        self.participants = participants
        self.settings = settings
        self.now_ms = now_ms
        self.slots: dict[str, Slot] = {}
        self.owners: dict[ProducerId, str] = {}
        """Whose each transactional producer id is, also that of a transaction that was kept."""
        self.ids = ProducerIdBlocks(producer_ids)
        self.failures: list[Exception | None] = [None] * len(journals)
        """Of each journal: why its groups are refused."""
        self.participants_failure: Exception | None = None
        """Why all are refused."""
        self.open: dict[str, Slot] = {}
        """The ids that have a transaction which is open or being decided, in the order in which these began."""
        self.copying: dict[TxId, Copying] = {}
        """What is committed and not yet visible, in the order of the decisions."""
        self.unplaced: set[LogId] = set()
        """The logs in which something is committed that this run has not placed, and will not: the disk has failed."""
        self.tally = Tally()
        self.history = History()
        self.on_refusing: list[Callable[[], None]] = []
        """Called when requests begin to be refused until a restart."""
        self._on_failure = on_failure
        self._order = CommitOrder()
        self._finishing: trio.Nursery | None = None
        """Where the tails of commits run, as long as `run` does."""
        self._to_finish: list[tuple[Callable[[Any], Awaitable[None]], object]] = []
        """The tails of what was placed before that; after it nothing is finished any more."""
        self._fault: Exception | None = None
        self._faulty = trio.Event()

    async def run(self) -> None:
        """The tail of commits that are being copied; until cancelled. Raises what stopped a turn half way."""
        async with trio.open_nursery() as nursery:
            self._finishing = nursery
            for tail, of in self._to_finish:
                nursery.start_soon(tail, of)
            self._to_finish.clear()
            try:
                await self._faulty.wait()
            finally:
                self._finishing = None
            assert self._fault is not None
            raise self._fault

    # ------------------------------------------------------------------------------------- slots and turns

    def slot_of(self, transactional_id: str) -> Slot:
        """The id's slot; a new one, not yet kept, if the id is unknown."""
        slot = self.slots.get(transactional_id)
        if slot is None:
            journal = crc32c(group_of(transactional_id).encode()) % len(self.journals)
            slot = Slot(Producer(transactional_id), journal)
        return slot

    def adopt(self, producer: Producer, journal: int, *, idle_ms: int, open_ms: int) -> None:
        """Take over an id that a journal knows, unused for `idle_ms`, with a transaction that is open for `open_ms`."""
        slot = self.slots[producer.transactional_id] = Slot(Producer(producer.transactional_id), journal)
        slot.used_s -= idle_ms / 1000
        self.become(slot, producer)
        if slot.opened_s is not None:
            slot.opened_s -= open_ms / 1000

    def is_refusing(self, slot: Recorded) -> bool:
        """Whether nothing can be written for this id, or sink, until a restart."""
        return self.participants_failure is not None or self.failures[slot.journal] is not None

    async def take_turn(self, slot: Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Carry the event out while nobody else steps this id. A slot is known as long as its id is."""
        assert not slot.busy
        slot.busy = True
        self.slots[slot.producer.transactional_id] = slot
        try:
            return await self._carry_out_or_fail(slot, event)
        finally:
            slot.busy = False
            if slot.producer.state is IdState.UNKNOWN:
                del self.slots[slot.producer.transactional_id]
            wake(slot)

    async def _carry_out_or_fail(self, slot: Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """`carry_out`, with a failure of the group journal turned into the answer. A fault stops the node."""
        try:
            await self._make_room(slot, event)
        except StorageFailure as failure:
            if isinstance(failure, NoFiles):
                _log.warning("refused for want of file descriptors", failure=str(failure))
            else:
                self.fail(slot.journal, failure)
            return answer_unwritten(slot.producer, event, in_doubt=slot.in_doubt)
        try:
            return await self.carry_out(slot, event)
        except (StorageFailure, OSError) as failure:
            self.fail(slot.journal, failure)
            # The first record that a commit writes is PREPARE_COMMIT, or the grant of one that was carried out.
            is_commit = isinstance(event, ev.End) and event.commit
            slot.in_doubt = slot.in_doubt or is_commit
            return Refusal.STORAGE_EFFECT_UNKNOWN if is_commit else Refusal.STORAGE
        except Exception as fault:
            self.note_fault(slot.journal, fault)
            raise

    async def carry_out(self, slot: Slot, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Step, run the effects, step with the answer, … Raises StorageFailure if the group journal fails."""
        following: ev.Event | None = event
        preparation: Preparation | None = None
        while following is not None:
            event, following = following, None
            producer, effects = step(slot.producer, event)
            if producer is not slot.producer and isinstance(event, ev.Init | ev.Add | ev.End):
                slot.used_s = trio.current_time()
            self.become(slot, producer)
            for effect in effects:
                match effect:
                    case ev.Append(record):
                        await self.append(slot, record)
                    case ev.Flush():
                        await _shielded(self.journals[slot.journal].to_disk(slot.appended))
                    case ev.AnswerWith(answer):
                        return answer
                    case ev.AskBegin():
                        following = await _shielded(self._begin(effect))
                        if following is None:
                            return Refusal.STORAGE
                    case ev.AskResume():
                        following = await self._resume(slot, effect)
                    case ev.Close():
                        if not await _shielded(self._close(effect)):
                            return Refusal.STORAGE
                    case ev.AskPrepare(message):
                        preparation = self.participants.prepare((message,))
                        following = ev.Sealed(preparation.expected[message.txid], self.now_ms())
                    case ev.EnterOrder(txid):
                        self._order.enter(group_of(producer.transactional_id), txid)
                    case ev.AskPrepared():
                        assert preparation is not None, "it is asked for in the step before"
                        following = await _shielded(self._prepared(slot, preparation))
                    case ev.Apply(message):
                        self._decide(slot, message)
                    case ev.LeaveOrder(txid):
                        self._place(self._order.leave(group_of(producer.transactional_id), txid))
                    case ev.Discard(message, record):
                        if not self._discard(message):
                            return Refusal.STORAGE
                        await self.append(slot, record)
                        self._note_aborted(slot, message, kind_of(event))
                    case ev.AwaitCopied():
                        while slot.producer.decided and not self.is_refusing(slot):
                            await park(slot)
                        if self.is_refusing(slot):
                            return Refusal.STORAGE
                    case ev.AskProducerId():
                        following = await _shielded(self._with_fresh_id(event))
                        if following is None:
                            return Refusal.STORAGE
                    case ev.WaitForCopy():
                        return effect
                    case ev.WaitForDecision():
                        raise AssertionError("a turn has begun while a transaction is being decided")
        return None

    def become(self, slot: Slot, producer: Producer) -> None:
        """The id's producer is this one from now on."""
        before = slot.producer
        slot.producer = producer
        if producer.transaction is not None and before.transaction is None:
            slot.opened_s, slot.began_ms, slot.prepared_s = trio.current_time(), producer.transaction.started_ms, None
            self.open[producer.transactional_id] = slot
            self.tally.begun += 1
        elif producer.transaction is None and before.transaction is not None:
            del self.open[producer.transactional_id]
        if producer.producer_id != before.producer_id or producer.is_kept != before.is_kept:
            ids = _producer_ids(producer)
            for producer_id in _producer_ids(before) - ids:
                self.owners.pop(producer_id, None)
            self.owners.update(dict.fromkeys(ids, producer.transactional_id))

    async def append(self, slot: Recorded, record: GroupRecord) -> None:
        """Append for this id, or sink, as soon as there is room. Raises StorageFailure."""
        journal = self.journals[slot.journal]
        while not journal.has_room(record):
            try:
                await _shielded(journal.make_room(record))
            except NoFiles:
                break  # what is kept for decisions may take it
        slot.appended = journal.append(record)

    async def _make_room(self, slot: Slot, event: ev.Event) -> None:
        """For the longest record that the event can lead to; the others are short. Raises StorageFailure.

        Before the step, because behind it there is no way back.
        """
        producer, journal = slot.producer, self.journals[slot.journal]
        logs = () if producer.transaction is None else tuple(producer.transaction.logs)
        if isinstance(event, ev.Add):
            logs += event.logs
        elif isinstance(event, ev.Copied):
            logs = tuple(placement.log for placement in event.placements)
        longest = PrepareAbortRecord(producer.txid, producer.transactional_id, logs, 0)
        while not journal.has_room(longest):
            await journal.make_room(longest)

    # ----------------------------------------------------------------------- what the participants are asked

    async def _begin(self, effect: ev.AskBegin) -> ev.LogsBegun | None:
        try:
            begun = await self.participants.begin(effect.message)
        except StorageFailure as failure:
            self.stop(failure)
            return None
        if begun.refused:
            _log.info("logs refused", txid=str(effect.message.txid), refused=words(begun.refused))
        return ev.LogsBegun(effect.requested, begun.leader_epochs, self.now_ms())

    async def _with_fresh_id(self, event: ev.Event) -> ev.Init | ev.End | None:
        assert isinstance(event, ev.Init | ev.End)
        try:
            return replace(event, fresh_id=await self.ids.next_id())
        except StorageFailure as failure:
            _log.error("no producer ids", failure=str(failure))
            return None

    async def _resume(self, slot: Slot, effect: ev.AskResume) -> ev.Resumed:
        resumed = await self.participants.resume(effect.message)
        txid, transactional_id = str(effect.message.txid), slot.producer.transactional_id
        if resumed.lost:
            _log.warning(
                "open transaction is lost", txid=txid, transactional_id=transactional_id, lost=words(resumed.lost)
            )
        else:
            _log.info(
                "open transaction goes on",
                txid=txid,
                transactional_id=transactional_id,
                partitions=len(resumed.leader_epochs),
                open_ms=open_ms_of(slot),
            )
        return ev.Resumed(resumed.leader_epochs, resumed.lost, self.now_ms())

    async def _close(self, effect: ev.Close) -> bool:
        """Whether the participants could. What a log could not flush, the end of the transaction finds."""
        try:
            await self.participants.prepare((effect.message,)).outcome()
        except StorageFailure as failure:
            self.stop(failure)
            return False
        return True

    async def _prepared(self, slot: Slot, preparation: Preparation) -> ev.Prepared | ev.Refused:
        """The one flush delay: the group journal and all participants at once.

        Right after PREPARE_COMMIT: COMMITTED of an earlier transaction, appended meanwhile, must not be waited for.
        """
        through = slot.appended
        journal = self.journals[slot.journal]
        slot.prepared_s = trio.current_time()
        journal.start_flush()
        refused = await refusals(preparation)
        if refused:
            _log.warning("transaction cannot be prepared", txid=str(slot.producer.txid), refused=words(refused))
            return ev.Refused(self.now_ms())
        participants_s = trio.current_time()
        self.tally.prepare.observe(participants_s - slot.prepared_s)
        if slot.producer.next_grant is None:
            await journal.flush(through)
        else:  # the next epoch goes out with the answer: it must be on disk, whatever commits wait for
            await journal.to_disk(through)
        self.tally.flush.observe(trio.current_time() - participants_s)
        reach("coordinator.prepared")
        return ev.Prepared(self.now_ms())

    def _decide(self, slot: Slot, message: ApplyCommit) -> None:
        self.tally.committed += 1
        self._watch_copy(slot, slot.producer.decided[-1], slot.began_ms, slot.opened_s, slot.prepared_s)
        self._place(self._order.decide(group_of(slot.producer.transactional_id), message))

    def place_again(self, slot: Slot, decided: Decided) -> None:
        """After a restart, in the order that recovery found. Raises StorageFailure."""
        message = decided.apply()
        self._watch_copy(slot, decided, None, None, None)
        self.finish_later(self._finish, (message.txid, self.participants.apply((message,))))

    def _watch_copy(
        self, slot: Slot, decided: Decided, began_ms: int | None, began_s: float | None, prepared_s: float | None
    ) -> None:
        self.copying[decided.txid] = Copying(
            slot,
            began_ms,
            began_s,
            prepared_s,
            trio.current_time(),
            tuple(log for log, it in decided.expected.items() if it.records),
            sum(it.records for it in decided.expected.values()),
        )

    def _place(self, messages: Sequence[ApplyCommit]) -> None:
        """Place in this order. After a failure nothing is placed any more, lest the order suffer."""
        for message in messages:
            if self.participants_failure is None:
                try:
                    reach("coordinator.place.before")
                    application = self.participants.apply((message,))
                    reach("coordinator.place.after")
                except (StorageFailure, OSError) as failure:
                    self.stop(failure)
                else:
                    self.finish_later(self._finish, (message.txid, application))
                    continue
            self.unplaced.update(message.logs)

    def _discard(self, message: DiscardTransaction) -> bool:
        """Whether the participants took note."""
        try:
            self.participants.discard(message)
        except StorageFailure as failure:
            self.stop(failure)
            return False
        return True

    def finish_later(self, tail: Callable[[T], Awaitable[None]], of: T) -> None:
        """Run the tail of a commit, what is to be done when it is copied, beside all else (in `run`)."""
        if self._finishing is None:
            self._to_finish.append((tail, of))
        else:
            self._finishing.start_soon(tail, of)

    async def _finish(self, of: tuple[TxId, Application]) -> None:
        """Wait until a placed transaction is visible, and write COMMITTED."""
        txid, application = of
        try:
            (applied,) = await application.visible()
        except StorageFailure as failure:
            self.stop(failure)
            return
        copied_s = trio.current_time()
        copying = self.copying.pop(txid)
        slot = copying.slot
        copied = ev.Copied(txid, applied.placements, self.now_ms())
        while await self._carry_out_or_fail(slot, copied) is not None and not self.is_refusing(slot):  # noqa: ASYNC110
            await trio.sleep(_NO_FILES_PAUSE_S)
        wake(slot)
        transactional_id = slot.producer.transactional_id
        self.note_committed(txid, copying, applied.placements, copied_s, transactional_id=transactional_id)

    # --------------------------------------------------------------------------------- what is told of the ends

    def note_committed(
        self, txid: TxId, copying: Copying, placements: tuple[Placement, ...], copied_s: float, **named: object
    ) -> None:
        """Count, remember and log a transaction, or a group, that is visible; `named` says of whom in the log."""
        if copying.prepared_s is not None:
            self.tally.apply.observe(copied_s - copying.decided_s)
        steps = [*copying.steps(), (Step.COPIED, copied_s), (Step.COMMITTED, trio.current_time())]
        self.history.add(
            Ended(
                copying.slot.producer.transactional_id,
                txid,
                copying.began_ms,
                self.now_ms(),
                None,
                steps,
                copying.logs,
                copying.records,
                placements,
            )
        )
        _log.info(
            "transaction",
            txid=str(txid),
            **named,
            outcome="committed",
            partitions=len(copying.logs),
            records=copying.records,
            apply_ms=ms_since(copying.decided_s),
            **_known(
                open_ms=_ms_between(copying.began_s, copying.decided_s),
                prepare_ms=_ms_between(copying.prepared_s, copying.decided_s),
            ),
        )

    def _note_aborted(self, slot: Slot, message: DiscardTransaction, kind: EventKind) -> None:
        cause = kind.name.lower()
        self.tally.aborted[cause] = self.tally.aborted.get(cause, 0) + 1
        now_s, now_ms = trio.current_time(), self.now_ms()
        began_here = kind not in (EventKind.RESTARTED, EventKind.WITHDRAWN)
        began_s, prepared_s = (slot.opened_s, slot.prepared_s) if began_here else (None, None)
        open_ms = _ms_between(began_s, now_s)
        if not began_here and slot.began_ms is not None:
            open_ms = max(0, now_ms - slot.began_ms)  # from one run to the next there is the wall clock only
        steps = [(Step.BEGIN, began_s), (Step.PREPARE_COMMIT, prepared_s), (Step.ABORTED, now_s)]
        self.history.add(
            Ended(
                slot.producer.transactional_id,
                message.txid,
                slot.began_ms,
                now_ms,
                cause,
                [(step, at_s) for step, at_s in steps if at_s is not None],
                message.logs,
                None,
                (),
            )
        )
        _log.info(
            "transaction",
            txid=str(message.txid),
            transactional_id=slot.producer.transactional_id,
            outcome="aborted",
            cause=cause,
            partitions=len(message.logs),
            **_known(open_ms=open_ms),
        )

    # ---------------------------------------------------------------------------------------------- failures

    def fail(self, journal: int, failure: Exception) -> None:
        """The group journal is closed for writing: its groups are refused until a restart."""
        if self.failures[journal] is None:
            self.failures[journal] = failure
            _log.error("group journal failed; its groups are refused until a restart", failure=str(failure))
            self._wake_all()
            self._on_failure(str(failure))

    def note_fault(self, journal: int, fault: Exception) -> None:
        """A turn has stopped half way, and not for the disk: the node must not go on (`run` raises it)."""
        self.fail(journal, fault)
        self._fault = fault
        self._faulty.set()

    def stop(self, failure: Exception) -> None:
        """The participants cannot write: nothing more is placed, and all is refused until a restart."""
        if self.participants_failure is None:
            self.participants_failure = failure
            _log.error("partitions cannot be written; transactions are refused until a restart", failure=str(failure))
            self._wake_all()

    def _wake_all(self) -> None:
        for slot in self.slots.values():
            wake(slot)
        for call in self.on_refusing:
            call()


def _producer_ids(producer: Producer) -> set[ProducerId]:
    return {producer.producer_id, producer.txid.producer_id} - {NO_PRODUCER_ID}


async def _shielded(waiting: Awaitable[T]) -> T:
    """Wait for a disk, whoever gives up meanwhile. Around what waits only: a scope costs as much as a record."""
    with trio.CancelScope(shield=True):
        return await waiting
    raise AssertionError("nobody cancels this scope")


async def refusals(preparation: Preparation) -> Mapping[LogId, str]:
    """Which logs cannot prepare, and why, once all have been asked."""
    try:
        return (await preparation.outcome()).refused
    except StorageFailure as failure:
        return {log: str(failure) for expected in preparation.expected.values() for log in expected}


def words(refused: Mapping[LogId, str]) -> dict[str, str]:
    """For a line in the log."""
    return {str(log): why for log, why in refused.items()}


def _known(**fields: float | None) -> dict[str, float]:
    """Those that have a value: what is not known is left out of a line, and not given as nothing."""
    return {name: value for name, value in fields.items() if value is not None}


def _ms_between(since_s: float | None, until_s: float) -> float | None:
    """Between two times of the event loop's clock; None if the first lies in an earlier run."""
    return None if since_s is None else round((until_s - since_s) * 1000, 2)
