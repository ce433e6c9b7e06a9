"""Appends to Kafka: one idempotent producer for all streams, and the thread that hears of deliveries.

    loop      append ─▶ produce ─▶ librdkafka's queue ─▶ leader ─▶ its replicas
    thread                                   poll ◀── delivery reports ──┘
    loop      done(position | Unknown) ◀── one wake-up for many

- *A position is answered if Kafka confirmed an offset*, with acks=all. Everything else is Unknown: a time-out, a full
  queue, an error of the producer, and a success without an offset (a broker that knows an append as a repetition of
  one that it has forgotten the place of).
- *Order*: an idempotent producer numbers what it sends to a partition, and the leader takes it in this order. It
  repeats by itself what may be lost, and leaders know repetitions. What it cannot repeat in time it reports, and then
  begins to number anew: what was under way may be there twice. The fold knows such copies for what they are.
- *Fatal errors*: a producer that lost count refuses all further appends. The thread makes a new one, and has the old
  one report what it holds. Nothing is appended a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import structlog

from stream.engine import StreamPosition, Unknown
from stream.kafka_client import (
    POLL_S,
    UNKNOWN_TOPIC,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    code,
    producer_config,
    refused,
    sentence,
)
from stream.kafka_health import HealthWatch
from stream.kafka_settings import KafkaEngineSettings
from stream.to_loop import ToLoop

Done = Callable[[StreamPosition | Unknown], None]

_DROPPING_POLLS, _DROPPING_S = 100, 0.05

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Appender:
    """Made and used on the loop; `close` blocks, and is for a thread."""

    def __init__(self, settings: KafkaEngineSettings, to_loop: ToLoop, health: HealthWatch) -> None:
        """Raises SettingsRefused."""
        self._config: dict[str, Any] = producer_config(settings, self._on_error)
        self._to_loop = to_loop
        self._health = health
        self._fatal: str | None = None
        self._closing = False
        try:
            self._producer = Producer(self._config)
        except KafkaException as error:
            raise refused(error) from error
        self._thread = Thread(target=self._run, name="kafka-appends", daemon=True)
        self._thread.start()

    def append(self, topic: str, data: bytes, done: Done) -> None:
        """Begin to append; `done` is called once, later, on the loop."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._to_loop.put(lambda: self._settle(len(data), done, _outcome(error, message)))

        try:
            self._producer.produce(topic, data, partition=0, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            unknown = Unknown(sentence(error), code(error) in UNKNOWN_TOPIC)
            self._to_loop.put(lambda: self._settle(len(data), done, unknown))

    def close(self) -> None:
        """Drop what is under way, end the thread and the producer. Blocks for up to half a second."""
        self._closing = True
        self._thread.join()
        _drop(self._producer)
        del self._producer

    def _settle(self, size: int, done: Done, outcome: StreamPosition | Unknown) -> None:
        if isinstance(outcome, Unknown):
            self._health.unknown(outcome.reason)
        else:
            self._health.appended(size)
        done(outcome)

    def _run(self) -> None:
        try:
            self._run_until_closed()
        except BaseException as bug:
            self._to_loop.failed(bug)
            raise

    def _run_until_closed(self) -> None:
        while not self._closing:
            self._producer.poll(POLL_S)
            if self._fatal is not None:
                _log.warning("stream.producer_replaced", reason=self._fatal)
                self._fatal = None
                old, self._producer = self._producer, Producer(self._config)
                _drop(old)
                del old  # with its threads and connections

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = sentence(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # pyright: ignore[reportPrivateUsage]
            said = sentence(error)
            self._to_loop.put(lambda: self._health.away(said))


def _outcome(error: KafkaError | None, message: Message) -> StreamPosition | Unknown:
    if error is not None:
        return Unknown(sentence(error), error.code() in UNKNOWN_TOPIC)
    offset = message.offset()
    if offset is None or offset < 0:
        return Unknown("the leader knows the entry, but not any more where it lies")
    return StreamPosition(offset)


def _drop(producer: Producer) -> None:
    """Have all that it holds reported as failed."""
    producer.purge()
    for _ in range(_DROPPING_POLLS):
        if not len(producer):
            return
        producer.poll(_DROPPING_S)
