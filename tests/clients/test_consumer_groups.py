"""Consumer groups of the new protocol (KIP-848) with a stock client, librdkafka, over a real node."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import ROOT, NodeProcess
from tests.clients.group_members import WAIT_S, wait_until
from tests.processes import ALSO_ON_THREE

pytestmark = [pytest.mark.slow, ALSO_ON_THREE]

PARTITIONS = 6
QUICK = {
    "FAIRLOG_GROUPS_CONSUMER_MIN_HEARTBEAT_INTERVAL_MS": "100",
    "FAIRLOG_GROUPS_CONSUMER_HEARTBEAT_INTERVAL_MS": "100",
    "FAIRLOG_GROUPS_CONSUMER_MIN_SESSION_TIMEOUT_MS": "6000",
    "FAIRLOG_GROUPS_CONSUMER_SESSION_TIMEOUT_MS": "6000",
}
_groups = itertools.count()


class Member:
    """A consumer in a thread of its own, which commits what it has read."""

    def __init__(self, address: str, group: str, topics: list[str], **config: object) -> None:
        self.owned: set[tuple[str, int]] = set()
        self.read: list[tuple[str, int, int]] = []
        """(topic, partition, offset) of each record."""
        self.revoked = 0
        """How often something was taken from it."""
        self._closing = threading.Event()
        settings = {"group.protocol": "consumer", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 100}
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": group, **settings, **config}
        )
        self._consumer.subscribe(topics, on_assign=self._assigned, on_revoke=self._lost, on_lost=self._lost)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _assigned(self, consumer: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.owned |= {(each.topic, each.partition) for each in partitions}

    def _lost(self, consumer: confluent_kafka.Consumer, partitions: list[confluent_kafka.TopicPartition]) -> None:
        self.revoked += bool(partitions) and not self._closing.is_set()
        self.owned -= {(each.topic, each.partition) for each in partitions}

    def _run(self) -> None:
        while not self._closing.is_set():
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.read.append((message.topic(), message.partition(), message.offset()))
        self._consumer.close()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(WAIT_S)


@pytest.fixture
def quick_node(fresh_node: Callable[..., NodeProcess]) -> NodeProcess:
    return fresh_node(**QUICK)


@pytest.fixture
def group() -> str:
    return f"consumer-group-{next(_groups)}"


@pytest.fixture
def topic(quick_node: NodeProcess) -> str:
    """A topic with records in each partition."""
    return make_topic(quick_node.address, "records")


def make_topic(address: str, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result()
    fill(address, name)
    return name


def fill(address: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for partition in range(PARTITIONS):
        for number in range(10):
            producer.produce(topic, str(number), partition=partition)
    producer.flush()


@pytest.fixture
def member(quick_node: NodeProcess, topic: str, group: str) -> Iterator[Callable[..., Member]]:
    """Makes members of the group; those that are left are closed in the end."""
    made: list[Member] = []

    def make(*topics: str, **config: object) -> Member:
        made.append(Member(quick_node.address, group, list(topics or (topic,)), **config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def shared(*members: Member, of: int = PARTITIONS) -> bool:
    """Whether the members have all partitions among them, evenly."""
    sizes = sorted(len(each.owned) for each in members)
    return sum(sizes) == len(set().union(*(each.owned for each in members))) == of and sizes[-1] - sizes[0] <= 1


def committed(address: str, group: str, topic: str) -> int:
    """The sum of the group's committed offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, index) for index in range(PARTITIONS)]
    offsets = [each.offset for each in consumer.committed(places, timeout=WAIT_S)]
    consumer.close()
    return sum(offset for offset in offsets if offset > 0)


def test_members_share_what_there_is_as_they_come_and_go(quick_node, topic, group, member):
    """Each record is read once, though members join and leave in between."""
    first = member()
    wait_until(lambda: shared(first) and len(first.read) == 60, "the first has read everything")
    second = member()
    wait_until(lambda: shared(first, second), "two share")
    fill(quick_node.address, topic)
    wait_until(lambda: len(first.read) + len(second.read) == 120, "both have read what was new")
    first.close()
    wait_until(lambda: shared(second), "the second has everything")
    fill(quick_node.address, topic)
    wait_until(lambda: len(first.read) + len(second.read) == 180, "the second has read on")
    assert len({*first.read, *second.read}) == 180
    second.close()
    assert committed(quick_node.address, group, topic) == 180


def test_group_is_described_as_one_of_the_new_protocol(quick_node, group, member):
    first = member()
    wait_until(lambda: shared(first), "it has everything")
    admin = AdminClient({"bootstrap.servers": quick_node.address})
    described = admin.describe_consumer_groups([group])[group].result()
    assert (described.type, described.partition_assignor) == (ConsumerGroupType.CONSUMER, "uniform")
    assert len(described.members[0].target_assignment.topic_partitions) == PARTITIONS


def test_members_go_on_after_a_restart_as_if_nothing_had_been(quick_node, topic, group, member):
    """They keep their epochs and their partitions; nothing is taken from anyone."""
    members = [member(), member()]
    wait_until(lambda: shared(*members), "two share")
    wait_until(lambda: sum(len(each.read) for each in members) == 60, "they have read everything")
    before = [set(each.owned) for each in members]
    taken = [each.revoked for each in members]
    quick_node.kill()
    quick_node.start()
    fill(quick_node.address, topic)
    wait_until(lambda: sum(len(each.read) for each in members) >= 120, "they read on")
    assert [each.owned for each in members] == before
    assert [each.revoked for each in members] == taken
    assert len({*members[0].read, *members[1].read}) == 120
    third = member()
    wait_until(lambda: shared(*members, third), "one more joins")


def test_partitions_of_a_killed_process_go_to_the_others_after_its_session(quick_node, topic, group, member):
    """It reads from where the dead one has committed."""
    survivor = member()
    wait_until(lambda: len(survivor.read) == 60, "it has read everything")
    program = [sys.executable, "-m", "tests.clients.test_consumer_groups", quick_node.address, group, topic]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "joined\n"
        wait_until(lambda: len(survivor.owned) == PARTITIONS // 2, "they share")
        os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: shared(survivor), "the survivor has everything")
    fill(quick_node.address, topic)
    wait_until(lambda: len(set(survivor.read)) == 120, "it reads what is new")


def test_static_member_comes_back_to_what_it_had(quick_node, topic, group, member):
    """The other one is not bothered meanwhile."""
    other, first = member(), member(**{"group.instance.id": "S"})
    wait_until(lambda: shared(other, first), "two share")
    had, taken = set(first.owned), other.revoked
    first.close()
    back = member(**{"group.instance.id": "S"})
    wait_until(lambda: back.owned == had, "it has what it had")
    assert (other.revoked, len(other.owned)) == (taken, PARTITIONS // 2)


def test_pattern_takes_in_topics_that_come_later(quick_node, topic, group, member):
    reader = member("^rec.*")
    wait_until(lambda: shared(reader), "it has the topic that there is")
    make_topic(quick_node.address, "receipts")
    make_topic(quick_node.address, "others")
    wait_until(lambda: shared(reader, of=2 * PARTITIONS), "it has the topic that came")
    wait_until(lambda: len(reader.read) == 120, "it has read both")


def test_group_changes_its_protocol_member_by_member_and_back(quick_node, topic, group, member):
    """A rolling change: classic members, both kinds, new ones alone, both, classic ones alone."""
    classic = {"group.protocol": "classic", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}
    old = member(**classic)
    wait_until(lambda: shared(old) and len(old.read) == 60, "a classic group")
    new = member()
    wait_until(lambda: shared(old, new), "a member of each protocol share")
    fill(quick_node.address, topic)
    wait_until(lambda: len({*old.read, *new.read}) == 120, "both have read")
    old.close()
    wait_until(lambda: shared(new), "the new one is alone")
    again = member(**classic)
    wait_until(lambda: shared(again, new), "a classic one joins a consumer group")
    new.close()
    wait_until(lambda: shared(again), "a classic group again")
    fill(quick_node.address, topic)
    wait_until(lambda: len({*old.read, *new.read, *again.read}) == 180, "it has read on")
    admin = AdminClient({"bootstrap.servers": quick_node.address})
    assert admin.describe_consumer_groups([group])[group].result().type is ConsumerGroupType.CLASSIC


def _be_a_victim(address: str, group: str, topic: str) -> None:
    victim = Member(address, group, [topic])
    wait_until(lambda: bool(victim.owned), "it has joined")
    sys.stdout.write("joined\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    _be_a_victim(*sys.argv[1:])
