"""What a SASL mechanism is here: an exchange of messages, at whose end somebody is known, or is not. Pure.

    client ── message ──▶ Exchange.answer ──▶ Challenge: go on │ SignedIn │ raises Refused

The messages' frames are the protocols' (`fairlog.kafka`, `fairlog.native`); the state around an exchange is a
`SignIn`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Refused(Exception):
    """The client has not shown who it is. `reason` is for the log alone: a client is told the same of every reason."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.name = name
        """Whom it claims to be, as far as that is known."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The exchange goes on."""

    message: bytes


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The exchange has ended well."""

    message: bytes
    """The last one, for the client."""
    name: str
    """Whom the client has shown to be."""
    still_holds: Callable[[], bool]
    """Whether what it has shown this by is still there: a user may be deleted, or get another password."""
    expires_ms: int | None = None
    """Unix time in milliseconds until which it holds at most."""


class Exchange(Protocol):
    """One exchange. After a `SignedIn` or a `Refused` it is over."""

    async def answer(self, message: bytes) -> Challenge | SignedIn:
        """The answer to the client's next message, untrusted. Raises Refused. It takes a time that is bounded."""
        ...


def shown(name: str) -> str:
    """A name for a log line, however long it is."""
    return name if len(name) <= _SHOWN_CHARACTERS else name[:_SHOWN_CHARACTERS] + "…"


_SHOWN_CHARACTERS = 60
