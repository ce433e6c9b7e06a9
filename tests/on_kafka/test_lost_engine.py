"""What nodes cannot survive, they refuse, with the name of the thing: a stream that is gone, trimmed, damaged or kept
too weakly, and a directory of another cluster. What was answered is still in the data logs; no start serves without it.

Each is done to a cluster of one node and one shard, to all of them at once, since it takes up to a minute until a node
looks at the settings of its topics.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_cluster import KafkaCluster

from datalog.plain_reader import DataLogReader
from shard.directory import FIRST_SHARD, shard_directory
from tests.clients.raw_client import NONE, NOT_ENOUGH_REPLICAS, RawClient, batch
from tests.on_kafka.test_cluster import WAIT_S, make_topic, values, wait_until
from tests.stream.kafka_admin import delete_topic, set_config

pytestmark = pytest.mark.slow

TOPIC = "orders"
ANSWERED = [b"%d" % number for number in range(20)]
SETTINGS = {"FAIRLOG_CLUSTER_FAILOVER_MS": "1000", "FAIRLOG_CLUSTER_REPLICAS": "1"}
NODE = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """What is done to a cluster, and what its node says of it."""

    does: Callable[[KafkaCluster, FairlogCluster], None]
    says: str
    """A pattern; NAME is the cluster's."""
    grace_ms: int = 10_000
    """How long the node has for its end. With 0 it hands nothing over, and says why it ends all the same."""


def delete_shard(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    delete(kafka, f"{cluster.name}.shard-0")


def delete_metadata(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    delete(kafka, f"{cluster.name}.metadata")


def delete(kafka: KafkaCluster, topic: str) -> None:
    try:
        delete_topic(kafka.bootstrap, topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # it has asked twice, and hears that it is gone
            raise


def weaken(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    set_config(kafka.bootstrap, f"{cluster.name}.shard-0", "min.insync.replicas", "1")


def damage_metadata(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    """Write the last of its entries once more, without its end."""
    stream = f"{cluster.name}.metadata"
    reader = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "nobody", "log_level": 2})
    try:
        reader.assign([TopicPartition(stream, 0, 0)])
        entry = max((each.value() or b"" for each in reader.consume(5, timeout=WAIT_S)), key=len)
    finally:
        reader.close()
    writer = Producer({"bootstrap.servers": kafka.bootstrap})
    writer.produce(stream, entry[:-1], partition=0)
    assert writer.flush(WAIT_S) == 0


def trim_unread(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    """Behind what the only copy there is has on its disk, while its node is down."""
    cluster.kill(NODE)
    engine = AdminClient({"bootstrap.servers": kafka.bootstrap})
    where = TopicPartition(f"{cluster.name}.shard-0", 0)
    end = engine.list_offsets({where: OffsetSpec.latest()})[where].result(WAIT_S).offset
    engine.delete_records([TopicPartition(where.topic, 0, end)])[where].result(WAIT_S)
    cluster.spawn(NODE)


def begin_with_directory_of_another(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    """As somebody would who has mounted the wrong volume."""
    cluster.kill(NODE)
    other = FairlogCluster(cluster.data(NODE).parent / "other", kafka.bootstrap, name=f"{cluster.name}-other", nodes=1,
                           shards=1, settings=SETTINGS)  # fmt: skip
    try:
        other.start()
        other.leave(NODE)
    finally:
        other.stop()
    cluster.data(NODE).rename(cluster.data(NODE).parent / "own")
    shutil.move(other.data(NODE), cluster.data(NODE))
    cluster.spawn(NODE)


def lose_metadata(kafka: KafkaCluster, cluster: FairlogCluster) -> None:
    """Of the copies that are left nobody knows whose they are; and a node that finds none would remove them."""
    cluster.kill(NODE)
    shutil.rmtree(cluster.data(NODE) / "metadata")
    cluster.spawn(NODE)


TRIALS = {
    "shard-deleted": Trial(delete_shard, r"NAME\.shard-0 .*the topic was deleted"),
    "metadata-deleted": Trial(delete_metadata, r"NAME\.metadata .*the topic was deleted"),
    "metadata-damaged": Trial(damage_metadata, r"NAME\.metadata is corrupt at entry \d+", grace_ms=0),
    "weakened": Trial(weaken, r"min\.insync\.replicas of the topic NAME\.shard-0 is 1, and 2 is wanted .*--add-config"),
    "trimmed": Trial(trim_unread, ""),
    "metadata-removed": Trial(lose_metadata, r"has copies of shards \(0\) and no metadata"),
    "directory-of-another": Trial(begin_with_directory_of_another, r"NAME\.metadata"),
}


@pytest.fixture(scope="module")
def clusters(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FairlogCluster]]:
    """One for each trial, to which it was done when all of this had been answered."""

    def make(name: str) -> FairlogCluster:
        settings = SETTINGS | {"FAIRLOG_STOP_GRACE_MS": str(TRIALS[name].grace_ms)}
        cluster = FairlogCluster(tmp_path_factory.mktemp(name), kafka.bootstrap, name=f"lost-{name}", nodes=1, shards=1,
                                 settings=settings)  # fmt: skip
        made[name] = cluster
        return cluster

    def prepare(name: str) -> None:
        cluster = made[name]
        cluster.start(WAIT_S)
        make_topic(cluster.bootstrap, TOPIC)
        with RawClient(cluster.bootstrap, timeout_s=WAIT_S) as client:
            at_leader = client.leader(TOPIC, 0) or ""
        with RawClient(at_leader, timeout_s=WAIT_S) as client:
            for value in ANSWERED:
                while (code := client.produce(TOPIC, 0, batch([value]))[0]) == NOT_ENOUGH_REPLICAS:
                    time.sleep(0.1)  # an append took long: nothing of this one was begun
                assert code == NONE
            wait_until(lambda: client.list_offset(TOPIC, 0, -1)[0] == NONE)
        TRIALS[name].does(kafka, cluster)

    made: dict[str, FairlogCluster] = {}
    try:
        for name in TRIALS:
            make(name)
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(prepare, TRIALS))
        yield made
    finally:
        for cluster in made.values():
            cluster.stop()


@pytest.mark.parametrize("name", [name for name in TRIALS if name != "trimmed"])
def test_node_ends_and_names_what_is_wrong(clusters: dict[str, FairlogCluster], name: str) -> None:
    """At each start again, without serving anything; and what it has answered lies in the data logs."""
    cluster = clusters[name]
    says = TRIALS[name].says.replace("NAME", re.escape(cluster.name))
    wait_until(lambda: not cluster.running(NODE))
    assert cluster.status(NODE) not in (0, None)
    assert re.search(f"^fairlog: .*{says}", cluster.log(NODE).read_text(), re.MULTILINE), cluster.log(NODE)
    said = len(cluster.log(NODE).read_text())
    cluster.spawn(NODE)
    wait_until(lambda: not cluster.running(NODE))
    again = cluster.log(NODE).read_text()[said:]
    assert "owns the shard" not in again
    assert re.search(f"^fairlog: .*{re.escape(cluster.name)}", again, re.MULTILINE), again
    assert "node_id" not in again
    own = cluster.data(NODE).parent / "own" if name == "directory-of-another" else cluster.data(NODE)
    assert _kept(own) == ANSWERED


def _kept(data_dir) -> list[bytes]:
    with DataLogReader.open(shard_directory(data_dir, FIRST_SHARD).data_logs) as reader, reader.cut() as cut:
        found = [[each.value for each in cut.records(log, 0)] for log in cut.logs()]
    return next(values for values in found if b"0" in values)


def test_node_waits_for_a_copy_of_what_was_trimmed_before_any_copy_had_it(clusters: dict[str, FairlogCluster]) -> None:
    """Another node may have one, and be down. Without it nobody owns the shard, and no copy begins in the middle."""
    cluster = clusters["trimmed"]
    began = next(at for at, line in reversed(list(enumerate(cluster.lines(NODE)))) if line["event"] == "ready")
    wait_until(lambda: any(line["event"] == "no copy of the shard" for line in cluster.lines(NODE)[began:]))
    said = cluster.lines(NODE)[began:]
    why = next(line for line in said if line["event"] == "no copy of the shard")
    assert why["stream"] == f"{cluster.name}.shard-0"
    assert "was trimmed" in why["reason"]
    assert all(line["event"] != "owns the shard" for line in said)
    assert cluster.running(NODE)
    assert _kept(cluster.data(NODE)) == ANSWERED


def test_mended_setting_is_enough(clusters: dict[str, FairlogCluster], kafka: KafkaCluster) -> None:
    """The command that the node has named is the remedy: it serves again, and all is there."""
    cluster = clusters["weakened"]
    set_config(kafka.bootstrap, f"{cluster.name}.shard-0", "min.insync.replicas", "2")
    said = len(cluster.lines(NODE))
    cluster.spawn(NODE)
    wait_until(lambda: any(line["event"] == "owns the shard" for line in cluster.lines(NODE)[said:]))
    assert values(cluster.bootstrap, TOPIC, 0) == ANSWERED
