"""The coordinator as the node sees it: requests wait for their turn, and are answered.

How it works. Each transactional id has an entry with its `Producer`. A request *takes its turn* (executor.py): while
another request of the same id is being carried out it waits, and different ids never wait for each other.
The exception is an id whose transaction is being decided: then the machine is asked at once, so that
AddPartitions hears CONCURRENT instead of hanging, and EndTxn repeated gets the decision that is coming. When the disk
has failed nobody gets a turn, and only what is certain is answered (`ending.answer_unwritten`).

The lanes of sinks are transactional ids, too; whether one may have its turn, its sink says (sinks/service.py), which
also carries out what is asked of sinks.

A restart comes before the first request (recovery.py); time-outs, expiry and snapshots go on beside them
(housekeeping.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice

import structlog
import trio

from coordinator import events as ev
from coordinator.answers import Answer, Description, Granted, GrantedToEnd, Refusal
from coordinator.ending import answer_unwritten
from coordinator.executor import Executor
from coordinator.expiry import fences
from coordinator.group_journal import GroupJournal
from coordinator.housekeeping import keep_house
from coordinator.id_entry import IdEntry, park, wake
from coordinator.id_table import IdTable
from coordinator.ids import ProducerIds
from coordinator.journals import GroupJournals
from coordinator.lane_ids import is_lane
from coordinator.machine import step
from coordinator.messages import Participants, Undecided
from coordinator.producer import Producer
from coordinator.recovery import recover
from coordinator.settings import CoordinatorSettings
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefused,
    SinkStatistics,
)
from coordinator.sinks.service import Sinks
from coordinator.states import IdState
from coordinator.statistics import (
    CommitDurations,
    CoordinatorStatistics,
    Copying,
    Ended,
    Statistics,
    Step,
    UnderWay,
    ago,
)
from fairlog_types import LogId, ProducerEpoch, ProducerId, StorageFailure, TxId

DECISION_PATIENCE_S = 5.0
"""So long InitProducerId and a repeated EndTxn wait for a decision before they hear CONCURRENT, and what begins a
transaction for the members of its group that its last commit waits for. A decision is one flush away; a client waits
30 seconds or more for an answer."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Coordinator:
    """The transactions of all groups that this node leads. `recover` comes first, then `run` beside all else."""

    def __init__(
        self,
        *,
        table: IdTable,
        journals: Sequence[GroupJournal],
        participants: Participants,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        now_ms: Callable[[], int],
        on_failure: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """`table` is empty. `now_ms` is the wall clock, for what is written down; time-outs do not depend on it.

        `on_failure` hears why a group journal is closed for writing: the disk has failed for everybody.
        """
        self._settings = settings
        self._now_ms = now_ms
        self._table = table
        self._statistics = Statistics(now_ms)
        self._journals = GroupJournals(journals, on_failure=on_failure, on_refusing=self._wake_all)
        self._executor = Executor(
            table=table,
            journals=self._journals,
            participants=participants,
            producer_ids=producer_ids,
            settings=settings,
            statistics=self._statistics,
            now_ms=now_ms,
        )
        self._sinks = Sinks(self._executor)

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        connection: int,
        *,
        two_phase: bool = False,
        keeps: bool = False,
    ) -> Granted | GrantedToEnd | Refusal:
        """Make the caller the one current producer of `transactional_id`; without an id, a fresh producer.

        What the id's last instance left open is aborted, and what it committed is visible when this answers.
        `producer_id` and `epoch` are -1, or what the client had before (KIP-360). `connection` is the ordinal
        of the client's connection: a repetition on the same one is answered alike.

        Two-phase commit with another system (KIP-939): with `two_phase` the caller's transactions have no time-out;
        with `keeps` what is open stays so, takes nothing more, and is for the caller to end (GrantedToEnd).
        """
        if transactional_id is None:
            try:
                return Granted(await self._executor.producer_ids.next_id(), ProducerEpoch(0))
            except StorageFailure as failure:
                _log.error("no producer ids", failure=str(failure))
                return Refusal.STORAGE
        event = ev.Init(
            timeout_ms,
            producer_id,
            epoch,
            connection,
            self._settings,
            self._now_ms(),
            two_phase=two_phase,
            keeps=keeps,
        )
        answer = await self._request(transactional_id, event)
        assert isinstance(answer, Granted | GrantedToEnd | Refusal)
        return answer

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int | None,
    ) -> Mapping[LogId, Refusal | None] | Refusal:
        """Begin a transaction if none is open, and let it write to `logs`; None for each log that it may write to.

        A log that is refused does not hinder the others. `connection` None: of transaction version 2, where the epoch
        says which transaction is meant, on whatever connection.
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

    async def end_epoch(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool
    ) -> Granted | Refusal:
        """As `end`, of transaction version 2 (KIP-890): it is done when an epoch is granted, for the next transaction.

        Said again, in the epoch that it has ended, it is answered alike.
        """
        event = ev.End(producer_id, epoch, commit, None, self._now_ms())
        answer = await self._request(transactional_id, event)
        assert isinstance(answer, Granted | Refusal)
        return answer

    def has_added(self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, log: LogId) -> bool:
        """Whether `add_logs` of this log has nothing left to do: it is written down that the transaction has it."""
        entry = self._table.entries.get(transactional_id)
        if entry is None or entry.busy or entry.producer.state is not IdState.OPEN or entry.producer.is_kept:
            return False
        producer = entry.producer
        assert producer.transaction is not None
        return (producer.producer_id, producer.epoch) == (producer_id, epoch) and log in producer.transaction.logs

    async def abort_open(self, transactional_id: str, txid: TxId | None = None) -> Refusal | None:
        """An operator aborts the open transaction, as if it had timed out. None: nothing is open now.

        If `txid` is given, that one and none that the producer may have begun after it: WRONG_STATE then.
        """
        event = ev.Forced(fences(transactional_id, self._settings), self._now_ms(), txid)
        answer = await self._request(transactional_id, event)
        assert answer is None or isinstance(answer, Refusal)
        return answer

    async def abort_by_marker(self, txid: TxId) -> Refusal | None:
        """An administrator's abort marker ends this transaction, wherever it is open. None: it is not open now.

        As `abort_open`, but the producer's epoch stays, as with Kafka's markers: it has to say that it aborts.
        """
        owner = self.owner_of(txid.producer_id)
        if owner is None:
            return None
        answer = await self._request(owner, ev.Forced(fence=False, now_ms=self._now_ms(), txid=txid))
        assert answer is None or isinstance(answer, Refusal)
        return None if answer is Refusal.WRONG_STATE else answer

    async def join_batch(self, lane: Lane) -> LaneGranted | BatchCommitted | SinkRefused:
        """Join a batch that is still to be committed: the answer names the transactional id to write under.

        `BatchCommitted` if the batch is committed already: there is nothing to write, and what was written is visible.
        A lane that joins again is answered alike, as long as it has not ended.
        """
        return await self._sinks.join(lane)

    async def commit_batch(self, message: CommitBatch) -> BatchCommitted | SinkRefused:
        """Publish the winners' records as one, and discard all other lanes of the batch.

        Answered when the records are visible; they are where it says then, after any crash. The next batch may be
        joined, and committed, meanwhile. A repetition is answered with the same places. How long the copy takes is for
        the caller to bound: cancelling does not stop a commit that has begun.
        """
        return await self._sinks.commit(message)

    async def abort_batch(self, sink: str, query: str, run: str, batch: int) -> SinkRefused | None:
        """Discard all lanes of the batch. None: no lane of it is open now. COMMITTED if it is committed."""
        return await self._sinks.abort(sink, query, run, batch)

    def sinks(self) -> Sequence[SinkDescription]:
        """All sinks, by name."""
        return self._sinks.describe()

    def sink_statistics(self) -> SinkStatistics:
        """How many sinks and lanes there are, and what they have committed since the start."""
        return self._sinks.statistics()

    async def forget_sink(self, sink: str) -> SinkRefused | None:
        """Forget the sink with its fence, so that another query may use the name. IN_USE while lanes are open."""
        return await self._sinks.forget(sink)

    def describe(self, transactional_id: str) -> Description | None:
        """The id as it stands, or None if it is unknown."""
        entry = self._table.entries.get(transactional_id)
        return None if entry is None or entry.producer.state is IdState.UNKNOWN else _description(entry.producer)

    def describe_all(self) -> Sequence[Description]:
        """All transactional ids, in no particular order."""
        producers = (entry.producer for entry in self._table.entries.values())
        return [_description(producer) for producer in producers if producer.state is not IdState.UNKNOWN]

    def under_way(self, count_max: int) -> Sequence[UnderWay]:
        """The transactions that have begun and not ended, the oldest first: so many open ones, and so many others."""
        now_s = trio.current_time()
        open_now = islice(self._table.open.values(), count_max)
        copying = islice(self._statistics.copying.items(), count_max)
        found = [_copying(txid, it, now_s) for txid, it in copying] + [_open(entry, now_s) for entry in open_now]
        return sorted(found, key=lambda it: it.steps[0][1], reverse=True)

    def ended(self) -> Sequence[Ended]:
        """The last transactions of this run that ended, the latest first."""
        return self._statistics.history.latest_first()

    def statistics(self, oldest_max: int = 5) -> CoordinatorStatistics:
        """What was counted since the start, and how things stand; with so many of the oldest open transactions."""
        table, tally, now_s = self._table, self._statistics.tally, trio.current_time()
        preparing = sum(entry.producer.state is IdState.PREPARING for entry in table.open.values())
        oldest = [_open(entry, now_s) for entry in islice(table.open.values(), oldest_max)]
        return CoordinatorStatistics(
            begun=table.begun,
            committed=tally.committed,
            aborted=dict(tally.aborted),
            durations=CommitDurations(tally.prepare.read(), tally.flush.read(), tally.apply.read()),
            transactional_ids=len(table.entries),
            open=len(table.open) - preparing,
            preparing=preparing,
            copying=len(self._statistics.copying),
            oldest=tuple((it.transactional_id, it.steps[0][1]) for it in oldest),
            failed_journals=sum(failure is not None for failure in self._journals.failures),
        )

    def producer_id_of(self, transactional_id: str) -> ProducerId | None:
        """The id's current producer id; None if the transactional id is unknown."""
        producer = self._table.known(transactional_id)
        return None if producer is None else producer.producer_id

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """See `IdTable.epoch_of`."""
        return self._table.epoch_of(producer_id)

    def owner_of(self, producer_id: ProducerId) -> str | None:
        """See `IdTable.owner_of`."""
        return self._table.owner_of(producer_id)

    def undecided(self) -> Mapping[TxId, Undecided]:
        """All transactions that are open, being decided or being copied."""
        found: dict[TxId, Undecided] = {}
        for entry in self._table.entries.values():
            producer = entry.producer
            for decided in producer.decided:
                found[decided.txid] = Undecided(
                    {log: it.leader_epoch for log, it in decided.expected.items()}, is_closed=True
                )
            if producer.transaction is not None:
                is_closed = producer.is_kept or producer.state is not IdState.OPEN
                found[producer.txid] = Undecided(producer.transaction.logs, is_closed)
        return found

    def lacks_commits(self, log: LogId) -> bool:
        """Whether something is committed in the log that is placed there only after a restart: writing has failed."""
        return log in self._executor.unplaced

    def place_due(self) -> None:
        """See `Executor.place_due`."""
        self._executor.place_due()

    def not_placed(self, log: LogId) -> Collection[TxId]:
        """What is committed in the log and not placed: it is due, or waits for what stands before it in its group."""
        return self._executor.not_placed(log)

    async def recover(self, *, tail_kept: bool = False) -> None:
        """Decide what the last run left undecided, before anything is served. Does not wait for the copy.

        `tail_kept` says that everything which was appended before the stop is still there: the journals
        were closed cleanly, or the process died and the machine lived on. Without it, every transactional
        id must abort once before it may go on (docs/decisions/0004-restart-and-open-transactions.md).
        Raises StorageFailure or CorruptStorage if that is impossible; the node cannot start then.
        """
        await recover(self._executor, self._sinks, tail_kept=tail_kept)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Time-outs, expiry, snapshots, and the tail of commits that are being copied; until cancelled.

        Raises what stopped a turn half way, unless it was the disk: the node must not go on.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_house, self._executor, self._sinks)
            task_status.started()
            await self.finish_commits()

    async def finish_commits(self) -> None:
        """The tail of commits that are being copied, without all else that `run` does: nothing times out or expires.

        Until cancelled. Raises as `run`.
        """
        await self._executor.run()

    def _wake_all(self) -> None:
        """Requests begin to be refused until a restart: let all who wait look again."""
        for entry in self._table.entries.values():
            wake(entry)
        self._sinks.wake_all()

    async def _request(self, transactional_id: str, event: ev.Event) -> Answer:
        """The answer: STOPPING for what this run does not carry out any more, because its shard stops.

        "The disk refused" would not be true, and many clients would give up. So they ask the next start.
        """
        answer = await self._carry_out(transactional_id, event)
        is_left = answer in (Refusal.STORAGE, Refusal.STORAGE_EFFECT_UNKNOWN) and self._journals.is_stopping
        return Refusal.STOPPING if is_left else answer

    async def _carry_out(self, transactional_id: str, event: ev.Event) -> Answer:
        """Take a turn, or several; while the id is PREPARING, ask the machine out of turn."""
        deadline: float | None = None
        while True:
            self._executor.place_due()
            entry = self._table.entry_of(transactional_id)
            if self._journals.is_refusing(entry):
                return answer_unwritten(entry.producer, event, in_doubt=entry.in_doubt)
            if isinstance(event, ev.Add) and self._executor.waits_in_group(entry):
                deadline = deadline or trio.current_time() + DECISION_PATIENCE_S
                if not await _changes_by(entry, deadline):
                    return Refusal.CONCURRENT
            elif not entry.busy:
                if is_lane(transactional_id):
                    return await self._request_of_lane(entry, event)
                answer = await self._executor.take_turn(entry, event)
                if not isinstance(answer, ev.WaitForCopy):
                    return answer
                # Its end has woken all who wait. If they took a turn because of that, they would never rest.
                asked_of = entry.producer
                while entry.producer is asked_of and not self._journals.is_refusing(entry):
                    await park(entry)
            elif entry.producer.state is IdState.PREPARING:
                (effect,) = step(entry.producer, event)[1]
                if isinstance(effect, ev.AnswerWith):
                    return effect.answer
                assert isinstance(effect, ev.WaitForDecision)
                deadline = deadline or trio.current_time() + DECISION_PATIENCE_S
                if not await _changes_by(entry, deadline):
                    return Refusal.CONCURRENT
            else:
                await park(entry)

    async def _request_of_lane(self, entry: IdEntry, event: ev.Event) -> Answer:
        """Take a turn, if the sink of the lane admits it."""
        transactional_id = entry.producer.transactional_id
        refusal = self._sinks.admit(transactional_id, entry.producer, event)
        if refusal is not None:
            return refusal
        answer = await self._executor.take_turn(entry, event)
        assert not isinstance(answer, ev.WaitForCopy), "a lane does not commit by itself"
        self._sinks.note_answer(transactional_id, event, answer)
        return answer


async def _changes_by(entry: IdEntry, deadline: float) -> bool:
    """Wait until something changes for this id, and no longer than to the deadline."""
    with trio.move_on_at(deadline) as patience:
        await park(entry)
    return not patience.cancelled_caught


def _description(producer: Producer) -> Description:
    transaction = producer.transaction
    return Description(
        producer.transactional_id,
        producer.txid.producer_id,
        producer.txid.epoch,
        producer.open_timeout_ms,
        producer.state.name,
        None if transaction is None else producer.txid,
        None if transaction is None else transaction.started_ms,
        () if transaction is None else tuple(transaction.logs),
        tuple(it.txid for it in producer.decided),
        producer.committed,
    )


def _open(entry: IdEntry, now_s: float) -> UnderWay:
    producer, opened_s = entry.producer, entry.opened_s
    assert producer.transaction is not None, "what is not open has been taken out"
    assert opened_s is not None, "set with the transaction"
    steps = [(Step.BEGIN, opened_s)]
    if entry.prepared_s is not None:
        steps.append((Step.PREPARE_COMMIT, entry.prepared_s))
    return UnderWay(
        producer.transactional_id,
        producer.txid,
        producer.transaction.started_ms,
        producer.open_timeout_ms,
        ago(steps, now_s),
        now_s - entry.used_s,
        tuple(producer.transaction.logs),
        None,
    )


def _copying(txid: TxId, copying: Copying, now_s: float) -> UnderWay:
    producer = copying.entry.producer
    return UnderWay(
        producer.transactional_id,
        txid,
        copying.began_ms,
        producer.timeout_ms,
        ago(copying.steps(), now_s),
        now_s - copying.entry.used_s,
        copying.logs,
        copying.records,
    )
