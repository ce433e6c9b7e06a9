"""Compacted topics through stock clients: produced to by each, in every codec, and read over the holes by all three."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import aiokafka
import pytest
from confluent_kafka import KafkaError, Message, Producer

from scripts.node_process import NodeProcess
from tests.clients.committed_readers import READERS
from tests.clients.conftest import make_topic
from tests.clients.drivers import AIOKAFKA, CLIENTS, CONFLUENT, KAFKA_PYTHON, ClientError, ClientKind
from tests.clients.modes import BOTH_MODES, MODE_CONFIG, Mode
from tests.clients.reading import WAIT_S, Reader

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

FreshNode = Callable[..., NodeProcess]
KEYS, ROUNDS = 10, 12
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


@pytest.fixture(scope="module")
def compacting_node(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[NodeProcess]:
    """A node that compacts as often as it can."""
    environment = {"FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": "50", "FAIRLOG_LOG_FORMAT": "console"}
    node = NodeProcess(tmp_path_factory.mktemp("compacting") / "data", environment, processes=processes)
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


def make_compacted(node: NodeProcess, **config: str) -> str:
    defaults = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    return make_topic(node.address, 1, **defaults | config)


def map_of(rows: Sequence[Row]) -> dict[bytes | None, bytes]:
    found: dict[bytes | None, bytes] = {}
    for _, key, value in rows:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
    return found


def read_with_confluent(address: str, topic: str, end: int) -> list[Row]:
    with Reader(address, topic, 1) as reader:
        return [(record.offset, record.key, record.value) for record in reader.read_to_end()]


def read_with_kafka_python(address: str, topic: str, end: int) -> list[Row]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, auto_offset_reset="earliest")
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    rows: list[Row] = []
    deadline = time.monotonic() + WAIT_S
    while consumer.position(partition) < end:
        assert time.monotonic() < deadline, f"position {consumer.position(partition)} of {end}"
        for records in consumer.poll(timeout_ms=100).values():
            rows += [(record.offset, record.key, record.value) for record in records]
    consumer.close()
    return rows


def read_with_aiokafka(address: str, topic: str, end: int) -> list[Row]:
    async def read() -> list[Row]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address, enable_auto_commit=False)
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            rows: list[Row] = []
            while await consumer.position(partition) < end:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    rows += [(record.offset, record.key, record.value) for record in records]
            return rows
        finally:
            await consumer.stop()

    return asyncio.run(asyncio.wait_for(read(), WAIT_S))


CONSUMERS = (
    (CONFLUENT, read_with_confluent),
    (KAFKA_PYTHON, read_with_kafka_python),
    (AIOKAFKA, read_with_aiokafka),
)


@pytest.mark.parametrize(
    ("client", "codec"),
    [(client, codec) for client in CLIENTS for codec in (None, *client.codecs)],
    ids=lambda value: value.name if isinstance(value, ClientKind) else value or "no-codec",
)
def test_topic_compacted_is_read_over_its_holes_by_every_client(
    compacting_node: NodeProcess, client: ClientKind, codec: str | None
) -> None:
    """The latest of each key is there, at the offset that it was given, the rest is gone; all readers reach the end."""
    node = compacting_node
    topic = make_compacted(node)
    written: list[Row] = []
    with client.producer(node.address, compression=codec) as producer:
        for number in range(ROUNDS):
            pairs = [(b"key-%d" % (key * number % KEYS), b"value %d " % number * 20) for key in range(KEYS)]
            pairs += [(b"gone", b"x"), (b"alone-%d" % number, b"y")]
            deletion: tuple[bytes, bytes | None] = (b"gone", None)
            for key, value in [*pairs, deletion]:
                producer.send(topic, 0, value, key=key)
                written.append((len(written), key, value))
            producer.flush()
        expected = map_of(written)
        # The last batch is never touched: one for the end.
        producer.send(topic, 0, b"e", key=b"end")
        written.append((len(written), b"end", b"e"))
        producer.flush()
    deadline = time.monotonic() + WAIT_S
    while len(rows := read_with_confluent(node.address, topic, len(written))) > len(expected) + 1:
        assert time.monotonic() < deadline, f"{len(rows)} records are left, {len(expected) + 1} should be"
        time.sleep(0.05)
    assert map_of(rows) == map_of(written)
    assert set(rows) <= set(written)
    for kind, read in CONSUMERS:
        if codec is None or codec in kind.codecs:
            assert read(node.address, topic, len(written)) == rows, read.__name__


def test_consumer_that_reads_all_the_while_makes_the_same_map(compacting_node: NodeProcess) -> None:
    """One that tails, one that begins in the middle: no error, no record twice, and the right values in the end."""
    node = compacting_node
    topic = make_compacted(node, **{"delete.retention.ms": "60000"})
    written: list[Row] = []
    later: Reader | None = None
    with Reader(node.address, topic, 1) as tail, CONFLUENT.producer(node.address) as producer:
        for number in range(120):
            for key in range(20):
                value = None if key == number % 20 else b"%d" % number
                producer.send(topic, 0, value, key=b"key-%d" % (key * number % 37))
                written.append((len(written), b"key-%d" % (key * number % 37), value))
            producer.flush()
            tail._poll(0.0)
            if number == 60:
                later = Reader(node.address, topic, 1)
        assert later is not None
        for reader in (tail, later):
            records = reader.read_to_end()
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            rows = [(record.offset, record.key, record.value) for record in records]
            assert map_of(rows) == map_of(written)
            assert set(rows) <= set(written)
        later.close()
    deadline = time.monotonic() + WAIT_S
    while (left := len(read_with_confluent(node.address, topic, len(written)))) >= len(written) / 2:
        assert time.monotonic() < deadline, f"{left} records of {len(written)} are left"
    assert "log compacted" in node.log_path.read_text(encoding="utf-8")


@BOTH_MODES
def test_transactions_into_a_compacted_topic_are_compacted_as_wholes(
    compacting_node: NodeProcess, mode: Mode, client: ClientKind, new_id: Callable[[], str]
) -> None:
    """Aborted ones leave nothing; of committed ones the latest of each key is left, also with read_committed."""
    node = compacting_node
    topic = make_compacted(node, **{MODE_CONFIG: mode.value})
    with client.producer(node.address, new_id()) as producer:
        for number in range(8):
            producer.begin()
            for key in range(6):
                producer.send(topic, 0, b"%d" % number, key=b"%d" % key)
                if key % 2:
                    producer.flush()
            if number % 3 == 2:
                producer.abort()
            else:
                producer.commit()
        producer.begin()
        producer.send(topic, 0, b"e", key=b"end")
        producer.commit()
    expected = {b"%d" % key: b"7" for key in range(6)} | {b"end": b"e"}
    deadline = time.monotonic() + WAIT_S
    for isolation in ("read_uncommitted", "read_committed"):
        while True:
            with Reader(node.address, topic, 1, isolation=isolation) as reader:
                records = reader.read_to_end()
            if len(records) == len(expected):
                break
            assert time.monotonic() < deadline, f"{len(records)} records"
        assert {record.key: record.value for record in records} == expected


def test_aborted_records_go_and_readers_of_committed_ones_pass_what_they_leave(
    compacting_node: NodeProcess, new_id: Callable[[], str]
) -> None:
    """In a topic with markers: they supersede nothing, and over the holes, the markers and the list each client comes
    to the end."""
    topic = make_compacted(compacting_node, **{MODE_CONFIG: Mode.MARKERS.value})
    with CONFLUENT.producer(compacting_node.address, new_id()) as producer:
        for number, commits in enumerate((True, False) * 5):
            producer.begin()
            producer.send(topic, 0, b"%d" % number, key=b"k")
            producer.send(topic, 0, b"%d" % number, key=b"%d" % number if commits else b"aborted only")
            producer.flush()
            (producer.commit if commits else producer.abort)()
        producer.begin()
        producer.send(topic, 0, b"end", key=b"end")
        producer.commit()
    left = [b"0", b"2", b"4", b"6", b"8", b"8", b"end"]
    end = 10 * 3 + 2
    deadline = time.monotonic() + WAIT_S
    while True:
        with Reader(compacting_node.address, topic, 1) as plain:
            found = [record.value for record in plain.read_to_end()]
        if found == left:
            break
        assert time.monotonic() < deadline, found
    for open_reader in READERS.values():
        with open_reader(compacting_node.address, topic) as reader:
            reader.read_until(end)
            assert reader.values == left


def test_record_without_a_key_is_refused_by_a_compacted_topic(compacting_node: NodeProcess, client: ClientKind) -> None:
    """Each client says so, and nothing is written."""
    node = compacting_node
    topic = make_compacted(node)

    def send() -> None:
        producer.send(topic, 0, b"value")
        producer.flush()

    with client.producer(node.address) as producer, pytest.raises(ClientError):
        send()
    assert read_with_confluent(node.address, topic, 0) == []


def test_records_to_blame_are_told_from_the_others_of_their_batch(compacting_node: NodeProcess) -> None:
    """librdkafka fails the others with another error: sent again on their own, they would be taken.

    It does so if at least two records are to blame, and gives all of the batch one error otherwise.
    """
    topic, errors = make_compacted(compacting_node), list[tuple[bytes, str]]()

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is not None
        errors.append((message.value() or b"", error.name()))

    # All in one batch, on a machine that stalls as well; `flush` ends the wait.
    producer = Producer({"bootstrap.servers": compacting_node.address, "linger.ms": 30_000})
    for number in range(10):
        key = None if number in (3, 7) else b"key"
        producer.produce(topic, str(number).encode(), key, partition=0, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    others = {str(number).encode() for number in range(10) if number not in (3, 7)}
    assert [value for value, name in errors if name == "INVALID_RECORD"] == [b"3", b"7"]
    assert {value for value, name in errors if name == "_INVALID_DIFFERENT_RECORD"} == others


def test_records_too_old_are_gone_and_a_consumer_is_reset(fresh_node: FreshNode, client: ClientKind) -> None:
    """retention.ms: ListOffsets says where the log starts now, and a consumer behind it goes on from there."""
    node = fresh_node(FAIRLOG_RETENTION_CHECK_INTERVAL_MS="50")
    topic = make_topic(node.address, 1, **{"retention.ms": "60000"})
    now_ms = time.time_ns() // 1_000_000
    with client.producer(node.address) as producer:
        for age_ms in (200_000, 100_000):
            producer.send(topic, 0, b"old", key=b"k", timestamp_ms=now_ms - age_ms)
            producer.flush()
        producer.send(topic, 0, b"young", key=b"k", timestamp_ms=now_ms)
        producer.flush()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=node.address, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    partition = kafka.TopicPartition(topic, 0)
    deadline = time.monotonic() + WAIT_S
    while consumer.beginning_offsets([partition])[partition] < 2:
        assert time.monotonic() < deadline, "the old records are still there"
        time.sleep(0.02)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    records: list[tuple[int, bytes]] = []
    while not records:
        assert time.monotonic() < deadline, "nothing was read"
        for found in consumer.poll(timeout_ms=100).values():
            records += [(record.offset, record.value) for record in found]
    consumer.close()
    assert records == [(2, b"young")]
