from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from coordinator import events as ev
from coordinator.answers import Granted, Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.machine import step
from coordinator.messages import Expected
from coordinator.producer import Decided, OpenTransaction, Outcome, Producer
from coordinator.settings import CoordinatorSettings
from coordinator.states import NEXT_STATES, TABLE, EventKind, IdState, diagram, matrix
from coordinator.steps import EPOCH_MAX
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    EndedEpoch,
    LeaderEpoch,
    LogId,
    ProducerEpoch,
    ProducerId,
    TxId,
)

LOG = LogId("t", "ab" * 16, 0)
PID, EPOCH = ProducerId(7), ProducerEpoch(3)
SETTINGS = CoordinatorSettings()


def producers(state: IdState) -> list[Producer]:
    """Producers in this state that differ in what the rules look at."""
    if state is IdState.UNKNOWN:
        return [Producer("t")]
    transaction = None
    if state is IdState.OPEN:
        transaction = OpenTransaction(0, {LOG: LeaderEpoch(1)})
    elif state is IdState.PREPARING:
        transaction = OpenTransaction(0, {LOG: LeaderEpoch(1)}, {LOG: Expected(LeaderEpoch(1), 2)})
    decided = [Decided(TxId(PID, EPOCH, number), {}, 0, number + 1) for number in range(DECIDED_MAX)]
    plain = Producer("t", state, PID, EPOCH, timeout_ms=1_000, number=9, transaction=transaction, connection=5)
    return [
        plain._replace(decided=(decided[0],)),
        plain._replace(decided=tuple(decided), last=Outcome.COMMITTED),
        plain._replace(decided=(decided[0],), last=Outcome.ABORTED),
        plain._replace(decided=(decided[0],), epoch=ProducerEpoch(EPOCH_MAX)),
        plain._replace(
            decided=(decided[0],),
            ended=EndedEpoch(PID, ProducerEpoch(EPOCH - 1), True),
            next_grant=Granted(PID, ProducerEpoch(EPOCH + 1)) if state is IdState.PREPARING else None,
        ),
        plain._replace(
            decided=(decided[0],),
            epoch=ProducerEpoch(EPOCH_MAX),
            ended=EndedEpoch(PID, ProducerEpoch(EPOCH_MAX - 1), True),
        ),
    ]


def events(kind: EventKind, producer: Producer) -> list[ev.Event]:
    """Events of this kind: as the producer itself, as a stranger, as a zombie, and late."""
    pid, epoch = producer.producer_id, producer.epoch
    senders = [(pid, epoch, 6), (ProducerId(99), epoch, 6), (pid, ProducerEpoch(epoch - 1), 6), (pid, epoch, 4)]
    match kind:
        case EventKind.INIT:
            unnamed = ev.Init(60_000, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 6, SETTINGS, 0)
            return [
                unnamed,
                dataclasses.replace(unnamed, fresh_id=ProducerId(8)),
                dataclasses.replace(unnamed, timeout_ms=0),
                dataclasses.replace(unnamed, producer_id=ProducerId(99), epoch=EPOCH, fresh_id=ProducerId(8)),
            ]
        case EventKind.ADD:
            return [ev.Add(*sender[:2], (LOG,), sender[2], 0) for sender in senders]
        case EventKind.BEGUN:
            return [ev.LogsBegun((LOG,), logs, 0) for logs in ({LOG: LeaderEpoch(1)}, {})]
        case EventKind.END_COMMIT | EventKind.END_ABORT:
            commit = kind is EventKind.END_COMMIT
            sent = [ev.End(*sender[:2], commit, sender[2], 0) for sender in senders]
            said_again = ev.End(pid, ProducerEpoch(epoch - 1), commit, None, 0)
            fresh = dataclasses.replace(said_again, fresh_id=ProducerId(8))
            return [*sent, ev.End(pid, epoch, commit, None, 0), said_again, fresh]
        case EventKind.SEALED:
            return [ev.Sealed({LOG: Expected(LeaderEpoch(1), 2)}, 0, 1), ev.Sealed({}, 0, 1)]
        case EventKind.PREPARED:
            return [ev.Prepared(0)]
        case EventKind.REFUSED:
            return [ev.Refused(0)]
        case EventKind.COPIED:
            return [ev.Copied(TxId(PID, EPOCH, 0), (), 0)]
        case EventKind.TIMED_OUT:
            return [ev.TimedOut(fence, 0) for fence in (True, False)]
        case EventKind.FORCED:
            other = TxId(PID, EPOCH, 0)
            return [*(ev.Forced(fence, 0) for fence in (True, False)), ev.Forced(True, 0, other)]
        case EventKind.IDLE:
            return [ev.Idle()]
        case EventKind.RESTARTED:
            return [ev.Restarted(*case, 0) for case in itertools.product((True, False), repeat=2)]
        case EventKind.RESUMED:
            return [ev.Resumed({LOG: LeaderEpoch(1)}, {}, 0), ev.Resumed({}, {LOG: "no epoch is known"}, 0)]
        case EventKind.WITHDRAWN:
            return [ev.Withdrawn(TxId(PID, EPOCH, 0), 0)]
        case EventKind.SINK_DECIDED:
            return [ev.SinkDecided()]
        case EventKind.DROPPED:
            return [ev.Dropped(0)]


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(IdState, EventKind)))
def test_pair_of_state_and_event_leads_exactly_where_the_table_says(state, kind):
    """Every row of the table happens, nothing else does, and a pair without rows is an assertion."""
    reached = set()
    for producer in producers(state):
        for event in events(kind, producer):
            if (state, kind) not in NEXT_STATES:
                with pytest.raises(AssertionError):
                    step(producer, event)
                continue
            reached.add(step(producer, event)[0].state)
    assert reached == NEXT_STATES.get((state, kind), frozenset())


@pytest.mark.parametrize("state", IdState)
@pytest.mark.parametrize("kind", [EventKind.INIT, EventKind.ADD, EventKind.END_COMMIT, EventKind.END_ABORT])
def test_request_in_any_state_is_answered_or_asks_or_waits(state, kind):
    """No request is left without an answer: the last effect answers it, asks somebody, or waits."""
    last_effects = (ev.AnswerWith, ev.AskBegin, ev.AskPrepare, ev.AskProducerId, ev.WaitForCopy, ev.WaitForDecision)
    for producer in producers(state):
        for event in events(kind, producer):
            effects = step(producer, event)[1]
            assert isinstance(effects[-1], last_effects)
            assert not any(isinstance(effect, last_effects) for effect in effects[:-1])


@pytest.mark.parametrize("state", list(IdState)[1:])
@pytest.mark.parametrize("kind", [EventKind.ADD, EventKind.END_COMMIT, EventKind.END_ABORT])
def test_request_of_stranger_zombie_or_late_connection_changes_nothing(state, kind):
    """Invariants 9 and 10: who is not the current producer on a current connection is only told so."""
    refusals = (Refusal.UNKNOWN_PRODUCER_ID_MAPPING, Refusal.FENCED, Refusal.LATE)
    for producer in producers(state):
        for event, refusal in zip(events(kind, producer)[1:4], refusals, strict=True):
            assert step(producer, event) == (producer, (ev.AnswerWith(refusal),))


def test_row_is_unique():
    """No row stands in the table twice."""
    assert len({row[:3] for row in TABLE}) == len(TABLE)


@pytest.mark.parametrize("made", [diagram(), matrix()], ids=["diagram", "matrix"])
def test_documentation_shows_the_table(made):
    """docs/transactions.md shows what `states.diagram()` and `states.matrix()` make of the table today."""
    page = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text(encoding="utf-8")
    assert made in page, f"put this into docs/transactions.md:\n{made}"
