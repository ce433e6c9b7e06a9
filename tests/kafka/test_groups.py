"""The APIs of consumer groups, over two codecs that are not ours, with the real membership behind them."""

from __future__ import annotations

import functools

import pytest
import trio
import trio.testing
from kafka.protocol.consumer import JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from fairlog.groups.interface import GroupRefusal
from fairlog.groups.member import MEMBER_BYTES_MAX
from fairlog.kafka.errors import GROUP_REFUSALS, ErrorCode
from fairlog.kafka.handlers import (
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_42_delete_groups,
)
from fairlog_types import StorageFailure

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, LIST, DELETE = 11, 12, 13, 14, 15, 16, 42

NOTHING_SUBSCRIBED = b"\0\0" + b"\0\0\0\0"


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


def join(member_id="", *, group="g", instance=None, protocols=(("range", b"wish"),), session_ms=10_000):
    return {
        "group_id": group,
        "session_timeout_ms": session_ms,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ],
    }


def sync(member_id, generation=1, *, instance=None, assignments=(), protocol_type=None, protocol=None):
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": instance,
        "protocol_type": protocol_type,
        "protocol_name": protocol,
        "assignments": [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=to, assignment=assignment)
            for to, assignment in assignments
        ],
    }


async def join_twice(ask, version, **fields):
    """Join as a client does: again with the id that it is given."""
    answer = await ask(JOIN, version, **join(**fields))
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await ask(JOIN, version, **join(answer.member_id, **fields))
    return answer


async def settle(ask, *, version=5):
    """One member, alone in a stable group; its id."""
    joined = await join_twice(ask, version)
    member_id = joined.member_id
    synced = await ask(SYNC, 3, **sync(member_id, joined.generation_id, assignments=[(member_id, b"all")]))
    assert synced.error_code == 0
    return member_id


@versions(api_11_join_group)
async def test_join_of_the_first_member_makes_it_the_leader(ask, version):
    """In every version; from 4 on a member without an id is sent back once, to come with the one it is given."""
    first = await ask(JOIN, version, **join())
    if version >= 4:
        assert (first.error_code, first.generation_id, first.members) == (ErrorCode.MEMBER_ID_REQUIRED, -1, [])
        assert first.protocol_name == ("" if version < 7 else None)
        first = await ask(JOIN, version, **join(first.member_id))
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.leader == first.member_id == "asker-1"
    assert first.protocol_type == ("consumer" if version >= 7 else None)
    assert [(member.member_id, member.metadata) for member in first.members] == [(first.member_id, b"wish")]


@pytest.mark.parametrize("version", range(5, 10))
async def test_join_of_a_static_member_needs_no_second_request(ask, version):
    """It is known by its instance id, which the leader is told."""
    first = await ask(JOIN, version, **join(instance="i"))
    assert (first.error_code, first.member_id) == (0, "i-1")
    assert [member.group_instance_id for member in first.members] == ["i"]


@pytest.mark.parametrize("version", [5, 6])
async def test_join_of_a_static_member_with_an_endless_name_is_answered(ask, version):
    """Its member id is made of its instance id, and is a string that every version can carry."""
    name = "i" * 32_760
    first = await ask(JOIN, version, **join(instance=name))
    assert (first.error_code, len(first.member_id) < 1000) == (0, True)
    assert [member.group_instance_id for member in first.members] == [name]


@versions(api_14_sync_group)
async def test_sync_of_the_leader_brings_its_assignment(ask, version):
    """Its own, as it wrote it; from version 5 on with the protocol."""
    joined = await join_twice(ask, 5)
    member_id = joined.member_id
    answer = await ask(SYNC, version, **sync(member_id, assignments=[(member_id, b"mine"), ("other", b"x")]))
    assert (answer.error_code, bytes(answer.assignment)) == (0, b"mine")
    expected = ("consumer", "range") if version >= 5 else (None, None)
    assert (answer.protocol_type, answer.protocol_name) == expected


@pytest.mark.parametrize(("protocol_type", "protocol"), [("connect", None), (None, "roundrobin")])
async def test_sync_that_names_another_protocol_is_refused(ask, protocol_type, protocol):
    """The member has misunderstood what the group agreed on."""
    joined = await join_twice(ask, 5)
    answer = await ask(SYNC, 5, **sync(joined.member_id, protocol_type=protocol_type, protocol=protocol))
    assert (answer.error_code, answer.protocol_type) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, None)


@pytest.mark.parametrize("generation", [0, 2, -1])
async def test_sync_of_another_generation_is_refused(ask, generation):
    """And brings no assignment."""
    member_id = await settle(ask)
    answer = await ask(SYNC, 5, **sync(member_id, generation))
    assert (answer.error_code, bytes(answer.assignment)) == (ErrorCode.ILLEGAL_GENERATION, b"")


@versions(api_12_heartbeat)
async def test_heartbeat_is_answered(ask, version):
    """Without an error, or with the reason why it is in vain."""
    member_id = await settle(ask)
    fields = {"group_id": "g", "generation_id": 1, "member_id": member_id, "group_instance_id": None}
    assert (await ask(HEARTBEAT, version, **fields)).error_code == 0
    fields["generation_id"] = 0
    assert (await ask(HEARTBEAT, version, **fields)).error_code == ErrorCode.ILLEGAL_GENERATION
    fields["group_id"] = "unknown"
    assert (await ask(HEARTBEAT, version, **fields)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    fields["group_id"] = ""
    assert (await ask(HEARTBEAT, version, **fields)).error_code == ErrorCode.INVALID_GROUP_ID


@versions(api_13_leave_group)
async def test_leave_is_answered_for_each_member(ask, version):
    """From version 3 on; before that there is but one, and its error stands alone."""
    member_id = await settle(ask)
    identity = LeaveGroupRequest.MemberIdentity
    members = [
        identity(member_id=member_id, group_instance_id=None, reason="done"),
        identity(member_id="stranger", group_instance_id=None, reason=None),
        identity(member_id="", group_instance_id="stranger", reason=None),
    ]
    answer = await ask(LEAVE, version, group_id="g", member_id=member_id, members=members)
    assert answer.error_code == 0
    if version >= 3:
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert [member.error_code for member in answer.members] == [0, unknown, unknown]
        assert answer.members[2].group_instance_id == "stranger"
    else:
        again = await ask(LEAVE, version, group_id="g", member_id=member_id, members=[])
        assert again.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", [2, 3])
async def test_leave_of_a_group_without_a_name_is_refused(ask, version):
    """As a whole."""
    answer = await ask(LEAVE, version, group_id="", member_id="m", members=[])
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


@versions(api_15_describe_groups)
async def test_groups_are_described(ask, memory, version):
    """With their members, if they have any; Empty if they have but offsets; Dead, an error since 6, if unknown."""
    member_id = await settle(ask)
    memory.offsets.index.load({"kept": 1_000})
    answer = await ask(DESCRIBE, version, groups=["g", "kept", "nobody", "g"], include_authorized_operations=True)
    assert [(group.group_id, group.error_code, group.group_state) for group in answer.groups] == [
        ("g", 0, "Stable"),
        ("kept", 0, "Empty"),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0, "Dead"),
    ]
    stable = answer.groups[0]
    assert (stable.protocol_type, stable.protocol_data) == ("consumer", "range")
    (member,) = stable.members
    assert (member.member_id, member.client_id, member.client_host) == (member_id, "asker", "/test")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"wish", b"all")


@versions(api_16_list_groups)
async def test_groups_are_listed(ask, memory, version):
    """Those with members and those with offsets, each once; from version 4 on by state."""
    await settle(ask)
    memory.offsets.index.load({"g": 1_000, "kept": 1_000})
    answer = await ask(LIST, version, states_filter=[])
    found = [(group.group_id, group.protocol_type) for group in answer.groups]
    assert (answer.error_code, found) == (0, [("g", "consumer"), ("kept", "")])
    if version >= 4:
        assert [group.group_state for group in answer.groups] == ["Stable", "Empty"]
        answer = await ask(LIST, version, states_filter=[" eMPTY ", "Bogus"])
        assert [group.group_id for group in answer.groups] == ["kept"]
    if version >= 5:
        assert [group.group_type for group in answer.groups] == ["classic"]
        for types, listed in ((["CLASSIC", "Bogus"], ["g", "kept"]), (["consumer"], [])):
            answer = await ask(LIST, version, states_filter=[], types_filter=types)
            assert [group.group_id for group in answer.groups] == listed


async def test_groups_in_a_long_list_let_others_run(ask, memory, autojump_clock):
    """Ten thousand groups are written in several turns of the loop."""
    memory.offsets.index.load({f"group-{number}": 1_000 for number in range(10_000)})
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ask.start(LIST, 4, states_filter=[])
        nursery.cancel_scope.cancel()
    assert turns >= 5


@versions(api_42_delete_groups)
async def test_groups_are_deleted_if_they_have_no_members(ask, memory, version):
    """With their offsets; others are refused, each for itself."""
    await settle(ask)
    memory.offsets.index.load({"kept": 1_000})
    answer = await ask(DELETE, version, groups_names=["g", "kept", "nobody"])
    codes = {result.group_id: result.error_code for result in answer.results}
    assert codes == {"g": ErrorCode.NON_EMPTY_GROUP, "kept": 0, "nobody": ErrorCode.GROUP_ID_NOT_FOUND}
    assert not memory.offsets.index.groups()


async def test_group_whose_offsets_cannot_be_deleted_stays(ask, memory):
    """A disk that is full is told as what it is."""
    memory.offsets.index.load({"kept": 1_000})
    memory.offsets.failure = StorageFailure("the disk is full")
    answer = await ask(DELETE, 2, groups_names=["kept"])
    assert answer.results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "x" * 1025}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": (("range", bytes(MEMBER_BYTES_MAX)),)}, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
async def test_join_that_cannot_be_is_refused(ask, memory, fields, code):
    """In the code of its reason; no group is made for it."""
    answer = await ask(JOIN, 7, **join(**fields))
    assert (answer.error_code, answer.generation_id, answer.leader) == (code, -1, "")
    assert list(memory.groups.known()) == []


async def test_join_beyond_the_largest_group_is_refused(ask, memory):
    """With those who are about to come: an id is given for each place, and not more."""
    for _ in range(3):
        assert (await ask(JOIN, 7, **join())).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert (await ask(JOIN, 7, **join())).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("refusal", GroupRefusal)
def test_refusal_of_a_group_has_a_code(refusal):
    """There is none that a handler could stumble over."""
    assert GROUP_REFUSALS[refusal] is not ErrorCode.NONE


async def test_join_and_sync_are_answered_when_the_node_stops(ask, autojump_clock):
    """A connection that is to end does not wait for other members."""
    member_id = await settle(ask)
    parked = await ask.start(JOIN, 4, **join(""))  # an id is all that it gets
    second = ask.parse(JOIN, 4, await ask.finish(parked)).member_id
    parked = await ask.start(JOIN, 4, **join(second))
    answers = []

    async def finish():
        answers.append(ask.parse(JOIN, 4, await ask.finish(parked)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        assert answers == []
        ask.client.end_long_polls()
    assert answers[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    parked.answer.release()
    heartbeat = functools.partial(ask, HEARTBEAT, 3, group_id="g", generation_id=1, group_instance_id=None)
    assert (await heartbeat(member_id=second)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await heartbeat(member_id=member_id)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
