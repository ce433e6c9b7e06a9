"""Every client of the tests on SASL_SSL, by SCRAM and with ACLs: a transaction, then a member of a group that reads it.

And each says clearly that a password is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import aiokafka.errors
import confluent_kafka
import pytest
from confluent_kafka.admin import AclOperation, NewTopic, ResourceType

from fairlog.cli import client_properties
from scripts import kcat
from tests.engines import franz
from tests.engines.jvm import CLIENTS_3, CLIENTS_4, Engine
from tests.engines.programs import Conversation, Workers
from tests.examples.orders_program import EXAMPLE, PreparedProducer
from tests.security.locked import WAIT_S, LockedNode, locked_node
from tests.security.refusals import poll_until_told

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

pytestmark = pytest.mark.slow

USER = "alice"
VALUES = [b"one", b"two", b"three"]
LONG_S = 60.0
"""For programs that are started, on a busy machine."""


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LockedNode]:
    two_phases = {"FAIRLOG_TRANSACTIONS_TWO_PHASE_COMMIT_ENABLE": "true"}
    with locked_node(tmp_path_factory.mktemp("locked"), **two_phases) as locked:
        locked.add(USER)
        everything = (AclOperation.READ, AclOperation.WRITE)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID):
            locked.allow(USER, kind, "of-", *everything[: 1 if kind is ResourceType.GROUP else 2], prefixed=True)
        yield locked


@pytest.fixture
def topic(locked: LockedNode, request: pytest.FixtureRequest) -> str:
    """A new one, whose name is also that of the group and the transactional id."""
    name = "of-" + "".join(each if each.isalnum() else "-" for each in request.node.name)
    names = [name, f"{name}-out"]
    for future in locked.admin.create_topics([NewTopic(each, num_partitions=1) for each in names]).values():
        future.result(WAIT_S)
    return name


def written_and_read(locked: LockedNode, topic: str, *, group: str | None = None, **client: str) -> list[bytes | None]:
    """By confluent-kafka."""
    settings = locked.librdkafka(USER, **client)
    producer = confluent_kafka.Producer({**settings, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value)
    producer.commit_transaction(WAIT_S)
    return read(locked, topic, group=group, **client)


def read(locked: LockedNode, topic: str, *, group: str | None = None, **client: str) -> list[bytes | None]:
    """As many as there are values, by a member of a group."""
    settings = locked.librdkafka(USER, **client)
    consumer = confluent_kafka.Consumer({**settings, "group.id": group or topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(len(VALUES), LONG_S)]
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_confluent_kafka(locked: LockedNode, topic: str, mechanism: str) -> None:
    assert written_and_read(locked, topic, mechanism=mechanism) == VALUES


def test_confluent_kafka_with_a_wrong_password(locked: LockedNode) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    settings = locked.librdkafka(USER, password="wrong")
    producer = confluent_kafka.Producer({**settings, "error_cb": errors.append})
    with pytest.raises(confluent_kafka.KafkaException):
        producer.list_topics(timeout=2)
    poll_until_told(producer, errors)
    assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in errors}
    assert any("invalid credentials" in error.str() for error in errors)


def of_python(locked: LockedNode, password: str | None = None) -> dict[str, object]:
    """The settings of the two clients that are written in Python."""
    return {
        "bootstrap_servers": locked.address,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": USER,
        "sasl_plain_password": locked.password(USER) if password is None else password,
        "ssl_context": ssl.create_default_context(cafile=str(locked.certificate)),
    }


def test_kafka_python(locked: LockedNode, topic: str) -> None:
    producer = kafka.KafkaProducer(**of_python(locked), transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    for value in VALUES:
        producer.send(topic, value)
    producer.commit_transaction()
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        **of_python(locked),
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=2_000 * WAIT_S,
    )
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def test_kafka_python_with_a_wrong_password(locked: LockedNode) -> None:
    """It drops what it has read when the end of the connection comes with it (3.0.12), so the sentence is lost."""
    with pytest.raises(kafka.errors.KafkaError, match=r"Unable to bootstrap|invalid credentials"):
        kafka.KafkaAdminClient(**of_python(locked, "wrong"), bootstrap_timeout_ms=1_000)
    refused = [json.loads(line) for line in locked.node.log.splitlines() if '"sign-in refused"' in line]
    assert {each["user"] for each in refused} == {USER}


def test_aiokafka(locked: LockedNode, topic: str) -> None:
    async def write_and_read() -> list[bytes | None]:
        async with (
            aiokafka.AIOKafkaProducer(**of_python(locked), transactional_id=topic) as producer,
            producer.transaction(),
        ):
            for value in VALUES:
                await producer.send(topic, value)
        group = {"group_id": topic, "auto_offset_reset": "earliest"}
        async with aiokafka.AIOKafkaConsumer(topic, **of_python(locked), **group) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 2 * WAIT_S)).value for _ in VALUES]

    assert asyncio.run(write_and_read()) == VALUES


def test_aiokafka_with_a_wrong_password(locked: LockedNode, caplog: pytest.LogCaptureFixture) -> None:
    """It raises that it cannot connect, and its log says why."""

    async def begin() -> None:
        producer = aiokafka.AIOKafkaProducer(**of_python(locked, "wrong"))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises(aiokafka.errors.KafkaError) as error:
        asyncio.run(begin())
    assert "invalid credentials" in caplog.text + str(error.value)


def test_kcat(locked: LockedNode, topic: str, tmp_path: Path) -> None:
    """With a file of properties, as people have it in ~/.config/kcat.conf.

    By PLAIN: Debian 12's librdkafka is older than 2.6.1, whose SCRAM neither Kafka 4 nor a node takes.
    """
    program = kcat.find()
    if program is None:
        pytest.skip(kcat.MISSING)
    file = tmp_path / "kcat.conf"

    def run(*arguments: str, given: str = "", **client: str) -> subprocess.CompletedProcess[str]:
        settings = {**locked.librdkafka(USER, mechanism="PLAIN", **client), "log_level": 3}
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        command = [program, "-F", str(file), *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=LONG_S, check=False)

    lines = "".join(value.decode() + "\n" for value in VALUES)
    written = run("-P", "-t", topic, "-X", f"transactional.id={topic}", given=lines)
    assert written.returncode == 0, written.stderr
    found = run("-G", topic, "-X", "auto.offset.reset=earliest", "-e", "-q", topic)
    assert (found.returncode, found.stdout) == (0, lines), found.stderr
    refused = run("-L", "-m", "15", password="wrong")
    assert refused.returncode != 0
    assert "invalid credentials" in refused.stderr


@pytest.mark.parametrize("engine", [CLIENTS_4, CLIENTS_3], ids=str)
def test_java(locked: LockedNode, topic: str, engine: Engine, tmp_path: Path) -> None:
    """Consume, transform, produce: a member of a group whose offsets are in its transactions.

    With a wrong password Java's client is in `tests/engines/test_tools_locked.py`.
    """
    engine.require()
    settings = [f"{name}={value}" for name, value in locked.java(USER).items()]
    words = ["Transform", locked.address, topic, f"{topic}-out", topic, topic, "classic", *settings]
    transformed_by(engine.command(*words), locked, topic, tmp_path)


def test_franz_go(locked: LockedNode, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    franz.require()
    monkeypatch.setenv("FRANZ_USER", USER)
    monkeypatch.setenv("FRANZ_PASSWORD", locked.password(USER))
    monkeypatch.setenv("FRANZ_CA", str(locked.certificate))
    words = ["transform", locked.address, topic, f"{topic}-out", topic, topic]
    transformed_by(franz.command(*words), locked, topic, tmp_path)
    monkeypatch.setenv("FRANZ_PASSWORD", "wrong")
    with Conversation(franz.command("produce", locked.address, topic), tmp_path / "wrong.log") as producer:
        assert "SASL_AUTHENTICATION_FAILED" in producer.refused("begin")["error"]


def test_examples_take_a_file_of_properties(locked: LockedNode) -> None:
    """As the commands do, by the same variable."""
    properties = locked.file("admin")
    program = Path(EXAMPLE).parent / "flights" / "load.py"
    loaded = subprocess.run(
        [sys.executable, str(program), "--bootstrap", locked.address],
        env=os.environ | {"FAIRLOG_CLIENT_PROPERTIES": str(properties)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.startswith("3,614 flights")
    security = client_properties.read(properties).security
    producer = PreparedProducer(locked.address, "of-two-phases", security)
    with contextlib.closing(producer):
        assert producer.take_over() is None
        producer.send("flights", b"value")
        producer.end(commit=True)


def transformed_by(command: list[str], locked: LockedNode, topic: str, directory: Path) -> None:
    """What is written to the topic comes out of the program in capitals."""
    assert written_and_read(locked, topic, group=f"{topic}-other") == VALUES
    with Workers([command], directory / "program.log") as program:
        found = read(locked, f"{topic}-out")
        assert found == [value.upper() for value in VALUES], program.log_tail()
