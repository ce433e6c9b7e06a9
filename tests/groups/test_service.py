"""The membership service: time, parked requests, memory, and what other rooms ask of it."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from fairlog.groups import service
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Joined, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.service import LocalGroups
from fairlog.groups.settings import GroupSettings
from fairlog.groups.waiting import IDLE_MS_MAX, PENDING_MEMBER_MS_MAX
from tests.groups.stage import REBALANCE_MS, SESSION_MS, Offsets, joining, wish

R = GroupRefusal
STARTED_MS = 1_700_000_000_000


@pytest.fixture
def offsets():
    return Offsets()


@pytest.fixture
async def groups(nursery, offsets):
    """A service that runs, with Unix time beside the loop's. Tests have to take the clock themselves."""
    numbers = itertools.count(1)
    made = LocalGroups(
        GroupSettings(initial_rebalance_delay_ms=200),
        offsets,
        now_ms=lambda: STARTED_MS + int(trio.current_time() * 1000),
        new_suffix=lambda: str(next(numbers)),
    )
    nursery.start_soon(made.run)
    await trio.testing.wait_all_tasks_blocked()
    return made


def join(groups, member_id="", *, group="g", **fields):
    return groups.join(group, joining(member_id, new_member_id=groups.new_member_id("m"), **fields))


def sync(groups, member_id, generation, to=None, *, group="g"):
    return groups.sync(group, Syncing(member_id, None, generation, None, None, to or {}))


async def settle(groups, **fields):
    """One member in a stable group; its id."""
    joined = await join(groups, **fields).answer()
    assert isinstance(joined, Joined)
    synced = await sync(groups, joined.member_id, joined.generation, {joined.member_id: b"all"}).answer()
    assert isinstance(synced, Synced)
    return joined.member_id


async def test_first_join_is_answered_after_the_delay(autojump_clock, groups):
    """Time alone brings it."""
    parked = join(groups)
    started = trio.current_time()
    joined = await parked.answer()
    assert (joined.generation, joined.leader_id) == (1, "m-1")
    assert trio.current_time() - started == pytest.approx(0.2)


async def test_timer_that_wakes_finds_something_to_do(mock_clock, groups, nursery):
    """In seconds 1.001 is less than 1001 milliseconds by a hair; who looks again and again for that hair spins."""
    mock_clock.jump(0.801)
    answers = []

    async def wait(parked):
        answers.append(await parked.answer())

    nursery.start_soon(wait, join(groups))
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(1.001 - mock_clock.current_time())
    for _ in range(20):
        await trio.lowlevel.checkpoint()
    assert [answer.generation for answer in answers] == [1]


async def test_member_that_falls_silent_is_removed(autojump_clock, groups):
    """At the end of its session, which each heartbeat prolongs."""
    member_id = await settle(groups)
    for _ in range(5):
        await trio.sleep(SESSION_MS / 1000 - 0.001)
        assert groups.heartbeat("g", member_id, None, 1) is None
    await trio.sleep(SESSION_MS / 1000)
    assert groups.heartbeat("g", member_id, None, 1) is R.UNKNOWN_MEMBER
    assert groups.describe("g").state.value == "Empty"


async def test_groups_are_due_independently(autojump_clock, groups):
    """One with a short session does not wait for one with a long one."""
    await settle(groups, session_timeout_ms=1_800_000)
    short = await join(groups, group="h", session_timeout_ms=6_000).answer()
    await trio.sleep(6.1)
    assert groups.heartbeat("h", short.member_id, None, 1) is R.UNKNOWN_MEMBER
    assert groups.describe("g").state.value == "Stable"


async def test_rebalance_ends_when_its_time_is_up(autojump_clock, groups):
    """Who has joined is answered without who has not."""
    slow = await settle(groups)
    parked = join(groups)
    with trio.move_on_after(REBALANCE_MS / 1000 - 0.001) as early:
        while True:
            await trio.sleep(1)
            groups.heartbeat("g", slow, None, 1)
    assert early.cancelled_caught
    joined = await parked.answer()
    assert (joined.generation, joined.leader_id) == (2, "m-3" if slow == "m-2" else "m-2")


async def test_join_that_is_given_up_does_not_hold_the_group(autojump_clock, groups):
    """The new member is forgotten, and the others go on at once."""
    member_id = await settle(groups)
    parked = join(groups)
    parked.give_up()
    again = await join(groups, member_id).answer()
    assert (again.generation, len(again.members)) == (2, 1)
    parked.give_up()


async def test_giving_up_after_the_answer_changes_nothing(autojump_clock, groups):
    """A client that hangs up when it has its answer is a member that may come back."""
    parked = join(groups)
    joined = await parked.answer()
    parked.give_up()
    assert groups.heartbeat("g", joined.member_id, None, 1) is None


async def test_stop_answers_all_that_is_parked(autojump_clock, groups):
    """At once, in every group; what comes later is not parked any more."""
    together = [join(groups), join(groups)]
    follower = (await together[1].answer()).member_id
    syncing = sync(groups, follower, 1)
    gathering = join(groups, group="h")
    groups.stop()
    started = trio.current_time()
    assert await syncing.answer() is R.STOPPING
    assert (await gathering.answer()).refusal is R.STOPPING
    assert (await join(groups).answer()).refusal is R.STOPPING
    assert await sync(groups, follower, 1).answer() is R.STOPPING
    assert trio.current_time() == started


async def test_member_of_a_group_that_the_node_does_not_know_is_told_so(autojump_clock, groups):
    """After a restart that is every group; nothing of it is made by asking."""
    assert await join(groups, "old").answer() == JoinRefused(R.UNKNOWN_MEMBER, "old")
    assert await sync(groups, "old", 7).answer() is R.UNKNOWN_MEMBER
    assert groups.heartbeat("g", "old", None, 7) is R.UNKNOWN_MEMBER
    assert groups.leave("g", [Leaving("old", None)]) == [R.UNKNOWN_MEMBER]
    assert groups.may_commit("g", "old", None, 7, transactional=False) is R.ILLEGAL_GENERATION
    assert groups.may_commit("g", "old", None, 7, transactional=True) is R.ILLEGAL_GENERATION
    assert groups.may_commit("g", "", None, -1, transactional=False) is None
    assert list(groups.known()) == []


@pytest.mark.parametrize("group", ["", "\u00e9" * 513])
async def test_group_with_an_impossible_name_is_refused(autojump_clock, groups, group):
    """Empty, or longer than 1,024 bytes in UTF-8."""
    assert (await join(groups, group=group).answer()).refusal is R.INVALID_GROUP_ID
    assert await sync(groups, "m", 1, group=group).answer() is R.INVALID_GROUP_ID
    assert groups.heartbeat(group, "m", None, 1) is R.INVALID_GROUP_ID
    assert groups.leave(group, []) is R.INVALID_GROUP_ID


async def test_memory_of_all_groups_is_bounded(autojump_clock, groups, monkeypatch):
    """When it is spent, who wants to join is sent away for now; when others have gone, it may."""
    monkeypatch.setattr(service, "MEMBERSHIP_BYTES_MAX", 300_000)
    large = {"protocols": (("range", bytes(100_000)),)}
    first = join(groups, group="g1", **large)
    second = join(groups, group="g2", **large)
    refused = await join(groups, group="g3", **large).answer()
    assert refused.refusal is R.NO_ROOM
    member_id = (await second.answer()).member_id
    assignment = {member_id: bytes(100_000)}
    assert await sync(groups, member_id, 1, assignment, group="g2").answer() is R.NO_ROOM
    first_id = (await first.answer()).member_id
    assert groups.leave("g1", [Leaving(first_id, None)]) == [None]
    assert isinstance(await join(groups, group="g3", **large).answer(), Joined)


async def test_groups_that_come_and_go_leave_nothing(autojump_clock, groups):
    """Neither in the budget nor among what is due."""
    for number in range(5_000):
        parked = join(groups, group=f"g{number}", id_required=True)
        pending = (await parked.answer()).member_id
        assert groups.leave(f"g{number}", [Leaving(pending, None)]) == [None]
    assert (groups._size_bytes, len(groups.known())) == (0, 0)
    assert groups._deadlines._at_ms == {}


async def test_group_that_nobody_came_to_is_forgotten(autojump_clock, groups):
    """An id was given, and its time is up."""
    await join(groups, id_required=True).answer()
    assert not groups.is_empty("g")
    await trio.sleep(PENDING_MEMBER_MS_MAX / 1000 + 0.1)
    assert list(groups.known()) == []


async def test_group_without_members_is_remembered_for_a_while(autojump_clock, groups):
    """With the time since when it is empty, by the wall's clock."""
    member_id = await settle(groups)
    assert groups.empty_since_ms("g") is None
    await trio.sleep(1)
    groups.leave("g", [Leaving(member_id, None)])
    since_ms = STARTED_MS + round(trio.current_time() * 1000)
    await trio.sleep(100)
    assert groups.empty_since_ms("g") == pytest.approx(since_ms, abs=2)
    assert groups.is_empty("g")
    assert groups.describe("g").protocol_type == "consumer"
    await trio.sleep(IDLE_MS_MAX / 1000)
    assert groups.describe("g") is None
    assert groups.empty_since_ms("g") is None


async def test_moment_since_which_a_forgotten_group_was_empty_is_handed_on(autojump_clock, groups, offsets):
    """To its offsets, which are kept for so long from then on; of a group that never was there is nothing to tell."""
    member_id = await settle(groups)
    await trio.sleep(1)
    groups.leave("g", [Leaving(member_id, None)])
    since_ms = groups.empty_since_ms("g")
    await join(groups, group="nobody", id_required=True).answer()
    await trio.sleep(IDLE_MS_MAX / 1000 + 1)
    assert list(groups.known()) == []
    assert offsets.left == {"g": since_ms}


async def test_moment_since_which_a_group_is_empty_stays_the_same(autojump_clock):
    """Whoever judged its offsets by that moment takes another one for a sign that somebody has been there since."""
    ticks = itertools.count(STARTED_MS)
    groups = LocalGroups(
        GroupSettings(initial_rebalance_delay_ms=0), Offsets(), now_ms=lambda: next(ticks), new_suffix=lambda: "only"
    )
    member_id = await settle(groups)
    groups.leave("g", [Leaving(member_id, None)])
    assert len({groups.empty_since_ms("g") for _ in range(5)}) == 1


async def test_groups_with_offsets_are_shown_without_members(autojump_clock, groups, offsets):
    """As Empty; each group once."""
    await settle(groups)
    offsets.of |= {"g", "kept"}
    assert [(group.group_id, group.state.value) for group in groups.overviews()] == [("g", "Stable"), ("kept", "Empty")]
    assert groups.describe("kept").members == ()
    assert groups.describe("nobody") is None


async def test_group_is_deleted_with_its_offsets(autojump_clock, groups, offsets):
    """If it has no members, nor any who are about to join."""
    assert await groups.delete("g", offsets) is R.UNKNOWN_GROUP
    offsets.of.add("g")
    member_id = await settle(groups)
    assert await groups.delete("g", offsets) is R.NON_EMPTY_GROUP
    groups.leave("g", [Leaving(member_id, None)])
    assert await groups.delete("g", offsets) is None
    assert (offsets.of, list(groups.known()), groups._size_bytes) == (set(), [], 0)
    assert await groups.delete("g", offsets) is R.UNKNOWN_GROUP


async def test_group_whose_offsets_cannot_be_deleted_is_kept(autojump_clock, groups, offsets):
    """The refusal is passed on."""
    offsets.refusal = R.NON_EMPTY_GROUP
    member_id = await settle(groups)
    groups.leave("g", [Leaving(member_id, None)])
    assert await groups.delete("g", offsets) is R.NON_EMPTY_GROUP
    assert list(groups.known()) == ["g"]


async def test_member_that_joins_while_the_group_is_deleted_stays(autojump_clock, groups, offsets, nursery):
    """It finds no offsets, and is a member all the same."""
    member_id = await settle(groups)
    groups.leave("g", [Leaving(member_id, None)])
    offsets.deletion_s = 1
    nursery.start_soon(groups.delete, "g", offsets)
    await trio.testing.wait_all_tasks_blocked()
    joined = await join(groups).answer()
    await trio.sleep(2)
    assert groups.heartbeat("g", joined.member_id, None, joined.generation) is None


async def test_membership_answers_other_rooms(autojump_clock, groups):
    """What offsets ask of it."""
    assert (groups.is_empty("g"), groups.subscribed("g")) == (True, frozenset())
    member_id = await settle(groups, protocols=(("range", wish("t", "u")),))
    assert (groups.is_empty("g"), groups.subscribed("g")) == (False, {"t", "u"})
    assert groups.may_commit("g", member_id, None, 1, transactional=False) is None
    assert groups.may_commit("g", "", None, -1, transactional=False) is R.UNKNOWN_MEMBER
