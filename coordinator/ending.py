"""The rules of EndTxn: commit, abort, and the epoch that an end grants with transaction version 2 (KIP-890).

    EndTxn(commit) ─▶ commit ─▶ sealed ─▶ prepared ─▶ answered
                                     └──▶ refused ─▶ the client must abort

Only `prepared` makes a transaction committed (invariant 5). With version 2 the record of the next epoch stands behind
PREPARE_COMMIT, in one flush with it, and names what it ended: an end that is said again is answered alike. Pure.
"""

from __future__ import annotations

from coordinator import events as ev
from coordinator import steps
from coordinator.answers import Granted, Refusal
from coordinator.group_records import AbortedRecord
from coordinator.id_records import prepare_abort_record, prepare_commit_record, producer_record
from coordinator.messages import Prepare
from coordinator.producer import Decided, Outcome, Producer
from coordinator.states import IdState
from coordinator.steps import Step
from fairlog_types import EndedEpoch, TxId

DECIDED_MAX = 4
"""So many transactions of an id may be committed from the oldest one on that is not known to be copied; the leaders'
windows remember one more."""


def end_nothing(producer: Producer, event: ev.End) -> Step:
    """Nothing is open: the same outcome again succeeds, since it is the repetition of the last EndTxn.

    The opposite outcome is refused, since the client would believe it of its last transaction; and so is any outcome
    where there was no transaction, as in Kafka. But an abort succeeds if partitions were asked for since, in vain:
    then the client means the transaction that never began (docs/decisions/0015-retries-and-late-requests.md). With
    transaction version 2 an abort of nothing succeeds: partitions are added on the way to them, and the client cannot
    know whether one was. It does not where the epoch's transaction was committed and the grant was lost in a crash.
    """
    if (said_again := _said_again(producer, event)) is not None:
        return said_again
    if (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        committed = producer.last is Outcome.COMMITTED
        if event.commit and committed:
            return _grant_after_commit(producer, event)
        if event.commit or (committed and not producer.moved_on):
            return producer, (ev.AnswerWith(Refusal.WRONG_STATE),)
        return _abort_and_grant(producer, event)
    if producer.last is not Outcome.ABORTED and producer.moved_on and not event.commit:
        after = steps.touched(producer, event, number=producer.number + 1, last=Outcome.ABORTED)
        record = AbortedRecord(producer.txid, producer.transactional_id, event.now_ms)
        return after, (ev.Append(record), ev.AnswerWith(None))
    asked = Outcome.COMMITTED if event.commit else Outcome.ABORTED
    answer = None if producer.last is asked else Refusal.WRONG_STATE
    return steps.touched(producer, event), (ev.AnswerWith(answer),)


def commit(producer: Producer, event: ev.End) -> Step:
    if (refusal := steps.refusal(producer, event) or _refusal_of_kept(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if producer.decided and _commits_to_remember(producer) >= DECIDED_MAX:
        return producer, (ev.WaitForCopy(),)
    assert producer.transaction is not None
    next_grant = steps.next_grant(producer, event.fresh_id) if event.grants else None
    if event.grants and next_grant is None:
        return producer, (ev.AskProducerId(),)
    after = steps.touched(producer, event, state=IdState.PREPARING, next_grant=next_grant)
    return after, (ev.AskPrepare(Prepare(producer.txid, producer.transaction.logs)),)


def _refusal_of_kept(producer: Producer, event: ev.End) -> Refusal | None:
    """What was kept is ended with a grant only: else its epoch could not tell a repetition from the next end."""
    return Refusal.WRONG_STATE if producer.is_kept and not event.grants else None


def _commits_to_remember(producer: Producer) -> int:
    """From the oldest one on that a restart would have prepared again; later ones may have been recorded before it."""
    oldest = producer.decided[0].txid
    return len(producer.decided) + sum(it.txid > oldest for it in producer.committed)


def sealed(producer: Producer, event: ev.Sealed) -> Step:
    """Logs that hold no records take part, too: what a commit means to them is their leaders' business."""
    assert producer.transaction is not None
    number = event.commit_number
    after = producer._replace(transaction=producer.transaction._replace(expected=event.expected, commit_number=number))
    decided = Decided(producer.txid, event.expected, event.now_ms, number)
    record = prepare_commit_record(producer.transactional_id, decided)
    said: list[ev.Effect] = [ev.Append(record)]
    if (granted := once_committed(after)) is not None:
        said.append(ev.Append(producer_record(granted, event.now_ms)))
    return after, (*said, ev.EnterOrder(producer.txid), ev.AskPrepared())


def prepared(producer: Producer, event: ev.Prepared) -> Step:
    transaction = producer.transaction
    assert transaction is not None
    assert transaction.expected is not None
    decided = Decided(producer.txid, transaction.expected, event.now_ms, transaction.commit_number)
    after = producer._replace(decided=(*producer.decided, decided))
    if (granted := once_committed(after)) is not None:
        return granted, (ev.Apply(decided.apply(producer.group)), ev.AnswerWith(producer.next_grant))
    return steps.committed(after), (ev.Apply(decided.apply(producer.group)), ev.AnswerWith(None))


def refused(producer: Producer, event: ev.Refused) -> Step:
    """PREPARE_ABORT must be durable before the error, and before those behind it in the group go on.

    Otherwise a restart might prepare the transaction with more luck, and commit it after all, or late.
    """
    assert producer.transaction is not None
    logs = tuple(producer.transaction.logs)
    after = steps.aborted(producer)
    return after, (
        ev.Append(prepare_abort_record(producer, producer.txid, logs, event.now_ms)),
        ev.Append(producer_record(after, event.now_ms)),
        ev.Flush(),
        ev.LeaveOrder(producer.txid),
        steps.discard(producer, producer.txid, logs, event.now_ms),
        ev.AnswerWith(Refusal.MUST_ABORT),
    )


def abort(producer: Producer, event: ev.End) -> Step:
    """Answered without a flush: docs/decisions/0004-restart-and-open-transactions.md says why that is enough.

    Not so where the abort grants an epoch: that must be on disk, as that of InitProducerId.
    """
    if (refusal := steps.refusal(producer, event) or _refusal_of_kept(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        return _abort_and_grant(producer, event)
    after = steps.touched(
        producer,
        event,
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.ABORTED,
        transaction=None,
    )
    return after, (*steps.abort_open(producer, event.now_ms), ev.AnswerWith(None))


def end_while_deciding_otherwise(producer: Producer, event: ev.End) -> Step:
    return producer, (ev.AnswerWith(steps.refusal(producer, event) or Refusal.WRONG_STATE),)


def commit_after_abort(producer: Producer, event: ev.End) -> Step:
    """If the last that the journal knows is a commit, this may be its repetition, or a lost transaction's."""
    if (said_again := _said_again(producer, event)) is not None:
        return said_again
    if (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    answer = Refusal.OUTCOME_LOST if producer.last is Outcome.COMMITTED else Refusal.MUST_ABORT
    return steps.touched(producer, event), (ev.AnswerWith(answer),)


def abort_after_abort(producer: Producer, event: ev.End) -> Step:
    """The client gives up what the coordinator has aborted, known by its number or lost with its BEGIN."""
    if (said_again := _said_again(producer, event)) is not None:
        return said_again
    if (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        if producer.last is Outcome.COMMITTED:  # it may be what is meant: its grant was lost in a crash
            return steps.touched(producer, event), (ev.AnswerWith(Refusal.WRONG_STATE),)
        aborted = AbortedRecord(producer.txid, producer.transactional_id, event.now_ms)
        return _abort_and_grant(producer, event, ev.Append(aborted))
    after = steps.touched(
        producer,
        event,
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.ABORTED,
    )
    return after, (
        ev.Append(AbortedRecord(producer.txid, producer.transactional_id, event.now_ms)),
        ev.Append(producer_record(after, event.now_ms)),
        ev.AnswerWith(None),
    )


def _repeated_end(producer: Producer, event: ev.End) -> Granted | Refusal | None:
    """The answer to an end that is said again after it has granted the present epoch; None if it is no such one."""
    if not event.grants or not steps.named_what_ended(producer, event):
        return None
    assert producer.ended is not None
    if producer.ended.committed == event.commit:
        return Granted(producer.producer_id, producer.epoch)
    # A commit that a crash has undone is aborted; it could not be answered before.
    undone = event.commit and producer.state is IdState.MUST_ABORT
    return Refusal.MUST_ABORT if undone else Refusal.WRONG_STATE


def _said_again(producer: Producer, event: ev.End) -> Step | None:
    """The step if the end is said again, see `_repeated_end`."""
    repeated = _repeated_end(producer, event)
    if repeated is None:
        return None
    if not isinstance(repeated, Granted) or repeated.epoch < steps.EPOCH_MAX:
        return producer, (ev.AnswerWith(repeated),)
    fresh = steps.next_grant(producer, event.fresh_id)  # what was to be granted is not known any more (recovery.py)
    if fresh is None:
        return producer, (ev.AskProducerId(),)
    after = steps.in_epoch(steps.touched(producer, event), fresh, ended=producer.ended)
    return after, (ev.Append(producer_record(after, event.now_ms)), ev.Flush(), ev.AnswerWith(fresh))


def _granting(producer: Producer, granted: Granted, *, committed: bool) -> Producer:
    """The id after an end that has granted the next epoch."""
    kept = producer.txid if producer.is_kept else None
    return steps.in_epoch(producer, granted, ended=EndedEpoch(producer.producer_id, producer.epoch, committed, kept))


def once_committed(producer: Producer) -> Producer | None:
    """Of an id that is PREPARING: where it stands in the epoch that the commit grants; None if it grants none."""
    return None if producer.next_grant is None else _granting(producer, producer.next_grant, committed=True)


def not_committed(ended: EndedEpoch | None, txid: TxId) -> EndedEpoch | None:
    """What is known of the end of an epoch, once its transaction turns out to be aborted."""
    return ended._replace(committed=False) if ended is not None and ended.is_of(txid) else ended


def _abort_and_grant(producer: Producer, event: ev.End, *said: ev.Effect) -> Step:
    """Abort what is open, if anything is, and grant the next epoch; `said` comes first."""
    granted = steps.next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = _granting(steps.touched(producer, event), granted, committed=False)
    record = ev.Append(producer_record(after, event.now_ms))
    return after, (*said, *steps.abort_open(producer, event.now_ms, record), ev.Flush(), ev.AnswerWith(granted))


def _grant_after_commit(producer: Producer, event: ev.End) -> Step:
    """The process died between PREPARE_COMMIT and the record of the grant; the transaction was committed since."""
    granted = steps.next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = _granting(steps.touched(producer, event), granted, committed=True)
    return after, (ev.Append(producer_record(after, event.now_ms)), ev.Flush(), ev.AnswerWith(granted))


def answer_unwritten(producer: Producer, event: ev.Event, *, in_doubt: bool) -> Granted | Refusal | None:
    """The answer to a request when the journals take no more: only what is certain is said (invariant 5).

    A commit may be the repetition of one that a restart will find in the journal. It is certainly done if the
    last transaction is decided: everything of it was durable before. It is certainly without effect if nothing
    of it was prepared. In MUST_ABORT that is not certain: PREPARE_ABORT may be what could not be written. Nor is it of
    a commit whose grant was lost in a crash, and cannot be written again. `in_doubt`: one has failed while it was
    written, so that the producer may say more than the disk.
    """
    if not isinstance(event, ev.End) or not event.commit:
        return Refusal.STORAGE
    if in_doubt:
        return Refusal.STORAGE_EFFECT_UNKNOWN
    if producer.state is IdState.EMPTY and isinstance(repeated := _repeated_end(producer, event), Granted):
        return repeated if repeated.epoch < steps.EPOCH_MAX else Refusal.STORAGE_EFFECT_UNKNOWN
    if steps.refusal(producer, event) is None:
        if producer.state is IdState.OPEN:
            return Refusal.STORAGE
        if producer.state is IdState.EMPTY:
            if producer.last is not Outcome.COMMITTED:
                return Refusal.STORAGE
            return Refusal.STORAGE_EFFECT_UNKNOWN if event.grants else None
    return Refusal.STORAGE_EFFECT_UNKNOWN
