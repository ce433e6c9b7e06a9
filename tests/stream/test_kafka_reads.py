"""librdkafka's consumer behind several readers, one after the other, on the broker that is inside librdkafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer
from peers.mock import Mock

from stream import kafka_reads
from stream.engine import StreamPosition
from stream.kafka_health import HealthWatch
from stream.kafka_reads import Fetcher, Shelf
from stream.kafka_settings import KafkaEngineSettings
from stream.to_loop import ToLoop

TOPIC = "orders.shard-0"
ENTRIES, ENTRY_BYTES = 12, 1000


@pytest.fixture
async def fetcher(tmp_path: Path) -> AsyncIterator[Fetcher]:
    """Of a broker that has the topic, with ENTRIES in it."""
    broker = Mock(tmp_path)
    broker.start()
    broker.create_topics([TOPIC])
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "log_level": 0})
    for _ in range(ENTRIES):
        producer.produce(TOPIC, bytes(ENTRY_BYTES), partition=0)
        producer.flush()
    to_loop = ToLoop()
    settings = KafkaEngineSettings(bootstrap_servers=broker.address, cluster="orders")
    fetcher = Fetcher(settings, to_loop, HealthWatch())
    yield fetcher
    to_loop.close()
    await trio.to_thread.run_sync(fetcher.close)
    broker.kill()


async def paused(shelf: Shelf) -> None:
    """Nothing is taken of it, so it is full at some time."""
    with trio.fail_after(30):
        while not shelf.paused:  # noqa: ASYNC110 - a thread pauses it
            await trio.sleep(0.01)


async def all_of(fetcher: Fetcher, shelf: Shelf) -> None:
    """Go on until everything is there."""
    with trio.fail_after(30):
        while len(shelf.entries) < ENTRIES:
            if shelf.paused:
                with shelf.lock:
                    shelf.held_bytes = 0
                await fetcher.resume(shelf)
            await trio.sleep(0.01)


@pytest.mark.parametrize("closes", [True, False])
async def test_partition_that_was_paused_is_fetched_by_its_next_reader(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    """librdkafka would remember the pause. The first one closes, or has the partition assigned anew."""
    monkeypatch.setattr(kafka_reads, "HELD_BYTES_MAX", 3 * ENTRY_BYTES)
    first = Shelf(TOPIC)
    await fetcher.assign(first, StreamPosition(0))
    await paused(first)
    if closes:
        await fetcher.unassign(first)
    following = Shelf(TOPIC) if closes else first
    await fetcher.assign(following, StreamPosition(0))
    await all_of(fetcher, following)
    assert [entry.position for entry in following.entries] == list(range(ENTRIES))
