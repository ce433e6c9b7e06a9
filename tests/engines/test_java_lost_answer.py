"""The Java producer when a batch was written, its answer was lost, and the node restarts during the commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient
from tests.engines import topics
from tests.engines.full import FULL
from tests.engines.jvm import CLIENTS_3, CLIENTS_4, Engine
from tests.engines.losing_proxy import LosingProxy
from tests.engines.programs import WAIT_S, Conversation

PRODUCE = 0


@pytest.fixture(params=[CLIENTS_4, CLIENTS_3], ids=str)
def clients(request: pytest.FixtureRequest) -> Engine:
    """The jars of each series."""
    request.param.require()
    return request.param


MakeProducer = Callable[..., Conversation]


@pytest.fixture
def proxy(processes: int) -> Iterator[LosingProxy]:
    """Between the producer and the node."""
    with LosingProxy(processes) as proxy:
        yield proxy


@pytest.fixture
def node(fresh_node: Callable[..., NodeProcess], proxy: LosingProxy) -> NodeProcess:
    """A node whose clients reach it through the proxy."""
    node = fresh_node(FAIRLOG_ADVERTISED=proxy.address)
    proxy.pass_on_to(node.listening)
    return node


@pytest.fixture
def producer(clients: Engine, proxy: LosingProxy, tmp_path: Path) -> Iterator[MakeProducer]:
    """A factory of producers, which have one transactional id: `producer("transaction.timeout.ms"="…")`."""
    made: list[Conversation] = []

    def make(**settings: str) -> Conversation:
        chosen = {
            "bootstrap.servers": proxy.address,
            "transactional.id": "id",
            "delivery.timeout.ms": "30000",
            "request.timeout.ms": "10000",
            "reconnect.backoff.max.ms": "200",
        } | settings
        command = clients.command("ProducerDriver", *(f"{name}={value}" for name, value in chosen.items()))
        made.append(Conversation(command, tmp_path / "producer.log"))
        made[-1].ask("init")
        return made[-1]

    yield make
    for each in made:
        each.kill()


def commit(producer: Conversation, *records: str) -> list[str]:
    """Each in a transaction of its own."""
    for value in records:
        producer.ask("begin")
        producer.ask("send", "topic", 0, "k", value)
        producer.ask("commit")
    return list(records)


def lose_answer(producer: Conversation, proxy: LosingProxy) -> None:
    """Begin a transaction with a record that the node has and the producer does not know of, and be committing it."""
    producer.ask("begin")
    proxy.lose_answer_to(PRODUCE)
    producer.ask("send", "topic", 0, "k", "lost answer")
    producer.tell("commit")
    proxy.wait_until_lost()


@BOTH_MODES
@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=FULL)])
def test_java_producer_whose_answer_was_lost_over_a_restart_commits_again(
    node: NodeProcess, mode: Mode, proxy: LosingProxy, producer: MakeProducer, how: str
) -> None:
    """The transaction is whole or absent, as the producer is told; and the same producer commits the ones after it."""
    topics.make(proxy.address, "topic")
    writer = producer()
    truth = commit(writer, "first")
    lose_answer(writer, proxy)
    node.kill() if how == "kill" else node.stop()
    node.start()
    answer = writer.answer()
    if "error" in answer:
        assert not answer["fenced"], answer
        writer.ask("abort")
    else:
        truth.append("lost answer")
    truth += commit(writer, "second", "third")
    assert topics.committed_values(proxy.address, "topic", 1, mode) == [truth]


@BOTH_MODES
def test_java_producer_whose_answer_was_lost_over_a_timeout_commits_again_or_is_fenced(
    node: NodeProcess, mode: Mode, proxy: LosingProxy, producer: MakeProducer
) -> None:
    """The transaction is gone, and the producer is told: it goes on after an abort, or a new one takes its place."""
    topics.make(proxy.address, "topic")
    writer = producer(**{"transaction.timeout.ms": "5000"})
    truth = commit(writer, "first")
    lose_answer(writer, proxy)
    wait_until_ended(node, "id")
    proxy.cut()
    answer = writer.answer()
    assert "error" in answer, answer
    if answer["fenced"]:
        writer = producer()
    else:
        writer.ask("abort")
    truth += commit(writer, "second", "third")
    assert topics.committed_values(proxy.address, "topic", 1, mode) == [truth]


def wait_until_ended(node: NodeProcess, transactional_id: str) -> None:
    """Until the node says that the id's transaction is neither open nor being decided."""
    deadline = time.monotonic() + WAIT_S
    with RawClient(node.listening) as client:
        while (state := client.transaction_state(transactional_id).transaction_state) in ("Ongoing", "PrepareAbort"):
            assert time.monotonic() < deadline, f"{transactional_id} is still {state}"
            time.sleep(0.02)
