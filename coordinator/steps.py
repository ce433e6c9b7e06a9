"""What the rules of the machine (`machine.py`) share: who may speak for an id, and what an epoch and an abort mean.

Each rule takes the producer as it is and an event, and returns the producer afterwards and the effects (`Step`). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator import events as ev
from coordinator.answers import CommittedTransaction, Granted, Refusal
from coordinator.group_records import AbortedRecord
from coordinator.id_records import prepare_abort_record
from coordinator.messages import DiscardTransaction
from coordinator.producer import NO_CONNECTION, NO_TIMEOUT_MS, OpenTransaction, Outcome, Producer
from coordinator.states import IdState
from fairlog_types import NO_PRODUCER_EPOCH, EndedEpoch, LogId, ProducerEpoch, ProducerId, TxId

EPOCH_MAX = 32_767
"""int16. The last one is never granted: it is kept to fence the one before (as in Kafka)."""

COMMITTED_KEPT = 5
"""So many placements are remembered for each id."""

Step = tuple[Producer, Sequence[ev.Effect]]


def refusal(producer: Producer, event: ev.Add | ev.End) -> Refusal | None:
    """Why this request does not come from the id's one current producer."""
    if producer.state is IdState.UNKNOWN or event.producer_id != producer.producer_id:
        return Refusal.UNKNOWN_PRODUCER_ID_MAPPING
    if event.epoch != producer.epoch:
        return Refusal.FENCED
    if event.connection is not None and event.connection < producer.connection:
        return Refusal.LATE
    return None


def touched(producer: Producer, event: ev.Add | ev.End, **changes: Any) -> Producer:
    """After a request of the current producer, and `changes` with it: one copy for both."""
    connection = producer.connection if event.connection is None else event.connection
    return producer._replace(connection=connection, granted_on=NO_CONNECTION, used_ms=event.now_ms, **changes)


def next_grant(producer: Producer, fresh_id: ProducerId | None) -> Granted | None:
    """The id's next epoch, or the first one of a fresh producer id; None if that has to be asked for."""
    if producer.state is not IdState.UNKNOWN and producer.epoch < EPOCH_MAX - 1:
        return Granted(producer.producer_id, ProducerEpoch(producer.epoch + 1))
    return None if fresh_id is None else Granted(fresh_id, ProducerEpoch(0))


def kept(producer: Producer) -> OpenTransaction:
    """What is open, as the next epoch is to end it (KIP-939). If it had no time-out, it has none."""
    assert producer.transaction is not None
    lasts = producer.open_timeout_ms == NO_TIMEOUT_MS
    return producer.transaction._replace(kept=producer.txid, lasts=lasts)


def in_epoch(
    producer: Producer,
    granted: Granted,
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ended: EndedEpoch | None = None,
) -> Producer:
    """The id at the beginning of an epoch."""
    return producer._replace(
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


def named_what_ended(producer: Producer, event: ev.Init | ev.End) -> bool:
    """Does the request name the epoch whose end granted the present one? Then the answer to that end was lost."""
    ended = producer.ended
    return ended is not None and (event.producer_id, event.epoch) == (ended.producer_id, ended.epoch)


def committed(producer: Producer) -> Producer:
    """After the commit of what was open; the epoch goes on."""
    return producer._replace(
        state=IdState.EMPTY,
        number=producer.number + 1,
        last=Outcome.COMMITTED,
        moved_on=False,
        transaction=None,
    )


def aborted(producer: Producer) -> Producer:
    """After the coordinator, not the client, aborted what was open."""
    return producer._replace(
        state=IdState.MUST_ABORT,
        number=producer.number + 1,
        last=Outcome.ABORTED,
        transaction=None,
        next_grant=None,
        granted_on=NO_CONNECTION,
    )


def abort_open(producer: Producer, now_ms: int, record: ev.Append | None = None) -> Sequence[ev.Effect]:
    """PREPARE_ABORT, then `record`, which says what the abort means for the id, then DISCARD and ABORTED."""
    said = () if record is None else (record,)
    if producer.transaction is None:
        return said
    return (
        ev.Append(prepare_abort_record(producer, producer.txid, tuple(producer.transaction.logs), now_ms)),
        *said,
        discard(producer, producer.txid, tuple(producer.transaction.logs), now_ms),
    )


def discard(producer: Producer, txid: TxId, logs: tuple[LogId, ...], now_ms: int) -> ev.Discard:
    return ev.Discard(DiscardTransaction(txid, logs), AbortedRecord(txid, producer.transactional_id, now_ms))


def remember(
    committed: tuple[CommittedTransaction, ...], done: CommittedTransaction
) -> tuple[CommittedTransaction, ...]:
    """The last few of an id, in commit order, which is that of their numbers, and not that of their copies."""
    return tuple(sorted((*committed, done), key=lambda it: it.txid))[-COMMITTED_KEPT:]
