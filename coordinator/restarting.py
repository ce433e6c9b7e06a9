"""A restart: what the last run left undecided is decided, before anything is served.

How it works. The journals are replayed (recovery.py says what they mean); what was open is aborted; what was half
aborted is discarded again. Each transaction in doubt is prepared again, its PREPARE_COMMIT written and flushed a second
time. Those that can be prepared are placed in the order that `recovery.place_order` finds, and are copied while
the node serves; the others are withdrawn.

Withdrawn is only what a loss of power can have taken. Where nothing that was appended can be missing
(`tail_kept`), a participant without a journal had one: its records were there before PREPARE_COMMIT. Then the start is
refused, for the commit may have been answered.

Keeps invariants 5 and 6 over a crash. What it decides is durable when it returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
import trio

from coordinator import events as ev
from coordinator import recovery
from coordinator.machine import idle_before, prepare_commit_record
from coordinator.messages import DiscardTransaction, Prepare
from coordinator.producer import Producer
from coordinator.slots import Slot
from coordinator.turns import Turns, words
from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, LogId, StorageFailure, TxId
from journal.group_journal import GroupJournal
from journal.group_records import AbortedRecord

_PREPARED_AT_ONCE = 64

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def recover(turns: Turns, *, tail_kept: bool) -> None:
    """Decide what the last run left undecided (`Coordinator.recover`). Raises StorageFailure or CorruptStorage."""
    replays = [await trio.to_thread.run_sync(_replay, journal) for journal in turns.journals]
    for index, one in enumerate(replays):
        for producer in one.producers.values():
            turns.adopt(producer, index, idle_before(producer, turns.settings, turns.now_ms()))
    for slot in list(turns.slots.values()):
        await turns.carry_out(slot, ev.Restarted(tail_kept, turns.now_ms()))
    # Behind that: with ABORTED alone, a crash in between would let the next start forget that the id must abort.
    for index, one in enumerate(replays):
        for txid, record in one.half_aborted.items():
            slot = turns.slots.get(record.transactional_id) or Slot(Producer(record.transactional_id), index)
            turns.participants.discard(DiscardTransaction(txid, record.logs))
            await turns.append(slot, AbortedRecord(txid, record.transactional_id, turns.now_ms()))
    await _prepare_again(turns, recovery.in_doubt(replays), tail_kept=tail_kept)
    if turns.participants_failure is not None:
        raise turns.participants_failure
    for index, journal in enumerate(turns.journals):
        appended = max((slot.appended for slot in turns.slots.values() if slot.journal == index), default=0)
        await journal.to_disk(JournalPosition(appended))  # else the next loss of power has the same numbers used again


async def _prepare_again(turns: Turns, doubtful: Sequence[recovery.InDoubt], *, tail_kept: bool) -> None:
    """Prepare what is in doubt, place it in order, and withdraw what cannot be prepared."""
    refused: dict[TxId, Mapping[LogId, str]] = {}
    gone: dict[str, TxId] = {}
    failures: list[StorageFailure] = []
    limit = trio.CapacityLimiter(_PREPARED_AT_ONCE)

    async def prepare(one: recovery.InDoubt) -> None:
        slot = turns.slots[one.transactional_id]
        decided = one.decided
        try:
            async with limit:
                # The old PREPARE_COMMIT may be in the page cache only; flushing a second one flushes both.
                await turns.append(slot, prepare_commit_record(one.transactional_id, decided))
                answer = await turns.participants.prepare(Prepare(decided.txid, decided.expected))
                refused[decided.txid] = answer.refused
                gone.update(dict.fromkeys(answer.gone.values(), decided.txid))
                await turns.journals[slot.journal].flush(slot.appended)
        except StorageFailure as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for one in doubtful:
            nursery.start_soon(prepare, one)
    if failures:
        raise failures[0]
    if gone and tail_kept:
        directory, txid = next(iter(gone.items()))
        raise CorruptStorage(
            f"the journal {directory} is missing: transaction {txid} was to be committed and has records there. "
            "Put back an intact copy of the directory; starting without it would lose what was answered."
        )
    prepared = [one for one in doubtful if not refused[one.decided.txid]]
    for one in doubtful:
        txid = one.decided.txid
        if refused[txid]:
            _log.warning("transaction did not survive the crash", txid=str(txid), refused=words(refused[txid]))
            await turns.carry_out(turns.slots[one.transactional_id], ev.Withdrawn(txid, turns.now_ms()))
    surviving: dict[TxId, ApplyNumber | None] = {
        one.decided.txid: turns.participants.surviving_apply_number(one.decided.txid, tuple(one.decided.expected))
        for one in prepared
    }
    for one in recovery.place_order(prepared, surviving):
        turns.place_again(turns.slots[one.transactional_id], one.decided)


def _replay(journal: GroupJournal) -> recovery.Replay:
    return recovery.replay(journal.replay())
