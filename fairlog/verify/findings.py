"""What a verification finds: violations, and what it has looked at. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be. `str` gives one sentence."""

    where: str
    """The file or log, and the byte, position or offset in it."""
    what: str
    invariant: int | None = None
    """Its number in docs/invariants.md; None for what a page of docs/formats promises."""

    def __str__(self) -> str:
        named = "" if self.invariant is None else f" (invariant {self.invariant})"
        return f"{self.where}: {self.what}{named}"


@dataclass(slots=True)
class Summary:
    """What was looked at, by name, and what could not be."""

    counts: Counter[str] = field(default_factory=Counter[str])
    unchecked: list[str] = field(default_factory=list[str])
    """Sentences."""
