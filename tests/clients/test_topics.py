"""Topics: made, described, made by use, deleted, and made again under the same name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT, ClientKind
from tests.clients.reading import WAIT_S, assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ALSO_ON_THREE,
]


def test_topic_created_is_listed_with_its_partitions(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """Metadata names the partitions, each led by the one node."""
    topic = new_topic(7)
    metadata = AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=WAIT_S)
    assert sorted(metadata.topics[topic].partitions) == list(range(7))
    assert {each.leader for each in metadata.topics[topic].partitions.values()} == set(metadata.brokers)


def test_topic_created_twice_is_refused(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """TOPIC_ALREADY_EXISTS."""
    topic = new_topic()
    admin = AdminClient({"bootstrap.servers": node.address})
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(timeout=WAIT_S)


def test_topic_asked_for_with_three_replicas_is_made_on_one_node(node: NodeProcess) -> None:
    """What test suites ask for everywhere is clamped (topics.replication_factor_policy)."""
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("replicated", 1, 3)])["replicated"].result(timeout=WAIT_S)


def test_topic_produced_to_is_made_by_that(node: NodeProcess, client: ClientKind, new_id: Callable[[], str]) -> None:
    """Auto-creation, asked for by each client in its own way, for plain records and in a transaction."""
    for number, transactional_id in enumerate((None, new_id())):
        topic = f"auto-{client.name}-{number}"
        with client.producer(node.address, transactional_id) as producer:
            if transactional_id is not None:
                producer.begin()
            producer.send(topic, 0, b"first")
            producer.flush()
            if transactional_id is not None:
                producer.commit()
        assert_topic_holds(node.address, topic, {0: [b"first"]})


def test_topic_deleted_and_made_again_is_empty(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """The same name is another topic: offsets begin at 0 and nothing of the old one is seen."""
    topic = new_topic(2)
    admin = AdminClient({"bootstrap.servers": node.address})
    for value in (b"old", b"new"):
        with CONFLUENT.producer(node.address) as producer:
            for partition in range(2):
                producer.send(topic, partition, value)
            producer.flush()
        assert_topic_holds(node.address, topic, {0: [value], 1: [value]})
        admin.delete_topics([topic])[topic].result(timeout=WAIT_S)
        assert topic not in admin.list_topics(timeout=WAIT_S).topics
        if value == b"old":
            admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(timeout=WAIT_S)


def test_topic_unknown_cannot_be_deleted(node: NodeProcess) -> None:
    """UNKNOWN_TOPIC_OR_PART."""
    admin = AdminClient({"bootstrap.servers": node.address})
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.delete_topics(["never-made"])["never-made"].result(timeout=WAIT_S)
