"""Transactions of the three stock clients, as consumers see them, in both modes (invariants 1, 2, 3, 7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients.drivers import ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_ascending, assert_dense, assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [
    pytest.mark.slow,
    ALSO_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PARTITIONS = 12


@BOTH_MODES
def test_transaction_committed_to_many_partitions_is_seen_whole_and_in_order(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A committed transaction's records are in every partition, in produce order, once."""
    topic = new_topic(PARTITIONS)
    with client.producer(node.address, new_id()) as producer:
        producer.begin()
        for number in range(5 * PARTITIONS):
            producer.send(topic, number % PARTITIONS, b"%d" % number)
        producer.commit()
    expected = {p: [b"%d" % n for n in range(p, 5 * PARTITIONS, PARTITIONS)] for p in range(PARTITIONS)}
    assert_topic_holds(node.address, topic, expected, mode=mode)


@BOTH_MODES
def test_transaction_aborted_leaves_neither_records_nor_holes(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """After an abort the next transaction's records take the offsets that the aborted ones never had.

    In marker mode the aborted records have theirs, and the marker as well; plain consumers see them.
    """
    topic = new_topic(3)
    with client.producer(node.address, new_id()) as producer:
        producer.begin()
        for partition in range(3):
            producer.send(topic, partition, b"taken back")
        producer.flush()
        producer.abort()
        producer.begin()
        for partition in range(3):
            producer.send(topic, partition, b"kept")
        producer.commit()
    aborted = {p: [b"taken back"] for p in range(3)}
    assert_topic_holds(node.address, topic, {p: [b"kept"] for p in range(3)}, mode=mode, aborted=aborted)
    with Reader(node.address, topic, 3, isolation="read_committed") as reader:
        kept_at = {record.offset for record in reader.wait_for(3)}
    assert kept_at == ({0} if mode is Mode.JOURNAL else {2})


@BOTH_MODES
def test_transaction_open_is_seen_by_no_reader_of_committed_records(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Records that the node has taken and answered stay unseen until their transaction commits.

    In journal mode by everybody. In marker mode a plain consumer sees them at once, and the high watermark counts them.
    """
    topic, both = new_topic(2), {0: [b"a"], 1: [b"b"]}
    with (
        client.producer(node.address, new_id()) as producer,
        Reader(node.address, topic, 2, isolation="read_committed") as committed,
        Reader(node.address, topic, 2, isolation="read_uncommitted") as plain,
    ):
        producer.begin()
        producer.send(topic, 0, b"a")
        producer.send(topic, 1, b"b")
        producer.flush()
        if mode is Mode.MARKERS:
            plain.wait_for(2)
        assert plain.idle(0.3) == (plain.records if mode is Mode.MARKERS else [])
        assert plain.by_partition() == (both if mode is Mode.MARKERS else {0: [], 1: []})
        assert [plain.high_watermark(p) for p in range(2)] == ([1, 1] if mode is Mode.MARKERS else [0, 0])
        assert committed.idle(0.3) == []
        assert [committed.high_watermark(p) for p in range(2)] == [0, 0], "the last stable offset, as this client asks"
        producer.commit()
        for reader in (committed, plain):
            reader.wait_for(2)
            assert reader.by_partition() == both


@BOTH_MODES
def test_transactions_of_any_mix_of_outcomes_leave_dense_offsets(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Commits, aborts, empty transactions and plain records in one topic: offsets are 0, 1, 2, …

    In marker mode but for what was aborted, and for one marker behind each transaction that has written.
    """
    topic = new_topic(2)
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    aborted: dict[int, list[bytes]] = {0: [], 1: []}
    markers = 0
    with client.producer(node.address, new_id()) as producer, client.producer(node.address) as plain:
        for number in range(12):
            value = b"%d" % number
            if number % 4 == 3:
                plain.send(topic, number % 2, value)
                plain.flush()
                expected[number % 2].append(value)
                continue
            producer.begin()
            writes = number % 4 != 2
            if writes:
                markers += 1
                for partition in range(2):
                    producer.send(topic, partition, value)
            if number % 3 == 1:
                producer.flush()
                producer.abort()
            else:
                producer.commit()
            if writes:
                for values in (aborted if number % 3 == 1 else expected).values():
                    values.append(value)
            with Reader(node.address, topic, 2) as reader:  # a plain record must not overtake in `expected`
                reader.wait_for(len(expected[0]) + len(expected[1]))
    assert_topic_holds(node.address, topic, expected, mode=mode, aborted=aborted)
    with Reader(node.address, topic, 2) as reader:
        for partition, values in expected.items():
            gaps = 0 if mode is Mode.JOURNAL else len(aborted[partition]) + markers
            assert reader.high_watermark(partition) == len(values) + gaps


@BOTH_MODES
def test_transactions_interleaved_in_one_partition_come_out_contiguous(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Two open transactions write in turns; each is one block, in the order of the commits (invariant 3).

    In marker mode they stay as they were written.
    """
    topic = new_topic()
    with client.producer(node.address, new_id()) as first, client.producer(node.address, new_id()) as second:
        first.begin()
        second.begin()
        for number in range(10):
            first.send(topic, 0, b"first %d" % number)
            first.flush()
            second.send(topic, 0, b"second %d" % number)
            second.flush()
        second.commit()
        first.commit()
    blocks = [b"second %d" % n for n in range(10)] + [b"first %d" % n for n in range(10)]
    in_turns = [b"%s %d" % (which, n) for n in range(10) for which in (b"first", b"second")]
    assert_topic_holds(node.address, topic, {0: blocks if mode is Mode.JOURNAL else in_turns}, mode=mode)


@BOTH_MODES
def test_transaction_of_many_batches_keeps_produce_order(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A transaction of several megabytes in many batches per partition comes out whole and in order."""
    topic = new_topic(2)
    values = [b"%06d" % number + bytes(2000) for number in range(2000)]
    with client.producer(node.address, new_id()) as producer:
        producer.begin()
        for number, value in enumerate(values):
            producer.send(topic, number % 2, value)
        producer.commit()
    assert_topic_holds(node.address, topic, {0: values[0::2], 1: values[1::2]}, mode=mode)


@BOTH_MODES
def test_transactions_of_one_id_appear_in_commit_order_in_every_partition(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """The order of an id's commits is the order in every partition (invariant 6), without waiting in between."""
    topic = new_topic(4)
    with client.producer(node.address, new_id()) as producer:
        for number in range(30):
            producer.begin()
            for partition in range(4):
                producer.send(topic, partition, b"%d" % number)
            producer.commit()
    assert_topic_holds(node.address, topic, {p: [b"%d" % n for n in range(30)] for p in range(4)}, mode=mode)


@BOTH_MODES
def test_transactions_of_several_producers_are_each_seen_whole(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Three ids commit in turns into the same partitions: nothing is lost, repeated or, in journal mode, torn apart."""
    topic = new_topic(2)
    producers = [client.producer(node.address, new_id()) for _ in range(3)]
    try:
        for turn in range(5):
            for producer in producers:
                producer.begin()
            for number, producer in enumerate(producers):
                for index in range(4):
                    producer.send(topic, index % 2, b"%d.%d.%d" % (number, turn, index))
            for producer in producers:
                producer.commit()
    finally:
        for producer in producers:
            producer.close()
    with Reader(node.address, topic, 2, isolation="read_committed") as reader:
        reader.wait_for(3 * 5 * 4)
        records = reader.read_to_end()
    assert len(records) == len({record.value for record in records}) == 60
    if mode is Mode.MARKERS:
        assert_ascending(records)
        return
    assert_dense(records)
    for partition in range(2):
        values = [value for value in reader.values(partition) if value is not None]
        for first, second in zip(values[0::2], values[1::2], strict=True):
            assert first.rpartition(b".")[0] == second.rpartition(b".")[0], f"torn apart: {values}"


def test_transaction_without_records_commits_and_aborts(
    node: NodeProcess, client: ClientKind, new_id: Callable[[], str]
) -> None:
    """Committing and aborting nothing succeeds, as often as one likes."""
    with client.producer(node.address, new_id()) as producer:
        for _ in range(3):
            producer.begin()
            producer.commit()
            producer.begin()
            producer.abort()
