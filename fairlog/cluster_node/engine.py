"""The engine that the settings name: a Kafka cluster, and how to connect to it.

librdkafka is imported here and not before: a node whose journals are in files needs none of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import trio

from fairlog.config import ConfigError, Settings
from stream.engine import EngineAway, Stream, WeakStream
from stream.kafka_settings import KafkaEngineSettings, SettingsRefused

if TYPE_CHECKING:
    from stream.kafka_engine import KafkaEngine

log = structlog.get_logger("fairlog.engine")

AWAY_PAUSE_S = 1.0
CHECK_EVERY_S = 60.0
APPEND_FAILOVERS = 5
APPEND_S_MIN = 10.0
"""So many failover times, and at least so long, an owner waits for an append. Then it gives up, and clients look for
another owner. It is longer than Kafka takes to replace a broker that has died (`broker.session.timeout.ms`, 9 s): the
owner need not change with it."""


@asynccontextmanager
async def open_engine(settings: Settings) -> AsyncGenerator[KafkaEngine]:
    """The engine of journal.engine. Raises ConfigError."""
    try:
        from stream.kafka_engine import open_kafka_engine
    except ImportError as error:
        raise ConfigError(
            "journal.engine (--journals) needs the package confluent-kafka: install fairlog[cluster]"
        ) from error
    try:
        opening = open_kafka_engine(engine_settings(settings))
    except SettingsRefused as error:
        raise ConfigError(f"the settings of the engine: {error}") from error
    async with opening as engine:
        yield engine


def engine_settings(settings: Settings) -> KafkaEngineSettings:
    """What the engine is told. Raises ConfigError, SettingsRefused."""
    assert settings.journal.engine is not None
    file = settings.engine.client_properties
    return KafkaEngineSettings(
        bootstrap_servers=settings.journal.engine,
        cluster=settings.cluster.name,
        node=settings.node_id,
        replicas=settings.engine.replicas,
        min_insync_replicas=settings.engine.min_insync_replicas,
        flush_each_entry=settings.engine.flush_each_entry,
        append_timeout_s=append_timeout_s(settings),
        passed_on={} if file is None else read_properties(file),
    )


def append_timeout_s(settings: Settings) -> float:
    """After this an append that was not answered has an unknown outcome, and its owner gives up."""
    return max(APPEND_S_MIN, APPEND_FAILOVERS * settings.cluster.failover_ms / 1000)


def read_properties(file: Path) -> dict[str, str]:
    """NAME=VALUE lines; empty ones, and those that begin with `#`, are passed over. Raises ConfigError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"engine.client_properties: {file} cannot be read: {error}") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"engine.client_properties: line {number} of {file} is not NAME=VALUE")
        properties[name.strip()] = value.strip()
    return properties


async def keep_checked(engine: KafkaEngine, names: Callable[[], Collection[str]]) -> None:
    """Look now and then whether the engine still keeps these streams as the settings want it; until cancelled.

    Raises ConfigError for one that it does not: what is answered is not as safe any more as was promised.
    """
    while True:
        await trio.sleep(CHECK_EVERY_S)
        for name in names():
            try:
                await engine.check(name)
            except EngineAway:
                continue  # others say so
            except WeakStream as weak:
                raise ConfigError(f"the engine is not as the settings want it any more: {weak}") from weak


async def open_stream(engine: KafkaEngine, name: str) -> Stream:
    """A stream of the engine; waits for the engine while it is away. Raises ConfigError for one that is too weak."""
    said = False
    while True:
        try:
            return await engine.open_stream(name)
        except EngineAway as away:
            if not said:  # once, not for each try
                log.warning("waits for the engine", stream=name, reason=str(away))
            said = True
            await trio.sleep(AWAY_PAUSE_S)
        except (WeakStream, SettingsRefused) as error:
            raise ConfigError(f"the engine is not as the settings want it: {error}") from error
