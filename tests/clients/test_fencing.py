"""Zombies: instances of a transactional id that a later instance has replaced (invariants 9 and 10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.drivers import ClientError, ClientKind, Fenced, ProducerDriver
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def _flush_and_commit(producer: ProducerDriver) -> None:
    """Which of the two tells the client that it is fenced is the client's affair."""
    producer.flush()
    producer.commit()


def _write_transaction(producer: ProducerDriver, topic: str, value: bytes) -> None:
    producer.begin()
    producer.send(topic, 0, value)
    _flush_and_commit(producer)


@BOTH_MODES
def test_zombie_that_commits_after_its_successor_started_is_fenced(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """The old instance's open transaction is aborted by the new one's start, and its commit is refused."""
    topic, transactional_id = new_topic(), new_id()
    with client.producer(node.address, transactional_id) as zombie:
        zombie.begin()
        zombie.send(topic, 0, b"zombie")
        zombie.flush()
        with client.producer(node.address, transactional_id) as successor:
            with pytest.raises(Fenced):
                zombie.commit()
            successor.begin()
            successor.send(topic, 0, b"successor")
            successor.commit()
    assert_topic_holds(node.address, topic, {0: [b"successor"]}, mode=mode, aborted={0: [b"zombie"]})


@BOTH_MODES
def test_zombie_that_writes_where_its_successor_never_writes_is_fenced_there_too(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Seed 003's caveat: the zombie wrote to topic 1; the successor only ever touches topics 2 and 3."""
    first, second, third, transactional_id = new_topic(), new_topic(), new_topic(), new_id()
    with client.producer(node.address, transactional_id) as zombie:
        zombie.begin()
        zombie.send(first, 0, b"zombie, before")
        zombie.flush()
        with client.producer(node.address, transactional_id) as successor:
            successor.begin()
            successor.send(second, 0, b"successor")
            successor.send(third, 0, b"successor")
            zombie.send(first, 0, b"zombie, after")
            with pytest.raises(ClientError):
                _flush_and_commit(zombie)
            successor.commit()
    for topic in (second, third):
        assert_topic_holds(node.address, topic, {0: [b"successor"]}, mode=mode)
    assert_topic_holds(node.address, first, {0: []}, mode=mode, aborted={0: [b"zombie, before"]})
    with Reader(node.address, first, 1) as reader:
        assert reader.high_watermark(0) == (0 if mode is Mode.JOURNAL else 2), "one record and one marker, if any"


@BOTH_MODES
def test_zombie_cannot_begin_again(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """An idle old instance that wakes up later, to write to a partition it never used, is refused as well."""
    used, unused, transactional_id = new_topic(), new_topic(), new_id()
    with client.producer(node.address, transactional_id) as zombie:
        zombie.begin()
        zombie.send(used, 0, b"committed")
        zombie.commit()
        with client.producer(node.address, transactional_id) as successor:
            with pytest.raises(ClientError):
                _write_transaction(zombie, unused, b"zombie")
            successor.begin()
            successor.commit()
    assert_topic_holds(node.address, used, {0: [b"committed"]}, mode=mode)
    assert_topic_holds(node.address, unused, {0: []}, mode=mode)


@BOTH_MODES
def test_successor_rolls_forward_what_was_answered_and_aborts_the_rest(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """InitProducerId of a new instance leaves committed transactions alone and takes back the open one."""
    topic, transactional_id = new_topic(), new_id()
    for instance in range(4):
        with client.producer(node.address, transactional_id) as producer:
            producer.begin()
            producer.send(topic, 0, b"committed by %d" % instance)
            producer.commit()
            producer.begin()
            producer.send(topic, 0, b"left open by %d" % instance)
            producer.flush()
            if instance < 3:
                continue
            producer.abort()
    assert_topic_holds(
        node.address,
        topic,
        {0: [b"committed by %d" % instance for instance in range(4)]},
        mode=mode,
        aborted={0: [b"left open by %d" % instance for instance in range(4)]},
    )
