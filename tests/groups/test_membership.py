"""The state machine of one group, by example: who counts as a member.

Which generation is taken, static members and who takes their place, who leaves, and what the group then shows.
"""

from __future__ import annotations

import pytest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.member import MEMBER_BYTES_MAX
from fairlog.groups.messages import Leaving
from tests.groups.stage import REBALANCE_MS, SESSION_MS, wish

R = GroupRefusal


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
