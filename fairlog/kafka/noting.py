"""Lines of the audit trail about what clients of Kafka's protocol ask for (`fairlog.trail`)."""

from __future__ import annotations

from fairlog import trail
from fairlog.kafka.api import Context
from fairlog.kafka.errors import ErrorCode
from fairlog.trail import Action, Actor


def note(context: Context, action: Action, on: str, error: ErrorCode, *, often: bool = False, **more: object) -> None:
    """The client has asked for this, and is answered this. What `on` is called may be any text of the client's."""
    client = context.client
    actor = Actor(str(client.principal), client.peer, "kafka", client.client_id)
    trail.note(actor, action, on, None if error is ErrorCode.NONE else error.name, often=often, **more)
