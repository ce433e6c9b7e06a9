"""Transactional groups: who is a member, and the one commit order of all that a group commits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from coordinator.answers import Refusal
from coordinator.group_records import GroupRecord, PrepareCommitRecord
from coordinator.lane_ids import lane_id
from coordinator.messages import ApplyCommit
from coordinator.service import DECISION_PATIENCE_S
from coordinator.settings import CoordinatorSettings
from coordinator.transaction_groups import group_of, journal_of
from fairlog_types import LogId, TxId
from tests.coordinator.conftest import CountingIds, MemoryGroupJournal, MemoryParticipants, World

SETTINGS = CoordinatorSettings(group_separator="::", check_interval_ms=500)
FIRST, SECOND, OTHER = "orders::1", "orders::2", "billing::1"


@pytest.mark.parametrize(
    ("transactional_id", "separator", "group"),
    [
        ("orders::7", "::", "orders"),
        ("orders::7::b", "::", "orders"),
        ("orders", "::", "orders"),
        ("orders::7", "", "orders::7"),
        ("orders-7", "-", "orders"),
        ("::7", "::", "::7"),
        ("orders::", "::", "orders::"),
        ("::", "::", "::"),
        ("", "::", ""),
        (lane_id("s::t", 3), "::", "fairlog.lane.s::t"),
        ("fairlog.lane.x::3", "::", "fairlog.lane.x::3"),
    ],
)
def test_group_is_what_stands_before_the_separator(transactional_id: str, separator: str, group: str) -> None:
    """Only if something stands on either side; a lane is of its sink, whatever the separator is."""
    assert group_of(transactional_id, separator) == group


def grouped(world: World, settings: CoordinatorSettings = SETTINGS) -> World:
    world.settings = settings
    world.start()
    return world


@pytest.fixture
def world(logs: list[LogId]) -> World:
    """Its coordinator knows groups."""
    return grouped(World([MemoryGroupJournal()], MemoryParticipants(set(logs)), CountingIds()))


async def commit_slowly_and_fast(running: World, nursery: trio.Nursery, log: LogId, slow: str, fast: str) -> list[str]:
    """`slow` says EndTxn first and prepares for 5 s, `fast` says it 1 s later; whose are applied after 2 s more."""
    granted = {name: await running.init(name=name) for name in (slow, fast)}
    for name in (slow, fast):
        await running.add(granted[name], log, name=name)
        assert running.produce(log, name=name)
    running.participants.prepare_s = 5
    nursery.start_soon(lambda: running.end(granted[slow], name=slow))
    await trio.sleep(1)
    running.participants.prepare_s = 0
    assert await running.end(granted[fast], name=fast) is None
    await trio.sleep(2)
    return applied(running)


def applied(running: World) -> list[str]:
    owners = [running.coordinator.owner_of(txid.producer_id) for txid in running.participants.placings]
    return [owner for owner in owners if owner is not None]


async def test_members_are_applied_in_the_order_of_their_prepare_commits(running, nursery, logs, autojump_clock):
    """The one that is decided first waits for the one that has said EndTxn before it."""
    assert await commit_slowly_and_fast(running, nursery, logs[0], FIRST, SECOND) == []
    await trio.sleep(5)
    assert applied(running) == [FIRST, SECOND]


async def test_fault_in_placing_one_leaves_those_behind_it_unplaced(world, logs, monkeypatch, autojump_clock):
    """They are due together, and another client's request asks for them before the node has stopped (invariant 6)."""
    tried: list[TxId] = []

    def apply(messages: Sequence[ApplyCommit]) -> None:
        tried.extend(message.txid for message in messages)
        raise Fault

    async def end_slowly() -> None:
        with pytest.raises(Fault):
            await world.end(granted[FIRST], name=FIRST)
        world.coordinator.place_due()
        assert [world.coordinator.owner_of(txid.producer_id) for txid in tried] == [FIRST]
        assert [world.coordinator.lacks_commits(log) for log in logs[:2]] == [True, True]
        seen.set()

    seen = trio.Event()
    with pytest.RaisesGroup(Fault, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(world.run)
            granted = {name: await world.init(name=name) for name in (FIRST, SECOND)}
            for name, log in ((FIRST, logs[0]), (SECOND, logs[1])):
                await world.add(granted[name], log, name=name)
                assert world.produce(log, name=name)
            world.participants.awaited.add(logs[0])
            monkeypatch.setattr(world.participants, "apply", apply)
            world.participants.prepare_s = 5
            nursery.start_soon(end_slowly)
            await trio.sleep(1)
            world.participants.prepare_s = 0
            assert await world.end(granted[SECOND], name=SECOND) is None
            await trio.sleep_forever()
    assert seen.is_set()


class Fault(Exception):
    """Of the program. No AssertionError, lest one of the test's own be taken for it."""


async def test_other_groups_wait_for_nobody(running, nursery, logs, autojump_clock):
    """Without a common group there is no common order."""
    assert await commit_slowly_and_fast(running, nursery, logs[0], FIRST, OTHER) == [OTHER]


async def test_member_that_cannot_prepare_lets_the_next_one_go(running, nursery, logs, autojump_clock):
    """It is aborted; its number is used all the same."""
    await commit_slowly_and_fast(running, nursery, logs[0], FIRST, SECOND)
    running.participants.refusing[logs[0]] = "it has failed"
    await trio.sleep(5)
    assert applied(running) == [SECOND]
    records = [it for it in running.journal.records if isinstance(it, PrepareCommitRecord)]
    assert [(it.transactional_id, it.commit_number) for it in records] == [(FIRST, 1), (SECOND, 2)]


@pytest.mark.parametrize("first", [FIRST, SECOND])
@pytest.mark.parametrize("snapshot", [False, True])
async def test_order_outlives_a_crash(running, nursery, logs, first, snapshot, autojump_clock):
    """Both are in doubt; in a snapshot the records of one id stand together, and the numbers tell the order."""
    second = SECOND if first == FIRST else FIRST
    await commit_slowly_and_fast(running, nursery, logs[0], first, second)
    if snapshot:
        running.journal.bytes_since_snapshot = 10**9
        await trio.sleep(1)
        assert running.journal.snapshots == 1
    after = grouped(running.imaged())
    after.participants.prepare_s = 0
    await after.coordinator.recover(tail_kept=True)
    assert applied(after) == [first, second]
    assert after.journal.next_commit_number == 3


async def test_members_share_a_group_journal(logs, nursery):
    """That of their group's name."""
    world = grouped(World([MemoryGroupJournal() for _ in range(8)], MemoryParticipants(set(logs)), CountingIds()))
    await world.coordinator.recover(tail_kept=True)
    for member in range(8):
        await world.init(name=f"orders::{member}")
    (used,) = [index for index, journal in enumerate(world.journals) if journal.records]
    assert used == journal_of("orders", 8)


async def test_id_stays_in_its_group_when_the_separator_changes(running, nursery, logs, autojump_clock):
    """Its past is in that group's journal. New ids are in the group that the separator says."""
    await running.init(name=FIRST)
    after = grouped(running.restarted(), CoordinatorSettings(group_separator="s::"))
    await after.coordinator.recover(tail_kept=True)
    await nursery.start(after.run)
    await after.init(name=FIRST)
    await after.init(name=SECOND)
    groups = {it.transactional_id: it.group for it in after.journal.records if hasattr(it, "group")}
    assert groups == {FIRST: "orders", SECOND: "order"}


async def test_next_transaction_begins_when_the_last_commit_is_placed(running, nursery, logs, autojump_clock):
    """Regression, of seed sinks1.70: in marker mode its batches came before the last one's marker.

    A commit that is decided and waits in its group is answered; what its producer begins then waits for its place.
    """
    granted = {name: await running.init(name=name) for name in (FIRST, SECOND)}
    for name in (FIRST, SECOND):
        await running.add(granted[name], logs[0], name=name)
    running.participants.prepare_s = 3
    nursery.start_soon(lambda: running.end(granted[FIRST], name=FIRST))
    await trio.sleep(1)
    running.participants.prepare_s = 0
    assert await running.end(granted[SECOND], name=SECOND) is None
    assert await running.add(granted[SECOND], logs[0], name=SECOND) == {logs[0]: None}
    assert applied(running) == [FIRST, SECOND]


async def test_next_transaction_hears_concurrent_if_that_takes_long(running, nursery, logs, autojump_clock):
    """Its client asks again; its end, and a new instance, do not wait for that."""
    granted = {name: await running.init(name=name) for name in (FIRST, SECOND)}
    for name in (FIRST, SECOND):
        await running.add(granted[name], logs[0], name=name)
    running.participants.prepare_s = 60
    nursery.start_soon(lambda: running.end(granted[FIRST], name=FIRST))
    await trio.sleep(1)
    running.participants.prepare_s = 0
    assert await running.end(granted[SECOND], name=SECOND) is None
    began_s = trio.current_time()
    assert await running.add(granted[SECOND], logs[0], name=SECOND) is Refusal.CONCURRENT
    assert trio.current_time() - began_s == DECISION_PATIENCE_S
    assert await running.end(granted[SECOND], name=SECOND) is None
    assert applied(running) == []


async def test_order_is_that_of_the_numbers_if_the_grant_waits_for_room(running, nursery, logs, autojump_clock):
    """Version 2: PREPARE_COMMIT found room, the grant after it waits for some, and another member commits meanwhile."""
    granted = {name: await running.init(name=name) for name in (FIRST, SECOND)}
    for name in (FIRST, SECOND):
        await running.add(granted[name], logs[0], name=name)
        assert running.produce(logs[0], name=name)
    journal = running.journal
    waits_s = [5.0, 0.0]

    async def make_room(record: GroupRecord) -> None:
        await trio.sleep(waits_s.pop(0))
        journal.room = 10

    async def end(name: str) -> None:
        await running.coordinator.end_epoch(name, granted[name].producer_id, granted[name].epoch, True)

    journal.make_room = make_room
    journal.room = 1
    nursery.start_soon(end, FIRST)
    await trio.sleep(1)
    await end(SECOND)
    await trio.sleep(5)
    records = [it for it in journal.records if isinstance(it, PrepareCommitRecord)]
    assert [(it.transactional_id, it.commit_number) for it in records] == [(FIRST, 1), (SECOND, 2)]
    assert applied(running) == [FIRST, SECOND]
