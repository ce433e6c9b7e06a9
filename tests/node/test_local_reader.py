"""The plain reader beside a node under load: another process's reader on a real data directory, by topics' names."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fairlog.cluster.interface import UnknownTopic
from fairlog.local_reader import LocalReader, TopicsCut, UnknownPartition
from fairlog_types import StorageFailure
from scripts.node_process import NodeProcess
from tests.node.nodes import wait_for_the_copy

pytestmark = pytest.mark.slow

PLACES = (("debits", 0), ("credits", 1))
"""Two partitions that every transaction writes to."""
CUTS = 400


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    admin = AdminClient({"bootstrap.servers": node.address})
    made = admin.create_topics([NewTopic(topic, num_partitions=2, replication_factor=1) for topic, _ in PLACES])
    for future in made.values():
        future.result(timeout=15)
    yield node
    if node.running:
        assert node.stop() == 0, node.log_tail()


def write_transactions(address: str, name: str, stop: threading.Event) -> int:
    """Transactions on end, with the same records for both places, every fifth aborted; answers how many committed."""
    chance = random.Random(name)
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(15)
    committed = number = 0
    while not stop.is_set():
        number += 1
        producer.begin_transaction()
        for index in range(chance.randint(1, 3)):
            for topic, partition in PLACES:
                producer.produce(topic, f"{name} {number} {index}", partition=partition)
        if number % 5 == 0:
            producer.flush(15)
            producer.abort_transaction(15)
        else:
            producer.commit_transaction(15)
            committed += 1
    return committed


def read(cut: TopicsCut, positions: dict[tuple[str, int], int]) -> dict[tuple[str, int], dict[str, list[str]]]:
    """What came since the last cut, by place and by producer; moves `positions` on."""
    found: dict[tuple[str, int], dict[str, list[str]]] = {}
    for place in PLACES:
        found[place] = {}
        for record in cut.records(*place, positions[place]):
            assert record.offset == positions[place], "offsets are dense"
            positions[place] += 1
            assert record.value is not None
            producer, _, rest = record.value.decode().partition(" ")
            found[place].setdefault(producer, []).append(rest)
    return found


def test_cuts_beside_transactions_hold_all_or_nothing_of_each(node: NodeProcess) -> None:
    """Two partitions written by the same transactions agree in every one of some hundred cuts, in order and number.

    A cut that is held all the while still shows at the end what it showed at first.
    """
    stop = threading.Event()
    positions, numbers = dict.fromkeys(PLACES, 0), set[int]()
    with LocalReader.open(node.data_dir) as reader, ThreadPoolExecutor() as pool:
        loads = {name: pool.submit(write_transactions, node.address, name, stop) for name in ("first", "second")}
        try:
            while not any(read_once(reader, positions, numbers).values()):
                assert not any(load.done() for load in loads.values())
            with reader.cut() as held:
                held_at = read(held, dict.fromkeys(PLACES, 0))
                while len(numbers) < CUTS:
                    read_once(reader, positions, numbers)
                    assert not any(load.done() for load in loads.values())
                assert read(held, dict.fromkeys(PLACES, 0)) == held_at
        finally:
            stop.set()
    assert node.stop() == 0
    with LocalReader.open(node.data_dir) as reader, reader.cut() as last:
        whole = read(last, dict.fromkeys(PLACES, 0))
    assert whole[PLACES[0]] == whole[PLACES[1]]
    for name, load in loads.items():
        assert len({line.split()[0] for line in whole[PLACES[0]][name]}) == load.result()


def read_once(
    reader: LocalReader, positions: dict[tuple[str, int], int], numbers: set[int]
) -> dict[tuple[str, int], dict[str, list[str]]]:
    """One cut: what is new in it, which must be the same in both places."""
    with reader.cut() as cut:
        found = read(cut, positions)
        numbers.add(cut.number)
    assert found[PLACES[0]] == found[PLACES[1]]
    return found


def test_topic_deleted_beside_an_open_reader_ends_with_its_cut(node: NodeProcess) -> None:
    """Deleted while it is read, a topic is read to its end; afterwards its name is gone, or is another topic's."""
    producer = Producer({"bootstrap.servers": node.address})
    admin = AdminClient({"bootstrap.servers": node.address})
    for number in range(50):
        producer.produce("debits", str(number), partition=0)
    assert producer.flush(15) == 0
    wait_for_the_copy(node.address, "debits")
    with LocalReader.open(node.data_dir) as reader:
        with reader.cut() as cut:
            assert cut.topics() == ["credits", "debits"]
            found = cut.records("debits", 0, 0)
            assert next(found).value == b"0"
            admin.delete_topics(["debits"])["debits"].result(timeout=15)
            assert [record.value for record in found] == [str(number).encode() for number in range(1, 50)]
        with reader.cut() as later:
            assert later.topics() == ["credits"]
            with pytest.raises(UnknownTopic, match="there is no topic debits"):
                later.bounds("debits", 0)
        admin.create_topics([NewTopic("debits", num_partitions=1, replication_factor=1)])["debits"].result(timeout=15)
        with reader.cut() as last:
            assert (last.topics(), last.partitions("debits")) == (["credits", "debits"], [0])
            assert last.bounds("debits", 0).next_offset == 0
            with pytest.raises(UnknownPartition, match="topic debits has no partition 1; it has 1"):
                last.bounds("debits", 1)


def test_reader_goes_on_over_a_restart_of_the_node(node: NodeProcess) -> None:
    """Killed and started again beside an open reader, the node is read on; nothing that was answered is missing."""
    producer = Producer({"bootstrap.servers": node.address, "reconnect.backoff.max.ms": 100})
    with LocalReader.open(node.data_dir) as reader:
        for total in (1, 2, 3):
            producer.produce("debits", str(total), partition=0)
            assert producer.flush(15) == 0
            wait_for_the_copy(node.address, "debits")
            with reader.cut() as cut:
                values = [record.value for record in cut.records("debits", 0, 0)]
            assert values == [str(each).encode() for each in range(1, total + 1)]
            node.kill()
            node.start()


def test_directory_that_is_no_nodes_is_refused(tmp_path: Path) -> None:
    """Nothing is made of a slip of the pen."""
    with pytest.raises(StorageFailure, match="is not the data directory of a node"):
        LocalReader.open(tmp_path)
    assert not list(tmp_path.iterdir())
