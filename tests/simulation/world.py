"""What all parts of one simulated run share: its seed, its transcript, and whether the machine has just died.

Everything random comes from streams that are derived from the seed by name, so that taking one client away, or one
kind of fault, leaves the decisions of all others as they are.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from contextvars import ContextVar
from random import Random

import trio
import trio.testing


class Crashed(OSError):
    """The machine is dead: nothing that its program does has any effect.

    An error of the disk's, so that the dead node's tasks, also those that wait where nobody can cancel them, unwind.
    """

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the machine is dead")


class Violation(Exception):
    """A promise was broken. `invariant` is its name in docs/invariants.md; 0 if the run could not go on at all."""

    def __init__(self, invariant: int | str, what: str) -> None:
        super().__init__(f"invariant {invariant}: {what}" if invariant else what)
        self.invariant = invariant


class World:
    """One run."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.transcript: list[str] = []
        self.violation: Violation | None = None
        self.crashed = False
        """The machine is dead, and not started again yet."""
        self.on_crash: Callable[[str], None] = lambda _where: None
        self.stopping = trio.Event()
        """The clients are to come to an end."""
        self.finished = trio.CancelScope()
        self.stands_still_until_s = 0.0
        """Of several processes, one stands still for long until then; 0 if none has yet."""
        self.pace = 1.0
        """So many times as long as usual the clients rest between requests."""
        self.counts: dict[str, int] = {}

    def stream(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def note(self, who: str, what: str) -> None:
        self.transcript.append(f"{self.clock.current_time():10.4f}  {who:<9} {what}")

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by

    def violate(self, invariant: int | str, what: str) -> None:
        """Note the first violation; the run ends at the next step of the event loop."""
        if self.violation is None:
            self.violation = Violation(invariant, what)
            self.transcript.append(f"            VIOLATION {self.violation}")

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.transcript).encode()).hexdigest()[:16]


class Process(World):
    """One of several processes of a run: it dies by itself, and is suspended by itself; the rest it shares."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.seed = f"{world.seed}/process {number}"
        self.number = number
        self.clock, self.transcript, self.counts = world.clock, world.transcript, world.counts
        self.stopping, self.finished = world.stopping, world.finished
        self.crashed = False
        self.on_crash = lambda _where: None
        self.held: list[trio.lowlevel.Task] | None = None
        """While it is suspended: its tasks that would run now."""
        self.stands_still_until_s = 0.0
        """If it is this one that is suspended for long."""

    @property
    def another_stands_still_until_s(self) -> float:
        """One of the processes does, this one or another one."""
        return self._world.stands_still_until_s

    @property
    def violation(self) -> Violation | None:  # type: ignore[override]
        return self._world.violation

    @violation.setter
    def violation(self, violation: Violation | None) -> None:
        self._world.violation = violation

    def note(self, who: str, what: str) -> None:
        self._world.note(f"{who} {self.number}", what)


CURRENT: ContextVar[World | None] = ContextVar("CURRENT", default=None)
"""In a run of several processes: whose code this task, or thread, runs."""
