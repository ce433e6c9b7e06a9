"""Transactions that nobody ends, and those that delay nobody while they hang (invariant 8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from scripts.node_process import NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.drivers import CONFLUENT, ClientError, ClientKind, ProducerDriver
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient
from tests.clients.reading import WAIT_S, assert_topic_holds
from tests.node.nodes import pretend_reboot

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


TIMEOUT_MS = 3_000
"""Longer than a client needs that gets no processor for a while: what it writes in time has to be in time."""


def wait_until_ended(node: NodeProcess, transactional_id: str) -> None:
    """Until the node says that the id's transaction is neither open nor being decided."""
    deadline = time.monotonic() + WAIT_S
    with RawClient(node.address) as client:
        while (state := client.transaction_state(transactional_id).transaction_state) in ("Ongoing", "PrepareAbort"):
            assert time.monotonic() < deadline, f"{transactional_id} is still {state}"
            time.sleep(0.02)


GAVE_UP = (ClientError, AssertionError)
"""What the clients raise when they refuse to go on; aiokafka, an assertion of its own."""


def carry_on(client: ClientKind, address: str, producer: ProducerDriver, transactional_id: str, topic: str) -> bool:
    """Abort, then commit one more transaction; whether the same producer did. If it cannot begin, a new one does.

    A producer that begins has to be able to commit: one that is refused again and again would never end.
    """
    with suppress(*GAVE_UP):
        producer.abort()
    try:
        producer.begin()
    except GAVE_UP:
        with client.producer(address, transactional_id) as successor:
            successor.begin()
            successor.send(topic, 0, b"next")
            successor.commit()
        return False
    producer.send(topic, 0, b"next")
    producer.commit()
    return True


@pytest.mark.parametrize("fence", ["true", "false"], ids=["fenced", "not fenced"])
def test_timeout_is_heard_of_in_whatever_the_client_does_next(
    fresh_node: Callable[..., NodeProcess], client: ClientKind, fence: str
) -> None:
    """It writes on, to a partition of the transaction or to a new one, or commits: nothing of that is ever read.

    Then its next transaction is committed, by a new producer if the client knows no way to go on. librdkafka does,
    unless it is fenced.
    """
    node = fresh_node(FAIRLOG_TRANSACTIONS_FENCE_ON_TIMEOUT=fence)
    topic = make_topic(node.address, 2)
    steps = {"same partition": 0, "new partition": 1, "commit": None}
    with ExitStack() as stack:
        late: dict[str, ProducerDriver] = {}
        for step in steps:
            late[step] = stack.enter_context(client.producer(node.address, step, timeout_ms=TIMEOUT_MS))
            late[step].begin()
            late[step].send(topic, 0, b"lost")
            late[step].flush()
        for step, partition in steps.items():
            wait_until_ended(node, step)
            if partition is not None:
                late[step].send(topic, partition, b"lost")
            with pytest.raises(ClientError):
                late[step].commit()
            goes_on = carry_on(client, node.address, late[step], step, topic)
            assert goes_on == (client is CONFLUENT and fence == "false"), step
    assert_topic_holds(node.address, topic, {0: [b"next"] * len(steps), 1: []})


def test_client_with_nothing_written_yet_is_not_refused_for_ever_after_a_loss_of_power(
    fresh_node: Callable[..., NodeProcess], client: ClientKind
) -> None:
    """Its first request is refused. Some clients then abort without a word to the broker, and begin anew."""
    node = fresh_node()
    topic = make_topic(node.address, 1)
    with client.producer(node.address, "txn") as producer:
        producer.begin()
        node.kill()
        pretend_reboot(node)
        node.start()
        producer.send(topic, 0, b"lost")
        with pytest.raises(ClientError):
            producer.commit()
        assert carry_on(client, node.address, producer, "txn", topic) == (client is CONFLUENT)
    assert_topic_holds(node.address, topic, {0: [b"next"]})


@BOTH_MODES
def test_timeout_aborts_the_transaction_and_fences_its_producer(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Past its time-out a transaction is aborted; the producer that wakes up late cannot commit it."""
    topic, transactional_id = new_topic(), new_id()
    with client.producer(node.address, transactional_id, timeout_ms=TIMEOUT_MS) as sleeper:
        sleeper.begin()
        sleeper.send(topic, 0, b"too late")
        sleeper.flush()
        wait_until_ended(node, transactional_id)
        with pytest.raises(ClientError):
            sleeper.commit()
    with client.producer(node.address, transactional_id) as successor:
        successor.begin()
        successor.send(topic, 0, b"in time")
        successor.commit()
    assert_topic_holds(node.address, topic, {0: [b"in time"]}, mode=mode, aborted={0: [b"too late"]})


def test_timeout_of_an_hour_is_clamped(node: NodeProcess, client: ClientKind, new_id: Callable[[], str]) -> None:
    """What frameworks ask for as a matter of course is cut to transactions.max_timeout_ms, and shown so."""
    transactional_id = new_id()
    with client.producer(node.address, transactional_id, timeout_ms=3_600_000), RawClient(node.address) as raw:
        assert raw.transaction_state(transactional_id).transaction_timeout_ms == 900_000


def test_hung_transaction_delays_no_reader_and_no_other_commit(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """While one transaction hangs in all partitions, others commit into them and are read, at either isolation."""
    topic = new_topic(2)
    with client.producer(node.address, new_id()) as hung, client.producer(node.address, new_id()) as other:
        hung.begin()
        for partition in range(2):
            hung.send(topic, partition, b"hung")
        hung.flush()
        for number in range(10):
            other.begin()
            for partition in range(2):
                other.send(topic, partition, b"%d" % number)
            other.commit()
        expected = [b"%d" % number for number in range(10)]
        assert_topic_holds(node.address, topic, {0: expected, 1: expected})
        hung.commit()  # it was slow, not dead: it is placed behind those that committed before it
    assert_topic_holds(node.address, topic, {0: [*expected, b"hung"], 1: [*expected, b"hung"]})


@BOTH_MODES
def test_hung_transaction_of_a_vanished_client_does_not_outlive_its_timeout(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A client that goes away without a word leaves nothing behind after the time-out but its id."""
    topic, transactional_id = new_topic(), new_id()
    with CONFLUENT.producer(node.address, transactional_id, timeout_ms=TIMEOUT_MS) as vanishing:
        vanishing.begin()
        vanishing.send(topic, 0, b"never seen")
        vanishing.flush()
    wait_until_ended(node, transactional_id)
    assert_topic_holds(node.address, topic, {0: []}, mode=mode, aborted={0: [b"never seen"]})
