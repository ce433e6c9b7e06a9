"""Fetch in sessions (KIP-227), asked as clients ask: what an incremental answer has, and which requests are refused."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio
from kafka.protocol.consumer import FetchRequest

from fairlog.config import RequestSettings, Settings
from fairlog.kafka.api import Client, Context
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.fetch_sessions import FetchSessionCache
from fairlog.kafka.handlers import api_01_fetch
from fairlog.kafka.router import Router
from fairlog.reading import service
from fairlog_types import Offset
from tests.kafka.asking import Asker
from tests.kafka.example_requests import build_batch

FETCH = 1
TOPIC_IDS_FROM = 13
Topic = FetchRequest.FetchTopic
Partition = Topic.FetchPartition
Forgotten = FetchRequest.ForgottenTopic


class Consumer:
    """A client with one session: asks for `(topic, partition): offset`, and remembers session and epoch."""

    def __init__(self, memory, *, version=12, slots=1000):
        memory.settings = Settings(requests=RequestSettings(fetch_session_cache_slots=slots))
        self.memory = memory
        self.ask = Asker(memory)
        self.router = Router(memory.broker, [api_01_fetch.API])
        self.version = version
        self.session = self.epoch = 0

    async def start(self, offsets, *, forgotten=(), session=None, epoch=None, max_wait_ms=0, **fields):
        version = fields.pop("version", self.version)
        wanted, unwanted = {}, {}
        for (name, index), offset in offsets.items():
            wanted.setdefault(name, []).append(
                Partition(
                    partition=index,
                    current_leader_epoch=-1,
                    fetch_offset=offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=1_000_000,
                )
            )
        for name, index in forgotten:
            unwanted.setdefault(name, []).append(index)
        request = FetchRequest(
            version=version,
            replica_id=-1,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=fields.pop("max_bytes", 1_000_000),
            isolation_level=fields.pop("isolation_level", 0),
            session_id=self.session if session is None else session,
            session_epoch=self.epoch if epoch is None else epoch,
            topics=[Topic(topic=name, topic_id=self.topic_id(name), partitions=rows) for name, rows in wanted.items()],
            forgotten_topics_data=[
                Forgotten(topic=name, topic_id=self.topic_id(name), partitions=rows) for name, rows in unwanted.items()
            ],
            rack_id="",
        )
        request.with_header(correlation_id=5, client_id="consumer")
        return await self.router.start(bytes(request.encode(version=version, header=True)), self.ask.client)

    async def __call__(self, offsets=None, **fields):
        version = fields.get("version", self.version)
        answer = self.ask.parse(FETCH, version, await self.ask.finish(await self.start(offsets or {}, **fields)))
        if answer.error_code == 0:
            self.session = answer.session_id
            self.epoch += 1
        return answer

    def topic_id(self, name):
        topic = self.memory.cluster.topic(name)
        return None if topic is None else topic.topic_id

    def rows(self, answer):
        """(topic, partition): row."""
        names = {topic.topic_id: name for name, topic in self.memory.cluster.by_name.items()}
        return {
            (topic.topic or names.get(topic.topic_id), row.partition_index): row
            for topic in answer.responses
            for row in topic.partitions
        }


@pytest.fixture
def fill(memory):
    def fill(partition=0, topic="t"):
        log = memory.log(topic, partition)
        base = memory.leaders.end(log)
        data = bytearray(build_batch(records=2, size=100, timestamp=1000 + base))
        data[:8] = base.to_bytes(8, "big")
        memory.leaders.logs[log].append(bytes(data))
        memory.leaders.release()

    return fill


@pytest.fixture
def consumer(memory):
    memory.topics.create_now("t", partitions=3)
    return Consumer(memory)


ALL = {("t", 0): 0, ("t", 1): 0, ("t", 2): 0}


@pytest.mark.parametrize("version", range(7, api_01_fetch.SERVED.max + 1))
async def test_incremental_answer_has_the_partitions_with_news(memory, consumer, fill, version):
    """All of them first, then none, then those that have records, in every version that has sessions."""
    consumer.version = version
    first = await consumer(ALL)
    assert first.session_id > 0
    assert set(consumer.rows(first)) == set(ALL)
    assert consumer.rows(await consumer()) == {}
    fill(1)
    rows = consumer.rows(await consumer())
    assert list(rows) == [("t", 1)]
    assert (len(rows["t", 1].records), rows["t", 1].high_watermark) == (100, 2)
    assert consumer.rows(await consumer({("t", 1): 2})) == {}
    assert consumer.session == first.session_id


async def test_incremental_fetch_reads_again_what_the_client_did_not_take(consumer, fill):
    """A client that names no new offset has thrown the records away, and gets them again."""
    await consumer(ALL)
    fill(0)
    for _ in range(2):
        assert len(consumer.rows(await consumer())["t", 0].records) == 100


async def test_incremental_fetch_waits_for_new_records(memory, consumer, fill, autojump_clock):
    """The partitions that the request does not name are waited for as well."""
    await consumer(ALL)
    before = trio.current_time()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def append_later():
            await trio.sleep(0.2)
            fill(2)

        answer = await consumer(max_wait_ms=5000)
    assert list(consumer.rows(answer)) == [("t", 2)]
    assert trio.current_time() - before == pytest.approx(0.2)
    assert consumer.rows(await consumer({("t", 2): 2}, max_wait_ms=100)) == {}


async def test_partition_forgotten_is_not_answered_any_more(memory, consumer, fill):
    """Nor waited for; the others are."""
    await consumer(ALL)
    await consumer(forgotten=[("t", 1), ("t", 7), ("none", 0)])
    for partition in (0, 1):
        fill(partition)
    assert list(consumer.rows(await consumer())) == [("t", 0)]


async def test_partition_added_is_answered_from_then_on(memory, consumer, fill):
    """Also if there is nothing in it: the client is to know its offsets."""
    await consumer({("t", 0): 0})
    assert list(consumer.rows(await consumer({("t", 1): 0}))) == [("t", 1)]
    fill(1)
    assert list(consumer.rows(await consumer())) == [("t", 1)]


async def test_log_start_that_moves_is_told(memory, consumer, fill):
    """DeleteRecords and retention are news, though there are no records."""
    fill(0)
    await consumer({("t", 0): 2, ("t", 1): 0})
    assert consumer.rows(await consumer()) == {}
    await memory.leaders.delete_before(memory.log("t", 0), Offset(2))
    rows = consumer.rows(await consumer())
    assert {key: row.log_start_offset for key, row in rows.items()} == {("t", 0): 2}


async def test_partition_with_an_error_is_answered_at_once_until_it_is_gone(memory, consumer, fill, autojump_clock):
    """And once more when the error has gone, whatever its offsets are."""
    asked = {("t", 0): 0, ("late", 0): 0}
    await consumer(asked)
    for _ in range(2):
        rows = consumer.rows(await consumer(max_wait_ms=60_000))
        assert {key: row.error_code for key, row in rows.items()} == {("late", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    memory.topics.create_now("late")
    assert list(consumer.rows(await consumer())) == [("late", 0)]
    assert consumer.rows(await consumer()) == {}
    assert trio.current_time() == 0


async def test_topic_deleted_is_an_error_in_the_next_answer(memory, consumer):
    """By name a new topic takes its place, when there is one."""
    await consumer(ALL)
    await memory.topics.delete(consumer.topic_id("t"))
    memory.leaders.release()
    rows = consumer.rows(await consumer(max_wait_ms=60_000))
    assert {row.error_code for row in rows.values()} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    memory.topics.create_now("t", partitions=3)
    assert set(consumer.rows(await consumer())) == set(ALL)


@pytest.mark.parametrize("session", [0, 99, "its own"])
@pytest.mark.parametrize("epoch", [-1, 0])
async def test_full_fetch_is_served_whatever_session_it_names(memory, consumer, fill, session, epoch):
    """Epoch 0 opens a session and -1 does not; the session that either names is closed (Kafka's FetchManager)."""
    fill(0)
    own = (await consumer(ALL)).session_id
    answer = await consumer(ALL, session=own if session == "its own" else session, epoch=epoch)
    assert answer.error_code == 0
    assert len(consumer.rows(answer)["t", 0].records) == 100
    assert (answer.session_id == 0) == (epoch == -1)
    again = await consumer(session=own, epoch=1)
    assert again.error_code == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND if session == "its own" else 0)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session": 99}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"session": 0}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"epoch": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"epoch": -2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"version": 13}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
async def test_incremental_fetch_that_does_not_fit_the_session_is_refused(memory, consumer, change, error):
    """At once, without partitions and without a session, and the session goes on."""
    await consumer(ALL)
    answer = await consumer(max_wait_ms=60_000, **change)
    assert (answer.error_code, answer.session_id, answer.responses) == (error, 0, [])
    assert (await consumer()).error_code == 0


async def test_session_of_topic_ids_does_not_take_names(memory, consumer):
    """The other way round than above."""
    consumer.version = 13
    await consumer(ALL)
    assert (await consumer(version=12)).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


async def test_session_that_loses_all_partitions_is_closed(memory, consumer):
    """The answer says so, with session 0, and is not waited for."""
    await consumer(ALL)
    answer = await consumer(forgotten=list(ALL), max_wait_ms=60_000)
    assert (answer.error_code, answer.session_id, answer.responses) == (0, 0, [])
    assert memory.leaders.watchers == {}


async def test_session_is_not_given_when_there_is_no_slot(memory):
    """The client goes on with full fetches."""
    memory.topics.create_now("t", partitions=3)
    consumer = Consumer(memory, slots=0)
    assert (await consumer(ALL)).session_id == 0
    assert memory.leaders.watchers == {}


async def test_full_fetch_leaves_nothing_behind(memory, consumer, autojump_clock):
    """Whether its wait ends by itself or is cancelled, no leader has to think of it any more."""
    await consumer(ALL, epoch=-1, max_wait_ms=100)
    assert memory.leaders.watchers == {}
    with trio.move_on_after(1):
        await consumer(ALL, epoch=-1, max_wait_ms=60_000)
    assert memory.leaders.watchers == {}


@asynccontextmanager
async def waiting_fetch(consumer):
    """A Fetch has waited for a second, and its client goes on by another connection. Yields the list for its answer."""
    waiting = await consumer.start({}, max_wait_ms=60_000)
    consumer.ask.client = Client(connection=12, peer="test:2")
    answers = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def first():
            answers.append(consumer.ask.parse(FETCH, 12, await consumer.ask.finish(waiting)))

        await trio.sleep(1)
        yield answers


async def test_fetch_overtaken_in_its_session_ends_at_once(memory, consumer, fill, autojump_clock):
    """A client that asks again on another connection gets the answer there, with all that the first would have had."""
    await consumer(ALL)
    async with waiting_fetch(consumer) as answers:
        consumer.epoch += 1
        fill(0)
        later = await consumer({("t", 1): 0})
    assert trio.current_time() == 1
    (overtaken,) = answers
    assert overtaken.error_code in (0, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    assert ("t", 0) in consumer.rows(later)


async def test_fetch_overtaken_while_nothing_comes_is_told_so(memory, consumer, autojump_clock):
    """Its epoch is not the session's any more."""
    await consumer(ALL)
    async with waiting_fetch(consumer) as answers:
        consumer.epoch += 1
        assert set(consumer.rows(await consumer())) == set(ALL)
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_FETCH_SESSION_EPOCH]
    assert trio.current_time() == 1


async def test_fetch_whose_session_is_closed_ends_at_once(memory, consumer, autojump_clock):
    """Its partitions are watched no more, so that it would wait in vain."""
    await consumer(ALL)
    async with waiting_fetch(consumer) as answers:
        await consumer({}, epoch=-1)
    assert [answer.error_code for answer in answers] == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND]
    assert trio.current_time() == 1


async def test_partitions_are_read_in_turn_when_answers_are_small(memory, consumer, fill):
    """One batch for each answer reaches all partitions, whatever their order in the request is."""
    await consumer(ALL)
    for partition in range(3):
        for _ in range(3):
            fill(partition)
    served, offsets = [], {}
    for _ in range(6):
        rows = consumer.rows(await consumer(offsets, max_bytes=1))
        (key,) = [key for key, row in rows.items() if row.records]
        offsets = {key: 2 * (1 + [each for each, _ in served].count(key))}
        served.append((key, offsets[key]))
    assert {key: [each for each, _ in served].count(key) for key in ALL} == dict.fromkeys(ALL, 2)


@pytest.mark.parametrize("isolation_level", [0, 1])
async def test_high_watermark_that_moves_without_records_is_told(memory, consumer, fill, isolation_level):
    """Who reads committed records alone is told of others' with the next answer, without being woken for them."""
    await consumer({("t", 0): 0}, isolation_level=isolation_level)
    memory.leaders.undecided[memory.log("t", 0)] = Offset(0)
    fill(0)
    row = consumer.rows(await consumer(isolation_level=isolation_level))["t", 0]
    assert (row.high_watermark, row.last_stable_offset, bool(row.records)) == (2, 0, isolation_level == 0)


async def test_empty_incremental_fetch_looks_at_no_partition(memory, monkeypatch, autojump_clock):
    """Ten of it cost nothing for each of a thousand partitions, whether they wait or not."""
    memory.topics.create_now("t", partitions=1000)
    consumer = Consumer(memory)
    await consumer({("t", index): 0 for index in range(1000)})
    await consumer()
    asked = []
    for name in ("high_watermark", "watch", "unwatch"):
        monkeypatch.setattr(memory.leaders, name, lambda *_, name=name, **__: asked.append(name))
    monkeypatch.setattr(memory.cluster, "topic", asked.append)
    for _ in range(10):
        assert (await consumer(max_wait_ms=100)).responses == []
    assert asked == []


async def test_session_of_many_partitions_lets_others_run(memory, monkeypatch):
    """While it is opened, changed and closed."""
    for module in (api_01_fetch, service):
        monkeypatch.setattr(module, "STEP", 10)
    memory.topics.create_now("t", partitions=1000)
    sessions = FetchSessionCache(1)
    context = Context(memory.broker, Asker(memory).client, 12, True, {}, sessions=sessions)
    rows = tuple(api_01_fetch.FetchPartition(index, -1, 0, 1000) for index in range(1000))
    asked = api_01_fetch.FetchRequest(0, 1, 50 << 20, 0, 0, (api_01_fetch.FetchTopic("t", rows),), 0)
    reply = await api_01_fetch.handle(context, asked)
    turns = 0
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def count():
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        await reply.finish()
        nursery.cancel_scope.cancel()
    assert sessions.statistics().partitions == 1000
    assert turns >= 4 * 1000 // 10
