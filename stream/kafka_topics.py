"""What is asked of Kafka about a stream's topic, and done to it: make it, describe it, trim it, find its first entry.

Answers of the admin client are futures that its own thread fills; a type checker knows little of them. Whatever goes
wrong is EngineAway, with what was asked and what was said: nothing here tells a refusal that lasts from one that
passes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import trio

from stream.engine import EngineAway, StreamPosition
from stream.kafka_client import (
    UNKNOWN_TOPIC,
    AdminClient,
    ConfigResource,
    IsolationLevel,
    KafkaError,
    KafkaException,
    NewTopic,
    OffsetSpec,
    TopicCollection,
    TopicPartition,
    code,
    common,
    refused,
    sentence,
)
from stream.kafka_health import HealthWatch
from stream.kafka_settings import KafkaEngineSettings, KeptTopic, configs_at_creation
from stream.to_loop import ToLoop


@dataclass(frozen=True, slots=True)
class Described:
    """A topic as a broker knows it."""

    topic_id: str
    """Another one if the topic was deleted and made anew."""
    partitions: int
    replicas: int
    led: bool
    """Whether each partition has a leader."""


class Topics:
    """Used on the loop, but for `close`."""

    def __init__(self, settings: KafkaEngineSettings, to_loop: ToLoop, health: HealthWatch) -> None:
        """Raises SettingsRefused."""
        self._settings = settings
        self._to_loop = to_loop
        self._health = health
        self._timeout_s = settings.request_timeout_s
        try:
            self._admin: Any = AdminClient(common(settings, lambda _: None))
        except KafkaException as error:
            raise refused(error) from error

    def close(self) -> None:
        """End the client and its threads. Blocks for a moment."""
        del self._admin

    async def make(self, topic: str) -> None:
        """Make the topic, unless it is there. Raises EngineAway."""
        await self._create(topic, f"to make the topic {topic}", validate_only=False)

    async def missing(self, topic: str) -> bool:
        """Whether there is no such topic, for certain. Raises EngineAway.

        A broker that is cut off from the others knows no topic that was made since, so what it describes is no proof.
        Whether a topic could be made is decided by the controller, which resigns if it is cut off.
        """
        return await self._create(topic, f"whether the topic {topic} could be made", validate_only=True)

    async def _create(self, topic: str, asked: str, *, validate_only: bool) -> bool:
        """Whether it was not there."""
        new = NewTopic(topic, 1, self._settings.replicas, config=configs_at_creation(self._settings))
        made = self._admin.create_topics(
            [new],
            request_timeout=self._timeout_s,
            operation_timeout=self._timeout_s,
            validate_only=validate_only,
        )
        try:
            await self._answer(topic, made[topic], asked)
        except EngineAway as error:
            if error.__cause__ is None or code(error.__cause__) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    async def describe(self, topic: str) -> Described | None:
        """What a broker knows of it; None if it knows no such topic. Raises EngineAway."""
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)
        try:
            found = await self._answer(topic, asked[topic], f"to describe the topic {topic}")
        except EngineAway as error:
            if error.__cause__ is not None and code(error.__cause__) in UNKNOWN_TOPIC:
                return None
            raise
        return Described(
            str(found.topic_id),
            len(found.partitions),
            min((len(each.replicas) for each in found.partitions), default=0),
            all(each.leader is not None for each in found.partitions),
        )

    async def described(self, topic: str) -> Described:
        """As `describe`, of a topic that has to be there and to have a leader. Raises EngineAway."""
        described = await self.describe(topic)
        if described is None:
            raise EngineAway(f"a broker does not know the topic {topic} yet")
        if not described.led:
            raise EngineAway(f"the topic {topic} has no leader")
        return described

    async def kept(self, topic: str, described: Described) -> KeptTopic:
        """How it is kept. Raises EngineAway."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        asked = self._admin.describe_configs([resource], request_timeout=self._timeout_s)
        entries = await self._answer(topic, asked[resource], f"for the settings of {topic}")
        configs = {name: str(entry.value) for name, entry in entries.items()}
        return KeptTopic(topic, described.partitions, described.replicas, configs)

    async def start(self, topic: str) -> StreamPosition:
        """The position of the first entry that is there, or the end. Raises EngineAway."""
        partition = TopicPartition(topic, 0)
        asked = self._admin.list_offsets(
            {partition: OffsetSpec.earliest()},
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            request_timeout=self._timeout_s,
        )
        found = await self._answer(topic, asked[partition], f"for the start of {topic}")
        if found.offset < 0:
            # librdkafka 2.16 tells so that the leader did not answer, without an error.
            raise await self._away(topic, f"for the start of {topic}", f"{found.offset}")
        return StreamPosition(found.offset)

    async def trim(self, topic: str, before: StreamPosition) -> None:
        """Delete what lies before this position. Raises EngineAway."""
        asked = self._admin.delete_records(
            [TopicPartition(topic, 0, before)], request_timeout=self._timeout_s, operation_timeout=self._timeout_s
        )
        (done,) = asked.values()
        asking = f"to delete what lies before {before} in {topic}"
        trimmed = await self._answer(topic, done, asking)
        if trimmed.low_watermark < before:
            raise await self._away(topic, asking, f"that it starts at {trimmed.low_watermark}")

    async def _answer(self, topic: str, future: Any, asked: str) -> Any:
        answered = trio.Event()

        def wake(_: object) -> None:
            self._to_loop.put(answered.set)

        future.add_done_callback(wake)
        await answered.wait()
        try:
            result = future.result()
        except KafkaException as error:
            failure = error
        else:
            self._health.answered()
            return result
        if code(failure) in (*UNKNOWN_TOPIC, KafkaError.TOPIC_ALREADY_EXISTS):
            raise EngineAway(self._sentence(asked, sentence(failure))) from failure
        raise await self._away(topic, asked, sentence(failure)) from failure

    async def _away(self, topic: str, asked: str, said: str) -> EngineAway:
        """The error. Whoever asks again asks the broker that leads the topic by then, or is the controller.

        librdkafka 2.16 keeps for a quarter of an hour whom an admin client took for that, whatever brokers say since,
        and also if that one is silent. Metadata, which any broker answers, tell it anew.
        """
        error = EngineAway(self._sentence(asked, said))
        self._health.away(str(error))
        with suppress(KafkaException):
            await trio.to_thread.run_sync(self._admin.list_topics, topic, self._timeout_s, abandon_on_cancel=True)
        return error

    def _sentence(self, asked: str, said: str) -> str:
        return f"Kafka at {self._settings.bootstrap_servers} was asked {asked}, and said {said}"
