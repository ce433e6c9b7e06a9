"""The sinks as the coordinator sees them: requests about one sink are carried out one after the other.

How it works. Each sink has a lock, under which batches are joined, committed (committing.py) and aborted, and sinks
forgotten; so a sink's batches are decided one at a time, and their order is that of the decisions (invariant 6). A lane
is a transactional id like others: its requests take turns of their own (executor.py), for which no lock is needed, once
the sink admits them (`admit`). Ending a lane is a turn, too.

No task waits for the copy under the lock. The answer "committed" waits without the lock until the batch is visible. So
does a commit while too many batches are on their way, before anything is done for it; then all checks are made again.
Its lanes may time out meanwhile, as before any commit; then the batch has to be written again.

A run takes a sink over when it has something to write or to publish. A request for a batch that is committed gets just
this answer, and changes nothing: it may come from a new run that replays, which takes over with its next batch, or from
a zombie.

After a failure of the disk nothing is changed any more, and only certain answers are given: a visible batch is
committed; the fate of what the disk refused to write is unknown; a decided batch is visible after a restart (invariant
5).

A sink never expires by itself, because its fence makes the replay of a batch harmless. A sink that has never had a
batch consists of its lanes only, and is forgotten some time after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import trio

from coordinator import events as ev
from coordinator.answers import Answer, Granted, Refusal
from coordinator.executor import Executor
from coordinator.group_records import SinkForgottenRecord
from coordinator.id_entry import ms_since
from coordinator.lane_ids import group_of_sink, slot_and_sink
from coordinator.producer import Producer
from coordinator.sink_commits import NO_BATCH, Fence, SinkCommit, SinkState
from coordinator.sinks.committing import Committing, cannot_write, not_copied
from coordinator.sinks.entry import SinkEntry
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefusal,
    SinkRefused,
    SinkStatistics,
)
from coordinator.sinks.sink import (
    DecidedCommit,
    OpenLane,
    Sink,
    admit,
    check_abort,
    check_commit,
    check_lane,
    note_grant,
)
from coordinator.states import IdState
from fairlog_types import StorageFailure


class Sinks:
    """All sinks that this node has, and their lanes."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._committing = Committing(executor)
        self._entries: dict[str, SinkEntry] = {}
        self._committed = 0

    # ---------------------------------------------------------------------------------------- requests

    async def join(self, lane: Lane) -> LaneGranted | BatchCommitted | SinkRefused:
        """See `Coordinator.join_batch`."""
        bad = check_lane(lane)
        if bad is not None:
            return bad
        entry = await self._enter(lane.sink, lane.query)
        try:
            sink = entry.sink
            refused = sink.refusal(lane.query, lane.run)
            if refused is not None:
                return refused
            repeated = sink.repeated(lane.batch)
            if isinstance(repeated, SinkRefused):
                return repeated
            entry.touch(self._executor.now_ms())
            if repeated is None:
                if self._executor.journals.is_refusing(entry):
                    return cannot_write(entry, lane.batch)
                await self._take_over(entry, lane.query, lane.run)
                return self._open_lane(entry, lane)
        finally:
            self._leave(entry)
        return await self._when_visible(entry, repeated, already=True)

    async def commit(self, message: CommitBatch) -> BatchCommitted | SinkRefused:
        """See `Coordinator.commit_batch`."""
        bad = check_commit(message)
        if bad is not None:
            return bad
        while True:
            entry = await self._enter(message.sink, message.query)
            try:
                answer = await self._decide(entry, message)
            finally:
                self._leave(entry)
            if answer is not None:
                break
            await entry.change()
        if isinstance(answer, SinkRefused):
            return answer
        decided, already = answer
        return await self._when_visible(entry, decided, already=already)

    async def _when_visible(
        self, entry: SinkEntry, decided: Fence | DecidedCommit, *, already: bool
    ) -> BatchCommitted | SinkRefused:
        """The answer about a decided batch: its places, as soon as it can be read there."""
        if await self._committing.until_visible(entry, decided.batch):
            return BatchCommitted(decided.batch, decided.placements, already)
        return not_copied(entry, decided.batch)

    async def _decide(
        self, entry: SinkEntry, message: CommitBatch
    ) -> tuple[Fence | DecidedCommit, bool] | SinkRefused | None:
        """Decide the batch unless it is decided already; the second value says whether it was. Under the lock.

        None: too many batches are on their way, and nothing was done.
        """
        sink = entry.sink
        refused = sink.refusal(message.query, message.run)
        if refused is not None:
            return refused
        repeated = sink.repeated(message.batch, message.planned_ms)
        if isinstance(repeated, SinkRefused):
            return repeated
        if repeated is not None:
            return repeated, True
        if self._executor.journals.is_refusing(entry):
            return cannot_write(entry, message.batch)
        if not sink.has_room:
            return None
        winners = sink.winners(message)
        if isinstance(winners, SinkRefused):
            return winners
        entry.touch(self._executor.now_ms())
        await self._take_over(entry, message.query, message.run)
        outcome = await self._committing.commit(entry, message, winners)
        if isinstance(outcome, SinkRefused):
            return outcome
        self._committed += 1
        return outcome, False

    async def abort(self, sink: str, query: str, run: str, batch: int) -> SinkRefused | None:
        """See `Coordinator.abort_batch`."""
        bad = check_abort(sink, query, run, batch)
        if bad is not None or sink not in self._entries:
            return bad
        entry = await self._enter(sink, query)
        try:
            refused = entry.sink.refusal(query, run)
            if refused is not None:
                return refused
            if batch <= entry.sink.fence.batch:
                return SinkRefused(SinkRefusal.COMMITTED, f"batch {batch} of sink {sink!r} is committed, and stays so")
            if self._executor.journals.is_refusing(entry):
                return cannot_write(entry)
            lanes = [it for it in entry.sink.lanes if (it.lane.run, it.lane.batch) == (run, batch)]
            await self._drop(entry.sink.end(lanes))
            return None
        finally:
            self._leave(entry)

    async def forget(self, sink: str) -> SinkRefused | None:
        """See `Coordinator.forget_sink`. Its slots' ids expire like others."""
        unknown = SinkRefused(SinkRefusal.UNKNOWN_SINK, f"there is no sink {sink!r}")
        if sink not in self._entries:
            return unknown
        entry = await self._enter(sink, "")
        try:
            if not entry.sink.has_past:
                return unknown
            if self._executor.journals.is_refusing(entry):
                return cannot_write(entry)
            lanes, copying = len(entry.sink.lanes), len(entry.sink.under_way)
            if lanes or copying:
                sentence = f"sink {sink!r} has {lanes} open lanes and {copying} batches that are being copied"
                return SinkRefused(SinkRefusal.IN_USE, f"{sentence}: stop its query, and wait until its lanes time out")
            with trio.CancelScope(shield=True):
                return await self._forget(entry)
        finally:
            self._leave(entry)

    def describe(self) -> Sequence[SinkDescription]:
        """See `Coordinator.sinks`."""
        kept = [self._entries[name].sink for name in sorted(self._entries)]
        return [_description(sink) for sink in kept if sink.has_past]

    def statistics(self) -> SinkStatistics:
        """See `Coordinator.sink_statistics`."""
        kept = [entry.sink for entry in self._entries.values() if entry.sink.has_past]
        return SinkStatistics(len(kept), sum(len(sink.lanes) for sink in kept), self._committed)

    async def _enter(self, name: str, query: str) -> SinkEntry:
        """The sink, locked until the caller leaves it; a new one if there is none."""
        while True:
            entry = self._entries.get(name)
            if entry is None:
                journal = self._executor.table.journal_of(group_of_sink(name))
                entry = self._entries[name] = SinkEntry(Sink(name, query), journal)
            await entry.lock.acquire()
            if self._entries.get(name) is entry:
                return entry
            entry.lock.release()

    def _leave(self, entry: SinkEntry) -> None:
        """Unlock the sink. An entry made for a refused request is forgotten: any client may send any name."""
        entry.lock.release()
        sink = entry.sink
        if sink.run is None and not sink.has_past and self._entries.get(sink.name) is entry:
            del self._entries[sink.name]

    async def _take_over(self, entry: SinkEntry, query: str, run: str) -> None:
        """An unknown run becomes the sink's current one, and the lanes of the previous run are fenced."""
        await self._drop(entry.sink.take_over(query, run))

    async def _drop(self, lanes: Sequence[OpenLane]) -> None:
        if lanes:
            with trio.CancelScope(shield=True):
                await self._committing.drop(lanes)

    def _open_lane(self, entry: SinkEntry, lane: Lane) -> LaneGranted | SinkRefused:
        """The writer's lane, or a new one. One that has timed out is not given again."""
        sink, known = entry.sink, entry.sink.lane_of(lane)
        if known is not None:
            if not self._has_ended(known):
                return LaneGranted(known.transactional_id)
            sink.end([known])
        while True:
            opened = sink.open_lane(lane, trio.current_time())
            if isinstance(opened, SinkRefused):
                return opened
            id_entry = self._executor.table.entries.get(opened.transactional_id)
            if id_entry is None or id_entry.journal == entry.journal:
                return LaneGranted(opened.transactional_id)
            sink.withhold(opened)  # a client's own id, from before the prefix was reserved; its records are elsewhere

    async def _forget(self, entry: SinkEntry) -> SinkRefused | None:
        name = entry.sink.name
        try:
            await self._executor.journals.append(entry, SinkForgottenRecord(name))
            del self._entries[name]
            await self._executor.journals[entry.journal].to_disk(entry.appended)
        except (StorageFailure, OSError) as failure:
            self._executor.journals.refuse(entry.journal, failure)
            self._entries.setdefault(name, entry)  # as far as is known it still exists
            return SinkRefused(
                SinkRefusal.EFFECT_UNKNOWN,
                f"the disk failed while sink {name!r} was being deleted: restart the node, then check whether the sink "
                "still exists before its query runs again",
            )
        return None

    def wake_all(self) -> None:
        """Requests are refused from now on, until a restart: wake all tasks that wait."""
        for entry in self._entries.values():
            entry.wake()

    # -------------------------------------------------------------------------------- the lanes' own requests

    def admit(self, transactional_id: str, producer: Producer, event: ev.Event) -> Refusal | None:
        """Why a request for a lane's id is refused; None: it may have its turn, which must follow in this step."""
        return admit(self._lane_of(transactional_id), producer, event)

    def note_answer(self, transactional_id: str, event: ev.Event, answer: Answer | ev.WaitForCopy) -> None:
        """Note the turn's answer."""
        lane = self._lane_of(transactional_id)
        if lane is not None and (isinstance(event, ev.Init) or isinstance(answer, Granted)):
            note_grant(lane, answer)

    def _lane_of(self, transactional_id: str) -> OpenLane | None:
        found = slot_and_sink(transactional_id)
        entry = None if found is None else self._entries.get(found[1])
        return None if entry is None or found is None else entry.sink.lane_in(found[0])

    # ------------------------------------------------------------------------------------ time and restarts

    async def look(self) -> None:
        """Release lanes that have timed out or are idle, and forget sinks that have no batches and no lanes."""
        await self._committing.drop_again()
        settings = self._executor.settings
        for name, entry in list(self._entries.items()):
            if entry.lock.locked():
                continue
            sink = entry.sink
            sink.end([lane for lane in sink.lanes if self._has_ended(lane) or self._is_idle(lane)])
            if not sink.has_past and ms_since(entry.used_s) >= settings.max_timeout_ms:
                del self._entries[name]

    def _has_ended(self, lane: OpenLane) -> bool:
        """Whether the lane's transaction was ended by force, with its epoch."""
        id_entry = self._executor.table.entries.get(lane.transactional_id)
        return lane.granted is not None and (id_entry is None or not lane.is_of(id_entry.producer))

    def _is_idle(self, lane: OpenLane) -> bool:
        """Whether the lane has had no transaction for the longest time-out. A winner without records needs no lane."""
        id_entry = self._executor.table.entries.get(lane.transactional_id)
        if id_entry is not None and (id_entry.busy or id_entry.producer.state is IdState.OPEN):
            return False
        used_s = lane.joined_s if id_entry is None else max(lane.joined_s, id_entry.used_s)
        return ms_since(used_s) >= self._executor.settings.max_timeout_ms

    def states(self, journal: int) -> Iterator[SinkState]:
        """The states of the sinks whose records are in that journal, for a snapshot."""
        return (entry.sink.state() for entry in self._entries.values() if entry.journal == journal)

    def adopt(self, state: SinkState, journal: int) -> None:
        """Take over a sink that a journal knows, without what is prepared."""
        sink = Sink(state.sink, state.query, visible=state.fence, used_ms=state.used_ms)
        self._entries[state.sink] = SinkEntry(sink, journal)

    def place_again(self, commit: SinkCommit) -> None:
        """See `Committing.place_again`."""
        self._committing.place_again(self._entries[commit.sink], commit)

    async def withdraw(self, commit: SinkCommit) -> None:
        """See `Committing.withdraw`."""
        await self._committing.withdraw(self._entries[commit.sink], commit)

    def entries(self) -> Sequence[SinkEntry]:
        """All sinks, as owners of records in journals."""
        return list(self._entries.values())

    def entry_of(self, commit: SinkCommit) -> SinkEntry:
        """The commit's sink."""
        return self._entries[commit.sink]


def _description(sink: Sink) -> SinkDescription:
    fence = sink.fence
    return SinkDescription(
        sink.name,
        sink.query,
        sink.run,
        None if fence.batch == NO_BATCH else fence.batch,
        fence.placements,
        tuple(lane.transactional_id for lane in sink.lanes),
        sink.used_ms,
        max((trio.current_time() - lane.joined_s for lane in sink.lanes), default=None),
    )
