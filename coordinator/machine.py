"""The transaction state machine of one transactional id: `step(producer, event) -> (producer, effects)`.

How it works. A `Producer` is all that the coordinator knows of an id; an event is a request, an answer of
the participants, or time. `step` finds the rule for the pair (state, event) and returns the producer as it
is afterwards and what is to be done. Whoever runs the effects (service.py, or a test) does so in their
order and stops at the first that fails: what follows an `Append` or a `Flush` relies on it. An effect that
asks something (`Ask…`) is the last of its step. Its answer is the next event, and until then no other
request of the same id is stepped, with one exception: while the id is PREPARING every request may be, and
it gets an answer at once, or `WaitForDecision`.

What it keeps:

* invariant 5: only `Prepared` makes a transaction committed, and it comes when PREPARE_COMMIT and all the
  data are durable. Once PREPARE_COMMIT is written, an error of the kind "no effect" is answered only after
  PREPARE_ABORT is durable. What the coordinator has aborted stays aborted for every request of its epoch, until the
  client itself says EndTxn(abort) or InitProducerId (MUST_ABORT): else it could commit the second half of it.
* invariant 6: `EnterOrder` with PREPARE_COMMIT; `Apply` or `LeaveOrder` when it is decided (order.py).
* invariant 9: a grant ends what is open, and is durable before it is answered.
* invariant 10: with transaction version 2 (KIP-890) each transaction has an epoch of its own: its end grants the next
  one, in the same flush. Before that version the latest connection that added partitions or ended a transaction is
  remembered, and these two requests are refused (LATE) on an earlier one. InitProducerId is not compared: aiokafka
  sends it on a connection of its own, which may be the later one.

It does not order transactions of different ids (order.py), nor decide those of lanes (sinks/), nor say when an id has
had its time (expiry.py), nor read journals (recovery.py). There is no I/O and no clock in it: times come with the
events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coordinator import events as ev
from coordinator.answers import CommittedTransaction, Granted, GrantedToEnd, Refusal
from coordinator.id_records import prepare_abort_record, prepare_commit_record, producer_record
from coordinator.messages import Begin, DiscardTransaction, Prepare
from coordinator.producer import NO_CONNECTION, NO_TIMEOUT_MS, Decided, OpenTransaction, Outcome, Producer
from coordinator.states import NEXT_STATES, EventKind, IdState
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    EndedEpoch,
    LogId,
    Placement,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from journal.group_records import AbortedRecord, BeginRecord, CommittedRecord, ExpiredRecord

EPOCH_MAX = 32_767
"""int16. The last one is never granted: it is kept to fence the one before (as in Kafka)."""

TRANSACTIONAL_ID_BYTES_MAX = 1_024
"""In UTF-8. Each record of the group journal names the id, and must stay below the largest frame."""

DECIDED_MAX = 4
"""So many transactions of an id may be committed from the oldest one on that is not known to be copied; the leaders'
windows remember one more."""

COMMITTED_KEPT = 5
"""So many placements are remembered for each id."""

LOST_NUMBERS = 1_000_000
"""Skipped when BEGINs may be lost, so that no TxId is used twice: more transactions than can begin in one
group journal between two flushes of it."""

Step = tuple[Producer, Sequence[ev.Effect]]


def remember(
    committed: tuple[CommittedTransaction, ...], done: CommittedTransaction
) -> tuple[CommittedTransaction, ...]:
    """The last few of an id, in commit order, which is that of their numbers, and not that of their copies."""
    return tuple(sorted((*committed, done), key=lambda it: it.txid))[-COMMITTED_KEPT:]


def kind_of(event: ev.Event) -> EventKind:
    """The event's column in `states.TABLE`."""
    if type(event) is ev.End:
        return EventKind.END_COMMIT if event.commit else EventKind.END_ABORT
    return _KINDS[type(event)]


def step(producer: Producer, event: ev.Event) -> Step:
    """The producer after the event, and what is to be done, in order. Pure.

    An AssertionError says that the event cannot occur in this state, or that a rule left the table.
    """
    pair = (producer.state, kind_of(event))
    allowed = NEXT_STATES.get(pair)
    assert allowed is not None, f"{pair[1].name} cannot occur in {pair[0].name}"
    after, effects = _RULES[pair](producer, event)
    assert after.state in allowed, f"{pair[1].name} in {pair[0].name} must not lead to {after.state.name}"
    return after, effects


# -------------------------------------------------------------------------------------- InitProducerId


def _init(producer: Producer, event: ev.Init) -> Step:
    """Grant the id to the caller: a retry gets what it was granted, anybody else the next epoch."""
    if event.timeout_ms <= 0:
        return producer, (ev.AnswerWith(Refusal.BAD_TIMEOUT),)
    names_itself = event.producer_id != NO_PRODUCER_ID
    has_name = 0 < len(producer.transactional_id.encode()) <= TRANSACTIONAL_ID_BYTES_MAX
    if names_itself != (event.epoch != NO_PRODUCER_EPOCH) or not has_name:
        return producer, (ev.AnswerWith(Refusal.BAD_REQUEST),)
    if event.two_phase and not event.settings.two_phase_commit:
        return producer, (ev.AnswerWith(Refusal.NO_TWO_PHASE_COMMIT),)
    timeout_ms = min(max(event.timeout_ms, event.settings.min_timeout_ms), event.settings.max_timeout_ms)
    if event.two_phase:
        timeout_ms = NO_TIMEOUT_MS

    if producer.state is IdState.UNKNOWN:
        return _grant(producer, event, timeout_ms, NO_PRODUCER_EPOCH)
    if names_itself:
        if _named_what_was_before(producer, event):
            if producer.state is IdState.EMPTY:
                return _grant_again(producer, event)
            if producer.state is not IdState.MUST_ABORT:
                return producer, (ev.AnswerWith(Refusal.FENCED),)
        elif (event.producer_id, event.epoch) != (producer.producer_id, producer.epoch):
            return producer, (ev.AnswerWith(Refusal.FENCED),)
    elif (
        producer.granted_on == event.connection
        and producer.timeout_ms == timeout_ms
        and (event.keeps or not producer.is_kept)
    ):
        return _grant_again(producer, event)
    return _grant(producer, event, timeout_ms, event.epoch)


def _named_what_was_before(producer: Producer, event: ev.Init) -> bool:
    """Does the request name what the present epoch was granted after? Then the answer to that grant was lost."""
    before = (producer.producer_id, producer.last_epoch)
    return (event.producer_id, event.epoch) == before or _named_what_ended(producer, event)


def _grant_again(producer: Producer, event: ev.Init) -> Step:
    """The answer to the first attempt was lost, or overtaken; it may not even have been durable."""
    after = replace(producer, granted_on=event.connection, used_ms=event.now_ms)
    return after, (ev.Flush(), ev.AwaitCopied(), ev.AnswerWith(_grant_of(after)))


def _grant_of(producer: Producer) -> Granted | GrantedToEnd:
    """What InitProducerId is answered."""
    granted, txid = Granted(producer.producer_id, producer.epoch), producer.txid
    return GrantedToEnd(granted, Granted(txid.producer_id, txid.epoch)) if producer.is_kept else granted


def _grant(producer: Producer, event: ev.Init, timeout_ms: int, last_epoch: ProducerEpoch) -> Step:
    """The next epoch, or a new producer id; what is open is aborted or kept, what is being copied is waited for.

    The wait is for the client that reads back what the last instance has committed: its offsets. What is kept is
    sealed: no late batch of the last instance gets into what another system may have decided about.
    """
    granted = _next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = replace(
        _in_epoch(producer, granted, last_epoch if granted.epoch else NO_PRODUCER_EPOCH),
        timeout_ms=timeout_ms,
        granted_on=event.connection,
        used_ms=event.now_ms,
    )
    ends: Sequence[ev.Effect]
    if event.keeps and producer.transaction is not None:
        after = replace(after, state=IdState.OPEN, transaction=replace(producer.transaction, kept=producer.txid))
        seal = ev.Seal(after.txid, tuple(producer.transaction.logs))
        ends = (seal, ev.Append(producer_record(after, event.now_ms)))
    else:
        ends = _abort_open(producer, event.now_ms, ev.Append(producer_record(after, event.now_ms)))
    return after, (*ends, ev.Flush(), ev.AwaitCopied(), ev.AnswerWith(_grant_of(after)))


def _next_grant(producer: Producer, fresh_id: ProducerId | None) -> Granted | None:
    """The id's next epoch, or the first one of a fresh producer id; None if that has to be asked for."""
    if producer.state is not IdState.UNKNOWN and producer.epoch < EPOCH_MAX - 1:
        return Granted(producer.producer_id, ProducerEpoch(producer.epoch + 1))
    return None if fresh_id is None else Granted(fresh_id, ProducerEpoch(0))


def _in_epoch(
    producer: Producer,
    granted: Granted,
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ended: EndedEpoch | None = None,
) -> Producer:
    """The id at the beginning of an epoch."""
    return replace(
        producer,
        state=IdState.EMPTY,
        producer_id=granted.producer_id,
        epoch=granted.epoch,
        last_epoch=last_epoch,
        ended=ended,
        next_grant=None,
        number=0,
        last=None,
        transaction=None,
        connection=NO_CONNECTION,
        granted_on=NO_CONNECTION,
        moved_on=False,
    )


def _abort_open(producer: Producer, now_ms: int, record: ev.Append | None = None) -> Sequence[ev.Effect]:
    """PREPARE_ABORT, then `record`, which says what the abort means for the id, then DISCARD and ABORTED."""
    said = () if record is None else (record,)
    if producer.transaction is None:
        return said
    return (
        ev.Append(prepare_abort_record(producer, producer.txid, tuple(producer.transaction.logs), now_ms)),
        *said,
        _discard(producer, producer.txid, tuple(producer.transaction.logs), now_ms),
    )


def _discard(producer: Producer, txid: TxId, logs: tuple[LogId, ...], now_ms: int) -> ev.Discard:
    return ev.Discard(DiscardTransaction(txid, logs), AbortedRecord(txid, producer.transactional_id, now_ms))


def _wait_for_decision(producer: Producer, event: ev.Init | ev.End) -> Step:
    if isinstance(event, ev.End) and (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    return producer, (ev.WaitForDecision(),)


# ---------------------------------------------------------------------------------- AddPartitionsToTxn


def _refusal(producer: Producer, event: ev.Add | ev.End) -> Refusal | None:
    """Why this request does not come from the id's one current producer."""
    if producer.state is IdState.UNKNOWN or event.producer_id != producer.producer_id:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    if event.epoch != producer.epoch:
        return Refusal.FENCED
    if event.connection is not None and event.connection < producer.connection:
        return Refusal.LATE
    return None


def _touched(producer: Producer, event: ev.Add | ev.End, **changes: Any) -> Producer:
    """After a request of the current producer, and `changes` with it: one copy for both."""
    connection = producer.connection if event.connection is None else event.connection
    return replace(producer, connection=connection, granted_on=NO_CONNECTION, used_ms=event.now_ms, **changes)


def _add(producer: Producer, event: ev.Add) -> Step:
    if (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if producer.is_kept:
        return producer, (ev.AnswerWith(Refusal.WRONG_STATE),)
    after = _touched(producer, event, moved_on=True)
    known = () if producer.transaction is None else producer.transaction.logs
    new = tuple(log for log in dict.fromkeys(event.logs) if log not in known)
    if not new:
        said = () if producer.moved_on else _asked_in_vain(after, event.now_ms)
        return after, (*said, ev.AnswerWith(dict.fromkeys(event.logs)))
    return after, (ev.AskBegin(Begin(producer.txid, new), event.logs),)


def _asked_in_vain(producer: Producer, now_ms: int) -> Sequence[ev.Effect]:
    """BEGIN without logs, if no partition could be added: a restart, too, is to know that the client has moved on.

    Else its EndTxn(abort) would be taken for one of the commit before, or of nothing at all, and refused.
    """
    if producer.state is not IdState.EMPTY or producer.last is Outcome.ABORTED:
        return ()
    return (ev.Append(BeginRecord(producer.txid, producer.transactional_id, {}, now_ms)),)


def _add_after_abort(producer: Producer, event: ev.Add) -> Step:
    """A new transaction cannot be told from the rest of the aborted one: the client has to say that it aborts."""
    if (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    return _touched(producer, event), (ev.AnswerWith(Refusal.MUST_ABORT),)


def _add_while_preparing(producer: Producer, event: ev.Add) -> Step:
    return producer, (ev.AnswerWith(_refusal(producer, event) or Refusal.CONCURRENT),)


def _begun(producer: Producer, event: ev.LogsBegun) -> Step:
    before = producer.transaction
    logs = {**(before.logs if before else {}), **event.leader_epochs}
    answers = {log: None if log in logs else Refusal.UNKNOWN_LOG for log in event.requested}
    if not event.leader_epochs:
        return producer, (*_asked_in_vain(producer, event.now_ms), ev.AnswerWith(answers))
    started_ms = before.started_ms if before else event.now_ms
    after = replace(producer, state=IdState.OPEN, transaction=OpenTransaction(started_ms, logs))
    record = BeginRecord(producer.txid, producer.transactional_id, event.leader_epochs, event.now_ms)
    return after, (ev.Append(record), ev.AnswerWith(answers))


# ---------------------------------------------------------------------------------------------- EndTxn


def _named_what_ended(producer: Producer, event: ev.Init | ev.End) -> bool:
    """Does the request name the epoch whose end granted the present one? Then the answer to that end was lost."""
    ended = producer.ended
    return ended is not None and (event.producer_id, event.epoch) == (ended.producer_id, ended.epoch)


def _repeated_end(producer: Producer, event: ev.End) -> Granted | Refusal | None:
    """The answer to an end that is said again after it has granted the present epoch; None if it is no such one."""
    if not event.grants or not _named_what_ended(producer, event):
        return None
    assert producer.ended is not None
    if producer.ended.committed == event.commit:
        return Granted(producer.producer_id, producer.epoch)
    # A commit that a crash has undone is aborted; it could not be answered before.
    undone = event.commit and producer.state is IdState.MUST_ABORT
    return Refusal.MUST_ABORT if undone else Refusal.WRONG_STATE


def _granting(producer: Producer, granted: Granted, *, committed: bool) -> Producer:
    """The id after an end that has granted the next epoch."""
    kept = producer.txid if producer.is_kept else None
    return _in_epoch(producer, granted, ended=EndedEpoch(producer.producer_id, producer.epoch, committed, kept))


def once_committed(producer: Producer) -> Producer | None:
    """Of an id that is PREPARING: where it stands in the epoch that the commit grants; None if it grants none."""
    return None if producer.next_grant is None else _granting(producer, producer.next_grant, committed=True)


def not_committed(ended: EndedEpoch | None, txid: TxId) -> EndedEpoch | None:
    """What is known of the end of an epoch, once its transaction turns out to be aborted."""
    return ended._replace(committed=False) if ended is not None and ended.is_of(txid) else ended


def _abort_and_grant(producer: Producer, event: ev.End, *said: ev.Effect) -> Step:
    """Abort what is open, if anything is, and grant the next epoch; `said` comes first."""
    granted = _next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = _granting(_touched(producer, event), granted, committed=False)
    record = ev.Append(producer_record(after, event.now_ms))
    return after, (*said, *_abort_open(producer, event.now_ms, record), ev.Flush(), ev.AnswerWith(granted))


def _grant_after_commit(producer: Producer, event: ev.End) -> Step:
    """The process died between PREPARE_COMMIT and the record of the grant; the transaction was committed since."""
    granted = _next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = _granting(_touched(producer, event), granted, committed=True)
    return after, (ev.Append(producer_record(after, event.now_ms)), ev.Flush(), ev.AnswerWith(granted))


def _end_nothing(producer: Producer, event: ev.End) -> Step:
    """Nothing is open: the same outcome again succeeds, since it is the repetition of the last EndTxn.

    The opposite outcome is refused, since the client would believe it of its last transaction; and so is any outcome
    where there was no transaction, as in Kafka. But an abort succeeds if partitions were asked for since, in vain:
    then the client means the transaction that never began (docs/decisions/0015-retries-and-late-requests.md). With
    transaction version 2 an abort of nothing succeeds: partitions are added on the way to them, and the client cannot
    know whether one was. It does not where the epoch's transaction was committed and the grant was lost in a crash.
    """
    if (repeated := _repeated_end(producer, event)) is not None:
        return producer, (ev.AnswerWith(repeated),)
    if (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        committed = producer.last is Outcome.COMMITTED
        if event.commit and committed:
            return _grant_after_commit(producer, event)
        if event.commit or (committed and not producer.moved_on):
            return producer, (ev.AnswerWith(Refusal.WRONG_STATE),)
        return _abort_and_grant(producer, event)
    if producer.last is not Outcome.ABORTED and producer.moved_on and not event.commit:
        after = _touched(producer, event, number=producer.number + 1, last=Outcome.ABORTED)
        record = AbortedRecord(producer.txid, producer.transactional_id, event.now_ms)
        return after, (ev.Append(record), ev.AnswerWith(None))
    asked = Outcome.COMMITTED if event.commit else Outcome.ABORTED
    answer = None if producer.last is asked else Refusal.WRONG_STATE
    return _touched(producer, event), (ev.AnswerWith(answer),)


def _commit(producer: Producer, event: ev.End) -> Step:
    if (refusal := _refusal(producer, event) or _refusal_of_kept(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if producer.decided and _commits_to_remember(producer) >= DECIDED_MAX:
        return producer, (ev.WaitForCopy(),)
    assert producer.transaction is not None
    next_grant = _next_grant(producer, event.fresh_id) if event.grants else None
    if event.grants and next_grant is None:
        return producer, (ev.AskProducerId(),)
    after = _touched(producer, event, state=IdState.PREPARING, next_grant=next_grant)
    return after, (ev.AskSeal(producer.txid, tuple(producer.transaction.logs)),)


def _refusal_of_kept(producer: Producer, event: ev.End) -> Refusal | None:
    """What was kept is ended with a grant only: else its epoch could not tell a repetition from the next end."""
    return Refusal.WRONG_STATE if producer.is_kept and not event.grants else None


def _commits_to_remember(producer: Producer) -> int:
    """From the oldest one on that a restart would have prepared again; later ones may have been recorded before it."""
    oldest = producer.decided[0].txid
    return len(producer.decided) + sum(it.txid > oldest for it in producer.committed)


def _sealed(producer: Producer, event: ev.Sealed) -> Step:
    """Logs that hold no records take part, too: what a commit means to them is their leaders' business."""
    assert producer.transaction is not None
    after = replace(producer, transaction=replace(producer.transaction, expected=event.expected))
    record = prepare_commit_record(producer.transactional_id, Decided(producer.txid, event.expected, event.now_ms))
    said: list[ev.Effect] = [ev.Append(record)]
    if (granted := once_committed(after)) is not None:
        said.append(ev.Append(producer_record(granted, event.now_ms)))
    prepare = Prepare(producer.txid, event.expected)
    return after, (*said, ev.EnterOrder(producer.txid), ev.AskPrepare(prepare))


def _prepared(producer: Producer, event: ev.Prepared) -> Step:
    transaction = producer.transaction
    assert transaction is not None
    assert transaction.expected is not None
    decided = Decided(producer.txid, transaction.expected, event.now_ms)
    after = replace(producer, decided=(*producer.decided, decided))
    if (granted := once_committed(after)) is not None:
        return granted, (ev.Apply(decided.apply()), ev.AnswerWith(producer.next_grant))
    after = replace(
        after,
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.COMMITTED,
        moved_on=False,
        transaction=None,
    )
    return after, (ev.Apply(decided.apply()), ev.AnswerWith(None))


def _refused(producer: Producer, event: ev.Refused) -> Step:
    """PREPARE_ABORT must be durable before the error, and before those behind it in the group go on.

    Otherwise a restart might prepare the transaction with more luck, and commit it after all, or late.
    """
    assert producer.transaction is not None
    logs = tuple(producer.transaction.logs)
    after = _aborted(producer)
    return after, (
        ev.Append(prepare_abort_record(producer, producer.txid, logs, event.now_ms)),
        ev.Append(producer_record(after, event.now_ms)),
        ev.Flush(),
        ev.LeaveOrder(producer.txid),
        _discard(producer, producer.txid, logs, event.now_ms),
        ev.AnswerWith(Refusal.MUST_ABORT),
    )


def _aborted(producer: Producer) -> Producer:
    """After the coordinator, not the client, aborted what was open."""
    return replace(
        producer,
        state=IdState.MUST_ABORT,
        number=producer.number + 1,
        last=Outcome.ABORTED,
        transaction=None,
        next_grant=None,
        granted_on=NO_CONNECTION,
    )


def answer_unwritten(producer: Producer, event: ev.Event) -> Granted | Refusal | None:
    """The answer to a request when the journals take no more: only what is certain is said (invariant 5).

    A commit may be the repetition of one that a restart will find in the journal. It is certainly done if the
    last transaction is decided: everything of it was durable before. It is certainly without effect if nothing
    of it was prepared. In MUST_ABORT that is not certain: PREPARE_ABORT may be what could not be written. Nor is it of
    a commit whose grant was lost in a crash, and cannot be written again.
    """
    if not isinstance(event, ev.End) or not event.commit:
        return Refusal.STORAGE
    if producer.state is IdState.EMPTY and isinstance(repeated := _repeated_end(producer, event), Granted):
        return repeated
    if _refusal(producer, event) is None:
        if producer.state is IdState.OPEN:
            return Refusal.STORAGE
        if producer.state is IdState.EMPTY:
            if producer.last is not Outcome.COMMITTED:
                return Refusal.STORAGE
            return Refusal.STORAGE_EFFECT_UNKNOWN if event.grants else None
    return Refusal.STORAGE_EFFECT_UNKNOWN


def _end_while_deciding_otherwise(producer: Producer, event: ev.End) -> Step:
    return producer, (ev.AnswerWith(_refusal(producer, event) or Refusal.WRONG_STATE),)


def _abort(producer: Producer, event: ev.End) -> Step:
    """Answered without a flush: docs/decisions/0004-restart-and-open-transactions.md says why that is enough.

    Not so where the abort grants an epoch: that must be on disk, as that of InitProducerId.
    """
    if (refusal := _refusal(producer, event) or _refusal_of_kept(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        return _abort_and_grant(producer, event)
    after = _touched(
        producer,
        event,
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.ABORTED,
        transaction=None,
    )
    return after, (*_abort_open(producer, event.now_ms), ev.AnswerWith(None))


def _commit_after_abort(producer: Producer, event: ev.End) -> Step:
    """If the last that the journal knows is a commit, this may be its repetition, or a lost transaction's."""
    if (repeated := _repeated_end(producer, event)) is not None:
        return producer, (ev.AnswerWith(repeated),)
    if (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    answer = Refusal.OUTCOME_LOST if producer.last is Outcome.COMMITTED else Refusal.MUST_ABORT
    return _touched(producer, event), (ev.AnswerWith(answer),)


def _abort_after_abort(producer: Producer, event: ev.End) -> Step:
    """The client gives up what the coordinator has aborted, known by its number or lost with its BEGIN."""
    if (repeated := _repeated_end(producer, event)) is not None:
        return producer, (ev.AnswerWith(repeated),)
    if (refusal := _refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if event.grants:
        if producer.last is Outcome.COMMITTED:  # the epoch has no other transaction; the grant was lost in a crash
            return _touched(producer, event), (ev.AnswerWith(Refusal.WRONG_STATE),)
        aborted = AbortedRecord(producer.txid, producer.transactional_id, event.now_ms)
        return _abort_and_grant(producer, event, ev.Append(aborted))
    after = _touched(
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


# ---------------------------------------------------------------------- copies, time, operators, restarts


def _copied(producer: Producer, event: ev.Copied) -> Step:
    """Several may be told of in any order: each copy waits for its own logs."""
    assert any(it.txid == event.txid for it in producer.decided), f"{event.txid} is not being copied"
    after = replace(
        producer,
        decided=tuple(it for it in producer.decided if it.txid != event.txid),
        committed=remember(producer.committed, CommittedTransaction(event.txid, event.placements)),
    )
    record = CommittedRecord(event.txid, producer.transactional_id, event.placements, event.now_ms)
    return after, (ev.Append(record),)


def _grouped(producer: Producer, _event: ev.Grouped) -> Step:
    """The group's records in the journal, and its placing, stand for those of each of its transactions."""
    after = replace(
        producer,
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.COMMITTED,
        moved_on=False,
        transaction=None,
    )
    return after, ()


def copied_in_group(producer: Producer, txid: TxId, placements: tuple[Placement, ...]) -> Producer:
    """The id's transaction, which was committed with its group, is visible."""
    return replace(producer, committed=remember(producer.committed, CommittedTransaction(txid, placements)))


def _end_by_force(producer: Producer, event: ev.TimedOut | ev.Forced | ev.Dropped) -> Step:
    if event.fence and producer.epoch < EPOCH_MAX:
        after = _in_epoch(producer, Granted(producer.producer_id, ProducerEpoch(producer.epoch + 1)))
    else:
        after = _aborted(producer)
    record = ev.Append(producer_record(after, event.now_ms))
    answer = (ev.AnswerWith(None),) if isinstance(event, ev.Forced) else ()
    return after, (*_abort_open(producer, event.now_ms, record), *answer)


def _force(producer: Producer, event: ev.Forced) -> Step:
    """The operator has seen a transaction hang. Once that one is gone, the next is not meant (as in invariant 10)."""
    if event.txid is not None and event.txid != producer.txid:
        return producer, (ev.AnswerWith(Refusal.WRONG_STATE),)
    return _end_by_force(producer, event)


def _force_nothing(producer: Producer, _event: ev.Forced) -> Step:
    return producer, (ev.AnswerWith(_FORCED_ANSWERS[producer.state]),)


_FORCED_ANSWERS = {
    IdState.UNKNOWN: Refusal.UNKNOWN_PRODUCER_ID_MAPPING,
    IdState.EMPTY: None,
    IdState.MUST_ABORT: None,
    IdState.PREPARING: Refusal.CONCURRENT,
}


def _expire(producer: Producer, _event: ev.Idle) -> Step:
    record = ExpiredRecord(producer.transactional_id)
    return Producer(producer.transactional_id), (ev.Append(record),)


def _restarted(producer: Producer, event: ev.Restarted) -> Step:
    """What was open goes on, if it may. If BEGINs may be lost, every id may have had one open, and must abort."""
    if producer.transaction is not None and event.tail_kept and event.goes_on:
        return producer, (ev.AskResume(Begin(producer.txid, tuple(producer.transaction.logs))),)
    after = producer
    if producer.transaction is not None:
        after = _aborted(after)
    if not event.tail_kept:
        after = replace(after, state=IdState.MUST_ABORT, number=after.number + LOST_NUMBERS)
    if after.state is IdState.EMPTY:
        return after, ()
    return after, _abort_open(producer, event.now_ms, ev.Append(producer_record(after, event.now_ms)))


def _resumed(producer: Producer, event: ev.Resumed) -> Step:
    """Open as it was before the restart. If a log has lost its part, though none could be lost, it is aborted.

    A log that had begun it and is not in the journal was being added when the node died: it takes part from now on.
    """
    transaction = producer.transaction
    assert transaction is not None
    if event.lost:
        after = _aborted(producer)
        return after, _abort_open(producer, event.now_ms, ev.Append(producer_record(after, event.now_ms)))
    added = {log: epoch for log, epoch in event.leader_epochs.items() if log not in transaction.logs}
    record = BeginRecord(producer.txid, producer.transactional_id, added, event.now_ms)
    after = replace(producer, transaction=replace(transaction, logs=event.leader_epochs))
    seal = (ev.Seal(after.txid, tuple(event.leader_epochs)),) if after.is_kept else ()
    return after, (*((ev.Append(record),) if added else ()), *seal)


def _withdrawn(producer: Producer, event: ev.Withdrawn) -> Step:
    """Its data did not survive, so its producer was not answered, and it is the id's last."""
    withdrawn = next(it for it in producer.decided if it.txid == event.txid)
    of_this_epoch = (event.txid.producer_id, event.txid.epoch) == (producer.producer_id, producer.epoch)
    after = replace(
        producer,
        state=IdState.MUST_ABORT,
        decided=tuple(it for it in producer.decided if it is not withdrawn),
        last=Outcome.ABORTED if of_this_epoch else None,
        ended=not_committed(producer.ended, event.txid),
    )
    logs = tuple(withdrawn.expected)
    return after, (
        ev.Append(prepare_abort_record(producer, event.txid, logs, event.now_ms)),
        ev.Append(producer_record(after, event.now_ms)),
        ev.Flush(),
        _discard(producer, event.txid, logs, event.now_ms),
    )


def _unknown(producer: Producer, _event: ev.Add | ev.End) -> Step:
    return producer, (ev.AnswerWith(Refusal.UNKNOWN_PRODUCER_ID_MAPPING),)


_KINDS: dict[type[ev.Event], EventKind] = {
    ev.Init: EventKind.INIT,
    ev.Add: EventKind.ADD,
    ev.LogsBegun: EventKind.BEGUN,
    ev.Sealed: EventKind.SEALED,
    ev.Prepared: EventKind.PREPARED,
    ev.Refused: EventKind.REFUSED,
    ev.Copied: EventKind.COPIED,
    ev.TimedOut: EventKind.TIMED_OUT,
    ev.Forced: EventKind.FORCED,
    ev.Idle: EventKind.IDLE,
    ev.Restarted: EventKind.RESTARTED,
    ev.Resumed: EventKind.RESUMED,
    ev.Withdrawn: EventKind.WITHDRAWN,
    ev.Grouped: EventKind.GROUPED,
    ev.Dropped: EventKind.DROPPED,
}

_Rule = Callable[[Producer, Any], Step]
"""Each rule takes the events of its kind; `kind_of` and the table below see to it."""

_S, _E = IdState, EventKind

_RULES: dict[tuple[IdState, EventKind], _Rule] = {
    (_S.UNKNOWN, _E.INIT): _init,
    (_S.UNKNOWN, _E.ADD): _unknown,
    (_S.UNKNOWN, _E.END_COMMIT): _unknown,
    (_S.UNKNOWN, _E.END_ABORT): _unknown,
    (_S.UNKNOWN, _E.FORCED): _force_nothing,
    (_S.EMPTY, _E.INIT): _init,
    (_S.EMPTY, _E.ADD): _add,
    (_S.EMPTY, _E.BEGUN): _begun,
    (_S.EMPTY, _E.END_COMMIT): _end_nothing,
    (_S.EMPTY, _E.END_ABORT): _end_nothing,
    (_S.EMPTY, _E.COPIED): _copied,
    (_S.EMPTY, _E.FORCED): _force_nothing,
    (_S.EMPTY, _E.IDLE): _expire,
    (_S.EMPTY, _E.RESTARTED): _restarted,
    (_S.EMPTY, _E.WITHDRAWN): _withdrawn,
    (_S.OPEN, _E.INIT): _init,
    (_S.OPEN, _E.ADD): _add,
    (_S.OPEN, _E.BEGUN): _begun,
    (_S.OPEN, _E.END_COMMIT): _commit,
    (_S.OPEN, _E.END_ABORT): _abort,
    (_S.OPEN, _E.COPIED): _copied,
    (_S.OPEN, _E.TIMED_OUT): _end_by_force,
    (_S.OPEN, _E.FORCED): _force,
    (_S.OPEN, _E.RESTARTED): _restarted,
    (_S.OPEN, _E.RESUMED): _resumed,
    (_S.OPEN, _E.GROUPED): _grouped,
    (_S.OPEN, _E.DROPPED): _end_by_force,
    (_S.PREPARING, _E.INIT): _wait_for_decision,
    (_S.PREPARING, _E.ADD): _add_while_preparing,
    (_S.PREPARING, _E.END_COMMIT): _wait_for_decision,
    (_S.PREPARING, _E.END_ABORT): _end_while_deciding_otherwise,
    (_S.PREPARING, _E.SEALED): _sealed,
    (_S.PREPARING, _E.PREPARED): _prepared,
    (_S.PREPARING, _E.REFUSED): _refused,
    (_S.PREPARING, _E.COPIED): _copied,
    (_S.PREPARING, _E.FORCED): _force_nothing,
    (_S.MUST_ABORT, _E.INIT): _init,
    (_S.MUST_ABORT, _E.ADD): _add_after_abort,
    (_S.MUST_ABORT, _E.END_COMMIT): _commit_after_abort,
    (_S.MUST_ABORT, _E.END_ABORT): _abort_after_abort,
    (_S.MUST_ABORT, _E.COPIED): _copied,
    (_S.MUST_ABORT, _E.FORCED): _force_nothing,
    (_S.MUST_ABORT, _E.IDLE): _expire,
    (_S.MUST_ABORT, _E.RESTARTED): _restarted,
    (_S.MUST_ABORT, _E.WITHDRAWN): _withdrawn,
}
