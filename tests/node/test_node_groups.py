"""Groups of a real node that is killed while a generation is kept, and one whose disk does not keep it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from scripts.node_process import NodeProcess
from tests.clients.raw_member import RawMember
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]

ILLEGAL_GENERATION = 22
COORDINATOR_NOT_AVAILABLE = 15
UNKNOWN_MEMBER_ID = 25
SHORT_SESSIONS = {"FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS": "1000"}


def settle(member: RawMember) -> None:
    """Alone in the group, with an assignment that names the generation."""
    member.join("g")
    assert member.sync("g", {member.member_id: b"in %d" % member.generation}).error_code == 0


def as_before(node: NodeProcess, member: RawMember) -> RawMember:
    """The same member, with a new connection."""
    again = RawMember(node.address)
    again.member_id, again.generation = member.member_id, member.generation
    return again


def killed_in_second_generation(node: NodeProcess, point: str) -> RawMember:
    """The node is killed at this point while it keeps the second one, and is there again; the member as it was then."""
    node.environment["FAIRLOG_FAILPOINT"] = f"{point}:kill:2"
    node.start()
    with RawMember(node.address) as member:
        settle(member)
        member.join("g")
        assert member.generation == 2
        with suppress(ConnectionError):
            member.sync("g", {member.member_id: b"in 2"})
    assert node.wait_end(10) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    return member


def test_kill_behind_the_write_leaves_the_new_generation(new_node: NewNode) -> None:
    """Nobody was told what he reads in it; who asks after the restart is."""
    node = new_node(**SHORT_SESSIONS)
    member = killed_in_second_generation(node, "groups.keep.after_commit")
    with as_before(node, member) as again:
        assert again.heartbeat("g") == 0
        answer = again.sync("g", {})
        assert (answer.error_code, answer.assignment) == (0, b"in 2")
        again.generation = 1
        assert again.heartbeat("g") == ILLEGAL_GENERATION


def test_kill_before_the_write_leaves_the_generation_before(new_node: NewNode) -> None:
    """The member of the new one is told so, joins again, and gets the next number."""
    node = new_node(**SHORT_SESSIONS)
    member = killed_in_second_generation(node, "groups.keep.before_commit")
    with as_before(node, member) as again:
        assert again.heartbeat("g") == ILLEGAL_GENERATION
        settle(again)
        assert (again.member_id, again.generation) == (member.member_id, 2)
        answer = again.sync("g", {})
        assert (answer.error_code, answer.assignment) == (0, b"in 2")


def test_disk_that_does_not_keep_groups_lets_nobody_have_an_assignment(new_node: NewNode) -> None:
    """Clients look for the coordinator, and join again; after a restart all is well."""
    node = new_node(FAIRLOG_FAILPOINT="groups.keep.before_commit:fail:1", **SHORT_SESSIONS)
    node.start()
    with RawMember(node.address) as member:
        for _ in range(2):
            member.join("g")
            assert member.sync("g", {member.member_id: b"all"}).error_code == COORDINATOR_NOT_AVAILABLE
    assert "groups cannot be kept" in node.log_tail()
    node.kill()
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    with as_before(node, member) as again:
        assert again.heartbeat("g") == UNKNOWN_MEMBER_ID
    with RawMember(node.address) as other:
        settle(other)


def test_directory_without_kept_groups_is_opened(new_node: NewNode) -> None:
    """As an older release left it: it gets the store, and keeps its groups from then on."""
    node = new_node(**SHORT_SESSIONS)
    node.start()
    node.stop()
    for file in shard_in(node.data_dir).persisted_groups.iterdir():
        file.unlink()
    shard_in(node.data_dir).persisted_groups.rmdir()
    node.start()
    with RawMember(node.address) as member:
        settle(member)
    node.kill()
    node.start()
    with as_before(node, member) as again:
        assert again.heartbeat("g") == 0
