"""How far a node's copy of a shard is: its role, what it has taken, and what is synced. Pure: no I/O.

    joins ─▶ follows: has missed something ─▶ follows ─▶ opens ─▶ owns ─▶ follows …
    JOINING  JOINING                          REPLICA    OPENING  OWNER

One object for a copy's whole life in a process. `shard.roles` tells it what the copy does, and whoever wants to know
asks. The node reports it to the others.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from fairlog_types import LeaderEpoch
from stream.engine import StreamPosition
from stream.fold import NOTHING_READ, FoldState


class Role(IntEnum):
    """What a copy does."""

    JOINING = 1
    """It is made of another copy, or has not read yet what was the end of the stream at its start."""
    REPLICA = 2
    OPENING = 3
    """It has read its own FENCE, and recovers."""
    OWNER = 4


class CopyReport(NamedTuple):
    """A copy at one moment."""

    role: Role
    epoch: LeaderEpoch
    """That its fold has come to."""
    taken: StreamPosition
    """Of the last entry that it has gone over; NOTHING_READ if there is none."""
    synced: StreamPosition
    """Of its last mark (`shard.stream_mark`): everything through there is on disk. NOTHING_READ if there is none."""


class CopyProgress:
    """See the module's head."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when the role has changed, except from JOINING to REPLICA."""
        self._changed = changed
        self._role: Callable[[], Role] | None = None
        self._state: Callable[[], FoldState] = FoldState
        self._synced = NOTHING_READ

    @property
    def report(self) -> CopyReport | None:
        """How it is now; None if there is no copy, or it is not open."""
        if self._role is None:
            return None
        role, state = self._role(), self._state()
        return CopyReport(role, state.epoch, state.position, self._synced)

    def joins(self, mark: StreamPosition) -> None:
        """It is being made of another copy, and will have what that one's mark says: NOTHING_READ until it is known."""
        self._synced = NOTHING_READ
        self._becomes(lambda: Role.JOINING, lambda: FoldState(mark))

    def follows(self, state: Callable[[], FoldState], has_caught_up: Callable[[], bool]) -> None:
        """It reads the stream, from its mark on."""
        self._synced = state().position
        self._becomes(lambda: Role.REPLICA if has_caught_up() else Role.JOINING, state)

    def opens(self, state: Callable[[], FoldState]) -> None:
        """It has read its own FENCE."""
        self._becomes(lambda: Role.OPENING, state)

    def owns(self, state: Callable[[], FoldState], has_recovered: Callable[[], bool]) -> None:
        """It is open as the owner's."""
        self._becomes(lambda: Role.OWNER if has_recovered() else Role.OPENING, state)

    def saved(self, mark: FoldState) -> None:
        """A mark was written."""
        self._synced = mark.position

    def ends(self) -> None:
        """It is closed, or there is none any more."""
        if self._role is not None:
            self._role = None
            self._changed()

    def _becomes(self, role: Callable[[], Role], state: Callable[[], FoldState]) -> None:
        self._role, self._state = role, state
        self._changed()
