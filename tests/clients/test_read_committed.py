"""Consumers of committed records at a topic of marker mode: the three stock clients, from the first fetch on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from scripts.node_process import NodeProcess
from tests.clients.committed_readers import READERS, CommittedReader
from tests.clients.drivers import CLIENTS, ProducerDriver
from tests.clients.modes import Mode

OpenReader = Callable[[str, str], CommittedReader]


@pytest.fixture(params=list(READERS))
def open_reader(request: pytest.FixtureRequest) -> OpenReader:
    """Each of the three clients in turn."""
    return READERS[request.param]


@pytest.fixture
def producers(node: NodeProcess, new_id: Callable[[], str]) -> Iterator[list[ProducerDriver]]:
    """Three transactional producers."""
    with ExitStack() as stack:
        yield [stack.enter_context(CLIENTS[0].producer(node.address, new_id())) for _ in range(3)]


def write(producer: ProducerDriver, topic: str, *values: bytes) -> None:
    """Each value a batch of its own, in the producer's open transaction."""
    for value in values:
        producer.send(topic, 0, value)
        producer.flush()


def test_reader_gets_what_was_committed_and_comes_to_the_end(
    node: NodeProcess,
    new_topic: Callable[..., str],
    producers: list[ProducerDriver],
    open_reader: OpenReader,
) -> None:
    """Interleaved transactions, every second one aborted, in many small fetches; markers and gaps do not hold it up."""
    topic = new_topic(mode=Mode.MARKERS)
    committed: list[bytes] = []
    offset = 0
    for number in range(12):
        for producer in producers:
            producer.begin()
        written = [b"%d-%d-%d" % (number, at, each) for at in range(2) for each in range(3)]
        for at, value in enumerate(written):
            write(producers[at % 3], topic, value)
        outcomes = [(number + each) % 2 == 0 for each in range(3)]
        committed += [value for at, value in enumerate(written) if outcomes[at % 3]]
        for producer, outcome in reversed(list(zip(producers, outcomes, strict=True))):
            (producer.commit if outcome else producer.abort)()
        offset += 6 + 3
    with open_reader(node.address, topic) as reader:
        reader.read_until(offset)
        assert reader.values == committed
        assert reader.end() == offset


def test_reader_waits_at_an_open_transaction_and_goes_on_when_it_ends(
    node: NodeProcess,
    new_topic: Callable[..., str],
    producers: list[ProducerDriver],
    open_reader: OpenReader,
) -> None:
    """What was committed behind it comes with its end, in the order of the log; until then all ends there."""
    topic = new_topic(mode=Mode.MARKERS)
    first, second, third = producers
    for producer in producers:
        producer.begin()
    write(first, topic, b"0")
    first.commit()
    write(second, topic, b"2")
    write(third, topic, b"3")
    third.commit()
    first.begin()
    write(first, topic, b"5")
    first.abort()
    with open_reader(node.address, topic) as reader:
        reader.read_until(2)
        reader.idle(0.3)
        assert reader.values == [b"0"]
        assert reader.position() == 2
        assert reader.end() == 2
        second.commit()
        reader.read_until(8)
        assert reader.values == [b"0", b"2", b"3"]
        assert reader.end() == 8


def test_reader_passes_a_partition_that_ends_with_what_was_aborted(
    node: NodeProcess,
    new_topic: Callable[..., str],
    producers: list[ProducerDriver],
    open_reader: OpenReader,
) -> None:
    """Ten aborted transactions and nothing behind them: the reader gets nothing, and is at the end."""
    topic = new_topic(mode=Mode.MARKERS)
    for _ in range(10):
        producers[0].begin()
        write(producers[0], topic, b"lost", b"lost")
        producers[0].abort()
    with open_reader(node.address, topic) as reader:
        reader.read_until(30)
        assert reader.values == []
        producers[0].begin()
        write(producers[0], topic, b"kept")
        producers[0].commit()
        reader.read_until(32)
        assert reader.values == [b"kept"]
