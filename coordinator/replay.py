"""What a replayed group journal says, and what is to be done about it: pure decisions.

`replay` folds the records of one journal into the producers as they stood, and lists what was left half done.
`in_doubt` says what is to be prepared again, and in which order the survivors are applied. `snapshot_records` is the
inverse of `replay`: records from which the same producers arise.

| the last that the journal says of a transaction | what a restart does |
|---|---|
| BEGIN | it goes on; if anything that was appended may be missing, it is aborted, and the id must abort (`Restarted`) |
| BEGIN, then PRODUCER that keeps it | as BEGIN, but it takes no more batches, and the later epoch is to end it |
| BEGIN without logs | nothing is open; the client has moved on from its last commit |
| PREPARE_COMMIT | prepares it again: all can → placed; one cannot → aborted (`Withdrawn`) |
| COMMITTED, ABORTED | nothing |
| PREPARE_ABORT | says DISCARD again, then ABORTED; the id must abort, since the client may have no answer |
| SINK_PREPARE_COMMIT | prepares all its parts again: all can → placed together; one cannot → none is |
| SINK_COMMITTED, SINK_ABORTED | nothing; who writes to which lane is forgotten, and open lanes are aborted |

A transaction whose PREPARE_COMMIT is durable was possibly answered, and then it *can* be prepared again: all
its data were durable before the answer (invariant 5). One that cannot be prepared was never answered.

The fold bears a record twice, and a record that the snapshot before it has taken into account already: a
snapshot's state is taken in one step, but a record may have to wait for room between the step of the
machine that decided it and the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from coordinator.answers import CommittedTransaction, Granted
from coordinator.ending import not_committed, once_committed
from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    ExpiredRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
)
from coordinator.id_records import prepare_commit_record, producer_record
from coordinator.lane_ids import lane_id
from coordinator.machine import copied_in_commit
from coordinator.messages import Expected
from coordinator.producer import Decided, OpenTransaction, Outcome, Producer
from coordinator.sink_commits import NO_BATCH, Fence, SinkCommit, SinkState, joined_places
from coordinator.states import IdState
from coordinator.steps import EPOCH_MAX, kept, next_grant, remember
from fairlog_types import ProducerEpoch, TxId


@dataclass(slots=True)
class Replay:
    """One group journal, read to its end."""

    producers: dict[str, Producer] = field(default_factory=dict[str, Producer])
    """By transactional id, in states EMPTY, OPEN and MUST_ABORT; PREPARE_COMMIT without a decision is in `decided`."""
    half_aborted: dict[TxId, PrepareAbortRecord] = field(default_factory=dict[TxId, PrepareAbortRecord])
    """PREPARE_ABORT without ABORTED."""
    sinks: dict[str, SinkState] = field(default_factory=dict[str, SinkState])
    """By name."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A PREPARE_COMMIT without COMMITTED or PREPARE_ABORT."""

    transactional_id: str
    group: str
    """Whose commits have one order (invariant 6)."""
    decided: Decided
    journal: int

    @property
    def commit_number(self) -> int:
        """Its place in the order of its group journal."""
        return self.decided.commit_number

    @property
    def parts(self) -> tuple[Decided, ...]:
        """What is prepared and placed, all or nothing."""
        return (self.decided,)

    def record(self) -> GroupRecord:
        """PREPARE_COMMIT."""
        return prepare_commit_record(self.transactional_id, self.decided)


@dataclass(frozen=True, slots=True)
class SinkCommitInDoubt:
    """A SINK_PREPARE_COMMIT without SINK_COMMITTED or SINK_ABORTED. Otherwise as `InDoubt`."""

    commit: SinkCommit
    journal: int

    @property
    def group(self) -> str:
        return self.commit.order_group

    @property
    def commit_number(self) -> int:
        return self.commit.commit_number

    @property
    def parts(self) -> tuple[Decided, ...]:
        return tuple(part.decided for part in self.commit.parts)

    def record(self) -> GroupRecord:
        """SINK_PREPARE_COMMIT."""
        return self.commit.record()


def replay(records: Iterable[GroupRecord]) -> Replay:
    """Fold the records of one group journal, in their order."""
    found = Replay()
    for record in records:
        match record:
            case ProducerRecord():
                _fold_producer(found, record)
            case ExpiredRecord(transactional_id):
                found.producers.pop(transactional_id, None)
            case BeginRecord():
                _fold_begin(found, record)
            case PrepareCommitRecord():
                _fold_prepare_commit(found, record)
            case CommittedRecord():
                _fold_committed(found, record)
            case PrepareAbortRecord():
                _fold_prepare_abort(found, record)
            case AbortedRecord():
                _fold_aborted(found, record)
            case SinkRecord():
                _fold_sink(found, record)
            case SinkForgottenRecord(sink):
                found.sinks.pop(sink, None)
            case SinkPrepareCommitRecord():
                _fold_sink_prepare_commit(found, record)
            case SinkCommittedRecord():
                _fold_sink_committed(found, record)
            case SinkAbortedRecord():
                _fold_sink_aborted(found, record)
    for record in found.half_aborted.values():
        producer = found.producers.get(record.transactional_id)
        if producer is not None and _is_current(producer, record.txid) and producer.state is IdState.EMPTY:
            found.producers[record.transactional_id] = producer._replace(state=IdState.MUST_ABORT)
    return found


def in_doubt(replays: Sequence[Replay]) -> list[InDoubt | SinkCommitInDoubt]:
    """What is to be prepared again, over all journals, in the order of journals and PREPARE_COMMITs of either kind."""
    found: list[InDoubt | SinkCommitInDoubt] = []
    for index, one in enumerate(replays):
        found += [
            InDoubt(producer.transactional_id, producer.group, decided, index)
            for producer in one.producers.values()
            for decided in producer.decided
        ]
        found += [SinkCommitInDoubt(commit, index) for sink in one.sinks.values() for commit in sink.prepared]
    return sorted(found, key=lambda it: (it.journal, it.commit_number))


def snapshot_records(producers: Iterable[Producer], sinks: Iterable[SinkState] = ()) -> Iterator[GroupRecord]:
    """Records whose `replay` gives these again, but for what only lives in memory (connections, lanes)."""
    for producer in producers:
        if producer.state is not IdState.UNKNOWN:
            yield from _records_of_id(producer)
    for sink in sinks:
        # One that has never had a batch is made again by whoever joins.
        if sink.fence.batch != NO_BATCH:
            yield sink.record()
        for commit in sink.prepared:
            yield commit.record()


def _records_of_id(producer: Producer) -> Iterator[GroupRecord]:
    transactional_id, now_ms = producer.transactional_id, producer.used_ms
    if producer.is_kept:
        yield from _records_before_it_was_kept(producer)
    yield producer_record(producer, now_ms)
    # In commit order, which is not that of the copies (invariant 6).
    for one in sorted((*producer.committed, *producer.decided), key=lambda it: it.txid):
        if isinstance(one, Decided):
            yield prepare_commit_record(transactional_id, one)
        else:
            yield CommittedRecord(one.txid, transactional_id, one.placements, now_ms)
    if producer.last is Outcome.ABORTED:
        before = TxId(producer.producer_id, producer.epoch, producer.number - 1)
        yield AbortedRecord(before, transactional_id, now_ms)
    transaction = producer.transaction
    if transaction is not None:
        if transaction.kept is None:
            yield BeginRecord(producer.txid, transactional_id, transaction.logs, transaction.started_ms)
        if transaction.expected is not None:
            yield prepare_commit_record(
                transactional_id, Decided(producer.txid, transaction.expected, now_ms, transaction.commit_number)
            )
            if (granted := once_committed(producer)) is not None:
                yield producer_record(granted, now_ms)
    elif producer.moved_on and producer.state is IdState.EMPTY and producer.last is not Outcome.ABORTED:
        yield BeginRecord(producer.txid, transactional_id, {}, now_ms)


def _records_before_it_was_kept(producer: Producer) -> Iterator[GroupRecord]:
    """The epoch of the transaction that was kept, and its BEGIN: the record of the present epoch names it."""
    txid, transaction = producer.txid, producer.transaction
    assert transaction is not None
    before = Producer(
        producer.transactional_id,
        producer_id=txid.producer_id,
        epoch=txid.epoch,
        timeout_ms=producer.open_timeout_ms,
        number=txid.number,
        member_of=producer.member_of,
    )
    yield producer_record(before, transaction.started_ms)
    yield BeginRecord(txid, producer.transactional_id, transaction.logs, transaction.started_ms)


def _is_kept(producer: Producer, txid: TxId) -> bool:
    """Whether this is the open transaction, of an epoch before the present one."""
    return producer.is_kept and producer.txid == txid


def _is_current(producer: Producer, txid: TxId) -> bool:
    return (producer.producer_id, producer.epoch) == (txid.producer_id, txid.epoch)


def _fold_producer(found: Replay, record: ProducerRecord) -> None:
    before = found.producers.get(record.transactional_id) or Producer(record.transactional_id)
    same = (before.producer_id, before.epoch) == (record.producer_id, record.epoch)
    transaction = None
    if record.kept is not None and before.transaction is not None and before.txid == record.kept:
        transaction = kept(before)
    otherwise = IdState.MUST_ABORT if record.must_abort else IdState.EMPTY
    found.producers[record.transactional_id] = before._replace(
        state=otherwise if transaction is None else IdState.OPEN,
        producer_id=record.producer_id,
        epoch=record.epoch,
        last_epoch=record.last_epoch,
        timeout_ms=record.timeout_ms,
        ended=record.ended,
        number=record.next_number,
        last=before.last if same else None,
        moved_on=same and before.moved_on,
        transaction=transaction,
        used_ms=record.timestamp_ms,
        member_of="" if record.group == record.transactional_id else record.group,
    )


def _fold_begin(found: Replay, record: BeginRecord) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is not None and _is_kept(producer, record.txid):
        found.producers[record.transactional_id] = _with_logs(producer, record)
        return
    if producer is None or not _is_current(producer, record.txid) or record.txid.number < producer.number:
        return
    if not record.logs and producer.transaction is None:
        used_ms = max(producer.used_ms, record.timestamp_ms)
        number = record.txid.number
        found.producers[record.transactional_id] = producer._replace(number=number, moved_on=True, used_ms=used_ms)
        return
    found.producers[record.transactional_id] = _with_logs(producer, record)._replace(
        state=IdState.OPEN, number=record.txid.number
    )


def _with_logs(producer: Producer, record: BeginRecord) -> Producer:
    known = producer.transaction or OpenTransaction(record.timestamp_ms, {})
    transaction = known._replace(logs={**known.logs, **record.logs})
    return producer._replace(transaction=transaction, used_ms=max(producer.used_ms, record.timestamp_ms))


def _fold_prepare_commit(found: Replay, record: PrepareCommitRecord) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is None or any(it.txid == record.txid for it in (*producer.decided, *producer.committed)):
        return
    expected = {log: Expected(it.leader_epoch, it.records) for log, it in record.participants.items()}
    after = producer._replace(
        decided=(*producer.decided, Decided(record.txid, expected, record.timestamp_ms, record.commit_number)),
        used_ms=max(producer.used_ms, record.timestamp_ms),
    )
    if _is_current(producer, record.txid):
        after = after._replace(last=Outcome.COMMITTED)
        if record.txid.number >= producer.number:
            number = record.txid.number + 1
            after = after._replace(state=IdState.EMPTY, number=number, moved_on=False, transaction=None)
    elif _is_kept(producer, record.txid):
        after = _with_the_grant_of_its_commit(after)
    found.producers[record.transactional_id] = after


def _fold_committed(found: Replay, record: CommittedRecord) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is None or any(it.txid == record.txid for it in producer.committed):
        return
    was_decided = any(it.txid == record.txid for it in producer.decided)
    after = producer._replace(
        decided=tuple(it for it in producer.decided if it.txid != record.txid),
        committed=remember(producer.committed, CommittedTransaction(record.txid, record.placements)),
    )
    if not was_decided and _is_current(producer, record.txid):
        # Of a snapshot, where PREPARE_COMMIT is left out. Otherwise a later transaction may have ended since.
        after = after._replace(last=Outcome.COMMITTED)
    found.producers[record.transactional_id] = after


def _fold_prepare_abort(found: Replay, record: PrepareAbortRecord) -> None:
    found.half_aborted[record.txid] = record
    producer = found.producers.get(record.transactional_id)
    if producer is None:
        return
    ended = not_committed(producer.ended, record.txid)
    after = producer._replace(ended=ended, decided=tuple(it for it in producer.decided if it.txid != record.txid))
    if ended != producer.ended:  # a commit, and its grant, that could not be answered
        after = after._replace(state=IdState.MUST_ABORT)
    if _is_kept(producer, record.txid):  # until the record says who aborts
        after = _kept_aborted(after)
    after = _ended_by_abort(after, record.txid)
    if any(it.txid == record.txid for it in producer.decided):  # it is the id's last, and was not committed after all
        after = after._replace(last=Outcome.ABORTED if _is_current(after, record.txid) else None)
    found.producers[record.transactional_id] = after


def _with_the_grant_of_its_commit(producer: Producer) -> Producer:
    """After PREPARE_COMMIT of what was kept. The record of the grant is behind it, and may be lost: it says the same.

    If the epochs have run out, nobody is granted the last one, and whoever says the end again gets a fresh producer id.
    """
    granted = next_grant(producer, None) or Granted(producer.producer_id, ProducerEpoch(EPOCH_MAX))
    after = once_committed(producer._replace(next_grant=granted))
    assert after is not None
    return after


def _kept_aborted(producer: Producer) -> Producer:
    """After PREPARE_ABORT of what was kept; the epoch's own transactions have not begun."""
    number = producer.number + 1
    return producer._replace(state=IdState.MUST_ABORT, number=number, last=Outcome.ABORTED, transaction=None)


def _fold_aborted(found: Replay, record: AbortedRecord) -> None:
    found.half_aborted.pop(record.txid, None)
    producer = found.producers.get(record.transactional_id)
    if producer is not None:
        found.producers[record.transactional_id] = _ended_by_abort(producer, record.txid)


def _ended_by_abort(producer: Producer, txid: TxId) -> Producer:
    """If it is the producer's open transaction, or its last: aborted."""
    if not _is_current(producer, txid) or txid.number < producer.number - 1:
        return producer
    if txid.number >= producer.number:
        producer = producer._replace(number=txid.number + 1, transaction=None)
        if producer.state is IdState.OPEN:
            producer = producer._replace(state=IdState.EMPTY)
    elif producer.transaction is not None:
        return producer
    return producer._replace(last=Outcome.ABORTED)


# ----------------------------------------------------------------------------------------------- sinks


def _fold_sink(found: Replay, record: SinkRecord) -> None:
    before = found.sinks.get(record.sink)
    if before is None or before.query != record.query:
        before = SinkState(record.sink, record.query)
    if record.batch > before.fence.batch:
        found.sinks[record.sink] = replace(
            before,
            fence=Fence(record.batch, record.placements, record.planned_ms),
            prepared=tuple(it for it in before.prepared if it.batch > record.batch),
            used_ms=max(before.used_ms, record.timestamp_ms),
        )


def _fold_sink_prepare_commit(found: Replay, record: SinkPrepareCommitRecord) -> None:
    commit = SinkCommit.of_record(record)
    state = found.sinks.get(commit.sink)
    if state is None or state.query != commit.query:
        state = SinkState(commit.sink, commit.query)
    if commit.batch <= state.fence.batch or any(it.parts == commit.parts for it in state.prepared if _same(it, record)):
        return
    others = tuple(it for it in state.prepared if not _same(it, record))
    used_ms = max(state.used_ms, record.timestamp_ms)
    found.sinks[commit.sink] = replace(state, prepared=(*others, commit), used_ms=used_ms)
    for transactional_id, part in zip(commit.lane_ids(), commit.parts, strict=True):
        producer, txid = found.producers.get(transactional_id), part.decided.txid
        if producer is not None and _is_current(producer, txid) and txid.number >= producer.number:
            found.producers[transactional_id] = producer._replace(
                state=IdState.EMPTY,
                number=txid.number + 1,
                last=Outcome.COMMITTED,
                moved_on=False,
                transaction=None,
            )


def _same(commit: SinkCommit, record: SinkPrepareCommitRecord | SinkCommittedRecord | SinkAbortedRecord) -> bool:
    return commit.batch == record.batch


def _fold_sink_committed(found: Replay, record: SinkCommittedRecord) -> None:
    state = found.sinks.get(record.sink)
    if state is None:
        return
    for part in record.parts:
        transactional_id = lane_id(record.sink, part.slot)
        producer = found.producers.get(transactional_id)
        if producer is not None and all(it.txid != part.txid for it in producer.committed):
            found.producers[transactional_id] = copied_in_commit(producer, part.txid, part.placements)
    if record.batch > state.fence.batch:
        places = joined_places(place for part in record.parts for place in part.placements)
        planned_ms = next((it.planned_ms for it in state.prepared if _same(it, record)), None)
        others = tuple(it for it in state.prepared if not _same(it, record))
        used_ms = max(state.used_ms, record.timestamp_ms)
        fence = Fence(record.batch, places, planned_ms)
        found.sinks[record.sink] = replace(state, fence=fence, prepared=others, used_ms=used_ms)


def _fold_sink_aborted(found: Replay, record: SinkAbortedRecord) -> None:
    """A sink that has not had a batch is forgotten with it: whoever joins next makes it again."""
    state = found.sinks.get(record.sink)
    if state is None:
        return
    for commit in state.prepared:
        if _same(commit, record):
            for transactional_id, part in zip(commit.lane_ids(), commit.parts, strict=True):
                producer = found.producers.get(transactional_id)
                if producer is not None:
                    found.producers[transactional_id] = _ended_by_abort(producer, part.decided.txid)
    after = replace(state, prepared=tuple(it for it in state.prepared if not _same(it, record)))
    found.sinks[record.sink] = after
    if after.fence.batch == NO_BATCH and not after.prepared:
        del found.sinks[record.sink]
