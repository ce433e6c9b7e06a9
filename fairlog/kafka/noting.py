"""Lines of the audit trail about what clients of Kafka's protocol ask for (`fairlog.trail`)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from fairlog import trail
from fairlog.kafka.api import Context
from fairlog.kafka.errors import ErrorCode
from fairlog.trail import UNKNOWN, Action, Actor

_NOT_KNOWN = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Answers after which the change may stand, or may still be made."""


def note(context: Context, action: Action, on: str, error: ErrorCode, *, often: bool = False, **more: object) -> None:
    """The client has asked for this, and is answered this. `on` may be any text."""
    refused = None if error is ErrorCode.NONE else error.name
    if error in _NOT_KNOWN:
        refused, more = UNKNOWN, {**more, "reason": error.name}
    trail.note(_actor(context), action, on, refused, often=often, **more)


@contextmanager
def noting(context: Context, action: Action, on: str, **more: Any) -> Generator[Callable[[ErrorCode], None]]:
    """Around a change, whose outcome the function is told: if it is cut short, the line says that it is not known."""
    outcomes: list[ErrorCode] = []
    try:
        yield outcomes.append
    except BaseException:
        trail.note(_actor(context), action, on, UNKNOWN, **more)
        raise
    for outcome in outcomes:
        note(context, action, on, outcome, **more)


def _actor(context: Context) -> Actor:
    client = context.client
    return Actor(str(client.principal), client.peer, "kafka", client.client_id)
