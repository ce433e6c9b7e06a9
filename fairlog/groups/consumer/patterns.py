"""Topic patterns of strangers, matched in linear time: RE2, the engine that Kafka uses as RE2/J.

A pattern comes from a client and may be made to take exponential time in a backtracking engine, such as Python's. RE2
takes time linear in the name, and refuses a pattern whose program would be large. Matching is against the whole name.

What matches is remembered by pattern: when topics come, only the new names are matched. Patterns that no one has
asked about for a while are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, cast

import re2  # pyright: ignore[reportMissingTypeStubs]

PATTERN_BYTES_MAX = 16_384
"""Of a pattern in UTF-8."""

PROGRAM_BYTES_MAX = 1 << 20
"""What RE2 may take for one pattern's program and its cache; its own default is 8 MiB."""

PATTERNS_MAX = 1_000
"""Remembered at a time."""


class BadPattern(ValueError):
    """The pattern is not one of RE2's, or too large; the message says why."""


class _Compiled(Protocol):
    def fullmatch(self, text: str) -> object | None: ...


_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = PROGRAM_BYTES_MAX


def _compile(pattern: str) -> _Compiled:
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise BadPattern(f"it takes more than {PATTERN_BYTES_MAX} bytes")
    try:
        return cast("_Compiled", re2.compile(pattern, _OPTIONS))  # pyright: ignore[reportUnknownMemberType]
    except re2.error as error:  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        reason = cast("RuntimeError", error).args[0]
        raise BadPattern(reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)) from None


@dataclass(slots=True)
class _Known:
    compiled: _Compiled
    looked_at: frozenset[str] = frozenset()
    matching: frozenset[str] = frozenset()


class Patterns:
    """What each pattern matches."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def accept_untrusted(self, pattern: str) -> bool:
        """Make sure that `matching` takes this pattern; whether it was not known. Raises BadPattern."""
        is_new = pattern not in self._known
        self._entry(pattern)
        return is_new

    def look_at(self, pattern: str, names: Collection[str]) -> frozenset[str]:
        """Those of the names that match. Changes nothing, and may run in a thread."""
        compiled = _compile(pattern)
        return frozenset(name for name in names if compiled.fullmatch(name) is not None)

    def note(self, pattern: str, matching: frozenset[str], names: frozenset[str]) -> None:
        """What `look_at` has found among these names."""
        known = self._entry(pattern)
        known.matching, known.looked_at = matching, names

    def matching(self, pattern: str, names: frozenset[str]) -> frozenset[str]:
        """Those of all topic names that match; for a pattern that was accepted."""
        known = self._entry(pattern)
        if names != known.looked_at:
            new = (name for name in names - known.looked_at if known.compiled.fullmatch(name) is not None)
            known.matching = (known.matching & names).union(new)
            known.looked_at = names
        return known.matching

    def _entry(self, pattern: str) -> _Known:
        known = self._known.get(pattern)
        if known is None:
            known = self._known[pattern] = _Known(_compile(pattern))
            if len(self._known) > PATTERNS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(pattern)
        return known
