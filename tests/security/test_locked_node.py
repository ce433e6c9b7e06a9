"""A node with all its locks, as docs/security.md sets it up: TLS, users, ACLs, and a trail of who did what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.cli.in_process import fairlog_command
from tests.security.conftest import Node

pytestmark = pytest.mark.slow

TIMEOUT_S = 15


def test_node_is_locked_as_the_page_says(
    new_node: Callable[..., Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first user is added in the data directory; it adds the others, and says what they may do."""
    trail = tmp_path / "trail.jsonl"
    node = new_node(
        "CLIENTS://127.0.0.1:0",
        FAIRLOG_SECURITY_PROTOCOLS="CLIENTS:SASL_SSL",
        FAIRLOG_AUTHORIZER_ENABLE="true",
        FAIRLOG_AUTHORIZER_SUPER_USERS="User:admin",
        FAIRLOG_ADMIN_LISTEN="127.0.0.1:0",
        FAIRLOG_TRAIL_FILE=str(trail),
    )
    address = node.listeners[0]["CLIENTS"]

    def properties(user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": f"the secret of {user}",
            "ssl.ca.location": str(node.authority.certificate),
        }

    def password_file(user: str) -> Path:
        file = tmp_path / f"{user}.password"
        file.write_text(f"the secret of {user}\n", encoding="utf-8")
        return file

    assert node.process.console is not None
    admin = node.process.console[len("http://") : -1]
    first = ["user", "add", "admin", "--password-file", str(password_file("admin")), "--admin", admin]
    subprocess.run(
        [sys.executable, "-m", "fairlog.cli", *first, "--data-dir", str(node.process.data_dir)],
        check=True,
        capture_output=True,
    )
    client_properties = tmp_path / "admin.properties"
    client_properties.write_text(
        "".join(f"{name}={value}\n" for name, value in properties("admin").items()), encoding="utf-8"
    )
    run = fairlog_command(monkeypatch, capsys)
    as_admin = ("--client-properties", client_properties)
    to_node = ("--bootstrap", address)
    for command in (
        ("user", "add", "alice", "--password-file", password_file("alice")),
        ("user", "add", "bob", "--password-file", password_file("bob")),
        ("topic", "create", "orders"),
        ("acl", "add", "--allow-principal", "User:alice", "--consumer", "--topic", "orders", "--group", "readers"),
        ("acl", "add", "--allow-principal", "User:bob", "--producer", "--topic", "orders"),
    ):
        code, _, error = run(*as_admin, *command, *to_node)
        assert code == 0, (command, error)

    assert write(address, properties("bob")) is None
    assert read(address, properties("alice")) == [b"an order"]
    assert write(address, properties("alice")) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(confluent_kafka.KafkaException, match="AUTHORIZATION_FAILED"):
        read(address, properties("bob"))
    code, _, error = run(
        "--client-properties", alice_file(tmp_path, properties("alice")), "topic", "delete", "orders", *to_node
    )
    assert code == 1, error

    lines = [json.loads(line) for line in trail.read_text(encoding="utf-8").splitlines()]
    done = [(line["principal"], line["action"], line["on"], line["outcome"]) for line in lines]
    assert ("Token:admin", "alter user", "admin", "done") in done
    assert ("User:admin", "alter user", "alice", "done") in done
    assert ("User:admin", "create topic", "orders", "done") in done
    assert ("User:admin", "create acl", "orders", "done") in done
    assert ("User:alice", "delete topic", "orders", "TOPIC_AUTHORIZATION_FAILED") in done
    written = trail.read_text(encoding="utf-8") + node.log
    assert not any(f"the secret of {user}" in written for user in ("admin", "alice", "bob"))


def alice_file(directory: Path, properties: Mapping[str, str]) -> Path:
    file = directory / "alice.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
    return file


def write(address: str, properties: Mapping[str, str]) -> int | None:
    """Write one order; the code of the error, if there is one."""
    outcome: list[int | None] = []
    producer = Producer({"bootstrap.servers": address, **properties})
    producer.produce(
        "orders", b"an order", on_delivery=lambda error, _: outcome.append(None if error is None else error.code())
    )
    assert producer.flush(TIMEOUT_S) == 0
    return outcome[0]


def read(address: str, properties: Mapping[str, str]) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "readers", "enable.auto.commit": False, **properties}
    )
    try:
        consumer.assign([TopicPartition("orders", 0, 0)])
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is not None:
            raise confluent_kafka.KafkaException(message.error())
        return [message.value()]
    finally:
        consumer.close()
