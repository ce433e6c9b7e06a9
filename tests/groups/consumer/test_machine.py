"""The machine of a consumer group (KIP-848), example by example; `test_stateful.py` has the rest."""

from __future__ import annotations

import pytest

from fairlog.groups.consumer.machine import IDLE_MS_MAX, ConsumerGroup
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.states import ConsumerGroupState
from fairlog.groups.consumer.values import AWAY, JOINING, LEAVING, NOTHING, Beaten
from fairlog.groups.interface import GroupRefusal
from tests.groups.consumer.board import Board, beat, joining

SESSION_MS = 45_000


@pytest.fixture
def board():
    made = Board()
    made.make("t", 4)
    return made


@pytest.fixture
def group(board):
    return ConsumerGroup("g", ConsumerGroupSettings(members_max=3), board, 0)


def told(answer):
    assert isinstance(answer, Beaten), answer
    return answer


def refusal(answer):
    return answer.refusal


def test_first_member_gets_everything_at_once(group, board):
    answer = told(group.beat(joining("a", "t"), 0))
    assert answer == Beaten("a", 1, board.all("t"))
    assert group.state is ConsumerGroupState.STABLE


def test_second_member_gets_its_share_when_the_first_has_given_it_up(group, board):
    """Revoke before assign: at no time do both have a partition."""
    group.beat(joining("a", "t"), 0)
    assert told(group.beat(joining("b", "t"), 0)) == Beaten("b", 2, NOTHING)
    shrunk = told(group.beat(beat("a", 1), 0))
    assert (shrunk.epoch, len(shrunk.assignment)) == (1, 2), "it is still at its old epoch, and has to give up two"
    assert told(group.beat(beat("b", 2), 0)).assignment is None, "the first has not said that it gave them up"
    assert told(group.beat(beat("a", 1, board.all("t")), 0)).epoch == 1, "it still has them"
    assert told(group.beat(beat("a", 1, shrunk.assignment), 0)).epoch == 2
    assert told(group.beat(beat("b", 2), 0)).assignment == board.all("t") - shrunk.assignment
    assert group.state is ConsumerGroupState.STABLE


def test_partitions_of_a_member_that_leaves_are_free_at_once(group, board):
    group.beat(joining("a", "t"), 0)
    group.beat(joining("b", "t"), 0)
    assert told(group.beat(beat("a", LEAVING), 0)) == Beaten("a", LEAVING, None)
    assert group.state is ConsumerGroupState.ASSIGNING
    assert told(group.beat(beat("b", 2), 0)).assignment == board.all("t")


def test_partitions_of_a_member_that_is_silent_are_free_after_its_session(group, board):
    group.beat(joining("a", "t"), 0)
    group.beat(joining("b", "t"), SESSION_MS - 1)
    assert group.tick(SESSION_MS) == ["a was not heard of"]
    assert told(group.beat(beat("b", 2), SESSION_MS)).assignment == board.all("t")
    assert refusal(group.beat(beat("a", 1), SESSION_MS)) is GroupRefusal.UNKNOWN_MEMBER


def test_member_that_does_not_give_up_in_time_is_removed(group):
    """Its rebalance time-out runs from when it was told, heartbeats or not."""
    group.beat(joining("a", "t", rebalance_timeout_ms=10_000), 0)
    group.beat(joining("b", "t"), 0)
    group.beat(beat("a", 1), 1_000)
    for now_ms in (5_000, 10_999):
        group.beat(beat("a", 1), now_ms)
        assert group.tick(now_ms) == []
    assert group.tick(11_000) == ["a did not give up its partitions in time"]


@pytest.mark.parametrize("epoch", [1, 3, 7])
def test_member_at_another_epoch_than_its_own_is_fenced(group, epoch):
    group.beat(joining("a", "t"), 0)
    group.beat(joining("b", "t"), 0)
    assert refusal(group.beat(beat("b", epoch), 0)) is GroupRefusal.FENCED_MEMBER_EPOCH


def test_member_whose_answer_was_lost_may_name_its_epoch_before(group, board):
    """But only if it says what it owns, and owns nothing that it may not."""
    group.beat(joining("a", "t"), 0)
    board.make("t", 5)
    assert told(group.beat(beat("a", 1), 0)).epoch == 2
    assert told(group.beat(beat("a", 1, board.all("t") - {(board.ids["t"], 4)}), 0)).epoch == 2
    assert refusal(group.beat(beat("a", 1), 0)) is GroupRefusal.FENCED_MEMBER_EPOCH
    assert refusal(group.beat(beat("a", 1, frozenset({("other", 0)})), 0)) is GroupRefusal.FENCED_MEMBER_EPOCH


def test_member_that_begins_again_owns_nothing_any_more(group, board):
    group.beat(joining("a", "t"), 0)
    group.beat(joining("b", "t"), 0)
    answer = told(group.beat(joining("a", "t"), 0))
    assert (answer.epoch, len(answer.assignment)) == (2, 2)
    assert told(group.beat(beat("b", 2), 0)).assignment == board.all("t") - answer.assignment


def test_late_heartbeat_of_an_earlier_connection_changes_nothing(group):
    """It says that the member owns nothing, which is long ago."""
    group.beat(joining("a", "t", connection=2), 0)
    before = group.snapshot()
    assert refusal(group.beat(joining("a", "t", connection=1), 0)) is GroupRefusal.LATE
    assert refusal(group.beat(beat("a", LEAVING, connection=1), 0)) is GroupRefusal.LATE
    assert group.snapshot() == before


def test_topic_that_grows_comes_or_goes_is_seen_by_the_next_heartbeat(group, board):
    group.beat(joining("a", "t", topic_regex="u.*"), 0)
    board.make("t", 6)
    assert told(group.beat(beat("a", 1), 0)) == Beaten("a", 2, board.all("t"))
    board.make("unknown", 1)
    assert told(group.beat(beat("a", 2), 0)) == Beaten("a", 3, board.all("t", "unknown"))
    board.make("other", 1)
    assert told(group.beat(beat("a", 3), 0)) == Beaten("a", 3, None)
    board.delete("t")
    assert told(group.beat(beat("a", 3), 0)) == Beaten("a", 3, board.all("unknown"))
    assert told(group.beat(beat("a", 3, board.all("unknown")), 0)).epoch == 4


def test_empty_pattern_ends_the_subscription_by_pattern(group, board):
    group.beat(joining("a", "t", topic_regex=".*"), 0)
    board.make("u", 1)
    group.beat(beat("a", 1), 0)
    group.beat(beat("a", 2, topic_regex=""), 0)
    assert group.subscribed() == {"t"}


def test_target_is_made_by_the_assignor_that_most_members_wish(group):
    group.beat(joining("a", "t"), 0)
    assert group.assignor == "uniform"
    group.beat(joining("b", "t", assignor="range"), 0)
    assert group.assignor == "range"


def test_full_group_refuses_one_more(group):
    for name in "abc":
        group.beat(joining(name, "t"), 0)
    assert refusal(group.beat(joining("d", "t"), 0)) is GroupRefusal.GROUP_MAX_SIZE


# --- static members --------------------------------------------------------------------------------


def test_static_member_that_is_back_has_what_it_had_without_a_rebalance(group, board):
    group.beat(joining("a", "t", instance_id="S"), 0)
    group.beat(joining("b", "t"), 0)
    mine = told(group.beat(beat("a", 1), 0)).assignment
    group.beat(beat("a", 1, mine), 0)
    group.beat(beat("b", 2), 0)
    assert told(group.beat(beat("a", AWAY, instance_id="S"), 0)) == Beaten("a", AWAY, None)
    assert told(group.beat(beat("b", 2), 0)) == Beaten("b", 2, None), "its partitions wait for it"
    assert told(group.beat(joining("a2", "t", instance_id="S"), 0)) == Beaten("a2", 2, mine)
    assert refusal(group.beat(beat("a", 2, instance_id="S"), 0)) is GroupRefusal.FENCED_INSTANCE
    assert refusal(group.beat(beat("a", 2), 0)) is GroupRefusal.UNKNOWN_MEMBER


def test_static_member_that_stays_away_is_removed_after_its_session(group, board):
    group.beat(joining("a", "t", instance_id="S"), 0)
    group.beat(beat("a", AWAY, instance_id="S"), 10)
    group.beat(joining("b", "t"), 20)
    assert group.tick(SESSION_MS) == ["a was not heard of"]
    assert told(group.beat(beat("b", 2), SESSION_MS)).assignment == board.all("t")


def test_instance_id_of_a_member_that_has_not_left_is_not_given_away(group):
    group.beat(joining("a", "t", instance_id="S"), 0)
    assert refusal(group.beat(joining("b", "t", instance_id="S"), 0)) is GroupRefusal.UNRELEASED_INSTANCE
    assert refusal(group.beat(beat("b", 1, instance_id="S"), 0)) is GroupRefusal.FENCED_INSTANCE
    assert refusal(group.beat(beat("b", LEAVING, instance_id="S"), 0)) is GroupRefusal.FENCED_INSTANCE
    assert refusal(group.beat(beat("a", 1, instance_id="other"), 0)) is GroupRefusal.UNKNOWN_MEMBER


# --- what is kept ----------------------------------------------------------------------------------


def keep(group):
    """Let all be on disk."""
    write = group.take_write()
    if write is not None:
        group.kept(write.number)
    return write


def test_group_goes_on_as_it_was_kept(group, board):
    """Members keep their epochs and what they read; their sessions begin anew."""
    group.beat(joining("a", "t", instance_id="S"), 0)
    group.beat(joining("b", "t"), 0)
    group.beat(beat("a", 1), 0)
    kept = keep(group).group
    resumed = ConsumerGroup.resumed("g", kept, ConsumerGroupSettings(), board, 100_000)
    assert resumed.snapshot() == kept == group.snapshot()
    assert resumed.take_write() is None
    assert resumed.tick(100_000 + SESSION_MS - 1) == []
    assert told(resumed.beat(beat("a", 1), 100_001)) == Beaten("a", 1, None)
    assert resumed.tick(100_000 + SESSION_MS) == ["b was not heard of"]


def test_heartbeat_that_changes_nothing_has_nothing_to_wait_for(group):
    group.beat(joining("a", "t"), 0)
    assert group.take_write() is not None
    assert group.answer_number == 1
    group.kept(1)
    group.beat(beat("a", 1), 0)
    assert (group.take_write(), group.answer_number) == (None, None)


def test_group_that_cannot_be_kept_is_what_it_was(group, board):
    """Nobody was told of anything else: the first member goes on."""
    group.beat(joining("a", "t"), 0)
    keep(group)
    before = group.snapshot()
    group.beat(joining("b", "t"), 0)
    assert group.not_kept(group.take_write().number, 0)
    assert group.snapshot() == before
    assert group.answer_number is None
    assert told(group.beat(beat("a", 1), 0)) == Beaten("a", 1, None)


def test_group_that_is_empty_is_forgotten_after_a_while(group):
    group.beat(joining("a", "t"), 0)
    group.beat(beat("a", LEAVING), 1_000)
    keep(group)
    group.tick(1_000 + IDLE_MS_MAX - 1)
    assert group.state is ConsumerGroupState.EMPTY
    group.tick(1_000 + IDLE_MS_MAX)
    assert group.state is ConsumerGroupState.DEAD
    assert keep(group).group is None


def test_epochs_go_on_in_a_group_that_was_empty(group):
    group.beat(joining("a", "t"), 0)
    group.beat(beat("a", LEAVING), 0)
    assert told(group.beat(joining("b", "t"), 0)).epoch == 3
    assert group.epoch > JOINING
