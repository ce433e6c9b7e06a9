"""A coordinator's sinks in memory, for the native ops to be asked about.

It keeps to the rules that the ops can see: a fence with its placements, lanes by partition and attempt, another query
refused. What a winner holds is what the client says; placements are made up, one for each winner, in `logs`. Refusals
are what a test puts into `sink_refusal`; while `gate` is closed no commit ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from coordinator.lane_ids import lane_id
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefusal,
    SinkRefused,
)
from fairlog_types import LogId, Offset, Placement
from tests.kafka.in_memory import MemoryCoordinator


class MemorySinks(MemoryCoordinator):
    def __init__(self) -> None:
        super().__init__()
        self.sink_refusal: SinkRefused | None = None
        self.gate = trio.Event()
        self.gate.set()
        self.commit_begun = trio.Event()
        self.logs: list[LogId] = []
        self._queries: dict[str, str] = {}
        self._fences: dict[str, BatchCommitted] = {}
        self._lanes: dict[Lane, str] = {}

    async def join_batch(self, lane: Lane) -> LaneGranted | BatchCommitted | SinkRefused:
        await self._called("join", lane)
        if self.sink_refusal is not None:
            return self.sink_refusal
        query = self._queries.setdefault(lane.sink, lane.query)
        if query != lane.query:
            return SinkRefused(SinkRefusal.ANOTHER_QUERY, f"the sink {lane.sink} belongs to the query {query}")
        fence = self._fences.get(lane.sink)
        if fence is not None and lane.batch < fence.batch:
            return SinkRefused(SinkRefusal.SET_BACK, f"the sink {lane.sink} has batch {fence.batch}")
        if fence is not None and lane.batch == fence.batch:
            return fence
        return LaneGranted(self._lanes.setdefault(lane, lane_id(lane.sink, len(self._lanes))))

    async def commit_batch(self, message: CommitBatch) -> BatchCommitted | SinkRefused:
        await self._called("commit", message)
        self.commit_begun.set()
        with trio.CancelScope(shield=True):
            await self.gate.wait()
        if self.sink_refusal is not None:
            return self.sink_refusal
        fence = self._fences.get(message.sink)
        if fence is not None and message.batch < fence.batch:
            return SinkRefused(SinkRefusal.SET_BACK, f"the sink {message.sink} has batch {fence.batch}")
        if fence is not None and message.batch == fence.batch:
            return BatchCommitted(message.batch, fence.placements, already=True)
        placements: list[Placement] = []
        for number, winner in enumerate(message.winners):
            if (
                Lane(message.sink, message.query, message.run, message.batch, winner.partition, winner.attempt)
                not in self._lanes
            ):
                return SinkRefused(SinkRefusal.UNKNOWN_LANE, f"no lane {winner.partition}, {winner.attempt}")
            log = self.logs[number % len(self.logs)] if winner.partition >= 0 else LogId.of_offsets(0)
            placements.append(Placement(log, Offset(10 * number), winner.records))
        self._fences[message.sink] = BatchCommitted(message.batch, tuple(placements), already=False)
        return self._fences[message.sink]

    async def abort_batch(self, sink: str, query: str, run: str, batch: int) -> SinkRefused | None:
        await self._called("abort", sink, query, run, batch)
        return self.sink_refusal

    def sinks(self) -> Sequence[SinkDescription]:
        found: list[SinkDescription] = []
        for sink, query in sorted(self._queries.items()):
            fence = self._fences.get(sink)
            batch, placements = (None, ()) if fence is None else (fence.batch, fence.placements)
            lanes = tuple(
                name
                for lane, name in self._lanes.items()
                if lane.sink == sink and (batch is None or lane.batch > batch)
            )
            found.append(
                SinkDescription(sink, query, "run-1" if lanes else None, batch, placements, lanes, 1_763_632_800_000)
            )
        return found

    async def forget_sink(self, sink: str) -> SinkRefused | None:
        await self._called("forget", sink)
        if sink not in self._queries:
            return SinkRefused(SinkRefusal.UNKNOWN_SINK, f"there is no sink {sink}")
        del self._queries[sink]
        self._fences.pop(sink, None)
        return self.sink_refusal
