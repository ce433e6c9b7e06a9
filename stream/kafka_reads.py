"""Reading from Kafka: one consumer for all streams, and the thread that hands out what it fetches.

    thread    poll ─▶ per stream: Shelf ─── one wake-up for many ──▶ loop    reader.next()
                                    └─ holds too much? pause                     └─ took it all? resume

- *Bounded memory*: librdkafka fetches ahead for all streams together (16 MiB). A stream whose reader does not keep up
  is paused when 8 MiB of it lie here, and resumed when they were taken. So only a slow reader itself waits. librdkafka
  remembers the pause when the partition is assigned anew; so it is resumed before.
- *One thread*: all calls of the consumer are made by the thread. While one thread polls, others may wait for their
  turn for seconds.
- *Nothing out of order*: a reader hands out exactly the position that follows. What is older is dropped. If one is
  missing, the partition is assigned anew from there, and if it is missing again and again the entry is gone.
- *Away, or gone?* Kafka's consumer goes on by itself when brokers come and go. Whatever it reports about a partition is
  no proof that an entry is gone: a deposed leader that has not heard of it yet knows less than there is. So the reader
  then asks: whether the topic is there, and the same one; where it starts, which no deposed leader puts too late; and
  where it ends, with the same certainty as `Stream.end`. As long as that is not answered, the engine is away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import NoReturn, Protocol

import trio

from stream.engine import EngineAway, EntryGone, StoredEntry, StreamCutOff, StreamPosition
from stream.kafka_client import (
    POLL_S,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    consumer_config,
    refused,
    sentence,
)
from stream.kafka_health import HealthWatch
from stream.kafka_settings import KafkaEngineSettings
from stream.to_loop import ToLoop

HELD_BYTES_MAX = 8 << 20
"""Of one stream, before it is paused; what was polled together with the last of it comes on top."""

_POLL_S = 0.05
"""How long what is asked of the thread may have to wait, if nothing is fetched."""
_LEADER_WAIT_S = 0.01
_POLLED_MAX = 100
_ASK_AGAIN_S = 0.2
_MISSING_TIMES_MAX = 3
"""How often in a row an entry is to be missing, before it is gone."""
_OUT_OF_ORDER = "came where"
_SILENCE_S = 5.0
"""After this without an entry a reader looks whether its stream is still there: Kafka's consumer does not tell when a
topic is deleted (librdkafka 2.16: it asks for the topic again and again). A stream with an owner is never silent."""


class Asked(Protocol):
    """What a reader asks about its stream when the consumer reports something. All raise EngineAway."""

    async def cut_off(self) -> str | None:
        """Why this is not the stream any more that was opened; None if it is."""
        ...

    async def start(self) -> StreamPosition: ...

    async def end(self) -> StreamPosition: ...


class Shelf:
    """What was fetched of one stream, and not taken yet; between the thread and the loop."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.lock = Lock()
        self.entries: deque[StoredEntry] = deque()
        self.held_bytes = 0
        self.paused = False
        self.report: str | None = None
        """What the consumer said about the partition, if it has to be asked about."""
        self.filled = trio.Event()

    def wake(self) -> None:
        """On the loop."""
        self.filled.set()


class Fetcher:
    """Made on the loop."""

    def __init__(self, settings: KafkaEngineSettings, to_loop: ToLoop, health: HealthWatch) -> None:
        """Raises SettingsRefused."""
        self._to_loop = to_loop
        self._health = health
        self._shelves: dict[str, Shelf] = {}
        self._wanted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._closing = False
        try:
            self._consumer = Consumer(consumer_config(settings, self._on_error))
        except KafkaException as error:
            raise refused(error) from error
        self._thread = Thread(target=self._run, name="kafka-reads", daemon=True)
        self._thread.start()

    async def assign(self, shelf: Shelf, start: StreamPosition) -> None:
        """Fetch from `start` on, for this shelf only."""

        def work() -> None:
            self._give_up(shelf.topic)
            self._shelves[shelf.topic] = shelf
            with shelf.lock:
                shelf.entries.clear()
                shelf.held_bytes = 0
                shelf.paused = False
            # Otherwise librdkafka asks for the leader of a topic that is new to it a second later. The answer may have
            # to wait for a fetch on the same connection (half a second); it is used whenever it comes.
            with suppress(KafkaException):
                self._consumer.list_topics(shelf.topic, _LEADER_WAIT_S)
            self._consumer.incremental_assign([TopicPartition(shelf.topic, 0, start)])

        await self._in_thread(work)

    async def unassign(self, shelf: Shelf) -> None:
        """Fetch no more."""

        await self._in_thread(lambda: self._give_up(shelf.topic))

    def _give_up(self, topic: str) -> None:
        """In the thread: fetch nothing of the topic, if it is assigned."""
        shelf = self._shelves.pop(topic, None)
        if shelf is not None:
            partition = TopicPartition(topic, 0)
            if shelf.paused:
                self._consumer.resume([partition])
            self._consumer.incremental_unassign([partition])

    async def resume(self, shelf: Shelf) -> None:
        """Go on with a shelf that was paused."""

        def work() -> None:
            if self._shelves.get(shelf.topic) is shelf:
                shelf.paused = False
                self._consumer.resume([TopicPartition(shelf.topic, 0)])

        await self._in_thread(work)

    def close(self) -> None:
        """End the thread and the consumer. Blocks for up to half a second."""
        self._closing = True
        self._wanted.put(lambda: None)
        self._thread.join()
        self._consumer.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Run it in the thread, and return when it is done. Cancelled: it is done nevertheless."""
        done = trio.Event()

        def run() -> None:
            work()
            self._to_loop.put(done.set)

        self._wanted.put(run)
        await done.wait()

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as bug:
            self._to_loop.failed(bug)
            raise

    def _run_until_closed(self) -> None:
        while not self._closing:
            self._work_off(wait_s=0 if self._shelves else POLL_S)
            first = self._consumer.poll(_POLL_S if self._shelves else 0)
            if first is None:
                continue
            by_topic: dict[str, list[Message]] = {}
            for message in (first, *self._consumer.consume(_POLLED_MAX, 0)):
                by_topic.setdefault(message.topic() or "", []).append(message)
            for topic, messages in by_topic.items():
                shelf = self._shelves.get(topic)
                if shelf is not None:
                    self._put(shelf, messages)

    def _work_off(self, wait_s: float) -> None:
        """Do what was asked for; wait for something, if there is nothing to be fetched."""
        with suppress(Empty):
            self._wanted.get(timeout=wait_s)() if wait_s else self._wanted.get_nowait()()
            while True:
                self._wanted.get_nowait()()

    def _put(self, shelf: Shelf, messages: Sequence[Message]) -> None:
        with shelf.lock:
            for message in messages:
                error, offset = message.error(), message.offset()
                if error is not None:
                    shelf.report = sentence(error)
                elif offset is not None:
                    data = message.value() or b""
                    shelf.entries.append(StoredEntry(StreamPosition(offset), data))
                    shelf.held_bytes += len(data)
            pause = shelf.held_bytes > HELD_BYTES_MAX and not shelf.paused
            shelf.paused = shelf.paused or pause
        if pause:
            self._consumer.pause([TopicPartition(shelf.topic, 0)])
        self._to_loop.put(shelf.wake)

    def _on_error(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # pyright: ignore[reportPrivateUsage]
            said = sentence(error)
            self._to_loop.put(lambda: self._health.away(said))


class KafkaReader:
    """engine.Reader documents `next`. Opened and closed by the stream."""

    def __init__(self, fetcher: Fetcher, asked: Asked, topic: str, start: StreamPosition, health: HealthWatch) -> None:
        self._fetcher = fetcher
        self._asked = asked
        self._topic = topic
        self._position = start
        self._health = health
        self._shelf = Shelf(topic)
        self._report: str | None = None
        """What is to be asked about, until the answer was acted on: a call may be cancelled in between."""
        self._missed_at: StreamPosition | None = None
        self._missed_times = 0
        self._ended: EntryGone | StreamCutOff | None = None

    async def open(self) -> None:
        await self._fetcher.assign(self._shelf, self._position)

    async def close(self) -> None:
        await self._fetcher.unassign(self._shelf)

    def look(self, why: str) -> None:
        """Have the reader ask whether its stream is still there."""
        with self._shelf.lock:
            self._shelf.report = why
        self._shelf.wake()

    async def next(self) -> Sequence[StoredEntry]:
        while True:
            if self._ended is not None:
                raise self._ended
            await trio.lowlevel.checkpoint()
            if self._shelf.paused and not self._shelf.entries:
                await self._fetcher.resume(self._shelf)
            if self._report is None:
                taken, self._report = self._take()
                if taken:
                    return taken
            if self._report is not None:
                await self._find_out(self._report)
                self._report = None
                continue
            if not self._shelf.entries:
                with trio.move_on_after(_SILENCE_S) as silence:
                    await self._shelf.filled.wait()
                if silence.cancelled_caught:
                    await self._look_for_stream()

    async def _look_for_stream(self) -> None:
        """Raise StreamCutOff if it is not there any more. That it is away is no news."""
        with suppress(EngineAway):
            if (why := await self._asked.cut_off()) is not None:
                self._cut_off(why)

    def _cut_off(self, why: str) -> NoReturn:
        self._ended = StreamCutOff(f"{self._topic} was read up to {self._position}, and {why}")
        raise self._ended

    def _take(self) -> tuple[list[StoredEntry], str | None]:
        """What follows of what lies on the shelf; without it, what is to be asked about."""
        shelf = self._shelf
        with shelf.lock:
            entries, shelf.entries = shelf.entries, deque()
            shelf.held_bytes = 0
            shelf.filled = trio.Event()
            taken: list[StoredEntry] = []
            for entry in entries:
                if entry.position == self._position:
                    taken.append(entry)
                    self._position = StreamPosition(entry.position + 1)
                elif entry.position > self._position:
                    shelf.report = f"position {entry.position} {_OUT_OF_ORDER} {self._position} was due"
                    break
            if taken:
                self._missed_at = None
                self._health.answered()
                if shelf.report is not None:
                    shelf.filled.set()
                return taken, None
            report, shelf.report = shelf.report, None
            return taken, report

    async def _find_out(self, report: str) -> None:
        """Raise what became of the stream, or have it assigned anew."""
        while True:
            try:
                await self._raise_if_gone(report)
                break
            except EngineAway as error:
                self._health.away(str(error))
                await trio.sleep(_ASK_AGAIN_S)
        await self._fetcher.assign(self._shelf, self._position)

    async def _raise_if_gone(self, report: str) -> None:
        if (why := await self._asked.cut_off()) is not None:
            self._cut_off(why)
        start = await self._asked.start()
        if start > self._position:
            self._gone(f"was to be read from {self._position} on, and starts at {start}")
        end = await self._asked.end()
        if end < self._position:
            self._cut_off(f"it ends at {end}")
        if self._missed_at != self._position:
            self._missed_at, self._missed_times = self._position, 0
        self._missed_times += 1
        if self._missed_times > _MISSING_TIMES_MAX and _OUT_OF_ORDER in report:
            self._gone(f"has no entry at {self._position}: {report}")

    def _gone(self, what: str) -> NoReturn:
        self._ended = EntryGone(f"{self._topic} {what}")
        raise self._ended
