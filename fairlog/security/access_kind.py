"""What the cluster's store keeps for security, by kind: users, ACLs, quotas. Pure.

A kind is a table: names, and a value for each. The store knows none of them but by this (`fairlog.cluster.records`),
so each stands with the rules that it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class AccessKind(Generic[V]):
    """A table of the store."""

    name: str
    """In keys of the store: lower case, without a slash. It never changes."""
    encode: Callable[[V], object]
    """A value as what CBOR can hold."""
    decode: Callable[[str, object], V]
    """The value of a name, of what was encoded. Raises ValueError if nothing encodes so; the message has no secret."""
