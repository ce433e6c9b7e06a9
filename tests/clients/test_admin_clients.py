"""The stock clients' admin clients over each admin API that is served, with what they are refused.

What is promised stands in tests/kafka, API by API; here three clients, each with a mind of its own about versions,
defaults and errors, find that it is so.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import chain
from typing import Any, TypeVar

import aiokafka.errors
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.admin.new_partitions import NewPartitions as AioNewPartitions
from aiokafka.admin.records_to_delete import RecordsToDelete
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT, ClientError, ClientKind
from tests.clients.modes import BOTH_MODES, MODE_CONFIG, Mode
from tests.clients.raw_client import OFFSET_OUT_OF_RANGE, RawClient
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds
from tests.processes import ALSO_ON_THREE, one_process_only

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.admin import KafkaAdminClient
    from kafka.admin._configs import AlterConfigOp
    from kafka.admin._configs import ConfigResource as PythonConfigResource
    from kafka.admin._transactions import AbortTransactionSpec

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ALSO_ON_THREE,
]

Result = TypeVar("Result")
MakeTopic = Callable[..., str]


def fill(address: str, topic: str, *, partitions: int = 1, records: int = 5) -> None:
    with CONFLUENT.producer(address) as producer:
        for partition in range(partitions):
            for number in range(records):
                producer.send(topic, partition, b"%d" % number)
                producer.flush()


def start_and_end(address: str, topic: str, partition: int) -> tuple[int, int]:
    with RawClient(address) as client:
        return client.list_offset(topic, partition, -2)[1], client.list_offset(topic, partition, -1)[1]


# --- confluent-kafka -------------------------------------------------------------------------------


@pytest.fixture
def confluent(node: NodeProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.address})


def broker_ids(node: NodeProcess) -> list[int]:
    """As clients have them: each process is a broker."""
    return list(range(1, node.processes + 1))


def done(futures: dict[Any, Future[Result]]) -> Result:
    """The result of the only one. Raises what it raises."""
    (future,) = futures.values()
    return future.result(timeout=WAIT_S)


def changed(topic: str, *entries: ConfigEntry) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))


def entry(name: str, operation: AlterConfigOpType, value: str | None = None) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


FIXED = {MODE_CONFIG: Mode.JOURNAL.value}
"""What every topic has of its own, from its making on."""
SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


def test_confluent_sees_and_changes_a_topics_configs(confluent: AdminClient, new_topic: MakeTopic) -> None:
    """Values with source and synonyms, as IncrementalAlterConfigs and AlterConfigs leave them."""
    topic = new_topic(**{"flush.ms": "7"})
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def own() -> dict[str, str]:
        configs = done(confluent.describe_configs([resource]))
        topics_own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        return {name: config.value for name, config in configs.items() if config.source == topics_own}

    configs = done(confluent.describe_configs([resource]))
    assert configs["retention.ms"].value == "604800000"
    assert configs["retention.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    assert configs["retention.ms"].is_default
    assert list(configs["retention.ms"].synonyms) == ["log.retention.ms"]
    assert not configs["retention.ms"].is_read_only
    assert own() == FIXED | {"flush.ms": "7"}
    changes = [entry("retention.ms", SET, "9"), entry("flush.ms", DELETE), entry("cleanup.policy", APPEND, "compact")]
    done(confluent.incremental_alter_configs([changed(topic, *changes)]))
    assert own() == FIXED | {"retention.ms": "9", "cleanup.policy": "delete,compact"}
    done(confluent.incremental_alter_configs([changed(topic, entry("cleanup.policy", SUBTRACT, "delete"))]))
    assert own() == FIXED | {"retention.ms": "9", "cleanup.policy": "compact"}
    validated = changed(topic, entry("retention.ms", SET, "10"))
    done(confluent.incremental_alter_configs([validated], validate_only=True))
    assert own() == FIXED | {"retention.ms": "9", "cleanup.policy": "compact"}
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        done(confluent.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config={"flush.ms": "8"})]))
    assert own() == FIXED | {"flush.ms": "8"}


def test_confluent_is_refused_configs_by_name(confluent: AdminClient, new_topic: MakeTopic) -> None:
    """An unknown config, a bad value, an unknown topic, a broker's config."""
    topic = new_topic()
    for resource, words in (
        (changed(topic, entry("retention.msec", SET, "9")), "unknown topic config retention.msec"),
        (changed(topic, entry("retention.ms", SET, "soon")), "retention.ms=soon is not a value"),
        (changed("never-made", entry("retention.ms", SET, "9")), "there is no topic never-made"),
        (
            ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry("num.partitions", SET, "3")]),
            "num.partitions of a broker is read-only: set topics.partitions_default",
        ),
    ):
        with pytest.raises(KafkaException, match=words):
            done(confluent.incremental_alter_configs([resource]))
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        done(confluent.describe_configs([ConfigResource(ResourceType.TOPIC, "never-made")]))


def test_confluent_sees_the_cluster_and_its_brokers(confluent: AdminClient, node: NodeProcess) -> None:
    """DescribeCluster, and the settings of each broker under Kafka's names."""
    cluster = confluent.describe_cluster().result(timeout=WAIT_S)
    assert len(cluster.cluster_id) == 22
    assert (sorted(each.id for each in cluster.nodes), cluster.controller.id) == (broker_ids(node), 1)
    for broker_id in broker_ids(node):
        configs = done(confluent.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))]))
        assert (configs["num.partitions"].value, configs["num.partitions"].is_read_only) == ("1", True)
        cleanup = configs["transaction.abort.timed.out.transaction.cleanup.interval.ms"]
        assert (cleanup.value, cleanup.source) == ("100", ConfigSource.STATIC_BROKER_CONFIG.value)


def test_confluent_adds_partitions(confluent: AdminClient, node: NodeProcess, new_topic: MakeTopic) -> None:
    """They can be written to at once; fewer, as many, and an unknown topic are refused."""
    topic = new_topic()
    done(confluent.create_partitions([NewPartitions(topic, 3)], validate_only=True))
    assert list(confluent.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == [0]
    done(confluent.create_partitions([NewPartitions(topic, 3)]))
    assert sorted(confluent.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == [0, 1, 2]
    fill(node.address, topic, partitions=3, records=1)
    assert_topic_holds(node.address, topic, {partition: [b"0"] for partition in range(3)})
    for name, total, words in (
        (topic, 2, "has 3 partitions already"),
        (topic, 3, "has 3 partitions already"),
        ("never-made", 2, "there is no topic never-made"),
    ):
        with pytest.raises(KafkaException, match=words):
            done(confluent.create_partitions([NewPartitions(name, total)]))


def test_confluent_deletes_records(confluent: AdminClient, node: NodeProcess, new_topic: MakeTopic) -> None:
    """Earliest follows, offsets stay, and who reads below is told so; what is not there is refused."""
    topic = new_topic(2)
    fill(node.address, topic, partitions=2)
    partition = confluent_kafka.TopicPartition
    futures = confluent.delete_records([partition(topic, 0, 3), partition(topic, 1, confluent_kafka.OFFSET_END)])
    assert sorted(future.result(timeout=WAIT_S).low_watermark for future in futures.values()) == [3, 5]
    assert (start_and_end(node.address, topic, 0), start_and_end(node.address, topic, 1)) == ((3, 5), (5, 5))
    earliest = done(confluent.list_offsets({partition(topic, 0): OffsetSpec.earliest()}))
    assert earliest.offset == 3
    with RawClient(node.address) as client:
        assert client.fetch(topic, 0, 2).error_code == OFFSET_OUT_OF_RANGE
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": node.address, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    consumer.assign([partition(topic, 0, 0)])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert (message.offset(), message.value()) == (3, b"3")
    consumer.close()
    for name, offset, words in (
        (topic, 9, "OFFSET_OUT_OF_RANGE"),
        ("never-made", 1, "No leaders found"),  # the client looks into Metadata first
    ):
        with pytest.raises(KafkaException, match=words):
            done(confluent.delete_records([partition(name, 0, offset)]))


def test_confluent_sets_and_sees_a_groups_offsets(
    confluent: AdminClient, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """Of a group without members; of one that nobody knows there are none."""
    topic, group = new_topic(2), new_id()
    places = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 4)]
    done(confluent.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, places)]))
    for name, offsets in ((group, {0: 3, 1: 4}), (f"{group}-unknown", {})):
        answer = done(confluent.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]))
        assert {each.partition: each.offset for each in answer.topic_partitions or ()} == offsets


@BOTH_MODES
def test_records_get_the_nodes_time_if_their_topic_says_so(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """LogAppendTime, plain and in a transaction, for whatever time the producer names; searches by time find it."""
    topic = new_topic(**{"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    for transactional_id in (None, new_id()):
        with client.producer(node.address, transactional_id) as producer:
            if transactional_id is not None:
                producer.begin()
            producer.send(topic, 0, b"v", timestamp_ms=1_000)
            producer.flush()
            if transactional_id is not None:
                producer.commit()
    with Reader(node.address, topic, 1) as reader:
        times = [seen.timestamp_ms for seen in reader.wait_for(2)]
    assert all(before_ms <= each <= time.time_ns() // 1_000_000 for each in times)
    with RawClient(node.address) as raw_client:
        assert raw_client.list_offset(topic, 0, before_ms)[1] == 0


def test_config_of_a_broker_changed_at_run_time_holds_at_once_and_over_a_restart(
    fresh_node: Callable[..., NodeProcess],
) -> None:
    """The largest batch that the leader takes, set for its broker; what is read-only is refused by name."""
    node = fresh_node()
    admin = AdminClient({"bootstrap.servers": node.address})
    done(admin.create_topics([NewTopic("t", 1)]))
    leader = str(admin.list_topics("t", timeout=WAIT_S).topics["t"].partitions[0].leader)

    def of_broker(*entries: ConfigEntry) -> ConfigResource:
        return ConfigResource(ResourceType.BROKER, leader, incremental_configs=list(entries))

    def shown() -> tuple[str, int]:
        configs = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, leader)]))
        return configs["message.max.bytes"].value, configs["message.max.bytes"].source

    def send(size: int) -> None:
        with CONFLUENT.producer(node.address) as producer:
            producer.send("t", 0, bytes(size))
            producer.flush()

    done(admin.incremental_alter_configs([of_broker(entry("message.max.bytes", SET, "2000"))]))
    for _ in range(2):
        assert shown() == ("2000", ConfigSource.DYNAMIC_BROKER_CONFIG.value)
        send(1_000)
        with pytest.raises(ClientError, match=r"MSG_SIZE_TOO_LARGE|too large"):
            send(3_000)
        node.stop()
        node.start()
        admin = AdminClient({"bootstrap.servers": node.address})
    with pytest.raises(KafkaException, match=r"num\.partitions of a broker is read-only"):
        done(admin.incremental_alter_configs([of_broker(entry("num.partitions", SET, "5"))]))
    done(admin.incremental_alter_configs([of_broker(entry("message.max.bytes", DELETE))]))
    assert shown() == ("1048588", ConfigSource.DEFAULT_CONFIG.value)
    send(3_000)


def test_confluent_is_told_that_there_is_no_authorizer(confluent: AdminClient) -> None:
    """As by a broker of Kafka that has none. Of a description librdkafka drops the error, and shows no ACLs."""
    anything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert confluent.describe_acls(anything).result(timeout=WAIT_S) == []
    allowed = AclOperation.READ, AclPermissionType.ALLOW
    binding = AclBinding(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", *allowed)
    with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
        confluent.create_acls([binding])[binding].result(timeout=WAIT_S)
    with pytest.raises(KafkaException, match="SECURITY_DISABLED"):
        confluent.delete_acls([anything])[anything].result(timeout=WAIT_S)


# --- kafka-python ----------------------------------------------------------------------------------


@pytest.fixture
def python(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=node.address)
    yield client
    client.close()


def own_configs(python: KafkaAdminClient, topic: str) -> dict[str, str]:
    shown = python.describe_configs([PythonConfigResource("TOPIC", topic)])["topic"][topic]
    return {name: config["value"] for name, config in shown.items()}


@pytest.mark.parametrize("incremental", [True, False])
def test_kafka_python_sees_and_changes_a_topics_configs(
    python: KafkaAdminClient, new_topic: MakeTopic, incremental: bool
) -> None:
    """Its older way reads all configs, and writes them all back."""
    topic = new_topic(**{"flush.ms": "7"})
    resource = PythonConfigResource("TOPIC", topic, {"retention.ms": "9"})
    assert own_configs(python, topic) == FIXED | {"flush.ms": "7"}
    result = python.alter_configs([resource], incremental=incremental)
    assert result == {"topic": {topic: "OK"}}
    assert own_configs(python, topic) == FIXED | {"flush.ms": "7", "retention.ms": "9"}
    reset = PythonConfigResource("TOPIC", topic, {"flush.ms": None})
    assert python.reset_configs([reset], incremental=incremental) == {"topic": {topic: "OK"}}
    assert own_configs(python, topic) == FIXED | {"retention.ms": "9"}
    shown = python.describe_configs(
        [PythonConfigResource("TOPIC", topic, {"retention.ms": None})], include_synonyms=True, config_filter="all"
    )["topic"][topic]
    assert list(shown) == ["retention.ms"]
    assert [synonym["name"] for synonym in shown["retention.ms"]["synonyms"]] == ["retention.ms", "log.retention.ms"]
    assert shown["retention.ms"]["config_type"] == "LONG"


def test_kafka_python_is_refused_configs_by_name(python: KafkaAdminClient, new_topic: MakeTopic) -> None:
    """By its own look at DescribeConfigs, and by the node."""
    topic = new_topic()
    unknown = PythonConfigResource("TOPIC", topic, {"retention.msec": "9"})
    with pytest.raises(ValueError, match=r"Unrecognized configs: \{'retention.msec'\}"):
        python.alter_configs([unknown])
    bad = PythonConfigResource("TOPIC", topic, {"flush.ms": "1", "retention.ms": (AlterConfigOp.APPEND, "9")})
    for resource, words in ((unknown, "unknown topic config retention.msec"), (bad, "retention.ms is not a list")):
        result = python.alter_configs([resource], raise_on_unknown=False)
        assert words in result["topic"][topic]
    assert own_configs(python, topic) == FIXED
    broker = PythonConfigResource("BROKER", "1", {"num.partitions": "3"})
    result = python.alter_configs([broker], raise_on_unknown=False)
    assert "num.partitions of a broker is read-only" in result["broker"]["1"]


def test_kafka_python_sees_the_cluster_and_its_brokers(python: KafkaAdminClient, node: NodeProcess) -> None:
    """DescribeCluster, and a broker's settings."""
    cluster = python.describe_cluster()
    assert sorted(each["broker_id"] for each in cluster["brokers"]) == broker_ids(node)
    assert cluster["controller_id"] == 1
    broker = python.describe_configs([PythonConfigResource("BROKER", "1")], config_filter="all")["broker"]["1"]
    assert broker["auto.create.topics.enable"]["value"] == "true"


def test_kafka_python_adds_partitions_and_deletes_records(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """As many as are asked for; then all but the last records of one."""
    topic = new_topic()
    python.create_partitions({topic: 2})
    fill(node.address, topic, partitions=2)
    partition = kafka.TopicPartition
    deleted = python.delete_records({partition(topic, 0): 4, partition(topic, 1): -1})
    assert {each.partition: line["low_watermark"] for each, line in deleted.items()} == {0: 4, 1: 5}
    assert start_and_end(node.address, topic, 0) == (4, 5)
    with pytest.raises(kafka.errors.InvalidPartitionsError):
        python.create_partitions({topic: 1})
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        python.create_partitions({"never-made": 3})
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        python.delete_records({partition(topic, 0): 6})


def test_kafka_python_sets_sees_and_deletes_a_groups_offsets(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """One partition after the other, and beyond the end never: it asks for that first."""
    topic, group = new_topic(2), new_id()
    fill(node.address, topic, partitions=2)
    places = [kafka.TopicPartition(topic, index) for index in range(2)]
    python.alter_group_offsets(group, {place: kafka.OffsetAndMetadata(3, "note", -1) for place in places})
    python.reset_group_offsets(group, {places[1]: 100})

    def offsets() -> dict[int, tuple[int, str]]:
        return {
            place.partition: (found.offset, found.metadata)
            for place, found in python.list_group_offsets({group: None})[group].items()
        }

    assert offsets() == {0: (3, "note"), 1: (5, "note")}
    deleted = python.delete_group_offsets(group, [places[0]])
    assert "NoError" in str(deleted[places[0]])
    assert offsets() == {1: (5, "note")}


@BOTH_MODES
def test_kafka_python_sees_transactions_and_where_they_stand(
    python: KafkaAdminClient, node: NodeProcess, mode: Mode, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """While one is open; and no longer among the open ones when it has ended."""
    topic, transactional_id = new_topic(), new_id()

    def open_ids() -> list[str]:
        listed = python.list_transactions(state_filters=["Ongoing"])
        return [each.transactional_id for each in chain.from_iterable(listed.values())]

    with CONFLUENT.producer(node.address, transactional_id) as producer:
        producer.begin()
        producer.send(topic, 0, b"v")
        producer.flush()
        assert transactional_id in open_ids()
        described = python.describe_transactions([transactional_id])[transactional_id]
        assert set(described.topic_partitions) == {kafka.TopicPartition(topic, 0)}
        producer.commit()
        assert transactional_id not in open_ids()


def test_kafka_python_finds_what_hangs_and_cannot_end_it_in_one_partition(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """Its tools for hanging transactions: the coordinator knows every one, and a marker ends none of them."""
    topic, transactional_id = new_topic(2), new_id()
    with CONFLUENT.producer(node.address, transactional_id) as producer:
        producer.begin()
        producer.send(topic, 0, b"v")
        producer.flush()
        found = python.find_hanging_transactions(max_transaction_timeout_ms=-5 * 60 * 1000)
        (hanging,) = (each for each in found if each["transactional_id"] == transactional_id)
        assert [(each.topic, each.partition) for each in hanging["topic_partitions"]] == [(topic, 0)]
        described = python.describe_producers([kafka.TopicPartition(topic, 0)])
        (producers,) = described.values()
        assert [each.producer_id for each in producers.active_producers] == [hanging["producer_id"]]

        def abort(partition: int) -> None:
            python.abort_transaction(
                AbortTransactionSpec(
                    kafka.TopicPartition(topic, partition), hanging["producer_id"], hanging["producer_epoch"]
                )
            )

        with pytest.raises(kafka.errors.InvalidTxnStateError):
            abort(0)
        abort(1)
        producer.commit()
    assert_topic_holds(node.address, topic, {0: [b"v"], 1: []})


def test_kafka_python_sees_that_there_are_no_users(python: KafkaAdminClient) -> None:
    """Users, and who may see them, are in tests/security."""
    assert not python.describe_user_scram_credentials()


# --- aiokafka --------------------------------------------------------------------------------------


def run(node: NodeProcess, use: Callable[[AIOKafkaAdminClient], Coroutine[Any, Any, Result]]) -> Result:
    async def connected() -> Result:
        client = AIOKafkaAdminClient(bootstrap_servers=node.address)
        await client.start()
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(connected())


def test_aiokafka_sees_and_changes_a_topics_configs(node: NodeProcess, new_topic: MakeTopic) -> None:
    """AlterConfigs says all configs anew; a bad one is refused by name."""
    topic = new_topic(**{"flush.ms": "7"})
    of_topic = AioConfigResourceType.TOPIC

    async def use(client: AIOKafkaAdminClient) -> None:
        async def alter(configs: dict[str, str]) -> tuple[int, str | None]:
            (answer, *_) = await client.alter_configs([AioConfigResource(of_topic, topic, configs)])
            ((code, message, *_),) = answer.resources
            return code, message

        assert await alter({"retention.ms": "9"}) == (0, None)
        assert await alter({"retention.msec": "9"}) == (40, "unknown topic config retention.msec")
        broker = AioConfigResource(AioConfigResourceType.BROKER, "1")
        answers = await client.describe_configs([AioConfigResource(of_topic, topic), broker])
        shown = {
            name: {config[0]: config[1] for config in configs}
            for answer in answers
            for _, _, _, name, configs, *_ in answer.resources
        }
        assert (shown[topic]["retention.ms"], shown[topic]["flush.ms"]) == ("9", str(2**63 - 1))
        assert shown["1"]["num.partitions"] == "1"

    run(node, use)


def test_aiokafka_adds_partitions_and_deletes_records(node: NodeProcess, new_topic: MakeTopic) -> None:
    """And is refused as its errors say."""
    topic = new_topic()
    partition = aiokafka.TopicPartition

    async def use(client: AIOKafkaAdminClient) -> None:
        await client.create_partitions({topic: AioNewPartitions(2)})
        await asyncio.to_thread(fill, node.address, topic, partitions=2)
        deleted = await client.delete_records({partition(topic, 0): RecordsToDelete(2)})
        assert deleted == {partition(topic, 0): 2}
        with pytest.raises(aiokafka.errors.InvalidPartitionsError, match="has 2 partitions already"):
            await client.create_partitions({topic: AioNewPartitions(2)})
        with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
            await client.delete_records({partition(topic, 0): RecordsToDelete(6)})
        cluster = await client.describe_cluster()
        assert sorted(each["node_id"] for each in cluster["brokers"]) == broker_ids(node)

    run(node, use)
    assert start_and_end(node.address, topic, 0) == (2, 5)


# --- over restarts, with any client ----------------------------------------------------------------


def test_changes_of_a_topic_survive_a_kill(fresh_node: Callable[..., NodeProcess]) -> None:
    """Configs, partitions and the log start, each durable when it was answered."""
    node = fresh_node()
    admin = AdminClient({"bootstrap.servers": node.address})
    done(admin.create_topics([NewTopic("t", 1, 1)]))
    fill(node.address, "t")
    done(admin.incremental_alter_configs([changed("t", entry("retention.ms", SET, "9"))]))
    done(admin.create_partitions([NewPartitions("t", 2)]))
    done(admin.delete_records([confluent_kafka.TopicPartition("t", 0, 3)]))
    node.kill()
    node.start()
    admin = AdminClient({"bootstrap.servers": node.address})
    configs = done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, "t")]))
    assert configs["retention.ms"].value == "9"
    assert start_and_end(node.address, "t", 0) == (3, 5)
    assert start_and_end(node.address, "t", 1) == (0, 0)
    fill(node.address, "t", partitions=2, records=1)
    assert start_and_end(node.address, "t", 0) == (3, 6)


def test_configs_of_a_group_survive_a_kill(fresh_node: Callable[..., NodeProcess]) -> None:
    """What was set is shown and listed; what is out of bounds, or no such config, is refused by name."""
    node = fresh_node()
    name = "consumer.session.timeout.ms"

    def group(value: Any) -> PythonConfigResource:
        return PythonConfigResource("GROUP", "billing", {name: value})

    with closing(KafkaAdminClient(bootstrap_servers=node.address)) as admin:
        assert admin.alter_configs([group("50000")]) == {"group": {"billing": "OK"}}
        refused = admin.alter_configs([group("60001")])
        assert "from 45000 to 60000 is needed" in refused["group"]["billing"]
        unknown = PythonConfigResource("GROUP", "billing", {"share.session.timeout.ms": "50000"})
        refused = admin.alter_configs([unknown], raise_on_unknown=False)
        assert "unknown group config share.session.timeout.ms" in refused["group"]["billing"]
    node.kill()
    node.start()
    with closing(KafkaAdminClient(bootstrap_servers=node.address)) as admin:
        shown = admin.describe_configs([group(None)], config_filter="all")["group"]["billing"]
        assert (shown[name]["value"], shown[name]["config_source"]) == ("50000", "DYNAMIC_GROUP_CONFIG")
        assert admin.list_config_resources(["GROUP"]) == {"group": ["billing"]}
        admin.alter_configs([group((AlterConfigOp.DELETE, None))])
        assert admin.list_config_resources(["GROUP"]) == {}


def test_consumer_asks_how_far_the_last_leader_epoch_reached(fresh_node: Callable[..., NodeProcess]) -> None:
    """librdkafka validates its position after a restart (a new leader epoch), and reads on where it was."""
    node = fresh_node(FAIRLOG_LOG_LEVEL="debug")
    admin = AdminClient({"bootstrap.servers": node.address})
    done(admin.create_topics([NewTopic("t", 1, 1)]))
    fill(node.address, "t", records=3)
    with Reader(node.address, "t", 1) as reader:
        reader.wait_for(3)
        node.stop()
        node.start()
        fill(node.address, "t", records=2)
        assert [seen.offset for seen in reader.wait_for(5)] == [0, 1, 2, 3, 4]
    assert "OffsetForLeaderEpoch" in node.log_path.read_text(encoding="utf-8")


@one_process_only("an abort marker ends only what the leader's own broker coordinates")
def test_kafka_python_ends_what_hangs_in_one_partition_of_marker_mode(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """Its tools for hanging transactions, as with Kafka: found by its start offset, and aborted where readers wait."""
    topic, transactional_id = new_topic(mode=Mode.MARKERS), new_id()
    partition = kafka.TopicPartition(topic, 0)
    with CONFLUENT.producer(node.address, transactional_id) as hung, CONFLUENT.producer(node.address) as plain:
        hung.begin()
        hung.send(topic, 0, b"hung")
        hung.flush()
        plain.send(topic, 0, b"behind")
        plain.flush()
        (described,) = python.describe_producers([partition]).values()
        (producer,) = (each for each in described.active_producers if each.current_transaction_start_offset == 0)
        python.abort_transaction(AbortTransactionSpec(partition, producer.producer_id, producer.producer_epoch))
        assert_topic_holds(node.address, topic, {0: [b"behind"]}, mode=Mode.MARKERS, aborted={0: [b"hung"]})
        with pytest.raises(ClientError):
            hung.commit()


def test_producer_writes_to_partitions_that_were_added(
    node: NodeProcess,
    confluent: AdminClient,
    client: ClientKind,
    new_topic: MakeTopic,
    new_id: Callable[[], str],
) -> None:
    """Plain, and old and new ones in one transaction."""
    topic = new_topic()
    fill(node.address, topic, records=1)
    done(confluent.create_partitions([NewPartitions(topic, 2)]))
    with client.producer(node.address) as producer:
        producer.send(topic, 1, b"plain")
        producer.flush()
    with client.producer(node.address, new_id()) as producer:
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"committed")
        producer.commit()
    assert_topic_holds(node.address, topic, {0: [b"0", b"committed"], 1: [b"plain", b"committed"]})
