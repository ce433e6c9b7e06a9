"""How much a proof is to do, how far it is, what comes next, and the table of it all. Pure.

Of the kinds that still miss something the one comes next that is furthest behind: so all four are as far, whenever the
time is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum


class Amount(Enum):
    """What is counted, as a slice's counts name it."""

    RECOVERIES = "simulated crash recoveries"
    KILLS = "SIGKILLs of a real node"
    IMAGES = "power-loss images"
    OPERATIONS = "client operations checked"


@dataclass(frozen=True, slots=True)
class Kind:
    """A trial that is done in slices. `expected` is what a slice gives of `serves`, about."""

    name: str
    serves: Amount
    wanted: int
    expected: int


KINDS = (
    Kind("simulation", Amount.RECOVERIES, 10_000, 280),
    Kind("kills", Amount.KILLS, 500, 28),
    Kind("images", Amount.IMAGES, 300, 36),
    Kind("history", Amount.OPERATIONS, 200_000, 5_000),
)


@dataclass(slots=True)
class Progress:
    """What has been done so far, and what is under way."""

    seed: str
    kinds: tuple[Kind, ...] = KINDS
    counts: Counter[str] = field(default_factory=Counter[str])
    seconds: Counter[str] = field(default_factory=Counter[str])
    """Of slices that have ended, by kind."""
    begun: Counter[str] = field(default_factory=Counter[str])
    running: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])
    """Slices that have found something, by their seeds."""
    undecided: list[str] = field(default_factory=list[str])
    """Slices without a verdict."""

    def begin(self) -> tuple[Kind, str] | None:
        """The next slice's kind and seed, counted as under way; None if nothing is missing that is not under way."""
        missing = [kind for kind in self.kinds if self._share(kind) < 1]
        if not missing:
            return None
        kind = min(missing, key=self._share)
        seed = f"{self.seed}.{kind.name}.{self.begun[kind.name]}"
        self.begun[kind.name] += 1
        self.running[kind.name] += 1
        return kind, seed

    def end(self, kind: Kind, seconds: float, counts: Mapping[str, int]) -> None:
        """A slice is over; an undecided one has counted nothing."""
        self.running[kind.name] -= 1
        self.seconds[kind.name] += round(seconds)
        self.counts.update(counts)

    def _share(self, kind: Kind) -> float:
        return (self.counts[kind.serves.value] + self.running[kind.name] * kind.expected) / kind.wanted

    @property
    def complete(self) -> bool:
        return all(self.counts[kind.serves.value] >= kind.wanted for kind in self.kinds)

    def table(self) -> Iterator[str]:
        """Lines of markdown."""
        yield "| amount | wanted | done | slices | seconds | seeds |"
        yield "|---|---:|---:|---:|---:|---|"
        for kind in self.kinds:
            done, slices = self.counts[kind.serves.value], self.begun[kind.name]
            seeds = f"{self.seed}.{kind.name}.0 to .{slices - 1}" if slices else "–"
            seconds = self.seconds[kind.name]
            yield f"| {kind.serves.value} | {kind.wanted:,} | {done:,} | {slices} | {seconds:,} | {seeds} |"
        counted = {kind.serves.value for kind in self.kinds}
        others = ", ".join(f"{count:,} {what}" for what, count in sorted(self.counts.items()) if what not in counted)
        if others:
            yield f"\nBesides: {others}."
        for what, seeds in (("found a broken promise", self.broken), ("came to no verdict", self.undecided)):
            if seeds:
                yield f"\n{len(seeds)} {what}: {', '.join(seeds)}."
