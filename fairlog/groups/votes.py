"""Which strategy a group uses: one that every member knows, and of those the one that most prefer.

Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable


class Votes:
    """How many members know each strategy ("protocol"). Members are told apart by the caller."""

    __slots__ = ("_knowing", "_members")

    def __init__(self) -> None:
        self._knowing: Counter[str] = Counter()
        self._members = 0

    def enter(self, names: Collection[str]) -> None:
        """A member comes that knows these; no name twice."""
        self._knowing.update(tuple(names))  # a mapping would be taken for counts
        self._members += 1

    def leave(self, names: Collection[str]) -> None:
        """A member goes that came with these."""
        for name in names:  # what the others know is not looked at: it may be much, and all may leave at once
            self._knowing[name] -= 1
            if not self._knowing[name]:
                del self._knowing[name]
        self._members -= 1

    def agrees(self, names: Iterable[str], *, instead_of: Collection[str] | None = None) -> bool:
        """Whether a member that knows `names` could be among the others: if they all know one of them.

        `instead_of` is what the same member came with, if it is in already.
        """
        others = self._members - (instead_of is not None)
        return any(self._knowing[name] - (instead_of is not None and name in instead_of) == others for name in names)

    def choose(self, preferences: Iterable[Iterable[str]]) -> str:
        """The strategy, given each member's in the order of its preference. A draw goes to who comes first."""
        votes: Counter[str] = Counter()
        for preference in preferences:
            # There is one: whoever came agreed with the others on one at least.
            votes[next(name for name in preference if self._knowing[name] == self._members)] += 1
        return votes.most_common(1)[0][0]
