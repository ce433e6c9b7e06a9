"""What the contract suite runs on: an engine, reached by several nodes, and the clock that its tests run by."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

import trio
import trio.testing

from stream.engine import Engine, EntryGone, Reader, StoredEntry, Stream, StreamCutOff, StreamPosition, Unknown
from stream.kafka_engine import open_kafka_engine
from stream.kafka_settings import KafkaEngineSettings
from tests.stream.model_engine import CALM, Faults, ModelCluster, open_model

TRIAL_S_MAX = 100
"""By the clock of the rig."""


class World(Protocol):
    """One engine, empty, for one test."""

    def open_engine(self, node: str) -> AbstractAsyncContextManager[Engine]:
        """As this node."""
        ...

    async def delete(self, stream: str) -> None:
        """As somebody may who is not asked."""
        ...


class Rig(Protocol):
    """A kind of engine. `str` names it."""

    def run(self, trial: Callable[[World], Awaitable[None]], *, timeout_s: float = TRIAL_S_MAX) -> None:
        """Run a test in a world of its own."""
        ...


@dataclass(frozen=True)
class ModelRig:
    """The engine in memory, on a clock that jumps."""

    faults: Faults = CALM
    seed: int = 0

    def __str__(self) -> str:
        return "model"

    def run(self, trial: Callable[[World], Awaitable[None]], *, timeout_s: float = TRIAL_S_MAX) -> None:
        async def main() -> None:
            with trio.fail_after(timeout_s):
                async with open_model(random.Random(self.seed), self.faults) as cluster:
                    await trial(ModelWorld(cluster))

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@dataclass(frozen=True)
class ModelWorld:
    cluster: ModelCluster

    @asynccontextmanager
    async def open_engine(self, node: str) -> AsyncGenerator[Engine]:
        engine = self.cluster.engine(node)
        try:
            yield engine
        finally:
            engine.close()

    async def delete(self, stream: str) -> None:
        self.cluster.delete(stream)


@dataclass(frozen=True)
class KafkaRig:
    """A cluster that runs already; each world has topics of its own."""

    name: str
    settings: KafkaEngineSettings
    numbers: count[int]

    def __str__(self) -> str:
        return self.name

    def run(self, trial: Callable[[World], Awaitable[None]], *, timeout_s: float = TRIAL_S_MAX) -> None:
        async def main() -> None:
            settings = replace(self.settings, cluster=f"{self.settings.cluster}-{next(self.numbers)}")
            with trio.fail_after(timeout_s):
                await trial(KafkaWorld(settings))

        trio.run(main)


@dataclass(frozen=True)
class KafkaWorld:
    settings: KafkaEngineSettings

    def open_engine(self, node: str) -> AbstractAsyncContextManager[Engine]:
        return open_kafka_engine(self.settings)

    async def delete(self, stream: str) -> None:
        from tests.stream.kafka_admin import delete_topic

        await trio.to_thread.run_sync(delete_topic, self.settings.bootstrap_servers, self.settings.topic(stream))


async def append(stream: Stream, data: bytes) -> StreamPosition | Unknown:
    """Append, and wait for what came of it."""
    (outcome,) = await append_all(stream, [data])
    return outcome


async def append_all(stream: Stream, entries: list[bytes]) -> list[StreamPosition | Unknown]:
    """Begin all at once; their outcomes, in the order of the entries."""
    outcomes: dict[int, StreamPosition | Unknown] = {}
    settled = trio.Event()

    def done(number: int, outcome: StreamPosition | Unknown) -> None:
        assert number not in outcomes, "an outcome is told once"
        outcomes[number] = outcome
        if len(outcomes) == len(entries):
            settled.set()

    for number, data in enumerate(entries):
        stream.append(data, lambda outcome, number=number: done(number, outcome))
    assert not outcomes, "outcomes come later"
    await settled.wait()
    return [outcomes[number] for number in range(len(entries))]


def known(outcome: StreamPosition | Unknown) -> StreamPosition:
    """Where an entry lies, on an engine that nothing happens to."""
    assert not isinstance(outcome, Unknown), outcome
    return outcome


async def read_until(reader: Reader, end: StreamPosition) -> list[StoredEntry]:
    """All before `end`, and what came together with the last of it."""
    read: list[StoredEntry] = []
    while not read or read[-1].position < end - 1:
        read += await reader.next()
    return read


async def read_all(stream: Stream) -> list[StoredEntry]:
    """From the start to the end."""
    start, end = await stream.start(), await stream.end()
    if start == end:
        return []
    async with stream.open_reader(start) as reader:
        return await read_until(reader, end)


async def raised_by(reader: Reader) -> EntryGone | StreamCutOff:
    """What a reader raises at last."""
    try:
        while True:
            await reader.next()
    except (EntryGone, StreamCutOff) as error:
        return error
