"""Whether this process owned its shard when a question came in, on a replicated log.

    question ─▶ note what was appended ─▶ an entry after that is accepted: it did ─▶ answer
                                      └─▶ another one owns the shard, or nobody answers: no answer

Another process may own the shard, and have answered records, commits and offsets, without this one's knowing it: a node
that is cut off from the engine, or was paused, goes on as before until its appends fail. What is told of ends and of
committed offsets must not be older than what was answered. So it is told once an entry is accepted that was appended
after the question: whoever owns the shard later answers behind that entry (decision 90).

It costs an append, which all share that ask before it is made; none if something else is appended meanwhile. On one
machine nobody else can own the shard, and it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

import trio

from fairlog_types import StorageFailure
from shard.links import Confirm

CERTAIN_S = 5.0
"""How long to wait, for a request that waits for nothing else. Its client asks again."""

_LOOK_S = 0.25
"""Between two looks whether it is still to be waited for."""


class Doubt(Enum):
    """Why it is not known that this process owned the shard."""

    NOT_YET = auto()
    """Nothing is accepted in time."""
    DEPOSED = auto()
    """Nothing is accepted any more: another process owns the shard, or will."""


class MayBeDeposed(Protocol):
    """Who leads logs."""

    @property
    def confirm(self) -> Confirm | None:
        """None if no other process can own the shard, or if whoever asks makes sure of it."""
        ...

    @property
    def appends_wait(self) -> Callable[[], bool]:
        """Whether nothing has been accepted for so long that it is not to be waited for."""
        ...


class OwnerAtQuestion:
    """Of one question. Made when it comes in."""

    def __init__(self, leads: MayBeDeposed) -> None:
        self._appends_wait = leads.appends_wait
        self._confirmed = None if leads.confirm is None else leads.confirm()

    @property
    def is_certain(self) -> bool:
        """Whether no one has to wait."""
        return self._confirmed is None

    async def doubt(self, until_s: float) -> Doubt | None:
        """Wait, until that time of trio's clock at most. None: this process owned the shard when the question came."""
        while self._confirmed is not None:
            if self._appends_wait():
                return Doubt.NOT_YET
            with trio.move_on_at(min(until_s, trio.current_time() + _LOOK_S)):
                try:
                    await self._confirmed()
                except StorageFailure:
                    return Doubt.DEPOSED
                self._confirmed = None
                return None
            if trio.current_time() >= until_s:
                return Doubt.NOT_YET
        return None
