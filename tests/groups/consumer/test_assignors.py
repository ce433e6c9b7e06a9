"""The two server-side assignors: who gets what, how evenly, and how little moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.groups.consumer.assignor import Subscriber
from fairlog.groups.consumer.machine import ASSIGNORS
from fairlog.groups.consumer.ranges import assign_ranges
from fairlog.groups.consumer.uniform import assign_uniformly
from fairlog.groups.consumer.values import NOTHING

pytestmark = pytest.mark.slow

SIZES = {"t": 6, "u": 3, "v": 1, "w": 5}


@st.composite
def groups(draw, sizes=None):
    """Members with subscriptions, and a target that was made for other ones."""
    topics = st.dictionaries(st.sampled_from("tuvwxyz"), st.integers(1, 12)) if sizes is None else st.just(sizes)
    sizes = draw(topics)
    members = draw(st.lists(st.sampled_from([f"m{number}" for number in range(9)]), unique=True))
    earlier = [(topic, index) for topic in "tuvwxyz" for index in range(draw(st.integers(0, 12)))]
    owners = {place: draw(st.sampled_from([None, *members])) for place in earlier}
    same = draw(st.booleans())
    subscription = st.frozensets(st.sampled_from(sorted(sizes) or ["-"])).map(lambda names: names & set(sizes))
    common = draw(subscription)
    subscribers = {
        member: Subscriber(
            draw(st.sampled_from([None, f"i{member}"])),
            common if same else draw(subscription),
            frozenset(place for place, owner in owners.items() if owner == member),
        )
        for member in members
    }
    return subscribers, sizes


def again(subscribers, targets):
    """The same members, after the target was made."""
    return {
        member: Subscriber(each.instance_id, each.topics, targets.get(member, NOTHING))
        for member, each in subscribers.items()
    }


@pytest.mark.parametrize("name", ASSIGNORS)
@given(group=groups())
def test_each_subscribed_partition_goes_to_exactly_one_of_its_subscribers(name, group):
    subscribers, sizes = group
    targets = ASSIGNORS[name](subscribers, sizes)
    assert set(targets) == set(subscribers)
    given_away = sorted(place for target in targets.values() for place in target)
    subscribed = frozenset().union(*(each.topics for each in subscribers.values()))
    assert given_away == sorted((topic, index) for topic in subscribed for index in range(sizes[topic]))
    for member, target in targets.items():
        assert {topic for topic, _ in target} <= subscribers[member].topics


@given(group=groups())
def test_uniform_leaves_no_single_move_that_would_make_it_more_even(group):
    """Among the subscribers of a topic, who has a partition of it has at most one more, in all, than any other."""
    subscribers, sizes = group
    targets = assign_uniformly(subscribers, sizes)
    for member, target in targets.items():
        for topic in {topic for topic, _ in target}:
            others = (len(targets[each]) for each in subscribers if topic in subscribers[each].topics)
            assert len(target) - min(others) <= 1, member


@given(group=groups())
def test_uniform_moves_nothing_when_nothing_has_changed(group):
    subscribers, sizes = group
    targets = assign_uniformly(subscribers, sizes)
    assert assign_uniformly(again(subscribers, targets), sizes) == targets


@given(group=groups(sizes=SIZES), leaves=st.booleans())
def test_uniform_moves_no_more_than_the_share_of_who_comes_or_goes(group, leaves):
    """With equal subscriptions, a member that joins gets its share from the others, and nothing else moves."""
    subscribers = {member: Subscriber(None, frozenset(SIZES), NOTHING) for member in group[0]}
    before = assign_uniformly(subscribers, SIZES)
    after = again(subscribers, before)
    if leaves and after:
        del after[min(after)]
    else:
        after["new"] = Subscriber(None, frozenset(SIZES), NOTHING)
    targets = assign_uniformly(after, SIZES)
    moved = sum(len(before[member] - targets[member]) for member in after if member in before)
    assert moved == (len(targets["new"]) if "new" in after and before else 0)


def test_range_gives_topics_of_the_same_size_alike():
    """Who joins two topics by key finds both sides of a partition in one member."""
    subscribers = {name: Subscriber(None, frozenset("ab"), NOTHING) for name in ("m", "n", "o")}
    targets = assign_ranges(subscribers, {"a": 4, "b": 4})
    assert targets == {
        "m": {("a", 0), ("a", 1), ("b", 0), ("b", 1)},
        "n": {("a", 2), ("b", 2)},
        "o": {("a", 3), ("b", 3)},
    }


def test_range_orders_static_members_by_their_instance_ids():
    """A static member that comes back with a new member id gets the same range."""
    before = {"z": Subscriber("1", frozenset("a"), NOTHING), "y": Subscriber("2", frozenset("a"), NOTHING)}
    after = {"b": Subscriber("1", frozenset("a"), NOTHING), "y": Subscriber("2", frozenset("a"), NOTHING)}
    assert assign_ranges(before, {"a": 3})["z"] == assign_ranges(after, {"a": 3})["b"] == {("a", 0), ("a", 1)}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_members_that_subscribe_to_nothing_get_nothing(name):
    assert ASSIGNORS[name]({"m": Subscriber(None, frozenset(), NOTHING)}, {}) == {"m": NOTHING}
