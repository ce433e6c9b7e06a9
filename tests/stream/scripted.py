"""A stream in memory whose outcomes the test decides: where an entry lands, how often, and what its writer is told.

Nothing happens by itself but that readers see what is there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from stream.engine import EntryGone, StoredEntry, StreamPosition, Unknown
from stream.entry import Entry, EntryKind, decode_entry_untrusted


@dataclass(slots=True)
class Appended:
    """An append whose outcome nobody has been told."""

    data: bytes
    done: Callable[[StreamPosition | Unknown], None]

    @property
    def entry(self) -> Entry:
        entry = decode_entry_untrusted(self.data)
        assert isinstance(entry, Entry), entry
        return entry

    @property
    def kind(self) -> EntryKind:
        return self.entry.kind


class ScriptedStream:
    """Implements `stream.engine.Stream`."""

    def __init__(self, *, entry_bytes_max: int = 1000) -> None:
        self.name, self.entry_bytes_max = "the-stream", entry_bytes_max
        self.entries: list[bytes] = []
        self.under_way: list[Appended] = []
        self.readers = 0
        """How many were opened."""
        self.first_there = StreamPosition(0)
        self._more = trio.lowlevel.ParkingLot()
        self._reads = False

    def append(self, data: bytes, done: Callable[[StreamPosition | Unknown], None]) -> None:
        assert len(data) <= self.entry_bytes_max
        self.under_way.append(Appended(bytes(data), done))

    # What the test does

    def put(self, data: bytes) -> StreamPosition:
        """An entry lands, of anybody's; nobody is told."""
        self.entries.append(data)
        self._more.unpark_all()
        return StreamPosition(len(self.entries) - 1)

    def land(self, number: int = 0) -> None:
        """That append under way lands, and its writer is told."""
        appended = self.under_way.pop(number)
        appended.done(self.put(appended.data))

    def land_all(self) -> None:
        """As they were appended."""
        while self.under_way:
            self.land()

    def leave_unknown(self, number: int = 0) -> bytes:
        """That append has no outcome; the bytes may land later."""
        appended = self.under_way.pop(number)
        appended.done(Unknown("the test says so"))
        return appended.data

    # What a reader does

    @asynccontextmanager
    async def open_reader(self, start: StreamPosition) -> AsyncGenerator[ScriptedReader, None]:
        assert not self._reads, "one reader at a time"
        self._reads = True
        self.readers += 1
        try:
            await trio.lowlevel.checkpoint()
            yield ScriptedReader(self, start)
        finally:
            self._reads = False

    async def next(self, position: StreamPosition) -> Sequence[StoredEntry]:
        while position >= len(self.entries):
            await self._more.park()
        if position < self.first_there:
            raise EntryGone(f"{self.name} begins at {self.first_there}, and {position} was to be read")
        return [StoredEntry(StreamPosition(at), self.entries[at]) for at in range(position, len(self.entries))]

    async def start(self) -> StreamPosition:
        await trio.lowlevel.checkpoint()
        return self.first_there

    async def end(self) -> StreamPosition:
        await trio.lowlevel.checkpoint()
        return StreamPosition(len(self.entries))

    async def trim(self, before: StreamPosition) -> None:
        await trio.lowlevel.checkpoint()
        self.first_there = max(self.first_there, before)


class ScriptedReader:
    """Implements `stream.engine.Reader`."""

    def __init__(self, stream: ScriptedStream, start: StreamPosition) -> None:
        self._stream, self._position = stream, start

    async def next(self) -> Sequence[StoredEntry]:
        await trio.lowlevel.checkpoint()
        entries = await self._stream.next(self._position)
        self._position = StreamPosition(self._position + len(entries))
        return entries
