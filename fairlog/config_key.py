"""How a key of the node's settings is declared: as the field of a dataclass, with what the table says of it.

`fairlog.config` makes the table from these fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyNotes:
    """What the table says of a key, beside its name, type and default."""

    read: Callable[[object], object]
    doc: str
    default_text: str | None


NOTES = "fairlog.config"
"""Where a field's metadata has its KeyNotes."""


def key(default: T, read: Callable[[object], object], doc: str, *, default_text: str | None = None) -> T:
    """Declare a key of the table; `default_text` stands in the docs where the bare default would not tell enough."""
    notes = KeyNotes(read, doc, default_text)
    return dataclasses.field(default=default, metadata={NOTES: notes})
