"""Quotas of real nodes, and real clients that are above them."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.cli.in_process import fairlog_command
from tests.kafka.asking import REQUESTS

pytestmark = pytest.mark.slow

TIMEOUT_S = 20
VERSIONS, DESCRIBE = 18, 48


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", processes=2)
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


@pytest.fixture
def quota(node: NodeProcess, monkeypatch, capsys) -> Callable[..., list[object]]:
    run = fairlog_command(monkeypatch, capsys)

    def call(*arguments: str) -> list[object]:
        code, out, err = run("quota", *arguments, "--json", "--bootstrap", node.address.split(",")[0])
        assert code == 0, err
        return json.loads(out)

    return call


def ask(address: str, key: int, version: int, *, source: str = "127.0.0.1", **fields: object) -> Any:
    """One request over a connection of its own; None if that is closed without an answer."""
    host, port = address.rsplit(":", 1)
    request = REQUESTS[key][0](version=version, **fields)
    request.with_header(correlation_id=7, client_id="asker")
    frame = bytes(request.encode(version=version, header=True))
    with socket.create_connection((host, int(port)), TIMEOUT_S, source_address=(source, 0)) as stream:
        try:
            stream.sendall(struct.pack(">i", len(frame)) + frame)
            with stream.makefile("rb") as answers:
                head = answers.read(4)
                if len(head) < 4:
                    return None
                body = answers.read(*struct.unpack(">i", head))
        except ConnectionError:
            return None
    header = 5 if REQUESTS[key][0].flexible_version_q(version) and key != VERSIONS else 4
    return REQUESTS[key][1].decode(body[header:], version=version)


def make_topic(node: NodeProcess, name: str, partitions: int) -> None:
    operator = AdminClient({"bootstrap.servers": node.address})
    operator.create_topics([NewTopic(name, partitions)])[name].result(TIMEOUT_S)


def write(node: NodeProcess, topic: str, client_id: str, count: int, size: int) -> list[float]:
    """Write records of this size, each a request; the throttle times that the client was told, in seconds."""
    told: list[float] = []

    def throttled(event: ThrottleEvent) -> None:
        told.append(event.throttle_time)

    settings = {"bootstrap.servers": node.address, "client.id": client_id, "linger.ms": 0, "batch.num.messages": 1}
    producer = Producer({**settings, "throttle_cb": throttled})
    for _ in range(count):
        producer.produce(topic, bytes(size), partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    until = time.monotonic() + 1
    while not told and time.monotonic() < until:
        producer.poll(0.1)
    return told


def test_producer_and_consumer_above_their_quotas_are_told_and_get_everything(node: NodeProcess, quota) -> None:
    """At 100 KB/s a burst of 1 MB is free; what is above it has to wait. Others do not."""
    make_topic(node, "throttled", 1)
    quota("set", "--client-id", "slow", "--producer-byte-rate", "100000", "--consumer-byte-rate", "200000")
    assert write(node, "throttled", "fast", 12, 100_000) == []
    told = write(node, "throttled", "slow", 12, 100_000)
    assert told
    assert 0 < max(told) < 3

    throttled: list[float] = []
    settings = {"bootstrap.servers": node.address, "client.id": "slow", "group.id": "g", "enable.auto.commit": False}
    consumer = Consumer({**settings, "throttle_cb": lambda event: throttled.append(event.throttle_time)})
    consumer.assign([TopicPartition("throttled", 0, 0)])
    until, found = time.monotonic() + TIMEOUT_S, 0
    while found < 24 and time.monotonic() < until:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None
            found += 1
        elif throttled:
            assert 0 < max(throttled) < 10
            quota("delete", "--client-id", "slow")  # it does not have to wait any more
    assert found == 24
    assert throttled
    consumer.close()


def test_other_processes_know_quotas_and_keep_them_over_a_restart(node: NodeProcess, quota) -> None:
    """Each is asked by itself."""
    entity = {"entity": {"user": "bob"}, "quotas": {"consumer_byte_rate": 5.0}}
    assert quota("set", "--user", "bob", "--consumer-byte-rate", "5") == [entity]
    assert [rates_of_bob(address) for address in listening(node)] == [{"consumer_byte_rate": 5.0}] * 2
    node.stop()
    node.start()
    assert [rates_of_bob(address) for address in listening(node)] == [{"consumer_byte_rate": 5.0}] * 2


def rates_of_bob(address: str) -> dict[str, float]:
    bob = REQUESTS[DESCRIBE][0].ComponentData(entity_type="user", match_type=0, match="bob")
    answer = ask(address, DESCRIBE, 1, components=[bob], strict=True)
    return {it.key: it.value for each in answer.entries for it in each.values}


def listening(node: NodeProcess) -> list[str]:
    brokers = AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=TIMEOUT_S).brokers.values()
    assert len(brokers) == 2
    return [f"{broker.host}:{broker.port}" for broker in brokers]


def test_address_above_its_quota_is_closed_at_once_and_counted(node: NodeProcess, quota) -> None:
    quota("set", "--ip", "127.0.0.9", "--connection-rate", "1")
    address = listening(node)[0]
    answers = [ask(address, VERSIONS, 0, source="127.0.0.9") for _ in range(12)]
    assert [answer is not None for answer in answers] == [True] * 10 + [False] * 2
    quota("delete", "--ip", "127.0.0.9")
    assert "more come from the address in a second than its quota allows" in node.log_path.read_text(encoding="utf-8")
