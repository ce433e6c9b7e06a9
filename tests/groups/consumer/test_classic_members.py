"""Classic members in a consumer group, and the way from one protocol to the other and back."""

from __future__ import annotations

import pytest

from fairlog.groups.consumer import classic_members
from fairlog.groups.consumer.embedded_protocol import (
    NotEmbedded,
    decode_assignment_untrusted,
    decode_subscription_untrusted,
    encode_assignment,
)
from fairlog.groups.consumer.machine import ConsumerGroup
from fairlog.groups.consumer.settings import ConsumerGroupSettings
from fairlog.groups.consumer.values import LEAVING, Beaten
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.messages import Joined, Joining, JoinRefused, Leaving, Synced, Syncing
from fairlog.groups.persisted_group import PersistedClassicGroup, PersistedMember
from tests.groups.consumer.board import Board, beat, joining, subscription

SETTINGS = ConsumerGroupSettings(members_max=3)
REBALANCE_MS = 60_000


@pytest.fixture
def board():
    made = Board()
    made.make("t", 4)
    return made


def classic(*owned_by, generation=7, protocol="range", topics=("t",)):
    """A stable classic group, whose members have these partitions of `t`."""
    members = tuple(
        PersistedMember(
            f"c{number}",
            None,
            "client",
            "/127.0.0.1",
            10_000,
            REBALANCE_MS,
            ((protocol, subscription(*topics)),),
            encode_assignment([("t", index) for index in indexes], 1),
        )
        for number, indexes in enumerate(owned_by)
    )
    return PersistedClassicGroup(generation, "consumer", protocol, "c0", members)


@pytest.fixture
def mixed(board):
    """A consumer group that two classic members are in, and a member of the new protocol."""
    snapshot = classic_members.to_consumer_group(classic((0, 1), (2, 3)), board)
    group = ConsumerGroup.resumed("g", snapshot, SETTINGS, board, 0)
    assert group.beat(joining("n", "t"), 0) == Beaten("n", 8, frozenset())
    return group


def join(group, member_id, *, owned=(), now_ms=0, protocol="range", metadata=None, **other):
    fields = {
        "instance_id": None,
        "new_member_id": "new",
        "id_required": False,
        "knows_skipping": True,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": ((protocol, metadata or subscription("t", owned=owned)),),
    }
    return classic_members.join(group, Joining(member_id=member_id, **{**fields, **other}), now_ms)


def sync(group, member_id, generation, **other):
    fields = {"instance_id": None, "protocol_type": None, "protocol": None, "assignments": {}}
    answer = classic_members.sync(group, Syncing(member_id=member_id, generation=generation, **{**fields, **other}), 0)
    return decode_assignment_untrusted(answer.assignment) if isinstance(answer, Synced) else answer


def heart(group, member_id, generation, now_ms=0):
    return classic_members.heartbeat(group, member_id, None, generation, now_ms)


# --- the protocol that the members speak among themselves ------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscription_is_read_in_every_version(version):
    read = decode_subscription_untrusted(subscription("t", "u", owned=[("t", 3)], version=version))
    assert (read.version, read.topics) == (version, {"t", "u"})
    assert read.owned == (set() if version == 0 else {("t", 3)})


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0\0\1", subscription("t", owned=[("t", 1)])[:-3]])
def test_bytes_that_are_no_subscription_are_refused(data):
    with pytest.raises(NotEmbedded):
        decode_subscription_untrusted(data)


@pytest.mark.parametrize("data", [b"\0", b"\xff\xff\0\0\0\0", encode_assignment([("t", 1)], 1)[:-6]])
def test_bytes_that_are_no_assignment_are_refused(data):
    with pytest.raises(NotEmbedded):
        decode_assignment_untrusted(data)


def test_assignment_reads_back_in_the_members_version():
    data = encode_assignment([("u", 1), ("t", 2), ("t", 0)], 2)
    assert data[:2] == b"\0\2"
    assert decode_assignment_untrusted(data) == {("u", 1), ("t", 2), ("t", 0)}


# --- there -----------------------------------------------------------------------------------------


def test_members_of_a_classic_group_keep_their_partitions_and_generation(board):
    snapshot = classic_members.to_consumer_group(classic((0, 1), (2, 3)), board)
    members = [view.member for view in snapshot.members]
    assert [member.epoch for member in members] == [7, 7]
    assert frozenset().union(*(member.assigned for member in members)) == board.all("t")


@pytest.mark.parametrize(
    "group",
    [
        PersistedClassicGroup(7, "connect", "default", "c0", classic((0,)).members),
        classic((0, 1), (1, 2)),
        PersistedClassicGroup(
            7, "consumer", "range", "c0", (PersistedMember("c0", None, "", "", 1, 1, (("range", b"?"),), b""),)
        ),
    ],
    ids=["no consumers", "two owners", "no subscription"],
)
def test_group_that_cannot_be_a_consumer_group_stays_classic(board, group):
    assert classic_members.to_consumer_group(group, board) is None


def test_partition_goes_from_a_classic_member_to_a_new_one_by_its_rejoin(mixed, board):
    """Its heartbeat says that it has to join; only when it has given the partition up is that given away."""
    have = {"c0": [("t", 0), ("t", 1)], "c1": [("t", 2), ("t", 3)]}
    for name, owned in have.items():
        assert heart(mixed, name, 7) is GroupRefusal.REBALANCE_IN_PROGRESS
        answer = join(mixed, name, owned=owned)
        assert isinstance(answer, Joined)
        assert (answer.leader_id, answer.members, answer.protocol) == ("", (), "range")
        told = sync(mixed, name, answer.generation)
        if len(told) == 2:
            assert answer.generation == 8
            continue
        assert answer.generation == 7, "it has a partition to give up yet"
        assert mixed.beat(beat("n", 8), 0).assignment is None
        assert heart(mixed, name, 7) is GroupRefusal.REBALANCE_IN_PROGRESS
        assert join(mixed, name, owned=told).generation == 8
        assert sync(mixed, name, 8) == told
        assert heart(mixed, name, 8) is None
    assert len(mixed.beat(beat("n", 8), 0).assignment) == 1


def test_classic_member_that_waits_for_partitions_joins_again_when_they_are_free(mixed):
    """The group is at the member's epoch: nothing but what others gave up has changed."""
    mixed.beat(beat("n", LEAVING), 0)
    join(mixed, "c0")
    mixed.remove("c1", 0)
    answer = join(mixed, "c0")
    assert sync(mixed, "c0", answer.generation) == {("t", index) for index in range(4)}
    joined = join(mixed, "c2")
    assert sync(mixed, "c2", joined.generation) == set()
    assert heart(mixed, "c2", joined.generation) is None
    shrunk = sync(mixed, "c0", join(mixed, "c0", owned=[("t", index) for index in range(4)]).generation)
    join(mixed, "c0", owned=shrunk)
    assert heart(mixed, "c2", joined.generation) is GroupRefusal.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"protocol_type": "connect"}, GroupRefusal.INCONSISTENT_PROTOCOL),
        ({"protocols": ()}, GroupRefusal.INCONSISTENT_PROTOCOL),
        ({"protocol": "sticky"}, GroupRefusal.INCONSISTENT_PROTOCOL),
        ({"metadata": b"?"}, GroupRefusal.INCONSISTENT_PROTOCOL),
        ({"session_timeout_ms": 1}, GroupRefusal.INVALID_SESSION_TIMEOUT),
        ({}, GroupRefusal.GROUP_MAX_SIZE),
    ],
)
def test_classic_member_that_does_not_fit_is_refused(mixed, fields, refusal):
    before = mixed.snapshot()
    assert join(mixed, "", **fields) == JoinRefused(refusal, "")
    assert mixed.snapshot() == before


def test_classic_client_is_sent_back_once_to_come_with_its_id(mixed):
    mixed.beat(beat("n", LEAVING), 0)
    assert join(mixed, "", id_required=True) == JoinRefused(GroupRefusal.MEMBER_ID_REQUIRED, "new")
    assert join(mixed, "new", id_required=True).member_id == "new"


def test_classic_requests_of_members_of_the_new_protocol_are_refused(mixed):
    assert heart(mixed, "n", 8) is GroupRefusal.UNKNOWN_MEMBER
    assert sync(mixed, "n", 8) is GroupRefusal.UNKNOWN_MEMBER
    assert classic_members.leave(mixed, [Leaving("n", None)], 0) == [GroupRefusal.UNKNOWN_MEMBER]


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"generation": 6}, GroupRefusal.ILLEGAL_GENERATION),
        ({"generation": 7}, GroupRefusal.REBALANCE_IN_PROGRESS),
        ({"generation": 7, "protocol": "sticky"}, GroupRefusal.INCONSISTENT_PROTOCOL),
    ],
)
def test_sync_that_does_not_fit_is_refused(mixed, fields, refusal):
    assert sync(mixed, "c0", **fields) is refusal


def test_classic_member_that_does_not_join_again_in_time_is_removed(mixed):
    heart(mixed, "c0", 7, now_ms=0)
    for now_ms in range(5_000, REBALANCE_MS, 5_000):
        heart(mixed, "c0", 7, now_ms)
        heart(mixed, "c1", 7, now_ms)
        mixed.beat(beat("n", 8), now_ms)
        assert mixed.tick(now_ms) == []
    assert mixed.tick(REBALANCE_MS) == ["c0 did not join again, or ask for its assignment, in time"]


def test_static_member_comes_back_by_the_other_protocol(board):
    """A rolling change of the protocol restarts each process with the same instance id."""
    group = ConsumerGroup("g", SETTINGS, board, 0)
    group.beat(joining("a", "t", instance_id="S"), 0)
    assert join(group, "", instance_id="S").member_id == "new"
    assert sync(group, "new", 1, instance_id="S") == {("t", index) for index in range(4)}
    assert classic_members.can_go_back(group)
    assert group.beat(joining("b", "t", instance_id="S"), 0) == Beaten("b", 1, board.all("t"))
    assert not classic_members.can_go_back(group)


# --- and back --------------------------------------------------------------------------------------


def test_group_goes_back_with_the_generation_that_its_members_know(mixed, board):
    """So they hear by REBALANCE_IN_PROGRESS that they have to join again, and lose nothing meanwhile."""
    assert not classic_members.can_go_back(mixed)
    mixed.beat(beat("n", LEAVING), 0)
    assert classic_members.can_go_back(mixed)
    group = classic_members.to_classic_group(mixed.snapshot(), board)
    assert (group.generation, group.protocol, group.leader_id) == (7, "range", "c0")
    assert [decode_assignment_untrusted(member.assignment) for member in group.members] == [
        {("t", 0), ("t", 1)},
        {("t", 2), ("t", 3)},
    ]
