"""Stopping, killing and starting again under the eyes of clients that stay (invariants 5 and 9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.drivers import CONFLUENT, ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_topic_holds
from tests.pairs import EVERY_PAIR
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@EVERY_PAIR
@BOTH_MODES
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_restart_keeps_what_was_answered_and_what_was_open(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind, how: str
) -> None:
    """The open transaction goes on: both halves of it are committed, and no reader has seen the first one before."""
    node = fresh_node()
    topic = make_topic(node.address, 2)
    with client.producer(node.address, "txn") as producer, client.producer(node.address) as plain:
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"committed")
        producer.commit()
        with Reader(node.address, topic, 2) as reader:
            reader.wait_for(2)
        producer.begin()
        for partition in range(2):
            producer.send(topic, partition, b"first half")
        producer.flush()
        if how == "kill":
            node.kill()
        else:
            assert node.stop() == 0
        node.start()
        for partition in range(2):
            plain.send(topic, partition, b"plain")
        plain.flush()
        producer.send(topic, 0, b"second half")
        producer.flush()
        producer.commit()
    kept = [b"plain", b"first half"] if mode is Mode.JOURNAL else [b"first half", b"plain"]
    assert_topic_holds(
        node.address, topic, {0: [b"committed", *kept, b"second half"], 1: [b"committed", *kept]}, mode=mode
    )


@BOTH_MODES
def test_restart_lets_a_client_abort_what_was_open(fresh_node: Callable[..., NodeProcess], mode: Mode) -> None:
    """What was open can be given up as well, and the next transaction commits: no new instance."""
    node = fresh_node()
    topic = make_topic(node.address)
    with CONFLUENT.producer(node.address, "txn") as producer:
        producer.begin()
        producer.send(topic, 0, b"given up")
        producer.flush()
        node.kill()
        node.start()
        producer.abort()
        producer.begin()
        producer.send(topic, 0, b"kept")
        producer.commit()
    assert_topic_holds(node.address, topic, {0: [b"kept"]}, mode=mode, aborted={0: [b"given up"]})


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
