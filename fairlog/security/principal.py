"""Who a client is, as its connection has shown it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

USER = "User"
"""The kind of every principal that a listener yields, as in Kafka."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whom ACLs and quotas name."""

    kind: str
    name: str

    def __str__(self) -> str:
        """As ACLs have it: `User:alice`."""
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""Who has shown nothing, as Kafka calls it."""
