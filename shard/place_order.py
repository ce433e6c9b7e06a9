"""In which order a restart places again what coordinators say is committed. Pure.

While a shard recovers, each coordinator says *apply* again for everything that it has decided and does not know to be
visible, in the commit order of its groups. A crash may have left the APPLYs of some of it, and of one transaction some
and not others. The order must agree with what is left, and with the order of each group (invariants 6 and 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlog_types import ApplyNumber


@dataclass(frozen=True, slots=True)
class SaidAgain:
    """What one call of `apply` is to place together."""

    group: str
    """Of whose order it is."""
    survived: ApplyNumber | None
    """The number under which some log has placed a part of it; None: no APPLY of it is left."""


def place_order(said: Sequence[SaidAgain]) -> list[int]:
    """The order in which the calls `said` are placed, as indices; they come in their order within each group.

    Those of which some APPLY survived come in the order of their apply numbers, before all others: some log has them
    in that order. But one that stands earlier in a group must come before its successors, whatever survived of it; so
    it counts with the least number of itself and all behind it in its group (invariant 6).
    """
    infinity = float("inf")
    least_behind: dict[str, float] = {}
    keys: list[tuple[float, int]] = []
    for index in range(len(said) - 1, -1, -1):
        one = said[index]
        number = infinity if one.survived is None else one.survived
        least = min(least_behind.get(one.group, infinity), number)
        least_behind[one.group] = least
        keys.append((least, index))
    return [index for _, index in sorted(keys)]
