"""A node of three processes: to clients three brokers, each of which leads and coordinates a part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from scripts.node_process import START_S, NodeProcess
from tests.clients import raw_client as raw
from tests.clients.conftest import make_topic
from tests.clients.drivers import CLIENTS, CONFLUENT, ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.offset_drivers import offsets_of
from tests.clients.raw_client import GROUP, NONE, TRANSACTION, RawClient, batch, leader_id_of
from tests.clients.raw_epochs import EpochProducer
from tests.clients.raw_member import RawMember
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds
from tests.processes import ONLY_ON_THREE, SEVERAL

pytestmark = [
    pytest.mark.slow,
    ONLY_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IDS = range(1, SEVERAL + 1)
"""Of the brokers, in the order of their addresses."""
KEYS = 50


@pytest.fixture
def each(node: NodeProcess) -> Iterator[dict[int, RawClient]]:
    """A connection to each broker and to no other, by its id."""
    clients = {number: RawClient(address) for number, address in zip(IDS, node.addresses, strict=True)}
    yield clients
    for client in clients.values():
        client.close()


def coordinated_by(node: NodeProcess, kind: int, number: int, new_id: Callable[[], str]) -> str:
    """A group, or a transactional id, that the broker of this number coordinates."""
    with RawClient(node.addresses[0]) as client:
        return next(key for key in iter(new_id, None) if client.find_coordinator(kind, key).node_id == number)


# --- who there is ----------------------------------------------------------------------------------


def test_metadata_is_the_same_from_every_broker(
    node: NodeProcess, each: dict[int, RawClient], new_topic: Callable[..., str]
) -> None:
    """All name the same three brokers, one controller, and one leader of each partition; each leads its share."""
    topic = new_topic(9)
    told = []
    for client in each.values():
        answer = client.metadata(topic)
        (described,) = answer.topics
        leaders = {row.partition_index: (row.leader_id, row.leader_epoch) for row in described.partitions}
        brokers = {row.node_id: f"{row.host}:{row.port}" for row in answer.brokers}
        told.append((brokers, answer.controller_id, leaders))
    assert told == [told[0]] * SEVERAL
    brokers, controller, leaders = told[0]
    assert (brokers, controller) == (dict(zip(IDS, node.addresses, strict=True)), 1)
    assert sorted(leader for leader, _epoch in leaders.values()) == sorted([*IDS] * 3)


@pytest.mark.parametrize("known", IDS)
def test_client_that_knows_one_broker_finds_the_rest(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str], known: int
) -> None:
    """It writes to partitions of all, in a transaction and outside of one, and reads them."""
    topic, address = new_topic(6), node.addresses[known - 1]
    with client.producer(address, new_id()) as producer, client.producer(address) as plain:
        producer.begin()
        for partition in range(6):
            producer.send(topic, partition, b"in a transaction")
        producer.commit()
        for partition in range(6):
            plain.send(topic, partition, b"plain")
        plain.flush()
    assert_topic_holds(address, topic, {partition: [b"in a transaction", b"plain"] for partition in range(6)})


@pytest.mark.parametrize("kind", [GROUP, TRANSACTION], ids=["groups", "transactional ids"])
def test_coordinators_are_spread_and_are_who_is_named(
    node: NodeProcess, each: dict[int, RawClient], new_id: Callable[[], str], kind: int
) -> None:
    """Every broker names the same one. That one takes requests, and the others send the client away."""
    named: set[int] = set()
    for key in (new_id() for _ in range(KEYS)):
        told = [client.find_coordinator(kind, key) for client in each.values()]
        (coordinator,) = {(row.error_code, row.node_id, f"{row.host}:{row.port}") for row in told}
        error, number, address = coordinator
        assert (error, address) == (NONE, node.addresses[number - 1])
        named.add(number)
        for asked, client in each.items():
            answer = (
                client.committed_offset(key, "t", 0)[0] if kind == GROUP else client.init_producer_id(key).error_code
            )
            assert answer == (NONE if asked == number else raw.NOT_COORDINATOR)
    assert named == set(IDS)


# --- the wrong broker ------------------------------------------------------------------------------


def test_broker_that_does_not_lead_a_partition_says_so(
    node: NodeProcess, each: dict[int, RawClient], new_topic: Callable[..., str]
) -> None:
    """NOT_LEADER_OR_FOLLOWER, whatever is asked, and nothing is written; the leader serves it."""
    topic = new_topic(SEVERAL)
    for partition in range(SEVERAL):
        leader = leader_id_of(node.address, topic, partition)
        for number, client in each.items():
            codes = {
                client.produce(topic, partition, batch([b"v"]))[0],
                client.list_offset(topic, partition, -1)[0],
                client.fetch(topic, partition, 0, wait_ms=0).error_code,
                client.end_of_epoch(topic, partition, 1)[0],
                client.delete_records(topic, partition, 0)[0],
            }
            assert codes == {NONE if number == leader else raw.NOT_LEADER_OR_FOLLOWER}
    assert_topic_holds(node.address, topic, {partition: [b"v"] for partition in range(SEVERAL)})


def test_broker_that_does_not_coordinate_a_transaction_says_so(
    node: NodeProcess, each: dict[int, RawClient], new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """NOT_COORDINATOR, whatever is asked, and the transaction stays as it is; its coordinator goes on with it."""
    topic, group = new_topic(SEVERAL), new_id()
    own = coordinated_by(node, TRANSACTION, 2, new_id)
    granted = each[2].init_producer_id(own)
    mine = own, granted.producer_id, granted.producer_epoch
    assert each[2].add_partitions(*mine, topic, [0]) == {0: NONE}
    for number in (1, 3):
        codes = {
            each[number].init_producer_id(own).error_code,
            *each[number].add_partitions(*mine, topic, [1, 2]).values(),
            each[number].add_offsets(*mine, group),
            each[number].end(*mine, commit=True),
            each[number].transaction_state(own).error_code,
        }
        assert codes == {raw.NOT_COORDINATOR}
    assert each[2].transaction_state(own).transaction_state == "Ongoing"
    assert each[2].end(*mine, commit=True) == NONE


def test_broker_that_does_not_coordinate_a_group_says_so(
    node: NodeProcess, each: dict[int, RawClient], new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """NOT_COORDINATOR to members and to those that are none."""
    topic, group = new_topic(), coordinated_by(node, GROUP, 3, new_id)
    for number, address in zip(IDS, node.addresses, strict=True):
        with RawMember(address) as member:
            code = NONE if number == 3 else raw.NOT_COORDINATOR
            assert member.join(group).error_code == code
            assert member.sync(group, {member.member_id: b""}).error_code == code
            assert member.heartbeat(group) == code
            assert member.leave(group) == code
            assert member.commit_offset(group, topic, 0, 1) == code
            assert member.committed_offset(group, topic, 0) == (code, 1 if number == 3 else -1)
            assert member.delete_group(group) == code


# --- topics that another broker made ---------------------------------------------------------------


def test_change_of_a_topic_is_known_to_every_broker_at_once(
    node: NodeProcess, each: dict[int, RawClient], new_id: Callable[[], str]
) -> None:
    """Whoever was told by one broker may ask the next: a topic that is made, grown or deleted."""
    for number, maker in zip(IDS, node.addresses, strict=True):
        admin, name = AdminClient({"bootstrap.servers": maker}), f"topic-of-{number}-{new_id()}"
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(timeout=WAIT_S)
        assert [len(client.metadata(name).topics[0].partitions) for client in each.values()] == [1] * SEVERAL
        admin.create_partitions([NewPartitions(name, 4)])[name].result(timeout=WAIT_S)
        assert [len(client.metadata(name).topics[0].partitions) for client in each.values()] == [4] * SEVERAL
        admin.delete_topics([name])[name].result(timeout=WAIT_S)
        codes = {client.metadata(name).topics[0].error_code for client in each.values()}
        assert codes == {raw.UNKNOWN_TOPIC_OR_PARTITION}


@BOTH_MODES
def test_topic_made_by_one_broker_is_written_to_at_once_through_another(
    node: NodeProcess, mode: Mode, client: ClientKind, new_id: Callable[[], str]
) -> None:
    """In a transaction whose coordinator may be a third one: the first one to it already is committed."""
    for number in range(6):
        maker, other = node.addresses[number % SEVERAL], node.addresses[(number + 1) % SEVERAL]
        with client.producer(other, new_id()) as producer:
            name = f"topic-of-{new_id()}"
            config = {"fairlog.transactions": mode.value}
            admin = AdminClient({"bootstrap.servers": maker})
            admin.create_topics([NewTopic(name, SEVERAL, 1, config=config)])[name].result(timeout=WAIT_S)
            producer.begin()
            for partition in range(SEVERAL):
                producer.send(name, partition, b"v")
            producer.commit()
        assert_topic_holds(other, name, {partition: [b"v"] for partition in range(SEVERAL)}, mode=mode)


# --- transactions over all shards ------------------------------------------------------------------


@BOTH_MODES
def test_transaction_over_all_shards_and_a_group_of_another_is_whole(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Partitions that each of three brokers leads, coordinated by one, and offsets of a group at another one."""
    source, topic = new_topic(), new_topic(SEVERAL)
    name, group = coordinated_by(node, TRANSACTION, 1, new_id), coordinated_by(node, GROUP, 2, new_id)
    assert {leader_id_of(node.address, topic, partition) for partition in range(SEVERAL)} == set(IDS)
    with offsets_of(client, node.address, source, group, name) as driver:
        for number in range(6):
            driver.begin()
            for partition in range(SEVERAL):
                driver.send(topic, b"%d" % number, partition)
            driver.send_offsets(0, number + 1)
            driver.end(commit=number % 2 == 0)
            # Clients ask until what was committed is settled, if they ask for stable offsets.
            assert driver.committed(0) == (number + 1 - number % 2, "")
    kept = {partition: [b"0", b"2", b"4"] for partition in range(SEVERAL)}
    assert_topic_holds(node.address, topic, kept, mode=mode, aborted=None)


# --- processes that are killed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "victim", "mode"),
    [
        *((client, victim, Mode.JOURNAL) for victim, client in enumerate(CLIENTS)),
        (CLIENTS[0], 1, Mode.MARKERS),
    ],
    ids=lambda value: value.value if isinstance(value, Mode) else getattr(value, "name", None),
)
def test_process_that_is_killed_loses_nothing_that_was_answered_or_open(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind, victim: int
) -> None:
    """The coordinator's or a leader's: the open transaction goes on when the supervisor has started it again."""
    node = fresh_node()
    topic = make_topic(node.address, SEVERAL)
    every = range(SEVERAL)
    with client.producer(node.address, "txn") as producer, Reader(node.address, topic, SEVERAL) as reader:
        producer.begin()
        for partition in every:
            producer.send(topic, partition, b"before")
        producer.commit()
        reader.wait_for(SEVERAL)
        producer.begin()
        for partition in every:
            producer.send(topic, partition, b"first half")
        producer.flush()
        node.kill_process(victim)
        for partition in every:
            producer.send(topic, partition, b"second half")
        producer.flush()
        producer.commit()
        reader.wait_for(3 * SEVERAL)
        reader.read_to_end()
        kept = {partition: [b"before", b"first half", b"second half"] for partition in every}
        assert reader.by_partition() == kept
    assert len(node.pids) == SEVERAL
    assert_topic_holds(node.address, topic, kept, mode=mode)


@pytest.mark.parametrize(("kills", "mode"), [(2, Mode.JOURNAL), (1, Mode.MARKERS)])
def test_partition_that_was_added_and_not_written_to_goes_on_when_its_process_is_killed(
    fresh_node: Callable[..., NodeProcess], new_id: Callable[[], str], mode: Mode, kills: int
) -> None:
    """Its log says nothing of the transaction, and nothing of it was lost: the first batch is taken, and committed."""
    node = fresh_node()
    topic = make_topic(node.address, SEVERAL)
    for partition in range(SEVERAL):
        leader = leader_id_of(node.address, topic, partition)
        other = leader % SEVERAL + 1
        name = coordinated_by(node, TRANSACTION, other, new_id)
        with RawClient(node.addresses[other - 1]) as coordinator:
            granted = coordinator.init_producer_id(name)
            mine = name, granted.producer_id, granted.producer_epoch
            assert coordinator.add_partitions(*mine, topic, [partition]) == {partition: NONE}
            for _ in range(kills):
                node.kill_process(leader - 1)
                client = connected(node.addresses[leader - 1])
            data = batch([b"v"], producer_id=mine[1], epoch=mine[2], sequence=0, transactional=True)
            with client:
                assert client.produce(topic, partition, data, transactional_id=name)[0] == NONE
            assert coordinator.end(*mine, commit=True) == NONE
    assert_topic_holds(node.address, topic, {partition: [b"v"] for partition in range(SEVERAL)}, mode=mode)


@pytest.mark.parametrize(
    ("killed", "mode"),
    [(None, Mode.JOURNAL), (None, Mode.MARKERS), ("leader", Mode.JOURNAL), ("coordinator", Mode.JOURNAL)],
)
def test_leader_adds_its_partitions_to_another_brokers_transaction(
    fresh_node: Callable[..., NodeProcess], new_id: Callable[[], str], mode: Mode, killed: str | None
) -> None:
    """Transaction version 2: no request names them to the coordinator. It goes on when a process is killed."""
    node = fresh_node()
    topic = make_topic(node.address, 2 * SEVERAL)
    kept: dict[int, list[bytes]] = {}
    for partition in range(SEVERAL):
        leader = leader_id_of(node.address, topic, partition)
        other, third = leader % SEVERAL + 1, (leader + 1) % SEVERAL + 1
        group = coordinated_by(node, GROUP, third, new_id)
        with RawClient(node.addresses[other - 1]) as coordinator, RawClient(node.addresses[third - 1]) as offsets:
            producer = EpochProducer(coordinator, coordinated_by(node, TRANSACTION, other, new_id))
            for number, commit in enumerate((True, False, True)):
                value = b"%d" % number
                with RawClient(node.addresses[leader - 1]) as client:
                    producer.client = client
                    assert producer.write(topic, value, partition=partition) == NONE
                producer.client = offsets
                assert producer.commit_offset(group, topic, number) == NONE
                if killed is not None and number == 2:
                    node.kill_process((leader if killed == "leader" else other) - 1)
                with connected(node.addresses[leader - 1]) as client, connected(node.addresses[other - 1]) as ends:
                    producer.client = client
                    for each in (partition, partition + SEVERAL):  # the second one is added only now
                        assert producer.write(topic, value, partition=each) == NONE
                    producer.take(producer.end(commit=commit, by=ends))
            assert offsets.settled_offset(group, topic, 0) == (NONE, 2)
        kept |= {partition: [b"0", b"0", b"2", b"2"], partition + SEVERAL: [b"0", b"2"]}
    aborted = {partition: [b"1"] * (2 if partition < SEVERAL else 1) for partition in kept}
    assert_topic_holds(node.address, topic, kept, mode=mode, aborted=aborted)


def connected(address: str) -> RawClient:
    """To a broker that was killed, as soon as it serves again."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            client = RawClient(address, timeout_s=START_S)
            client.api_versions()
        except ConnectionError:
            assert time.monotonic() < deadline, "the broker is not started again"
            time.sleep(0.01)
        else:
            return client


def test_brokers_that_run_serve_their_part_while_another_is_down(
    fresh_node: Callable[..., NodeProcess], new_id: Callable[[], str]
) -> None:
    """Plain records, groups and transactions that do not concern it: whoever is dead delays nobody else."""
    node = fresh_node()
    topic = make_topic(node.address, SEVERAL)
    leaders = {leader_id_of(node.address, topic, partition): partition for partition in range(SEVERAL)}
    name, group = coordinated_by(node, TRANSACTION, 2, new_id), coordinated_by(node, GROUP, 2, new_id)
    with CONFLUENT.producer(node.address, name) as producer, RawClient(node.addresses[1]) as second:
        for _ in range(3):
            node.kill_process(0)
            producer.begin()
            producer.send(topic, leaders[2], b"v")
            producer.send(topic, leaders[3], b"v")
            producer.commit()
            assert second.commit_offset(group, topic, 0, 1) == NONE
    assert_topic_holds(node.address, topic, {leaders[1]: [], leaders[2]: [b"v"] * 3, leaders[3]: [b"v"] * 3})
