"""Compacted topics of a cluster: no journal says what an owner has compacted, so each copy is compacted by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from peers.kafka_cluster import KafkaCluster

from tests.on_kafka.brokers import three_nodes
from tests.on_kafka.test_cluster import WAIT_S, make_topic, wait_until
from tests.on_kafka.test_directories import has_topic, values_in

pytestmark = pytest.mark.slow

EAGER = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
RECORDS = 30


def test_each_copy_of_a_compacted_topic_is_compacted(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Else those that never own the shard would grow until their disks are full."""
    with three_nodes(kafka, tmp_path, more={"FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": "200"}) as cluster:
        topic = f"by-key-{cluster.name}"
        make_topic(cluster.bootstrap, topic, 1, EAGER)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
        for number in range(RECORDS):
            producer.produce(topic, key=b"key", value=b"%d" % number, partition=0)
            assert producer.flush(WAIT_S) == 0
        for node in cluster.nodes:
            wait_until(lambda node=node: has_topic(cluster.data(node), topic))
            wait_until(lambda node=node: values_in(cluster.data(node), topic) == {0: [str(RECORDS - 1)]})
