"""Three nodes as a user starts them, on three brokers of Kafka: clients go on while nodes are killed, stopped, paused.

`scripts/peers/fairlog_cluster.py` runs the nodes. What is written by transactions is read back by a plain consumer: all
that was answered, once, in the producer's order, whatever has happened to the owners.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from cryptography.x509.oid import NameOID
from peers.fairlog_cluster import FairlogCluster
from peers.kafka_cluster import KafkaCluster
from peers.watermarks import watermarks

from pyspark_fairlog.native import Native, NativeError, Topics
from tests.history.brokers import COORDINATOR_STARTS
from tests.on_kafka.brokers import three_nodes
from tests.security.certificates import Authority, name_of
from tests.security.test_quota_nodes import rates_of_bob

pytestmark = pytest.mark.slow

T = TypeVar("T")

PARTITIONS = 6
NO_CONFIG: Mapping[str, str] = MappingProxyType({})
GROUP = "readers"
WAIT_S = 90.0
MARKED_EVERY_S = 5.0
"""So often a copy notes how far it is on its disk."""


@pytest.fixture
def topic(cluster: FairlogCluster) -> str:
    """Of this test: clients of a test that has failed may live on."""
    name = f"orders-{cluster.name}"
    make_topic(cluster.bootstrap, name)
    return name


def make_topic(address: str, name: str, partitions: int = PARTITIONS, config: Mapping[str, str] = NO_CONFIG) -> None:
    """Again if the node hangs up, as one does whose shard has another owner by now: an admin client does not."""
    admin = AdminClient({"bootstrap.servers": address})
    deadline = time.monotonic() + WAIT_S
    for attempt in count(1):
        (future,) = admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))]).values()
        try:
            future.result(WAIT_S)
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError._TRANSPORT and time.monotonic() < deadline:
                continue
            if attempt == 1 or code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return


class Writer:
    """One transactional producer that never rests: a record for each partition in each transaction."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.committed: list[bytes] = []
        """The values of transactions whose commit was answered, in order."""
        self.fatal: list[str] = []
        self.aborted: list[str] = []
        """The errors of transactions that had to be aborted."""
        self._topic = topic
        self._name = name
        self._ends = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 600_000,  # it counts on while the engine is away
            "message.timeout.ms": 60_000,
            "log_level": 2,
        }
        self._producer = Producer(settings)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._producer.init_transactions(WAIT_S)
        for number in count():
            if self._ends.is_set():
                return
            value = f"{self._name}-{number}".encode()
            try:
                self._producer.begin_transaction()
                for partition in range(PARTITIONS):
                    self._producer.produce(self._topic, value, partition=partition)
                self._producer.commit_transaction(WAIT_S)
            except KafkaException as exception:
                error = exception.args[0]
                if not error.txn_requires_abort():
                    self.fatal.append(str(error))
                    return
                self.aborted.append(str(error))
                self._producer.abort_transaction(WAIT_S)
            else:
                self.committed.append(value)

    def end(self) -> None:
        self._ends.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def has_written(self, more: int) -> Callable[[], bool]:
        """Whether so many transactions more than now have been committed, or something is wrong."""
        due = len(self.committed) + more
        return lambda: len(self.committed) >= due or bool(self.fatal)


@contextmanager
def writing(cluster: FairlogCluster, topic: str) -> Iterator[list[Writer]]:
    """Two writers at work; on leaving, none of them has met an error that is fatal."""
    writers = [Writer(cluster.bootstrap, topic, f"w{number}") for number in range(2)]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.end()
    assert [writer.fatal for writer in writers] == [[], []]


def all_write_on(writers: list[Writer], transactions: int = 20) -> None:
    for has_written in [writer.has_written(transactions) for writer in writers]:
        wait_until(has_written)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def values(bootstrap: str, topic: str, partition: int) -> list[bytes]:
    """All records of a partition, in order. Offsets have no gaps."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody", "log_level": 2})
    try:
        where = TopicPartition(topic, partition, 0)
        deadline = time.monotonic() + WAIT_S
        end = None
        while end is None:
            assert time.monotonic() < deadline
            with suppress(KafkaException):  # the owner is changing, or paused
                _, end = consumer.get_watermark_offsets(where, timeout=WAIT_S)
        consumer.assign([where])
        found: list[bytes] = []
        while len(found) < end:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                assert message.offset() == len(found)
                found.append(message.value() or b"")
        return found
    finally:
        consumer.close()


def all_is_there(cluster: FairlogCluster, topic: str, writers: list[Writer]) -> None:
    """What was answered is in each partition, once, in its writer's order."""
    for partition in range(PARTITIONS):
        found = values(cluster.bootstrap, topic, partition)
        assert len(set(found)) == len(found)
        for writer in writers:
            committed = set(writer.committed)
            assert [value for value in found if value in committed] == writer.committed


def fairlog(*arguments: str) -> Any:
    """What the command prints."""
    command = [sys.executable, "-m", "fairlog.cli", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S).stdout)


class Member:
    """A consumer in a group, in a thread of its own: it reads, and commits what it has read."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.read: list[tuple[int, int]] = []
        self.taken: list[object] = []
        """Partitions that were taken from it."""
        self.committed: dict[int, int] = {}
        self._ends = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
        self._consumer = Consumer(settings | {"enable.auto.commit": False, "log_level": 2})
        self._consumer.subscribe([topic], on_revoke=lambda _, partitions: self.taken.append(partitions))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            messages = [each for each in self._consumer.consume(100, timeout=0.2) if each.error() is None]
            self.read += [(each.partition() or 0, each.offset() or 0) for each in messages]
            if messages:
                with suppress(KafkaException):  # the coordinator is changing: the next one says more
                    for each in self._consumer.commit(asynchronous=False) or ():
                        if each.error is None and each.offset >= 0:  # else it had nothing new to commit there
                            self.committed[each.partition] = each.offset

    def end(self) -> None:
        self._ends.set()
        self._thread.join(WAIT_S)
        assert self.taken == []
        self._consumer.close()


def test_clients_go_on_while_nodes_are_killed_and_stopped(
    cluster: FairlogCluster, topic: str, authority: Authority
) -> None:
    """Nothing that was answered is lost, and no transaction meets a fatal error. The group keeps its member, with all
    its partitions, and its offsets. What nodes say to each other is said in TLS, and nobody else may hear it.
    """
    with writing(cluster, topic) as writers:
        member = Member(cluster.bootstrap, topic)
        wait_until(lambda: len(member.read) > 100)
        for node, end in ((1, cluster.kill), (2, cluster.leave), (3, cluster.kill)):
            end(node)
            all_write_on(writers)
            cluster.spawn(node)
            all_write_on(writers)
            due = len(member.read) + 50
            wait_until(lambda due=due: len(member.read) > due)
    all_is_there(cluster, topic, writers)
    wait_until(lambda: cluster.is_in_sync(3))  # it may still be starting
    nodes_speak_tls(cluster, authority)
    shown = fairlog("cluster", "--admin", cluster.admin(3), "--json")
    assert [node["number"] for node in shown["nodes"]] == list(cluster.nodes)
    assert all(shard["epoch"] > 1 and len(shard["copies"]) == 3 for shard in shown["shards"])
    member.end()
    assert len(set(member.read)) == len(member.read)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": GROUP, "log_level": 2})
    try:
        asked = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        found = {each.partition: each.offset for each in committed(consumer, asked)}
        assert found.keys() == member.committed.keys()
        assert all(found[partition] >= offset for partition, offset in member.committed.items()), (
            "the last may be unknown"
        )
    finally:
        consumer.close()


def committed(consumer: Consumer, asked: list[TopicPartition]) -> list[TopicPartition]:
    """Asked again while the group's shard changes its owner: librdkafka passes on what the former one says."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return consumer.committed(asked, timeout=WAIT_S)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_STARTS or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def nodes_speak_tls(cluster: FairlogCluster, authority: Authority) -> None:
    """At ports where nodes reach each other, and none has heard anything there that was none of it."""
    for node in cluster.nodes:
        assert not [line for line in cluster.lines(node) if "speak TLS" in line.get("reason", "")]
    anybody = authority.issue("anybody", name_of((NameOID.COMMON_NAME, "anybody")))
    for shard, node in enumerate(cluster.nodes):
        address = cluster.inner_address(node, shard)
        with socket.create_connection(address, timeout=WAIT_S) as plain:
            plain.sendall(b"FLIB\0\2" + bytes(104))
            assert plain.recv(2) == b"\x15\x03", "an alert of TLS"
        said = said_to_openssl(address, authority)
        assert "Verification: OK" in said
        assert "alert certificate required" in said
        said = said_to_openssl(address, authority, "-cert", anybody.certificate, "-key", anybody.key)
        assert "Verification: OK" in said
        assert "alert" not in said, "the handshake of brokers refuses it, in TLS"


def said_to_openssl(address: tuple[str, int], authority: Authority, *more: object) -> str:
    """What `openssl s_client` prints, which sends what is no handshake of brokers, until the connection is closed."""
    host, port = address
    command = ["openssl", "s_client", "-connect", f"{host}:{port}", "-verify_return_error", "-verify_ip", host]
    command += ["-CAfile", str(authority.certificate), "-tls1_3", "-ign_eof", *map(str, more)]
    done = subprocess.run(command, input=b"GET / HTTP/1.1\n", capture_output=True, check=False, timeout=WAIT_S)
    return (done.stdout + done.stderr).decode()


def test_shard_is_moved_under_writers_that_notice_nothing(patient_cluster: FairlogCluster) -> None:
    """There and elsewhere, and no transaction is aborted. The shard stays where it was moved to, and comes back there
    when its node was away; at last it is planned with the others again.
    """
    cluster, topic = patient_cluster, "orders"
    make_topic(cluster.bootstrap, topic)
    wait_until(lambda: all(cluster.is_in_sync(node) for node in cluster.nodes))
    shard = 1
    before = owner_of_shard(cluster, 1, shard)
    there, elsewhere = (node for node in cluster.nodes if node != before)
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        for node in (there, elsewhere, before, there):
            assert move(cluster, before, shard, node) == f"shard {shard} is served by node {node}\n"
            all_write_on(writers)
        assert [writer.aborted for writer in writers] == [[], []]
        cluster.leave(there)
        all_write_on(writers)
        cluster.spawn(there)
        wait_until(lambda: owner_of_shard(cluster, before, shard) == there)
        all_write_on(writers)
        assert [writer.aborted for writer in writers] == [[], []]
        move(cluster, before, shard, "auto")
        listed = fairlog("shard", "list", "--admin", cluster.admin(before), "--json")
        assert [row["wish"] for row in listed] == [None] * 3
    all_is_there(cluster, topic, writers)


def test_move_that_is_not_possible_is_refused(cluster: FairlogCluster) -> None:
    """With a sentence, and nothing is changed."""
    wait_until(lambda: all(cluster.is_in_sync(node) for node in cluster.nodes))
    cluster.kill(3)
    for shard, node, words in (
        (3, 1, "there is no shard 3: there are 3, from 0 on"),
        (0, 4, "there is no node 4 in the cluster: there are 1, 2, 3"),
    ):
        assert words in refused_move(cluster, shard, node)
    wait_until(lambda: not cluster_document(cluster, 1)["nodes"][2]["is_up"])
    assert "node 3 is down: it was not heard within 10 s" in refused_move(cluster, 0, 3)
    assert [shard["wish"] for shard in cluster_document(cluster, 1)["shards"]] == [None] * 3


def owners(cluster: FairlogCluster) -> list[int | None]:
    """Of each shard, as node 1 sees them."""
    return [shard["owner"] for shard in cluster_document(cluster, 1)["shards"]]


def is_spread(cluster: FairlogCluster) -> bool:
    """Whether all copies are in sync and each node owns a shard, so that none is to be handed over."""
    return all(cluster.is_in_sync(node) for node in cluster.nodes) and set(owners(cluster)) == set(cluster.nodes)


def cluster_document(cluster: FairlogCluster, asked: int) -> Any:
    """As a node sees it."""
    return fairlog("cluster", "--admin", cluster.admin(asked), "--json")


def owner_of_shard(cluster: FairlogCluster, asked: int, shard: int) -> int:
    return cluster_document(cluster, asked)["shards"][shard]["owner"]


def asked_to_move(cluster: FairlogCluster, asked: int, shard: int, to: object) -> subprocess.CompletedProcess[str]:
    """`fairlog shard move`, as on the machine of the node that is asked."""
    command = [sys.executable, "-m", "fairlog.cli", "shard", "move", str(shard), "--to", str(to)]
    where = ["--admin", cluster.admin(asked), "--data-dir", str(cluster.data(asked))]
    return subprocess.run([*command, *where], check=False, capture_output=True, text=True, timeout=WAIT_S)


def move(cluster: FairlogCluster, asked: int, shard: int, to: object) -> str:
    """What the command says."""
    done = asked_to_move(cluster, asked, shard, to)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused_move(cluster: FairlogCluster, shard: int, to: int) -> str:
    refused = asked_to_move(cluster, 1, shard, to)
    assert (refused.returncode, refused.stdout) == (1, "")
    return refused.stderr


def test_consumer_reads_from_the_copy_in_its_rack(cluster: FairlogCluster, topic: str) -> None:
    """Everything, and from no other broker, though others lead most partitions. Only if the copy was not in sync for a
    moment, on a busy machine, it is tried again: leaders send nobody to such a copy.
    """
    wait_until(lambda: is_spread(cluster))
    read: list[bytes] = []
    brokers: set[int] = set()

    def note(statistics: str) -> None:
        partitions = json.loads(statistics)["topics"].get(topic, {"partitions": {}})["partitions"]
        brokers.update(each["broker"] // 1000 for each in partitions.values() if each["broker"] != -1)

    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "near", "client.rack": "rack-2", "log_level": 2}
    reader = Consumer(settings | {"statistics.interval.ms": 200, "stats_cb": note})
    try:
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        with writing(cluster, topic) as writers:
            deadline = time.monotonic() + WAIT_S
            while len(read) < 50 * PARTITIONS:
                assert time.monotonic() < deadline
                read += [each.value() or b"" for each in reader.consume(100, timeout=0.2) if each.error() is None]
            is_near = False
            while not is_near:
                brokers.clear()
                due, in_sync = len(read) + 50 * PARTITIONS, True
                while not brokers or len(read) < due:
                    assert time.monotonic() < deadline
                    read += [each.value() or b"" for each in reader.consume(100, timeout=0.2) if each.error() is None]
                    in_sync = in_sync and cluster.is_in_sync(2)
                is_near = brokers == {2}
                assert is_near or not in_sync, brokers
        due = PARTITIONS * sum(len(writer.committed) for writer in writers)
        while len(read) < due:
            assert time.monotonic() < deadline
            read += [each.value() or b"" for each in reader.consume(100, timeout=0.2) if each.error() is None]
    finally:
        reader.close()
    for writer in writers:
        assert [read.count(value) for value in writer.committed] == [PARTITIONS] * len(writer.committed)


def test_cuts_sinks_and_quotas_are_found_from_each_port(cluster: FairlogCluster, topic: str) -> None:
    """A node's first one, and that of a shard which another node owns; also after an owner was killed."""
    command = [sys.executable, "-m", "fairlog.cli", "quota", "set", "--user", "bob", "--consumer-byte-rate", "5"]
    subprocess.run([*command, "--bootstrap", cluster.address(2)], check=True, capture_output=True, timeout=WAIT_S)
    with writing(cluster, topic) as writers:
        all_write_on(writers)
    records = PARTITIONS * sum(len(writer.committed) for writer in writers)
    for killed in (None, 1):
        if killed is not None:
            cluster.kill(killed)
        brokers = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=WAIT_S).brokers
        ports = [f"{it.host}:{it.port}" for it in brokers.values() if it.id // 1000 != killed]
        for address in (*ports, *(cluster.address(node) for node in cluster.nodes if node != killed)):
            cut = asked(address, lambda native: native.cut(Topics((topic,))))
            assert sum(part.end for part in cut) == records
            assert set(asked(address, Native.topics)) == {topic}
            assert rates_of_bob(address) == {"consumer_byte_rate": 5.0}
            with pytest.raises(NativeError, match="unknown-sink"):
                asked(address, lambda native: native.forget("nobody's"))


def test_ports_of_shards_without_a_copy_say_where_to_go(kafka: KafkaCluster, tmp_path: Path) -> None:
    """With three nodes, and two copies of each shard, they are one in three."""
    with three_nodes(kafka, tmp_path, more={"FAIRLOG_CLUSTER_REPLICAS": "2"}) as cluster:

        def without() -> list[tuple[int, int]]:
            shards = cluster_document(cluster, 1)["shards"]
            kept = {(copy["node"], shard["number"]) for shard in shards for copy in shard["copies"]}
            return [(node, shard) for node in cluster.nodes for shard in range(3) if (node, shard) not in kept]

        wait_until(lambda: bool(without()))
        for node, shard in without():
            client = AdminClient({"bootstrap.servers": cluster.address_of(node, shard)})
            assert len(client.list_topics(timeout=WAIT_S).brokers) >= len(cluster.nodes)


def asked(address: str, question: Callable[[Native], T]) -> T:
    """The answer, once each shard has an owner."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with Native.connect(address, timeout_s=WAIT_S) as native:
                return question(native)
        except (NativeError, ConnectionError) as error:
            for_now = not isinstance(error, NativeError) or error.kind in ("not-copied", "not-available")
            if not for_now or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_node_that_stands_still_is_replaced_and_comes_back(cluster: FairlogCluster, topic: str) -> None:
    """What it says when it wakes, a zombie, deceives nobody."""
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        owner = owner_of(cluster, topic)
        others = [node for node in cluster.nodes if node != owner]
        before = owned(cluster, others)
        cluster.pause(owner)
        wait_until(lambda: owned(cluster, others) > before)
        cluster.resume(owner)
        all_write_on(writers)
        assert cluster.running(owner)
    all_is_there(cluster, topic, writers)


def owner_of(cluster: FairlogCluster, topic: str) -> int:
    """The node that owns partition 0."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    return admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions[0].leader // 1000


def owned(cluster: FairlogCluster, nodes: list[int]) -> int:
    """How often one of these nodes has become an owner."""
    return sum(line["event"] == "owns the shard" for node in nodes for line in cluster.lines(node))


def test_node_that_has_lost_its_disk_gets_copies_of_the_others(
    cluster: FairlogCluster, topic: str, kafka: KafkaCluster
) -> None:
    """The streams have been trimmed by then: what it lacks is with the other nodes alone. It owns shards again."""
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        wait_until(lambda: all(first_offset(kafka, f"{cluster.name}.shard-{shard}") > 0 for shard in range(3)))
        cluster.kill(2)
        shutil.rmtree(cluster.data(2))
        cluster.spawn(2)
        wait_until(lambda: cluster.log(2).read_text().count("has a copy of the shard") == 3)
        wait_until(lambda: all(cluster.is_in_sync(node) for node in cluster.nodes))
        cluster.kill(1)
        all_write_on(writers)
        cluster.kill(3)
        all_write_on(writers)
    all_is_there(cluster, topic, writers)


def test_copy_that_the_stream_has_left_behind_is_made_anew_while_its_node_runs(
    cluster: FairlogCluster, topic: str, kafka: KafkaCluster
) -> None:
    """It stood still, and meanwhile the engine has lost what it had yet to read: the other nodes have it."""
    streams = [TopicPartition(f"{cluster.name}.shard-{shard}", 0) for shard in range(3)]
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        others = [1, 3]
        wait_until(lambda: is_spread(cluster))  # a moment after the start
        before = owned(cluster, others)
        cluster.pause(2)
        wait_until(lambda: 2 not in owners(cluster) and owned(cluster, others) > before)
        engine = AdminClient({"bootstrap.servers": kafka.bootstrap})
        ends = {each: future.result().offset for each, future in
                engine.list_offsets({each: OffsetSpec.latest() for each in streams}).items()}  # fmt: skip
        time.sleep(2 * MARKED_EVERY_S)  # a start of the others would not need it any more
        trimmed = [TopicPartition(each.topic, 0, end) for each, end in ends.items()]
        for future in engine.delete_records(trimmed).values():
            future.result(WAIT_S)
        cluster.resume(2)
        wait_until(lambda: cluster.log(2).read_text().count("has a copy of the shard") == 3)
        wait_until(lambda: all(cluster.is_in_sync(node) for node in cluster.nodes))
        assert cluster.running(2)
        cluster.kill(1)
        all_write_on(writers)
    all_is_there(cluster, topic, writers)


def first_offset(kafka: KafkaCluster, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "nobody", "log_level": 2})
    try:
        return watermarks(consumer, topic, 0, leaders_change=True)[0]
    finally:
        consumer.close()


def test_second_node_of_a_number_ends_the_first(cluster: FairlogCluster, tmp_path: Path) -> None:
    """It says which number two have, and what to do."""
    twin = cluster.twin(1, tmp_path / "twin")
    try:
        twin.spawn()
        wait_until(lambda: not cluster.running(1) or not twin.running)
        said = cluster.log(1).read_text() + twin.output_tail()
        assert "has announced itself as node 1" in said
    finally:
        twin.kill()
