"""Planted bugs in the coordinator of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import coordinator.granting
import coordinator.machine
import coordinator.recovery
import coordinator.replay
import coordinator.steps
from coordinator import events as ev
from coordinator.executor import Executor
from coordinator.group_records import ProducerRecord
from coordinator.messages import ApplyCommit
from coordinator.producer import Outcome, Producer
from coordinator.service import Coordinator
from coordinator.states import EventKind, IdState
from tests.simulation.planting import Mutation, does_not_wait, patched


def _late_is_accepted(producer: Any, event: Any) -> Any:
    return _REAL_REFUSAL(producer, replace(event, connection=1 << 60))


_REAL_REFUSAL = coordinator.steps.refusal


def _epoch_is_not_checked(producer: Any, event: Any) -> Any:
    return _REAL_REFUSAL(producer, replace(event, epoch=producer.epoch))


@contextmanager
def _grant_is_not_flushed() -> Iterator[None]:
    def without_flush(grant: Callable[..., Any]) -> Callable[..., Any]:
        def granted(*args: Any) -> Any:
            after, effects = grant(*args)
            return after, tuple(effect for effect in effects if not isinstance(effect, ev.Flush))

        return granted

    rules = coordinator.granting
    with (
        mock.patch.object(rules, "_grant", without_flush(rules._grant)),
        mock.patch.object(rules, "_grant_again", without_flush(rules._grant_again)),
    ):
        yield


async def _decides_before_its_record_is_durable(self: Executor, slot: Any, preparation: Any) -> Any:
    index = slot.journal
    with mock.patch.object(self.journals[index], "flush", does_not_wait):
        return await _REAL_PREPARED(self, slot, preparation)


async def _applies_before_all_have_prepared(self: Executor, slot: Any, preparation: Any) -> Any:
    ((txid, expected),) = preparation.expected.items()
    self.participants.apply((ApplyCommit(txid, tuple(expected), self.now_ms(), slot.producer.group),))
    return await _REAL_PREPARED(self, slot, preparation)


_REAL_PREPARED = Executor._prepared


def _timeout_without_fence(producer: Any, event: Any) -> Any:
    after = producer._replace(state=IdState.EMPTY, number=producer.number + 1, last=Outcome.ABORTED, transaction=None)
    return after, tuple(coordinator.steps.abort_open(producer, event.now_ms))


@contextmanager
def _timeout_forgets_the_client() -> Iterator[None]:
    machine = coordinator.machine
    rules: Mapping[Any, Any] = {
        pair: _timeout_without_fence if rule is machine._end_by_force else rule for pair, rule in machine._RULES.items()
    }
    with mock.patch.object(machine, "_RULES", rules):
        yield


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


class _ToldProducer(Producer):
    """A producer of which one connection has been told that its transaction is aborted."""

    told: tuple[int, int] = (-1, -1)
    """The number of what would be the next transaction, and the connection."""

    def _replace(self, **changes: Any) -> _ToldProducer:
        after = super()._replace(**changes)
        after.told = self.told
        return after


def _told(producer: Producer, connection: int) -> Producer:
    after = _ToldProducer(*producer)
    after.told = (producer.number, connection)
    return after


def _whoever_was_told_begins_anew(producer: Producer, event: ev.Add) -> Any:
    machine = coordinator.machine
    if isinstance(producer, _ToldProducer) and producer.told == (producer.number, event.connection):
        return machine._add(producer._replace(state=IdState.EMPTY), event)
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


async def _tail_is_always_taken_for_kept(self: Coordinator, *, tail_kept: bool) -> None:
    del tail_kept
    await _REAL_RECOVER(self, tail_kept=True)


_REAL_RECOVER = Coordinator.recover


MUTATIONS = (
    Mutation(
        "apply-before-prepared",
        "APPLY is written before all have prepared",
        patched(Executor, "_prepared", _applies_before_all_have_prepared),
    ),
    Mutation(
        "late-end-accepted",
        "EndTxn on an older connection is carried out",
        patched(coordinator.steps, "refusal", _late_is_accepted),
    ),
    Mutation(
        "epoch-unchecked",
        "the coordinator takes requests of any epoch",
        patched(coordinator.steps, "refusal", _epoch_is_not_checked),
    ),
    Mutation("grant-not-flushed", "InitProducerId is answered before its epoch is on disk", _grant_is_not_flushed),
    Mutation(
        "decision-not-flushed",
        "a commit is answered before PREPARE_COMMIT is on disk",
        patched(Executor, "_prepared", _decides_before_its_record_is_durable),
    ),
    Mutation("timeout-without-fence", "a time-out aborts, and the client may go on", _timeout_forgets_the_client),
    Mutation(
        "must-abort-not-asked",
        "a start behind a loss of power trusts the group journals' tails",
        patched(Coordinator, "recover", _tail_is_always_taken_for_kept),
    ),
    Mutation(
        "doubt-forgotten",
        "a start does not finish what was being committed",
        patched(coordinator.recovery, "in_doubt", lambda _: []),
    ),
    Mutation(
        "deadline-begins-anew",
        "a transaction that goes on after a start has its whole time-out again",
        patched(coordinator.recovery, "open_before", lambda *_: 0),
    ),
    Mutation(
        "fence-lost-at-the-start",
        "the epoch that a time-out has bumped is not written down",
        lambda: _rule_replaced(coordinator.machine._end_by_force, _end_by_force_without_its_record),
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
)
