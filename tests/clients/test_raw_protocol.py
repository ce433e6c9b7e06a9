"""What no stock client sends on purpose: late and repeated EndTxn, wrong epochs, gaps, broken bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable

import pytest

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import RawClient, batch, end_request, produce_request, records_of
from tests.clients.raw_transaction import RawTransaction
from tests.clients.reading import Reader, assert_topic_holds
from tests.processes import ALSO_ON_THREE

pytestmark = [pytest.mark.slow, ALSO_ON_THREE]


# --- invariant 10 --------------------------------------------------------------------------------


@BOTH_MODES
@pytest.mark.parametrize("late_commits", [True, False], ids=["late commit", "late abort"])
def test_end_that_arrives_late_from_an_older_connection_does_not_end_the_next_transaction(
    node: NodeProcess, mode: Mode, late_commits: bool, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """KAFKA-17754: EndTxn is lost on one connection and repeated on another, the next transaction begins, and
    then the first EndTxn arrives after all. It must not tear the transaction that is open now."""
    topic = new_topic()
    with RawClient(node.address) as old, RawClient(node.address) as new:
        transaction = RawTransaction(old, new_id(), topic)
        transaction.write(b"first")
        assert transaction.end(commit=True, by=new) == raw.NONE
        transaction.client = new
        transaction.write(b"second, begun")
        assert transaction.end(commit=late_commits, by=old) != raw.NONE
        transaction.write(b"second, ended")
        assert transaction.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"first", b"second, begun", b"second, ended"]}, mode=mode)


@BOTH_MODES
def test_end_repeated_with_the_same_outcome_succeeds_and_changes_nothing(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A client that did not hear the answer asks again, and gets the same one."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        for commit in (True, False):
            transaction.write(b"committed" if commit else b"aborted")
            assert [transaction.end(commit=commit) for _ in range(3)] == [raw.NONE] * 3
    assert_topic_holds(node.address, topic, {0: [b"committed"]}, mode=mode, aborted={0: [b"aborted"]})


@BOTH_MODES
def test_end_repeated_with_the_other_outcome_is_refused(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """What is committed cannot be aborted any more, and the other way round."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for commit in (True, False):
            transaction = RawTransaction(client, new_id(), topic)
            transaction.write(b"committed" if commit else b"aborted")
            assert transaction.end(commit=commit) == raw.NONE
            assert transaction.end(commit=not commit) == raw.INVALID_TXN_STATE
    assert_topic_holds(node.address, topic, {0: [b"committed"]}, mode=mode, aborted={0: [b"aborted"]})


@BOTH_MODES
@pytest.mark.parametrize("commit", [True, False], ids=["behind a commit", "behind an abort"])
def test_produce_under_a_sequence_of_the_last_transaction_is_refused(
    node: NodeProcess, mode: Mode, commit: bool, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A new record must not pass for an old one: it would be answered, its commit too, and it would be nowhere.

    librdkafka sends so: at an abort it drops records that it was about to repeat, and numbers the next ones in their
    place, though the first attempt may have arrived. Found by `python -m tests.history run --peer journal --seed 5`.
    """
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        transaction.write(b"first")
        assert transaction.end(commit=commit) == raw.NONE
        transaction.sequence = 0
        added = client.add_partitions(
            transaction.transactional_id, transaction.producer_id, transaction.epoch, topic, [0]
        )
        assert added == {0: raw.NONE}
        assert transaction.produce(b"second")[0] == raw.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert transaction.end(commit=False) == raw.NONE
    kept, aborted = ([b"first"], []) if commit else ([], [b"first"])
    assert_topic_holds(node.address, topic, {0: kept}, mode=mode, aborted={0: aborted})


@BOTH_MODES
def test_end_pipelined_behind_produce_waits_for_it(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Requests of one connection take effect in the order in which they were sent, answers not awaited."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        producer_id, epoch, transactional_id = transaction.producer_id, transaction.epoch, transaction.transactional_id
        for number in range(20):
            client.add_partitions(transactional_id, producer_id, epoch, topic, [0])
            records = batch([b"%d" % number], producer_id=producer_id, epoch=epoch, sequence=number, transactional=True)
            client.send(produce_request(topic, 0, records, transactional_id))
            client.send(end_request(transactional_id, producer_id, epoch, commit=True))
            assert client.receive_produce()[0] == raw.NONE
            assert client.receive_end() == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"%d" % number for number in range(20)]}, mode=mode)


# --- epochs and ids ------------------------------------------------------------------------------


@BOTH_MODES
def test_produce_with_an_older_epoch_is_refused_also_where_the_new_instance_never_wrote(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """Invariant 9 on the wire: the zombie's partition was never named by its successor."""
    topic, transactional_id = new_topic(), new_id()
    with RawClient(node.address) as client:
        zombie = RawTransaction(client, transactional_id, topic)
        zombie.write(b"zombie, before")
        successor = client.init_producer_id(transactional_id)
        assert (successor.producer_id, successor.producer_epoch) == (zombie.producer_id, zombie.epoch + 1)
        assert zombie.produce(b"zombie, after")[0] in (*raw.FENCED, raw.INVALID_TXN_STATE)
        added = client.add_partitions(transactional_id, zombie.producer_id, zombie.epoch, topic, [0])
        assert added[0] in raw.FENCED
        assert zombie.end(commit=True) in raw.FENCED
        assert zombie.end(commit=False) in raw.FENCED
    assert_topic_holds(node.address, topic, {0: []}, mode=mode, aborted={0: [b"zombie, before"]})


@BOTH_MODES
def test_produce_with_an_epoch_from_the_future_is_refused(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """An epoch that the coordinator never granted opens nothing."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        transaction.write(b"granted")
        assert transaction.produce(b"invented", epoch=transaction.epoch + 7)[0] != raw.NONE
        transaction.sequence -= 1
        assert transaction.produce(b"granted, too")[0] == raw.NONE
        assert transaction.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"granted", b"granted, too"]}, mode=mode)


@BOTH_MODES
def test_produce_transactional_without_having_added_the_partition_is_refused(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """A batch of a transaction that never named the partition (a hanging transaction in the making, KIP-890)."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        assert transaction.produce(b"never announced")[0] != raw.NONE
    assert_topic_holds(node.address, topic, {0: []}, mode=mode)


@BOTH_MODES
def test_init_producer_id_repeated_does_not_fence_its_own_sender(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#3928: the retry of a request whose answer was lost gets an id that works."""
    topic, transactional_id = new_topic(), new_id()
    with RawClient(node.address) as client:
        first = client.init_producer_id(transactional_id)
        again = client.init_producer_id(transactional_id)
        assert (again.producer_id, again.producer_epoch) == (first.producer_id, first.producer_epoch)
        transaction = RawTransaction(client, transactional_id, topic)
        assert transaction.epoch == first.producer_epoch
        transaction.write(b"works")
        assert transaction.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"works"]}, mode=mode)


def test_init_producer_id_with_an_epoch_repeated_is_answered_with_the_current_one(
    node: NodeProcess, new_id: Callable[[], str]
) -> None:
    """KIP-360: a bump asked for twice with the same (id, epoch) is one bump."""
    transactional_id = new_id()
    with RawClient(node.address) as client, RawClient(node.address) as reconnected:
        granted = client.init_producer_id(transactional_id)
        producer_id, epoch = granted.producer_id, granted.producer_epoch
        bumped = client.init_producer_id(transactional_id, producer_id=producer_id, epoch=epoch)
        assert (bumped.error_code, bumped.producer_epoch) == (raw.NONE, epoch + 1)
        again = reconnected.init_producer_id(transactional_id, producer_id=producer_id, epoch=epoch)
        assert (again.error_code, again.producer_epoch) == (raw.NONE, epoch + 1)
        wrong = client.init_producer_id(transactional_id, producer_id=producer_id + 1000, epoch=epoch)
        assert wrong.error_code != raw.NONE


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_init_producer_id_with_a_bad_timeout_is_refused(
    node: NodeProcess, timeout_ms: int, new_id: Callable[[], str]
) -> None:
    """Not positive: INVALID_TRANSACTION_TIMEOUT. (Too long is clamped: docs/decisions/0005-transaction-timeouts.md.)"""
    with RawClient(node.address) as client:
        granted = client.init_producer_id(new_id(), timeout_ms=timeout_ms)
        assert granted.error_code == raw.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize(
    ("asked_ms", "granted_ms"), [(1, 1000), (1000, 1000), (900_000, 900_000), (900_001, 900_000), (2**31 - 1, 900_000)]
)
def test_init_producer_id_with_a_timeout_out_of_bounds_is_granted_the_bound(
    node: NodeProcess, asked_ms: int, granted_ms: int, new_id: Callable[[], str]
) -> None:
    """Clamped at both ends; DescribeTransactions shows what the id got."""
    transactional_id = new_id()
    with RawClient(node.address) as client:
        assert client.init_producer_id(transactional_id, timeout_ms=asked_ms).error_code == raw.NONE
        assert client.transaction_state(transactional_id).transaction_timeout_ms == granted_ms


def test_end_by_an_unknown_id_is_refused(node: NodeProcess, new_id: Callable[[], str]) -> None:
    """EndTxn of an id that was never initialised names what is wrong."""
    with RawClient(node.address) as client:
        assert client.end(new_id(), 123_456, 0, commit=True) == raw.INVALID_PRODUCER_ID_MAPPING


# --- sequences -----------------------------------------------------------------------------------


def test_produce_with_a_sequence_gap_is_refused_and_the_right_one_is_taken(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """OUT_OF_ORDER_SEQUENCE_NUMBER for a gap; nothing was written, so the missing batch still fits."""
    topic = new_topic()
    with RawClient(node.address) as client:
        producer_id = client.init_producer_id(None).producer_id

        def produce(sequence: int) -> tuple[int, int]:
            value = [b"%d" % sequence]
            return client.produce(topic, 0, batch(value, producer_id=producer_id, epoch=0, sequence=sequence))

        assert produce(0) == (raw.NONE, 0)
        assert produce(2)[0] == raw.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(1) == (raw.NONE, 1)
        assert produce(2) == (raw.NONE, 2)
    assert_topic_holds(node.address, topic, {0: [b"0", b"1", b"2"]})


def test_produce_repeated_is_answered_with_the_first_result(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """Each of the last five batches may be sent again, on any connection, and is kept once."""
    topic = new_topic()
    with RawClient(node.address) as client, RawClient(node.address) as other:
        producer_id = client.init_producer_id(None).producer_id
        batches = [
            batch([b"%d a" % number, b"%d b" % number], producer_id=producer_id, epoch=0, sequence=2 * number)
            for number in range(5)
        ]
        answers = [client.produce(topic, 0, each) for each in batches]
        assert answers == [(raw.NONE, 2 * number) for number in range(5)]
        assert [other.produce(topic, 0, each) for each in batches] == answers
    assert_topic_holds(node.address, topic, {0: [b"%d %c" % (n, c) for n in range(5) for c in b"ab"]})


def test_produce_of_a_producer_that_the_partition_does_not_know_begins_at_zero(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """A first sequence other than 0 from an unknown producer means that something was lost: refused."""
    topic = new_topic()
    with RawClient(node.address) as client:
        producer_id = client.init_producer_id(None).producer_id
        code, _base = client.produce(topic, 0, batch([b"x"], producer_id=producer_id, epoch=0, sequence=3))
        assert code in (raw.UNKNOWN_PRODUCER_ID, raw.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert_topic_holds(node.address, topic, {0: []})


# --- broken bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [17, 30, 61, -1], ids=["crc", "header", "first record", "last byte"])
def test_produce_with_a_wrong_crc_is_refused(node: NodeProcess, at: int, new_topic: Callable[..., str]) -> None:
    """One flipped bit anywhere behind the length: CORRUPT_MESSAGE, and the connection lives on."""
    topic = new_topic()
    with RawClient(node.address) as client:
        broken = batch([b"value"])
        broken[at] ^= 0x10
        assert client.produce(topic, 0, broken)[0] == raw.CORRUPT_MESSAGE
        assert client.produce(topic, 0, batch([b"whole"])) == (raw.NONE, 0)
    assert_topic_holds(node.address, topic, {0: [b"whole"]})


def test_produce_cut_short_is_refused(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """A batch whose length field promises more, or less, than there is."""
    topic = new_topic()
    with RawClient(node.address) as client:
        whole = batch([b"value"])
        for broken in (whole[:-3], whole[:40], whole[:5], whole + b"\0", b""):
            assert client.produce(topic, 0, broken)[0] not in (raw.NONE, raw.UNKNOWN_TOPIC_OR_PARTITION)
        assert client.produce(topic, 0, whole) == (raw.NONE, 0)
    assert_topic_holds(node.address, topic, {0: [b"value"]})


def test_produce_to_an_unknown_partition_is_refused(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """A partition that the topic does not have."""
    with RawClient(node.address) as client:
        assert client.produce(new_topic(2), 2, batch([b"x"]))[0] == raw.UNKNOWN_TOPIC_OR_PARTITION


BROKEN_FRAMES = {
    "a length of two gigabytes": struct.pack(">i", 2**31 - 1) + bytes(100),
    "a negative length": struct.pack(">i", -5) + bytes(100),
    "an empty frame": struct.pack(">i", 0),
    "a frame too short for its header": struct.pack(">i", 3) + b"abc",
    "an API that does not exist": struct.pack(">ihhih", 10, 9999, 0, 1, -1),
    "a body of rubbish": struct.pack(">ihhih", 60, 0, 7, 1, -1) + b"\xff" * 50,
    "a string longer than the frame": struct.pack(">ihhih", 20, 3, 1, 1, 30_000) + bytes(10),
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
def test_frame_that_is_not_kafka_closes_its_connection_and_no_other(node: NodeProcess, name: str) -> None:
    """Malformed, truncated or oversized: closed; memory stays bounded; the node lives."""
    with RawClient(node.address) as neighbour, RawClient(node.address) as client:
        before = node.memory_bytes()
        client.send_bytes(BROKEN_FRAMES[name])
        assert client.is_closed_by_peer()
        assert 0 in neighbour.api_versions()
        assert node.memory_bytes() - before < 32 << 20


def test_frames_of_random_bytes_never_end_the_node(node: NodeProcess) -> None:
    """A hundred connections full of rubbish, each closed; the next client is served."""
    for number in range(100):
        with RawClient(node.address) as client:
            body = os.urandom(64)
            client.send_bytes(struct.pack(">i", len(body)) + body if number % 2 else body)
    with RawClient(node.address) as client:
        assert 0 in client.api_versions()


def test_connection_cut_in_the_middle_of_a_request_leaves_nothing(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """Half a produce request has no effect."""
    topic = new_topic()
    with RawClient(node.address) as client:
        client.send_bytes(struct.pack(">ihhih", 5000, 0, 7, 1, -1) + bytes(200))
    with Reader(node.address, topic, 1) as reader:
        assert reader.read_to_end() == []


# --- reading -------------------------------------------------------------------------------------


def test_api_versions_asked_in_a_version_above_ours_lists_our_own(node: NodeProcess) -> None:
    """Error 35 in the v0 format, with the range of key 18, so that the client can ask again."""
    with RawClient(node.address) as client:
        header = struct.pack(">hhih", 18, 120, 77, 3) + b"raw" + b"\0"
        client.send_bytes(struct.pack(">i", len(header)) + header)
        frame = client.receive_frame()
    correlation, error, count = struct.unpack_from(">ihi", frame)
    keys = {struct.unpack_from(">hhh", frame, 10 + 6 * index) for index in range(count)}
    assert (correlation, error) == (77, raw.UNSUPPORTED_VERSION)
    assert any(key == 18 and low == 0 and high >= 3 for key, low, high in keys)


def test_fetch_in_the_middle_of_a_batch_returns_the_whole_batch(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """As Kafka does; the clients skip what lies before the offset they asked for."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for first in (0, 10):
            client.produce(topic, 0, batch([b"%d" % n for n in range(first, first + 10)]))
        fetched = client.fetch(topic, 0, 14)
        assert records_of(fetched.records) == [(n, b"%d" % n) for n in range(10, 20)]


def test_fetch_never_tells_of_transactions(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """High watermark = last stable offset, an empty aborted list, no control batches; at both isolations."""
    topic = new_topic()
    with RawClient(node.address) as client:
        transaction = RawTransaction(client, new_id(), topic)
        transaction.write(b"aborted")
        assert transaction.end(commit=False) == raw.NONE
        transaction.write(b"committed")
        assert transaction.end(commit=True) == raw.NONE
        hung = RawTransaction(client, new_id(), topic)
        hung.write(b"hung")
        with Reader(node.address, topic, 1) as reader:
            reader.wait_for(1)
        for isolation in (0, 1):
            fetched = client.fetch(topic, 0, 0, isolation=isolation)
            assert (fetched.error_code, fetched.high_watermark, fetched.last_stable_offset) == (raw.NONE, 1, 1)
            assert not fetched.aborted_transactions
            assert records_of(fetched.records) == [(0, b"committed")]
            assert client.list_offset(topic, 0, -1, isolation=isolation) == (raw.NONE, 1)
        hung.end(commit=False)


def test_fetch_beyond_the_end_is_out_of_range(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """At the end one waits; behind it is OFFSET_OUT_OF_RANGE."""
    topic = new_topic()
    with RawClient(node.address) as client:
        client.produce(topic, 0, batch([b"only"]))
        assert client.fetch(topic, 0, 1, wait_ms=10).error_code == raw.NONE
        assert client.fetch(topic, 0, 2, wait_ms=10).error_code == raw.OFFSET_OUT_OF_RANGE


def test_list_offsets_by_timestamp_finds_the_record_inside_its_batch(
    node: NodeProcess, new_topic: Callable[..., str]
) -> None:
    """The first record whose timestamp is at or after the one asked for; none gives -1."""
    topic = new_topic()
    with RawClient(node.address) as client:
        for first in (0, 10):
            values = [b"%d" % number for number in range(10)]
            assert client.produce(topic, 0, batch(values, timestamp_ms=1000 + first))[0] == raw.NONE
        assert client.list_offset(topic, 0, 0) == (raw.NONE, 0)
        assert client.list_offset(topic, 0, 1007) == (raw.NONE, 7)
        assert client.list_offset(topic, 0, 1013) == (raw.NONE, 13)
        assert client.list_offset(topic, 0, 1020) == (raw.NONE, -1)
        assert client.list_offset(topic, 0, -1) == (raw.NONE, 20)
        assert client.list_offset(topic, 0, -2) == (raw.NONE, 0)
