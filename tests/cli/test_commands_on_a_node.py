"""The command line against a real node: what a client did is what the commands show."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from scripts.node_process import NodeProcess

pytestmark = pytest.mark.slow

Fairlog = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> Iterator[NodeProcess]:
    """A node of its own, which the commands find by FAIRLOG_BOOTSTRAP."""
    node = NodeProcess(tmp_path / "data", processes=processes)
    node.start()
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", node.addresses[-1])
    yield node
    assert node.stop() == 0, node.log_tail()


def test_commands_show_what_a_transactional_producer_did(node: NodeProcess, fairlog: Fairlog) -> None:
    """Two commits can be found by their places; a third hangs, is seen and aborted, its producer fenced."""
    assert fairlog("topic", "create", "orders", "--partitions", "2")[0] == 0
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": "billing"})
    producer.init_transactions()
    for _ in range(2):
        producer.begin_transaction()
        for partition in (0, 0, 1):
            producer.produce("orders", b"order", partition=partition)
        producer.commit_transaction()
    producer.begin_transaction()
    producer.produce("orders", b"hanging", partition=1)
    assert producer.flush(10) == 0

    # A commit is answered before it is copied, and commands in this process are quick.
    deadline = time.monotonic() + 10
    while (ends := ends_of(fairlog, "orders")) != [(0, 4), (0, 2)] and time.monotonic() < deadline:
        pass
    assert ends == [(0, 4), (0, 2)]
    shown = json.loads(fairlog("txn", "show", "billing", "--json")[1])
    places = [
        [(part["topic"], part["partition"], part["base_offset"], part["count"]) for part in sorted_parts(transaction)]
        for transaction in shown
    ]
    assert places == [[("orders", 0, 0, 2), ("orders", 1, 0, 1)], [("orders", 0, 2, 2), ("orders", 1, 1, 1)]]

    assert json.loads(fairlog("txn", "list", "--state", "Ongoing", "--json")[1])[0]["transactional_id"] == "billing"
    hanging = json.loads(fairlog("txn", "describe", "billing", "--json")[1])
    assert hanging["partitions"] == [{"topic": "orders", "partition": 1}]
    epoch = json.loads(fairlog("txn", "abort", "billing", "--json")[1])["producer_epoch"]
    assert epoch == hanging["producer_epoch"] + 1
    assert json.loads(fairlog("txn", "list", "--state", "Ongoing", "--json")[1]) == []
    with pytest.raises(KafkaException, match="fenced"):
        producer.commit_transaction(10)


def ends_of(fairlog: Fairlog, topic: str) -> list[tuple[int, int]]:
    """Where each partition begins and ends, as `topic describe` says."""
    described = json.loads(fairlog("topic", "describe", topic, "--json")[1])
    return [(each["start"], each["end"]) for each in described["partitions"]]


def sorted_parts(transaction: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    return sorted(transaction["records"], key=lambda part: str(part["partition"]))


def test_topic_deleted_stays_deleted_over_a_restart(node: NodeProcess, fairlog: Fairlog) -> None:
    """What the command answered is durable; its name is free for a new, empty topic."""
    for command in (("create", "kept"), ("create", "gone"), ("delete", "gone")):
        assert fairlog("topic", *command)[0] == 0
    node.kill()
    node.start()
    assert json.loads(fairlog("topic", "list", "--json")[1]) == [
        {"topic": "kept", "partitions": 1, "transactions": "journal"}
    ]
    assert fairlog("topic", "create", "gone")[0] == 0


def test_topic_is_changed_from_the_command_line(node: NodeProcess, fairlog: Fairlog) -> None:
    """Configs, partitions and the first offset; what is shown is what the node says, and it refuses by name."""
    assert fairlog("topic", "create", "orders")[0] == 0
    shown = json.loads(fairlog("topic", "config", "orders", "--config", "retention.ms=9", "--json")[1])["configs"]
    assert {"name": "retention.ms", "value": "9", "source": "topic"} in shown
    shown = json.loads(fairlog("topic", "config", "orders", "--delete", "retention.ms", "--json")[1])["configs"]
    assert {"name": "retention.ms", "value": "604800000", "source": "default"} in shown
    assert "unknown topic config retention" in fairlog("topic", "config", "orders", "--config", "retention=9")[2]
    assert fairlog("topic", "partitions", "orders", "2")[0] == 0
    assert "has 2 partitions already" in fairlog("topic", "partitions", "orders", "1")[2]
    producer = Producer({"bootstrap.servers": node.address, "acks": "all", "linger.ms": 0})
    for partition in (0, 0, 1):
        producer.produce("orders", b"order", partition=partition)
        assert producer.flush(10) == 0
    assert fairlog("topic", "trim", "orders", "0", "1")[0] == 0
    assert fairlog("topic", "trim", "orders", "1", "end")[0] == 0
    assert ends_of(fairlog, "orders") == [(1, 2), (1, 1)]


def test_members_of_a_group_are_listed_with_it_and_committed_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fairlog: Fairlog, processes: int
) -> None:
    """Two producers of one group in turns: the group stands in the list, and the files keep what it promises."""
    separator = {"FAIRLOG_TRANSACTIONS_GROUP_SEPARATOR": "::"}
    node = NodeProcess(tmp_path / "data", separator, processes=processes)
    node.start()
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", node.addresses[-1])
    assert fairlog("topic", "create", "orders", "--partitions", "2")[0] == 0
    ids = ("orders::1", "orders::2", "alone")
    producers = [Producer({"bootstrap.servers": node.address, "transactional.id": each}) for each in ids]
    for producer in producers:
        producer.init_transactions()
    for number in range(20):
        producer = producers[number % 3]
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("orders", str(number).encode(), partition=partition)
        producer.commit_transaction()
    listed = json.loads(fairlog("txn", "list", "--json")[1])
    assert {each["transactional_id"]: each["group"] for each in listed} == {
        "orders::1": "orders",
        "orders::2": "orders",
        "alone": "alone",
    }
    assert "group" in fairlog("txn", "list")[1].splitlines()[0]
    assert node.stop() == 0, node.log_tail()
    code, out, err = fairlog("verify", str(tmp_path / "data"))
    assert code == 0, out + err
