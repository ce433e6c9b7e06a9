"""What is so in marker mode only: KIP-98 on the wire, who waits for whom, and how what hangs is ended.

The tests that hold in both modes stand where they always were, with `BOTH_MODES`; consumers of committed records are
in test_read_committed.py. The first two sections hold against Apache Kafka 4.4 as well.
"""

from __future__ import annotations

import signal
import struct
import time
import warnings
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.conftest import wait_until_led
from tests.clients.drivers import ClientKind
from tests.clients.modes import MODE_CONFIG, Mode
from tests.clients.raw_client import RawClient, batch, records_of
from tests.clients.raw_transaction import RawTransaction
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds
from tests.processes import one_process_only

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NewTopic = Callable[..., str]
NewId = Callable[[], str]


@pytest.fixture
def mode() -> Mode:
    """Of all topics here, but for those that a test asks for in the other one."""
    return Mode.MARKERS


@pytest.fixture
def wire(node: NodeProcess) -> Iterator[RawClient]:
    with RawClient(node.address) as client:
        yield client


# --- who waits for whom ----------------------------------------------------------------------------


def test_hung_transaction_stops_readers_of_committed_records_and_no_commit(
    node: NodeProcess, client: ClientKind, new_topic: NewTopic, new_id: NewId
) -> None:
    """KIP-98: others commit behind its first offset and plain readers see them; readers of committed records wait."""
    topic = new_topic(2)
    expected = [b"%d" % number for number in range(10)]
    with (
        client.producer(node.address, new_id()) as hung,
        client.producer(node.address, new_id()) as other,
        Reader(node.address, topic, 2, isolation="read_committed") as committed,
        Reader(node.address, topic, 2) as plain,
    ):
        hung.begin()
        for partition in range(2):
            hung.send(topic, partition, b"hung")
        hung.flush()
        for value in expected:
            other.begin()
            for partition in range(2):
                other.send(topic, partition, value)
            other.commit()
        plain.wait_for(22)
        assert committed.idle(0.3) == []
        assert [committed.high_watermark(partition) for partition in range(2)] == [0, 0]
        hung.commit()
        committed.wait_for(22)
    in_order = [b"hung", *expected]
    assert_topic_holds(node.address, topic, {0: in_order, 1: in_order}, mode=Mode.MARKERS)


def test_hung_transaction_stops_readers_no_longer_than_its_timeout(
    node: NodeProcess, wire: RawClient, new_topic: NewTopic, new_id: NewId
) -> None:
    """The node aborts it, and who waited at the last stable offset reads on."""
    topic = new_topic()
    hung = RawTransaction(wire, new_id(), topic, timeout_ms=5_000)
    hung.write(b"hung")
    assert wire.produce(topic, 0, batch([b"plain"]))[0] == raw.NONE
    with Reader(node.address, topic, 1, isolation="read_committed") as reader:
        assert reader.idle(0.2) == []
        assert [record.value for record in reader.wait_for(1)] == [b"plain"]
    assert hung.end(commit=True) in raw.FENCED


# --- on the wire -----------------------------------------------------------------------------------


def test_fetch_tells_of_open_and_aborted_transactions(wire: RawClient, new_topic: NewTopic, new_id: NewId) -> None:
    """High watermark, last stable offset and aborted list at each isolation, while one hangs and after it."""
    topic = new_topic()
    first = RawTransaction(wire, new_id(), topic)
    hung = RawTransaction(wire, new_id(), topic)
    assert first.write(b"aborted", b"too") == 0
    assert first.end(commit=False) == raw.NONE  # its marker is at 2
    assert first.write(b"committed") == 3
    assert first.end(commit=True) == raw.NONE  # and at 4
    assert hung.write(b"hung") == 5
    assert first.write(b"behind") == 6
    assert first.end(commit=True) == raw.NONE  # and at 7
    everything = [(0, b"aborted"), (1, b"too"), (2, None), (3, b"committed"), (4, None)]
    more = [(5, b"hung"), (6, b"behind"), (7, None)]

    def seen(isolation: int, offset: int = 0) -> tuple[int, int, list[tuple[int, int]], list[tuple[int, bytes | None]]]:
        row = wire.fetch(topic, 0, offset, isolation=isolation, wait_ms=10)
        aborted = [(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        assert row.error_code == raw.NONE
        return row.high_watermark, row.last_stable_offset, aborted, records_of(row.records or b"")

    def latest() -> list[tuple[int, int]]:
        return [wire.list_offset(topic, 0, -1, isolation=isolation) for isolation in range(2)]

    wait_for_high_watermark(wire, topic, 8)
    assert seen(0) == (8, 5, [], everything + more)
    assert seen(1) == (8, 5, [(first.producer_id, 0)], everything)
    assert seen(1, 3) == (8, 5, [], everything[3:])
    assert seen(1, 5) == (8, 5, [], [])
    assert latest() == [(raw.NONE, 8), (raw.NONE, 5)]
    assert hung.end(commit=False) == raw.NONE  # and at 8
    wait_for_high_watermark(wire, topic, 9)
    both = [(first.producer_id, 0), (hung.producer_id, 5)]
    assert seen(0) == (9, 9, [], [*everything, *more, (8, None)])
    assert seen(1) == (9, 9, both, [*everything, *more, (8, None)])
    assert seen(1, 6) == (9, 9, both[1:], [*more[1:], (8, None)])
    assert latest() == [(raw.NONE, 9), (raw.NONE, 9)]


def wait_for_high_watermark(wire: RawClient, topic: str, offset: int) -> None:
    """The copy follows the answer within milliseconds."""
    deadline = time.monotonic() + WAIT_S
    while wire.list_offset(topic, 0, -1) != (raw.NONE, offset):
        assert time.monotonic() < deadline, wire.list_offset(topic, 0, -1)
        time.sleep(0.005)


@pytest.mark.parametrize("commit", [True, False])
def test_marker_is_the_control_batch_of_kip_98(
    wire: RawClient, new_topic: NewTopic, new_id: NewId, commit: bool
) -> None:
    """A batch of one record, transactional and control, of the producer's id and epoch; key (0, type), value (0, epoch
    of the coordinator)."""
    topic = new_topic()
    transaction = RawTransaction(wire, new_id(), topic)
    transaction.write(b"v")
    assert transaction.end(commit=commit) == raw.NONE
    wait_for_high_watermark(wire, topic, 2)
    data = bytes(wire.fetch(topic, 0, 1).records)
    base, _size, _leader_epoch, magic = struct.unpack_from(">qiib", data)
    attributes, last_delta = struct.unpack_from(">hi", data, 21)
    producer_id, epoch, sequence, count = struct.unpack_from(">qhii", data, 43)
    assert (base, magic, attributes, last_delta) == (1, 2, 0x30, 0)
    assert (producer_id, epoch, sequence, count) == (transaction.producer_id, transaction.epoch, -1, 1)
    # length, attributes, timestamp delta, offset delta: a byte each; then the key's length as a zigzag varint
    assert data[65:70] == bytes([8]) + struct.pack(">hh", 0, int(commit)), "key: version 0, type 0 abort, 1 commit"
    version, coordinator_epoch = struct.unpack_from(">hi", data, 71)
    assert (data[70], version, coordinator_epoch >= 0) == (12, 0, True)


def outcomes_of(wire: RawClient, topic: str, partition: int = 0) -> list[tuple[int, str | None]]:
    """Offset of each batch, and what it says of a transaction's end if it is a marker."""
    data, found = bytes(wire.fetch(topic, partition, 0, wait_ms=10).records or b""), []
    while data:
        base, size = struct.unpack_from(">qi", data)
        is_marker = struct.unpack_from(">h", data, 21)[0] & 0x20
        found.append((base, ("abort", "commit")[struct.unpack_from(">h", data, 68)[0]] if is_marker else None))
        data = data[12 + size :]
    return found


@pytest.mark.parametrize("outcome", ["abort", "commit"])
def test_marker_of_the_same_outcome_goes_where_nothing_was_written(
    wire: RawClient, new_topic: NewTopic, new_id: NewId, outcome: str
) -> None:
    """Into each partition that was added, be it one or all that got nothing; into no other, nor a journal topic."""
    topic, journal = new_topic(3), new_topic(mode=Mode.JOURNAL)
    transaction = RawTransaction(wire, new_id(), topic)
    mine = transaction.transactional_id, transaction.producer_id, transaction.epoch
    assert wire.add_partitions(*mine, topic, [1]) == {1: raw.NONE}
    assert wire.add_partitions(*mine, journal, [0]) == {0: raw.NONE}
    transaction.write(b"v")
    assert transaction.end(commit=outcome == "commit") == raw.NONE
    wait_for_high_watermark(wire, topic, 2)
    assert outcomes_of(wire, topic) == [(0, None), (1, outcome)]
    assert [outcomes_of(wire, topic, partition) for partition in (1, 2)] == [[(0, outcome)], []]
    assert wire.add_partitions(*mine, topic, [0]) == {0: raw.NONE}
    assert transaction.end(commit=outcome == "commit") == raw.NONE
    wait_for_high_watermark(wire, topic, 3)
    assert outcomes_of(wire, topic)[2:] == [(2, outcome)]
    assert wire.list_offset(journal, 0, -1) == (raw.NONE, 0)


@one_process_only("a failpoint ends a process, and not the node")
@pytest.mark.parametrize("moment", ["before", "between_logs", "after"])
def test_commit_marker_goes_where_nothing_was_written_whenever_the_node_is_killed(
    fresh_node: Callable[..., NodeProcess], moment: str
) -> None:
    """Between the decision and its last marker a kill takes none of them, and the restart after it adds none."""
    node = fresh_node(FAIRLOG_FAILPOINT=f"coordinator.place.{moment}:kill:1")
    with RawClient(node.address) as wire:
        for topic in ("written", "only-added"):
            wire.metadata(topic, create=True)
        transaction = RawTransaction(wire, "t", "written")
        transaction.write(b"v")
        mine = transaction.transactional_id, transaction.producer_id, transaction.epoch
        assert wire.add_partitions(*mine, "only-added", [0]) == {0: raw.NONE}
        wire.send(raw.end_request(*mine, commit=True))
        assert node.wait_end(WAIT_S) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    for _ in range(2):
        node.start()
        with RawClient(node.address) as wire:
            wait_for_high_watermark(wire, "only-added", 1)
            assert outcomes_of(wire, "only-added") == [(0, "commit")]
            assert outcomes_of(wire, "written") == [(0, None), (1, "commit")]
        node.kill()


def test_produce_in_a_transaction_repeated_is_answered_with_the_first_offset(
    wire: RawClient, node: NodeProcess, new_topic: NewTopic, new_id: NewId
) -> None:
    """It is known in this mode; also when the transaction has ended."""
    topic = new_topic()
    transaction = RawTransaction(wire, new_id(), topic)
    assert transaction.write(b"first") == 0
    data = transaction.batch(b"a", b"b")
    assert transaction.produce(b"a", b"b") == (raw.NONE, 1)
    repeated = wire.produce(topic, 0, data, transactional_id=transaction.transactional_id)
    assert repeated == (raw.NONE, 1)
    assert transaction.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"first", b"a", b"b"]}, mode=Mode.MARKERS)


def test_fetch_that_waits_at_the_last_stable_offset_is_answered_when_it_moves(
    node: NodeProcess, wire: RawClient, new_topic: NewTopic, new_id: NewId
) -> None:
    """A long poll of a reader of committed records: woken by the end of the open transaction, not by what is behind."""
    topic = new_topic()
    hung = RawTransaction(wire, new_id(), topic)
    hung.write(b"hung")
    with RawClient(node.address, timeout_s=WAIT_S) as poller:
        poller.send(raw.fetch_request(topic, 0, 0, isolation=1, wait_ms=4 * int(WAIT_S) * 1000))
        for number in range(5):
            assert wire.produce(topic, 0, batch([b"%d" % number]))[0] == raw.NONE
            assert not poller.has_answer(within_s=0.05)
        assert hung.end(commit=True) == raw.NONE
        assert records_of(poller.receive_fetch().records)[0] == (0, b"hung")


def test_producer_described_shows_where_its_transaction_begins(
    wire: RawClient, new_topic: NewTopic, new_id: NewId
) -> None:
    """What kafka-transactions needs: the start offset while it is open, -1 otherwise."""
    topic = new_topic()
    assert wire.produce(topic, 0, batch([b"plain"] * 3))[0] == raw.NONE
    transaction = RawTransaction(wire, new_id(), topic)
    for start in (3, 6):
        assert transaction.write(b"v") == start
        transaction.write(b"w")
        (row,) = wire.describe_producers(topic, 0)
        assert (row.producer_id, row.producer_epoch) == (transaction.producer_id, transaction.epoch)
        assert row.current_txn_start_offset == start
        assert transaction.end(commit=True) == raw.NONE
        (row,) = wire.describe_producers(topic, 0)
        assert row.current_txn_start_offset == -1
        assert row.coordinator_epoch >= 0


# --- a marker by hand ------------------------------------------------------------------------------


def coordinator_epoch_of(wire: RawClient, topic: str, producer_id: int) -> int:
    return next(e.coordinator_epoch for e in wire.describe_producers(topic, 0) if e.producer_id == producer_id)


@one_process_only("an abort marker ends only what the leader's own broker coordinates")
def test_abort_marker_by_hand_frees_the_readers_and_the_rest_cannot_be_committed(
    node: NodeProcess, wire: RawClient, new_topic: NewTopic, new_id: NewId
) -> None:
    """One partition's part is taken back, so the whole must be: in the other partition, and in a journal topic, too."""
    topic, other, journal = new_topic(), new_topic(), new_topic(mode=Mode.JOURNAL)
    hung = RawTransaction(wire, new_id(), topic)
    mine = hung.transactional_id, hung.producer_id, hung.epoch
    hung.write(b"hung")
    for each in (other, journal):
        assert wire.add_partitions(*mine, each, [0]) == {0: raw.NONE}
        data = batch([b"hung"], producer_id=mine[1], epoch=mine[2], sequence=0, transactional=True)
        assert wire.produce(each, 0, data, transactional_id=mine[0])[0] == raw.NONE
    assert wire.produce(topic, 0, batch([b"behind"]))[0] == raw.NONE
    with Reader(node.address, topic, 1, isolation="read_committed") as reader:
        assert reader.idle(0.1) == []
        assert wire.write_marker(topic, 0, hung.producer_id, hung.epoch) == raw.NONE
        assert [record.value for record in reader.wait_for(1)] == [b"behind"]
    assert wire.write_marker(topic, 0, hung.producer_id, hung.epoch) == raw.NONE, "there is nothing more to end"
    assert hung.produce(b"more")[0] != raw.NONE
    assert hung.end(commit=True) == raw.MUST_ABORT
    assert hung.end(commit=False) == raw.NONE
    hung.sequence -= 1
    hung.write(b"next")
    assert hung.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"behind", b"next"]}, mode=Mode.MARKERS, aborted={0: [b"hung"]})
    assert_topic_holds(node.address, other, {0: []}, mode=Mode.MARKERS, aborted={0: [b"hung"]})
    assert_topic_holds(node.address, journal, {0: []})


@one_process_only("an abort marker ends only what the leader's own broker coordinates")
def test_abort_marker_by_hand_survives_a_kill(fresh_node: Callable[..., NodeProcess]) -> None:
    """Answered means done: the transaction stays aborted over the restart, in every partition."""
    node = fresh_node()
    with RawClient(node.address) as wire:
        for topic in ("t", "u"):
            wire.metadata(topic, create=True)
        hung = RawTransaction(wire, "hung", "t")
        mine = hung.transactional_id, hung.producer_id, hung.epoch
        hung.write(b"hung")
        assert wire.write_marker("t", 0, hung.producer_id, hung.epoch) == raw.NONE
        assert wire.add_partitions(*mine, "u", [0]) == {0: raw.UNKNOWN_PRODUCER_ID}
    node.kill()
    node.start()
    with RawClient(node.address) as wire:
        assert wire.add_partitions(*mine, "u", [0]) == {0: raw.UNKNOWN_PRODUCER_ID}
        assert hung.end(commit=True, by=wire) == raw.UNKNOWN_PRODUCER_ID
        assert wire.produce("t", 0, batch([b"after"]))[0] == raw.NONE
    assert_topic_holds(node.address, "t", {0: [b"after"]}, mode=Mode.MARKERS, aborted={0: [b"hung"]})


def test_marker_by_hand_that_is_not_an_abort_of_what_is_open_is_refused(
    node: NodeProcess, wire: RawClient, new_topic: NewTopic, new_id: NewId
) -> None:
    """A commit, another epoch, a coordinator of before: each with Kafka's code, and nothing is changed."""
    topic = new_topic()
    transaction = RawTransaction(wire, new_id(), topic)
    transaction.write(b"first")
    assert transaction.end(commit=True) == raw.NONE
    coordinator = coordinator_epoch_of(wire, topic, transaction.producer_id)
    transaction.write(b"second")

    def marker(*, epoch: int = transaction.epoch, coordinator_epoch: int = coordinator, commit: bool = False) -> int:
        return wire.write_marker(
            topic, 0, transaction.producer_id, epoch, commit=commit, coordinator_epoch=coordinator_epoch
        )

    assert marker(commit=True) == raw.INVALID_TXN_STATE
    assert marker(coordinator_epoch=coordinator - 1) == raw.TRANSACTION_COORDINATOR_FENCED
    assert wire.write_marker(topic, 0, transaction.producer_id + 10_000, 0) == raw.NONE, "a stranger has nothing open"
    assert wire.write_marker(topic, 7, transaction.producer_id, 0) == raw.UNKNOWN_TOPIC_OR_PARTITION
    successor = RawTransaction(wire, transaction.transactional_id, topic)  # which aborts
    successor.write(b"third")
    assert marker() == raw.INVALID_PRODUCER_EPOCH
    assert successor.end(commit=True) == raw.NONE
    assert_topic_holds(node.address, topic, {0: [b"first", b"third"]}, mode=Mode.MARKERS, aborted={0: [b"second"]})


# --- topics ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_transaction_over_topics_of_both_modes_is_one(
    node: NodeProcess, client: ClientKind, new_topic: NewTopic, new_id: NewId, commit: bool
) -> None:
    """All or nothing in both, and in order, transaction after transaction."""
    markers, journal = new_topic(2), new_topic(2, mode=Mode.JOURNAL)
    values = [b"%d" % number for number in range(8)]
    with client.producer(node.address, new_id()) as producer:
        for value in values:
            producer.begin()
            for partition in range(2):
                producer.send(journal, partition, value)
                producer.send(markers, partition, value)
            producer.flush()
            (producer.commit if commit else producer.abort)()
    kept = {partition: values if commit else [] for partition in range(2)}
    aborted = {partition: [] if commit else values for partition in range(2)}
    assert_topic_holds(node.address, journal, kept)
    assert_topic_holds(node.address, markers, kept, mode=Mode.MARKERS, aborted=aborted)


def test_mode_of_a_topic_is_shown_and_cannot_be_altered(node: NodeProcess, new_topic: NewTopic) -> None:
    """Refused with words that say what to do; setting what is so already is no alteration."""
    topic = new_topic()
    admin = AdminClient({"bootstrap.servers": node.address})

    def alter(value: str, operation: AlterConfigOpType = AlterConfigOpType.SET) -> None:
        entry = ConfigEntry(MODE_CONFIG, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(timeout=WAIT_S)

    described = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([described])[described].result(timeout=WAIT_S)[MODE_CONFIG]
    assert (config.value, config.is_read_only, config.is_default) == ("markers", True, False)
    for operation in (AlterConfigOpType.SET, AlterConfigOpType.DELETE):
        with pytest.raises(KafkaException, match="fixed when a topic is made, and this one's is markers"):
            alter("journal", operation)
    alter("markers")


def test_topic_made_without_a_mode_has_the_nodes(fresh_node: Callable[..., NodeProcess]) -> None:
    """And keeps it when the node is started with another one."""
    node = fresh_node()
    with RawClient(node.address) as wire:
        wire.metadata("t", create=True)
    assert node.stop() == 0
    node.environment["FAIRLOG_TOPICS_TRANSACTIONS"] = "journal"
    node.start()
    with RawClient(node.address) as wire:
        wire.metadata("u", create=True)
        wait_until_led(node.address, "u", 1)
        transactions = [RawTransaction(wire, f"id of {topic}", topic) for topic in ("t", "u")]
        assert [each.write(b"open") >= 0 for each in transactions] == [True, False]
        wait_for_high_watermark(wire, "t", 1)
        assert wire.list_offset("u", 0, -1) == (raw.NONE, 0)
