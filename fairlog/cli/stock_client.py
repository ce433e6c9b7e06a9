"""confluent-kafka for `produce` and `consume`: loaded when needed, with a sentence if it is not installed.

Records go through a stock client and not through one of our own: compression, idempotence, transactions and
consumer groups, against any broker, for years (docs/decisions/0028-the-command-line-uses-a-stock-client.md). It is in
the extra `client`, because a node needs none.
"""

from __future__ import annotations

import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fairlog.cli import client_properties
from fairlog.cli.client import CLIENT_ID
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address

if TYPE_CHECKING:
    import confluent_kafka

CONNECT_AGAIN_MS = 100


def load(command: str) -> ModuleType:
    """The package confluent_kafka. Raises ClientError that says how to install it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise ClientError(
            f"{command} needs the package confluent-kafka: pip install 'fairlog[client]' ({error})"
        ) from error
    return confluent_kafka


def settings(address: Address, **more: object) -> dict[str, Any]:
    """What producers and consumers have in common."""
    return {
        "bootstrap.servers": str(address),
        "client.id": CLIENT_ID,
        "reconnect.backoff.ms": CONNECT_AGAIN_MS,
        "reconnect.backoff.max.ms": 10 * CONNECT_AGAIN_MS,
        # librdkafka writes to stderr what also comes as an error, over and over again; a fatal one at any level.
        "log_level": 0,
        "logger": _nobody(),
        **client_properties.current().for_librdkafka,
        **more,
    }


def _nobody() -> logging.Logger:
    logger = logging.Logger("librdkafka")  # not one of `getLogger`: without handlers it says nothing
    logger.disabled = True
    return logger


def sentence(error: confluent_kafka.KafkaError | None) -> str:
    """What went wrong, in librdkafka's words, with the protocol's name for it."""
    return "an unknown error" if error is None else f"{error.name()}: {error.str()}"
