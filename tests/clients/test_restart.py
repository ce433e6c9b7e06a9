"""Stopping, killing and starting again under the eyes of clients that stay (invariants 5 and 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.drivers import CONFLUENT, ClientError, ClientKind, ProducerDriver
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_topic_holds

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def _finish(producer: ProducerDriver, topic: str) -> None:
    """Go on as if nothing had happened; some clients are told at once, some at the commit."""
    producer.send(topic, 0, b"second half")
    producer.flush()
    producer.commit()


@BOTH_MODES
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_keeps_what_was_answered_and_nothing_of_what_was_open(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind, how: str
) -> None:
    """Committed and plain records survive; the open transaction is gone, and its half cannot be committed later."""
    node = fresh_node()
    topic = make_topic(node.address, 2)
    with client.producer(node.address, "txn") as producer, client.producer(node.address) as plain:
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"committed")
        producer.commit()
        with Reader(node.address, topic, 2) as reader:
            reader.wait_for(2)
        for partition in range(2):
            plain.send(topic, partition, b"plain")
        plain.flush()
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"first half")
        producer.flush()
        if how == "kill":
            node.kill()
        else:
            assert node.stop() == 0
        node.start()
        with pytest.raises(ClientError):
            _finish(producer, topic)
    with client.producer(node.address, "txn") as successor:
        successor.begin()
        successor.send(topic, 0, b"after")
        successor.commit()
    assert_topic_holds(
        node.address,
        topic,
        {0: [b"committed", b"plain", b"after"], 1: [b"committed", b"plain"]},
        mode=mode,
        aborted={0: [b"first half"], 1: [b"first half"]},
    )


@BOTH_MODES
def test_restart_lets_a_waiting_producer_go_on(fresh_node: Callable[..., NodeProcess], mode: Mode) -> None:
    """A producer that is told to abort after the crash does, and its next transaction commits: no new instance."""
    node = fresh_node()
    topic = make_topic(node.address)
    with CONFLUENT.producer(node.address, "txn") as producer:
        producer.begin()
        producer.send(topic, 0, b"lost in the crash")
        producer.flush()
        node.kill()
        node.start()
        with pytest.raises(ClientError):
            producer.commit()
        producer.abort()
        producer.begin()
        producer.send(topic, 0, b"kept")
        producer.commit()
    assert_topic_holds(node.address, topic, {0: [b"kept"]}, mode=mode, aborted={0: [b"lost in the crash"]})


@BOTH_MODES
def test_restart_is_survived_by_a_tailing_consumer(fresh_node: Callable[..., NodeProcess], mode: Mode) -> None:
    """The consumer reconnects and goes on at its offset: nothing twice, nothing missing."""
    node = fresh_node()
    topic = make_topic(node.address)
    with Reader(node.address, topic, 1) as reader:
        for round_number in range(3):
            with CONFLUENT.producer(node.address, "txn") as producer:
                producer.begin()
                producer.send(topic, 0, b"%d" % round_number)
                producer.commit()
            reader.wait_for(round_number + 1)
            node.kill()
            node.start()
        reader.read_to_end()
        assert reader.values(0) == [b"0", b"1", b"2"]


def test_restart_refuses_a_directory_in_use(fresh_node: Callable[..., NodeProcess]) -> None:
    """A second node over the same directory ends with one clear sentence; the first is undisturbed."""
    node = fresh_node()
    second = NodeProcess(node.data_dir, address="127.0.0.1:0")
    second.spawn()
    status = second.wait_end(15)
    second.kill()
    assert status not in (0, None)
    assert node.running
    make_topic(node.address)
