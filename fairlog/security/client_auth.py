"""Whether a listener asks clients for a certificate: Kafka's `ssl.client.auth`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ClientAuth(Enum):
    """What is asked of a client in the TLS handshake."""

    NONE = "none"
    REQUESTED = "requested"
    """A client may show a certificate; one that is shown must be good."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ClientAuthByListener:
    """What each listener asks for."""

    otherwise: ClientAuth = ClientAuth.NONE
    """Of listeners that are not named."""
    named: tuple[tuple[str, ClientAuth], ...] = ()
    """Of those that are, by name."""

    def of(self, listener: str) -> ClientAuth:
        """What the listener of this name asks for."""
        return next((auth for name, auth in self.named if name == listener), self.otherwise)

    def __str__(self) -> str:
        return ",".join(f"{name}:{auth.value}" for name, auth in self.named) or self.otherwise.value
