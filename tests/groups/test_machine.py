"""The state machine of one group, by example."""

from __future__ import annotations

import pytest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.machine import (
    HANG_UP_GRACE_MS,
    IDLE_MS_MAX,
    NEW_MEMBER_JOIN_MS,
    PENDING_MEMBER_MS_MAX,
)
from fairlog.groups.member import MEMBER_BYTES_MAX
from fairlog.groups.messages import JoinRefused, Leaving
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


# --- time ------------------------------------------------------------------------------------------


def test_member_that_is_not_heard_of_is_removed(stage):
    """The others share what it read; it has to join anew."""
    stage.settle("a", "b")
    stage.live(SESSION_MS, "a")
    assert stage.members == ["a"]
    assert stage.heartbeat("a") is R.REBALANCE_IN_PROGRESS
    assert stage.heartbeat("b") is R.UNKNOWN_MEMBER
    assert stage.joined(stage.join("a", known=True)).leader_id == "a"


def test_member_that_sends_heartbeats_stays(stage):
    """For as long as it does."""
    stage.settle("a", "b")
    stage.live(10 * SESSION_MS, "a", "b")
    assert (stage.members, stage.state) == (["a", "b"], "Stable")


def test_commit_of_a_member_counts_as_a_heartbeat(stage):
    """As in Kafka, where it is plain; in a transaction it is the producer that commits, and lives."""
    stage.settle("a")
    stage.wait(SESSION_MS - 1)
    assert stage.commit("a") is None
    stage.wait(SESSION_MS - 1)
    assert stage.commit("a", transactional=True) is None
    stage.wait(1)
    assert stage.members == []


def test_member_that_does_not_join_again_in_time_is_left_behind(stage):
    """It sends heartbeats and has been told; who has joined does not wait for ever."""
    stage.settle("a", "b")
    ticket = stage.join("b", known=True, protocols=(("range", wish("u")),))
    stage.live(REBALANCE_MS, "a")
    joined = stage.joined(ticket)
    assert (joined.leader_id, len(joined.members)) == ("b", 1)
    assert stage.heartbeat("a") is R.UNKNOWN_MEMBER


def test_leader_that_dies_before_it_syncs_is_replaced(stage):
    """Its session ends, the others are sent back, and one of them leads."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    parked = stage.sync("b")
    stage.wait(SESSION_MS)
    assert stage.refused(parked) is R.REBALANCE_IN_PROGRESS
    assert stage.joined(stage.join("b", known=True)).leader_id == "b"


def test_leader_that_lives_and_does_not_sync_is_removed(stage):
    """Heartbeats alone do not keep it: others wait for its SyncGroup."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    parked = stage.sync("b")
    stage.live(REBALANCE_MS, "a")
    assert stage.refused(parked) is R.REBALANCE_IN_PROGRESS
    assert stage.members == ["b"]


def test_follower_that_lives_and_does_not_sync_is_removed(stage):
    """What it was given is read by nobody."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    stage.sync("a", to={"b": b"B"})
    stage.live(REBALANCE_MS, "a", "b")
    assert (stage.members, stage.state) == (["a"], "PreparingRebalance")


def test_group_whose_members_all_die_is_empty(stage):
    """Nobody of its last generation is current any more; after a while it is forgotten."""
    stage.settle("a", "b")
    generation = stage.group.generation
    stage.wait(SESSION_MS)
    assert (stage.state, stage.members) == ("Empty", [])
    assert stage.group.generation > generation
    stage.wait(IDLE_MS_MAX)
    assert stage.state == "Dead"


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_group_whose_members_all_die_in_a_rebalance_is_empty(stage, state):
    """Whether they were joining or syncing, and whether their connections break or not."""
    stage.settle("a", "b")
    parked = stage.join("b", known=True, protocols=(("range", wish("u")),))
    if state == "CompletingRebalance":
        stage.join("a", known=True)
        parked = stage.sync("b")
    assert stage.state == state
    stage.hang_up(parked)
    stage.wait(2 * SESSION_MS)
    assert stage.state == "Empty"


def test_new_member_whose_connection_is_silently_gone_is_forgotten(stage):
    """While the others do not let the rebalance come to its end for hours."""
    stage.settle("a", rebalance_timeout_ms=10**9)
    ticket = stage.join("b")
    stage.live(NEW_MEMBER_JOIN_MS, "a")
    assert stage.refused(ticket) is R.UNKNOWN_MEMBER
    assert stage.members == ["a"]


def test_new_member_that_waited_in_vain_is_let_in_if_the_wait_ends_with_its_time(stage):
    """Who kept it waiting is removed in the same moment."""
    stage.settle("a", rebalance_timeout_ms=10**9)
    ticket = stage.join("b")
    stage.live(NEW_MEMBER_JOIN_MS - SESSION_MS, "a")
    stage.wait(SESSION_MS)
    assert stage.joined(ticket).leader_id == "b"
    assert stage.members == ["b"]


def test_member_whose_request_waits_is_not_expected_to_be_heard_of(stage):
    """Not even if it sends a heartbeat meanwhile, on another connection."""
    stage.settle("a", "b")
    ticket = stage.join("b", known=True, protocols=(("range", wish("u")),))
    assert stage.heartbeat("b") is R.REBALANCE_IN_PROGRESS
    stage.live(2 * SESSION_MS, "a")
    stage.join("a", known=True)
    assert len(stage.joined(ticket).members or stage.members) == 2
    parked = stage.sync("b")
    assert stage.heartbeat("b") is None
    stage.live(2 * SESSION_MS, "a")
    stage.sync("a", to={"b": b"B"})
    assert stage.synced(parked) == b"B"


# --- connections that break ------------------------------------------------------------------------


def test_new_member_that_hangs_up_is_forgotten_at_once(stage):
    """The rebalance that it started goes on without it."""
    stage.settle("a")
    ticket = stage.join("b")
    stage.hang_up(ticket)
    assert stage.members == ["a"]
    assert stage.joined(stage.join("a", known=True)).generation == 2
    assert stage.parked(ticket)


def test_member_that_hangs_up_while_it_joins_is_not_waited_for_long(stage):
    """Its session is longer than the others should wait."""
    stage.settle("a", "b")
    stage.hang_up(stage.join("b", known=True, protocols=(("range", wish("u")),)))
    ticket = stage.join("a", known=True)
    stage.wait(HANG_UP_GRACE_MS - 1)
    assert stage.parked(ticket)
    stage.wait(1)
    assert len(stage.joined(ticket).members) == 1


def test_member_that_hangs_up_while_it_joins_may_come_back(stage):
    """On another connection, with its id."""
    stage.settle("a", "b")
    stage.hang_up(stage.join("b", known=True, protocols=(("range", wish("u")),)))
    first = stage.join("a", known=True)
    stage.wait(HANG_UP_GRACE_MS - 1)
    second = stage.join("b", known=True)
    assert stage.joined(first).generation == stage.joined(second).generation


def test_static_member_that_hangs_up_while_it_joins_is_not_waited_for(stage):
    """It keeps its place until its session ends, and is told to the leader as a member."""
    stage.join("s", instance_id="s")
    stage.assign()
    stage.join("a")
    stage.join("s", known=True, instance_id="s")
    stage.assign()
    parked = stage.join("s", known=True, instance_id="s")
    stage.hang_up(parked)
    ticket = stage.join("a", known=True)
    assert [member.member_id for member in stage.joined(ticket).members] == ["s", "a"]
    assert stage.joined(ticket).leader_id == "a"


def test_member_that_hangs_up_while_it_syncs_has_its_session_to_come_back(stage):
    """It gets its assignment when it asks again."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    stage.hang_up(stage.sync("b"))
    stage.sync("a", to={"b": b"B"})
    stage.wait(SESSION_MS - 1)
    assert stage.synced(stage.sync("b")) == b"B"


def test_hang_up_after_the_answer_changes_nothing(stage):
    """The client has, or had, what it asked for."""
    ticket = stage.join("a")
    stage.hang_up(ticket)
    assert stage.members == ["a"]


# --- generations and fencing -----------------------------------------------------------------------


@pytest.mark.parametrize("generation", [0, 1, 3, -1])
def test_other_generation_than_the_current_is_refused(stage, generation):
    """Whatever the member asks."""
    stage.settle("a")
    stage.join("a", known=True)
    stage.assign()
    assert stage.group.generation == 2
    assert stage.refused(stage.sync("a", generation=generation)) is R.ILLEGAL_GENERATION
    assert stage.heartbeat("a", generation=generation) is R.ILLEGAL_GENERATION
    assert stage.commit("a", generation=generation) is R.ILLEGAL_GENERATION
    assert stage.commit("a", generation=generation, transactional=True) is R.ILLEGAL_GENERATION


def test_sync_while_members_are_gathered_is_refused(stage):
    """It has to join again first."""
    stage.settle("a")
    stage.join("b")
    assert stage.refused(stage.sync("a")) is R.REBALANCE_IN_PROGRESS


def test_commit_is_taken_from_members_of_the_current_generation(stage):
    """Also while they are gathered; not while it is being decided who reads what, unless in a transaction."""
    stage.settle("a")
    assert stage.commit("a") is None
    assert stage.commit("stranger") is R.UNKNOWN_MEMBER
    stage.join("b")
    assert stage.commit("a") is None
    stage.join("a", known=True)
    assert stage.commit("a") is R.REBALANCE_IN_PROGRESS
    assert stage.commit("a", transactional=True) is None


@pytest.mark.parametrize("transactional", [False, True])
def test_commit_without_a_generation_is_taken_if_there_are_no_members(stage, transactional):
    """From who assigns itself, and from tools; a transactional one from an old client always."""
    assert stage.commit("", generation=-1, transactional=transactional) is None
    stage.join("a")
    expected = None if transactional else R.UNKNOWN_MEMBER
    assert stage.commit("", generation=-1, transactional=transactional) is expected
    assert stage.commit("a", generation=-1, transactional=transactional) is R.ILLEGAL_GENERATION
    stage.leave("a")
    assert stage.commit("", generation=-1, transactional=transactional) is None
    assert stage.commit("a", generation=1, transactional=transactional) is R.UNKNOWN_MEMBER


# --- static members --------------------------------------------------------------------------------


def static(stage, *names):
    """A stable group of static members; their instance ids are in upper case."""
    for name in names:
        stage.join(name, instance_id=name.upper())
        for other in names:
            if other in stage.members and other != name:
                stage.join(other, known=True, instance_id=other.upper())
    return stage.assign()


@pytest.mark.parametrize("knows_skipping", [False, True])
def test_static_member_that_comes_back_keeps_its_assignment(stage, knows_skipping):
    """Without a rebalance, under a new member id; a leader is kept from assigning anew."""
    static(stage, "a", "b")
    generation = stage.group.generation
    for old, new in (("b", "b2"), ("a", "a2")):
        joined = stage.joined(stage.join(new, instance_id=old.upper(), knows_skipping=knows_skipping))
        assert (joined.generation, joined.member_id) == (generation, new)
        leads = joined.leader_id == new
        assert leads == (old == "a" and knows_skipping)
        assert (joined.skip_assignment, len(joined.members)) == (leads, 2 if leads else 0)
        assert stage.synced(stage.sync(new, instance=old.upper())) == old.encode()
    assert (stage.state, stage.group.leader_id) == ("Stable", "a2")


def test_static_member_whose_place_is_taken_is_fenced(stage):
    """In whatever it asks; it is not told to join again, which would fence the other."""
    static(stage, "a")
    stage.join("a2", instance_id="A")
    assert stage.heartbeat("a", instance="A") is R.FENCED_INSTANCE
    assert stage.refused(stage.sync("a", instance="A")) is R.FENCED_INSTANCE
    assert stage.refused(stage.join("a", known=True, instance_id="A")) is R.FENCED_INSTANCE
    assert stage.commit("a", instance="A") is R.FENCED_INSTANCE
    assert stage.commit("a", instance="A", transactional=True) is R.FENCED_INSTANCE
    assert stage.leave(Leaving("a", "A")) == [R.FENCED_INSTANCE]
    assert stage.heartbeat("a") is R.UNKNOWN_MEMBER


@pytest.mark.parametrize("syncing", [False, True])
def test_static_member_whose_place_is_taken_while_it_waits_is_fenced(stage, syncing):
    """Its parked request is answered so, and the newcomer waits in its place."""
    static(stage, "a", "b")
    parked = stage.join("a", known=True, instance_id="A")
    if syncing:
        stage.join("b", known=True, instance_id="B")
        parked = stage.sync("b", instance="B")
    name = "b" if syncing else "a"
    ticket = stage.join(f"{name}2", instance_id=name.upper())
    assert stage.refused(parked) is R.FENCED_INSTANCE
    assert stage.parked(ticket)
    for each in ("a", "b"):
        if each != name:
            stage.join(each, known=True, instance_id=each.upper())
    assert stage.joined(ticket).member_id == f"{name}2"


def test_static_member_that_comes_back_with_other_wishes_starts_a_rebalance(stage):
    """Kafka would let it go on with topics that it does not want any more."""
    static(stage, "a", "b")
    ticket = stage.join("b2", instance_id="B", protocols=(("range", wish("u")),))
    assert stage.parked(ticket)
    assert stage.state == "PreparingRebalance"


def test_static_member_that_comes_back_with_another_strategy_starts_a_rebalance(stage):
    """If the group would choose another one now."""
    static(stage, "a")
    joined = stage.joined(stage.join("a2", instance_id="A", protocols=(("sticky", wish("t")),)))
    assert (joined.generation, joined.protocol) == (2, "sticky")


def test_static_member_stays_through_a_rebalance_that_it_misses(stage):
    """Until its session ends: that is what static membership is for."""
    static(stage, "a", "b")
    stage.join("a", known=True, instance_id="A")
    stage.live(SESSION_MS // 2, "b")
    stage.join("c")
    assert stage.members == ["a", "b", "c"]
    stage.wait(SESSION_MS)
    assert stage.members == ["a", "c"]


def test_static_members_alone_wait_for_one_to_lead(stage):
    """If none has joined again when the time is up, the group waits on; one that comes back leads."""
    static(stage, "a", "b")
    stage.join("c", session_timeout_ms=SESSION_MS)
    assert stage.leave("c") == [None]
    stage.live(REBALANCE_MS, "a", "b")
    assert (stage.state, stage.members) == ("PreparingRebalance", ["a", "b"])
    ticket = stage.join("b2", instance_id="B")
    stage.live(REBALANCE_MS, "a")
    joined = stage.joined(ticket)
    assert (joined.leader_id, [member.member_id for member in joined.members]) == ("b2", ["a", "b2"])


def test_static_member_is_sent_away_by_its_instance_id(stage):
    """By an operator, who does not know its member id; with one, it has to be the right one."""
    static(stage, "a", "b")
    outcome = stage.leave(Leaving("", "B"), Leaving("", "X"), Leaving("a", "X"), Leaving("", None))
    assert outcome == [None, R.UNKNOWN_MEMBER, R.UNKNOWN_MEMBER, R.UNKNOWN_MEMBER]
    assert stage.members == ["a"]


def test_static_member_that_comes_back_has_to_sync_if_its_predecessor_had_to(stage):
    """Nobody knows whether it has its assignment."""
    static(stage, "a", "b")
    for name in ("a", "b"):
        stage.join(name, known=True, instance_id=name.upper(), protocols=(("range", wish("t")), ("sticky", b"")))
    stage.join("a", known=True, instance_id="A")
    stage.join("b", known=True, instance_id="B")
    stage.sync("a", instance="A", to={"b": b"B"})
    assert stage.joined(stage.join("b2", instance_id="B")).generation == stage.group.generation
    stage.live(REBALANCE_MS, "a", "b2")
    assert stage.members == ["a"]


def test_assignment_that_is_too_large_is_refused(stage):
    """To the leader, which may send another; who waits goes on waiting."""
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    parked = stage.sync("b")
    assert stage.refused(stage.sync("a", to={"b": bytes(MEMBER_BYTES_MAX + 1)})) is R.TOO_LARGE
    assert stage.parked(parked)
    stage.sync("a", to={"b": bytes(MEMBER_BYTES_MAX)})
    assert len(stage.synced(parked)) == MEMBER_BYTES_MAX


def test_id_that_was_given_in_advance_is_not_for_static_members(stage):
    """They never get one that way."""
    stage.join("a", id_required=True)
    assert stage.refused(stage.join("a", known=True, instance_id="A")) is R.UNKNOWN_MEMBER


# --- leaving, and what it shows --------------------------------------------------------------------


def test_members_leave_together(stage):
    """Each has its own outcome; the rest share what they read."""
    stage.settle("a", "b", "c")
    assert stage.leave("a", "b", "stranger") == [None, None, R.UNKNOWN_MEMBER]
    assert stage.joined(stage.join("c", known=True)).leader_id == "c"


def test_member_that_leaves_while_its_request_waits_is_answered(stage):
    """On whichever connection it said so."""
    stage.settle("a")
    joining_ticket = stage.join("b")
    assert stage.leave("b") == [None]
    assert stage.refused(joining_ticket) is R.UNKNOWN_MEMBER
    stage.settle("a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    syncing_ticket = stage.sync("b")
    stage.leave("b")
    assert stage.refused(syncing_ticket) is R.UNKNOWN_MEMBER


def test_topics_of_the_members_are_known_if_their_metadata_can_be_read(stage):
    """All that any of them wants, also in a rebalance."""
    assert stage.group.subscribed() == frozenset()
    stage.settle("a")
    stage.join("b", protocols=(("range", wish("t", "u")),))
    assert stage.group.subscribed() == {"t", "u"}
    stage.join("c", protocols=(("range", b"?"),))
    assert stage.group.subscribed() is None


def test_topics_of_members_that_are_no_consumers_are_unknown(stage):
    """Whatever their bytes look like."""
    stage.settle("a", protocol_type="connect")
    assert stage.group.subscribed() is None


def test_description_shows_what_is_settled(stage):
    """No strategy while members are gathered, no assignment before it is made."""
    stage.join("a", instance_id="A")
    described = stage.group.describe()
    assert (described.state.value, described.protocol) == ("CompletingRebalance", "range")
    assert (described.members[0].metadata, described.members[0].assignment) == (wish("t"), b"")
    stage.assign()
    (member,) = stage.group.describe().members
    assert (member.member_id, member.instance_id, member.client_host) == ("a", "A", "/host")
    assert (member.metadata, member.assignment) == (wish("t"), b"a")
    stage.join("b")
    described = stage.group.describe()
    assert (described.protocol, described.protocol_type) == ("", "consumer")
    assert {member.metadata for member in described.members} == {b""}


def test_size_of_a_group_follows_its_members(stage):
    """What they take they give back."""
    empty = stage.group.size_bytes
    stage.settle("a", "b")
    stage.join("p", id_required=True)
    assert stage.group.size_bytes > empty + 3_000
    stage.join("b", known=True, protocols=(("range", bytes(100_000)),))
    assert stage.group.size_bytes > empty + 100_000
    stage.leave("a", "b", "p")
    assert stage.group.size_bytes == empty
