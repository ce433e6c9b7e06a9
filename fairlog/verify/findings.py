"""What the checkers find: violations, and what they have looked at. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from fairlog_types import LogId


class Kind(StrEnum):
    """How `fairlog audit` sorts and counts what it finds; docs/audit.md says what each means."""

    MISSING = "missing"
    DAMAGED_BATCH = "damaged batch"
    WRONG_KEY = "wrong key"
    HOLE = "hole"
    OFFSET_TWICE = "offset twice"
    WRONG_END = "wrong end"
    CONTROL_BATCH = "control batch"
    SEQUENCE = "sequence"
    BATCH_TWICE = "batch twice"
    TORN_TRANSACTION = "torn transaction"
    STRANGER = "stranger in a transaction"
    UNKNOWN_TRANSACTION = "transaction of nobody"
    CONTRADICTING_PLACES = "contradicting places"
    PLACES_OVERLAP = "places overlap"
    PLACE_BEYOND_THE_END = "place behind the end"
    WRONG_ORDER = "wrong order"
    LANES_APART = "lanes apart"
    HALF_A_TRANSACTION = "half a transaction"
    APPLY_NUMBERS_DIFFER = "apply numbers differ"
    WRONG_COUNT = "records lost or added"
    NEVER_COMMITTED = "never committed"
    WITHOUT_MARKER = "transaction without its marker"
    OLDER_EPOCH = "older epoch"
    DAMAGED_TRANSACTIONS = "damaged transactions"


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be. `str` gives one sentence."""

    where: str
    """The file or log, and the byte, position or offset in it."""
    what: str
    invariant: int | None = None
    """Its number in docs/invariants.md; None for what a page of docs/formats promises."""
    kind: Kind | None = None
    """None for what only `fairlog verify` tells: the audit does not look at it, or tells it in another way."""
    log: LogId | None = None
    """The log that it lies in, if `where` does not begin with one."""
    offset: int | None = None
    """Where in the log."""

    def __str__(self) -> str:
        named = "" if self.invariant is None else f" (invariant {self.invariant})"
        return f"{self.where}: {self.what}{named}"


@dataclass(slots=True)
class Summary:
    """What was looked at, by name, and what could not be."""

    counts: Counter[str] = field(default_factory=Counter[str])
    unchecked: list[str] = field(default_factory=list[str])
    """Sentences."""
