"""The contract of a replicated log: streams of entries, which an engine keeps on several machines.

    owner    ── append ──▶ ┌───┬───┬───┬───┬───┐
                           │ 7 │ 8 │ 9 │10 │11 │ ──▶ open_reader(8): 8, 9, 10, 11, …   every replica reads the same
    trim(7) ── up to here ─┴───┴───┴───┴───┴───┘

What is asked of an engine, and all that is relied on:

1. *One order.* An entry has one position, for all readers and for ever; positions are whole numbers without gaps.
2. *Durable.* An entry whose position was answered is kept, on as many machines as the engine is configured for, until
   it is trimmed.
3. *A prefix.* A reader that has read position p has read every entry before it, from where it began.
4. *The end is true.* `end` is behind every entry whose position was answered before the call.

What is not asked: fencing (a deposed owner's entry may still be appended), comparing before an append, appending
exactly once (an entry may be there twice), or telling whether an append failed. The fold makes up for all of that
(`fold`), so an engine can be as simple as a partition of Kafka.

Entries are bytes. An engine adds nothing to them and looks at none of them. It may put empty entries of its own between
them, where it needs one to know the end for certain: whoever reads steps over these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

StreamPosition = NewType("StreamPosition", int)
"""An entry's place in its stream: 0, 1, 2, … without gaps, never reused."""


class StoredEntry(NamedTuple):
    """An entry as it lies in the stream."""

    position: StreamPosition
    data: bytes


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody knows whether an append took place, or whether it still will: now, later, or never."""

    reason: str
    knows_no_stream: bool = False
    """Whether the engine said that there is no such stream, which may be wrong."""


class EngineAway(Exception):
    """The engine does not answer, or refuses; the message says what it was asked and what it said. Ask again."""


class EntryGone(Exception):
    """What was to be read was trimmed, or deleted by somebody else; the message names the stream and both positions."""


class StreamCutOff(Exception):
    """The stream ends before an entry that was there: somebody deleted it or made it anew. The message says which."""


class Reader(Protocol):
    """Reads one stream from a position on, in order, for ever."""

    async def next(self) -> Sequence[StoredEntry]:
        """The entries that follow, at least one; waits until there is one, however long the engine is away.

        Raises EntryGone, StreamCutOff. Cancelled: nothing is lost, the next call goes on.
        """
        ...


class Stream(Protocol):
    """One stream of an engine. Used on the event loop, like all that it hands out."""

    @property
    def name(self) -> str:
        """For messages and logs."""
        ...

    @property
    def entry_bytes_max(self) -> int:
        """What one entry may take."""
        ...

    def append(self, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        """Begin to append an entry of 1 to `entry_bytes_max` bytes; `done` is called with what came of it.

        It is called once, later, on the event loop, and not after the engine was closed. Appends that are begun one
        after the other are under way together. Their entries come to lie in this order, except beside an Unknown.
        """
        ...

    def open_reader(self, start: StreamPosition) -> AbstractAsyncContextManager[Reader]:
        """Read from `start` on, which may be the end. At most one reader of a stream is open at a time."""
        ...

    async def start(self) -> StreamPosition:
        """The position of the oldest entry that is there, or the end. Raises EngineAway."""
        ...

    async def end(self) -> StreamPosition:
        """One past the last entry, by property 4 of the module's head. May append an empty entry.

        Raises EngineAway; StreamCutOff if it is certain that somebody deleted the stream or made it anew.
        """
        ...

    async def trim(self, before: StreamPosition) -> None:
        """Let entries before this position go, which is at most the end. Idempotent. Raises EngineAway.

        An engine may keep some of them a while.
        """
        ...


class WeakStream(Exception):
    """A stream is kept less safely than configured; the message names the setting, and how to mend it."""


class Engine(Protocol):
    """A replicated log that keeps streams by name. Closed by whoever opened it."""

    async def open_stream(self, name: str) -> Stream:
        """The stream of this name, which is made if it is missing.

        Raises EngineAway, WeakStream.
        """
        ...

    async def check(self, name: str) -> None:
        """Look once more whether the stream is kept as safely as configured. Raises EngineAway, WeakStream."""
        ...
