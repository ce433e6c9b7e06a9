"""What a listener is to those who connect to it: its name, and how its connections are protected. Pure.

Names and protocols are Kafka's (`listeners` and `listener.security.protocol.map`, KIP-103). A broker tells a client the
addresses of the listener that the client came in by, so that who came from outside is sent to addresses outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class SecurityProtocol(Enum):
    """Kafka's security protocols, by the names that settings and clients have for them."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    def __str__(self) -> str:
        return self.value

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

    def __str__(self) -> str:
        """As a map of protocols has it."""
        return f"{self.name}:{self.protocol.value}"


PLAIN = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT)
"""The listener of a node that was told nothing else."""


class UnknownProtocol(ValueError):
    """A listener's name is no protocol, and is mapped to none. The message says what to do."""


def listener_named(name: str, protocols: Sequence[Listener]) -> Listener:
    """The listener of this name, by the map of protocols; a name that is a protocol needs none.

    Raises UnknownProtocol.
    """
    found = next((each for each in protocols if each.name == name), None)
    if found is not None:
        return found
    if name in SecurityProtocol.__members__:
        return Listener(name, SecurityProtocol[name])
    known = ", ".join(SecurityProtocol.__members__)
    raise UnknownProtocol(
        f"the listener {name} has no security protocol: map it to one of {known}, as in security.protocols = "
        f'"{name}:SSL"'
    )
