"""Carries an event of one transactional id out, effect by effect, while no one else steps that id.

How it works. A *turn* is: `step`, then the effects in their order; if the last one asked something, `step` again with
the answer. `step` and the writing of records have no await between them unless a journal needs room. Where a turn
waits for a disk it is shielded from cancellation: a client that hangs up in the middle of a commit must not leave it
undecided. What waits for the copy is not shielded.

    commit:  prepare ─┬─ counts ─▶ PREPARE_COMMIT ─▶ group journal flush ─┬─▶ answer
                      └─ flush of all logs ───────────────────────────────┘
                                                        then, in `run`:   place ─▶ visible ─▶ COMMITTED

A commit is answered as soon as it is decided, and placed right after that: in the next turn of the loop, or before the
next request begins (`place_due`). So no producer waits for it, and nobody sees that it was not there yet. It is placed
before the answer if a reader waits at the end of one of its logs, who then has it sooner. So it is, too, if another
shard has one of them: that shard's requests ask nothing of this one.

Failures. If a group journal fails, its groups are refused until a restart, and the node is told (`on_failure`); a
commit whose PREPARE_COMMIT was written is answered "effect unknown". If a participant fails while it prepares, the
transaction is aborted. If placing or copying fails, nothing more is placed (order!), every request is refused, and
what is committed waits for the restart.

Room for the records of a turn is made before its step, so a want of file descriptors refuses the request and is no
failure: nothing has changed.

Memory is ahead of the journal between a step and the end of its effects. If an effect fails, it stays ahead, so nothing
may be built on it: a disk that fails closes the journal until a restart; anything else is a fault of the program,
and stops the node (`run` raises it).

Keeps invariants 5, 6 and 8 to 10 by way of the machine (machine.py) and the order (order.py). What it works on: the
table of ids (id_table.py), the group journals (journals.py) and the statistics (statistics.py). Who gets a turn, and
when, is decided in service.py, recovery.py and housekeeping.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog
import trio

from coordinator import events as ev
from coordinator.answers import Answer, Refusal
from coordinator.ending import answer_unwritten
from coordinator.group_records import PrepareAbortRecord
from coordinator.id_entry import IdEntry, open_ms_of, park, wake
from coordinator.id_table import IdTable
from coordinator.ids import ProducerIdBlocks, ProducerIds
from coordinator.journals import GroupJournals, shielded
from coordinator.machine import kind_of, step
from coordinator.messages import (
    Application,
    ApplyCommit,
    DiscardTransaction,
    Participants,
    Preparation,
    Prepared,
    Stopped,
)
from coordinator.order import CommitOrder
from coordinator.producer import Decided, Producer
from coordinator.settings import CoordinatorSettings
from coordinator.states import IdState
from coordinator.statistics import Statistics
from fairlog_types import LogId, StorageFailure, TxId
from journal.failpoints import reach
from journal.journal import NoFiles

T = TypeVar("T")

COPY_PATIENCE_S = 5.0
"""How long InitProducerId waits until the last instance's commits are visible: less than any client waits for an answer
(franz-go 10 s, the command line 15, Java 30). Then the client asks again, and is granted the same epoch, if it does so
on the same connection."""

_NO_FILES_PAUSE_S = 0.5
"""Between two attempts to write COMMITTED while no file can be opened."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Executor:
    """Carries out what the machine decides, for all transactional ids of a shard."""

    def __init__(
        self,
        *,
        table: IdTable,
        journals: GroupJournals,
        participants: Participants,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        statistics: Statistics,
        now_ms: Callable[[], int],
    ) -> None:
        """`now_ms` is the wall clock."""
        self.table = table
        self.journals = journals
        self.participants = participants
        self.settings = settings
        self.statistics = statistics
        self.now_ms = now_ms
        self.producer_ids = ProducerIdBlocks(producer_ids)
        self.unplaced: set[LogId] = set()
        """The logs in which something is committed that this run has not placed, and will not: the disk has failed."""
        self._order = CommitOrder()
        self._finishing: trio.Nursery | None = None
        """Where the tails of commits run, as long as `run` does."""
        self._to_finish: list[tuple[Callable[[Any], Awaitable[None]], object]] = []
        """The tails of what was placed before that; after it nothing is finished any more."""
        self._decided = trio.Event()
        """Set when something may be due in the order."""
        self._fault: Exception | None = None
        self._faulty = trio.Event()

    async def run(self) -> None:
        """Place what is decided and write down what is copied; until cancelled. Raises what stopped a turn half way."""
        async with trio.open_nursery() as nursery:
            self._finishing = nursery
            nursery.start_soon(self._place_decided)
            for tail, of in self._to_finish:
                nursery.start_soon(tail, of)
            self._to_finish.clear()
            try:
                await self._faulty.wait()
            finally:
                self._finishing = None
            assert self._fault is not None
            raise self._fault

    # ------------------------------------------------------------------------------------------------ turns

    async def take_turn(self, entry: IdEntry, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Carry the event out while nobody else steps this id. A entry is known as long as its id is."""
        assert not entry.busy
        entry.busy = True
        self.table.keep(entry)
        try:
            return await self._carry_out_or_fail(entry, event)
        finally:
            entry.busy = False
            if entry.producer.state is IdState.UNKNOWN:
                self.table.forget(entry)
            wake(entry)

    async def _carry_out_or_fail(self, entry: IdEntry, event: ev.Event) -> Answer | ev.WaitForCopy:
        """`carry_out`, with a failure of the group journal turned into the answer. A fault stops the node."""
        try:
            await self._make_room(entry, event)
        except StorageFailure as failure:
            if isinstance(failure, NoFiles):
                _log.warning("refused for want of file descriptors", failure=str(failure))
            else:
                self.journals.refuse(entry.journal, failure)
            return answer_unwritten(entry.producer, event, in_doubt=entry.in_doubt)
        try:
            return await self.carry_out(entry, event)
        except (StorageFailure, OSError) as failure:
            self.journals.refuse(entry.journal, failure)
            # The first record that a commit writes is PREPARE_COMMIT, or the grant of one that was carried out.
            is_commit = isinstance(event, ev.End) and event.commit
            entry.in_doubt = entry.in_doubt or is_commit
            return Refusal.STORAGE_EFFECT_UNKNOWN if is_commit else Refusal.STORAGE
        except Exception as fault:
            self.note_fault(entry.journal, fault)
            raise

    async def carry_out(self, entry: IdEntry, event: ev.Event) -> Answer | ev.WaitForCopy:
        """Step, run the effects, step with the answer, … Raises StorageFailure if the group journal fails."""
        asked, appended = event, entry.appended
        following: ev.Event | None = event
        preparation: Preparation | None = None
        while following is not None:
            event, following = following, None
            producer, effects = step(entry.producer, event)
            if producer is not entry.producer and isinstance(event, ev.Init | ev.Add | ev.End):
                entry.used_s = trio.current_time()
            self.table.become(entry, producer)
            for effect in effects:
                match effect:
                    case ev.Append(record) if isinstance(event, ev.Sealed):
                        # Nothing waits between the number and `EnterOrder`: room was made for PREPARE_COMMIT, and the
                        # grant of version 2, which follows it, may take what is kept for decisions.
                        self.journals.append_now(entry, record)
                    case ev.Append(record):
                        await self.journals.append(entry, record)
                    case ev.Flush():
                        await shielded(self.journals[entry.journal].to_disk(entry.appended))
                    case ev.AnswerWith(answer):
                        await self._accepted(entry)  # the next owner would not know what is only appended
                        if entry.appended == appended:
                            await self._still_owned(entry, asked, answer)
                        return answer
                    case ev.AskBegin():
                        following = await shielded(self._begin(effect))
                        if following is None:
                            return Refusal.STORAGE
                    case ev.AskResume():
                        following = await self._resume(entry, effect)
                    case ev.Close():
                        if not await shielded(self._close(effect)):
                            return Refusal.STORAGE
                    case ev.AskPrepare(message):
                        await self.participants.admit()
                        preparation = self.participants.prepare((message,))
                        await self.journals.room(entry, _listing(producer, _logs_of(producer)))
                        # From here to PREPARE_COMMIT in one step: the numbers have the order of the journal.
                        number = self.journals[entry.journal].next_commit_number
                        following = ev.Sealed(preparation.expected[message.txid], self.now_ms(), number)
                    case ev.EnterOrder(txid):
                        self._order.enter(producer.group, txid)
                    case ev.AskPrepared():
                        assert preparation is not None, "it is asked for in the step before"
                        following = await shielded(self._prepared(entry, preparation))
                    case ev.Apply(message):
                        self._decide(entry, message)
                    case ev.LeaveOrder(txid):
                        self._order.leave(producer.group, txid)
                        self._decided.set()
                    case ev.Discard(message, record):
                        await self._accepted(entry)  # else the next owner would go on with what is discarded here
                        if not self._discard(message):
                            return Refusal.STORAGE
                        await self.journals.append(entry, record)
                        self.statistics.note_aborted(entry, message, kind_of(event))
                    case ev.AwaitCopied():
                        with trio.move_on_after(COPY_PATIENCE_S):
                            while entry.producer.decided and not self.journals.is_refusing(entry):
                                await park(entry)
                        if self.journals.is_refusing(entry):
                            return Refusal.STORAGE
                        if entry.producer.decided:
                            return Refusal.CONCURRENT
                    case ev.AskProducerId():
                        following = await shielded(self._with_fresh_id(event))
                        if following is None:
                            return Refusal.STORAGE
                    case ev.WaitForCopy():
                        return effect
                    case ev.WaitForDecision():
                        raise AssertionError("a turn has begun while a transaction is being decided")
        return None

    async def _accepted(self, entry: IdEntry) -> None:
        """On a replicated log: wait until all that was appended for the id is accepted. Raises StorageFailure."""
        journal = self.journals[entry.journal]
        if journal.may_have_another_owner:
            await shielded(journal.to_disk(entry.appended))

    async def _still_owned(self, entry: IdEntry, event: ev.Event, answer: Answer) -> None:
        """On a replicated log, of an answer from memory: it says which transaction is open, or how the last one ended.

        A deposed owner that does not know it may be a transaction behind. The epochs of transaction version 2 tell one
        from the next, connections do not: they are known to one owner only. A refusal may be one because of an epoch
        that the next owner has granted, and clients give a transaction up on it. Raises StorageFailure.
        """
        journal = self.journals[entry.journal]
        if not journal.may_have_another_owner:
            return
        if isinstance(answer, Refusal):
            is_final = answer is not Refusal.CONCURRENT
        else:
            is_final = isinstance(event, ev.Add | ev.End) and event.connection is not None
        if is_final:
            await journal.confirm()

    async def _make_room(self, entry: IdEntry, event: ev.Event) -> None:
        """For the longest record that the event can lead to; the others are short. Raises StorageFailure.

        Before the step, because after it there is no way back.
        """
        producer, journal = entry.producer, self.journals[entry.journal]
        logs = _logs_of(producer)
        if isinstance(event, ev.Add):
            logs += event.logs
        elif isinstance(event, ev.Copied):
            logs = tuple(placement.log for placement in event.placements)
        longest = _listing(producer, logs)
        while not journal.has_room(longest):
            await journal.make_room(longest)

    # ----------------------------------------------------------------------- what the participants are asked

    async def _begin(self, effect: ev.AskBegin) -> ev.LogsBegun | None:
        try:
            begun = await self.participants.begin(effect.message)
        except StorageFailure as failure:
            self.journals.refuse_all(failure)
            return None
        if begun.refused:
            _log.info("logs refused", txid=str(effect.message.txid), refused=words(begun.refused))
        return ev.LogsBegun(effect.requested, begun.leader_epochs, self.now_ms(), begun.failed)

    async def _with_fresh_id(self, event: ev.Event) -> ev.Init | ev.End | None:
        assert isinstance(event, ev.Init | ev.End)
        try:
            return replace(event, fresh_id=await self.producer_ids.next_id())
        except StorageFailure as failure:
            _log.error("no producer ids", failure=str(failure))
            return None

    async def _resume(self, entry: IdEntry, effect: ev.AskResume) -> ev.Resumed:
        resumed = await self.participants.resume(effect.message)
        txid, transactional_id = str(effect.message.txid), entry.producer.transactional_id
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
                open_ms=open_ms_of(entry),
            )
        return ev.Resumed(resumed.leader_epochs, resumed.lost, self.now_ms())

    async def _close(self, effect: ev.Close) -> bool:
        """Whether the participants could. What a log could not flush, the end of the transaction finds."""
        try:
            await self.participants.prepare((effect.message,)).outcome()
        except StorageFailure as failure:
            self.journals.refuse_all(failure)
            return False
        return True

    async def _prepared(self, entry: IdEntry, preparation: Preparation) -> ev.Prepared | ev.Refused:
        """The one flush delay: the group journal and all participants at once.

        Right after PREPARE_COMMIT: COMMITTED of an earlier transaction, appended meanwhile, must not be waited for.
        """
        through = entry.appended
        journal = self.journals[entry.journal]
        entry.prepared_s = trio.current_time()
        journal.start_flush()
        refused = (await outcome_of(preparation)).refused
        if refused:
            _log.warning("transaction cannot be prepared", txid=str(entry.producer.txid), refused=words(refused))
            return ev.Refused(self.now_ms())
        participants_s = trio.current_time()
        self.statistics.tally.prepare.observe(participants_s - entry.prepared_s)
        if entry.producer.next_grant is None:
            await journal.flush(through)
        else:  # the next epoch goes out with the answer: it must be on disk, whatever commits wait for
            await journal.to_disk(through)
        self.statistics.tally.flush.observe(trio.current_time() - participants_s)
        reach("coordinator.prepared")
        return ev.Prepared(self.now_ms())

    def _decide(self, entry: IdEntry, message: ApplyCommit) -> None:
        self.statistics.tally.committed += 1
        self.statistics.note_decided(
            entry, entry.producer.decided[-1], entry.began_ms, entry.opened_s, entry.prepared_s
        )
        self._order.decide(message)
        if self.participants.are_awaited(message.logs):
            self.place_due()
        else:
            self._decided.set()

    def place_again(self, entry: IdEntry, decided: Decided) -> None:
        """After a restart, in the order that recovery found. Raises StorageFailure."""
        message = decided.apply(entry.producer.group)
        self.statistics.note_decided(entry, decided, None, None, None)
        self.finish_later(self._finish, (message.txid, self.participants.apply((message,))))

    def waits_in_group(self, entry: IdEntry) -> bool:
        """Whether a commit of the id, decided and answered, waits for others of its group.

        Its next transaction must not write before that: in a log of marker mode what a producer writes belongs to the
        first marker behind it.
        """
        producer = entry.producer
        return any(self._order.has(producer.group, it.txid) for it in producer.decided)

    def not_placed(self, log: LogId) -> Collection[TxId]:
        """See `CommitOrder.not_placed`."""
        return self._order.not_placed(log)

    async def _place_decided(self) -> None:
        """Place what is due, each time that something has been decided. A task of `run`."""
        while True:
            await self._decided.wait()
            self._decided = trio.Event()
            self.place_due()

    def place_due(self) -> None:
        """Place what is decided and waits for no other commit of its group. Called before anybody looks at the logs."""
        while (message := self._order.next_due()) is not None:
            self._place(message)

    def _place(self, message: ApplyCommit) -> None:
        """After a failure or a fault nothing is placed any more, lest the order suffer."""
        entry = self.statistics.copying[message.txid].entry
        wake(entry)
        if self.journals.all_refused is None:
            try:
                reach("coordinator.place.before")
                application = self.participants.apply((message,))
                reach("coordinator.place.after")
            except (StorageFailure, OSError) as failure:
                self.journals.refuse_all(failure)
            except Exception as fault:
                self.unplaced.update(message.logs)
                self.journals.refuse_all(fault)
                self.note_fault(entry.journal, fault)
                raise
            else:
                self.finish_later(self._finish, (message.txid, application))
                return
        self.unplaced.update(message.logs)

    def _discard(self, message: DiscardTransaction) -> bool:
        """Whether the participants took note."""
        try:
            self.participants.discard(message)
        except StorageFailure as failure:
            self.journals.refuse_all(failure)
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
            self.journals.refuse_all(failure)
            return
        copied_s = trio.current_time()
        copying = self.statistics.copying.pop(txid)
        entry = copying.entry
        copied = ev.Copied(txid, applied.placements, self.now_ms())
        while await self._carry_out_or_fail(entry, copied) is not None and not self.journals.is_refusing(entry):  # noqa: ASYNC110
            await trio.sleep(_NO_FILES_PAUSE_S)
        wake(entry)
        transactional_id = entry.producer.transactional_id
        self.statistics.note_committed(txid, copying, applied.placements, copied_s, transactional_id=transactional_id)

    def note_fault(self, journal: int, fault: Exception) -> None:
        """A turn has stopped half way, and not for the disk: the node must not go on (`run` raises it)."""
        self.journals.refuse(journal, fault)
        self._fault = fault
        self._faulty.set()


def _logs_of(producer: Producer) -> tuple[LogId, ...]:
    return () if producer.transaction is None else tuple(producer.transaction.logs)


def _listing(producer: Producer, logs: tuple[LogId, ...]) -> PrepareAbortRecord:
    """A record of the id that lists these logs: none that does so takes more room."""
    return PrepareAbortRecord(producer.txid, producer.transactional_id, logs, 0)


async def outcome_of(preparation: Preparation) -> Prepared:
    """What a prepare has led to; if writes are refused, every log refuses. Raises Stopped: the next start decides."""
    try:
        return await preparation.outcome()
    except Stopped:
        raise
    except StorageFailure as failure:
        return Prepared({log: str(failure) for expected in preparation.expected.values() for log in expected})


def words(refused: Mapping[LogId, str]) -> dict[str, str]:
    """For a line in the log."""
    return {str(log): why for log, why in refused.items()}
