"""The APIs of consumer groups of the new protocol (KIP-848), in kio's codec, with the real membership behind them."""

from __future__ import annotations

import datetime
import io
import uuid

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_68_consumer_group_heartbeat, api_69_consumer_group_describe

COMMIT, FETCH, DESCRIBE_CLASSIC, LIST, DELETE = 8, 9, 15, 16, 42
HEARTBEAT, DESCRIBE = 68, 69
MINUTE = datetime.timedelta(minutes=1)
INTERVAL = "consumer.heartbeat.interval.ms"
UNCHANGED = datetime.timedelta(milliseconds=-1)


def module(key, version, kind):
    return load_payload_module(key, version, kind)


def asked(key, version, name, /, **fields):
    """A part of a request, by its class's name in kio."""
    return getattr(module(key, version, EntityType.request), name)(**fields)


@pytest.fixture
def ask_kio(ask):
    """Asks by kio's request; answers kio's response."""

    async def asking(key, version, name, /, *, client="asker", **fields):
        with io.BytesIO() as out:
            request = asked(key, version, f"{name}Request", **fields)
            entity_writer(type(request))(out, request)
            flexible = request.__flexible__
            header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (5).to_bytes(4, "big")
            header += len(client).to_bytes(2, "big") + client.encode() + (b"\0" if flexible else b"")
            started = await ask.router.start(header + out.getvalue(), ask.client)
        body = (await ask.finish(started))[5 if flexible else 4 :]
        entity, size = entity_reader(getattr(module(key, version, EntityType.response), f"{name}Response"))(body, 0)
        assert size == len(body)
        return entity

    return asking


@pytest.fixture
def topic(memory):
    memory.topics.create_now("t", partitions=2)
    return memory.cluster.by_name["t"].topic_id


@pytest.fixture
def beat(ask_kio, topic):
    """Sends a heartbeat to the group g."""

    async def beating(member_id, epoch, owned=None, *, version=1, **fields):
        topics = None
        if owned is not None:
            topics = tuple(
                asked(HEARTBEAT, version, "TopicPartitions", topic_id=topic, partitions=tuple(each))
                for each in [owned]
                if each
            )
        everything = {"rebalance_timeout": UNCHANGED, "subscribed_topic_names": None, **fields}
        return await ask_kio(
            HEARTBEAT,
            version,
            "ConsumerGroupHeartbeat",
            group_id="g",
            member_id=member_id,
            member_epoch=epoch,
            topic_partitions=topics,
            **everything,
        )

    return beating


@pytest.fixture
def join(beat):
    async def joining(member_id="m", **fields):
        return await beat(member_id, 0, (), **{"rebalance_timeout": MINUTE, "subscribed_topic_names": ("t",), **fields})

    return joining


def told(answer):
    """The assignment, by topic id."""
    if answer.assignment is None:
        return None
    return {each.topic_id: tuple(each.partitions) for each in answer.assignment.topic_partitions}


@pytest.mark.parametrize("version", [0, 1])
async def test_member_joins_lives_and_leaves(beat, join, topic, version):
    joined = await join("" if version == 0 else "m", version=version)
    assert (joined.error_code, joined.member_epoch, told(joined)) == (0, 1, {topic: (0, 1)})
    assert joined.heartbeat_interval == datetime.timedelta(seconds=5)
    assert joined.member_id if version == 0 else joined.member_id == "m"
    lives = await beat(joined.member_id, 1, version=version)
    assert (lives.error_code, lives.member_epoch, told(lives)) == (0, 1, None)
    left = await beat(joined.member_id, -1, version=version)
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await beat(joined.member_id, 1, version=version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_groups_heartbeat_interval_is_told_with_the_next_heartbeat(beat, join, memory):
    """The group's own from when it is set until it is deleted; another group's changes nothing."""
    told_ms = [(await join()).heartbeat_interval]
    for group, configs in (("h", {INTERVAL: "7000"}), ("g", {INTERVAL: "6000"}), ("g", {})):
        await memory.cluster.alter_group_configs(group, lambda _, configs=configs: configs)
        told_ms.append((await beat("m", 1)).heartbeat_interval)
    assert told_ms == [datetime.timedelta(milliseconds=each) for each in (5_000, 5_000, 6_000, 5_000)]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout": UNCHANGED}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": r"(a)\1"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"subscribed_topic_regex": "((a{100}){100}){100}"}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"group_id": "g" * 2_000}, ErrorCode.INVALID_GROUP_ID),
    ],
)
async def test_member_that_joins_badly_is_refused(ask_kio, memory, fields, error):
    """With a message; and there is no group."""
    request = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": MINUTE,
        "subscribed_topic_names": ("t",),
        "topic_partitions": (),
    }
    answer = await ask_kio(HEARTBEAT, 1, "ConsumerGroupHeartbeat", **request | fields)
    assert (answer.error_code, bool(answer.error_message)) == (error, True)
    assert memory.groups.known() == set()


@pytest.mark.parametrize(("epoch", "owned"), [(-3, None), (-2, None), (0, (1,)), (0, None)])
async def test_heartbeat_that_makes_no_sense_is_refused(beat, epoch, owned):
    answer = await beat("m", epoch, owned, rebalance_timeout=MINUTE, subscribed_topic_names=("t",))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_pattern_takes_linear_time(join, memory):
    """One that makes a backtracking engine go for hours."""
    memory.topics.create_now("x" * 200)
    answer = await join(subscribed_topic_names=None, subscribed_topic_regex="(x+x+)+y|.*")
    assert answer.error_code == 0
    assert len(told(answer)) == 2


async def test_member_at_another_epoch_is_fenced_and_its_commits_are_stale(ask_kio, beat, join, topic):
    """A commit and a fetch name the member's epoch."""
    await join()
    assert (await beat("m", 7)).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    of_topic = asked(
        COMMIT,
        10,
        "OffsetCommitRequestTopic",
        topic_id=topic,
        partitions=(
            asked(
                COMMIT, 10, "OffsetCommitRequestPartition", partition_index=0, committed_offset=3, committed_metadata=""
            ),
        ),
    )
    group = {"group_id": "g", "generation_id_or_member_epoch": 1, "member_id": "m", "topics": (of_topic,)}
    done = await ask_kio(COMMIT, 10, "OffsetCommit", **group)
    assert (done.topics[0].topic_id, done.topics[0].partitions[0].error_code) == (topic, 0)


@pytest.mark.parametrize("version", [9, 10])
@pytest.mark.parametrize(
    ("member", "epoch", "error"),
    [
        ("m", 1, 0),
        ("m", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("n", 1, ErrorCode.UNKNOWN_MEMBER_ID),
        (None, -1, 0),
    ],
)
async def test_fetch_of_a_member_is_judged_by_its_epoch(ask_kio, join, topic, version, member, epoch, error):
    await join()
    place = {"topic_id": topic} if version >= 10 else {"name": "t"}
    of_topic = asked(FETCH, version, "OffsetFetchRequestTopics", partition_indexes=(0,), **place)
    group = asked(
        FETCH,
        version,
        "OffsetFetchRequestGroup",
        group_id="g",
        member_id=member,
        member_epoch=epoch,
        topics=(of_topic,),
    )
    answer = (await ask_kio(FETCH, version, "OffsetFetch", groups=(group,), require_stable=False)).groups[0]
    assert (answer.error_code, len(answer.topics)) == (error, 0 if error else 1)


async def test_topic_ids_that_are_not_known_are_refused_one_by_one(ask_kio, topic):
    """In a commit and in a fetch; partitions that the topic does not have as before."""
    unknown = uuid.uuid4()
    asked_for = {topic: (0, 9), unknown: (0,)}
    partition = {"committed_offset": 3, "committed_metadata": ""}
    topics = tuple(
        asked(
            COMMIT,
            10,
            "OffsetCommitRequestTopic",
            topic_id=topic_id,
            partitions=tuple(
                asked(COMMIT, 10, "OffsetCommitRequestPartition", partition_index=index, **partition)
                for index in indexes
            ),
        )
        for topic_id, indexes in asked_for.items()
    )
    sender = {"generation_id_or_member_epoch": -1, "member_id": ""}
    done = await ask_kio(COMMIT, 10, "OffsetCommit", group_id="g", topics=topics, **sender)
    assert [(each.topic_id, [line.error_code for line in each.partitions]) for each in done.topics] == [
        (topic, [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]),
        (unknown, [ErrorCode.UNKNOWN_TOPIC_ID]),
    ]
    topics = tuple(
        asked(FETCH, 10, "OffsetFetchRequestTopics", topic_id=topic_id, partition_indexes=indexes)
        for topic_id, indexes in asked_for.items()
    )
    for wanted in (topics, None):
        group = asked(FETCH, 10, "OffsetFetchRequestGroup", group_id="g", topics=wanted)
        read = (await ask_kio(FETCH, 10, "OffsetFetch", groups=(group,), require_stable=False)).groups[0].topics
        found = {(each.topic_id, line.partition_index): line for each in read for line in each.partitions}
        assert (found[topic, 0].committed_offset, found[topic, 0].error_code) == (3, 0)
        if wanted is not None:
            assert (found[topic, 9].committed_offset, found[topic, 9].error_code) == (-1, 0)
            assert found[unknown, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [0, 1])
async def test_group_is_described(ask_kio, join, topic, version):
    """What each member may read, and what it is to read; who is not of the new protocol is not found."""
    await join("m", version=1)
    await join("n", version=1)
    answer = await ask_kio(
        DESCRIBE, version, "ConsumerGroupDescribe", group_ids=("g", "other", "g"), include_authorized_operations=True
    )
    group, other = answer.groups
    assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Reconciling", 2, 2)
    assert group.assignor_name == "uniform"
    first, second = group.members
    assert (first.member_id, first.member_epoch, second.member_epoch) == ("m", 1, 2)
    assert [each.partitions for each in first.assignment.topic_partitions] == [(0, 1)]
    assert [each.topic_name for each in first.target_assignment.topic_partitions] == ["t"]
    assert second.assignment.topic_partitions == ()
    assert version == 0 or first.member_type == 1


async def test_group_is_listed_and_deleted_as_others_are(ask_kio, ask, beat, join):
    """And not described as a classic one."""
    await join()
    listed = await ask_kio(LIST, 4, "ListGroups", states_filter=())
    assert [(each.group_id, each.protocol_type, each.group_state) for each in listed.groups] == [
        ("g", "consumer", "Stable")
    ]
    for version, error in ((5, 0), (6, ErrorCode.GROUP_ID_NOT_FOUND)):
        answer = await ask_kio(
            DESCRIBE_CLASSIC, version, "DescribeGroups", groups=("g",), include_authorized_operations=False
        )
        assert (answer.groups[0].group_state, answer.groups[0].error_code) == ("Dead", error)
    deleted = await ask_kio(DELETE, 2, "DeleteGroups", groups_names=("g",))
    assert deleted.results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    await beat("m", -1)
    deleted = await ask_kio(DELETE, 2, "DeleteGroups", groups_names=("g",))
    assert deleted.results[0].error_code == 0
    listed = await ask_kio(LIST, 4, "ListGroups", states_filter=())
    assert listed.groups == ()


async def test_leaving_a_group_that_is_not_there_is_told_so(beat):
    assert (await beat("m", -1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_full_group_refuses_one_more(join):
    for name in "abc":
        await join(name)
    assert (await join("d")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_other_new_groups_are_not_advertised():
    """Streams' (KIP-1071) and share groups (KIP-932)."""
    from fairlog.kafka.handlers import ALL

    assert {api.key for api in ALL} & {76, 77, 78, 79, 88, 89} == set()
    assert api_68_consumer_group_heartbeat.SERVED == api_69_consumer_group_describe.SERVED
