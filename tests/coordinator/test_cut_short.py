"""Wherever the group journal ends, a start, the replay of what it has written and a snapshot of it answer alike.

A *course* is a word: each letter is a step of one transactional id. Its journal is cut behind every record. From there
a node starts, with all that was appended, or after a loss of power, with participants that have everything or nothing.
What then is answered to each end and each InitProducerId must not depend on whether the node lives on, dies again, or
cuts its journal. The records are real, the journals and the participants are doubles.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import pytest

from coordinator import events as ev
from coordinator.answers import Granted, GrantedToEnd
from coordinator.group_records import AbortedRecord, BeginRecord
from coordinator.id_records import producer_record
from coordinator.machine import step
from coordinator.producer import Producer
from coordinator.replay import replay, snapshot_records
from coordinator.settings import CoordinatorSettings
from coordinator.steps import EPOCH_MAX
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from tests.coordinator.transactions import settle

SETTINGS = CoordinatorSettings(two_phase_commit=True)
FRESH = ProducerId(9_999)

Step = Callable[[Any, Granted, Any], Awaitable[object]]


_CONNECTIONS = count(100)


async def _init(world, *, keeps: bool):
    nobody = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
    return await world.coordinator.init_producer_id(
        "t", 60_000, *nobody, next(_CONNECTIONS), two_phase=True, keeps=keeps
    )


async def add(world, granted, logs):
    await world.add(granted, logs[0], connection=None)
    world.produce(logs[0], 2)


async def keep(world, _granted, _logs):
    answer = await _init(world, keeps=True)
    return answer.granted if isinstance(answer, GrantedToEnd) else answer


async def take_over(world, _granted, _logs):
    return await _init(world, keeps=False)


async def commit(world, granted, _logs):
    return await world.coordinator.end_epoch("t", granted.producer_id, granted.epoch, True)


async def abort(world, granted, _logs):
    return await world.coordinator.end_epoch("t", granted.producer_id, granted.epoch, False)


async def refuse(world, granted, logs):
    """A commit for which a participant cannot prepare."""
    world.participants.refusing = {logs[0]: "lost"}
    answer = await commit(world, granted, logs)
    world.participants.refusing = {}
    return answer


async def force(world, _granted, _logs):
    return await world.coordinator.abort_open("t")


async def commit_of_version_1(world, granted, _logs):
    return await world.end(granted, connection=9)


STEPS: Mapping[str, Step] = {
    "a": add,
    "k": keep,
    "i": take_over,
    "c": commit,
    "x": abort,
    "r": refuse,
    "f": force,
    "v": commit_of_version_1,
}
COURSES = (
    *("ac", "ax", "ar", "arx", "acac"),
    *("akc", "akx", "akkc", "akr", "akrx", "akf", "aki", "akcac", "acakc", "akcakc", "akxakx", "akcakx", "akrk"),
    *("avac", "avakc", "avavakr"),
)


def answers(producer: Producer | None, epochs: set[Granted]) -> Mapping[object, object]:
    """What the id would answer, to whom, and what it holds."""
    if producer is None:
        return {}
    found: dict[object, object] = {"open": producer.transaction is not None and producer.txid}
    found["decided"] = [it.txid for it in producer.decided]
    for granted in epochs:
        for commits in (True, False):
            end = ev.End(granted.producer_id, granted.epoch, commits, None, 0, fresh_id=FRESH)
            found[granted, commits] = _answer(producer, end)
    for keeps in (True, False):
        init = ev.Init(60_000, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 1 << 30, SETTINGS, 0, fresh_id=FRESH, keeps=keeps)
        found["init", keeps] = _answer(producer, init)
    return found


def _answer(producer: Producer, event: ev.Event) -> object:
    last = step(producer, event)[1][-1]
    return last.answer if isinstance(last, ev.AnswerWith) else type(last).__name__


async def carry_out(world, logs, course: str, *, last_epochs: bool) -> set[Granted]:
    """Answers all epochs that were granted."""
    granted = await _init(world, keeps=False)
    if last_epochs:
        slot = world.coordinator._table.entries["t"]
        late = slot.producer._replace(epoch=ProducerEpoch(EPOCH_MAX - 2))
        world.coordinator._table.become(slot, late)
        world.journal.append(producer_record(late, 0))
        granted = Granted(granted.producer_id, late.epoch)
    epochs = {granted}
    for letter in course:
        answer = await STEPS[letter](world, granted, logs)
        await settle()
        if isinstance(answer, Granted):
            granted = answer
            epochs.add(granted)
    return epochs


def as_the_journal_knows_it(world, records, *, refusing) -> Any:
    """A node that finds these records; its participants hold what they tell of, or `refusing` parts of it."""
    found = world.imaged()
    found.settings = SETTINGS
    found.start()
    found.journal.records, found.journal.durable = list(records), len(records)
    participants = found.participants
    participants.placings, participants.discarded, participants.refusing = [], [], refusing
    participants.held = {}
    for record in records:
        if isinstance(record, BeginRecord) and record.logs:
            participants.held.setdefault(record.txid, {}).update(dict.fromkeys(record.logs, 2))
        elif isinstance(record, AbortedRecord):
            participants.held.pop(record.txid, None)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("last_epochs", [False, True], ids=["", "last epochs"])
@pytest.mark.parametrize("course", COURSES)
async def test_answers_after_a_start_outlive_another_and_a_snapshot(
    world, logs, nursery, course, last_epochs, autojump_clock
):
    """For each place where the journal may end."""
    world.settings = SETTINGS
    world.start()
    await nursery.start(world.run)
    epochs = await carry_out(world, logs, course, last_epochs=last_epochs)
    whole = list(world.journal.records)
    compared = 0
    for end in range(2, len(whole) + 1):
        for tail_kept, refusing in ((True, {}), (False, {}), (False, {logs[0]: "lost"})):
            started = as_the_journal_knows_it(world, whole[:end], refusing=refusing)
            await started.coordinator.recover(tail_kept=tail_kept)
            producer = started.coordinator._table.entries["t"].producer
            lives_on = answers(producer, epochs)
            snapshot = list(snapshot_records([producer]))
            where = f"{type(whole[end - 1]).__name__} is the last of {end}, tail kept: {tail_kept}, {refusing}"
            assert answers(replay(started.journal.records).producers.get("t"), epochs) == lives_on, where
            assert answers(replay(snapshot).producers.get("t"), epochs) == lives_on, where
            for again in (1, 2):
                repeated = [*snapshot, *started.journal.records[-again:]]
                assert answers(replay(repeated).producers.get("t"), epochs) == lives_on, f"{where}, {again} repeated"
            compared += 1
    assert compared >= 3 * (len(course) - 1)
