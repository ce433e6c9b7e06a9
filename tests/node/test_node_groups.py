"""Groups of a real node that is killed while a generation is kept, and one whose disk does not keep it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress

import lmdb
import pytest

from scripts.node_process import NodeProcess
from tests.clients.raw_member import RawMember
from tests.shards import shard_in

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]

ILLEGAL_GENERATION = 22
COORDINATOR_NOT_AVAILABLE = 15
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
    member = killed_in_second_generation(node, "groups.keep.visible")
    with as_before(node, member) as again:
        assert again.heartbeat("g") == 0
        answer = again.sync("g", {})
        assert (answer.error_code, answer.assignment) == (0, b"in 2")
        again.generation = 1
        assert again.heartbeat("g") == ILLEGAL_GENERATION


def test_kill_before_the_write_leaves_the_generation_before(new_node: NewNode) -> None:
    """The member of the new one is told so, joins again, and gets the next number."""
    node = new_node(**SHORT_SESSIONS)
    member = killed_in_second_generation(node, "groups.keep.encoded")
    with as_before(node, member) as again:
        assert again.heartbeat("g") == ILLEGAL_GENERATION
        settle(again)
        assert (again.member_id, again.generation) == (member.member_id, 2)
        answer = again.sync("g", {})
        assert (answer.error_code, answer.assignment) == (0, b"in 2")


def test_disk_that_does_not_keep_groups_lets_nobody_have_an_assignment(new_node: NewNode) -> None:
    """Clients look for the coordinator, and join again; after a restart all is well."""
    node = new_node(FAIRLOG_FAILPOINT="copier.copy.before_commit:fail:1", **SHORT_SESSIONS)
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
        assert again.heartbeat("g") == ILLEGAL_GENERATION  # the first one was in the journal
        settle(again)
        assert again.heartbeat("g") == 0


def test_write_that_fails_for_once_lets_the_next_rebalance_pass(new_node: NewNode) -> None:
    """Nothing was written, and the disk is well."""
    node = new_node(FAIRLOG_FAILPOINT="groups.keep.encoded:fail:1", **SHORT_SESSIONS)
    node.start()
    with RawMember(node.address) as member:
        member.join("g")
        assert member.sync("g", {member.member_id: b"all"}).error_code == COORDINATOR_NOT_AVAILABLE
        settle(member)


def test_group_that_is_too_large_gets_no_assignment(new_node: NewNode) -> None:
    """The log says which group, and what can be done. The node goes on, and so do other groups, and this one later."""
    node = new_node(FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX=str(2 << 20), **SHORT_SESSIONS)
    node.environment["FAIRLOG_REQUESTS_MESSAGE_BYTES_MAX"] = str(1 << 20)
    node.start()
    with RawMember(node.address) as member, RawMember(node.address) as other:
        member.join("g")
        assert member.sync("g", {member.member_id: bytes(1 << 20)}).error_code == COORDINATOR_NOT_AVAILABLE
        assert "the group g takes more than 1048576 bytes" in node.log_tail()
        other.join("h")
        assert other.sync("h", {other.member_id: b"all"}).error_code == 0
        settle(member)


def test_directory_of_an_earlier_version_loses_its_store_of_groups(new_node: NewNode) -> None:
    """Members join again once; from then on the group is kept in its offsets log."""
    node = new_node(**SHORT_SESSIONS)
    node.start()
    node.stop()
    store = shard_in(node.data_dir).earlier_groups
    store.mkdir()
    with lmdb.open(str(store)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"format", b"\x82\x6efairlog-groups\x02")
    node.start()
    assert "have to join again" in node.log_tail()
    assert not store.exists()
    with RawMember(node.address) as member:
        settle(member)
    node.kill()
    node.start()
    assert node.log_tail().count("have to join again") == 1
    with as_before(node, member) as again:
        assert again.heartbeat("g") == 0


def test_deleted_group_does_not_come_back(new_node: NewNode) -> None:
    """Neither its offsets nor its members: the next one of the name begins with the first generation."""
    node = new_node(**SHORT_SESSIONS)
    node.start()
    with RawMember(node.address) as member:
        settle(member)
        assert member.leave("g") == 0
        assert member.delete_group("g") == 0
    node.kill()
    node.start()
    with RawMember(node.address) as member:
        settle(member)
        assert member.generation == 1
