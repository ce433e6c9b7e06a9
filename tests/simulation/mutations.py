"""Planted bugs, one at a time: the simulation has to find every one, else it proves nothing.

Each is a small change of the node's own code, such as a tired programmer makes: a flush left out, a check left out, two
steps in the wrong order, an end off by one. `python -m tests.simulation --mutations` runs each until a seed finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import lmdb
import trio

import coordinator.housekeeping
import coordinator.machine
import coordinator.recovery
import coordinator.restarting
import coordinator.sinks.service
import coordinator.sinks.sink
import copier.apply
import copier.copier
import copier.plan
import copier.staging
import datalog.environment
import journal.local_state
import journal.segment_file
from coordinator import events as ev
from coordinator.answers import Refusal
from coordinator.messages import Applied, Prepared
from coordinator.producer import Outcome, Producer
from coordinator.service import Coordinator
from coordinator.sinks.committing import Committing
from coordinator.sinks.sink import Sink
from coordinator.states import EventKind, IdState
from coordinator.turns import Turns
from copier.backlog import Backlog
from copier.copier import Copier
from copier.plan import Group
from copier.reclaim import Reclaimer
from datalog.environment import LmdbDataLogs
from datalog.interface import Mark
from datalog.writer import LmdbWriter
from fairlog.leaders import LocalLeaders
from fairlog.participants import LocalParticipants
from fairlog_types import JournalPosition, LeaderEpoch, LogId, TxId
from journal import failpoints
from journal.group_journal import GroupJournal
from journal.group_records import ProducerRecord
from journal.journal import Journal
from journal.local_state import LocalState
from journal.producer_window import ACCEPT, DuplicateOf
from journal.segment_file import SegmentFile

Plant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    name: str
    what: str
    """What the code does then."""
    plant: Plant


def _planted(name: str) -> Plant:
    return lambda: mock.patch.object(failpoints, "_planted", name)


def _patched(owner: object, name: str, new: object) -> Plant:
    return lambda: mock.patch.object(owner, name, new)


# --- journals ---


@contextmanager
def _flush_is_skipped() -> Iterator[None]:
    def sync(self: SegmentFile, _sync: object) -> JournalPosition:
        return self.end

    with mock.patch.object(SegmentFile, "sync", sync), mock.patch.object(Journal, "flush_file", return_value=None):
        yield


def _flush_covers_what_came_later(self: Journal, outcome: JournalPosition | OSError) -> None:
    _REAL_FLUSH_DONE(self, outcome if isinstance(outcome, OSError) else self.end)


def _failed_flush_passes(self: Journal, outcome: JournalPosition | OSError) -> None:
    _REAL_FLUSH_DONE(self, self.end if isinstance(outcome, OSError) else outcome)


_REAL_FLUSH_DONE = Journal.flush_done


def _frame_claims_too_much(self: Journal, *args: Any) -> Any:
    real, self._synced = self._synced, self.end
    try:
        return _REAL_ENCODE(self, *args)
    finally:
        self._synced = real


_REAL_ENCODE = Journal._encode


def _publish_without_its_directory(self: SegmentFile) -> None:
    journal.segment_file.os.rename(self.path, self._directory / journal.segment_file.segment_name(self.base))
    self.published = True
    failpoints.reach("journal.roll.after_publish")


def _publish_before_sealing(self: Journal) -> Callable[[], JournalPosition]:
    chain = self._under_flush = tuple(self._writing)
    sync = self._flusher.sync

    def work() -> JournalPosition:
        active = chain[-1]
        through = active.sync(sync)
        for segment in chain:
            if not segment.published:
                segment.publish()
        for segment in chain[:-1]:
            segment.seal(sync)
        return through

    return work


async def _snapshot_is_not_synced(self: GroupJournal, as_of: JournalPosition, records: Sequence[Any]) -> None:
    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    await self._journal.roll()
    await self._journal.sync()
    with mock.patch.object(self._journal, "sync", nothing):
        await _REAL_WRITE_SNAPSHOT(self, as_of, list(records))


_REAL_WRITE_SNAPSHOT = GroupJournal._write_snapshot


# --- local state ---


def _any_count_is_held(self: LocalState, *_: object) -> str | None:
    return None


def _sequences_unchecked(*args: Any) -> Any:
    found = _REAL_CHECK_SEQUENCE(*args)
    return ACCEPT if isinstance(found, DuplicateOf) else found


_REAL_CHECK_SEQUENCE = journal.local_state.check_sequence


# --- copier and data logs ---


def _mark_too_far(log_plan: Any, next_offset: Any, writer: Any) -> Mark:
    farther = replace(log_plan, copied_through=JournalPosition(log_plan.copied_through + 8))
    return _REAL_COPY_STATE(farther, next_offset, writer)


_REAL_COPY_STATE = copier.apply._copy_state


def _mark_too_near(log: Any, items: Any) -> Any:
    plan = _REAL_PLAN_LOG(log, items)
    return plan if len(items) == 1 else replace(plan, copied_through=items[-2].end, replay_from=items[-2].replay_from)


_REAL_PLAN_LOG = copier.plan._plan_log


async def _does_not_wait(*_: object) -> None:
    await trio.lowlevel.checkpoint()


@contextmanager
def _copies_what_is_not_durable() -> Iterator[None]:
    def take(self: Backlog, _: object, *, bytes_max: int) -> Any:
        return _REAL_TAKE(self, lambda _: True, bytes_max=bytes_max)

    with (
        mock.patch.object(Copier, "_are_durable", _does_not_wait),
        mock.patch.object(Backlog, "take", take),
    ):
        yield


_REAL_TAKE = Backlog.take


def _waits_for_open_transactions(self: Copier, group: Group, *, order: str | None = None) -> None:
    """What marker mode's readers do: nothing becomes visible before what was open when it was decided has ended."""
    waiting, open_from = _WAITING.setdefault(self, ([], {}))
    waiting.append((group, order))
    open_from.update({item.log: item.replay_from for item in group})
    while waiting and all(open_from[item.log] >= item.end for item in waiting[0][0]):
        first, its_order = waiting.pop(0)
        _REAL_SUBMIT(self, first, order=its_order)


_WAITING: WeakKeyDictionary[Copier, tuple[list[tuple[Group, str | None]], dict[LogId, JournalPosition]]] = (
    WeakKeyDictionary()
)
"""By copier: what waits, and by log from where on transactions are open."""
_REAL_SUBMIT = Copier.submit


def _copies_log_by_log(groups: Any, *rest: Any) -> Any:
    copied = [_REAL_APPLY([(item,)], *rest) for group in groups for item in group]
    last = copied[-1]
    merged: dict[str, dict[Any, Any]] = {"marks": {}, "high_watermarks": {}, "last_stable": {}}
    for one in copied:
        for name, found in merged.items():
            found.update(getattr(one, name))
    return replace(last, **merged)


_REAL_APPLY = copier.apply.apply


def _ends_move_with_each_stage(pieces: Any, data_logs: Any, journals: Any, dropped: Any) -> Any:
    sizes = _REAL_STAGE(pieces, data_logs, journals, dropped)
    with data_logs.write() as writer:
        for log in sizes:
            record = writer._record(log)
            record.next_offset = writer._staged_end(log)
            writer._changed.add(log)
    return sizes


_REAL_STAGE = copier.apply.stage


@contextmanager
def staged(*plants: Plant) -> Iterator[None]:
    """Every transaction is copied in stages of a batch; and what is planted."""
    with ExitStack() as stack:
        for name in ("STAGED_FROM_BYTES", "STAGE_BYTES"):
            stack.enter_context(mock.patch.object(copier.staging, name, 1))
        for plant in plants:
            stack.enter_context(plant())
        yield


async def _reclaims_without_sync(self: Reclaimer) -> None:
    with mock.patch.object(type(self._data_logs), "sync", return_value=None):
        await _REAL_RECLAIM(self)


_REAL_RECLAIM = Reclaimer.reclaim


def _commit_is_tried_again(_self: LmdbDataLogs, txn: lmdb.Transaction) -> None:
    try:
        txn.commit()
    except lmdb.Error:
        txn.commit()


# --- participants ---


async def _applied_at_once(self: LocalParticipants, messages: Any) -> list[Applied]:
    await trio.lowlevel.checkpoint()
    return [Applied(self.placed(message)) for message in messages]


async def _prepares_without_flush(self: LocalParticipants, messages: Any) -> Prepared:
    await trio.lowlevel.checkpoint()
    refused = {
        log: reason
        for message in messages
        for log, expected in message.expected.items()
        if (reason := self._writer.led[log].state.holds(message.txid, expected.leader_epoch, expected.records))
    }
    return Prepared(refused)


def _any_epoch_may_write(self: LocalParticipants, producer_id: Any, epoch: Any) -> Any:
    return self._open.get(producer_id) or _REAL_OPEN_TRANSACTION(self, producer_id, epoch)


_REAL_OPEN_TRANSACTION = LocalParticipants.open_transaction


def _submits_one_by_one(self: LocalParticipants, messages: Any) -> None:
    real = self._writer.submit

    def submit(group: Any, **more: Any) -> None:
        for item in group:
            real((item,), **more)

    with mock.patch.object(self._writer, "submit", submit):
        _REAL_PLACE_TOGETHER(self, messages)


def _places_lane_by_lane(self: LocalParticipants, messages: Any) -> None:
    for message in messages:
        _REAL_PLACE_TOGETHER(self, (message,))


def _places_all_lanes_but_one(self: LocalParticipants, messages: Any) -> None:
    _REAL_PLACE_TOGETHER(self, messages[: max(1, len(messages) - 1)])


_REAL_PLACE_TOGETHER = LocalParticipants.place_together


# --- coordinator ---


def _late_is_accepted(producer: Any, event: Any) -> Any:
    return _REAL_REFUSAL(producer, replace(event, connection=1 << 60))


_REAL_REFUSAL = coordinator.machine._refusal


def _epoch_is_not_checked(producer: Any, event: Any) -> Any:
    return _REAL_REFUSAL(producer, replace(event, epoch=producer.epoch))


@contextmanager
def _grant_is_not_flushed() -> Iterator[None]:
    def without_flush(grant: Callable[..., Any]) -> Callable[..., Any]:
        def granted(*args: Any) -> Any:
            after, effects = grant(*args)
            return after, tuple(effect for effect in effects if not isinstance(effect, ev.Flush))

        return granted

    machine = coordinator.machine
    with (
        mock.patch.object(machine, "_grant", without_flush(machine._grant)),
        mock.patch.object(machine, "_grant_again", without_flush(machine._grant_again)),
    ):
        yield


async def _decides_before_its_record_is_durable(self: Turns, slot: Any, effect: Any) -> Any:
    index = slot.journal
    with mock.patch.object(self.journals[index], "flush", _does_not_wait):
        return await _REAL_PREPARE(self, slot, effect)


_REAL_PREPARE = Turns._prepare


def _timeout_without_fence(producer: Any, event: Any) -> Any:
    after = replace(producer, state=IdState.EMPTY, number=producer.number + 1, last=Outcome.ABORTED, transaction=None)
    return after, tuple(coordinator.machine._abort_open(producer, event.now_ms))


@contextmanager
def _timeout_forgets_the_client() -> Iterator[None]:
    machine = coordinator.machine
    rules: Mapping[Any, Any] = {
        pair: _timeout_without_fence if rule is machine._end_by_force else rule for pair, rule in machine._RULES.items()
    }
    with mock.patch.object(machine, "_RULES", rules):
        yield


def _resume_without_its_batches(self: LocalState, txid: TxId) -> LeaderEpoch | str:
    transaction = self.open_transactions.get(txid)
    if transaction is not None:
        transaction.batches.clear()
        transaction.records = 0
    return _REAL_RESUME(self, txid)


@contextmanager
def _first_log_is_forgotten() -> Iterator[None]:
    def resume(self: LocalParticipants, message: Any) -> Any:
        leader = self._writer.led.get(message.logs[0])
        if leader is not None:
            with mock.patch.object(LocalState, "resume", _resume_without_its_batches):
                leader.state.resume(message.txid)
        return _REAL_RESUME_ALL(self, message)

    with mock.patch.object(LocalParticipants, "resume", resume):
        yield


def _resume_with_half_its_batches(self: LocalState, txid: TxId) -> LeaderEpoch | str:
    transaction = self.open_transactions.get(txid)
    if transaction is not None and transaction.batches:
        del transaction.batches[(len(transaction.batches) + 1) // 2 :]
        transaction.records = sum(batch.record_count for batch in transaction.batches)
    return _REAL_RESUME(self, txid)


_REAL_RESUME = LocalState.resume
_REAL_RESUME_ALL = LocalParticipants.resume


def _aborts_what_was_open(producer: Producer, event: ev.Restarted) -> Any:
    return _REAL_RESTARTED(producer, replace(event, goes_on=False))


_REAL_RESTARTED = coordinator.machine._restarted


def _end_by_force_without_its_record(producer: Producer, event: Any) -> Any:
    after, effects = _REAL_END_BY_FORCE(producer, event)
    kept = (it for it in effects if not (isinstance(it, ev.Append) and isinstance(it.record, ProducerRecord)))
    return after, tuple(kept)


_REAL_END_BY_FORCE = coordinator.machine._end_by_force


@contextmanager
def _rule_replaced(real: Any, new: Any) -> Iterator[None]:
    machine = coordinator.machine
    rules: Mapping[Any, Any] = {pair: new if rule is real else rule for pair, rule in machine._RULES.items()}
    with mock.patch.object(machine, "_RULES", rules):
        yield


@dataclass(frozen=True, slots=True)
class _ToldProducer(Producer):
    """A producer of which one connection has been told that its transaction is aborted."""

    told: tuple[int, int] = (-1, -1)
    """The number of what would be the next transaction, and the connection."""


def _told(producer: Producer, connection: int) -> Producer:
    values = {each.name: getattr(producer, each.name) for each in fields(Producer)}
    return _ToldProducer(**values, told=(producer.number, connection))


def _whoever_was_told_begins_anew(producer: Producer, event: ev.Add) -> Any:
    machine = coordinator.machine
    if isinstance(producer, _ToldProducer) and producer.told == (producer.number, event.connection):
        return machine._add(replace(producer, state=IdState.EMPTY), event)
    after, effects = machine._add_after_abort(producer, event)
    return (after if after is producer else _told(after, event.connection)), effects


@contextmanager
def _told_clients_may_begin() -> Iterator[None]:
    machine = coordinator.machine
    pair = (IdState.MUST_ABORT, EventKind.ADD)
    after = machine.NEXT_STATES[pair] | {IdState.EMPTY}
    with (
        mock.patch.object(machine, "_RULES", {**machine._RULES, pair: _whoever_was_told_begins_anew}),
        mock.patch.object(machine, "NEXT_STATES", {**machine.NEXT_STATES, pair: after}),
    ):
        yield


# --- sinks ---


def _fence_is_forgotten(found: Any, record: Any) -> None:
    before = found.sinks.get(record.sink)
    _REAL_FOLD_GROUP_COMMITTED(found, record)
    if before is not None:
        found.sinks[record.sink] = replace(found.sinks[record.sink], fence=before.fence)


_REAL_FOLD_GROUP_COMMITTED = coordinator.recovery._fold_group_committed


def _snapshot_without_sinks(producers: Any, _sinks: Any = ()) -> Any:
    return _REAL_SNAPSHOT_RECORDS(producers)


_REAL_SNAPSHOT_RECORDS = coordinator.recovery.snapshot_records


def _any_count_is_sealed(self: Committing, winners: Any) -> Any:
    found = []
    for winner, lane in winners:
        slot = self._turns.slots.get(lane.transactional_id)
        records = winner.records
        if slot is not None and slot.producer.transaction is not None:
            sealed = self._turns.participants.seal(slot.producer.txid, tuple(slot.producer.transaction.logs))
            records = sum(it.records for it in sealed.values())
        found.append((replace(winner, records=records), lane))
    return _REAL_SEAL(self, found)


_REAL_SEAL = Committing._seal


def _grants_to_anybody(lane: Any, producer: Any, event: Any) -> Any:
    if isinstance(event, ev.Init) and lane is not None:
        lane.claimed_by = lane.granted = None
    return _REAL_ADMIT(lane, producer, event)


def _lets_lanes_commit(lane: Any, producer: Any, event: Any) -> Any:
    refused = _REAL_ADMIT(lane, producer, event)
    return None if refused is Refusal.LANE else refused


_REAL_ADMIT = coordinator.sinks.sink.admit


async def _decides_the_batch_before_its_record_is_durable(self: Committing, entry: Any, group: Any) -> Any:
    with mock.patch.object(self._turns.journals[entry.journal], "flush", _does_not_wait):
        return await _REAL_PREPARE_GROUP(self, entry, group)


_REAL_PREPARE_GROUP = Committing._prepare


async def _is_visible_at_once(*_: object) -> bool:
    await trio.lowlevel.checkpoint()
    return True


def _no_batch_is_in_doubt(replays: Any) -> Any:
    return [it for it in _REAL_IN_DOUBT(replays) if isinstance(it, coordinator.recovery.InDoubt)]


_REAL_IN_DOUBT = coordinator.recovery.in_doubt


def _any_query_may_write(self: Sink, _query: str, run: str) -> Any:
    return _REAL_SINK_REFUSAL(self, self.query, run)


_REAL_SINK_REFUSAL = Sink.refusal


async def _tail_is_always_taken_for_kept(self: Coordinator, *, tail_kept: bool) -> None:
    del tail_kept
    await _REAL_RECOVER(self, tail_kept=True)


_REAL_RECOVER = Coordinator.recover


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "skip-flush-of-one-participant",
        "*prepare* answers without flushing one of its journals",
        _planted("skip-flush-of-one-participant"),
    ),
    Mutation("apply-before-prepared", "APPLY is written before all have prepared", _planted("apply-before-prepared")),
    Mutation(
        "leave-one-log-undecided", "a commit is placed in all logs but the last", _planted("leave-one-log-undecided")
    ),
    Mutation(
        "prepare-without-flush",
        "*prepare* flushes nothing",
        _patched(LocalParticipants, "prepare_together", _prepares_without_flush),
    ),
    Mutation("flush-skipped", "no flush reaches the disk", _flush_is_skipped),
    Mutation(
        "flush-covers-later-frames",
        "what was appended during a flush counts as flushed",
        _patched(Journal, "flush_done", _flush_covers_what_came_later),
    ),
    Mutation(
        "failed-flush-passes", "a flush that has failed counts", _patched(Journal, "flush_done", _failed_flush_passes)
    ),
    Mutation(
        "frame-claims-too-much",
        "a frame says that all before it was durable",
        _patched(Journal, "_encode", _frame_claims_too_much),
    ),
    Mutation(
        "segment-name-not-synced",
        "a segment gets its name, and its directory is not synced",
        _patched(SegmentFile, "publish", _publish_without_its_directory),
    ),
    Mutation(
        "publish-before-seal",
        "the next segment gets its name before the full one is sealed",
        _patched(Journal, "flush_work", _publish_before_sealing),
    ),
    Mutation(
        "snapshot-not-synced",
        "a group journal's old segments go before its snapshot is on disk",
        _patched(GroupJournal, "_write_snapshot", _snapshot_is_not_synced),
    ),
    Mutation(
        "count-unchecked", "*prepare* does not look what is held", _patched(LocalState, "holds", _any_count_is_held)
    ),
    Mutation(
        "duplicates-accepted",
        "a repeated batch is taken for a new one",
        _patched(journal.local_state, "check_sequence", _sequences_unchecked),
    ),
    Mutation(
        "open-transaction-not-pinned",
        "the mark lets go of an open transaction's frames",
        _patched(LocalState, "pinned_from", lambda _self, end: end),
    ),
    Mutation(
        "mark-too-far",
        "the copied-through mark is eight bytes too far",
        _patched(copier.apply, "_copy_state", _mark_too_far),
    ),
    Mutation(
        "mark-too-near",
        "the copied-through mark is one frame short",
        _patched(copier.plan, "_plan_log", _mark_too_near),
    ),
    Mutation("copy-before-durable", "the copier does not wait for the journals", _copies_what_is_not_durable),
    Mutation(
        "open-transaction-waited-for",
        "the copier waits for the end of the transactions that are open beside a decided one",
        _patched(Copier, "submit", _waits_for_open_transactions),
    ),
    Mutation(
        "copy-log-by-log",
        "a transaction's logs are copied in several write blocks",
        _patched(copier.copier, "apply", _copies_log_by_log),
    ),
    Mutation(
        "ends-moved-before-the-last-stage",
        "a log's end moves with each stage of a large copy",
        lambda: staged(_patched(copier.copier, "stage", _ends_move_with_each_stage)),
    ),
    Mutation(
        "staged-remains-are-kept",
        "what a crash has left of a large copy is still there when the data logs are opened",
        lambda: staged(_patched(datalog.environment, "_delete_staged", lambda *_: None)),
    ),
    Mutation(
        "anybody-goes-past",
        "others go past a large copy though they have logs in common with it",
        lambda: staged(_patched(Backlog, "_must_wait", lambda *_: False)),
    ),
    Mutation(
        "window-not-kept",
        "the data log does not keep the producers' windows",
        _patched(LmdbWriter, "put_producer", lambda *_: None),
    ),
    Mutation(
        "reclaim-without-sync",
        "segments go before the data logs are synced",
        _patched(Reclaimer, "reclaim", _reclaims_without_sync),
    ),
    Mutation(
        "failed-commit-tried-again",
        "a commit of the data logs that has failed is tried again",
        _patched(LmdbDataLogs, "_commit", _commit_is_tried_again),
    ),
    Mutation(
        "committed-before-copy",
        "COMMITTED is written before the copy",
        _patched(LocalParticipants, "applied_together", _applied_at_once),
    ),
    Mutation(
        "fence-not-written",
        "a transaction of a new epoch begins in a log without its fence",
        _patched(LocalState, "needs_fence", lambda *_: False),
    ),
    Mutation(
        "zombie-writes",
        "a batch of an older epoch goes into the newer one's transaction",
        _patched(LocalParticipants, "open_transaction", _any_epoch_may_write),
    ),
    Mutation(
        "parts-apart",
        "the parts of a transaction go to the copier one by one",
        _patched(LocalParticipants, "place_together", _submits_one_by_one),
    ),
    Mutation(
        "lanes-apart",
        "the lanes of a batch are placed one by one",
        _patched(LocalParticipants, "place_together", _places_lane_by_lane),
    ),
    Mutation(
        "one-lane-not-placed",
        "a batch is placed without its last lane",
        _patched(LocalParticipants, "place_together", _places_all_lanes_but_one),
    ),
    Mutation(
        "fence-not-recovered",
        "a start forgets which batch a sink has had",
        _patched(coordinator.recovery, "_fold_group_committed", _fence_is_forgotten),
    ),
    Mutation(
        "fence-not-in-snapshot",
        "a group journal's snapshot leaves out the sinks",
        _patched(coordinator.housekeeping.recovery, "snapshot_records", _snapshot_without_sinks),
    ),
    Mutation(
        "fence-not-asked",
        "a batch that the sink has had may be committed again",
        _patched(Sink, "repeated", lambda *_: None),
    ),
    Mutation(
        "losers-not-dropped",
        "a commit leaves the lanes open that have lost",
        _patched(Committing, "drop", _does_not_wait),
    ),
    Mutation(
        "lane-count-unchecked",
        "a commit does not look how many records a lane holds",
        _patched(Committing, "_seal", _any_count_is_sealed),
    ),
    Mutation(
        "lane-granted-twice",
        "a lane's id is granted to whoever asks for it",
        _patched(coordinator.sinks.service, "admit", _grants_to_anybody),
    ),
    Mutation(
        "lane-commits-alone",
        "EndTxn commits a lane",
        _patched(coordinator.sinks.service, "admit", _lets_lanes_commit),
    ),
    Mutation(
        "batch-not-flushed",
        "a batch is answered before GROUP_PREPARE_COMMIT is on disk",
        _patched(Committing, "_prepare", _decides_the_batch_before_its_record_is_durable),
    ),
    Mutation(
        "batch-answered-at-its-decision",
        "a batch is answered before it is copied",
        _patched(Committing, "until_visible", _is_visible_at_once),
    ),
    Mutation(
        "batch-in-doubt-forgotten",
        "a start does not finish the batch that was being committed",
        _patched(coordinator.recovery, "in_doubt", _no_batch_is_in_doubt),
    ),
    Mutation(
        "another-query-accepted",
        "any query may write to a sink",
        _patched(Sink, "refusal", _any_query_may_write),
    ),
    Mutation(
        "late-end-accepted",
        "EndTxn on an older connection is carried out",
        _patched(coordinator.machine, "_refusal", _late_is_accepted),
    ),
    Mutation(
        "epoch-unchecked",
        "the coordinator takes requests of any epoch",
        _patched(coordinator.machine, "_refusal", _epoch_is_not_checked),
    ),
    Mutation("grant-not-flushed", "InitProducerId is answered before its epoch is on disk", _grant_is_not_flushed),
    Mutation(
        "decision-not-flushed",
        "a commit is answered before PREPARE_COMMIT is on disk",
        _patched(Turns, "_prepare", _decides_before_its_record_is_durable),
    ),
    Mutation("timeout-without-fence", "a time-out aborts, and the client may go on", _timeout_forgets_the_client),
    Mutation(
        "must-abort-not-asked",
        "a start behind a loss of power trusts the group journals' tails",
        _patched(Coordinator, "recover", _tail_is_always_taken_for_kept),
    ),
    Mutation(
        "doubt-forgotten",
        "a start does not finish what was being committed",
        _patched(coordinator.recovery, "in_doubt", lambda _: []),
    ),
    Mutation(
        "batch-forgotten-at-the-start",
        "a start forgets what a transaction that goes on has written to the first of its logs",
        _first_log_is_forgotten,
    ),
    Mutation(
        "deadline-begins-anew",
        "a transaction that goes on after a start has its whole time-out again",
        _patched(coordinator.restarting, "open_before", lambda *_: 0),
    ),
    Mutation(
        "fence-lost-at-the-start",
        "the epoch that a time-out has bumped is not written down",
        lambda: _rule_replaced(coordinator.machine._end_by_force, _end_by_force_without_its_record),
    ),
    Mutation(
        "count-of-half-a-journal",
        "what a transaction that goes on holds is counted over the first half of its batches",
        _patched(LocalState, "resume", _resume_with_half_its_batches),
    ),
    Mutation(
        "open-transaction-aborted-at-the-start",
        "a start aborts what is open, though nothing is lost",
        lambda: _rule_replaced(coordinator.machine._restarted, _aborts_what_was_open),
    ),
    Mutation(
        "told-client-begins-anew",
        "a client that was told once of an abort may begin anew in the same epoch",
        _told_clients_may_begin,
    ),
    Mutation(
        "recovery-not-copied",
        "a start serves before what it has found is copied",
        _patched(LocalLeaders, "drain", _does_not_wait),
    ),
)
