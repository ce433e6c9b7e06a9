"""The table of a group's states, and the small pure parts beside the machine."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.groups.interface import GROUP_ID_BYTES_MAX, is_group_id
from fairlog.groups.states import NEXT_STATE, TABLE, GroupState, matrix
from fairlog.groups.subscription import subscribed_topics_untrusted
from fairlog.groups.votes import Votes
from tests.groups.stage import wish

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

PAGE = Path(__file__).resolve().parents[2] / "docs" / "groups.md"


def test_table_leads_to_every_state_and_out_of_all_but_the_last():
    """Nothing is unreachable, and nothing but DEAD is for ever."""
    assert {row.then for row in TABLE} | {GroupState.EMPTY} == set(GroupState)
    assert {state for state, _ in NEXT_STATE} == set(GroupState) - {GroupState.DEAD}


def test_table_in_the_docs_is_the_one_in_the_code():
    """The page is made from it: `python -c "from fairlog.groups.states import matrix; print(matrix())"`."""
    assert matrix() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("length", "is_one"), [(0, False), (1, True), (512, True), (513, False)])
def test_group_id_is_bounded_in_bytes(length, is_one):
    """Not in characters: it is written in UTF-8."""
    assert is_group_id("\u00e9" * length) is is_one
    assert GROUP_ID_BYTES_MAX == 1024


@pytest.mark.parametrize("topics", [(), ("t",), ("t", "\u00fc")])
def test_topics_of_a_subscription_are_read(topics):
    """Whatever follows them."""
    assert subscribed_topics_untrusted(wish(*topics)) == set(topics)
    assert subscribed_topics_untrusted(wish(*topics) + b"owned partitions") == set(topics)


@pytest.mark.parametrize("version", range(4))
def test_subscription_of_a_stock_client_is_read(version):
    """In every version of the consumer protocol, as kafka-python writes it."""
    subscription = ConsumerProtocolSubscription(version=version, topics=["t", "u"], user_data=b"x", owned_partitions=[])
    assert subscribed_topics_untrusted(bytes(subscription.encode(version=version))) == {"t", "u"}


@given(st.binary(max_size=40) | st.binary(max_size=10).map(lambda tail: wish("t", "u")[:9] + tail))
def test_topics_of_any_bytes_are_names_or_nothing(metadata):
    """The broker does not believe what members write to their leader."""
    topics = subscribed_topics_untrusted(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), min_size=1, max_size=6))
def test_votes_choose_what_all_know_and_most_prefer(wishes):
    """Members that would leave nothing in common are turned away before."""
    votes, members = Votes(), []
    for names in wishes:
        common = set.intersection(set(names), *map(set, members))
        assert votes.agrees(names) == bool(common)
        if common:
            votes.enter(dict.fromkeys(names, b""))
            members.append(names)
    common = set.intersection(*map(set, members))
    favourites = [next(name for name in names if name in common) for names in members]
    assert favourites.count(votes.choose(members)) == max(map(favourites.count, favourites))
    for names in members:
        assert votes.agrees(names, instead_of=names)
        alone = votes.agrees("e", instead_of=names)
        assert alone == (len(members) == 1)


@pytest.mark.slow
def test_votes_of_members_that_leave_do_not_look_at_what_the_others_know():
    """All members of a group may leave at once; where others know ever so much, that holds up nobody for seconds."""
    votes = Votes()
    votes.enter([*map(str, range(100_000)), "range"])
    for _ in range(300):
        votes.enter(["range"])
    started_s = time.process_time()
    for _ in range(300):
        votes.leave(["range"])
    assert time.process_time() - started_s < 0.3
    assert votes.agrees(["7"])
