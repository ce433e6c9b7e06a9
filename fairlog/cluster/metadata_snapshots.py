"""When a process writes a snapshot of the metadata, and how; then it trims their stream.

A snapshot is due when enough was read since the last one, whether it counts or not. The process that proposed the last
accepted entry writes it, so one of them does. If it dies, the proposer of the next accepted entry does.

The PIECEs are appended first, and the SNAPSHOT only when the engine has answered where each of them lies: so it comes
after them. An unknown outcome ends the snapshot, and another one is begun. Nobody uses pieces without their SNAPSHOT.

When the snapshot was read, the stream is trimmed up to the base of the one before (`FoldState.trim_to`). If nothing was
accepted since, but much was appended (void entries, and those of the engine), a change of nothing is proposed first.
Else all these entries would come after the newest base, and had to stay.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

from fairlog.cluster.cluster_memory import ClusterMemory
from fairlog.cluster.metadata_entry import Base, encode_records, encode_snapshot
from fairlog.cluster.metadata_fold import Batch, FoldState, Proposer
from stream.engine import EngineAway, Stream, StreamPosition, Unknown

log = structlog.get_logger()

SNAPSHOT_ENTRIES = 5_000
SNAPSHOT_BYTES = 8 << 20
"""A snapshot is due when so many entries, or bytes of entries, were read since the last one. A node that begins reads
some two snapshots and twice this."""
PAUSE_SECONDS = 1.0
"""After one whose outcome is unknown."""
_RECORDS_AT_ONCE = 1000
"""Between two checkpoints."""


class SnapshotWriter:
    """Writes the snapshots that are this process' to write, while `run` runs."""

    def __init__(self, stream: Stream, proposer: Proposer, touch: Callable[[], Awaitable[None]]) -> None:
        """`touch` has a change accepted that changes nothing, if it can."""
        self._stream = stream
        self._proposer = proposer
        self._touch = touch
        self._state = FoldState()
        self._memory: ClusterMemory | None = None
        self._is_own = False
        """Whether the last accepted entry is this process'."""
        self._heard = trio.Event()

    def hear(self, batch: Batch, memory: ClusterMemory | None) -> None:
        """What was read, and is in memory now."""
        self._state, self._memory = batch.state, memory
        if batch.accepted:
            self._is_own = self._proposer.is_own(batch.accepted[-1].origin)
        self._heard.set()
        self._heard = trio.Event()

    async def run(self) -> None:
        """Write them, until cancelled."""
        while True:
            if not self._is_due() or self._memory is None:
                await self._heard.wait()
            elif self._is_of_the_newest_snapshot(self._state.accepted):
                await self._touch()
            else:
                await self._write_and_trim(self._state, self._memory)

    def _is_due(self) -> bool:
        state = self._state
        return self._is_own and (state.since_entries >= SNAPSHOT_ENTRIES or state.since_bytes >= SNAPSHOT_BYTES)

    def _is_of_the_newest_snapshot(self, accepted: Base | None) -> bool:
        return accepted is not None and self._state.snapshots[-1:] == (accepted.position,)

    async def _write_and_trim(self, state: FoldState, memory: ClusterMemory) -> None:
        position = await self._write(state, memory)
        if position is None:
            await trio.sleep(PAUSE_SECONDS)
            return
        while self._state.next <= position:
            await self._heard.wait()
        try:
            if (before := self._state.trim_to) is not None:
                await self._stream.trim(before)
        except EngineAway as error:
            log.warning("metadata are not trimmed", stream=self._stream.name, reason=str(error))

    async def _write(self, state: FoldState, memory: ClusterMemory) -> StreamPosition | None:
        """Where it ends; None if this is not known."""
        assert state.accepted is not None
        assert state.cluster is not None
        rows = sorted(memory.raw.items())  # as of this state; the values never change
        parts: list[bytes] = []
        for at in range(0, len(rows), _RECORDS_AT_ONCE):
            parts.append(encode_records(rows[at : at + _RECORDS_AT_ONCE]))
            await trio.lowlevel.checkpoint()
        content, origin = b"".join(parts), self._proposer.next_origin()
        room = self._stream.entry_bytes_max
        pieces, last = encode_snapshot(state.accepted, state.cluster, origin, content, room)
        for piece in pieces:
            if await self._append(piece) is None:
                return None
        return await self._append(last)

    async def _append(self, data: bytes) -> StreamPosition | None:
        results: list[StreamPosition | Unknown] = []
        answered = trio.Event()

        def done(result: StreamPosition | Unknown) -> None:
            results.append(result)
            answered.set()

        self._stream.append(data, done)
        await answered.wait()
        return None if isinstance(results[0], Unknown) else results[0]
