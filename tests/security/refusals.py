"""How stock clients hear that they are not let in: by an error that librdkafka tells when it is polled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from confluent_kafka import KafkaError

TOLD_WITHIN_S = 15.0


class Polled(Protocol):
    """Any of librdkafka's clients."""

    def poll(self, timeout: float, /) -> object: ...


def poll_until_told(client: Polled, errors: Sequence[KafkaError]) -> None:
    """Until one of the errors that the client's `error_cb` has noted is a refused sign-in, or it is too late."""
    deadline = time.monotonic() + TOLD_WITHIN_S
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors} and time.monotonic() < deadline:
        client.poll(0.1)
