"""librdkafka: that it is there, what all its handles are told, and its words for what went wrong.

confluent-kafka is in the extra `cluster`, since a node with journals of its own needs none. The engine's other modules
have its names from here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stream.kafka_settings import OVERHEAD_BYTES, KafkaEngineSettings, SettingsRefused

try:
    from confluent_kafka import Consumer as Consumer
    from confluent_kafka import IsolationLevel as IsolationLevel
    from confluent_kafka import KafkaError as KafkaError
    from confluent_kafka import KafkaException as KafkaException
    from confluent_kafka import Message as Message
    from confluent_kafka import Producer as Producer
    from confluent_kafka import TopicCollection as TopicCollection
    from confluent_kafka import TopicPartition as TopicPartition
    from confluent_kafka.admin import AdminClient as AdminClient
    from confluent_kafka.admin._config import ConfigResource as ConfigResource
    from confluent_kafka.admin._listoffsets import OffsetSpec as OffsetSpec
    from confluent_kafka.cimpl import NewTopic as NewTopic
except ImportError as error:
    raise ImportError(
        f"journals on Kafka need the package confluent-kafka: pip install 'fairlog[cluster]' ({error})"
    ) from error

POLL_S = 0.25
"""How long a thread waits for librdkafka to say something; then it looks whether it is to end. confluent-kafka itself
waits in steps of 0.2 s."""

UNKNOWN_TOPIC = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,  # pyright: ignore[reportPrivateUsage]
    KafkaError._UNKNOWN_PARTITION,  # pyright: ignore[reportPrivateUsage]
)
"""Codes of brokers, and of librdkafka, that know no such topic."""

_CONNECT_AGAIN_MS = 100
_WAITS_AGAIN_MS_MAX = 1000


def common(settings: KafkaEngineSettings, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """What producer, consumer and admin client have in common. `on_error` is called in whatever thread polls."""
    return {
        **settings.passed_on,
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": f"fairlog-{settings.cluster}" + ("" if settings.node is None else f".node-{settings.node}"),
        # A topic that somebody deleted is not to come back with the brokers' defaults.
        "allow.auto.create.topics": False,
        "message.max.bytes": settings.entry_bytes_max + OVERHEAD_BYTES,
        "receive.message.max.bytes": max(100_000_000, 2 * settings.entry_bytes_max + 60_000_000),
        "socket.timeout.ms": _ms(settings.request_timeout_s),
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": _CONNECT_AGAIN_MS,
        "reconnect.backoff.max.ms": _WAITS_AGAIN_MS_MAX,
        "retry.backoff.ms": _CONNECT_AGAIN_MS,
        "retry.backoff.max.ms": _WAITS_AGAIN_MS_MAX,
        "log_level": 0,  # what it writes to stderr comes as an error too
        "error_cb": on_error,
    }


def producer_config(settings: KafkaEngineSettings, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """For appends: in order, each once as far as a producer can know, at once, answered by all replicas in sync."""
    return common(settings, on_error) | {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,
        "compression.type": "none",
        "message.timeout.ms": _ms(settings.append_timeout_s),
        # What a broker waits for its replicas, before the connection is given up as hung.
        "request.timeout.ms": max(1, _ms(settings.request_timeout_s) * 3 // 4),
    }


def consumer_config(settings: KafkaEngineSettings, on_error: Callable[[KafkaError], None]) -> dict[str, Any]:
    """For reading partitions that are assigned one by one, everything in them, from offsets that we know.

    librdkafka wants a group's name. No member joins it, and nothing is committed.
    """
    return common(settings, on_error) | {
        "group.id": f"fairlog-{settings.cluster}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_uncommitted",
        "queued.max.messages.kbytes": _QUEUED_KIB_MAX,
        "fetch.queue.backoff.ms": _FETCH_AGAIN_MS,
        "fetch.error.backoff.ms": _CONNECT_AGAIN_MS,
    }


_QUEUED_KIB_MAX = 16 << 10
_FETCH_AGAIN_MS = 20


def refused(error: KafkaException) -> SettingsRefused:
    """What librdkafka says when it is made with settings that it cannot use."""
    return SettingsRefused(f"librdkafka cannot use the settings that are passed on: {sentence(error)}")


def sentence(error: BaseException | KafkaError | None) -> str:
    """What went wrong, in librdkafka's words, with the protocol's name for it."""
    if isinstance(error, KafkaException):
        error = error.args[0] if error.args else None
    return f"{error.name()}: {error.str()}" if isinstance(error, KafkaError) else str(error)


def code(error: BaseException) -> int | None:
    """The code of an exception of librdkafka."""
    inner = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return inner.code() if isinstance(inner, KafkaError) else None


def _ms(seconds: float) -> int:
    return max(10, round(seconds * 1000))
