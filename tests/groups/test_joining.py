"""The state machine of one group, by example: how members find together, and what one who joins again is told."""

from __future__ import annotations

import pytest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.member import MEMBER_BYTES_MAX
from fairlog.groups.messages import JoinRefused
from fairlog.groups.waiting import PENDING_MEMBER_MS_MAX
from tests.groups.stage import REBALANCE_MS, SESSION_MS, wish

R = GroupRefusal


# --- finding together ------------------------------------------------------------------------------


def test_first_member_leads_and_syncs(stage):
    """It is told of itself as the only member, and gets what it assigns to itself."""
    ticket = stage.join("a")
    joined = stage.joined(ticket)
    assert (joined.generation, joined.leader_id, joined.member_id, joined.protocol) == (1, "a", "a", "range")
    assert [(member.member_id, member.metadata) for member in joined.members] == [("a", wish("t"))]
    assert stage.state == "CompletingRebalance"
    assert stage.synced(stage.sync("a", to={"a": b"everything"})) == b"everything"
    assert stage.state == "Stable"


def test_second_member_waits_for_the_first_to_join_again(stage):
    """The first learns of it from its heartbeat; only the leader is told who the members are."""
    stage.settle("a")
    second = stage.join("b")
    assert stage.parked(second)
    assert stage.heartbeat("a") is R.REBALANCE_IN_PROGRESS
    first = stage.join("a", known=True)
    assert {stage.joined(first).generation, stage.joined(second).generation} == {2}
    assert [member.member_id for member in stage.joined(first).members] == ["a", "b"]
    assert (stage.joined(second).leader_id, stage.joined(second).members) == ("a", ())


def test_sync_of_a_follower_waits_for_the_leaders(stage):
    """Each gets its own; who is left out gets nothing to read, and strangers get nothing at all."""
    stage.settle("a", "b", "c")
    stage.join("a", known=True)
    stage.join("b", known=True)
    stage.join("c", known=True)
    follower, other = stage.sync("b"), stage.sync("c")
    assert stage.parked(follower)
    leader = stage.sync("a", to={"a": b"A", "b": b"B", "stranger": b"X"})
    assert [stage.synced(ticket) for ticket in (leader, follower, other)] == [b"A", b"B", b""]


def test_first_members_wait_for_company(make_stage):
    """Each that comes prolongs the wait once; then all are in one generation."""
    stage = make_stage(initial_rebalance_delay_ms=200)
    first = stage.join("a")
    stage.wait(150)
    second = stage.join("b")
    stage.wait(199)
    assert stage.parked(first)
    third = stage.join("c")
    stage.wait(251)
    assert stage.joined(first).generation == stage.joined(second).generation == stage.joined(third).generation == 1
    assert len(stage.joined(first).members) == 3


def test_company_that_keeps_coming_does_not_hold_up_the_first_for_ever(make_stage):
    """The rebalance time-out bounds the wait."""
    stage = make_stage(initial_rebalance_delay_ms=200, members_max=10_000)
    first = stage.join("a")
    for number in range(REBALANCE_MS // 100 - 1):
        stage.wait(100)
        stage.join(f"m{number}")
    assert stage.parked(first)
    stage.wait(100)
    assert stage.joined(first).generation == 1


def test_wait_for_company_ends_in_the_middle_of_a_delay_if_the_time_is_up(make_stage):
    """It is bounded to the millisecond, whether or not the delays add up to it."""
    delay_ms = REBALANCE_MS * 2 // 5
    stage = make_stage(initial_rebalance_delay_ms=delay_ms)
    first = stage.join("a")
    for name in ("b", "c"):
        stage.join(name)
        stage.wait(delay_ms)
    stage.wait(REBALANCE_MS - 2 * delay_ms - 1)
    assert stage.parked(first)
    stage.wait(1)
    assert len(stage.joined(first).members) == 3


def test_delay_applies_to_an_empty_group_alone(make_stage):
    """A group that has members waits for them, not for a time."""
    stage = make_stage(initial_rebalance_delay_ms=200)
    stage.join("a")
    stage.wait(200)
    stage.assign()
    second = stage.join("b")
    stage.join("a", known=True)
    assert stage.joined(second).generation == 2


def test_member_without_an_id_is_sent_back_once(stage):
    """It comes again with the id that it is given; until then it is not a member, but the group is not empty."""
    ticket = stage.join("a", id_required=True)
    assert stage.answers[ticket] == JoinRefused(R.MEMBER_ID_REQUIRED, "a")
    assert (stage.members, stage.state, stage.group.is_empty) == ([], "Empty", False)
    assert stage.joined(stage.join("a", known=True)).member_id == "a"


def test_rebalance_waits_for_a_member_that_was_given_an_id_for_a_while(stage):
    """It will come, or its time is up: then its id is unknown."""
    stage.settle("a")
    stage.join("b", id_required=True)
    stage.join("c")
    ticket = stage.join("a", known=True)
    assert stage.parked(ticket)
    stage.wait(PENDING_MEMBER_MS_MAX)
    assert stage.joined(ticket).generation == 2
    assert stage.refused(stage.join("b", known=True)) is R.UNKNOWN_MEMBER


def test_member_that_was_given_an_id_may_leave_without_joining(stage):
    """And is not waited for any more."""
    stage.settle("a")
    stage.join("b", id_required=True)
    stage.join("c")
    ticket = stage.join("a", known=True)
    assert stage.leave("b") == [None]
    assert stage.joined(ticket).generation == 2


def test_strategy_is_one_that_all_know_and_most_prefer(stage):
    """A member that knows none of those that the others share is refused."""
    both = (("sticky", b""), ("range", b""))
    stage.settle("a", protocols=both)
    stage.join("b", protocols=both[::-1])
    stage.join("c", protocols=both[::-1])
    assert stage.joined(stage.join("a", known=True, protocols=both)).protocol == "range"
    ticket = stage.join("d", protocols=(("roundrobin", b""),))
    assert stage.refused(ticket) is R.INCONSISTENT_PROTOCOL


def test_member_of_another_protocol_type_is_refused(stage):
    """Consumers and connectors do not mix; but who is alone may become another."""
    stage.settle("a")
    assert stage.refused(stage.join("b", protocol_type="connect")) is R.INCONSISTENT_PROTOCOL
    stage.join("a", known=True, protocol_type="connect", protocols=(("compatible", b""),))
    assert stage.group.overview().protocol_type == "connect"


def test_only_member_may_change_all_its_strategies(stage):
    """What it said before binds nobody; with others in the group it does."""
    stage.settle("a")
    assert stage.joined(stage.join("a", known=True, protocols=(("sticky", b""),))).protocol == "sticky"
    stage.join("b", protocols=(("sticky", b""),))
    ticket = stage.join("a", known=True, protocols=(("range", b""),))
    assert stage.refused(ticket) is R.INCONSISTENT_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"session_timeout_ms": 5_999}, R.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, R.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, R.INCONSISTENT_PROTOCOL),
        ({"protocols": ()}, R.INCONSISTENT_PROTOCOL),
        ({"protocols": (("range", bytes(MEMBER_BYTES_MAX)),)}, R.TOO_LARGE),
        ({"protocols": (("range", b""),) * 10_000}, R.TOO_LARGE),
        ({"instance_id": "i" * MEMBER_BYTES_MAX}, R.TOO_LARGE),
        ({"known": True}, R.UNKNOWN_MEMBER),
        ({"known": True, "instance_id": "i"}, R.UNKNOWN_MEMBER),
    ],
)
def test_join_that_cannot_be_leaves_no_trace(stage, fields, refusal):
    """The group is as if it had never been asked for."""
    assert stage.refused(stage.join("a", **fields)) is refusal
    assert stage.group.never_was


def test_group_takes_no_more_members_than_it_may_have(make_stage):
    """Those who are about to join are counted; a place that becomes free is given again."""
    stage = make_stage(members_max=2)
    stage.join("a")
    stage.join("b", id_required=True)
    assert stage.refused(stage.join("c")) is R.GROUP_MAX_SIZE
    assert stage.refused(stage.join("c", id_required=True)) is R.GROUP_MAX_SIZE
    stage.leave("b")
    stage.join("c")
    assert stage.members == ["a", "c"]


# --- joining again ---------------------------------------------------------------------------------


def test_follower_that_joins_again_unchanged_is_told_what_holds(stage):
    """It may have lost the first answer; nobody else is bothered."""
    stage.settle("a", "b")
    generation = stage.group.generation
    assert stage.joined(stage.join("b", known=True)).generation == generation
    assert stage.state == "Stable"


def test_follower_that_joins_again_changed_starts_a_rebalance(stage):
    """Others may have to read what it does not want any more."""
    stage.settle("a", "b")
    ticket = stage.join("b", known=True, protocols=(("range", wish("t", "u")),))
    assert stage.parked(ticket)
    assert stage.state == "PreparingRebalance"


def test_leader_that_joins_again_starts_a_rebalance(stage):
    """It has seen something that the assignment depends on."""
    stage.settle("a", "b")
    assert stage.parked(stage.join("a", known=True))
    assert stage.state == "PreparingRebalance"


def test_leader_that_joins_again_before_it_has_synced_is_told_the_members_again(stage):
    """It may have lost the answer that made it the leader."""
    first = stage.join("a")
    assert stage.joined(stage.join("a", known=True)) == stage.joined(first)
    assert stage.state == "CompletingRebalance"


def test_member_that_joins_while_others_sync_sends_them_back(stage):
    """The parked SyncGroups are refused; in the next generation all are there."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    parked = stage.sync("b")
    stage.join("c")
    assert stage.refused(parked) is R.REBALANCE_IN_PROGRESS
    stage.join("b", known=True)
    stage.join("a", known=True)
    stage.assign()
    assert (stage.state, stage.members) == ("Stable", ["a", "b", "c"])


def test_member_that_joins_again_while_it_syncs_is_not_expected_to_be_heard_of(stage):
    """Its SyncGroup is refused by the rebalance that it begins; its JoinGroup waits for the others, however long."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    stage.sync("b")
    ticket = stage.join("b", known=True, protocols=(("range", wish("u")),))
    stage.live(2 * SESSION_MS, "a")
    assert stage.parked(ticket)
    assert stage.members == ["a", "b"]


def test_join_that_is_sent_twice_is_answered_to_the_second(stage):
    """The first was given up by its client, on a connection that may still be open."""
    stage.settle("a", "b")
    first = stage.join("b", known=True, protocols=(("range", wish("u")),))
    second = stage.join("b", known=True, protocols=(("range", wish("u")),))
    assert stage.refused(first) is R.UNKNOWN_MEMBER
    stage.join("a", known=True)
    assert stage.joined(second).member_id == "b"


def test_sync_that_is_sent_twice_is_answered_to_the_second(stage):
    """As with JoinGroup."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    first, second = stage.sync("b"), stage.sync("b")
    assert stage.refused(first) is R.REBALANCE_IN_PROGRESS
    stage.sync("a", to={"b": b"B"})
    assert stage.synced(second) == b"B"


def test_sync_in_a_stable_group_repeats_the_assignment(stage):
    """The answer to the first may be lost; a leader cannot change its mind that way."""
    stage.settle("a", "b")
    assert stage.synced(stage.sync("b")) == b"b"
    assert stage.synced(stage.sync("a", to={"a": b"other"})) == b"a"
