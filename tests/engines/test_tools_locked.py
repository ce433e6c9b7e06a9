"""Kafka's command line tools at a node with all its locks, by `--command-config`: one walk, in one virtual machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.engines.jvm import TOOLS
from tests.engines.programs import Conversation
from tests.engines.test_tools import MAIN
from tests.security.locked import WAIT_S, LockedNode, locked_node

Tool = Callable[..., tuple[int, str]]


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[LockedNode]:
    TOOLS.require()
    with locked_node(tmp_path / "locked") as locked:
        yield locked


@pytest.fixture
def tool(locked: LockedNode, tmp_path: Path) -> Iterator[Tool]:
    """Runs one as a user: `tool("admin", "kafka-topics", "--list")`; its status, and what it prints."""
    with Conversation(TOOLS.command("Tools"), tmp_path / "tools.log") as conversation:

        def run(user: str, name: str, *arguments: str, text: str = "", password: str | None = None) -> tuple[int, str]:
            file = locked.file(user, **({} if password is None else {"password": password}))
            address = ("--bootstrap-server", locked.address, "--command-config", str(file))
            told = conversation.ask(MAIN[name], text.replace("\n", "\\n"), *address, *arguments)
            return told["status"], told["output"]

        yield run


def test_tools_walk_through_a_locked_node(locked: LockedNode, tool: Tool) -> None:
    """A user is made, may do nothing, is given ACLs, writes and reads, is looked at, and is gone."""

    def done(user: str, name: str, *arguments: str, text: str = "") -> str:
        status, printed = tool(user, name, *arguments, text=text)
        assert status == 0, printed
        return printed

    bob = ("--entity-type", "users", "--entity-name", "bob")
    scram = f"SCRAM-SHA-512=[iterations=8192,password={locked.password('bob')}]"
    done("admin", "kafka-configs", "--alter", *bob, "--add-config", scram)
    done("admin", "kafka-configs", "--alter", *bob, "--add-config", "producer_byte_rate=1048576")
    printed = done("admin", "kafka-configs", "--describe", *bob)
    assert "SCRAM-SHA-512=iterations=8192" in printed
    assert "producer_byte_rate=1048576" in printed
    done("admin", "kafka-topics", "--create", "--topic", "typed", "--partitions", "2")

    # Nobody knows the one password, and the other user may see nothing.
    status, printed = tool("bob", "kafka-topics", "--list", password="wrong")
    assert status != 0
    assert "invalid credentials" in printed
    assert done("bob", "kafka-topics", "--list").strip() == ""
    status, printed = tool("bob", "kafka-acls", "--list")
    assert "ClusterAuthorizationException" in printed or "not authorized" in printed.lower()

    for role in (("--producer", "--transactional-id", "of-bob"), ("--consumer", "--group", "g")):
        done("admin", "kafka-acls", "--add", "--allow-principal", "User:bob", *role, "--topic", "typed")
    assert "(principal=User:bob, host=*, operation=READ" in done("admin", "kafka-acls", "--list", "--topic", "typed")
    assert "typed" in done("bob", "kafka-topics", "--list")
    done("bob", "kafka-console-producer", "--topic", "typed", text="one\ntwo\nthree\n")
    read = done("bob", "kafka-console-consumer", "--topic", "typed", "--from-beginning", "--group", "g",
                "--max-messages", "3")  # fmt: skip
    assert {"one", "two", "three"} <= set(read.splitlines())
    described = done("bob", "kafka-consumer-groups", "--describe", "--group", "g")
    assert len([line for line in described.splitlines() if line.split()[:2] == ["g", "typed"]]) == 2

    producer = Producer({**locked.librdkafka("bob"), "transactional.id": "of-bob"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("typed", b"never to be seen", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert "of-bob" in done("bob", "kafka-transactions", "list")
    done("bob", "kafka-transactions", "forceTerminateTransaction", "--transactionalId", "of-bob")
    assert "Empty" in done("admin", "kafka-transactions", "list")

    done("admin", "kafka-configs", "--alter", *bob, "--delete-config", "SCRAM-SHA-512")
    status, printed = tool("bob", "kafka-topics", "--list")
    assert status != 0
    assert "invalid credentials" in printed
