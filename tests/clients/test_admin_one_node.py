"""The stock clients' admin clients over what clusters of many nodes are asked: log directories, leaders, the quorum.

What several processes answer, tests/kafka/test_several_brokers.py says.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import ElectionType, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from fairlog.cluster.features import FEATURES
from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT
from tests.clients.raw_client import leader_id_of
from tests.clients.reading import WAIT_S
from tests.node.nodes import wait_for_the_copy
from tests.processes import one_process_only

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.admin import KafkaAdminClient
    from kafka.protocol.consumer import OffsetSpec

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MakeTopic = Callable[..., str]


@pytest.fixture
def python(node: NodeProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=node.address)
    yield client
    client.close()


def produce(node: NodeProcess, topic: str, partition: int, *, records: int, size: int) -> None:
    with CONFLUENT.producer(node.address) as producer:
        for _ in range(records):
            producer.send(topic, partition, bytes(size))
        producer.flush()


@one_process_only("it is about a cluster of one broker")
def test_kafka_python_sees_the_log_directory_and_how_it_grows(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """What is written is in the data log and in the journal; the room is the file system's."""
    topic = new_topic(2)

    def sizes() -> tuple[dict[int, int], dict[str, object]]:
        (broker,) = python.describe_log_dirs({topic: [0, 1, 7]})
        (directory,) = broker["log_dirs"]
        ((found),) = directory["topics"]
        assert found["name"] == topic
        return {part["partition_index"]: part["partition_size"] for part in found["partitions"]}, directory

    empty, directory = sizes()
    assert (set(empty), directory["log_dir"]) == ({0, 1}, str(node.data_dir.absolute()))
    usage = shutil.disk_usage(node.data_dir)
    assert directory["total_bytes"] == usage.total
    assert 0 < directory["usable_bytes"] <= usage.total
    produce(node, topic, 0, records=10, size=10_000)
    wait_for_the_copy(node.address, topic)
    filled, _ = sizes()
    assert 2 * 100_000 <= filled[0] - empty[0] < 2 * 110_000
    assert filled[1] == empty[1]


@one_process_only("it is about a cluster of one broker")
def test_kafka_python_moves_a_partition_only_to_where_it_lies(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """To the node's one directory, and to its one broker."""
    topic = new_topic()
    here, there = str(node.data_dir.absolute()), "/elsewhere"
    for path, error in ((here, kafka.errors.NoError), (there, kafka.errors.for_code(57))):
        assert set(python.alter_replica_log_dirs({(topic, 0, 1): path}).values()) == {error}
    partition = kafka.TopicPartition(topic, 0)
    for replicas, error in (([1], None), ([2], kafka.errors.for_code(39)), (None, kafka.errors.for_code(85))):
        told = python.alter_partition_reassignments({partition: replicas})[partition]
        assert told is error or isinstance(told, error or type(None))
    assert python.list_partition_reassignments() == {}


def test_confluent_elects_leaders_where_there_is_no_choice(node: NodeProcess, new_topic: MakeTopic) -> None:
    """Of neither kind is one needed; a partition that does not exist is named."""
    topic = new_topic(2)
    admin = AdminClient({"bootstrap.servers": node.address})
    asked = [TopicPartition(topic, index) for index in (0, 1, 2)]
    for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        told = admin.elect_leaders(kind, asked).result(timeout=WAIT_S)
        codes = {partition.partition: error.code() for partition, error in told.items()}
        assert codes == {
            0: KafkaError.ELECTION_NOT_NEEDED,
            1: KafkaError.ELECTION_NOT_NEEDED,
            2: KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
    assert admin.elect_leaders(ElectionType.PREFERRED).result(timeout=WAIT_S) == {}


@one_process_only("it is about a cluster of one broker")
def test_kafka_python_sees_a_quorum_of_one(python: KafkaAdminClient) -> None:
    """The node leads, and is the only voter."""
    (topic,) = python.describe_metadata_quorum()["topics"]
    (partition,) = topic["partitions"]
    assert (topic["topic_name"], partition["error"], partition["leader_id"]) == ("__cluster_metadata", None, 1)
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [1]
    assert partition["observers"] == []


def test_kafka_python_sees_features_and_is_refused_others(python: KafkaAdminClient) -> None:
    """Those of the table, at their levels; a feature that the node lacks is refused."""
    features = python.describe_features()
    assert {name: told["supported"] for name, told in features.items()} == {
        name: (row.level_min, row.level_max) for name, row in FEATURES.items()
    }
    assert {name: told["finalized"][0] for name, told in features.items() if "finalized" in told} == {
        name: row.level_default for name, row in FEATURES.items() if row.level_default
    }
    with pytest.raises(kafka.errors.for_code(95)):
        python.update_features({"no.version": 1})


def test_kafka_python_lists_the_resources_that_have_configs(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """Topics and the brokers."""
    topic = new_topic()
    found = {kind.lower(): names for kind, names in python.list_config_resources().items()}
    assert topic in found["topic"]
    assert found["broker"] == [str(number) for number in range(1, node.processes + 1)]


def test_kafka_python_describes_topics_page_by_page(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """The cursor of one page is where the next begins."""
    topic = new_topic(5)
    found, cursor = [], None
    for _ in range(3):
        page = python.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        (told,) = page["topics"]
        found += [(part["partition_index"], part["leader_id"]) for part in told["partitions"]]
        cursor = page["next_cursor"]
    assert (found, cursor) == ([(index, leader_id_of(node.address, topic, index)) for index in range(5)], None)


def test_kafka_python_lists_offsets_of_a_log_that_is_all_local(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic
) -> None:
    """The earliest local one is the first; nothing is tiered."""
    topic = new_topic()
    produce(node, topic, 0, records=3, size=10)
    partition = kafka.TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.EARLIEST_LOCAL, 0), (OffsetSpec.LATEST_TIERED, -1), (OffsetSpec.LATEST, 3)):
        assert python.list_partition_offsets({partition: spec})[partition].offset == offset


def test_kafka_python_lists_groups_by_type_and_transactions_by_pattern(
    python: KafkaAdminClient, node: NodeProcess, new_topic: MakeTopic, new_id: Callable[[], str]
) -> None:
    """All groups are classic ones; a pattern is for the whole id."""
    topic, name = new_topic(), new_id()
    python.alter_group_offsets(name, {kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(0, "", None)})
    for types, listed in ((["classic"], True), (["consumer"], False), (None, True)):
        assert (name in {group["group_id"] for group in python.list_groups(types_filter=types)}) == listed
    with CONFLUENT.producer(node.address, name) as producer:
        producer.begin()
        producer.send(topic, 0, b"v")
        producer.commit()

    def listed_by(pattern: str) -> set[str]:
        found = python.list_transactions(transactional_id_pattern=pattern)
        return {each.transactional_id for of_broker in found.values() for each in of_broker}

    assert name in listed_by("txn-[0-9]+")
    assert listed_by(f"{name}x?") == {name}
    assert listed_by(name[:-1]) <= {name[:-1]}
    with pytest.raises(kafka.errors.KafkaError):
        listed_by("(")
