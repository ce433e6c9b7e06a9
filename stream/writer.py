"""What an owner appends to its stream: entries of what its journals have appended meanwhile, and heartbeats.

    add, add, add ──▶ open ── flush ──▶ entry ── engine ──▶ landed ──▶ own_entries: accepted? ──▶ `accepted`
                                          up to 4 under way                     └─ gap: read what lies there

*Group commit.* `flush` closes an entry of all that was added, at the end of the event loop's present turn: what other
tasks add and flush in the same turn goes along. At most `UNDER_WAY_MAX` entries are under way; what is added meanwhile
waits for the next one. Frames that are larger than an entry are cut into several, which count as one.

*Accepted.* What was added is handed to `accepted` in its order, one call for all of an entry, when the entry is known
to count (`own_entries`). Nothing else may be told to a client.

*The end.* If the owner is deposed, gives up, or does not learn an outcome, `ended` is called once, and after that
nothing is accepted any more: all that was not accepted by then may be in the stream or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from fairlog_types import CorruptStorage
from stream.engine import EntryGone, Stream, StreamCutOff, StreamPosition, Unknown
from stream.entry import ENTRY_HEADER_BYTES, Buffer, EntryKind, JournalFrame, encode_frames, encode_hand_over
from stream.fold import Fold, FoldState
from stream.own_entries import OwnEntries

UNDER_WAY_MAX = 4
"""Entries. One would make each commit wait for the one before; many cost the engine a request each."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Why the owner appends nothing more in its epoch."""

    reason: str
    deposed: bool
    """There is another owner; otherwise an outcome is unknown, and the shard has to be fenced anew."""
    broken: bool = False
    """The stream contradicts itself, or lacks entries: a reader will find that out, too, and the shard stops."""


class StreamWriter:
    """Appends to one stream in one epoch. For the event loop."""

    def __init__(
        self,
        stream: Stream,
        fold: Fold,
        *,
        heartbeat_s: float,
        gives_up_s: float,
        accepted: Callable[[Sequence[JournalFrame]], None],
        ended: Callable[[Ended], None],
    ) -> None:
        """`fold` has just gone over this owner's FENCE. The shard's replicas expect to hear something every
        `heartbeat_s`. If nothing is accepted for `gives_up_s`, the epoch ends."""
        self._stream = stream
        self._own = OwnEntries(fold)
        self._heartbeat_s = heartbeat_s
        self._gives_up_s = gives_up_s
        self._accepted = accepted
        self._ended = ended
        self.ended: Ended | None = None
        self._open: list[JournalFrame] = []
        self._open_bytes = 0
        self._under_way: deque[tuple[int, int, Sequence[JournalFrame]]] = deque()
        """Of each group of frames: the sequence of its last entry, its bytes, and the frames."""
        self._under_way_bytes = 0
        self._to_close = trio.Event()
        self._wanted = False
        self._confirms = False
        """Somebody waits for an entry that is appended from now on, whatever it has."""
        self._appended_s = trio.current_time()
        """When the last entry was appended, or could not be."""
        self._moved_s = trio.current_time()
        """When an entry was accepted last, or appended while nothing else was under way."""
        self._moved_through = 0
        """All entries through this sequence were accepted by then."""
        self._handed_over = False
        self._something_to_read = trio.Event()
        self._settled = trio.Event()

    @property
    def stream_name(self) -> str:
        return self._stream.name

    @property
    def state(self) -> FoldState:
        """Where the fold is; all frames before were handed to `accepted`."""
        return self._own.state

    @property
    def unaccepted_bytes(self) -> int:
        """What was added and is not accepted yet."""
        return self._open_bytes + self._under_way_bytes

    @property
    def waits_s(self) -> float:
        """For how long nothing has been accepted, though something is under way; 0 if nothing is.

        Something is at least at every heartbeat. So while the engine is away this grows, also without clients.
        """
        if self.ended is not None or self._own.accepted == self._own.appended:
            return 0.0
        return trio.current_time() - self._moved_s

    def add(self, frame: JournalFrame) -> None:
        """Let the next entry have this frame. Its buffer must not change any more."""
        assert self.ended is None, self.ended
        assert not self._handed_over, "the epoch is over: what is added now is void for everybody"
        self._open.append(frame)
        self._open_bytes += len(frame.data)

    def flush(self) -> None:
        """Append what was added, soon, while `run` runs. Idempotent."""
        self._wanted = True
        self._to_close.set()

    @property
    def appended(self) -> int:
        """The sequence of the last entry."""
        return self._own.appended

    async def confirm(self, after: int) -> bool:
        """Wait for the acceptance of an entry after the one with this sequence; False if none is accepted any more.

        If it is appended after some moment, nobody else owned the shard at that moment.
        """
        if self._own.appended == after and self.ended is None and not self._handed_over:
            self._confirms = True
            self.flush()
        while self._own.accepted <= after and self.ended is None and not self._handed_over:
            await self._next_settled()
        return self._own.accepted > after

    async def run(self) -> None:
        """Append heartbeats, and find out what is not known; until cancelled, or the end.

        A fault of ours, or of the engine's, ends the epoch: whoever waits in a shielded scope would wait for ever.
        """
        try:
            await self._run()
        except Exception as error:
            self._end(Ended(f"appending to {self._stream.name} has failed: {error}", deposed=False))
            raise

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._close_entries)
            while self.ended is None:
                await self._something_to_read.wait()
                self._something_to_read = trio.Event()
                if self._own.gap is not None:
                    await self._read_gap(self._own.gap)
            nursery.cancel_scope.cancel()

    async def hand_over(self, successor: str | None) -> bool:
        """Append all that was added, and then that the epoch is over; whether that was accepted.

        What others add is waited for as long as the last entry is not appended; then nothing may be added any more.
        Cancelled: it may have been appended or not.
        """
        while self._open or self._under_way:
            if self.ended is not None:
                return False
            self.flush()
            await self._next_settled()
        if self.ended is not None:
            return False
        self._handed_over = True
        last = self._append(EntryKind.HAND_OVER, encode_hand_over(successor))
        while self.ended is None and self._own.accepted < last:
            await self._next_settled()
        return self._own.accepted >= last

    def give_up(self, reason: str) -> None:
        """End the epoch: whoever waits for what is under way hears that its outcome is unknown."""
        self._end(Ended(reason, deposed=False))

    async def _next_settled(self) -> None:
        await self._settled.wait()

    def _settle(self) -> None:
        self._settled.set()
        self._settled = trio.Event()

    # Appending

    async def _close_entries(self) -> None:
        while self.ended is None:
            await self._to_close.wait()
            self._to_close = trio.Event()
            self._close()

    def _close(self) -> None:
        if not self._open and not self._confirms:
            self._wanted = False  # all that was to be appended is
        if self.ended is not None or not self._wanted or len(self._under_way) >= UNDER_WAY_MAX:
            return
        if not self._open and self._own.appended - self._own.accepted >= UNDER_WAY_MAX:
            return
        self._wanted = self._confirms = False
        if not self._open:
            if not self._handed_over:
                self._append(EntryKind.HEARTBEAT)
            return
        frames, size = self._open, self._open_bytes
        self._open, self._open_bytes = [], 0
        body = b"".join(encode_frames(frames))
        step = self._stream.entry_bytes_max - ENTRY_HEADER_BYTES
        last = 0
        for start in range(0, len(body), step):
            end = start + step
            piece = body if len(body) <= step else memoryview(body)[start:end]
            last = self._append(EntryKind.FRAMES, piece, continued=end < len(body))
        self._under_way_bytes += size
        self._under_way.append((last, size, frames))

    def _append(self, kind: EntryKind, body: Buffer = b"", *, continued: bool = False) -> int:
        is_first = self._own.accepted == self._own.appended
        sequence, data = self._own.encode(kind, body, continued=continued)
        self._appended_s = trio.current_time()
        if is_first:
            self._moved_s = self._appended_s
        self._stream.append(data, partial(self._landed, sequence))
        return sequence

    def _landed(self, sequence: int, outcome: StreamPosition | Unknown) -> None:
        if self.ended is not None:
            return
        if isinstance(outcome, Unknown):
            self._end(Ended(f"the outcome of an append to {self._stream.name} is unknown: {outcome.reason}", False))
            return
        self._own.landed(sequence, outcome)
        self._learned()

    def _learned(self) -> None:
        """More may be accepted, or there is something to read, or another owner."""
        if self._own.accepted > self._moved_through:
            self._moved_through, self._moved_s = self._own.accepted, trio.current_time()
        while self._under_way and self._under_way[0][0] <= self._own.accepted:
            _, size, frames = self._under_way.popleft()
            self._under_way_bytes -= size
            self._accepted(frames)
        self._settle()
        if self._own.deposed_by is not None:
            self._end(Ended(f"{self._own.deposed_by.node} owns {self._stream.name} now", True))
            return
        if self._own.passed_over is not None:
            what = f"entry {self._own.passed_over} of epoch {self._own.state.epoch}"
            self._end(Ended(f"{self._stream.name} has {what}, but not what was appended before it", False))
            return
        if self._own.gap is not None:
            self._something_to_read.set()
        if self._wanted:
            self.flush()

    def _end(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended
            self._open, self._open_bytes, self._under_way_bytes = [], 0, 0
            self._under_way.clear()
            self._something_to_read.set()
            self._settle()
            self._ended(ended)

    # In the background

    async def _beat(self) -> None:
        while self.ended is None:
            due_s = self._appended_s + self._heartbeat_s
            if trio.current_time() < due_s:
                await trio.sleep_until(due_s)
                continue
            self._appended_s = trio.current_time()
            if (waits_s := self.waits_s) > self._gives_up_s:
                self._end(Ended(f"nothing was accepted in {self._stream.name} for {waits_s:.0f} s", deposed=False))
                return
            if self._handed_over:
                continue
            if self._open:
                self.flush()
            elif self._own.accepted == self._own.appended:  # else what is under way will be heard
                self._append(EntryKind.HEARTBEAT)

    async def _read_gap(self, start: StreamPosition) -> None:
        try:
            async with self._stream.open_reader(start) as reader:
                while self.ended is None and self._own.gap is not None:
                    entries = await reader.next()
                    if self.ended is not None:
                        return  # nothing is accepted any more: the fold stays where all before was handed over
                    for entry in entries:
                        self._own.read(entry.position, entry.data)
                    self._learned()
        except (EntryGone, StreamCutOff, CorruptStorage) as error:
            self._learned()  # what was read before that
            self._end(Ended(str(error), deposed=False, broken=True))
