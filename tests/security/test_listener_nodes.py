"""Nodes with several listeners, as clients see them: Kafka's, and openssl."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient

from tests.security.conftest import Node

with warnings.catch_warnings():
    # kafka-python reads its message definitions with a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as PythonPartition

WAIT_S = 30
LISTEN = "CLIENTS://127.0.0.1:0,LOCAL://127.0.0.1:0"
TOLD = "CLIENTS://localhost:0"
OPEN = "anyone who reaches this address can read and change everything"
PROTOCOLS = {"FAIRLOG_SECURITY_PROTOCOLS": "CLIENTS:SSL,LOCAL:PLAINTEXT"}
VALUES = [os.urandom(900_000), *(b"%d" % number for number in range(20)), os.urandom(900_000)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Clients come in by CLIENTS, with TLS and a certificate of their own, and are told `localhost`."""
    found = Node(
        tmp_path_factory.mktemp("node"),
        LISTEN,
        advertised=TOLD,
        FAIRLOG_TLS_CLIENT_AUTH="CLIENTS:required",
        **PROTOCOLS,
    )
    yield found
    assert found.process.stop() == 0, found.process.log_tail()


def librdkafka(node: Node, name: str = "CLIENTS", shard: int = 0) -> dict[str, object]:
    conf: dict[str, object] = {"bootstrap.servers": node.listeners[shard][name], "log_level": 0}
    if name != "CLIENTS":
        return conf
    return conf | {
        "security.protocol": "SSL",
        "ssl.ca.location": str(node.authority.certificate),
        "ssl.certificate.location": str(node.client.certificate),
        "ssl.key.location": str(node.client.key),
    }


# --- clients by TLS -----------------------------------------------------------------------------------------


def by_confluent(node: Node, topic: str) -> list[bytes]:
    producer = Producer(librdkafka(node) | {"message.max.bytes": 1_000_000, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value)
    producer.commit_transaction(WAIT_S)
    consumer = Consumer(librdkafka(node) | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([ConfluentPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < len(VALUES) and (more := consumer.consume(len(VALUES) - len(found), WAIT_S)):
        found += [message.value() for message in more]
    consumer.close()
    return found


def by_kafka_python(node: Node, topic: str) -> list[bytes]:
    conf = {
        "bootstrap_servers": node.listeners[0]["CLIENTS"],
        "security_protocol": "SSL",
        "ssl_cafile": str(node.authority.certificate),
        "ssl_certfile": str(node.client.certificate),
        "ssl_keyfile": str(node.client.key),
    }
    producer = KafkaProducer(**conf)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(**conf, auto_offset_reset="earliest", consumer_timeout_ms=WAIT_S * 1000)
    consumer.assign([PythonPartition(topic, 0)])
    found = [record.value for _, record in zip(VALUES, consumer, strict=False)]
    consumer.close()
    return found


def by_aiokafka(node: Node, topic: str) -> list[bytes]:
    context = ssl.create_default_context(cafile=node.authority.certificate)
    context.load_cert_chain(node.client.certificate, node.client.key)
    conf = {
        "bootstrap_servers": node.listeners[0]["CLIENTS"],
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def run() -> list[bytes]:
        async with AIOKafkaProducer(**conf) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(**conf, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return [(await asyncio.wait_for(consumer.getone(), WAIT_S)).value for _ in VALUES]

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("client", [by_confluent, by_kafka_python, by_aiokafka])
def test_client_writes_and_reads_by_tls(node: Node, client: Callable[[Node, str], list[bytes]]) -> None:
    """Small records and large ones come back as they were."""
    assert client(node, client.__name__.replace("_", "-")) == VALUES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "works", "words"),
    [
        (("-tls1_2",), True, "TLSv1.2"),
        (("-tls1_3",), True, "TLSv1.3"),
        (("-tls1_1", "-cipher", "ALL:@SECLEVEL=0"), False, "protocol version"),
        (("-tls1_2", "-cipher", "AES128-SHA"), False, "handshake failure"),
    ],
)
def test_openssl_finds_two_versions(node: Node, arguments: tuple[str, ...], works: bool, words: str) -> None:
    """TLS 1.1 is refused, and so are old ciphers; the client is told why."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl")
    done = subprocess.run(
        [
            openssl, "s_client", "-connect", node.listeners[0]["CLIENTS"].replace("localhost", "127.0.0.1"),
            "-CAfile", str(node.authority.certificate), "-verify_return_error",
            "-cert", str(node.client.certificate), "-key", str(node.client.key), *arguments,
        ],
        input=b"", capture_output=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    output = (done.stdout + done.stderr).decode()
    assert (done.returncode == 0, words in output) == (works, True), output


# --- what clients are told -----------------------------------------------------------------------------------


def told(node: Node, name: str, shard: int = 0) -> dict[int, str]:
    metadata = AdminClient(librdkafka(node, name, shard)).list_topics(timeout=WAIT_S)
    return {each.id: f"{each.host}:{each.port}" for each in metadata.brokers.values()}


@pytest.mark.slow
def test_node_tells_each_client_the_address_of_its_listener(node: Node) -> None:
    """A listener that is not advertised is reached where it listens. Ready line and log show both."""
    (listeners,) = node.listeners
    assert listeners["CLIENTS"].startswith("localhost:")
    assert listeners["LOCAL"].startswith("127.0.0.1:")
    assert told(node, "CLIENTS") == {1: listeners["CLIENTS"]}
    assert told(node, "LOCAL") == {1: listeners["LOCAL"]}
    shown = f"CLIENTS://{listeners['CLIENTS']},LOCAL://{listeners['LOCAL']}"
    assert f'"address": "{shown}"' in node.log
    assert OPEN not in node.log


@pytest.mark.slow
def test_brokers_of_three_processes_are_told_by_the_listener(new_node: Callable[..., Node]) -> None:
    """Whichever is asked. A transaction over all of them goes by TLS; a process that dies finds its ports again.
    A listener without TLS that other machines may reach is pointed out, once.
    """
    node = new_node(
        f"{LISTEN},PLAINTEXT://0.0.0.0:0", processes=3, advertised=f"{TOLD},PLAINTEXT://localhost:0", **PROTOCOLS
    )
    (line,) = [line for line in node.log.splitlines() if OPEN in line]  # of three processes one says so
    assert "docs/security.md" in line
    assert "PLAINTEXT://0.0.0.0:" in line
    assert "CLIENTS://" not in line
    assert "LOCAL://" not in line
    for name in ("CLIENTS", "LOCAL"):
        expected = {1 + shard: each[name] for shard, each in enumerate(node.listeners)}
        assert [told(node, name, shard) for shard in range(3)] == [expected] * 3
    before = node.listeners
    producer = Producer(librdkafka(node) | {"transactional.id": "t", "log_level": 0})
    producer.init_transactions(WAIT_S)
    for _ in range(2):
        producer.begin_transaction()
        for number in range(30):
            producer.produce("spread", b"%d" % number)
        producer.commit_transaction(WAIT_S)
        node.process.kill_process(1)
    consumer = Consumer(librdkafka(node, "LOCAL") | {"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["spread"])
    found: list[bytes] = []
    while len(found) < 60 and (more := consumer.consume(60 - len(found), WAIT_S)):
        found += [message.value() for message in more]
    consumer.close()
    assert sorted(found) == sorted(2 * [b"%d" % number for number in range(30)])
    assert told(node, "CLIENTS") == {1 + shard: each["CLIENTS"] for shard, each in enumerate(before)}
