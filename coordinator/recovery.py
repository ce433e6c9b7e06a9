"""A restart: what the last run left undecided is decided, before anything is served.

How it works. The journals are replayed (recovery.py says what they mean). What was open goes on: the leaders, which
have read its batches from their journals, are told so. If something that was appended may be missing, it is aborted.
What was half aborted is discarded again. Each transaction in doubt is prepared again, its PREPARE_COMMIT written and
flushed a second time. Those that can be prepared are applied again in their commit order (the participants find the
order between groups), and are copied while the node serves; the others are withdrawn.

Withdrawn is only what a loss of power can have taken. Where nothing that was appended can be missing
(`tail_kept`), a participant without a journal had one: its records were there before PREPARE_COMMIT. Then the start is
refused, for the commit may have been answered.

Keeps invariants 5 and 6 over a crash. What it decides is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import trio

from coordinator import events as ev
from coordinator.executor import Executor, words
from coordinator.expiry import idle_before, open_before
from coordinator.group_journal import GroupJournal
from coordinator.group_records import AbortedRecord
from coordinator.id_entry import IdEntry
from coordinator.journals import Recorded
from coordinator.lane_ids import is_lane
from coordinator.messages import DiscardTransaction, Prepared
from coordinator.producer import Producer
from coordinator.replay import InDoubt, Replay, SinkCommitInDoubt, in_doubt, replay
from coordinator.sinks.service import Sinks
from coordinator.transaction_groups import group_of
from fairlog_types import CorruptStorage, JournalPosition, StorageFailure

_PREPARED_AT_ONCE = 64

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def recover(executor: Executor, sinks: Sinks, *, tail_kept: bool) -> None:
    """Decide what the last run left undecided (`Coordinator.recover`). Raises StorageFailure or CorruptStorage."""
    replays = [await trio.to_thread.run_sync(_replay, journal) for journal in executor.journals]
    for index, one in enumerate(replays):
        for producer in one.producers.values():
            now_ms = executor.now_ms()
            idle_ms = idle_before(producer, executor.settings, now_ms)
            executor.table.adopt(producer, index, idle_ms=idle_ms, open_ms=open_before(producer, now_ms))
        for state in one.sinks.values():
            sinks.adopt(state, index)
    _tell_of_other_groups(executor)
    for transactional_id, entry in list(executor.table.entries.items()):
        await executor.carry_out(entry, ev.Restarted(tail_kept, not is_lane(transactional_id), executor.now_ms()))
    # Behind that: with ABORTED alone, a crash in between would let the next start forget that the id must abort.
    for index, one in enumerate(replays):
        for txid, record in one.half_aborted.items():
            entry = executor.table.entries.get(record.transactional_id) or IdEntry(
                Producer(record.transactional_id), index
            )
            executor.participants.discard(DiscardTransaction(txid, record.logs))
            await executor.journals.append(entry, AbortedRecord(txid, record.transactional_id, executor.now_ms()))
    await _prepare_again(executor, sinks, in_doubt(replays), tail_kept=tail_kept)
    if executor.journals.all_refused is not None:
        raise executor.journals.all_refused
    for index, journal in enumerate(executor.journals):
        recorded: list[Recorded] = [*executor.table.entries.values(), *sinks.entries()]
        appended = max((it.appended for it in recorded if it.journal == index), default=0)
        await journal.to_disk(JournalPosition(appended))  # else the next loss of power has the same numbers used again


def _tell_of_other_groups(executor: Executor) -> None:
    """Those made when another separator was set share no commit order with new ids of the same name."""
    separator = executor.settings.group_separator
    others = [
        transactional_id
        for transactional_id, entry in executor.table.entries.items()
        if entry.producer.group != group_of(transactional_id, separator)
    ]
    if others:
        _log.warning(
            "transactional ids stay in the groups that they were made in until they expire; use new ids to have "
            "transactions.group_separator count at once",
            transactional_ids=len(others),
            first=others[0],
        )


async def _prepare_again(
    executor: Executor, sinks: Sinks, doubtful: Sequence[InDoubt | SinkCommitInDoubt], *, tail_kept: bool
) -> None:
    """Prepare what is in doubt, place it in order, and withdraw what cannot be prepared: of a group all or nothing."""
    prepared: list[Prepared | None] = [None] * len(doubtful)
    failures: list[StorageFailure] = []
    limit = trio.CapacityLimiter(_PREPARED_AT_ONCE)

    async def prepare(index: int, one: InDoubt | SinkCommitInDoubt) -> None:
        written_by: Recorded = (
            executor.table.entries[one.transactional_id] if isinstance(one, InDoubt) else sinks.entry_of(one.commit)
        )
        try:
            async with limit:
                # The old PREPARE_COMMIT may be in the page cache only; flushing a second one flushes both.
                await executor.journals.append(written_by, one.record())
                messages = [it.prepare() for it in one.parts]
                prepared[index] = await executor.participants.prepare(messages).outcome()
                await executor.journals[one.journal].flush(written_by.appended)
        except StorageFailure as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for index, one in enumerate(doubtful):
            nursery.start_soon(prepare, index, one)
    if failures:
        raise failures[0]
    answers = [it for it in prepared if it is not None]
    if tail_kept:
        for one, answer in zip(doubtful, answers, strict=True):
            _refuse_what_is_gone(one, answer)
    going_on: list[InDoubt | SinkCommitInDoubt] = []
    for one, answer in zip(doubtful, answers, strict=True):
        if not answer.refused:
            going_on.append(one)
            continue
        txids = [str(it.txid) for it in one.parts]
        _log.warning("transaction did not survive the crash", txids=txids, refused=words(answer.refused))
        if isinstance(one, InDoubt):
            withdrawn = ev.Withdrawn(one.decided.txid, executor.now_ms())
            await executor.carry_out(executor.table.entries[one.transactional_id], withdrawn)
        else:
            _log.warning("batch is withdrawn, and is to be written again", sink=one.commit.sink, batch=one.commit.batch)
            await sinks.withdraw(one.commit)
    for one in going_on:
        if isinstance(one, InDoubt):
            executor.place_again(executor.table.entries[one.transactional_id], one.decided)
        else:
            sinks.place_again(one.commit)


def _refuse_what_is_gone(one: InDoubt | SinkCommitInDoubt, prepared: Prepared) -> None:
    """Raises CorruptStorage if a log's journal is missing, of which nothing can be missing."""
    for log, directory in prepared.gone.items():
        txid = next(it.txid for it in one.parts if log in it.expected)
        raise CorruptStorage(
            f"the journal {directory} is missing: transaction {txid} was to be committed and has records there. "
            "Put back an intact copy of the directory; starting without it would lose what was answered."
        )


def _replay(journal: GroupJournal) -> Replay:
    return replay(journal.replay())
