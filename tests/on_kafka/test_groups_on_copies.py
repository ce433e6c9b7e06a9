"""Consumer groups on three nodes whose journals are on Kafka: a failover leaves a group's members where they are."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from peers.fairlog_cluster import FairlogCluster

from tests.clients.raw_client import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    GROUP,
    NONE,
    NOT_COORDINATOR,
    RawClient,
)
from tests.clients.raw_member import UNKNOWN_MEMBER_ID, RawMember
from tests.on_kafka.test_cluster import is_spread, wait_until

pytestmark = pytest.mark.slow

WAIT_S = 90.0
SESSION_MS = 300_000
"""No session ends here."""
GROUPS = [f"g{number}" for number in range(6)]
"""Their offsets logs are in different shards."""
ILLEGAL_GENERATION = 22
COORDINATOR_CHANGES = (COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR)


def member_of(cluster: FairlogCluster, group: str, asked: int) -> RawMember:
    """A connection to the group's coordinator, as the node `asked` knows it, once there is one."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, f"no coordinator of {group}"
        with suppress(OSError), RawClient(cluster.address(asked)) as client:
            address = client.coordinator(GROUP, group)
            if address is not None:
                return RawMember(address)
        time.sleep(0.05)


def goes_on(cluster: FairlogCluster, group: str, asked: int, member: RawMember) -> bytes:
    """What the member reads, as the coordinator says that answers at last."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert time.monotonic() < deadline, f"nobody coordinates {group}"
        with suppress(OSError), member_of(cluster, group, asked) as again:
            again.member_id, again.generation = member.member_id, member.generation
            code = again.heartbeat(group)
            assert code not in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), code
            if code == NONE:
                answer = again.sync(group, {})
                assert answer.error_code in (NONE, *COORDINATOR_CHANGES), answer.error_code
                if answer.error_code == NONE:
                    return answer.assignment
        time.sleep(0.05)


def test_members_go_on_when_the_owner_of_their_shard_is_killed_or_leaves(cluster: FairlogCluster) -> None:
    """With their ids, generations and assignments. Nobody has to join again."""
    wait_until(lambda: is_spread(cluster))
    members: dict[str, RawMember] = {}
    for group in GROUPS:
        with member_of(cluster, group, 1) as member:
            for _ in range(2):
                member.send_join(group, session_ms=SESSION_MS)
                assert member.receive_join().error_code == NONE
                assert member.sync(group, {member.member_id: group.encode()}).error_code == NONE
            members[group] = member
    assert {member.generation for member in members.values()} == {2}
    for node, end in ((1, cluster.kill), (2, cluster.leave)):
        end(node)
        read = {group: goes_on(cluster, group, 3, member) for group, member in members.items()}
        assert read == {group: group.encode() for group in GROUPS}
        cluster.spawn(node)
