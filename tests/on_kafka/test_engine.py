"""The engine on Kafka keeps the contract: each promise, settings that are refused, random histories while brokers die,
stand still and are cut off (`disturbances`), and a leader that was deposed.

The long form is `python -m tests.stream`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest
import trio
from peers.kafka_cluster import KafkaCluster
from peers.links import CLIENT

from stream.engine import Engine, EngineAway, Stream, StreamCutOff, StreamPosition, WeakStream
from stream.kafka_engine import open_kafka_engine
from stream.kafka_reads import HELD_BYTES_MAX, KafkaReader
from stream.kafka_settings import KafkaEngineSettings, SettingsRefused
from stream.kafka_topics import Described
from tests.stream import promises
from tests.stream.kafka_admin import (
    add_partitions,
    configs_of,
    delete_topic,
    latest_offset,
    leader_of,
    make_topic,
    set_config,
)
from tests.stream.rigs import KafkaRig, KafkaWorld, World, append, append_all, known, raised_by, read_all, read_until
from tests.stream.trials import kafka_trial

pytestmark = pytest.mark.slow

TRIAL_S = 30.0
WAIT_S = 60.0
DECEIVED_S = 5.0
"""As long as a reader may ask what became of its position."""
WITH_ONE_REPLICA = (
    promises.an_entry_lies_where_it_was_answered,
    promises.the_end_is_behind_what_was_answered,
    promises.what_was_trimmed_is_gone,
)
Promise = Callable[[World], Awaitable[None]]
T = TypeVar("T")


@pytest.mark.parametrize("promise", promises.PROMISES, ids=lambda promise: promise.__name__)
def test_kafka_keeps_the_promise(promise: Promise, three_replicas: KafkaRig) -> None:
    """What `stream.engine` asks of an engine."""
    three_replicas.run(promise)


@pytest.mark.parametrize("promise", WITH_ONE_REPLICA, ids=lambda promise: promise.__name__)
def test_kafka_keeps_the_promise_with_one_replica(promise: Promise, one_replica: KafkaRig) -> None:
    """Whoever tries it out on one broker has the same engine, if the settings say so."""
    one_replica.run(promise)


def test_kafka_keeps_the_contract_while_brokers_fail(three_replicas: KafkaRig, kafka: KafkaCluster) -> None:
    """Nothing that was answered is lost, moved or reordered while leaders change; and outcomes are unknown then."""
    histories = kafka_trial(three_replicas, kafka, 1, TRIAL_S)
    findings = [finding for history in histories for finding in history.findings]
    assert not findings, findings[:10]
    assert all(history.answered() > 100 for history in histories)
    assert any(history.unknown() > 0 for history in histories)


def test_end_and_readers_are_not_deceived_by_a_deposed_leader(three_replicas: KafkaRig, kafka: KafkaCluster) -> None:
    """The deposed leader puts the end before what was answered. `end` does not, and a reader is not cut off by it: for
    whoever reaches no other broker the engine is away.
    """

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        settings, topic = world.settings, world.settings.topic("shard-0")
        assert kafka.links is not None
        async with open_kafka_engine(settings) as engine:
            stream = await _until_it_is_not_away(partial(engine.open_stream, "shard-0"))
            await _answered(stream, b"before")
            deposed = leader_of(kafka.bootstrap, topic)
            others = [broker for broker in kafka.brokers if broker != deposed]
            elsewhere = ",".join(kafka.address(broker) for broker in others)
            kafka.links.isolate(deposed)
            await trio.to_thread.run_sync(_wait_for_another_leader, elsewhere, topic, deposed)
            async with open_kafka_engine(replace(settings, bootstrap_servers=elsewhere)) as another:
                for _ in range(10):
                    position = await _answered(await another.open_stream("shard-0"), b"after")
            # From here on clients reach the deposed leader only.
            for broker in others:
                kafka.links.cut(CLIENT, broker)
            stale = await trio.to_thread.run_sync(latest_offset, kafka.address(deposed), topic)
            assert stale <= position, "Kafka's ListOffsets has become true: `end` could be had for less"
            with pytest.raises(EngineAway):
                await stream.end()
            async with stream.open_reader(StreamPosition(position + 1)) as reader:
                with trio.move_on_after(DECEIVED_S) as waiting:
                    await reader.next()
                assert waiting.cancelled_caught
                kafka.links.join_all()
                assert await _end(stream) > position
                last = await _answered(stream, b"last")
                assert b"last" in [entry.data for entry in await read_until(reader, StreamPosition(last + 1))]

    try:
        replace(three_replicas, settings=replace(three_replicas.settings, append_timeout_s=3.0)).run(
            trial, timeout_s=3 * WAIT_S
        )
    finally:
        kafka.heal()


def test_start_and_trim_find_a_leader_that_is_another_one(three_replicas: KafkaRig, kafka: KafkaCluster) -> None:
    """While the last one is silent, and when it is back: a node that starts asks for the start of its streams."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        topic = world.settings.topic("shard-0")
        async with open_kafka_engine(world.settings) as engine:
            stream = await _until_it_is_not_away(partial(engine.open_stream, "shard-0"))
            position = await _answered(stream, b"first")
            assert await _until_it_is_not_away(stream.start) == 0
            deposed = leader_of(kafka.bootstrap, topic)
            kafka.pause(deposed)
            elsewhere = ",".join(kafka.address(broker) for broker in kafka.brokers if broker != deposed)
            await trio.to_thread.run_sync(_wait_for_another_leader, elsewhere, topic, deposed)
            await _until_it_is_not_away(stream.start)
            kafka.resume(deposed)
            await _until_it_is_not_away(partial(stream.trim, StreamPosition(position)))
            assert await _until_it_is_not_away(stream.start) == position

    try:
        three_replicas.run(trial, timeout_s=3 * WAIT_S)
    finally:
        kafka.heal()


async def _weakness(engine: Engine, name: str) -> str:
    """What `check` says at last: a broker hears of a change a moment later."""
    while True:
        try:
            await engine.check(name)
        except WeakStream as error:
            return str(error)


def _wait_for_another_leader(servers: str, topic: str, deposed: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while leader_of(servers, topic) in (deposed, -1):
        assert time.monotonic() < deadline, "no other leader was elected"
        time.sleep(0.2)


async def _answered(stream: Stream, data: bytes) -> StreamPosition:
    """Append until it is answered: a test may have it twice."""
    while not isinstance(position := await append(stream, data), int):
        pass
    return StreamPosition(position)


async def _end(stream: Stream) -> StreamPosition:
    return await _until_it_is_not_away(stream.end)


async def _until_it_is_not_away(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except EngineAway:
            await trio.sleep(0.1)


def test_reader_that_rests_holds_bounded_memory(three_replicas: KafkaRig) -> None:
    """Its partition is paused; when it goes on, it has all of it."""
    entries = [n.to_bytes(4, "big") + bytes((1 << 20) - 4) for n in range(40)]

    async def trial(world: World) -> None:
        async with world.open_engine("a") as engine:
            stream = await engine.open_stream("shard-0")
            await append_all(stream, entries)
            async with stream.open_reader(StreamPosition(0)) as reader:
                assert isinstance(reader, KafkaReader)
                while not reader._shelf.paused:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await trio.sleep(1)
                assert HELD_BYTES_MAX < reader._shelf.held_bytes < len(entries) << 20
                data: list[bytes] = []
                while len(data) < len(entries):
                    data += [entry.data for entry in await reader.next()]
                assert data == entries

    patient = replace(three_replicas.settings, append_timeout_s=60.0)
    replace(three_replicas, settings=patient).run(trial)


def test_topic_is_made_as_it_is_to_be_kept(three_replicas: KafkaRig) -> None:
    """A new stream's topic has all settings of its own, whatever the brokers' defaults are."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        settings = replace(world.settings, flush_each_entry=True)
        async with open_kafka_engine(settings) as engine:
            await engine.open_stream("shard-0")
            await engine.check("shard-0")
        configs = await trio.to_thread.run_sync(configs_of, settings.bootstrap_servers, settings.topic("shard-0"))
        assert configs["min.insync.replicas"] == "2"
        assert configs["retention.ms"] == configs["retention.bytes"] == "-1"
        assert configs["unclean.leader.election.enable"] == "false"
        assert configs["cleanup.policy"] == "delete"
        assert configs["flush.messages"] == "1"
        assert configs["message.timestamp.type"] == "LogAppendTime"
        assert int(configs["max.message.bytes"]) > settings.entry_bytes_max

    three_replicas.run(trial)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.insync.replicas", "1"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("cleanup.policy", "compact"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "1000000"),
    ],
)
def test_weakened_setting_is_found_and_named(name: str, value: str, three_replicas: KafkaRig) -> None:
    """`check`, and whoever opens the stream next, refuses it with a sentence that has the setting and the remedy."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        servers, topic = world.settings.bootstrap_servers, world.settings.topic("shard-0")
        async with open_kafka_engine(world.settings) as engine:
            await engine.open_stream("shard-0")
            await trio.to_thread.run_sync(set_config, servers, topic, name, value)
            sentence = await _weakness(engine, "shard-0")
            assert re.match(rf"{name} of the topic {topic} is {value}, and .*--add-config {name}=", sentence)
        async with open_kafka_engine(world.settings) as engine:
            with pytest.raises(WeakStream, match=name):
                await engine.open_stream("shard-0")

    three_replicas.run(trial)


@pytest.mark.parametrize(
    ("partitions", "replicas", "sentence"),
    [(2, 3, "has 2 partitions, and a stream has 1"), (1, 2, "has 2 replicas, and 3 are wanted: .*reassign")],
)
def test_topic_of_another_shape_is_refused(
    partitions: int, replicas: int, sentence: str, three_replicas: KafkaRig
) -> None:
    """A topic that somebody else made is judged as any other."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        servers, topic = world.settings.bootstrap_servers, world.settings.topic("shard-0")
        async with open_kafka_engine(world.settings) as engine:
            await engine.open_stream("good")
            configs = await trio.to_thread.run_sync(configs_of, servers, world.settings.topic("good"))
            wanted = {"min.insync.replicas", "retention.ms", "max.message.bytes", "unclean.leader.election.enable"}
            make_topic(
                servers,
                topic,
                partitions=partitions,
                replicas=replicas,
                configs={name: value for name, value in configs.items() if name in wanted},
            )
            with pytest.raises(WeakStream, match=sentence):
                await engine.open_stream("shard-0")

    three_replicas.run(trial)


def test_partition_that_is_added_later_is_found(three_replicas: KafkaRig) -> None:
    """`check` counts them."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        async with open_kafka_engine(world.settings) as engine:
            await engine.open_stream("shard-0")
            add_partitions(world.settings.bootstrap_servers, world.settings.topic("shard-0"), 2)
            assert "2 partitions" in await _weakness(engine, "shard-0")

    three_replicas.run(trial)


def test_reader_of_a_topic_that_was_made_anew_is_cut_off(three_replicas: KafkaRig) -> None:
    """Though it has as many entries as the one before, so that librdkafka reads on: `check` knows it by its id."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        topic = world.settings.topic("shard-0")
        async with open_kafka_engine(world.settings) as engine:
            stream = await engine.open_stream("shard-0")
            position = known(await append(stream, b"old"))
            async with stream.open_reader(StreamPosition(0)) as reader:
                await read_until(reader, StreamPosition(position + 1))
                delete_topic(world.settings.bootstrap_servers, topic)
                async with open_kafka_engine(world.settings) as other:
                    anew = await _until_it_is_not_away(partial(other.open_stream, "shard-0"))
                    for _ in range(3):
                        await _answered(anew, b"new")
                await _until_it_is_not_away(partial(engine.check, "shard-0"))
                assert "made anew" in str(await raised_by(reader))
            async with open_kafka_engine(world.settings) as other:
                found = await read_all(await other.open_stream("shard-0"))
                assert b"old" not in [entry.data for entry in found]

    three_replicas.run(trial)


def test_topic_that_was_just_deleted_is_made_though_a_broker_tells_of_it_once_more(three_replicas: KafkaRig) -> None:
    """Brokers hear of a deletion a moment later, each for itself."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        topic = world.settings.topic("shard-0")
        async with open_kafka_engine(replace(world.settings, request_timeout_s=10.0)) as engine:
            describe = engine._topics.describe
            await engine.open_stream("shard-0")
            stale = await describe(topic)
            assert stale is not None
            delete_topic(world.settings.bootstrap_servers, topic)
            while await describe(topic) is not None:
                pass
            told = [stale]

            async def describe_once_stale(topic: str) -> Described | None:
                return told.pop() if told else await describe(topic)

            engine._topics.describe = describe_once_stale
            await engine.open_stream("shard-0")
            assert not told
            made = await describe(topic)
            assert made is not None
            assert made.topic_id != stale.topic_id

    three_replicas.run(trial)


def test_end_of_a_topic_that_was_deleted_is_none(three_replicas: KafkaRig) -> None:
    """Who asks for the end before it reads would ask for ever, if the engine were only away."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        async with open_kafka_engine(world.settings) as engine:
            stream = await engine.open_stream("shard-0")
            known(await append(stream, b"old"))
            delete_topic(world.settings.bootstrap_servers, world.settings.topic("shard-0"))
            with trio.fail_after(WAIT_S), pytest.raises(StreamCutOff, match="was deleted"):
                await _end_once_it_is_told(stream)

    three_replicas.run(trial)


async def _end_once_it_is_told(stream: Stream) -> StreamPosition:
    while True:
        with suppress(EngineAway):
            return await stream.end()


def test_engine_that_is_away_says_so(three_replicas: KafkaRig, kafka: KafkaCluster) -> None:
    """Appends are unknown, questions raise EngineAway, `health` knows since when; a reader goes on when it is back."""

    async def trial(world: World) -> None:
        assert isinstance(world, KafkaWorld)
        settings = replace(world.settings, append_timeout_s=1.0, request_timeout_s=1.0)
        async with open_kafka_engine(settings) as engine:
            stream = await _until_it_is_not_away(partial(engine.open_stream, "shard-0"))
            position = await _answered(stream, b"before")
            assert engine.health().answers
            unknown_before = engine.health().unknown
            async with stream.open_reader(position) as reader:
                assert [entry.data for entry in await reader.next()] == [b"before"]
                _cut_clients_off(kafka)
                outcome = await append(stream, b"meanwhile")
                assert not isinstance(outcome, int), outcome
                for ask in (stream.end, stream.start, lambda: stream.trim(position), lambda: engine.check("shard-0")):
                    with pytest.raises(EngineAway):
                        await ask()
                health = engine.health()
                assert not health.answers
                assert health.said
                assert health.unknown == unknown_before + 2
                kafka.heal()
                last = await _answered(stream, b"after")
                assert b"after" in [entry.data for entry in await read_until(reader, StreamPosition(last + 1))]
                assert engine.health().answers
                assert engine.health().since > health.since

    try:
        three_replicas.run(trial)
    finally:
        kafka.heal()


def _cut_clients_off(kafka: KafkaCluster) -> None:
    assert kafka.links is not None
    for broker in kafka.brokers:
        kafka.links.cut(CLIENT, broker)


def test_engine_opens_while_the_cluster_is_away() -> None:
    """It says so when it is asked; and what librdkafka cannot use is refused at once."""

    async def main() -> None:
        settings = KafkaEngineSettings(bootstrap_servers="127.0.0.1:1", cluster="nowhere", request_timeout_s=0.5)
        async with open_kafka_engine(settings) as engine:
            with pytest.raises(EngineAway, match=r"127\.0\.0\.1:1"):
                await engine.open_stream("shard-0")
        with pytest.raises(SettingsRefused, match=r"security\.protocol"):
            async with open_kafka_engine(replace(settings, passed_on={"security.protocol": "telepathy"})):
                pass

    trio.run(main)
