"""Produce: what is accepted, what is refused with which code, and when the answer goes out."""

from __future__ import annotations

import gzip
import time
from uuid import UUID

import pytest
import trio
from kafka.protocol.producer import ProduceRequest

from coordinator.answers import Refusal
from datalog.batch import check_crc, parse_batch_header_untrusted
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.errors import APPEND_REFUSALS, ErrorCode
from fairlog.kafka.handlers import api_00_produce
from fairlog.kafka.must_abort import must_abort_code
from fairlog_types import JournalPosition, Offset, ProducerEpoch, ProducerId, StorageFailure, TxId
from partition.answers import DuplicateOf, RefusedAppend
from shard.ends import OWN_WAIT_S
from tests.datalog.batches import keyed_batch

PRODUCE = 0
TRANSACTIONAL = 0x10
NAMED = range(api_00_produce.SERVED.min, 13)
"""The versions in which topics are named; later ones give their ids."""
ALL_VERSIONS = pytest.mark.parametrize("version", NAMED)

Topic = ProduceRequest.TopicProduceData
Partition = Topic.PartitionProduceData


def request(records, *, topic="t", partition=0, acks=-1, transactional_id=None, timeout_ms=1000):
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout_ms": timeout_ms,
        "topic_data": [Topic(name=topic, partition_data=[Partition(index=partition, records=records)])],
    }


def only(response):
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    return partition


@ALL_VERSIONS
async def test_plain_batch_is_answered_with_its_offset(ask, memory, batch, version):
    """A batch of three behind a batch of two gets base offset 2, in every version."""
    memory.topics.create_now("t")
    await ask(PRODUCE, version, **request(batch(records=2)))
    answer = only(await ask(PRODUCE, version, **request(batch(records=3))))
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 2, -1)
    if version >= 5:
        assert answer.log_start_offset == 0


async def test_topics_by_id_are_answered_by_id(ask, memory, batch):
    """From version 13 on; an id that no topic has is told so, and makes no topic."""
    topic_id = memory.topics.create_now("t").topic_id
    unknown = UUID(int=7)
    asked = [
        Topic(topic_id=each, partition_data=[Partition(index=0, records=batch(records=2))])
        for each in (topic_id, unknown)
    ]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": asked}
    response = await ask(PRODUCE, 13, **fields)
    errors = {topic.topic_id: topic.partition_responses[0].error_code for topic in response.responses}
    assert errors == {topic_id: 0, unknown: ErrorCode.UNKNOWN_TOPIC_ID}
    assert [topic.name for topic in memory.cluster.topics()] == ["t"]


@pytest.mark.parametrize("known", [False, True])
async def test_partition_is_added_to_the_transaction_on_the_way(ask, memory, batch, known):
    """From version 12 on (KIP-890): the coordinator is asked first, on no connection, unless it has the partition."""
    memory.topics.create_now("t")
    if known:
        memory.coordinator.added.add(("tx", 41, 2, memory.log("t")))
    sent = request(batch(producer_id=41, epoch=2, sequence=0, attributes=0x10), transactional_id="tx")
    assert only(await ask(PRODUCE, 12, **sent)).error_code == 0
    asked = [("add", "tx", 41, 2, (memory.log("t"),), None)]
    assert memory.coordinator.calls == ([] if known else asked)
    assert only(await ask(PRODUCE, 11, **sent)).error_code == 0
    assert memory.coordinator.calls == ([] if known else asked), "before, AddPartitionsToTxn has to come first"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal.UNKNOWN_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Refusal.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Refusal.MUST_ABORT, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Refusal.CONCURRENT, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Refusal.STORAGE, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_partition_that_cannot_be_added_on_the_way_takes_no_batch(ask, memory, batch, refusal, code):
    """A late batch above all: its epoch has ended, and the next transaction has another one."""
    memory.topics.create_now("t")
    memory.coordinator.refusal = refusal
    sent = request(batch(producer_id=41, epoch=2, sequence=0, attributes=0x10), transactional_id="tx")
    assert only(await ask(PRODUCE, 12, **sent)).error_code == code
    assert memory.leaders.logs.get(memory.log("t"), []) == []


async def test_batch_is_stored_as_it_was_sent(ask, memory, batch):
    """Nothing but base offset and leader epoch differs from what the client has signed."""
    memory.topics.create_now("t")
    sent = batch(records=4, size=5000)
    await ask(PRODUCE, 9, **request(sent))
    (stored,) = memory.leaders.logs[memory.log("t")]
    assert stored[16:] == sent[16:]


@ALL_VERSIONS
async def test_batch_is_stamped_with_the_time_of_its_coming_if_the_topic_says_so(ask, memory, batch, version):
    """LogAppendTime: every record has the node's time, which is answered; the CRC is right, the rest as it was sent."""
    memory.topics.create_now("t", configs={"message.timestamp.type": "LogAppendTime"})
    sent = batch(records=3, timestamp=5)
    before_ms = time.time_ns() // 1_000_000
    answer = only(await ask(PRODUCE, version, **request(sent)))
    assert before_ms <= answer.log_append_time_ms <= time.time_ns() // 1_000_000
    (stored,) = memory.leaders.logs[memory.log("t")]
    header = parse_batch_header_untrusted(stored)
    check_crc(header, stored)
    assert (header.log_append_time, header.max_timestamp) == (True, answer.log_append_time_ms)
    assert (stored[23:35], stored[43:]) == (sent[23:35], sent[43:])


async def test_batch_that_is_refused_or_was_there_has_no_append_time(ask, memory, batch):
    """The original's is not known any more."""
    memory.topics.create_now("t", configs={"message.timestamp.type": "LogAppendTime"})
    memory.leaders.duplicate = DuplicateOf(Offset(0), JournalPosition(0))
    assert only(await ask(PRODUCE, 9, **request(batch()))).log_append_time_ms == -1
    memory.leaders.refusal = RefusedAppend.OUT_OF_ORDER
    assert only(await ask(PRODUCE, 9, **request(batch()))).log_append_time_ms == -1


@ALL_VERSIONS
async def test_many_topics_and_partitions_are_answered_one_by_one(ask, memory, batch, version):
    """One bad partition does not keep the others from being written."""
    memory.topics.create_now("a", partitions=2)
    memory.configure(auto_create=False)
    topics = [
        Topic(name="a", partition_data=[Partition(index=i, records=batch()) for i in (1, 2, 0)]),
        Topic(name="b", partition_data=[Partition(index=0, records=batch())]),
    ]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": topics}
    response = await ask(PRODUCE, version, **fields)
    errors = {(t.name, p.index): p.error_code for t in response.responses for p in t.partition_responses}
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == {("a", 1): 0, ("a", 2): unknown, ("a", 0): 0, ("b", 0): unknown}


async def test_topic_missing_is_made_if_configured(ask, memory, batch):
    """Producing to a topic that is not there makes it; unless the operator forbids that."""
    assert only(await ask(PRODUCE, 9, **request(batch(), topic="new"))).error_code == 0
    assert memory.cluster.topic("new") is not None
    memory.configure(auto_create=False)
    answer = only(await ask(PRODUCE, 9, **request(batch(), topic="newer")))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def corrupt(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda batch: corrupt(batch()), ErrorCode.CORRUPT_MESSAGE),
        (lambda batch: batch()[:-1], ErrorCode.INVALID_RECORD),
        (lambda batch: batch()[:40], ErrorCode.INVALID_RECORD),
        (lambda batch: b"", ErrorCode.INVALID_RECORD),
        (lambda batch: None, ErrorCode.INVALID_RECORD),
        (lambda batch: batch(magic=1), ErrorCode.INVALID_RECORD),
        (lambda batch: batch(count=3), ErrorCode.INVALID_RECORD),
        (lambda batch: batch(attributes=0x20), ErrorCode.INVALID_RECORD),
        (lambda batch: batch(attributes=0x07), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (lambda batch: batch() + batch(), ErrorCode.INVALID_RECORD),
        (lambda batch: batch(size=1_048_589), ErrorCode.MESSAGE_TOO_LARGE),
        (lambda batch: batch(attributes=TRANSACTIONAL, producer_id=1, epoch=0), ErrorCode.INVALID_RECORD),
    ],
    ids=["crc", "cut", "short", "empty", "null", "magic", "count", "control", "codec", "two", "large", "transactional"],
)
async def test_batch_that_may_not_be_stored_is_refused(ask, memory, batch, build, error):
    """Each way in which a batch is bad has the protocol's own error, and nothing is written."""
    memory.topics.create_now("t")
    answer = only(await ask(PRODUCE, 9, **request(build(batch))))
    assert (answer.error_code, answer.base_offset) == (error, -1)
    assert memory.leaders.logs[memory.log("t")] == []


async def test_batch_of_the_largest_size_is_taken(ask, memory, batch):
    """The limit is the largest batch that fits, and a topic may have its own."""
    memory.topics.create_now("t")
    memory.topics.create_now("small", configs={"max.message.bytes": "100"})
    assert only(await ask(PRODUCE, 9, **request(batch(size=1_048_588)))).error_code == 0
    assert only(await ask(PRODUCE, 9, **request(batch(size=100), topic="small"))).error_code == 0
    answer = only(await ask(PRODUCE, 9, **request(batch(size=101), topic="small")))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_batch_compressed_passes_through(ask, memory, batch):
    """The broker does not look into the records: bytes that are no valid gzip are as good as any."""
    memory.topics.create_now("t")
    assert only(await ask(PRODUCE, 9, **request(batch(attributes=1, size=61 + len(gzip.compress(b""))))))


@pytest.mark.parametrize("acks", [-2, 2, 3])
async def test_acks_unheard_of_are_refused(ask, memory, batch, acks):
    """Only 0, 1 and all exist."""
    memory.topics.create_now("t")
    answer = only(await ask(PRODUCE, 9, **request(batch(), acks=acks)))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert memory.leaders.logs[memory.log("t")] == []


KEYED = [(b"k", b"v"), (b"", b"v"), (b"k", None)]


@pytest.mark.parametrize(("pairs", "taken"), [(KEYED, True), ([(b"k", b"v"), (None, b"v")], False)])
@pytest.mark.parametrize("attributes", [0, 1, TRANSACTIONAL])
@pytest.mark.parametrize("value_bytes", [1, 5_000])
async def test_compacted_topic_takes_records_with_keys_only(ask, memory, pairs, taken, attributes, value_bytes):
    """Whatever the policy is besides, compressed or not, large or small; other topics take any record."""
    padded = [(key, None if value is None else value * value_bytes) for key, value in pairs]
    producer = (3, 0, 0) if attributes == TRANSACTIONAL else (-1, -1, -1)
    compress = gzip.compress if attributes == 1 else bytes
    data = bytes(keyed_batch(0, padded, attributes=attributes, compress=compress, producer=producer))
    transactional_id = "tx" if attributes == TRANSACTIONAL else None
    for name, policy in (("c", "compact"), ("cd", "compact, delete"), ("d", "delete")):
        memory.topics.create_now(name, configs={"cleanup.policy": policy})
        sent = request(data, topic=name, transactional_id=transactional_id)
        answer = only(await ask(PRODUCE, 9, **sent))
        refused = not taken and name != "d"
        assert answer.error_code == (ErrorCode.INVALID_RECORD if refused else 0)
        assert answer.error_message == ("a compacted topic refuses records without a key" if refused else None)
        stored = len(memory.leaders.logs[memory.log(name)])
        assert stored == (not refused and transactional_id is None), "the double keeps plain batches only"


@ALL_VERSIONS
async def test_records_to_blame_for_a_refusal_are_named(ask, memory, version):
    """One of ten without a key refuses all ten, and the answer says which one it was (KIP-467)."""
    memory.topics.create_now("c", configs={"cleanup.policy": "compact"})
    pairs = [(None if index in (3, 7) else b"k", b"v") for index in range(10)]
    answer = only(await ask(PRODUCE, version, **request(bytes(keyed_batch(0, pairs)), topic="c")))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    if version >= 8:
        reason = "a compacted topic refuses records without a key"
        assert answer.error_message == reason
        told = [(each.batch_index, each.batch_index_error_message) for each in answer.record_errors]
        assert told == [(3, reason), (7, reason)]


async def test_records_named_are_bounded_in_all_partitions_together(ask, memory):
    """A compressed batch has 100,000 records in a few hundred bytes; the answer must not become a thousandfold."""
    memory.topics.create_now("c", partitions=3, configs={"cleanup.policy": "compact"})
    data = bytes(keyed_batch(0, [(None, b"v")] * 600))
    partitions = [Partition(index=index, records=data) for index in range(3)]
    sent = request(data, topic="c") | {"topic_data": [Topic(name="c", partition_data=partitions)]}
    (topic,) = (await ask(PRODUCE, 9, **sent)).responses
    assert [len(line.record_errors) for line in topic.partition_responses] == [600, 400, 0]
    assert [line.error_code for line in topic.partition_responses] == [ErrorCode.INVALID_RECORD] * 3


async def test_compacted_topic_refuses_what_it_could_not_compact(ask, memory, batch):
    """Nonsense behind a good header is passed through elsewhere; here it would stay for ever."""
    memory.topics.create_now("c", configs={"cleanup.policy": "compact"})
    answer = only(await ask(PRODUCE, 9, **request(batch(attributes=1), topic="c")))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "readable" in answer.error_message


async def test_acks_all_waits_until_the_batch_is_on_disk(ask, memory, batch, autojump_clock):
    """With acks=all the answer comes when the batch is on disk, not before; with acks=1 at once."""
    memory.topics.create_now("t")
    memory.leaders.held = True
    assert not isinstance((await ask.start(PRODUCE, 9, **request(batch(), acks=1))).answer, Deferred)
    started = await ask.start(PRODUCE, 9, **request(batch(records=2)))
    answered = []
    async with trio.open_nursery() as nursery:

        async def finish():
            answered.append(only(ask.parse(PRODUCE, 9, await ask.finish(started))))

        nursery.start_soon(finish)
        await trio.sleep(0.9)
        assert answered == []
        memory.leaders.release()
    assert (answered[0].error_code, answered[0].base_offset) == (0, 1)


@pytest.mark.parametrize("copied_s", [0.5, 3600])
async def test_producer_waits_for_a_copier_that_is_outrun_but_not_for_long(
    ask, memory, batch, nursery, autojump_clock, copied_s
):
    """What is on disk is not answered with a time-out, after which it would be written again."""
    memory.topics.create_now("t")
    memory.leaders.held = memory.leaders.on_disk = memory.leaders.outrun = True

    @nursery.start_soon
    async def copy():
        await trio.sleep(copied_s)
        memory.leaders.release()

    before = trio.current_time()
    data = batch(records=2)
    answer = only(await ask(PRODUCE, 9, **request(data)))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert trio.current_time() - before == pytest.approx(min(copied_s, 1.0))
    assert memory.leaders.paced_bytes == [len(data)]


async def test_acks_all_does_not_wait_for_the_copy(ask, memory, batch, autojump_clock):
    """Whoever asks for the end does."""
    memory.topics.create_now("t")
    memory.leaders.held = memory.leaders.on_disk = True
    answer = only(await ask(PRODUCE, 9, **request(batch(records=2))))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    (log,) = memory.leaders.logs
    assert memory.leaders.high_watermark(log) == 0


async def test_acks_of_the_leader_on_a_replicated_log_are_those_of_all(ask, memory, batch):
    """Until the batch is accepted it is in memory alone, and void if another owner has begun."""
    memory.topics.create_now("t")
    memory.leaders.held = memory.leaders.replicated = True
    started = await ask.start(PRODUCE, 9, **request(batch(), acks=1))
    assert isinstance(started.answer, Deferred)
    memory.leaders.release()
    answer = only(ask.parse(PRODUCE, 9, await ask.finish(started)))
    assert (answer.error_code, answer.base_offset) == (0, 0)


TIME_OUTS = pytest.mark.parametrize(
    ("timeout_ms", "waits_s"), [(-1, OWN_WAIT_S), (0, OWN_WAIT_S), (1500, OWN_WAIT_S), (60_000, 60)]
)


@TIME_OUTS
async def test_acks_all_beyond_the_time_out_is_answered_as_timed_out(
    ask, memory, batch, autojump_clock, timeout_ms, waits_s
):
    """A batch that is not on disk in time is REQUEST_TIMED_OUT: its effect is unknown. But a time-out is for
    waiting on others: a short one does not cut off the wait for our own disk."""
    memory.topics.create_now("t")
    memory.leaders.held = True
    before = trio.current_time()
    answer = only(await ask(PRODUCE, 9, **request(batch(), timeout_ms=timeout_ms)))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert trio.current_time() - before == pytest.approx(waits_s)


@pytest.mark.parametrize("timeout_ms", [0, 1])
async def test_acks_all_with_a_short_time_out_is_answered_when_it_is_done(
    ask, memory, batch, autojump_clock, timeout_ms
):
    """As in Kafka with one replica, which has done it when it looks at the clock."""
    memory.topics.create_now("t")
    memory.leaders.held = True
    started = await ask.start(PRODUCE, 9, **request(batch(), timeout_ms=timeout_ms))
    async with trio.open_nursery() as nursery:

        async def release():
            await trio.sleep(1)
            memory.leaders.release()

        nursery.start_soon(release)
        answer = only(ask.parse(PRODUCE, 9, await ask.finish(started)))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


@TIME_OUTS
async def test_wait_for_room_beyond_the_time_out_is_answered_as_timed_out(
    ask, memory, batch, autojump_clock, timeout_ms, waits_s
):
    """The time-out counts from the request's start, for whatever it waits; with acks=1, too."""
    memory.topics.create_now("t")
    memory.leaders.full = True
    before = trio.current_time()
    with trio.fail_after(100):
        answer = only(await ask(PRODUCE, 9, **request(batch(), acks=1, timeout_ms=timeout_ms)))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert trio.current_time() - before == pytest.approx(waits_s)


async def test_acks_none_is_not_answered(ask, memory, batch):
    """acks=0 gets no answer; if it is refused, the connection is closed, so that the client notices."""
    memory.topics.create_now("t")
    assert (await ask.start(PRODUCE, 9, **request(batch(), acks=0))).answer is None
    assert len(memory.leaders.logs[memory.log("t")]) == 1
    with pytest.raises(HangUp, match="CORRUPT_MESSAGE"):
        await ask.start(PRODUCE, 9, **request(corrupt(batch()), acks=0))


@pytest.mark.parametrize("refusal", RefusedAppend)
async def test_refusal_of_the_leader_has_its_code(ask, memory, batch, refusal):
    """Every refusal of the leader stands in the table, and says in words what it is."""
    memory.topics.create_now("t")
    memory.leaders.refusal = refusal
    answer = only(await ask(PRODUCE, 9, **request(batch(producer_id=5, epoch=0, sequence=0))))
    must_abort = refusal is RefusedAppend.MUST_ABORT
    code = must_abort_code(PRODUCE, ask.client) if must_abort else APPEND_REFUSALS[refusal]
    assert (answer.error_code, answer.error_message) == (code, refusal.value)


async def test_disk_failing_at_the_append_is_told(ask, memory, batch):
    """A batch that did not get into the journal had no effect: KAFKA_STORAGE_ERROR."""
    memory.topics.create_now("t")
    memory.leaders.failure = StorageFailure("no space left on device")
    answer = only(await ask(PRODUCE, 9, **request(batch())))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def test_disk_failing_at_the_flush_is_of_unknown_effect(ask, memory, batch):
    """The batch may be found in the journal after a restart, so the answer must not deny it (invariant 5)."""
    memory.topics.create_now("t")
    memory.leaders.held = True
    started = await ask.start(PRODUCE, 9, **request(batch()))
    memory.leaders.failure = StorageFailure("fdatasync failed")
    answer = only(ask.parse(PRODUCE, 9, await ask.finish(started)))
    assert (answer.error_code, answer.error_message) == (ErrorCode.REQUEST_TIMED_OUT, "fdatasync failed")


async def test_batch_repeated_is_answered_with_the_originals_offset(ask, memory, batch):
    """A duplicate gets the original's result, after the same wait."""
    memory.topics.create_now("t")
    await ask(PRODUCE, 9, **request(batch(records=9)))
    memory.leaders.duplicate = DuplicateOf(Offset(4), JournalPosition(9))
    answer = only(await ask(PRODUCE, 9, **request(batch(producer_id=5, epoch=0, sequence=0))))
    assert (answer.error_code, answer.base_offset) == (0, 4)


@pytest.mark.parametrize(
    ("name", "version", "base_offset"),
    [
        ("apache-kafka-java", "4.1.0", -1),
        ("kafka-python", "3.0.12", -1),
        ("kgo", "1.20", -1),
        ("librdkafka", "2.16.1", -5),
        ("confluent-kafka-python", "2.16.1-rdkafka-2.16.1", -5),
        ("", "", -5),
    ],
)
async def test_transactional_batch_is_answered_without_an_offset(ask, memory, batch, name, version, base_offset):
    """Each client gets the base offset from which it makes "no offset" for all five records."""
    memory.topics.create_now("t")
    ask.client.software_name, ask.client.software_version = name, version
    records = batch(records=5, producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    answer = only(await ask(PRODUCE, 9, **request(records, transactional_id="tx")))
    assert (answer.error_code, answer.base_offset) == (0, base_offset)


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize(
    ("of_node", "of_topic", "base_offset"),
    [
        ("none", None, -1),
        ("none", "lowest", 40),
        ("lowest", None, 40),
        ("lowest", "none", -1),
    ],
)
async def test_transactional_batch_is_answered_with_the_lowest_offset_where_that_is_asked_for(
    ask, memory, batch, of_node, of_topic, base_offset, repeated
):
    """The topic's config goes before the node's setting. A repeated batch is answered by the same rule."""
    memory.configure(transactional_offsets=of_node)
    memory.topics.create_now("t", configs={} if of_topic is None else {"fairlog.transactional.offsets": of_topic})
    memory.leaders.lowest = Offset(40)
    memory.leaders.duplicate = DuplicateOf(None, None) if repeated else None
    ask.client.software_name, ask.client.software_version = "apache-kafka-java", "4.1.0"
    records = batch(records=5, producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    answer = only(await ask(PRODUCE, 9, **request(records, transactional_id="tx")))
    assert (answer.error_code, answer.base_offset) == (0, base_offset)


async def test_transactional_batch_that_waits_for_no_place_is_answered_without_an_offset(ask, memory, batch):
    """A repetition after the end of its transaction: where the first one lies is not remembered, or nowhere."""
    memory.configure(transactional_offsets="lowest")
    memory.topics.create_now("t")
    memory.leaders.duplicate = DuplicateOf(None, None)
    ask.client.software_name, ask.client.software_version = "librdkafka", "2.16.1"
    records = batch(records=5, producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    answer = only(await ask(PRODUCE, 9, **request(records, transactional_id="tx")))
    assert (answer.error_code, answer.base_offset) == (0, -5)


@pytest.mark.parametrize("transactional", [False, True])
async def test_batch_that_has_its_offset_is_answered_with_that_whatever_the_config_says(
    ask, memory, batch, transactional
):
    """Plain batches, and those of marker mode."""
    memory.configure(transactional_offsets="lowest")
    memory.topics.create_now("t")
    memory.leaders.lowest = Offset(40)
    memory.leaders.marker_logs.add(memory.log("t"))
    sent = batch(records=2, producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL if transactional else 0)
    answer = only(await ask(PRODUCE, 9, **request(sent, transactional_id="tx" if transactional else None)))
    assert (answer.error_code, answer.base_offset) == (0, 0)


async def test_transactional_batch_of_marker_mode_is_answered_with_its_offset_once_it_is_on_disk(
    ask, memory, batch, autojump_clock
):
    """KIP-98: it stands in the partition at once; acks=all promises that it will stay there, acks=1 does not."""
    memory.topics.create_now("t")
    memory.leaders.marker_logs.add(memory.log("t"))
    await ask(PRODUCE, 9, **request(batch(records=2)))
    memory.leaders.held = True
    records = batch(records=3, attributes=TRANSACTIONAL, producer_id=4, epoch=0, sequence=0)
    started = await ask.start(PRODUCE, 9, **request(records, transactional_id="tx"))
    answers = []

    async def finish():
        answers.append(only(ask.parse(PRODUCE, 9, await ask.finish(started))))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(finish)
        await trio.sleep(0.5)
        assert answers == []
        memory.leaders.release()
    assert (answers[0].error_code, answers[0].base_offset) == (0, 2)
    memory.leaders.held = True
    hasty = await ask.start(PRODUCE, 9, **request(records, transactional_id="tx", acks=1))
    assert not isinstance(hasty.answer, Deferred)


async def test_transactional_batch_of_journal_mode_does_not_wait(ask, memory, batch):
    """Inside a transaction nothing waits for the disk: the answer is complete when the batch is in the journal."""
    memory.topics.create_now("t")
    memory.leaders.held = True
    records = batch(producer_id=5, epoch=0, sequence=0, attributes=TRANSACTIONAL)
    started = await ask.start(PRODUCE, 9, **request(records, transactional_id="tx"))
    assert not isinstance(started.answer, Deferred)


async def test_request_is_for_the_transaction_that_was_open_when_it_came(ask, memory, batch, description):
    """All its batches: while one waits for room, the transaction may end, and the next one begin in the same epoch."""
    memory.topics.create_now("t", partitions=2)
    memory.coordinator.descriptions["tx"] = description()
    meant, next_one = (TxId(ProducerId(41), ProducerEpoch(2), number) for number in (5, 6))
    memory.leaders.open[ProducerId(41)] = meant

    async def meanwhile() -> None:
        await trio.lowlevel.checkpoint()
        memory.leaders.open[ProducerId(41)] = next_one

    memory.leaders.before_append = meanwhile
    records = batch(producer_id=41, epoch=2, sequence=0, attributes=TRANSACTIONAL)
    both = [Partition(index=index, records=records) for index in range(2)]
    fields = request(records, transactional_id="tx") | {"topic_data": [Topic(name="t", partition_data=both)]}
    await ask(PRODUCE, 9, **fields)
    assert memory.leaders.came_in == [meant, meant]


@pytest.mark.parametrize("attributes", [0, TRANSACTIONAL])
async def test_transactional_flag_and_id_must_agree(ask, memory, batch, attributes):
    """A plain batch under a transactional id, and a transactional one without a producer id, are refused."""
    memory.topics.create_now("t")
    answer = only(await ask(PRODUCE, 9, **request(batch(attributes=attributes), transactional_id="tx")))
    assert answer.error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("state", "error"),
    [("MUST_ABORT", ErrorCode.UNKNOWN_PRODUCER_ID), ("EMPTY", ErrorCode.INVALID_TXN_STATE)],
)
async def test_batch_after_the_broker_has_aborted_is_abortable(ask, memory, batch, description, state, error):
    """A client whose transaction was aborted behind its back may abort and go on; one that never began may not."""
    memory.topics.create_now("t")
    memory.leaders.refusal = RefusedAppend.NOT_IN_TRANSACTION
    memory.coordinator.descriptions["tx"] = description(state=state)
    ask.client.software_name = "librdkafka"
    records = batch(producer_id=41, epoch=2, sequence=0, attributes=TRANSACTIONAL)
    assert only(await ask(PRODUCE, 9, **request(records, transactional_id="tx"))).error_code == error


@pytest.mark.parametrize(
    ("current", "error"), [(2, ErrorCode.TRANSACTION_ABORTABLE), (3, ErrorCode.INVALID_PRODUCER_EPOCH)]
)
async def test_transactional_batch_of_an_older_epoch_is_fenced_everywhere(
    ask, memory, batch, description, current, error
):
    """Also in a partition that knows of no newer epoch; the successor's state is none of the zombie's business."""
    memory.topics.create_now("t")
    memory.leaders.refusal = RefusedAppend.NOT_IN_TRANSACTION
    memory.coordinator.descriptions["tx"] = description(state="MUST_ABORT")
    memory.coordinator.epochs[ProducerId(41)] = ProducerEpoch(current)
    ask.client.software_name = "apache-kafka-java"
    records = batch(producer_id=41, epoch=2, sequence=0, attributes=TRANSACTIONAL)
    assert only(await ask(PRODUCE, 9, **request(records, transactional_id="tx"))).error_code == error


def test_base_offset_unknown_makes_every_offset_negative_for_clients_that_add_the_index():
    """The last of count records gets -1 at most: no client can take it for a place in the log."""
    for count in (1, 2, 100):
        base = api_00_produce.unknown_base_offset(Client(1, "p", software_name="librdkafka"), count)
        assert base + count - 1 == -1


def test_refusals_of_the_coordinator_are_all_known():
    """A new refusal has to be given a code, or to be of unknown effect; see test_transactions for the codes."""
    from coordinator.answers import Effect
    from fairlog.kafka.errors import COORDINATOR_REFUSALS

    assert {r for r in Refusal if r.effect is Effect.NONE} <= set(COORDINATOR_REFUSALS)
