"""What a listener is to those who connect to it: its name, and how its connections are protected. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class SecurityProtocol(Enum):
    """Kafka's security protocols, by the names that settings and clients have for them."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        """Whether a TLS handshake comes first."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def asks_who_it_is(self) -> bool:
        """Whether a client has to sign in by SASL before anything else."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Listener(NamedTuple):
    """Where a connection came in."""

    name: str
    """Kafka's listener name: clients of one listener are told the addresses of this listener."""
    protocol: SecurityProtocol


PLAIN = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT)
"""The listener of a node that was told nothing else."""

SASL_PLAIN = Listener("SASL_PLAINTEXT", SecurityProtocol.SASL_PLAINTEXT)
"""The listener of a node that asks who its clients are."""
