"""Committed offsets through the three stock clients: assigned consumers, and transactions with offsets."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

from scripts.node_process import NodeProcess
from tests.clients.conftest import wait_until_led
from tests.clients.drivers import AIOKAFKA, CONFLUENT, ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.offset_drivers import OffsetsDriver, offsets_of
from tests.clients.raw_client import NONE, UNSTABLE_OFFSET_COMMIT, RawClient, batch
from tests.clients.reading import Reader
from tests.pairs import EVERY_PAIR
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_numbers = count()
PENDING_S = 0.6


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{next(_numbers)}"


@pytest.fixture
def source(node: NodeProcess, new_topic: Callable[..., str]) -> str:
    """A topic with two partitions of ten records each."""
    topic = new_topic(partitions=2)
    with RawClient(node.address) as client:
        for partition in (0, 1):
            assert client.produce(topic, partition, batch([b"%d" % n for n in range(10)]))[0] == NONE
    return topic


def settled(node: NodeProcess, group: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """(error code, offset) as a read_committed consumer gets them in the end."""
    with RawClient(node.address) as client:
        return client.settled_offset(group, topic, partition)


def stable(node: NodeProcess, group: str, topic: str, partition: int = 0) -> tuple[int, int]:
    """(error code, offset) as a read_committed consumer is answered."""
    with RawClient(node.address) as client:
        return client.committed_offset(group, topic, partition)


def test_offsets_are_committed_and_read_back(
    node: NodeProcess, client: ClientKind, source: str, group: str, new_id: Callable[[], str]
) -> None:
    """None before the first, then what was committed, with its metadata; and a consumer goes on from there."""
    with offsets_of(client, node.address, source, group, new_id()) as driver:
        assert driver.committed(0) is None
        driver.commit(0, 4, "a note")
        driver.commit(0, 5, "a note")
        driver.commit(1, 8)
        assert driver.committed(0) == (5, "" if client is AIOKAFKA else "a note")
        assert driver.committed(1) == (8, "")
    with offsets_of(client, node.address, source, group, new_id()) as driver:
        assert driver.positions_after_poll([0, 1]) == {0: 10, 1: 10}
    assert settled(node, group, source) == (NONE, 5)


@BOTH_MODES
def test_offsets_in_a_transaction_are_seen_with_its_commit(
    node: NodeProcess,
    mode: Mode,
    client: ClientKind,
    source: str,
    group: str,
    new_topic: Callable[..., str],
    new_id: Callable[[], str],
) -> None:
    """Consume, transform, produce: output and offset together; after an abort neither."""
    target = new_topic()
    with offsets_of(client, node.address, source, group, new_id()) as driver:
        for offset, commits in ((3, True), (5, False), (8, True)):
            driver.begin()
            driver.send(target, b"%d" % offset)
            driver.send_offsets(0, offset)
            driver.end(commit=commits)
        assert driver.committed(0) == (8, "")
    with Reader(node.address, target, 1, isolation="read_committed") as reader:
        reader.wait_for(2)
        assert [record.value for record in reader.read_to_end()] == [b"3", b"8"]


def test_offsets_alone_are_a_transaction(
    node: NodeProcess, client: ClientKind, source: str, group: str, new_id: Callable[[], str]
) -> None:
    """A batch of input that yields no output still has to move on."""
    with offsets_of(client, node.address, source, group, new_id()) as driver:
        driver.begin()
        driver.send_offsets(1, 7)
        driver.end(commit=True)
        assert driver.committed(1) == (7, "")


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_pending_hold_up_a_read_committed_consumer_until_their_transaction_ends(
    node: NodeProcess, client: ClientKind, source: str, group: str, new_id: Callable[[], str], commits: bool
) -> None:
    """KIP-447: who takes a partition over waits for what the last owner had under way, instead of doing it again.

    aiokafka does not ask for stable offsets: it is told the old one at once, as it would be by Kafka.
    """
    with (
        offsets_of(CONFLUENT, node.address, source, group, new_id()) as owner,
        offsets_of(client, node.address, source, group, new_id()) as heir,
    ):
        owner.commit(0, 2)
        owner.begin()
        owner.send_offsets(0, 9)
        assert stable(node, group, source) == (UNSTABLE_OFFSET_COMMIT, -1)
        if client is AIOKAFKA:
            found = heir.committed(0)
            owner.end(commit=commits)
            assert found is not None
            assert found[0] == 2
            return
        ending = threading.Timer(PENDING_S, owner.end, kwargs={"commit": commits})
        started = time.monotonic()
        ending.start()
        found = heir.committed(0)
        waited = time.monotonic() - started
        ending.join()
        assert found is not None
        assert (found[0], waited >= PENDING_S) == (9 if commits else 2, True)


SETTLED_S = 1.0
"""librdkafka looks for coordinators several times while it starts, by a timer of half a second."""


@EVERY_PAIR
@BOTH_MODES
def test_offsets_in_transactions_take_one_request_each(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind, group: str
) -> None:
    """confluent-kafka-python#967: send_offsets_to_transaction took 50 times as long as expected, transaction after
    transaction: the last one's markers were still being written, the client was told CONCURRENT_TRANSACTIONS, and
    waited before it asked again. Here nothing is asked twice, and nobody is looked for each time.
    """
    node = fresh_node(FAIRLOG_LOG_LEVEL="debug", FAIRLOG_LOG_FORMAT="json")
    with RawClient(node.address) as raw:
        for topic in ("in", "out"):
            raw.metadata(topic, create=True)

    def transaction(driver: OffsetsDriver, number: int) -> None:
        driver.begin()
        driver.send("out", b"v")
        driver.send_offsets(0, number)
        driver.end(commit=True)

    with offsets_of(client, node.address, "in", group, "t") as driver:
        assert driver.committed(0) is None
        numbers = count(1)
        settled_s = time.monotonic() + SETTLED_S
        while time.monotonic() < settled_s:
            transaction(driver, next(numbers))
        before = requests(node)
        for _ in range(30):
            transaction(driver, next(numbers))
        asked = requests(node) - before
    assert {name: asked[name] for name in ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn")} == {
        "AddPartitionsToTxn": 30,
        "AddOffsetsToTxn": 30,
        "TxnOffsetCommit": 30,
        "EndTxn": 30,
    }
    assert asked["FindCoordinator"] <= 1
    assert settled(node, group, "in") == (NONE, next(numbers) - 1)


def requests(node: NodeProcess) -> Counter[str]:
    """How many of each the node has answered so far, by its own log."""
    lines = map(json.loads, node.log_path.read_text(encoding="utf-8").splitlines())
    return Counter(line["api"] for line in lines if line["event"] == "request")


@EVERY_PAIR
@BOTH_MODES
def test_offsets_survive_a_kill_for_clients_that_stay(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind, new_id: Callable[[], str], group: str
) -> None:
    """Answered before, there after; and the same consumer and producer go on when the node is back."""
    node = fresh_node(FAIRLOG_TOPICS_AUTO_CREATE="true")
    with RawClient(node.address) as raw:
        raw.metadata("in", create=True)
        wait_until_led(node.address, "in", 1)
        assert raw.produce("in", 0, batch([b"v"] * 10))[0] == NONE
    with offsets_of(client, node.address, "in", group, new_id()) as driver:
        driver.commit(0, 1)
        driver.begin()
        driver.send("out", b"v")
        driver.send_offsets(0, 4)
        driver.end(commit=True)
        node.kill()
        node.start()
        assert driver.committed(0) == (4, "")
        driver.commit(0, 6)
        assert driver.committed(0) == (6, "")
