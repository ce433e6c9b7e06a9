"""A sink's commit: the winners' transactions become one decision, and all other lanes of the batch end.

    hold the winners' ids ─▶ prepare all, count, SINK_PREPARE_COMMIT     (one step; other shards count first)
        ──┬─ group journal flush ─────┬─▶ decide, apply all   (one step) ─▶ drop the losers
          └─ flush of all their logs ─┘      └▶ visible ─▶ SINK_COMMITTED   (in `Executor.run`)
                                                  └▶ answer                  (without the sink's lock)

How it works. A held id takes no turn (`IdEntry.busy`), so nothing is added to a winner and nothing ends it between the
count and the decision. From *prepare* on the commit cannot be cancelled. All winners' logs and the group journal are
flushed side by side: one flush delay, as for one transaction. If a lane has written to another shard, the commit waits
for that shard's counts before it writes SINK_PREPARE_COMMIT: the driver names counts, and only counts that agree may be
committed. The fence moves with the decision, in the step in which the transactions end for their producers and all are
placed under one apply number. So a request that is repeated finds either a batch that has to be written again, or a
committed one.

The answer waits until the batch and all earlier ones of the sink are visible (`until_visible`): then its APPLYs are on
disk, so its places are final and can be read. Meanwhile the sink is free: the next batch is joined and decided while
the last one is copied.

SINK_COMMITTED is written in the order of the batches, not flushed; without it a restart prepares and places again,
which changes nothing. At most `DECIDED_MAX` batches of a sink are under way: the leaders' windows remember one more.

Failures. An error before SINK_PREPARE_COMMIT (a lane's transaction is gone, or has another count) ends all lanes of the
batch, and nothing is written about it. If a participant cannot prepare, SINK_ABORTED is durable before the refusal:
otherwise a restart might prepare successfully. If the group journal fails after SINK_PREPARE_COMMIT, a restart decides.
If placing or copying fails, the batch is decided all the same, and a restart makes it visible; until then its driver
gets EFFECT_UNKNOWN, because after "committed" it might look for records that cannot be read yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog
import trio

from coordinator import events as ev
from coordinator.executor import Executor, outcome_of, words
from coordinator.group_records import (
    Expectation,
    GroupRecord,
    PreparedPart,
    SinkAbortedRecord,
    SinkPrepareCommitRecord,
)
from coordinator.id_entry import IdEntry, park, wake
from coordinator.lane_ids import lane_id
from coordinator.machine import copied_in_commit, step
from coordinator.messages import UNCOUNTED, Application, DiscardTransaction, Expected, Preparation, Prepare
from coordinator.producer import Decided
from coordinator.sink_commits import Part, SinkCommit, joined_places
from coordinator.sinks.entry import SinkEntry
from coordinator.sinks.messages import CommitBatch, SinkRefusal, SinkRefused, Winner
from coordinator.sinks.sink import DecidedCommit, OpenLane
from coordinator.states import IdState
from coordinator.statistics import Copying
from fairlog_types import LeaderEpoch, LogId, Placement, StorageFailure, TxId
from journal.failpoints import reach
from journal.journal import NoFiles

_NO_FILES_PAUSE_S = 0.5
"""Between two attempts to write SINK_COMMITTED while no file can be opened."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_Winners = Sequence[tuple[Winner, OpenLane]]


class _Transaction(NamedTuple):
    """The open transaction of a winning lane."""

    winner: Winner
    lane: OpenLane
    message: Prepare


class Committing:
    """Commits batches of sinks, by way of `Executor`."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._put_off: dict[str, TxId] = {}
        """Transactions of lanes that have ended, which are still to be discarded, by their transactional ids."""

    async def commit(self, entry: SinkEntry, message: CommitBatch, winners: _Winners) -> DecidedCommit | SinkRefused:
        """Decide a batch that is not decided yet. Under the sink's lock; once begun, it is not cancelled."""
        held: list[IdEntry] = []
        try:
            for _, lane in winners:
                await self._hold(lane, held)
        except BaseException:
            _release(held)
            raise
        with trio.CancelScope(shield=True):
            try:
                answer, ended = await self._carry_out_or_fail(entry, message, winners)
            finally:
                _release(held)
            await self.drop(ended)
            return answer
        raise AssertionError("nobody cancels this scope")

    async def until_visible(self, entry: SinkEntry, batch: int) -> bool:
        """Wait until all decided batches up to this one can be read: True. False if that will not happen in this run.

        Without the sink's lock. Cancelling it changes nothing.
        """
        while not entry.sink.is_visible(batch):
            if self._executor.journals.all_refused is not None:
                return False
            await entry.change()
        return True

    async def drop(self, lanes: Iterable[OpenLane]) -> None:
        """End the transactions of lanes that their sink has let go, and fence their producers.

        If no file can be opened, this is done later (`drop_again`): the lane is fenced already.
        """
        for lane in lanes:
            id_entry = self._executor.table.entries.get(lane.transactional_id)
            while id_entry is not None and id_entry.busy:
                await park(id_entry)
            if id_entry is not None:
                await self._drop(id_entry)

    async def drop_again(self) -> None:
        """Retry what was put off, unless the id's next lane has ended it with its grant.

        Stops at the first one that still fails: the others need files as well, and each try is a line in the log.
        """
        put_off, self._put_off = self._put_off, {}
        goes_on = True
        while put_off and goes_on:
            transactional_id, txid = put_off.popitem()
            id_entry = self._executor.table.entries.get(transactional_id)
            if id_entry is None or id_entry.producer.txid != txid:
                continue
            if id_entry.busy:
                self._put_off[transactional_id] = txid
            else:
                goes_on = await self._drop(id_entry)
        self._put_off = put_off | self._put_off

    async def _drop(self, id_entry: IdEntry) -> bool:
        """False: it was put off."""
        executor, producer = self._executor, id_entry.producer
        if producer.state is not IdState.OPEN or executor.journals.is_refusing(id_entry):
            return True
        refusal = await executor.take_turn(id_entry, ev.Dropped(executor.now_ms()))
        if refusal is None or executor.journals.is_refusing(id_entry):
            return True
        self._put_off[producer.transactional_id] = producer.txid
        _log.warning("lane is discarded later", transactional_id=producer.transactional_id, txid=str(producer.txid))
        return False

    def place_again(self, entry: SinkEntry, commit: SinkCommit) -> None:
        """After a restart, in the order that recovery found: the batch is committed. Raises StorageFailure."""
        entry.sink.preparing = commit
        self._decided(entry, commit, self._executor.participants.apply(commit.messages()), None, None)

    async def withdraw(self, entry: SinkEntry, commit: SinkCommit) -> None:
        """After a restart: the batch cannot be prepared again, and is aborted as a whole. Raises StorageFailure."""
        executor = self._executor
        await executor.journals.append(entry, SinkAbortedRecord(commit.sink, commit.batch, executor.now_ms()))
        await executor.journals[entry.journal].to_disk(entry.appended)
        for part in commit.parts:
            executor.participants.discard(DiscardTransaction(part.decided.txid, tuple(part.decided.expected)))

    # ------------------------------------------------------------------------------------------ the commit

    async def _hold(self, lane: OpenLane, held: list[IdEntry]) -> None:
        """Wait for the turn that the lane's id may be taking, and admit no other."""
        id_entry = self._executor.table.entries.get(lane.transactional_id)
        if id_entry is None:
            return
        while id_entry.busy:
            await park(id_entry)
        id_entry.busy = True
        held.append(id_entry)

    async def _carry_out_or_fail(
        self, entry: SinkEntry, message: CommitBatch, winners: _Winners
    ) -> tuple[DecidedCommit | SinkRefused, Sequence[OpenLane]]:
        """The answer, and the lanes that this has ended and that are still to be dropped."""
        executor, sink = self._executor, entry.sink
        if executor.journals.is_refusing(entry):
            return cannot_write(entry), ()
        try:
            await self._make_room(entry, message, winners)
        except NoFiles as failure:
            _log.warning("refused for want of file descriptors", failure=str(failure))
            return SinkRefused(SinkRefusal.IN_USE, f"{failure}; nothing was changed, ask again"), ()
        except StorageFailure as failure:
            executor.journals.refuse(entry.journal, failure)
            return cannot_write(entry), ()
        try:
            return await self._carry_out(entry, message, winners)
        except (StorageFailure, OSError) as failure:
            executor.journals.refuse(entry.journal, failure)
            sink.in_limbo = message.batch
            return cannot_write(entry, message.batch), ()
        except Exception as fault:
            executor.note_fault(entry.journal, fault)
            raise

    async def _carry_out(
        self, entry: SinkEntry, message: CommitBatch, winners: _Winners
    ) -> tuple[DecidedCommit | SinkRefused, Sequence[OpenLane]]:
        """Prepare, count, write, decide. Raises StorageFailure when the group journal fails."""
        executor, sink = self._executor, entry.sink
        ending = sink.of_batches_through(message.batch)
        transactions = self._transactions(winners)
        if isinstance(transactions, SinkRefused):
            return transactions, sink.end(ending)
        await executor.participants.admit()
        preparation = executor.participants.prepare([it.message for it in transactions])
        counts: Mapping[TxId, Mapping[LogId, Expected]] = preparation.expected
        if any(it.records == UNCOUNTED for expected in counts.values() for it in expected.values()):
            prepared = await outcome_of(preparation)
            if prepared.refused:
                return _cannot_prepare(sink.name, message.batch, prepared.refused), sink.end(ending)
            counts = {
                txid: _counted_there(expected, prepared.counts.get(txid, {})) for txid, expected in counts.items()
            }
            try:
                await self._make_room(entry, message, winners)  # others may have used the room meanwhile
            except NoFiles as failure:
                _log.warning("refused for want of file descriptors", failure=str(failure))
                sentence = f"batch {message.batch} of sink {sink.name!r} is not committed: {failure}"
                return SinkRefused(SinkRefusal.LANE_ABORTED, f"{sentence}; write the batch again"), sink.end(ending)
        number = executor.journals[entry.journal].next_commit_number
        parts = self._counted(transactions, counts, number)
        if isinstance(parts, SinkRefused):
            return parts, sink.end(ending)
        commit = SinkCommit(
            sink.name,
            sink.query,
            message.batch,
            parts,
            executor.now_ms(),
            number,
            message.planned_ms,
        )
        sink.preparing = commit
        executor.journals.append_now(entry, commit.record())
        prepared_s = trio.current_time()
        refused = await self._prepared(entry, commit, preparation)
        if refused:
            sink.preparing = None
            await executor.journals.append(entry, SinkAbortedRecord(sink.name, commit.batch, executor.now_ms()))
            await executor.journals[entry.journal].to_disk(entry.appended)
            return _cannot_prepare(sink.name, commit.batch, refused), sink.end(ending)
        began_s = self._end_transactions(commit)
        return self._decided(entry, commit, self._apply(commit), began_s, prepared_s), sink.end(ending)

    async def _make_room(self, entry: SinkEntry, message: CommitBatch, winners: _Winners) -> None:
        """For SINK_PREPARE_COMMIT, before anything is sealed. Raises StorageFailure."""
        parts: list[PreparedPart] = []
        for _, lane in winners:
            id_entry = self._executor.table.entries.get(lane.transactional_id)
            transaction = None if id_entry is None else id_entry.producer.transaction
            if id_entry is not None and transaction is not None:
                logs = dict.fromkeys(transaction.logs, Expectation(LeaderEpoch(0), 0))
                parts.append(PreparedPart(lane.slot, id_entry.producer.txid, logs))
        record = SinkPrepareCommitRecord(message.sink, message.query, message.batch, 0, tuple(parts), 0)
        await self._room_for(entry, record)

    async def _room_for(self, entry: SinkEntry, record: GroupRecord) -> None:
        journal = self._executor.journals[entry.journal]
        while not journal.has_room(record):
            await journal.make_room(record)

    def _transactions(self, winners: _Winners) -> Sequence[_Transaction] | SinkRefused:
        """The winners' open transactions. A winner without records may have none."""
        found: list[_Transaction] = []
        for winner, lane in winners:
            id_entry = self._executor.table.entries.get(lane.transactional_id)
            if id_entry is not None and id_entry.producer.transaction is not None and lane.is_of(id_entry.producer):
                logs = id_entry.producer.transaction.logs
                found.append(_Transaction(winner, lane, Prepare(id_entry.producer.txid, logs)))
            elif winner.records:
                return SinkRefused(
                    SinkRefusal.LANE_ABORTED,
                    f"{lane} has no open transaction: it was aborted, or has timed out; write the batch again",
                )
        return found

    def _counted(
        self, transactions: Sequence[_Transaction], counts: Mapping[TxId, Mapping[LogId, Expected]], number: int
    ) -> tuple[Part, ...] | SinkRefused:
        """The parts of the commit, if each lane holds what its winner has counted."""
        parts: list[Part] = []
        for winner, lane, message in transactions:
            expected = counts[message.txid]
            records = sum(it.records for it in expected.values())
            # Records of a deleted log cannot be counted any more; the other logs must not suffer (decision 3).
            is_less_by_deleted = records < winner.records and len(expected) < len(message.logs)
            if records != winner.records and not is_less_by_deleted:
                return SinkRefused(
                    SinkRefusal.WRONG_COUNT,
                    f"{lane} holds {records} records, but {winner.records} are to be committed; write the batch again",
                )
            parts.append(Part(lane.slot, Decided(message.txid, expected, self._executor.now_ms(), number)))
        return tuple(parts)

    async def _prepared(self, entry: SinkEntry, commit: SinkCommit, preparation: Preparation) -> Mapping[LogId, str]:
        """The one flush delay; answers the logs that cannot prepare, and why."""
        executor, journal, through = self._executor, self._executor.journals[entry.journal], entry.appended
        begun_s = trio.current_time()
        for transactional_id in commit.lane_ids():
            executor.table.entries[transactional_id].prepared_s = begun_s
        journal.start_flush()
        refused = (await outcome_of(preparation)).refused
        if not refused:
            participants_s = trio.current_time()
            executor.statistics.tally.prepare.observe(participants_s - begun_s)
            await journal.flush(through)
            executor.statistics.tally.flush.observe(trio.current_time() - participants_s)
            reach("coordinator.prepared")
        return refused

    def _end_transactions(self, commit: SinkCommit) -> float | None:
        """The batch's transactions have ended for their producers; answers when the first had begun."""
        executor = self._executor
        began: list[float] = []
        for transactional_id in commit.lane_ids():
            id_entry = executor.table.entries[transactional_id]
            if id_entry.opened_s is not None:
                began.append(id_entry.opened_s)
            producer, _ = step(id_entry.producer, ev.SinkDecided())
            executor.table.become(id_entry, producer)
        executor.statistics.tally.committed += len(commit.parts)
        return min(began, default=None)

    def _apply(self, commit: SinkCommit) -> Application | None:
        """Place all at once. None after a failure: then nothing is placed any more, to keep the order."""
        executor = self._executor
        if executor.journals.all_refused is None:
            try:
                reach("coordinator.place.before")
                application = executor.participants.apply(commit.messages())
                reach("coordinator.place.after")
            except (StorageFailure, OSError) as failure:
                executor.journals.refuse_all(failure)
            else:
                return application
        executor.unplaced.update(_written(commit))
        return None

    def _decided(
        self,
        entry: SinkEntry,
        commit: SinkCommit,
        application: Application | None,
        began_s: float | None,
        prepared_s: float | None,
    ) -> DecidedCommit:
        """The fence moves, and a task waits until the batch is visible."""
        executor = self._executor
        decided = entry.sink.decide(commit)
        if commit.parts:
            first = commit.parts[0]
            # After a restart the id may be unknown: it may have expired while its batch was being copied.
            id_entry = executor.table.entry_of(lane_id(commit.sink, first.slot))
            began_ms = None if began_s is None else id_entry.began_ms
            logs = _written(commit)
            executor.statistics.copying[first.decided.txid] = Copying(
                id_entry, began_ms, began_s, prepared_s, trio.current_time(), logs, commit.records
            )
        if application is not None:
            executor.finish_later(self._finish, (entry, decided, application))
        return decided

    # --------------------------------------------------------------------------------- after the decision

    async def _finish(self, of: tuple[SinkEntry, DecidedCommit, Application]) -> None:
        """Wait until a placed batch is visible, and write SINK_COMMITTED when its turn comes."""
        (entry, under_way, application), executor = of, self._executor
        try:
            applied = await application.visible()
        except StorageFailure as failure:
            executor.journals.refuse_all(failure)
            entry.wake()
            return
        parts = under_way.commit.parts
        places = {part.decided.txid: it.placements for part, it in zip(parts, applied, strict=True)}
        copied_s = trio.current_time()
        under_way.copied = places
        entry.wake()
        await self._record_visible(entry)
        entry.wake()
        self._note(under_way.commit, places, copied_s)

    async def _record_visible(self, entry: SinkEntry) -> None:
        """Write SINK_COMMITTED of visible batches, up to the first that is not visible."""
        executor, sink = self._executor, entry.sink
        while sink.under_way and not executor.journals.is_refusing(entry):
            oldest = sink.under_way[0]
            if oldest.copied is None:
                return
            record = oldest.commit.committed_record(oldest.copied, executor.now_ms())
            journal = executor.journals[entry.journal]
            try:
                if not journal.has_room(record):
                    await journal.make_room(record)
                    continue
                for part in record.parts:
                    id_entry = executor.table.entries.get(lane_id(sink.name, part.slot))
                    if id_entry is not None:
                        executor.table.become(id_entry, copied_in_commit(id_entry.producer, part.txid, part.placements))
                sink.record_visible(joined_places(it for part in record.parts for it in part.placements))
                entry.appended = journal.append(record)
            except NoFiles:
                await trio.sleep(_NO_FILES_PAUSE_S)
            except (StorageFailure, OSError) as failure:
                executor.journals.refuse(entry.journal, failure)

    def _note(self, commit: SinkCommit, places: Mapping[TxId, tuple[Placement, ...]], copied_s: float) -> None:
        if not commit.parts:
            _log.info("transaction", sink=commit.sink, batch=commit.batch, lanes=0, outcome="committed", records=0)
            return
        txid = commit.parts[0].decided.txid
        self._executor.statistics.note_committed(
            txid,
            self._executor.statistics.copying.pop(txid),
            joined_places(it for placed in places.values() for it in placed),
            copied_s,
            sink=commit.sink,
            batch=commit.batch,
            lanes=len(commit.parts),
        )


def not_copied(entry: SinkEntry, batch: int) -> SinkRefused:
    """The answer about a batch that is decided, and that this run does not make visible."""
    return SinkRefused(
        SinkRefusal.EFFECT_UNKNOWN,
        f"batch {batch} of sink {entry.sink.name!r} is decided, but the disk failed before its records could be read: "
        "restart the node, which makes them visible, then ask again",
    )


def cannot_write(entry: SinkEntry, batch: int | None = None) -> SinkRefused:
    """The answer when the disk has failed: what is certain about the batch, if one is to be committed."""
    name = entry.sink.name
    if batch is not None and entry.sink.in_limbo == batch:
        return SinkRefused(
            SinkRefusal.EFFECT_UNKNOWN,
            f"the disk failed while the commit of batch {batch} of sink {name!r} was written: restart the node, then "
            "commit it again to learn whether it is committed",
        )
    return SinkRefused(
        SinkRefusal.STORAGE, f"the disk has failed, and sink {name!r} cannot be changed until the node is restarted"
    )


def _cannot_prepare(sink: str, batch: int, refused: Mapping[LogId, str]) -> SinkRefused:
    _log.warning("batch cannot be prepared", sink=sink, batch=batch, refused=words(refused))
    log, why = next(iter(refused.items()))
    return SinkRefused(
        SinkRefusal.LANE_ABORTED,
        f"batch {batch} of sink {sink!r} cannot be committed: {log}: {why}; write the batch again",
    )


def _counted_there(expected: Mapping[LogId, Expected], counts: Mapping[LogId, Expected]) -> Mapping[LogId, Expected]:
    """The counts of all logs, other shards' included. A log that was deleted there meanwhile is left out."""
    return {log: it for log, it in expected.items() if it.records != UNCOUNTED} | dict(counts)


def _release(held: Sequence[IdEntry]) -> None:
    for id_entry in held:
        id_entry.busy = False
        wake(id_entry)


def _written(commit: SinkCommit) -> tuple[LogId, ...]:
    """The logs to which anything was written."""
    expected = (it for part in commit.parts for it in part.decided.expected.items())
    return tuple(dict.fromkeys(log for log, it in expected if it.records))
