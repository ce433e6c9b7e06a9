"""Plain produce with the stock clients' idempotent producers, and what goes through it untouched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.drivers import CLIENTS, CONFLUENT, ClientError, ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    ALSO_ON_THREE,
]


def test_produce_idempotent_answers_each_record_with_its_offset(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str]
) -> None:
    """The offsets that the client reports are those at which a consumer finds the records."""
    topic = new_topic(2)
    with client.producer(node.address) as producer:
        for number in range(100):
            producer.send(topic, number % 2, b"%d" % number)
        offsets = producer.flush()
    assert sorted(offset for offset in offsets if offset is not None) == sorted([*range(50), *range(50)])
    assert_topic_holds(node.address, topic, {p: [b"%d" % n for n in range(p, 100, 2)] for p in range(2)})


def test_end_asked_after_an_answer_is_behind_the_record(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str]
) -> None:
    """Who reads its own write finds it: the question for the end waits for the copy."""
    topic = new_topic()
    with client.producer(node.address) as producer, Reader(node.address, topic, 1) as reader:
        for number in range(10):
            producer.send(topic, 0, b"%d" % number)
            assert producer.flush() == [number]
            assert reader.high_watermark(0) == number + 1


def test_produce_keys_headers_timestamps_and_tombstones_are_kept(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str]
) -> None:
    """What a client puts into a record comes out of it again; null and empty stay different."""
    topic = new_topic()
    with client.producer(node.address) as producer:
        producer.send(topic, 0, b"value", key=b"key", headers=[("trace", b"\x00\xff"), ("trace", b"")], timestamp_ms=1)
        producer.send(topic, 0, None, key=b"deleted", timestamp_ms=2)
        producer.send(topic, 0, b"", key=b"", timestamp_ms=3)
        producer.flush()
    with Reader(node.address, topic, 1) as reader:
        first, tombstone, empty = reader.wait_for(3)
    assert (first.key, first.value, first.timestamp_ms) == (b"key", b"value", 1)
    assert first.headers == (("trace", b"\x00\xff"), ("trace", b""))
    assert (tombstone.key, tombstone.value, tombstone.timestamp_ms) == (b"deleted", None, 2)
    assert (empty.key, empty.value) == (b"", b"")


@BOTH_MODES
@pytest.mark.parametrize(
    ("kind", "codec"),
    [(kind, codec) for kind in CLIENTS for codec in kind.codecs],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_produce_compressed_passes_through(
    node: NodeProcess,
    mode: Mode,
    kind: ClientKind,
    codec: str,
    new_topic: Callable[..., str],
    new_id: Callable[[], str],
) -> None:
    """Compressed batches are kept as they are, in and outside of transactions, and read by another client."""
    topic = new_topic()
    values = [b"%03d " % number + b"abc" * 200 for number in range(200)]
    with kind.producer(node.address, compression=codec) as producer:
        for value in values:
            producer.send(topic, 0, value)
        producer.flush()
    with kind.producer(node.address, new_id(), compression=codec) as producer:
        producer.begin()
        for value in values:
            producer.send(topic, 0, value)
        producer.commit()
    assert_topic_holds(node.address, topic, {0: values + values}, mode=mode)


def test_produce_record_larger_than_the_topic_allows_is_refused_and_nothing_else_is(
    node: NodeProcess, client: ClientKind, new_topic: Callable[..., str]
) -> None:
    """`max.message.bytes` of the topic is enforced with an error of its own; the producer goes on."""
    topic = new_topic(**{"max.message.bytes": "20000"})
    with client.producer(node.address) as producer:
        producer.send(topic, 0, bytes(30_000))
        with pytest.raises(ClientError, match=r"(?i)too.?large|MSG_SIZE"):
            producer.flush()
    with client.producer(node.address) as producer:
        producer.send(topic, 0, b"small")
        producer.flush()
    assert_topic_holds(node.address, topic, {0: [b"small"]})


def test_produce_of_nearly_a_megabyte_a_record_is_taken(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """Batches just under the default of `message.max.bytes` pass, plain and in a transaction."""
    topic = new_topic()
    values = [bytes([number]) * 990_000 for number in range(6)]
    with CONFLUENT.producer(node.address) as producer:
        for value in values:
            producer.send(topic, 0, value)
        producer.flush()
    assert_topic_holds(node.address, topic, {0: values})
