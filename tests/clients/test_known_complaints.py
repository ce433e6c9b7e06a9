"""What users of other brokers complained of, as tests that it does not happen here.

Each test names the report. The torn transaction of KAFKA-17754, and InitProducerId repeated by hand (librdkafka#3928),
stand in test_raw_protocol.py; what offsets in transactions cost (confluent-kafka-python#967) in test_offsets.py; ids
that come and go (redpanda#12424) in test_many_ids.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.clients.drivers import AIOKAFKA, CONFLUENT, KAFKA_PYTHON, ClientError, ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import NONE, TRANSACTION_ABORTABLE, RawClient, batch, end_request
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds
from tests.clients.test_timeouts import TIMEOUT_MS, wait_until_ended
from tests.processes import one_process_only

with warnings.catch_warnings():
    # kafka-python 3.0 reads its message schemas with importlib.resources.read_text, deprecated since Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

pytestmark = [
    pytest.mark.slow,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@BOTH_MODES
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("last", ["commit", "abort"])
def test_lag_behind_a_transaction_reaches_zero(
    node: NodeProcess, mode: Mode, isolation: str, last: str, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#3917: with a control record at the end, position never reaches the high watermark.

    In marker mode there is one, and it is as reported.
    """
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        for outcome in ("commit", last):
            producer.begin()
            for _ in range(3):
                producer.send(topic, 0, outcome.encode())
            producer.flush()
            if outcome == "commit":
                producer.commit()
            else:
                producer.abort()
    with Reader(node.address, topic, 1, isolation=isolation) as reader:
        aborted_too = mode is Mode.MARKERS and isolation == "read_uncommitted"
        records = reader.wait_for(6 if last == "commit" or aborted_too else 3)
        reader.read_to_end()
        if mode is Mode.JOURNAL:
            assert records[-1].offset + 1 == reader.high_watermark(0) == len(records)
        else:
            assert records[-1].offset + 1 < reader.high_watermark(0) == 8, "six records and two markers"


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_lag_of_a_group_behind_a_transaction_reaches_zero(
    node: NodeProcess, client: ClientKind, isolation: str, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#3917, as reported: a group commits each record that it got, and its lag stays at 1 for ever.

    The last thing in partition 0 is a commit, in partition 1 an abort. Lag is what tools show: ListOffsets' latest
    less OffsetFetch's offset.
    """
    topic, group = new_topic(2), new_id()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        for outcomes in ((True, True), (True, False)):
            for partition, commits in enumerate(outcomes):
                producer.begin()
                for _ in range(3):
                    producer.send(topic, partition, b"v")
                producer.flush()
                (producer.commit if commits else producer.abort)()
    CONSUME_AND_COMMIT[client](node.address, topic, group, isolation, 9)
    with RawClient(node.address) as raw:
        committed = [raw.committed_offset(group, topic, partition) for partition in range(2)]
        assert committed == [(NONE, 6), (NONE, 3)]
        for level in range(2):
            latest = [raw.list_offset(topic, partition, -1, isolation=level) for partition in range(2)]
            assert latest == committed, "the lag is not 0"


def confluent_consumes(address: str, topic: str, group: str, isolation: str, count: int) -> None:
    """Commits message by message."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def kafka_python_consumes(address: str, topic: str, group: str, isolation: str, count: int) -> None:
    """Commits where it stands."""
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=group,
        isolation_level=isolation,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    deadline = time.monotonic() + WAIT_S
    try:
        while count > 0:
            assert time.monotonic() < deadline
            count -= sum(map(len, consumer.poll(timeout_ms=500).values()))
            consumer.commit()
    finally:
        consumer.close(autocommit=False)


def aiokafka_consumes(address: str, topic: str, group: str, isolation: str, count: int) -> None:
    """Commits message by message."""

    async def consume() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            isolation_level=isolation,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            for _ in range(count):
                message = await consumer.getone()
                await consumer.commit({aiokafka.TopicPartition(topic, message.partition): message.offset + 1})
        finally:
            await consumer.stop()

    async def bounded() -> None:
        await asyncio.wait_for(consume(), WAIT_S)

    asyncio.run(bounded())


CONSUME_AND_COMMIT: dict[ClientKind, Callable[[str, str, str, str, int], None]] = {
    CONFLUENT: confluent_consumes,
    KAFKA_PYTHON: kafka_python_consumes,
    AIOKAFKA: aiokafka_consumes,
}


def test_read_to_end_loop_of_aiokafka_ends(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """aiokafka#911: `while position < end_offset: getone()` waits for ever if a marker is the last record."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        for outcome in ("committed", "aborted"):
            producer.begin()
            producer.send(topic, 0, outcome.encode())
            producer.flush()
            if outcome == "committed":
                producer.commit()
            else:
                producer.abort()
    with Reader(node.address, topic, 1) as reader:
        reader.wait_for(1)

    async def read_to_end() -> list[bytes | None]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=node.address, isolation_level="read_committed")
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            values: list[bytes | None] = []
            while await consumer.position(partition) < end:
                values.append((await consumer.getone()).value)
            return values
        finally:
            await consumer.stop()

    async def bounded() -> list[bytes | None]:
        return await asyncio.wait_for(read_to_end(), WAIT_S)

    assert asyncio.run(bounded()) == [b"committed"]


@BOTH_MODES
def test_transaction_begun_and_empty_expires(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """redpanda#18324: partitions added, nothing ever produced; it must time out like any other."""
    topic, transactional_id = new_topic(), new_id()
    with RawClient(node.address) as client:
        granted = client.init_producer_id(transactional_id, timeout_ms=TIMEOUT_MS)
        added = client.add_partitions(transactional_id, granted.producer_id, granted.producer_epoch, topic, [0])
        assert added == {0: NONE}
        assert client.transaction_state(transactional_id).transaction_state == "Ongoing"
        wait_until_ended(node, transactional_id)
    with CONFLUENT.producer(node.address, transactional_id) as successor:
        successor.begin()
        successor.send(topic, 0, b"next")
        successor.commit()
    assert_topic_holds(node.address, topic, {0: [b"next"]}, mode=mode)


def test_offsets_log_added_and_nothing_committed_expires(
    node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """redpanda#18324, for a group's offsets: AddOffsetsToTxn, and then nothing more, must not stall who reads them."""
    topic, transactional_id, group = new_topic(), new_id(), new_id()
    with RawClient(node.address) as client:
        assert client.commit_offset(group, topic, 0, 5) == NONE
        granted = client.init_producer_id(transactional_id, timeout_ms=TIMEOUT_MS)
        mine = transactional_id, granted.producer_id, granted.producer_epoch
        assert client.add_offsets(*mine, group) == NONE
        assert client.transaction_state(transactional_id).transaction_state == "Ongoing"
        assert client.committed_offset(group, topic, 0) == (NONE, 5)
        wait_until_ended(node, transactional_id)
        assert client.committed_offset(group, topic, 0) == (NONE, 5)


@BOTH_MODES
def test_abort_that_races_adding_partitions_is_not_fatal(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#4849: abort while partitions are still being registered; the producer stays usable."""
    topic = new_topic(20)
    with client.producer(node.address, new_id()) as producer:
        for _ in range(10):
            producer.begin()
            for partition in range(20):
                producer.send(topic, partition, b"aborted")
            producer.abort()  # no flush: AddPartitionsToTxn and Produce are on their way
        producer.begin()
        for partition in range(20):
            producer.send(topic, partition, b"committed")
        producer.commit()
    assert_topic_holds(
        node.address, topic, {partition: [b"committed"] for partition in range(20)}, mode=mode, aborted=None
    )


@BOTH_MODES
def test_abort_soon_after_a_commit_is_not_fatal(
    node: NodeProcess, mode: Mode, client: ClientKind, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#4849, as it was found: after a commit, the abort's EndTxn meets a transaction that does not know of
    its first AddPartitions yet. Aborted at many moments around that request."""
    topic = new_topic(4)
    with client.producer(node.address, new_id()) as producer:
        for number in range(25):
            producer.begin()
            producer.send(topic, 0, b"%d" % number)
            producer.commit()
            producer.begin()
            for partition in range(1, 4):
                producer.send(topic, partition, b"aborted")
            time.sleep(number / 2000)
            producer.abort()
    assert_topic_holds(
        node.address, topic, {0: [b"%d" % number for number in range(25)], 1: [], 2: [], 3: []}, mode=mode, aborted=None
    )


@BOTH_MODES
def test_abort_sent_behind_adding_partitions_finds_them(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """librdkafka#4849 on the wire: EndTxn is sent before AddPartitionsToTxn is answered, after a commit."""
    topic, name = new_topic(), new_id()
    with RawClient(node.address) as client:
        granted = client.init_producer_id(name)
        mine = name, granted.producer_id, granted.producer_epoch
        for _ in range(10):
            assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
            assert client.end(*mine, commit=True) == NONE
            client.send(add_partitions_request(*mine, topic))
            client.send(end_request(*mine, commit=False))
            client.receive(AddPartitionsToTxnResponse, 3)
            assert client.receive_end() == NONE


def add_partitions_request(transactional_id: str, producer_id: int, epoch: int, topic: str) -> Any:
    return AddPartitionsToTxnRequest[3](
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[0])],
    )


def _signal_all(node: NodeProcess, number: signal.Signals) -> None:
    for pid in node.pids:
        os.kill(pid, number)


@BOTH_MODES
def test_bump_of_the_epoch_after_lost_messages_fences_nobody(
    fresh_node: Callable[..., NodeProcess],
    mode: Mode,
) -> None:
    """librdkafka#3928: one producer alone, whose messages time out, aborts, bumps its epoch (and asks for that more
    than once), and is told that a newer instance had fenced it."""
    node = fresh_node()
    with RawClient(node.address) as raw:
        raw.metadata("t", create=True)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": node.address,
                "transactional.id": "t",
                "message.timeout.ms": 2000,  # more than any message takes that is to arrive
                "socket.timeout.ms": 4000,
                "reconnect.backoff.max.ms": 100,
                "log_level": 2,
            }
        )
        producer.init_transactions(WAIT_S)
        for number in range(2):
            producer.begin_transaction()
            producer.produce("t", b"%d" % number, partition=0)
            producer.commit_transaction(WAIT_S)
            producer.begin_transaction()
            producer.produce("t", b"in time", partition=0)
            assert producer.flush(WAIT_S) == 0
            _signal_all(node, signal.SIGSTOP)
            try:
                failures: list[confluent_kafka.KafkaError | None] = []
                producer.produce("t", b"late", partition=0, on_delivery=lambda error, _, to=failures: to.append(error))
                assert producer.flush(WAIT_S) == 0
                assert [error is not None for error in failures] == [True]
            finally:
                _signal_all(node, signal.SIGCONT)
            producer.abort_transaction(WAIT_S)
        assert raw.transaction_state("t").producer_epoch <= 2, "no more than one bump for each loss"
    assert_topic_holds(node.address, "t", {0: [b"0", b"1"]}, mode=mode, aborted=None)


@BOTH_MODES
def test_topic_deleted_inside_a_transaction_does_not_hold_it_up(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """apache/kafka#21672: no endless retries; the rest commits
    (docs/decisions/0003-deleted-topics.md), the next as well."""
    doomed, other = new_topic(), new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        producer.begin()
        producer.send(doomed, 0, b"deleted")
        producer.send(other, 0, b"the rest")
        producer.flush()
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.delete_topics([doomed])[doomed].result(timeout=WAIT_S)
        started = time.monotonic()
        producer.commit()
        assert time.monotonic() - started < WAIT_S / 3
        producer.begin()
        producer.send(other, 0, b"next")
        producer.commit()
    assert_topic_holds(node.address, other, {0: [b"the rest", b"next"]}, mode=mode)


@BOTH_MODES
def test_topic_deleted_before_a_transaction_ends_it_at_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind
) -> None:
    """apache/kafka#21672, as reported: the producer still believes in the topic, and asks for its partitions without
    end. It is told to abort; aiokafka, which knows no such answer, gives up, and a new producer goes on."""
    node = fresh_node()
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("doomed", "other")]).values():
        future.result(timeout=WAIT_S)
    with client.producer(node.address, "t") as producer:
        producer.begin()
        for topic in ("doomed", "other"):
            producer.send(topic, 0, b"first")
        producer.commit()
        admin.delete_topics(["doomed"])["doomed"].result(timeout=WAIT_S)
        producer.begin()
        started = time.monotonic()
        for topic in ("other", "doomed"):
            producer.send(topic, 0, b"lost")
        with pytest.raises(ClientError):
            producer.flush()
        assert time.monotonic() - started < WAIT_S / 3
        if client is not AIOKAFKA:
            producer.abort()
            producer.begin()
            producer.send("other", 0, b"next")
            producer.commit()
    if client is AIOKAFKA:
        with client.producer(node.address, "t") as producer:
            producer.begin()
            producer.send("other", 0, b"next")
            producer.commit()
    assert_topic_holds(node.address, "other", {0: [b"first", b"next"]}, mode=mode, aborted=None)


@one_process_only("a failpoint ends a process, and not the node")
@BOTH_MODES
@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("group.prepare_commit.appended", 2),
        ("coordinator.prepared", 2),
        ("coordinator.place.between_logs", 3),  # the first transaction passes it twice
        ("group.committed.appended", 2),
    ],
)
def test_transaction_is_not_left_in_prepare_commit_by_a_crash(
    fresh_node: Callable[..., NodeProcess], mode: Mode, point: str, nth: int
) -> None:
    """redpanda#17827: PrepareCommit for ever, and with it an id that nobody can use again: the coordinator has decided,
    and a partition, or the group's offsets, know nothing of it any more. One topic is deleted before, for good measure.
    """
    node = fresh_node(FAIRLOG_FAILPOINT=f"{point}:kill:{nth}")
    for topic in ("in", "out", "doomed"):
        with RawClient(node.address) as client:
            client.metadata(topic, create=True)
    with RawClient(node.address) as client:
        granted = client.init_producer_id("t")
        mine = "t", granted.producer_id, granted.producer_epoch

        def write(*topics: str, number: int) -> None:
            for topic in topics:
                assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
                sequence = 0 if topic == "doomed" else number - 1
                record = batch(
                    [b"%d" % number], producer_id=mine[1], epoch=mine[2], sequence=sequence, transactional=True
                )
                assert client.produce(topic, 0, record, transactional_id="t")[0] == NONE
            assert client.add_offsets(*mine, "g") == NONE
            assert client.commit_offset_in_transaction(*mine, "g", "in", 0, number) == NONE

        write("out", number=1)
        assert client.end(*mine, commit=True) == NONE
        with Reader(node.address, "out", 1) as reader:
            reader.wait_for(1)
        write("out", "doomed", number=2)
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.delete_topics(["doomed"])["doomed"].result(timeout=WAIT_S)
        client.send(end_request(*mine, commit=True))
        assert node.wait_end(WAIT_S) == -signal.SIGKILL
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    with RawClient(node.address) as client:
        assert client.end(*mine, commit=True) == NONE
        assert client.transaction_state("t").transaction_state == "CompleteCommit"
        assert client.committed_offset("g", "in", 0) == (NONE, 2)
    with CONFLUENT.producer(node.address, "t") as successor:
        successor.begin()
        successor.send("out", 0, b"3")
        successor.commit()
    assert_topic_holds(node.address, "out", {0: [b"1", b"2", b"3"]}, mode=mode)


@BOTH_MODES
def test_next_transaction_begins_without_a_back_off(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """CONCURRENT_TRANSACTIONS is never answered for a transaction that is only being copied."""
    topic = new_topic(4)
    with RawClient(node.address) as client:
        transactional_id = new_id()
        granted = client.init_producer_id(transactional_id)
        for number in range(50):
            added = client.add_partitions(
                transactional_id, granted.producer_id, granted.producer_epoch, topic, range(4)
            )
            assert added == dict.fromkeys(range(4), NONE), f"transaction {number}"
            for partition in range(4):
                records = batch(
                    [b"%d" % number] * 10,
                    producer_id=granted.producer_id,
                    epoch=granted.producer_epoch,
                    sequence=10 * number,
                    transactional=True,
                )
                assert client.produce(topic, partition, records, transactional_id=transactional_id)[0] == NONE
            assert client.end(transactional_id, granted.producer_id, granted.producer_epoch, commit=True) == NONE
    expected = [b"%d" % number for number in range(50) for _ in range(10)]
    assert_topic_holds(node.address, topic, dict.fromkeys(range(4), expected), mode=mode)


@BOTH_MODES
def test_delivery_report_inside_a_transaction_claims_no_offset_that_is_not_known(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """It is not before the commit; librdkafka must report none rather than plausible lies. In marker mode it is."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        producer.begin()
        for number in range(5):
            producer.send(topic, 0, b"%d" % number)
        offsets = producer.flush()
        producer.commit()
    if mode is Mode.JOURNAL:
        assert all(offset is None or offset < 0 for offset in offsets), offsets
    else:
        assert offsets == list(range(5))


def test_consumer_offsets_for_times_works_with_a_stock_client(node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """`offsets_for_times` inside batches, compressed ones included."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, compression="zstd") as producer:
        for number in range(100):
            producer.send(topic, 0, b"x" * 50, timestamp_ms=1_000_000 + number)
        producer.flush()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.address, "group.id": "unused"})
    try:
        asked = [confluent_kafka.TopicPartition(topic, 0, 1_000_040)]
        assert [each.offset for each in consumer.offsets_for_times(asked, timeout=WAIT_S)] == [40]
    finally:
        consumer.close()


@BOTH_MODES
def test_transaction_to_a_topic_that_is_missing_is_aborted_and_the_next_one_commits(
    fresh_node: Callable[..., NodeProcess],
    mode: Mode,
) -> None:
    """A refused AddPartitions leaves a transaction that only the client knows; its abort must not be an error."""
    node = fresh_node(FAIRLOG_TOPICS_AUTO_CREATE="false")
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("there", 1, 1)])["there"].result(timeout=WAIT_S)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": node.address,
            "transactional.id": "t",
            "topic.metadata.propagation.max.ms": 100,
            "log_level": 2,
        }
    )
    producer.init_transactions(WAIT_S)
    for number in range(2):
        producer.begin_transaction()
        producer.produce("there", b"%d" % number, partition=0)
        producer.commit_transaction(WAIT_S)
        failures: list[confluent_kafka.KafkaError | None] = []
        producer.begin_transaction()
        missing = f"missing-{number}"  # one that is known to be missing is refused without asking the node
        producer.produce(missing, b"lost", partition=0, on_delivery=lambda error, _, to=failures: to.append(error))
        producer.flush(WAIT_S)
        assert [error is not None for error in failures] == [True]
        producer.abort_transaction(WAIT_S)
    assert_topic_holds(node.address, "there", {0: [b"0", b"1"]}, mode=mode, aborted=None)


@BOTH_MODES
def test_partition_missing_is_refused_and_the_abort_that_follows_succeeds(
    node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """The same by hand: after a commit, an error for the partition, then EndTxn(abort), then the next one."""
    topic, name = new_topic(), new_id()
    with RawClient(node.address) as client:
        granted = client.init_producer_id(name)
        mine = name, granted.producer_id, granted.producer_epoch
        for sequence in range(2):
            assert client.add_partitions(*mine, topic, [0]) == {0: NONE}
            record = batch(
                [b"%d" % sequence], producer_id=mine[1], epoch=mine[2], sequence=sequence, transactional=True
            )
            assert client.produce(topic, 0, record, transactional_id=name)[0] == NONE
            assert client.end(*mine, commit=True) == NONE
            assert client.add_partitions(*mine, topic, [9]) == {9: TRANSACTION_ABORTABLE}
            assert client.end(*mine, commit=False) == NONE
    assert_topic_holds(node.address, topic, {0: [b"0", b"1"]}, mode=mode)
