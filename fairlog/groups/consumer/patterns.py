"""Which topics the patterns of strangers match (`fairlog.patterns`).

What matches is remembered by pattern: when topics come, only the new names are matched. Of more than `PATTERNS_MAX`
patterns those that were asked about least recently are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from fairlog.patterns import Pattern

PATTERNS_MAX = 1_000
"""Remembered at a time."""


@dataclass(slots=True)
class _Known:
    compiled: Pattern
    looked_at: frozenset[str] | None = None
    """The names among which `matching` are; None until that is found for the first time."""
    matching: frozenset[str] = frozenset()


class Patterns:
    """What each pattern matches."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def accept_untrusted(self, pattern: str) -> bool:
        """Make sure that `matching` takes this pattern; whether no names were looked at yet. Raises BadPattern."""
        return self._entry(pattern).looked_at is None

    def look_at(self, pattern: str, names: Collection[str]) -> frozenset[str]:
        """Those of the names that match. Changes nothing, and may run in a thread."""
        compiled = Pattern(pattern)
        return frozenset(name for name in names if compiled.matches(name))

    def note(self, pattern: str, matching: frozenset[str], names: frozenset[str]) -> None:
        """What `look_at` has found among these names."""
        known = self._entry(pattern)
        known.matching, known.looked_at = matching, names

    def matching(self, pattern: str, names: frozenset[str]) -> frozenset[str]:
        """Those of all topic names that match; for a pattern that was accepted."""
        known = self._entry(pattern)
        if names != known.looked_at:
            new = (name for name in names - (known.looked_at or frozenset()) if known.compiled.matches(name))
            known.matching = (known.matching & names).union(new)
            known.looked_at = names
        return known.matching

    def _entry(self, pattern: str) -> _Known:
        known = self._known.get(pattern)
        if known is None:
            known = self._known[pattern] = _Known(Pattern(pattern))
            if len(self._known) > PATTERNS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(pattern)
        return known
