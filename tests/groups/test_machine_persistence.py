"""The machine of a group that is kept: what waits for the disk, and what a restart finds."""

from __future__ import annotations

import pytest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Leaving
from fairlog.groups.waiting import IDLE_MS_MAX
from tests.groups.stage import SESSION_MS, Stage, wish

R = GroupRefusal


@pytest.fixture
def stage():
    """A group with a disk that takes its time."""
    return Stage(slow=True)


def settle(stage, *names, **fields):
    """These are in a stable group that is kept."""
    stage.slow = False
    stage.settle(*names, **fields)
    stage.slow = True


def decide(stage):
    """All sync; what the leader gives them is on its way to the disk."""
    leader = stage.group.leader_id
    tickets = {name: stage.sync(name) for name in stage.members if name != leader}
    tickets[leader] = stage.sync(leader, to={name: name.encode() for name in stage.members})
    return tickets


def test_nobody_is_told_what_it_reads_before_it_is_kept(stage):
    """Not the leader, nor who waited for it, nor who asks meanwhile; and the group is not stable."""
    stage.join("a")
    stage.join("b")
    stage.join("a", known=True)
    tickets = decide(stage)
    assert stage.state == "CompletingRebalance"
    assert all(stage.parked(ticket) for ticket in tickets.values())
    assert stage.commit("a") is R.REBALANCE_IN_PROGRESS
    stage.disk()
    assert stage.state == "Stable"
    assert [stage.synced(tickets[name]) for name in "ab"] == [b"a", b"b"]


def test_leader_that_asks_again_does_not_decide_anew(stage):
    """What is being kept is what all are told."""
    stage.join("a")
    first = stage.sync("a", to={"a": b"one"})
    again = stage.sync("a", to={"a": b"two"})
    assert stage.refused(first) is R.REBALANCE_IN_PROGRESS
    stage.disk()
    assert stage.synced(again) == b"one"
    assert stage.kept.members[0].assignment == b"one"


def test_members_go_on_after_a_restart(stage):
    """With all that they had; nobody who is not current is."""
    settle(stage, "a", "b", protocols=(("range", wish("t")), ("sticky", wish("t", "u"))))
    before, generation, size = stage.group.describe(), stage.group.generation, stage.group.size_bytes
    stage.restart()
    assert stage.group.describe() == before
    assert (stage.group.generation, stage.group.size_bytes) == (generation, size)
    assert stage.heartbeat("a") is None
    assert stage.commit("a") is None
    assert stage.commit("b", transactional=True) is None
    assert stage.commit("b", generation=generation - 1, transactional=True) is R.ILLEGAL_GENERATION
    assert stage.heartbeat("c") is R.UNKNOWN_MEMBER
    assert stage.synced(stage.sync("b")) == b"b"
    assert stage.group.take_write() is None, "nothing has changed"


def test_member_that_joins_again_unchanged_after_a_restart_stays(stage):
    """Its connection broke, and it says the same: no rebalance. From the leader it is one, as ever."""
    settle(stage, "a", "b")
    stage.restart()
    other = next(name for name in "ab" if name != stage.group.leader_id)
    assert stage.joined(stage.join(other, known=True)).generation == stage.group.generation
    assert stage.state == "Stable"
    stage.join(stage.group.leader_id, known=True)
    assert stage.state == "PreparingRebalance"


def test_sessions_begin_with_the_start(stage):
    """Whoever is not back by their end is missed, as after any silence."""
    settle(stage, "a", "b")
    stage.live(SESSION_MS - 1_000, "a")
    stage.restart()
    stage.live(SESSION_MS - 1_000, "a")
    assert stage.members == ["a", "b"]
    stage.live(2_000, "a")
    assert (stage.members, stage.state) == (["a"], "PreparingRebalance")


def test_crash_before_the_write_is_the_generation_before(stage):
    """Its members are current; who has joined the next one is told, joins again, and gets that number."""
    settle(stage, "a", "b")
    generation = stage.group.generation
    stage.join("c")
    stage.join("a", known=True)
    stage.join("b", known=True)
    decide(stage)
    assert stage.group.generation == generation + 1
    stage.restart()
    assert (stage.members, stage.group.generation) == (["a", "b"], generation)
    assert stage.heartbeat("a", generation=generation + 1) is R.ILLEGAL_GENERATION
    assert stage.heartbeat("c", generation=generation + 1) is R.UNKNOWN_MEMBER
    stage.join("a", known=True)
    stage.join("b", known=True, protocols=(("range", wish("u")),))
    assert stage.group.generation == generation + 1
    decide(stage)
    stage.disk()
    assert stage.kept.generation == generation + 1


def test_crash_behind_the_write_is_the_new_generation(stage):
    """Its members had no answer, ask again, and get what was kept."""
    settle(stage, "a")
    stage.join("b")
    stage.join("a", known=True)
    generation = stage.group.generation
    decide(stage)
    stage.kept = stage.to_persist.group
    stage.restart()
    assert stage.state == "Stable"
    assert stage.synced(stage.sync("b", generation=generation)) == b"b"
    assert stage.commit("a", generation=generation) is None


def test_rebalance_overtakes_the_write(stage):
    """Who waited is sent to join again, and the late word of the disk makes nobody stable."""
    settle(stage, "a", "b")
    stage.join("a", known=True)
    stage.join("b", known=True)
    tickets = decide(stage)
    stage.join("c")
    assert {stage.refused(ticket) for ticket in tickets.values()} == {R.REBALANCE_IN_PROGRESS}
    stage.disk()
    assert stage.state == "PreparingRebalance"
    stage.join("a", known=True)
    stage.join("b", known=True)
    decide(stage)
    stage.disk()
    assert (stage.state, stage.members) == ("Stable", ["a", "b", "c"])


def test_disk_that_refuses_gives_nobody_an_assignment(stage):
    """All are told, and gathered anew."""
    stage.join("a")
    ticket = stage.sync("a", to={"a": b"all"})
    stage.disk(refuses=True)
    assert stage.refused(ticket) is R.NOT_KEPT
    assert (stage.state, stage.kept) == ("PreparingRebalance", None)
    stage.join("a", known=True)
    ticket = stage.sync("a", to={"a": b"all"})
    stage.disk()
    assert stage.synced(ticket) == b"all"


def test_member_that_hangs_up_while_its_assignment_is_kept_may_ask_again(stage):
    """It is a member, and has its session to come back."""
    stage.join("a")
    stage.hang_up(stage.sync("a", to={"a": b"all"}))
    stage.disk()
    assert stage.state == "Stable"
    assert stage.synced(stage.sync("a")) == b"all"


def test_empty_group_keeps_its_number_until_it_is_forgotten(stage):
    """Nobody waits for that. A group that was never kept has nothing to keep."""
    stage.join("a")
    stage.leave("a")
    assert stage.to_persist is None
    settle(stage, "b")
    stage.leave("b")
    stage.disk()
    generation = stage.group.generation
    assert (stage.kept.generation, stage.kept.members) == (generation, ())
    stage.restart()
    assert (stage.state, stage.group.describe().protocol_type) == ("Empty", "consumer")
    assert stage.commit("", generation=-1) is None
    stage.wait(IDLE_MS_MAX)
    assert stage.state == "Dead"
    stage.disk()
    assert stage.kept is None


def test_number_goes_on_behind_that_of_an_empty_group(stage):
    """Also over a restart."""
    settle(stage, "a")
    stage.leave("a")
    stage.disk()
    emptied = stage.group.generation
    stage.restart()
    assert stage.joined(stage.join("b")).generation == emptied + 1


# --- static members --------------------------------------------------------------------------------


def static(stage):
    """Two static members, x as S and y as T, of which x leads."""
    stage.slow = False
    stage.join("x", instance_id="S")
    stage.join("y", instance_id="T")
    stage.join("x", known=True, instance_id="S")
    stage.assign()
    stage.slow = True
    assert (stage.state, stage.group.leader_id) == ("Stable", "x")


def test_static_member_has_its_place_back_when_that_is_kept(stage):
    """After a restart it is current, and its predecessor fenced as soon as it is heard of."""
    static(stage)
    generation = stage.group.generation
    ticket = stage.join("z", instance_id="T")
    assert stage.parked(ticket)
    stage.disk()
    assert stage.joined(ticket).member_id == "z"
    stage.restart()
    assert stage.heartbeat("z", instance="T") is None
    assert stage.heartbeat("y", instance="T") is R.FENCED_INSTANCE
    assert stage.synced(stage.sync("z", instance="T", generation=generation)) == b"y"


def test_static_member_whose_return_was_not_kept_may_come_again(stage):
    """The crash came first: it was told nothing, comes without an id, and takes the place."""
    static(stage)
    assert stage.parked(stage.join("z", instance_id="T"))
    stage.restart()
    assert stage.members == ["x", "y"]
    ticket = stage.join("zz", instance_id="T")
    stage.disk()
    assert stage.joined(ticket).member_id == "zz"


def test_static_member_is_not_fenced_by_one_that_is_not_back(stage):
    """It was told its id in a rebalance that the crash undid; it is to join anew, not to give up."""
    static(stage)
    stage.join("z", instance_id="T", protocols=(("range", wish("u")),))
    stage.join("x", known=True, instance_id="S")
    generation = stage.group.generation
    stage.restart()
    assert stage.refused(stage.sync("z", instance="T", generation=generation)) is R.UNKNOWN_MEMBER
    stage.heartbeat("y", instance="T")
    assert stage.refused(stage.sync("z", instance="T", generation=generation)) is R.FENCED_INSTANCE


def test_static_member_that_waits_for_the_disk_joins_the_rebalance_that_begins(stage):
    """It has joined already: the next generation is its answer."""
    static(stage)
    ticket = stage.join("z", instance_id="T")
    stage.join("x", known=True, instance_id="S")
    assert stage.joined(ticket).generation == stage.group.generation
    stage.disk()
    assert stage.state == "CompletingRebalance"


def test_static_member_that_is_refused_by_the_disk_comes_again(stage):
    """Nobody knows the id that it would have had."""
    static(stage)
    ticket = stage.join("z", instance_id="T")
    stage.disk(refuses=True)
    assert stage.refused(ticket) is R.NOT_KEPT
    again = stage.join("zz", instance_id="T")
    stage.disk()
    assert stage.joined(again).member_id == "zz"
    assert (stage.state, stage.heartbeat("zz", instance="T")) == ("Stable", None)


def test_static_member_that_hangs_up_while_it_waits_for_the_disk_stays(stage):
    """It is answered no more, and has its session to come back."""
    static(stage)
    ticket = stage.join("z", instance_id="T")
    stage.hang_up(ticket)
    stage.disk()
    assert stage.parked(ticket)
    assert stage.members == ["x", "z"]
    stage.leave(Leaving("", "T"))
    assert stage.members == ["x"]
