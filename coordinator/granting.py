"""The rules of InitProducerId: who is granted which epoch, and what becomes of what is open.

A retry gets what it was granted, anybody else the next epoch, or the first one of a fresh producer id. What is open is
aborted, or kept for the new epoch to end it (KIP-939). A grant is durable before it is answered (invariant 9). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator import events as ev
from coordinator import steps
from coordinator.answers import Granted, GrantedToEnd, Refusal
from coordinator.id_records import producer_record
from coordinator.messages import Prepare
from coordinator.producer import NO_TIMEOUT_MS, Producer
from coordinator.states import IdState
from coordinator.steps import Step
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch

TRANSACTIONAL_ID_BYTES_MAX = 1_024
"""In UTF-8. Each record of the group journal names the id, and must stay below the largest frame."""


def init(producer: Producer, event: ev.Init) -> Step:
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
            if producer.state is IdState.EMPTY or (producer.is_kept and event.keeps):
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
    return (event.producer_id, event.epoch) == before or steps.named_what_ended(producer, event)


def _grant_again(producer: Producer, event: ev.Init) -> Step:
    """The answer to the first attempt was lost, or overtaken; it may not even have been durable."""
    after = producer._replace(granted_on=event.connection, used_ms=event.now_ms)
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
    granted = steps.next_grant(producer, event.fresh_id)
    if granted is None:
        return producer, (ev.AskProducerId(),)
    after = steps.in_epoch(producer, granted, last_epoch if granted.epoch else NO_PRODUCER_EPOCH)._replace(
        timeout_ms=timeout_ms,
        granted_on=event.connection,
        used_ms=event.now_ms,
    )
    ends: Sequence[ev.Effect]
    if event.keeps and producer.transaction is not None:
        after = after._replace(state=IdState.OPEN, transaction=steps.kept(producer))
        close = ev.Close(Prepare(after.txid, producer.transaction.logs, only_closes=True))
        ends = (close, ev.Append(producer_record(after, event.now_ms)))
    else:
        ends = steps.abort_open(producer, event.now_ms, ev.Append(producer_record(after, event.now_ms)))
    return after, (*ends, ev.Flush(), ev.AwaitCopied(), ev.AnswerWith(_grant_of(after)))
