"""The stock clients' admin clients over groups, their offsets, topics and transactions."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition as AioPartition
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicCollection
from confluent_kafka.admin import AdminClient, OffsetSpec

from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT
from tests.clients.raw_client import GROUP, NONE, RawClient, leader_id_of
from tests.clients.raw_member import RawMember
from tests.clients.reading import WAIT_S
from tests.processes import ALSO_ON_THREE

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.admin import KafkaAdminClient
    from kafka.protocol.consumer import OffsetSpec as PythonOffsetSpec

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Partition = confluent_kafka.TopicPartition


@pytest.fixture
def group(new_id: Callable[[], str]) -> str:
    return new_id()


@pytest.fixture
def topic(node: NodeProcess, new_topic: Callable[..., str], group: str) -> str:
    """A topic of two partitions with five records each, of which the group has committed three."""
    name = new_topic(2)
    with CONFLUENT.producer(node.address) as producer:
        for number in range(10):
            producer.send(name, number % 2, b"%d" % number, timestamp_ms=1_000 + number)
        producer.flush()
    with RawClient(node.address) as client:
        for partition in range(2):
            assert client.commit_offset(group, name, partition, 3) == NONE
    return name


@pytest.fixture
def python(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=node.address)
    yield client
    client.close()


def test_confluent_lists_and_alters_a_groups_offsets(node: NodeProcess, group: str, topic: str) -> None:
    """All of them, those asked for, and one that was never committed; altered while nobody is a member."""
    admin = AdminClient({"bootstrap.servers": node.address})

    def offsets(*partitions: Partition) -> dict[int, int]:
        asked = ConsumerGroupTopicPartitions(group, list(partitions) or None)
        found = admin.list_consumer_group_offsets([asked])[group].result(timeout=WAIT_S)
        return {each.partition: each.offset for each in found.topic_partitions}

    assert offsets() == {0: 3, 1: 3}
    assert offsets(Partition(topic, 1)) == {1: 3}

    def altered(*partitions: Partition) -> dict[str, str | None]:
        asked = ConsumerGroupTopicPartitions(group, list(partitions))
        done = admin.alter_consumer_group_offsets([asked])[group].result(timeout=WAIT_S)
        return {each.topic: each.error and each.error.name() for each in done.topic_partitions}

    refused = "UNKNOWN_TOPIC_OR_PART"
    assert altered(Partition(topic, 0, 1), Partition("never-made", 0, 1)) == {topic: None, "never-made": refused}
    assert offsets() == {0: 1, 1: 3}
    with RawMember(node.address) as member:
        member.join(group)
        assert altered(Partition(topic, 0, 2)) == {topic: "UNKNOWN_MEMBER_ID"}
    assert offsets() == {0: 1, 1: 3}


def test_confluent_lists_describes_and_deletes_groups(node: NodeProcess, group: str, topic: str) -> None:
    """By state; one that is not there; deleted with its offsets."""
    admin = AdminClient({"bootstrap.servers": node.address})
    listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(timeout=WAIT_S)
    assert group in {each.group_id for each in listed.valid}
    stable = admin.list_consumer_groups(states={ConsumerGroupState.STABLE}).result(timeout=WAIT_S)
    assert group not in {each.group_id for each in stable.valid}
    assert stable.errors == []
    described = admin.describe_consumer_groups([group])[group].result(timeout=WAIT_S)
    assert (described.state, list(described.members)) == (ConsumerGroupState.EMPTY, [])
    admin.delete_consumer_groups([group])[group].result(timeout=WAIT_S)
    with RawClient(node.address) as client:
        assert client.committed_offset(group, topic, 0) == (NONE, -1)
    described = admin.describe_consumer_groups([group])[group].result(timeout=WAIT_S)
    assert described.state is ConsumerGroupState.DEAD


def test_confluent_describes_topics_and_lists_their_offsets(node: NodeProcess, topic: str) -> None:
    """DescribeTopics by Metadata; ListOffsets by each specification there is."""
    admin = AdminClient({"bootstrap.servers": node.address})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(timeout=WAIT_S)
    leaders = [(partition, leader_id_of(node.address, topic, partition)) for partition in range(2)]
    assert [(each.id, each.leader.id) for each in described.partitions] == leaders
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 5),
        (OffsetSpec.max_timestamp(), 4),
        (OffsetSpec.for_timestamp(1_003), 2),
    ):
        (found,) = admin.list_offsets({Partition(topic, 0): spec}).values()
        assert found.result(timeout=WAIT_S).offset == offset


def test_kafka_python_lists_alters_resets_and_deletes_a_groups_offsets(
    python: KafkaAdminClient, node: NodeProcess, group: str, topic: str
) -> None:
    """OffsetFetch, OffsetCommit by nobody, and OffsetDelete, which a member's subscription forbids."""
    first, second = (kafka.TopicPartition(topic, partition) for partition in range(2))

    def offsets() -> dict[int, int]:
        return {place.partition: found.offset for place, found in python.list_group_offsets(group)[group].items()}

    assert offsets() == {0: 3, 1: 3}
    altered = python.alter_group_offsets(group, {first: kafka.OffsetAndMetadata(1, "", -1)})
    assert altered == {first: kafka.errors.NoError}
    assert offsets() == {0: 1, 1: 3}
    python.reset_group_offsets(group, {first: PythonOffsetSpec.LATEST, second: PythonOffsetSpec.EARLIEST})
    assert offsets() == {0: 5, 1: 0}
    deleted = python.delete_group_offsets(group, [first])
    assert deleted == {first: kafka.errors.NoError}
    assert offsets() == {1: 0}
    consumer = kafka.KafkaConsumer(topic, bootstrap_servers=node.address, group_id=group, enable_auto_commit=False)
    try:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        assert python.delete_group_offsets(group, [second]) == {second: kafka.errors.GroupSubscribedToTopicError}
    finally:
        consumer.close(autocommit=False)
    assert offsets() == {1: 0}
    assert python.delete_groups([group]) == {group: "OK"}
    with pytest.raises(kafka.errors.GroupIdNotFoundError):
        python.delete_group_offsets(group, [second])


def test_kafka_python_lists_groups_by_state_and_sends_members_away(
    python: KafkaAdminClient, node: NodeProcess, group: str, topic: str
) -> None:
    """ListGroups 4 with a filter; LeaveGroup for somebody else."""
    assert group in {each["group_id"] for each in python.list_groups(states_filter=["Empty"])}
    assert group not in {each["group_id"] for each in python.list_groups(states_filter=["Stable"])}
    with RawMember(node.address) as member:
        member.join(group, instance="one")
        member.sync(group, {})
        assert group in {each["group_id"] for each in python.list_groups(states_filter=["Stable"])}
        with RawClient(node.address) as client:
            refused = client.commit_offset(group, topic, 0, 4)
        assert refused != NONE, "only its members commit"
        python.remove_group_members(group, [kafka.admin.MemberToRemove(group_instance_id="one")])
    assert python.describe_groups([group])[group]["group_state"] == "Empty"


def test_kafka_python_lists_and_describes_transactions(
    python: KafkaAdminClient, node: NodeProcess, topic: str, new_id: Callable[[], str]
) -> None:
    """With their state and partitions."""
    transactional_id = new_id()
    with CONFLUENT.producer(node.address, transactional_id) as producer:
        producer.begin()
        producer.send(topic, 1, b"v")
        producer.flush()
        described = python.describe_transactions([transactional_id])[transactional_id]
        assert (described.state.value, described.topic_partitions) == ("Ongoing", {kafka.TopicPartition(topic, 1)})
        listed = [each for rows in python.list_transactions(state_filters=["Ongoing"]).values() for each in rows]
        assert transactional_id in {each.transactional_id for each in listed}
        producer.abort()


def test_aiokafka_sees_groups_and_their_offsets(node: NodeProcess, group: str, topic: str) -> None:
    """ListGroups, DescribeGroups, FindCoordinator and OffsetFetch in its old versions; topics come and go."""
    with RawClient(node.addresses[0]) as raw_client:
        coordinator = raw_client.find_coordinator(GROUP, group).node_id

    async def use() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=node.address)
        await client.start()
        try:
            assert await client.find_coordinator(group) == coordinator
            assert group in {each[0] for each in await client.list_consumer_groups()}
            (answer,) = await client.describe_consumer_groups([group])
            assert [(each[0], each[1], each[2]) for each in answer.groups] == [(0, group, "Empty")]
            found = await client.list_consumer_group_offsets(group)
            assert {each.partition: offset.offset for each, offset in found.items()} == {0: 3, 1: 3}
            found = await client.list_consumer_group_offsets(group, partitions=[AioPartition(topic, 1)])
            assert {each.partition: offset.offset for each, offset in found.items()} == {1: 3}
            made = f"{topic}-made"
            await client.create_topics([NewTopic(made, 2, 1)])
            (described,) = await client.describe_topics([made])
            assert len(described["partitions"]) == 2
            await client.delete_topics([made])
            assert made not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(use())
