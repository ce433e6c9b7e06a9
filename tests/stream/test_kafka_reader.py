"""A reader of Kafka by itself, without a cluster: what it does with what the consumer hands out and reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import trio
import trio.testing

from stream.engine import EngineAway, EntryGone, StoredEntry, StreamPosition, Unknown
from stream.kafka_appends import Appender
from stream.kafka_engine import KafkaStream
from stream.kafka_health import HealthWatch
from stream.kafka_reads import Fetcher, KafkaReader, Shelf
from stream.kafka_settings import KafkaEngineSettings
from stream.kafka_topics import Described, Topics

START = StreamPosition(5)


class FakeFetcher:
    """Notes from where it is to fetch; tests fill the shelf."""

    def __init__(self) -> None:
        self.assigned: list[StreamPosition] = []
        self.shelf = Shelf("none")

    async def assign(self, shelf: Shelf, start: StreamPosition) -> None:
        await trio.lowlevel.checkpoint()
        self.assigned.append(start)
        self.shelf = shelf

    async def unassign(self, shelf: Shelf) -> None:
        await trio.lowlevel.checkpoint()

    async def resume(self, shelf: Shelf) -> None:
        await trio.lowlevel.checkpoint()
        shelf.paused = False

    def hand_out(self, *positions: int) -> None:
        self.shelf.entries += [StoredEntry(StreamPosition(position), b"%d" % position) for position in positions]
        self.shelf.wake()


class FakeAsked:
    """A stream that is there, from 0 to 100, when it answers."""

    def __init__(self) -> None:
        self.away = False

    async def cut_off(self) -> str | None:
        await trio.sleep(1)
        if self.away:
            raise EngineAway("away")
        return None

    async def start(self) -> StreamPosition:
        return StreamPosition(0)

    async def end(self) -> StreamPosition:
        return StreamPosition(100)


def make(fetcher: FakeFetcher, asked: FakeAsked) -> KafkaReader:
    return KafkaReader(cast("Fetcher", fetcher), asked, "orders.shard-0", START, HealthWatch())


async def test_read_that_is_cancelled_while_it_asks_asks_again(autojump_clock: trio.testing.MockClock) -> None:
    """What the consumer reported is not forgotten: it fetches no more by itself, so nobody would wake the reader."""
    fetcher, asked = FakeFetcher(), FakeAsked()
    reader = make(fetcher, asked)
    await reader.open()
    reader.look("out of range")
    asked.away = True
    with trio.move_on_after(3.5) as scope:
        await reader.next()
    assert scope.cancelled_caught
    assert fetcher.assigned == [START]
    asked.away = False
    with trio.move_on_after(3.5):
        await reader.next()
    assert fetcher.assigned == [START, START]
    fetcher.hand_out(5, 6)
    assert [entry.position for entry in await reader.next()] == [5, 6]


async def test_entry_that_is_missing_is_fetched_again_before_it_is_gone(autojump_clock: trio.testing.MockClock) -> None:
    """What is before the gap is returned; then the partition is assigned anew from there."""
    fetcher = FakeFetcher()
    reader = make(fetcher, FakeAsked())
    await reader.open()
    fetcher.hand_out(3, 4, 5, 6, 8)
    assert [entry.position for entry in await reader.next()] == [5, 6]
    for times in range(1, 4):
        with trio.move_on_after(2):
            await reader.next()
        assert fetcher.assigned == [START] + [StreamPosition(7)] * times
        fetcher.hand_out(8)
    with pytest.raises(EntryGone, match="no entry at 7"):
        await reader.next()


async def test_reader_resumes_a_paused_stream_when_all_was_taken(autojump_clock: trio.testing.MockClock) -> None:
    """Not before: there is enough to do."""
    fetcher = FakeFetcher()
    reader = make(fetcher, FakeAsked())
    await reader.open()
    fetcher.hand_out(5)
    fetcher.shelf.paused = True
    await reader.next()
    assert fetcher.shelf.paused
    with trio.move_on_after(1):
        await reader.next()
    assert not fetcher.shelf.paused


class FakeTopics:
    """What a broker describes, and whether the controller would make the topic."""

    def __init__(self, described: Described | None, *, missing: bool = False) -> None:
        self.described = described
        self.is_missing = missing

    async def describe(self, topic: str) -> Described | None:
        return self.described

    async def missing(self, topic: str) -> bool:
        return self.is_missing


async def cut_off(topics: FakeTopics) -> str | None:
    settings = KafkaEngineSettings(bootstrap_servers="one:9092", cluster="orders")
    appender, fetcher = cast("Appender", None), cast("Fetcher", None)
    stream = KafkaStream("orders.shard-0", "id-1", settings, appender, fetcher, cast("Topics", topics), HealthWatch())
    return await stream.cut_off()


async def test_stream_is_cut_off_if_its_topic_is_another_or_the_controller_has_none() -> None:
    """That one broker does not know it is no proof: it may be cut off since before the topic was made."""
    assert await cut_off(FakeTopics(Described("id-1", 1, 3, led=True))) is None
    assert "made anew" in str(await cut_off(FakeTopics(Described("id-2", 1, 3, led=True))))
    assert await cut_off(FakeTopics(None, missing=True)) == "the topic was deleted"
    with pytest.raises(EngineAway, match=r"does not know the topic orders\.shard-0"):
        await cut_off(FakeTopics(None))


class FakeAppender:
    """Answers each append with the next of these positions."""

    def __init__(self, *positions: int) -> None:
        self._positions = list(positions)

    def append(self, topic: str, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        done(StreamPosition(self._positions.pop(0)))


async def test_append_that_lies_before_an_earlier_one_is_unknown() -> None:
    """Then the topic is not the one that it was, or has lost its end: such a position answers for nothing."""
    settings = KafkaEngineSettings(bootstrap_servers="one:9092", cluster="orders")
    appender, fetcher, topics = cast("Appender", FakeAppender(7, 8, 3, 9)), cast("Fetcher", None), cast("Topics", None)
    stream = KafkaStream("orders.shard-0", "id-1", settings, appender, fetcher, topics, HealthWatch())
    outcomes: list[StreamPosition | Unknown] = []
    for _ in range(4):
        stream.append(b"data", outcomes.append)
    assert outcomes[:2] == [7, 8]
    assert isinstance(outcomes[2], Unknown)
    assert "an append after position 8 came to lie at 3" in outcomes[2].reason
    assert outcomes[3] == 9
