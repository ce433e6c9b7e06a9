"""The state machine of one group, by example: members that are not heard of, or late, or whose connection breaks."""

from __future__ import annotations

import pytest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.waiting import HANG_UP_GRACE_MS, IDLE_MS_MAX, NEW_MEMBER_JOIN_MS
from tests.groups.stage import REBALANCE_MS, SESSION_MS, wish

R = GroupRefusal


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
