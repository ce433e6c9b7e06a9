"""The transaction state machine of one transactional id: `step(producer, event) -> (producer, effects)`.

The rules of InitProducerId are in `granting.py`, those of EndTxn in `ending.py`, what all share in `steps.py`; the rest
is here, with the table of them all.

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
* invariant 9: a grant ends or keeps what is open, and is durable before it is answered.
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
from typing import Any

from coordinator import ending, granting, steps
from coordinator import events as ev
from coordinator.answers import CommittedTransaction, Granted, Refusal
from coordinator.group_records import BeginRecord, CommittedRecord, ExpiredRecord
from coordinator.id_records import prepare_abort_record, producer_record
from coordinator.messages import Begin, Prepare, Resume
from coordinator.producer import OpenTransaction, Outcome, Producer
from coordinator.states import NEXT_STATES, EventKind, IdState
from coordinator.steps import Step
from fairlog_types import LogId, Placement, ProducerEpoch, TxId

LOST_NUMBERS = 1_000_000
"""Skipped when BEGINs may be lost, so that no TxId is used twice: more transactions than can begin in one
group journal between two flushes of it."""


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


def _wait_for_decision(producer: Producer, event: ev.Init | ev.End) -> Step:
    if isinstance(event, ev.End) and (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    return producer, (ev.WaitForDecision(),)


# ---------------------------------------------------------------------------------- AddPartitionsToTxn


def _add(producer: Producer, event: ev.Add) -> Step:
    if (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    if producer.is_kept:
        return producer, (ev.AnswerWith(Refusal.WRONG_STATE),)
    after = steps.touched(producer, event, moved_on=True)
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
    if (refusal := steps.refusal(producer, event)) is not None:
        return producer, (ev.AnswerWith(refusal),)
    return steps.touched(producer, event), (ev.AnswerWith(Refusal.MUST_ABORT),)


def _add_while_preparing(producer: Producer, event: ev.Add) -> Step:
    return producer, (ev.AnswerWith(steps.refusal(producer, event) or Refusal.CONCURRENT),)


def _begun(producer: Producer, event: ev.LogsBegun) -> Step:
    before = producer.transaction
    logs = {**(before.logs if before else {}), **event.leader_epochs}
    answers: dict[LogId, Refusal | None] = dict.fromkeys(event.requested, Refusal.UNKNOWN_LOG)
    answers |= dict.fromkeys(event.failed, Refusal.STORAGE)
    answers |= {log: None for log in event.requested if log in logs}
    if not event.leader_epochs:
        return producer, (*_asked_in_vain(producer, event.now_ms), ev.AnswerWith(answers))
    started_ms = before.started_ms if before else event.now_ms
    after = producer._replace(state=IdState.OPEN, transaction=OpenTransaction(started_ms, logs))
    record = BeginRecord(producer.txid, producer.transactional_id, event.leader_epochs, event.now_ms)
    return after, (ev.Append(record), ev.AnswerWith(answers))


# ---------------------------------------------------------------------- copies, time, operators, restarts


def _copied(producer: Producer, event: ev.Copied) -> Step:
    """Several may be told of in any order: each copy waits for its own logs."""
    assert any(it.txid == event.txid for it in producer.decided), f"{event.txid} is not being copied"
    after = producer._replace(
        decided=tuple(it for it in producer.decided if it.txid != event.txid),
        committed=steps.remember(producer.committed, CommittedTransaction(event.txid, event.placements)),
    )
    record = CommittedRecord(event.txid, producer.transactional_id, event.placements, event.now_ms)
    return after, (ev.Append(record),)


def _sink_decided(producer: Producer, _event: ev.SinkDecided) -> Step:
    """The group's records in the journal, and its placing, stand for those of each of its transactions."""
    return steps.committed(producer), ()


def copied_in_commit(producer: Producer, txid: TxId, placements: tuple[Placement, ...]) -> Producer:
    """The id's transaction, which was committed with its group, is visible."""
    return producer._replace(committed=steps.remember(producer.committed, CommittedTransaction(txid, placements)))


def _end_by_force(producer: Producer, event: ev.TimedOut | ev.Forced | ev.Dropped) -> Step:
    if event.fence and producer.epoch < steps.EPOCH_MAX:
        after = steps.in_epoch(producer, Granted(producer.producer_id, ProducerEpoch(producer.epoch + 1)))
    else:
        after = steps.aborted(producer)
    record = ev.Append(producer_record(after, event.now_ms))
    answer = (ev.AnswerWith(None),) if isinstance(event, ev.Forced) else ()
    return after, (*steps.abort_open(producer, event.now_ms, record), *answer)


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
    return Producer(producer.transactional_id, member_of=producer.member_of), (ev.Append(record),)


def _restarted(producer: Producer, event: ev.Restarted) -> Step:
    """What was open goes on, if it may. If BEGINs may be lost, every id may have had one open, and must abort."""
    if producer.transaction is not None and event.tail_kept and event.goes_on:
        return producer, (ev.AskResume(Resume(producer.txid, producer.transaction.logs)),)
    after = producer
    if producer.transaction is not None:
        after = steps.aborted(after)
    if not event.tail_kept:
        after = after._replace(state=IdState.MUST_ABORT, number=after.number + LOST_NUMBERS)
    if after.state is IdState.EMPTY:
        return after, ()
    return after, steps.abort_open(producer, event.now_ms, ev.Append(producer_record(after, event.now_ms)))


def _resumed(producer: Producer, event: ev.Resumed) -> Step:
    """Open as it was before the restart. If a log has lost its part, though none could be lost, it is aborted.

    A log that had begun it and is not in the journal was being added when the node died: it takes part from now on, or
    has it to discard.
    """
    transaction = producer.transaction
    assert transaction is not None
    if event.lost:
        everywhere = transaction._replace(logs={**transaction.logs, **event.leader_epochs})
        after = steps.aborted(producer)
        record = ev.Append(producer_record(after, event.now_ms))
        return after, steps.abort_open(producer._replace(transaction=everywhere), event.now_ms, record)
    added = {log: epoch for log, epoch in event.leader_epochs.items() if log not in transaction.logs}
    record = BeginRecord(producer.txid, producer.transactional_id, added, event.now_ms)
    after = producer._replace(transaction=transaction._replace(logs=event.leader_epochs))
    close = (ev.Close(Prepare(after.txid, event.leader_epochs, only_closes=True)),) if after.is_kept else ()
    return after, (*((ev.Append(record),) if added else ()), *close)


def _withdrawn(producer: Producer, event: ev.Withdrawn) -> Step:
    """Its data did not survive, so its producer was not answered, and it is the id's last."""
    withdrawn = next(it for it in producer.decided if it.txid == event.txid)
    of_this_epoch = (event.txid.producer_id, event.txid.epoch) == (producer.producer_id, producer.epoch)
    after = producer._replace(
        state=IdState.MUST_ABORT,
        decided=tuple(it for it in producer.decided if it is not withdrawn),
        last=Outcome.ABORTED if of_this_epoch else None,
        ended=ending.not_committed(producer.ended, event.txid),
    )
    logs = tuple(withdrawn.expected)
    return after, (
        ev.Append(prepare_abort_record(producer, event.txid, logs, event.now_ms)),
        ev.Append(producer_record(after, event.now_ms)),
        ev.Flush(),
        steps.discard(producer, event.txid, logs, event.now_ms),
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
    ev.SinkDecided: EventKind.SINK_DECIDED,
    ev.Dropped: EventKind.DROPPED,
}

_Rule = Callable[[Producer, Any], Step]
"""Each rule takes the events of its kind; `kind_of` and the table below see to it."""

_S, _E = IdState, EventKind

_RULES: dict[tuple[IdState, EventKind], _Rule] = {
    (_S.UNKNOWN, _E.INIT): granting.init,
    (_S.UNKNOWN, _E.ADD): _unknown,
    (_S.UNKNOWN, _E.END_COMMIT): _unknown,
    (_S.UNKNOWN, _E.END_ABORT): _unknown,
    (_S.UNKNOWN, _E.FORCED): _force_nothing,
    (_S.EMPTY, _E.INIT): granting.init,
    (_S.EMPTY, _E.ADD): _add,
    (_S.EMPTY, _E.BEGUN): _begun,
    (_S.EMPTY, _E.END_COMMIT): ending.end_nothing,
    (_S.EMPTY, _E.END_ABORT): ending.end_nothing,
    (_S.EMPTY, _E.COPIED): _copied,
    (_S.EMPTY, _E.FORCED): _force_nothing,
    (_S.EMPTY, _E.IDLE): _expire,
    (_S.EMPTY, _E.RESTARTED): _restarted,
    (_S.EMPTY, _E.WITHDRAWN): _withdrawn,
    (_S.OPEN, _E.INIT): granting.init,
    (_S.OPEN, _E.ADD): _add,
    (_S.OPEN, _E.BEGUN): _begun,
    (_S.OPEN, _E.END_COMMIT): ending.commit,
    (_S.OPEN, _E.END_ABORT): ending.abort,
    (_S.OPEN, _E.COPIED): _copied,
    (_S.OPEN, _E.TIMED_OUT): _end_by_force,
    (_S.OPEN, _E.FORCED): _force,
    (_S.OPEN, _E.RESTARTED): _restarted,
    (_S.OPEN, _E.RESUMED): _resumed,
    (_S.OPEN, _E.SINK_DECIDED): _sink_decided,
    (_S.OPEN, _E.DROPPED): _end_by_force,
    (_S.PREPARING, _E.INIT): _wait_for_decision,
    (_S.PREPARING, _E.ADD): _add_while_preparing,
    (_S.PREPARING, _E.END_COMMIT): _wait_for_decision,
    (_S.PREPARING, _E.END_ABORT): ending.end_while_deciding_otherwise,
    (_S.PREPARING, _E.SEALED): ending.sealed,
    (_S.PREPARING, _E.PREPARED): ending.prepared,
    (_S.PREPARING, _E.REFUSED): ending.refused,
    (_S.PREPARING, _E.COPIED): _copied,
    (_S.PREPARING, _E.FORCED): _force_nothing,
    (_S.MUST_ABORT, _E.INIT): granting.init,
    (_S.MUST_ABORT, _E.ADD): _add_after_abort,
    (_S.MUST_ABORT, _E.END_COMMIT): ending.commit_after_abort,
    (_S.MUST_ABORT, _E.END_ABORT): ending.abort_after_abort,
    (_S.MUST_ABORT, _E.COPIED): _copied,
    (_S.MUST_ABORT, _E.FORCED): _force_nothing,
    (_S.MUST_ABORT, _E.IDLE): _expire,
    (_S.MUST_ABORT, _E.RESTARTED): _restarted,
    (_S.MUST_ABORT, _E.WITHDRAWN): _withdrawn,
}
