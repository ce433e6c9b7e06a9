"""The first engine: a cluster of Apache Kafka, or of what speaks its protocol as well, through librdkafka.

    stream `shard-0`  =  topic `CLUSTER.shard-0`, one partition; position = offset

One producer, one consumer and one admin client serve all streams, with a thread each for deliveries (`kafka_appends`)
and for what is fetched (`kafka_reads`); `kafka_topics` has the questions and the few things that are done to topics,
`kafka_settings` how they are to be kept.

How the contract comes about (docs/decisions/0062-first-engine.md has the sources):

1. *One order*: one partition. No transaction writes into it, so no offset is taken by a marker.
2. *Durable*: acks=all with min.insync.replicas, and no leader that lacks what was answered.
3. *A prefix*: consumers are given what is below the high watermark.
4. *The end is true*: `end` appends an empty entry, and answers the position that follows it. The question for the end
   that Kafka's protocol has, ListOffsets, is answered by a leader alone, and one that was deposed and has not heard of
   it answers too little. Only an append is confirmed by the replicas. So empty entries lie between the others, and mean
   nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from stream.engine import EngineAway, Reader, Stream, StreamCutOff, StreamPosition, Unknown
from stream.kafka_appends import Appender
from stream.kafka_health import HealthWatch, KafkaHealth
from stream.kafka_reads import Fetcher, KafkaReader
from stream.kafka_settings import KafkaEngineSettings, KeptTopic, check_strength
from stream.kafka_topics import Described, Topics
from stream.to_loop import ToLoop

_LOOK_AGAIN_S = 0.1


class KafkaStream:
    """engine.Stream documents its methods."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        settings: KafkaEngineSettings,
        appender: Appender,
        fetcher: Fetcher,
        topics: Topics,
        health: HealthWatch,
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._settings = settings
        self._appender = appender
        self._fetcher = fetcher
        self._topics = topics
        self._health = health
        self._reader: KafkaReader | None = None
        self._answered = StreamPosition(-1)

    @property
    def name(self) -> str:
        return self._topic

    @property
    def entry_bytes_max(self) -> int:
        return self._settings.entry_bytes_max

    def append(self, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        assert data, "an empty entry is what `end` appends"
        self._append(data, done)

    @asynccontextmanager
    async def open_reader(self, start: StreamPosition) -> AsyncGenerator[Reader]:
        assert self._reader is None, f"{self._topic} has a reader already"
        reader = self._reader = KafkaReader(self._fetcher, self, self._topic, start, self._health)
        try:
            await reader.open()
            yield reader
        finally:
            with trio.CancelScope(shield=True):
                await reader.close()
            self._reader = None

    async def start(self) -> StreamPosition:
        return await self._topics.start(self._topic)

    async def end(self) -> StreamPosition:
        outcome: StreamPosition | Unknown | None = None
        came = trio.Event()

        def done(what: StreamPosition | Unknown) -> None:
            nonlocal outcome
            outcome = what
            came.set()

        self._append(b"", done)
        await came.wait()
        assert outcome is not None
        if isinstance(outcome, Unknown):
            if outcome.knows_no_stream and (why := await self.cut_off()) is not None:
                raise StreamCutOff(f"the end of {self._topic} was asked for, and {why}")
            raise EngineAway(f"the end of {self._topic} was asked for, and it is unknown: {outcome.reason}")
        return StreamPosition(outcome + 1)

    async def trim(self, before: StreamPosition) -> None:
        assert before >= 0, before
        await self._topics.trim(self._topic, before)

    async def cut_off(self) -> str | None:
        """Why this is not the stream any more that was opened; None if it is. Raises EngineAway."""
        described = await self._topics.describe(self._topic)
        if described is not None:
            return self.made_anew(described)
        if await self._topics.missing(self._topic):
            return "the topic was deleted"
        raise EngineAway(f"a broker does not know the topic {self._topic}, which is there")

    def made_anew(self, described: Described) -> str | None:
        """As `cut_off`, from what a broker knows."""
        if described.topic_id == self._topic_id:
            return None
        return f"the topic was deleted and made anew: its id was {self._topic_id}, and is {described.topic_id}"

    def look(self, why: str) -> None:
        """Have whoever reads the stream find out whether it is still there."""
        if self._reader is not None:
            self._reader.look(why)

    def _append(self, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        def answered(outcome: StreamPosition | Unknown) -> None:
            if not isinstance(outcome, Unknown):
                if outcome <= self._answered:
                    why = f"an append after position {self._answered} came to lie at {outcome}"
                    self.look(why)
                    outcome = Unknown(why)
                else:
                    self._answered = outcome
            done(outcome)

        self._appender.append(self._topic, data, answered)


class KafkaEngine:
    """engine.Engine documents its methods. Made by `open_kafka_engine`."""

    def __init__(self, settings: KafkaEngineSettings) -> None:
        """Raises SettingsRefused."""
        self._settings = settings
        self._to_loop = ToLoop()
        self._health = HealthWatch()
        self._streams: dict[str, KafkaStream] = {}
        self._topics = Topics(settings, self._to_loop, self._health)
        self._appender = Appender(settings, self._to_loop, self._health)
        self._fetcher = Fetcher(settings, self._to_loop, self._health)

    async def open_stream(self, name: str) -> Stream:
        """As engine.Engine says; a stream that is open already is the same one. Raises SettingsRefused for a name."""
        topic = self._settings.topic(name)
        described, kept = await self._made(topic)
        check_strength(kept, self._settings)
        if name not in self._streams:
            self._streams[name] = KafkaStream(
                topic, described.topic_id, self._settings, self._appender, self._fetcher, self._topics, self._health
            )
        return self._streams[name]

    async def check(self, name: str) -> None:
        """As engine.Engine says. A reader of a stream that was deleted or made anew then raises StreamCutOff."""
        topic = self._settings.topic(name)
        described = await self._topics.describe(topic)
        stream = self._streams.get(name)
        if stream is not None and (described is None or stream.made_anew(described) is not None):
            stream.look("the topic is not the one that was opened")
        if described is None:
            raise EngineAway(f"there is no topic {topic}")
        check_strength(await self._topics.kept(topic, described), self._settings)

    async def _made(self, topic: str) -> tuple[Described, KeptTopic]:
        """The topic, made if it is missing, when brokers know it. Raises EngineAway.

        They hear a moment later of a topic that was made, and also of one that was deleted: one that tells of it once
        more does not mean that it is there.
        """
        deadline = trio.current_time() + self._settings.request_timeout_s
        while True:
            try:
                if await self._topics.describe(topic) is None:
                    await self._topics.make(topic)
                described = await self._topics.described(topic)
                return described, await self._topics.kept(topic, described)
            except EngineAway:
                if trio.current_time() > deadline:
                    raise
                await trio.sleep(_LOOK_AGAIN_S)

    def health(self) -> KafkaHealth:
        """How it is doing."""
        return self._health.snapshot()

    async def _close(self) -> None:
        self._to_loop.close()
        await trio.to_thread.run_sync(self._fetcher.close)
        await trio.to_thread.run_sync(self._appender.close)
        await trio.to_thread.run_sync(self._topics.close)


def open_kafka_engine(settings: KafkaEngineSettings) -> AbstractAsyncContextManager[KafkaEngine]:
    """An engine, closed on leaving; close what uses it before. Raises SettingsRefused.

    It opens also if the cluster is away. Appends that are under way when it is closed are not answered any more, and
    may take place or not.
    """
    return _open(settings)


@asynccontextmanager
async def _open(settings: KafkaEngineSettings) -> AsyncGenerator[KafkaEngine]:
    engine = KafkaEngine(settings)
    try:
        yield engine
    finally:
        with trio.CancelScope(shield=True):
            await engine._close()  # pyright: ignore[reportPrivateUsage]
