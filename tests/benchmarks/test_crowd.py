"""The plain protocol's crowd: what it says it has made is there, for a stock client too."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from benchmarks.crowd import WIDTH, Crowd
from benchmarks.plain_protocol import Refused
from confluent_kafka import Consumer, TopicPartition
from peers.catalogue import available
from peers.interface import Missing, Peer

pytestmark = pytest.mark.slow

PARTITIONS = 3


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Generator[Peer]:
    """A node in journal mode."""
    found = available("journal", tmp_path_factory.mktemp("crowd") / "journal")
    assert not isinstance(found, Missing)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def crowd(peer: Peer) -> Generator[Callable[[str], Crowd]]:
    """Makes a crowd whose ids and topic have the name given; the topic is made, too, if it is not there."""
    made: list[Crowd] = []
    names: set[str] = set()

    def make(name: str) -> Crowd:
        if name not in names:
            peer.create_topics([name], PARTITIONS)
            names.add(name)
        made.append(Crowd(peer.address, name, name, PARTITIONS))
        return made[-1]

    yield make
    for each in made:
        each.close()


def committed_records(peer: Peer, topic: str, expected: int) -> int:
    """How many records a consumer finds: it waits for as many as are expected, and looks whether there are more."""
    consumer = Consumer({"bootstrap.servers": peer.address, "group.id": "count", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, each, 0) for each in range(PARTITIONS)])
        if expected:
            consumer.consume(expected, timeout=30)
        counts = [consumer.get_watermark_offsets(TopicPartition(topic, each), 30) for each in range(PARTITIONS)]
        return sum(end - start for start, end in counts)
    finally:
        consumer.close()


@pytest.mark.parametrize("count", [1, WIDTH, WIDTH + 3])
def test_crowd_commits_once_for_each_id(peer: Peer, crowd: Callable[[str], Crowd], count: int) -> None:
    """As many ids, as many transactions, as many records: also where the last row is not full."""
    crowd(f"once-{count}").commit_once(7, count)
    assert committed_records(peer, f"once-{count}", count) == count


def test_crowd_commits_as_many_transactions_as_asked_for(peer: Peer, crowd: Callable[[str], Crowd]) -> None:
    """The same ids again and again, and over two calls, whose epochs differ."""
    many = crowd("many")
    many.commit_many(2 * WIDTH + 5)
    many.commit_many(3)
    assert committed_records(peer, "many", 2 * WIDTH + 8) == 2 * WIDTH + 8


def test_crowd_leaves_transactions_open_until_it_aborts_them(peer: Peer, crowd: Callable[[str], Crowd]) -> None:
    """What is open is seen by nobody, and is gone when it was aborted; the ids can commit afterwards."""
    hanging = crowd("open")
    hanging.open(0, WIDTH + 3)
    assert committed_records(peer, "open", 0) == 0
    hanging.abort_open()
    hanging.commit_once(0, 5)
    assert committed_records(peer, "open", 5) == 5


def test_crowd_fences_what_an_earlier_one_has_left(peer: Peer, crowd: Callable[[str], Crowd]) -> None:
    """A crowd of the same prefix takes the ids over, and the first one cannot go on."""
    first = crowd("fenced")
    first.open(0, 2)
    crowd("fenced").fence(0, 2)
    with pytest.raises(Refused, match="error"):
        first.abort_open()
    assert committed_records(peer, "fenced", 0) == 0
