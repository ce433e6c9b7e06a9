"""Whoever asks for the end gets the end of all that was answered before (invariant 13), over a copier that is held."""

from __future__ import annotations

import pytest
import trio
from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.producer import ProduceRequest

from fairlog.kafka.api import Deferred
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_02_list_offsets
from fairlog_types import Offset, StorageFailure
from shard.ends import OWN_WAIT_S

PRODUCE, LIST_OFFSETS, DELETE_RECORDS, EPOCHS = 0, 2, 21, 23
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
LEADER_EPOCH = 3


@pytest.fixture
async def answered(ask, memory, batch):
    """A partition with two records that can be read, and three more that were answered, not copied."""
    memory.topics.create_now("t")
    await produce(ask, batch(records=2, timestamp=10))
    memory.leaders.held = True
    await produce(ask, batch(records=3, timestamp=20))
    return memory.log("t")


async def produce(ask, records, acks=1):
    row = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[row])
    fields = {"transactional_id": None, "acks": acks, "timeout_ms": 0, "topic_data": [topic]}
    await ask(PRODUCE, 9, **fields)


def queries(*timestamps, isolation=0):
    topic = ListOffsetsRequest.ListOffsetsTopic
    rows = [
        topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
        for timestamp in timestamps
    ]
    return {"replica_id": -1, "isolation_level": isolation, "topics": [topic(name="t", partitions=rows)]}


def deletion(offset):
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    row = topic.DeleteRecordsPartition(partition_index=0, offset=offset)
    return {"topics": [topic(name="t", partitions=[row])], "timeout_ms": 0}


def of_epoch(epoch):
    topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    row = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
    return {"replica_id": -1, "topics": [topic(topic="t", partitions=[row])]}


QUESTIONS = {
    "latest": (LIST_OFFSETS, 7, queries(LATEST), 5),
    "latest, committed": (LIST_OFFSETS, 7, queries(LATEST, isolation=1), 5),
    "largest timestamp": (LIST_OFFSETS, 7, queries(MAX_TIMESTAMP), 2),
    "timestamp": (LIST_OFFSETS, 7, queries(15), 2),
    "deletion": (DELETE_RECORDS, 2, deletion(4), 4),
    "deletion of all": (DELETE_RECORDS, 2, deletion(-1), 5),
    "leader epoch": (EPOCHS, 4, of_epoch(LEADER_EPOCH), 5),
}


@pytest.fixture(params=QUESTIONS.values(), ids=QUESTIONS)
def question(request):
    """(API, version, fields, the right answer)."""
    return request.param


def row_of(key, answer):
    """(error code, the offset that was answered)."""
    row = answer.topics[0].partitions[0]
    name = {LIST_OFFSETS: "offset", DELETE_RECORDS: "low_watermark", EPOCHS: "end_offset"}[key]
    return row.error_code, getattr(row, name)


async def test_question_for_the_end_waits_for_what_was_answered_and_for_no_more(
    ask, memory, batch, answered, question, autojump_clock
):
    """It is answered when the copy has come that far, whatever has been written meanwhile."""
    key, version, fields, right = question
    started = await ask.start(key, version, **fields)
    assert isinstance(started.answer, Deferred)
    told = []
    async with trio.open_nursery() as nursery:

        async def finish():
            told.append(row_of(key, ask.parse(key, version, await ask.finish(started))))

        nursery.start_soon(finish)
        await trio.sleep(OWN_WAIT_S - 1)
        assert told == []
        await produce(ask, batch(records=7, timestamp=15))
        memory.leaders.copy_through(answered, Offset(5))
    assert told == [(ErrorCode.NONE, right)]


async def test_question_for_the_end_does_not_wait_for_ever(ask, memory, answered, question, autojump_clock):
    """A copy that does not come is an error on which clients ask again, and not an end that lacks something."""
    key, version, fields, _ = question
    before = trio.current_time()
    code, offset = row_of(key, await ask(key, version, **fields))
    timed_out = ErrorCode.REQUEST_TIMED_OUT if key == DELETE_RECORDS else ErrorCode.OFFSET_NOT_AVAILABLE
    assert (code, offset) == (timed_out, -1)
    assert trio.current_time() - before == pytest.approx(OWN_WAIT_S)
    assert memory.leaders.log_start(answered) == 0


async def test_question_for_the_end_after_copying_has_stopped_is_refused(ask, memory, answered, question):
    """At once: nothing is to be waited for."""
    key, version, fields, _ = question
    memory.leaders.failure = StorageFailure("fdatasync failed")
    assert row_of(key, await ask(key, version, **fields)) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("asked", [queries(LATEST), queries(MAX_TIMESTAMP), queries(15)])
async def test_end_that_lacks_a_commit_is_not_told(ask, memory, answered, asked):
    """A commit was answered, and the disk failed before its records were placed: only a restart tells the end."""
    memory.leaders.release()
    memory.coordinator.unplaced.add(answered)
    answer = await ask(LIST_OFFSETS, 7, **asked)
    assert row_of(LIST_OFFSETS, answer) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


@pytest.mark.parametrize("version", range(1, api_02_list_offsets.SERVED.max + 1))
async def test_end_not_copied_in_time_has_the_code_of_the_version(ask, memory, answered, version, autojump_clock):
    """OFFSET_NOT_AVAILABLE came with version 5; Kafka says LEADER_NOT_AVAILABLE before."""
    code, _ = row_of(LIST_OFFSETS, await ask(LIST_OFFSETS, version, **queries(LATEST)))
    assert code == (ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)


async def test_end_beside_what_is_open_does_not_wait_for_it(ask, memory, answered):
    """What is open is not decided: its beginning is the end for readers of committed records."""
    memory.leaders.release()
    memory.leaders.undecided[answered] = Offset(1)
    assert row_of(LIST_OFFSETS, await ask(LIST_OFFSETS, 7, **queries(LATEST, isolation=1))) == (0, 1)
    assert row_of(LIST_OFFSETS, await ask(LIST_OFFSETS, 7, **queries(LATEST))) == (0, 5)


@pytest.mark.parametrize(
    ("key", "version", "fields", "right"),
    [
        (LIST_OFFSETS, 7, queries(EARLIEST), 0),
        (DELETE_RECORDS, 2, deletion(2), 2),
        (EPOCHS, 4, of_epoch(0), 0),
    ],
)
async def test_question_for_something_else_does_not_wait(ask, answered, key, version, fields, right):
    """The start, a deletion of what can be read, and the end of an earlier leader epoch do not hang on the copy."""
    assert row_of(key, await ask(key, version, **fields)) == (0, right)


async def test_deletion_after_the_end_is_out_of_range(ask, answered):
    """The end is that of all that was answered."""
    assert row_of(DELETE_RECORDS, await ask(DELETE_RECORDS, 2, **deletion(6))) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
