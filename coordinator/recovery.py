"""What a replayed group journal says, and what is to be done about it: pure decisions.

`replay` folds the records of one journal into the producers as they stood, and lists what was left
half done. `in_doubt` and `place_order` say what is to be prepared again and in which order the survivors are
placed. `snapshot_records` is the inverse of `replay`: records from which the same producers arise.

| the last that the journal says of a transaction | what a restart does |
|---|---|
| BEGIN | aborts it; the id must abort (`Restarted`) |
| PREPARE_COMMIT | prepares it again: all can → placed; one cannot → aborted (`Withdrawn`) |
| COMMITTED, ABORTED | nothing |
| PREPARE_ABORT | says DISCARD again, then ABORTED; the id must abort, since the client may have no answer |

A transaction whose PREPARE_COMMIT is durable was possibly answered, and then it *can* be prepared again: all
its data were durable before the answer (invariant 5). One that cannot be prepared was never answered.

The fold bears a record twice, and a record that the snapshot before it has taken into account already: a
snapshot's state is taken in one step, but a record may have to wait for room between the step of the
machine that decided it and the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.answers import CommittedTransaction
from coordinator.machine import group_of, prepare_commit_record, producer_record, remember
from coordinator.messages import Expected
from coordinator.producer import Decided, OpenTransaction, Outcome, Producer
from coordinator.states import IdState
from fairlog_types import ApplyNumber, TxId
from journal.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    ExpiredRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
)


@dataclass(slots=True)
class Replay:
    """One group journal, read to its end."""

    producers: dict[str, Producer] = field(default_factory=dict[str, Producer])
    """By transactional id, in states EMPTY, OPEN and MUST_ABORT; PREPARE_COMMIT without a decision is in `decided`."""
    half_aborted: dict[TxId, PrepareAbortRecord] = field(default_factory=dict[TxId, PrepareAbortRecord])
    """PREPARE_ABORT without ABORTED."""
    sequence: dict[TxId, int] = field(default_factory=dict[TxId, int])
    """Of each PREPARE_COMMIT that is undecided: its place among those of the journal."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """A PREPARE_COMMIT without COMMITTED or PREPARE_ABORT."""

    transactional_id: str
    decided: Decided
    journal: int
    sequence: int


def replay(records: Iterable[GroupRecord]) -> Replay:
    """Fold the records of one group journal, in their order."""
    found = Replay()
    for count, record in enumerate(records):
        match record:
            case ProducerRecord():
                _fold_producer(found, record)
            case ExpiredRecord(transactional_id):
                found.producers.pop(transactional_id, None)
            case BeginRecord():
                _fold_begin(found, record)
            case PrepareCommitRecord():
                _fold_prepare_commit(found, record, count)
            case CommittedRecord():
                _fold_committed(found, record)
            case PrepareAbortRecord():
                _fold_prepare_abort(found, record)
            case AbortedRecord():
                _fold_aborted(found, record)
    for record in found.half_aborted.values():
        producer = found.producers.get(record.transactional_id)
        if producer is not None and _is_current(producer, record.txid) and producer.state is IdState.EMPTY:
            found.producers[record.transactional_id] = replace(producer, state=IdState.MUST_ABORT)
    return found


def in_doubt(replays: Sequence[Replay]) -> list[InDoubt]:
    """What is to be prepared again, over all journals, in the order of journals and PREPARE_COMMITs."""
    found = [
        InDoubt(producer.transactional_id, decided, index, one.sequence[decided.txid])
        for index, one in enumerate(replays)
        for producer in one.producers.values()
        for decided in producer.decided
    ]
    return sorted(found, key=lambda it: (it.journal, it.sequence))


def place_order(prepared: Sequence[InDoubt], surviving: Mapping[TxId, ApplyNumber | None]) -> list[InDoubt]:
    """The order in which transactions that are prepared again are placed.

    Those of which some APPLY survived come in the order of their apply numbers, before all others: some log
    has them in that order. But one that stands earlier in a group must come before its successors, whatever
    survived of it; so it counts with the least number of itself and all behind it in its group (invariant 6).
    """
    infinity = float("inf")
    least_behind: dict[str, float] = {}
    keyed: list[tuple[float, int, int, InDoubt]] = []
    for one in sorted(prepared, key=lambda it: (it.journal, it.sequence), reverse=True):
        number = surviving[one.decided.txid]
        group = group_of(one.transactional_id)
        least = min(least_behind.get(group, infinity), infinity if number is None else number)
        least_behind[group] = least
        keyed.append((least, one.journal, one.sequence, one))
    return [one for *_, one in sorted(keyed, key=lambda key: key[:3])]


def snapshot_records(producers: Iterable[Producer]) -> Iterator[GroupRecord]:
    """Records whose `replay` gives these producers again, but for what only lives in memory (connections)."""
    for producer in producers:
        if producer.state is IdState.UNKNOWN:
            continue
        transactional_id, now_ms = producer.transactional_id, producer.used_ms
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
            yield BeginRecord(producer.txid, transactional_id, transaction.logs, transaction.started_ms)
            if transaction.expected is not None:
                yield prepare_commit_record(transactional_id, Decided(producer.txid, transaction.expected, now_ms))
        elif producer.moved_on and producer.state is IdState.EMPTY and producer.last is Outcome.COMMITTED:
            yield BeginRecord(producer.txid, transactional_id, {}, now_ms)


def _is_current(producer: Producer, txid: TxId) -> bool:
    return (producer.producer_id, producer.epoch) == (txid.producer_id, txid.epoch)


def _fold_producer(found: Replay, record: ProducerRecord) -> None:
    before = found.producers.get(record.transactional_id) or Producer(record.transactional_id)
    same = (before.producer_id, before.epoch) == (record.producer_id, record.epoch)
    found.producers[record.transactional_id] = replace(
        before,
        state=IdState.MUST_ABORT if record.must_abort else IdState.EMPTY,
        producer_id=record.producer_id,
        epoch=record.epoch,
        last_epoch=record.last_epoch,
        timeout_ms=record.timeout_ms,
        number=record.next_number,
        last=before.last if same else None,
        transaction=None,
        used_ms=record.timestamp_ms,
    )


def _fold_begin(found: Replay, record: BeginRecord) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is None or not _is_current(producer, record.txid) or record.txid.number < producer.number:
        return
    known = producer.transaction
    started_ms = known.started_ms if known else record.timestamp_ms
    logs = {**(known.logs if known else {}), **record.logs}
    found.producers[record.transactional_id] = replace(
        producer,
        state=IdState.OPEN,
        number=record.txid.number,
        transaction=OpenTransaction(started_ms, logs),
        used_ms=max(producer.used_ms, record.timestamp_ms),
    )


def _fold_prepare_commit(found: Replay, record: PrepareCommitRecord, sequence: int) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is None or any(it.txid == record.txid for it in (*producer.decided, *producer.committed)):
        return
    expected = {log: Expected(it.leader_epoch, it.records) for log, it in record.participants.items()}
    after = replace(
        producer,
        decided=(*producer.decided, Decided(record.txid, expected, record.timestamp_ms)),
        used_ms=max(producer.used_ms, record.timestamp_ms),
    )
    if _is_current(producer, record.txid):
        after = replace(after, last=Outcome.COMMITTED)
        if record.txid.number >= producer.number:
            after = replace(after, state=IdState.EMPTY, number=record.txid.number + 1, transaction=None)
    found.sequence[record.txid] = sequence
    found.producers[record.transactional_id] = after


def _fold_committed(found: Replay, record: CommittedRecord) -> None:
    producer = found.producers.get(record.transactional_id)
    if producer is None or any(it.txid == record.txid for it in producer.committed):
        return
    was_decided = found.sequence.pop(record.txid, None) is not None
    after = replace(
        producer,
        decided=tuple(it for it in producer.decided if it.txid != record.txid),
        committed=remember(producer.committed, CommittedTransaction(record.txid, record.placements)),
    )
    if not was_decided and _is_current(producer, record.txid):
        # Of a snapshot, where PREPARE_COMMIT is left out. Otherwise a later transaction may have ended since.
        after = replace(after, last=Outcome.COMMITTED)
    found.producers[record.transactional_id] = after


def _fold_prepare_abort(found: Replay, record: PrepareAbortRecord) -> None:
    found.half_aborted[record.txid] = record
    found.sequence.pop(record.txid, None)
    producer = found.producers.get(record.transactional_id)
    if producer is None:
        return
    after = replace(producer, decided=tuple(it for it in producer.decided if it.txid != record.txid))
    found.producers[record.transactional_id] = _ended_by_abort(after, record.txid)


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
        producer = replace(producer, number=txid.number + 1, transaction=None)
        if producer.state is IdState.OPEN:
            producer = replace(producer, state=IdState.EMPTY)
    elif producer.transaction is not None:
        return producer
    return replace(producer, last=Outcome.ABORTED)
