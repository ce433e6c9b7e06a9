"""Appends to Kafka that cannot be answered with a position, without a cluster."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import trio
from confluent_kafka import KafkaError

from stream.engine import StreamPosition, Unknown
from stream.kafka_appends import Appender
from stream.kafka_health import HealthWatch
from stream.kafka_settings import KafkaEngineSettings
from stream.to_loop import ToLoop

SETTINGS = KafkaEngineSettings(
    bootstrap_servers="127.0.0.1:1", cluster="nowhere", entry_bytes_max=1000, append_timeout_s=0.5
)
QUEUED_MAX = 100_000
"""librdkafka's queue.buffering.max.messages."""


@pytest.fixture
async def health() -> HealthWatch:
    return HealthWatch()


@pytest.fixture
async def appender(health: HealthWatch) -> AsyncIterator[Appender]:
    """Of a cluster that is not there."""
    to_loop = ToLoop()
    appender = Appender(SETTINGS, to_loop, health)
    yield appender
    to_loop.close()
    await trio.to_thread.run_sync(appender.close)
    assert "kafka-appends" not in {thread.name for thread in threading.enumerate()}


async def told(appender: Appender, data: bytes) -> StreamPosition | Unknown:
    """What came of an append."""
    outcomes: list[StreamPosition | Unknown] = []
    appender.append("topic", data, outcomes.append)
    assert not outcomes
    with trio.fail_after(30):
        while not outcomes:  # noqa: ASYNC110
            await trio.sleep(0.01)
    (outcome,) = outcomes
    return outcome


async def test_append_that_is_not_answered_in_time_is_unknown(appender: Appender, health: HealthWatch) -> None:
    """And the engine is away since then."""
    outcome = await told(appender, b"data")
    assert isinstance(outcome, Unknown)
    assert "_MSG_TIMED_OUT" in outcome.reason
    assert not health.snapshot().answers
    assert health.snapshot().said
    assert (health.snapshot().appends, health.snapshot().unknown) == (0, 1)


async def test_append_that_is_too_large_is_unknown(appender: Appender) -> None:
    """Librdkafka takes none that no broker would."""
    outcome = await told(appender, bytes(SETTINGS.entry_bytes_max + 5000))
    assert isinstance(outcome, Unknown)
    assert "MSG_SIZE_TOO_LARGE" in outcome.reason


@pytest.mark.slow
async def test_append_that_finds_the_queue_full_is_unknown(health: HealthWatch) -> None:
    """At once; those that are in the queue still wait, and are not told when the engine is closed."""
    to_loop = ToLoop()
    appender = Appender(replace(SETTINGS, append_timeout_s=60), to_loop, health)
    outcomes: list[StreamPosition | Unknown] = []
    for _ in range(QUEUED_MAX + 10):
        appender.append("topic", b"x", outcomes.append)
    await trio.sleep(0.1)
    to_loop.close()
    await trio.to_thread.run_sync(appender.close)
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Unknown)]
    assert len(reasons) == len(outcomes) == 10
    assert all("Queue full" in reason for reason in reasons), reasons


async def test_producer_with_a_fatal_error_is_replaced(appender: Appender) -> None:
    """What it held is unknown; what is appended later goes through another one."""
    outcomes: list[StreamPosition | Unknown] = []
    appender.append("topic", b"held", outcomes.append)
    before = appender._producer
    appender._on_error(KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "for a test", True))
    with trio.fail_after(30):
        while not outcomes:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert isinstance(outcomes[0], Unknown)
    assert "_PURGE" in outcomes[0].reason or "_MSG_TIMED_OUT" in outcomes[0].reason
    assert appender._producer is not before
    outcome = await told(appender, b"later")
    assert isinstance(outcome, Unknown)
    assert "_MSG_TIMED_OUT" in outcome.reason
