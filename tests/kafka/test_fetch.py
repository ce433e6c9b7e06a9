"""Fetch: whole batches within limits, and how long it waits for them."""

from __future__ import annotations

import pytest
import trio
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from fairlog.kafka.answer_budget import AnswerBudget, AnswerRoom
from fairlog.kafka.api import Context
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_01_fetch
from fairlog.reading import service
from fairlog_types import CorruptStorage, Offset

FETCH, PRODUCE = 1, 0
ALL_VERSIONS = pytest.mark.parametrize("version", range(api_01_fetch.SERVED.min, api_01_fetch.SERVED.max + 1))
TOPIC_IDS_FROM = 13

Topic = FetchRequest.FetchTopic
Partition = Topic.FetchPartition


@pytest.fixture
def fill(memory, batch):
    """Puts batches of two records and 100 bytes each into a topic's partitions."""

    def fill(topic="t", partition=0, batches=1, size=100):
        for _ in range(batches):
            log = memory.log(topic, partition)
            base = memory.leaders.end(log)
            data = bytearray(batch(records=2, size=size, timestamp=1000 + base))
            data[:8] = base.to_bytes(8, "big")
            memory.leaders.logs[log].append(bytes(data))
        memory.leaders.release()

    return fill


def request(
    memory,
    offsets,
    *,
    topic="t",
    version=12,
    max_wait_ms=0,
    min_bytes=1,
    max_bytes=1_000_000,
    partition_bytes=1_000_000,
    isolation_level=0,
    leader_epoch=-1,
):
    known = memory.cluster.topic(topic)
    partitions = [
        Partition(
            partition=index,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=partition_bytes,
        )
        for index, offset in offsets.items()
    ]
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [Topic(topic=topic, topic_id=None if known is None else known.topic_id, partitions=partitions)],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def produced(records, acks=1):
    row = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[row])
    return {"transactional_id": None, "acks": acks, "timeout_ms": 1000, "topic_data": [topic]}


def lines(response):
    (topic,) = response.responses
    return {partition.partition_index: partition for partition in topic.partitions}


@ALL_VERSIONS
@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_records_are_read_in_every_version(ask, memory, fill, version, isolation_level):
    """The batches come as they are stored, with high watermark = last stable offset, and nothing aborted."""
    memory.topics.create_now("t", partitions=2)
    fill(batches=3)
    fill(partition=1)
    answer = await ask(FETCH, version, **request(memory, {0: 0, 1: 0}, isolation_level=isolation_level))
    partitions = lines(answer)
    assert bytes(partitions[0].records) == b"".join(memory.leaders.logs[memory.log("t")])
    assert len(partitions[1].records) == 100
    assert (partitions[0].error_code, partitions[0].high_watermark, partitions[0].last_stable_offset) == (0, 6, 6)
    assert partitions[0].aborted_transactions == ([] if isolation_level else None)
    if version >= 7:
        assert (answer.error_code, answer.session_id) == (0, 0)
    if version >= TOPIC_IDS_FROM:
        assert answer.responses[0].topic_id == memory.cluster.by_name["t"].topic_id


async def test_offset_within_a_batch_gets_the_whole_batch(ask, memory, fill):
    """The client skips the records in front; the broker does not cut batches."""
    memory.topics.create_now("t")
    fill(batches=3)
    records = lines(await ask(FETCH, 12, **request(memory, {0: 3})))[0].records
    assert bytes(records) == b"".join(memory.leaders.logs[memory.log("t")][1:])


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"partition_bytes": 250}, [200, 200]),
        ({"max_bytes": 350}, [300, 0]),
        ({"max_bytes": 450}, [300, 100]),
        ({"max_bytes": 1, "partition_bytes": 1}, [100, 0]),
        ({"max_bytes": 0, "partition_bytes": -1}, [100, 0]),
    ],
)
async def test_limits_are_kept_by_whole_batches(ask, memory, fill, limits, sizes):
    """Per partition and in all; but the first batch comes whatever its size, so that nobody is stuck (KIP-74)."""
    memory.topics.create_now("t", partitions=2)
    fill(partition=0, batches=3)
    fill(partition=1, batches=3)
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 0, 1: 0}, **limits)))
    assert [len(answer[index].records) for index in (0, 1)] == sizes


async def test_fetch_at_the_end_waits_and_costs_no_read(ask, memory, fill, autojump_clock):
    """With nothing to read the answer comes empty after max_wait, without a call into the data logs."""
    memory.topics.create_now("t")
    fill()
    before = trio.current_time()
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 2}, max_wait_ms=500)))
    assert (answer[0].error_code, answer[0].high_watermark, bytes(answer[0].records)) == (0, 2, b"")
    assert trio.current_time() - before == pytest.approx(0.5)
    assert memory.data_logs.reads == 0


async def test_fetch_at_the_end_is_woken_by_new_records(ask, memory, fill, autojump_clock):
    """A long poll ends as soon as there are min_bytes, not when its time is over."""
    memory.topics.create_now("t", partitions=2)
    async with trio.open_nursery() as nursery:

        async def append_later():
            await trio.sleep(0.2)
            fill(partition=1)
            await trio.sleep(0.2)
            fill(partition=0)

        nursery.start_soon(append_later)
        before = trio.current_time()
        asked = request(memory, {0: 0, 1: 0}, max_wait_ms=5000, min_bytes=150)
        answer = lines(await ask(FETCH, 12, **asked))
    assert trio.current_time() - before == pytest.approx(0.4)
    assert [len(answer[index].records) for index in (0, 1)] == [100, 100]


async def test_fetch_gives_what_there_is_when_its_time_is_over(ask, memory, fill, autojump_clock):
    """Fewer than min_bytes are still an answer at the end of max_wait."""
    memory.topics.create_now("t")
    fill()
    before = trio.current_time()
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 0}, max_wait_ms=300, min_bytes=1000)))
    assert len(answer[0].records) == 100
    assert trio.current_time() - before == pytest.approx(0.3)


async def test_fetch_does_not_wait_for_weeks(ask, memory, autojump_clock):
    """Whatever the client says: it may be gone, and nobody would notice."""
    memory.topics.create_now("t")
    before = trio.current_time()
    await ask(FETCH, 12, **request(memory, {0: 0}, max_wait_ms=2**31 - 1))
    assert trio.current_time() - before == pytest.approx(300)


async def test_fetch_gives_what_there_is_when_the_connection_is_to_end(ask, memory, fill, autojump_clock):
    """A stop does not wait for data: the fetch under way and those behind it answer at once, with what they have."""
    memory.topics.create_now("t")
    fill()
    asked = request(memory, {0: 0}, max_wait_ms=60_000, min_bytes=1000)
    before = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def stop_later():
            await trio.sleep(0.1)
            ask.client.end_long_polls()

        nursery.start_soon(stop_later)
        for _ in range(2):
            assert len(lines(await ask(FETCH, 12, **asked))[0].records) == 100
    assert trio.current_time() - before == pytest.approx(0.1)


async def test_fetch_with_something_in_hand_does_not_wait_while_others_have_no_room(ask, memory, fill, autojump_clock):
    """Who asks for more than there is would hold what there is for minutes; the answer goes out, for others' sake."""
    memory.topics.create_now("t")
    memory.data_logs.lends = False  # a thread would make copies, which the clock does not know of either
    fill(size=1000)
    budget = AnswerBudget(1000, reserve_bytes=0)
    context = Context(memory.broker, ask.client, 4, False, {}, answers=budget)
    asked = api_01_fetch.FetchTopic("t", (api_01_fetch.FetchPartition(0, -1, 0, 1_000_000),))
    reply = await api_01_fetch.handle(context, api_01_fetch.FetchRequest(60_000, 2000, 1_000_000, 0, 0, (asked,)))
    before = trio.current_time()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def other():
            while budget.free:  # noqa: ASYNC110 (the clock jumps if nobody runs, and does not know of the thread that reads)
                await trio.lowlevel.checkpoint()
            await AnswerRoom(budget).take(1)

        assert len(b"".join(await reply.finish())) > 1000
        reply.room.release()
    assert trio.current_time() - before < 4


@pytest.mark.parametrize("records", [0, 1])
async def test_fetch_takes_no_room_that_it_cannot_need(ask, memory, fill, autojump_clock, records):
    """Clients allow 50 MiB in all, and a MiB for each partition: who waits at the end needs nothing."""
    memory.topics.create_now("t")
    if records:
        fill()
    budget, cut = AnswerBudget(2000), []
    slow = AnswerRoom(budget)
    slow.keep(1000)
    slow.sending(lambda: cut.append("slow"))
    await trio.sleep(3600)
    context = Context(memory.broker, ask.client, 4, False, {}, answers=budget)
    asked = api_01_fetch.FetchTopic("t", (api_01_fetch.FetchPartition(0, -1, 0, 1000),))
    reply = await api_01_fetch.handle(context, api_01_fetch.FetchRequest(100, 1, 50 << 20, 0, 0, (asked,)))
    assert (len(b"".join(await reply.finish())) > 100) == bool(records)
    assert cut == []


class Steps(trio.abc.Instrument):
    """Counts how often the task that makes it is given its turn."""

    def __init__(self) -> None:
        self.taken = 0
        self._task = trio.lowlevel.current_task()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += task is self._task


@pytest.mark.parametrize("topics", [1, 200])
async def test_fetch_of_many_partitions_lets_others_run(ask, memory, batch, monkeypatch, topics):
    """Each time that it goes over them: to look them up, to compare offsets, to take what was read, to answer."""
    for module in (api_01_fetch, service):
        monkeypatch.setattr(module, "STEP", 10)
    data, each = batch(records=2, size=100), 1000 // topics
    asked: list[api_01_fetch.FetchTopic] = []
    for number in range(topics):
        for log in memory.topics.create_now(f"t{number}", partitions=each).logs():
            memory.leaders.logs[log].append(data)
        partitions = tuple(api_01_fetch.FetchPartition(index, -1, 0, 1000) for index in range(each))
        asked.append(api_01_fetch.FetchTopic(f"t{number}", partitions))
    context = Context(memory.broker, ask.client, 4, False, {})
    reply = await api_01_fetch.handle(context, api_01_fetch.FetchRequest(0, 1, 50 << 20, 0, 0, tuple(asked)))
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    answer = await reply.finish()
    trio.lowlevel.remove_instrument(steps)
    assert sum(map(len, answer)) > 1000 * 100
    assert steps.taken >= 4 * 1000 // 10


async def test_fetch_that_waited_keeps_the_limit(ask, memory, fill, autojump_clock):
    """What arrives while a fetch waits does not push the answer over max_bytes."""
    memory.topics.create_now("t")
    fill()
    async with trio.open_nursery() as nursery:

        async def append_later():
            await trio.sleep(0.1)
            fill(size=500)

        nursery.start_soon(append_later)
        asked = request(memory, {0: 0}, max_wait_ms=400, min_bytes=150, max_bytes=300)
        answer = lines(await ask(FETCH, 12, **asked))
    assert len(answer[0].records) == 100


@pytest.mark.parametrize("offset", [-1, 3, 2**62])
async def test_offset_out_of_range_is_answered_at_once(ask, memory, fill, offset):
    """Behind the end and before the start there is nothing to wait for; the bounds are told."""
    memory.topics.create_now("t")
    fill()
    answer = lines(await ask(FETCH, 12, **request(memory, {0: offset}, max_wait_ms=60_000)))[0]
    assert (answer.error_code, answer.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


async def test_batch_that_is_damaged_is_said_to_be_damage(ask, memory, fill):
    """Which ends the node, as whoever meets it: no client can help it."""
    memory.topics.create_now("t")
    fill(batches=2)
    memory.data_logs.damaged = True
    with pytest.raises(CorruptStorage, match=r"the batch at or after offset 0 is not a batch: .* 7 bytes"):
        await ask(FETCH, 12, **request(memory, {0: 0}))


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_offset_that_is_answered_and_not_copied_is_in_range_and_waits(
    ask, memory, fill, batch, autojump_clock, isolation_level
):
    """A client that goes on after its own record, right after the answer, is not told to reset; it waits for more."""
    memory.topics.create_now("t")
    fill()
    memory.leaders.held = True
    await ask(PRODUCE, 9, **produced(batch(records=3)))
    for position in (2, 3, 5):
        before, reads = trio.current_time(), memory.data_logs.reads
        asked = request(memory, {0: position}, max_wait_ms=500, isolation_level=isolation_level)
        line = lines(await ask(FETCH, 12, **asked))[0]
        assert (line.error_code, bytes(line.records)) == (0, b"")
        assert trio.current_time() - before == pytest.approx(0.5)
        assert memory.data_logs.reads == reads
    assert lines(await ask(FETCH, 12, **request(memory, {0: 6})))[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_ends_that_are_told_are_those_of_all_that_was_answered(ask, memory, fill, batch):
    """Who comes to the end of what is copied, with data or without, is not told that this is the end of all."""
    memory.topics.create_now("t")
    fill()
    memory.leaders.held = True
    await ask(PRODUCE, 9, **produced(batch(records=3)))
    for position in (0, 2, 5):
        line = lines(await ask(FETCH, 12, **request(memory, {0: position})))[0]
        assert (line.error_code, line.high_watermark, line.last_stable_offset) == (0, 5, 5)


async def test_last_stable_offset_that_is_told_stays_before_what_is_open(ask, memory, fill, batch):
    """It is where the open transaction begins, also if that is not copied yet."""
    memory.topics.create_now("t")
    fill()
    memory.leaders.held = True
    await ask(PRODUCE, 9, **produced(batch(records=3)))
    memory.leaders.undecided[memory.log("t")] = Offset(4)
    line = lines(await ask(FETCH, 12, **request(memory, {0: 2}, isolation_level=1)))[0]
    assert (line.error_code, line.high_watermark, line.last_stable_offset) == (0, 5, 4)


async def test_offset_read_ahead_of_the_announcement_is_in_range(ask, memory, fill):
    """A consumer that was given what the leader had not announced yet may go on from there."""
    memory.topics.create_now("t")
    fill(batches=2)
    memory.leaders.visible_before_hold[memory.log("t")] = Offset(2)
    memory.data_logs.ahead = True
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 4})))[0]
    assert (answer.error_code, answer.high_watermark, answer.records) == (ErrorCode.NONE, 4, b"")


async def test_offset_before_the_log_start_is_out_of_range(ask, memory, fill):
    """Records that retention has taken away cannot be read, and the client is told where the log begins."""
    memory.topics.create_now("t")
    fill(batches=2)
    memory.leaders.starts[memory.log("t")] = Offset(2)
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 1})))[0]
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


@pytest.mark.parametrize("version", [4, 12, 13, 16])
async def test_topic_unknown_is_answered_at_once(ask, memory, version):
    """By name or by id, each with its own error."""
    answer = await ask(FETCH, version, **request(memory, {0: 0}, topic="none", max_wait_ms=60_000))
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version >= TOPIC_IDS_FROM else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lines(answer)[0].error_code == unknown


async def test_topic_deleted_while_waited_for_ends_the_wait(ask, memory, autojump_clock):
    """A long poll does not outlive its topic."""
    topic = memory.topics.create_now("t")
    started = await ask.start(FETCH, 12, **request(memory, {0: 0}, max_wait_ms=60_000))
    async with trio.open_nursery() as nursery:

        async def delete_later():
            await trio.sleep(0.1)
            await memory.topics.delete(topic.topic_id)
            memory.leaders.release()

        nursery.start_soon(delete_later)
        answer = lines(ask.parse(FETCH, 12, await ask.finish(started)))[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert trio.current_time() < 60


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [(-1, 0), (2, ErrorCode.FENCED_LEADER_EPOCH), (3, 0), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_leader_epoch_of_the_client_is_checked(ask, memory, fill, leader_epoch, error):
    """A client with an older idea of the leader refreshes it; one with a newer idea asks the wrong node."""
    memory.topics.create_now("t")
    fill()
    answer = lines(await ask(FETCH, 12, **request(memory, {0: 0}, leader_epoch=leader_epoch)))[0]
    assert answer.error_code == error


async def test_fetch_of_nothing_is_answered_at_once(ask, memory):
    """Without partitions there is nothing to wait for."""
    fields = request(memory, {}, max_wait_ms=60_000) | {"topics": []}
    assert (await ask(FETCH, 12, **fields)).responses == []


async def test_records_are_sent_without_a_copy(ask, memory, fill):
    """The buffers that the data logs have lent are parts of the answer."""
    memory.topics.create_now("t")
    fill(size=100_000)
    started = await ask.start(FETCH, 12, **request(memory, {0: 0}))
    parts = await started.answer.finish()
    assert any(getattr(part, "obj", None) is memory.leaders.logs[memory.log("t")][0] for part in parts)
