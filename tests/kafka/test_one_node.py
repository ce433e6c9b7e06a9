"""What tools ask of clusters of many nodes, answered by one: replicas, leaders, the quorum; and topics page by page."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    DescribeQuorumRequest,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import (
    api_43_elect_leaders,
    api_45_alter_partition_reassignments,
    api_55_describe_quorum,
    api_74_list_config_resources,
    api_75_describe_topic_partitions,
)

ELECT, REASSIGN, REASSIGNMENTS, QUORUM, RESOURCES, TOPIC_PARTITIONS = 43, 45, 46, 55, 74, 75
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


# --- ElectLeaders ----------------------------------------------------------------------------------


def election(topics, kind=0):
    """`topics`: {name: [partition]}, or None for all."""
    asked = ElectLeadersRequest.TopicPartitions
    named = None if topics is None else [asked(topic=name, partitions=indexes) for name, indexes in topics.items()]
    return {"election_type": kind, "topic_partitions": named, "timeout_ms": 1000}


def elected(answer):
    return {
        (topic.topic, line.partition_id): (line.error_code, line.error_message)
        for topic in answer.replica_election_results
        for line in topic.partition_result
    }


@versions(api_43_elect_leaders)
@pytest.mark.parametrize("kind", [0, 1])
async def test_election_is_not_needed_where_there_is_one_replica(ask, memory, version, kind):
    """Of either kind; what does not exist has its error."""
    memory.topics.create_now("t", partitions=2)
    answer = await ask(ELECT, version, **election({"t": [0, 1, 2], "none": [0]}, kind))
    errors = {where: error for where, (error, _) in elected(answer).items()}
    not_needed = ErrorCode.ELECTION_NOT_NEEDED
    assert errors == {("t", 0): not_needed, ("t", 1): not_needed, ("t", 2): UNKNOWN, ("none", 0): UNKNOWN}
    assert all(message for _, message in elected(answer).values())
    assert not answer.error_code


@versions(api_43_elect_leaders)
async def test_election_for_all_partitions_names_topics_alone(ask, memory, version):
    """As Kafka answers where each partition has the leader that is wanted."""
    memory.topics.create_now("a", partitions=2)
    memory.topics.create_now("b")
    answer = await ask(ELECT, version, **election(None))
    assert [(topic.topic, topic.partition_result) for topic in answer.replica_election_results] == [
        ("a", []),
        ("b", []),
    ]


@pytest.mark.parametrize("topics", [{"t": [0]}, None])
async def test_election_of_an_unknown_kind_is_refused(ask, memory, topics):
    """As a whole, and for each partition."""
    memory.topics.create_now("t")
    answer = await ask(ELECT, 2, **election(topics, 2))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert {error for error, _ in elected(answer).values()} <= {ErrorCode.INVALID_REQUEST}


# --- AlterPartitionReassignments and ListPartitionReassignments ------------------------------------


def reassignment(topics):
    """`topics`: {name: {partition: replicas}}."""
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic
    partition = topic.ReassignablePartition
    asked = [
        topic(name=name, partitions=[partition(partition_index=i, replicas=ids) for i, ids in partitions.items()])
        for name, partitions in topics.items()
    ]
    return {"timeout_ms": 1000, "allow_replication_factor_change": False, "topics": asked}


@versions(api_45_alter_partition_reassignments)
@pytest.mark.parametrize(
    ("replicas", "error"),
    [
        ([7], 0),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([8], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([7, 8], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([7, 7], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ],
)
async def test_partition_is_reassigned_only_to_where_it_is(ask, memory, version, replicas, error):
    """There is no other broker; each refusal says why."""
    memory.topics.create_now("t")
    answer = await ask(REASSIGN, version, **reassignment({"t": {0: replicas, 1: [7]}, "none": {0: None}}))
    told = {(topic.name, line.partition_index): line for topic in answer.responses for line in topic.partitions}
    errors = {where: line.error_code for where, line in told.items()}
    assert errors == {("t", 0): error, ("t", 1): UNKNOWN, ("none", 0): UNKNOWN}
    assert {where for where, line in told.items() if line.error_message} == {where for where in told if errors[where]}
    assert (answer.error_code, answer.error_message) == (0, None)
    if version >= 1:
        assert answer.allow_replication_factor_change is False


@pytest.mark.parametrize("named", [True, False])
async def test_reassignments_under_way_are_none(ask, memory, named):
    """Whatever is asked for."""
    memory.topics.create_now("t")
    topic = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    topics = [topic(name="t", partition_indexes=[0])] if named else None
    answer = await ask(REASSIGNMENTS, 0, timeout_ms=1000, topics=topics)
    assert (answer.error_code, answer.topics) == (0, [])


# --- DescribeQuorum --------------------------------------------------------------------------------


def quorum(*partitions):
    topic = DescribeQuorumRequest.TopicData
    return {
        "topics": [
            topic(topic_name=name, partitions=[topic.PartitionData(partition_index=index)])
            for name, index in partitions
        ]
    }


@versions(api_55_describe_quorum)
async def test_quorum_is_this_node_alone(ask, memory, version):
    """It leads, in the epoch of its start, and is the one voter, which has all changes."""
    memory.topics.create_now("t")
    answer = await ask(QUORUM, version, **quorum(("__cluster_metadata", 0)))
    (topic,) = answer.topics
    (told,) = topic.partitions
    assert (answer.error_code, topic.topic_name) == (0, "__cluster_metadata")
    assert (told.error_code, told.leader_id, told.leader_epoch, told.high_watermark) == (0, 7, 3, 1)
    assert [(voter.replica_id, voter.log_end_offset) for voter in told.current_voters] == [(7, 1)]
    assert told.observers == []
    if version >= 1:
        assert told.current_voters[0].last_fetch_timestamp == -1
        assert told.current_voters[0].last_caught_up_timestamp > 1_700_000_000_000
    if version >= 2:
        assert [(node.node_id, node.listeners) for node in answer.nodes] == [(7, [])]


@versions(api_55_describe_quorum)
@pytest.mark.parametrize("partition", [("t", 0), ("__cluster_metadata", 1)])
async def test_quorum_of_another_partition_is_unknown(ask, memory, version, partition):
    """And so is all that the request names, as in Kafka."""
    memory.topics.create_now("t")
    answer = await ask(QUORUM, version, **quorum(("__cluster_metadata", 0), partition))
    told = [line for topic in answer.topics for line in topic.partitions]
    assert [(line.error_code, line.leader_id, line.current_voters) for line in told] == [(UNKNOWN, -1, [])] * 2
    assert not answer.nodes


# --- ListConfigResources ---------------------------------------------------------------------------


@versions(api_74_list_config_resources)
async def test_config_resources_are_topics_and_the_broker(ask, memory, version):
    """All of them if no types are named; version 0 asks for client metrics, and there are none."""
    memory.topics.create_now("b")
    memory.topics.create_now("a")
    answer = await ask(RESOURCES, version, resource_types=[])
    found = [(each.resource_type, each.resource_name) for each in answer.config_resources]
    assert (answer.error_code, found) == (0, [] if version == 0 else [(4, "7"), (2, "a"), (2, "b")])


@pytest.mark.parametrize(("types", "found"), [([2], ["a"]), ([4], ["7"]), ([8, 16, 32], []), ([16, 2], ["a"])], ids=str)
async def test_config_resources_of_some_types(ask, memory, types, found):
    """Those of other types that Kafka has are none here."""
    memory.topics.create_now("a")
    answer = await ask(RESOURCES, 1, resource_types=types)
    assert (answer.error_code, [each.resource_name for each in answer.config_resources]) == (0, found)


@pytest.mark.parametrize("types", [[3], [2, 0], [-1]])
async def test_config_resources_of_an_unknown_type_are_refused(ask, memory, types):
    """As a whole, as in Kafka."""
    memory.topics.create_now("a")
    answer = await ask(RESOURCES, 1, resource_types=types)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


# --- DescribeTopicPartitions -----------------------------------------------------------------------


def page(*names, limit=2000, cursor=None):
    request = DescribeTopicPartitionsRequest
    return {
        "topics": [request.TopicRequest(name=name) for name in names],
        "response_partition_limit": limit,
        "cursor": None if cursor is None else request.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    }


def shown(answer):
    """({(topic, error): partitions}, cursor)."""
    topics = {(line.name, line.error_code): [p.partition_index for p in line.partitions] for line in answer.topics}
    cursor = answer.next_cursor
    return topics, None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture
def topics(memory):
    return [memory.topics.create_now(name, partitions=count) for name, count in (("b", 3), ("a", 2), ("c", 1))]


@versions(api_75_describe_topic_partitions)
async def test_topic_partitions_are_described(ask, topics, version):
    """This node leads each, as its only replica, in sync; nobody else may lead."""
    answer = await ask(TOPIC_PARTITIONS, version, **page("b"))
    (told,) = answer.topics
    assert (told.error_code, told.name, told.topic_id, told.is_internal) == (0, "b", topics[0].topic_id, False)
    assert [(p.error_code, p.partition_index, p.leader_id, p.leader_epoch) for p in told.partitions] == [
        (0, index, 7, 3) for index in range(3)
    ]
    replicas = {(tuple(p.replica_nodes), tuple(p.isr_nodes), tuple(p.offline_replicas)) for p in told.partitions}
    assert replicas == {((7,), (7,), ())}
    assert [(p.eligible_leader_replicas, p.last_known_elr) for p in told.partitions] == [([], [])] * 3
    assert told.topic_authorized_operations == 3576


@pytest.mark.parametrize("limit", [-5, 0, 1, 2, 3, 4, 6, 2000, 2**31 - 1])
@pytest.mark.parametrize("names", [(), ("c", "a", "b", "a")])
async def test_topic_partitions_page_by_page_are_all_once(ask, topics, limit, names):
    """In the order of names and partitions, whatever the size of a page; a page has one partition at least."""
    found, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        parts, cursor = shown(await ask(TOPIC_PARTITIONS, 0, **page(*names, limit=limit, cursor=cursor)))
        pages += 1
        assert 0 < sum(map(len, parts.values())) <= max(1, limit)
        found += [(name, index) for (name, error), indexes in parts.items() for index in indexes if not error]
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert pages == -(-6 // max(1, min(limit, 6)))


async def test_topic_partitions_of_one_answer_are_bounded(ask, memory, monkeypatch):
    """By the node, too, whatever the client says."""
    monkeypatch.setattr(api_75_describe_topic_partitions, "PARTITIONS_MAX", 4)
    memory.topics.create_now("t", partitions=5)
    assert shown(await ask(TOPIC_PARTITIONS, 0, **page(limit=1000))) == ({("t", 0): [0, 1, 2, 3]}, ("t", 4))


async def test_topic_partitions_of_unknown_topics_have_their_error(ask, memory, topics):
    """They count for nothing, and none is made; after the last partition that has room they wait for the next page."""
    asked = ("a", "aa", "no spaces please", "d")
    parts, cursor = shown(await ask(TOPIC_PARTITIONS, 0, **page(*asked)))
    invalid = ("no spaces please", ErrorCode.INVALID_TOPIC_EXCEPTION)
    assert (parts, cursor) == ({("a", 0): [0, 1], ("aa", UNKNOWN): [], ("d", UNKNOWN): [], invalid: []}, None)
    parts, cursor = shown(await ask(TOPIC_PARTITIONS, 0, **page(*asked, limit=2)))
    assert (parts, cursor) == ({("a", 0): [0, 1]}, ("aa", 0))
    assert sorted(memory.cluster.by_name) == ["a", "b", "c"]


async def test_topic_partitions_go_on_after_a_topic_that_was_deleted(ask, memory, topics):
    """Of all topics: the cursor's is gone, and nobody stumbles over it."""
    await memory.topics.delete(topics[0].topic_id)
    assert shown(await ask(TOPIC_PARTITIONS, 0, **page(cursor=("b", 2)))) == ({("c", 0): [0]}, None)
    asked = page("b", "c", cursor=("b", 2))
    assert shown(await ask(TOPIC_PARTITIONS, 0, **asked)) == ({("b", UNKNOWN): [], ("c", 0): [0]}, None)


@pytest.mark.parametrize("cursor", [("a", -1), ("b", 0)])
async def test_topic_partitions_from_a_cursor_that_makes_no_sense_are_refused(ask, topics, cursor):
    """Before the first partition, or in a topic that is not asked for."""
    parts, following = shown(await ask(TOPIC_PARTITIONS, 0, **page("a", "c", cursor=cursor)))
    bad = ErrorCode.INVALID_REQUEST
    assert (parts, following) == ({("a", bad): [], ("c", bad): []}, None)


async def test_topic_partitions_from_behind_a_topics_end_go_on_with_the_next(ask, topics):
    """A topic cannot have become shorter, but may have been made anew."""
    assert shown(await ask(TOPIC_PARTITIONS, 0, **page(cursor=("b", 9)))) == ({("b", 0): [], ("c", 0): [0]}, None)
