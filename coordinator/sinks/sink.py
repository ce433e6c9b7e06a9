"""One sink: which run may use it, which lanes are open, which batch is its last, and what is being committed. Pure.

    join   another query? an older run? ─▶ refused      a new run ─▶ it takes over: the old run's lanes are dropped
           the fence's batch? ─▶ "committed"       one before it? ─▶ refused       else ─▶ a lane in a free slot
    commit the same checks; then all lanes of the batch end: the winners in the commit, the others are dropped

The *fence* is the last batch that is decided, with its places. It moves at the decision, and only forwards. A decided
batch is under way until it is visible; until then it is durable as SINK_PREPARE_COMMIT, and the fence in the journal
(SINK, SINK_COMMITTED) is that of the visible batches, in their order. A join or commit of a decided batch is answered
when the batch is visible, and no answer names its places before: until its APPLYs are on disk, it may be placed
elsewhere after a loss of power.

An engine that is started again goes back by one batch at most, and repeats it as it was planned. So a batch before the
fence's comes from a checkpoint that was set back, or from a zombie, and so does the fence's own batch with another
plan. It is refused: it may contain other records, which would be taken for those that the sink has.

Lanes, runs and slots live in memory only. A lane is open from its join until its batch is committed or aborted, its
run is replaced, or its transaction times out (its producer's epoch is another one then). Only the connection to which
a lane's epoch was granted may use it: requests of an earlier lane of the slot, or of a zombie that knows the id, are
refused (`admit`). This matters because the driver names lanes and counts, not contents.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator import events as ev
from coordinator.answers import Granted, Refusal
from coordinator.ending import DECIDED_MAX
from coordinator.lane_ids import lane_id
from coordinator.producer import Producer
from coordinator.sink_commits import Fence, SinkCommit, SinkState, joined_places
from coordinator.sinks.messages import (
    CommitBatch,
    Lane,
    SinkRefusal,
    SinkRefused,
    Winner,
)
from fairlog_types import NO_PRODUCER_ID, Placement, ProducerEpoch, ProducerId, TxId

SINK_BYTES_MAX = 1_000
"""In UTF-8: the transactional id of a slot stays below 1,024 bytes."""

NAME_BYTES_MAX = 256
"""Of a query or a run, in UTF-8. Spark's are UUIDs."""

LANES_MAX = 10_000
"""At most so many lanes of a sink are open. Spark's largest jobs have some thousand tasks; each slot is a transactional
id, about which the partitions and the group journal remember something."""

REPLACED_KEPT = 64
"""How many replaced runs are remembered."""

_NUMBER_MAX = 2**63 - 1
_PARTITION_MIN = -1


@dataclass(slots=True)
class OpenLane:
    """A lane that has joined and not ended, as far as the sink knows."""

    lane: Lane
    slot: int
    joined_s: float
    """By the event loop's clock."""
    claimed_by: int | None = None
    """The connection that asked for the producer id and epoch: no other one gets them."""
    granted: tuple[ProducerId, ProducerEpoch] | None = None

    @property
    def transactional_id(self) -> str:
        return lane_id(self.lane.sink, self.slot)

    def is_of(self, producer: Producer) -> bool:
        """Whether the id's producer is still the one that was granted to this lane."""
        return self.granted == (producer.producer_id, producer.epoch)

    def __str__(self) -> str:
        it = self.lane
        return f"the lane of partition {it.partition}, attempt {it.attempt}, of batch {it.batch} of sink {it.sink!r}"


@dataclass(slots=True)
class DecidedCommit:
    """A commit that is decided and not yet recorded as visible."""

    commit: SinkCommit
    copied: dict[TxId, tuple[Placement, ...]] | None = None
    """Where each of its transactions is, once it is visible."""

    @property
    def batch(self) -> int:
        return self.commit.batch

    @property
    def placements(self) -> tuple[Placement, ...]:
        """As in `Fence`; empty until it is visible."""
        return joined_places(it for places in (self.copied or {}).values() for it in places)

    @property
    def planned_ms(self) -> int | None:
        return self.commit.planned_ms


@dataclass(slots=True)
class Sink:
    """What the coordinator knows of one sink."""

    name: str
    query: str
    run: str | None = None
    visible: Fence = field(default_factory=Fence)
    """The last batch that is recorded as visible."""
    under_way: deque[DecidedCommit] = field(default_factory=deque[DecidedCommit])
    """What was decided after that, in the order of the decisions."""
    preparing: SinkCommit | None = None
    """SINK_PREPARE_COMMIT is written; the batch is not decided."""
    in_limbo: int | None = None
    """The batch whose commit was being written when the disk failed: whether it is decided is unknown."""
    used_ms: int = 0
    _replaced: deque[str] = field(default_factory=lambda: deque[str](maxlen=REPLACED_KEPT))
    _by_slot: dict[int, OpenLane] = field(default_factory=dict[int, OpenLane])
    _by_writer: dict[Lane, OpenLane] = field(default_factory=dict[Lane, OpenLane])
    _free_slots: list[int] = field(default_factory=list[int])
    """A heap: the smallest is used first, so that there are no more slots than lanes were ever open at once."""
    _slots: int = 0

    @property
    def fence(self) -> Fence | DecidedCommit:
        """The last batch that is decided."""
        return self.under_way[-1] if self.under_way else self.visible

    @property
    def lanes(self) -> Sequence[OpenLane]:
        """Those that are open, in the order of their joins."""
        return tuple(self._by_slot.values())

    @property
    def has_past(self) -> bool:
        """Whether forgetting the sink would lose anything."""
        return self.visible.batch >= 0 or bool(self.under_way) or self.preparing is not None or bool(self._by_slot)

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be decided before one of those under way is visible."""
        return len(self.under_way) < DECIDED_MAX

    def state(self) -> SinkState:
        """The part of it that must be durable."""
        prepared = [it.commit for it in self.under_way]
        if self.preparing is not None:
            prepared.append(self.preparing)
        return SinkState(self.name, self.query, self.visible, tuple(prepared), self.used_ms)

    # ------------------------------------------------------------------------------------- who may speak

    def refusal(self, query: str, run: str) -> SinkRefused | None:
        """Why this run of this query may not use the sink."""
        if query != self.query and self.has_past:
            return SinkRefused(
                SinkRefusal.ANOTHER_QUERY,
                f"sink {self.name!r} belongs to query {self.query!r}, and this is query {query!r}: a query whose "
                "checkpoint was deleted is another one, and its batches would be taken for those that the sink has. "
                "Use another name for the sink, or delete the old one (fairlog sink forget)",
            )
        if run in self._replaced:
            return SinkRefused(
                SinkRefusal.OLD_RUN,
                f"run {run!r} of sink {self.name!r} was replaced by run {self.run!r}: this one has to stop",
            )
        return None

    def take_over(self, query: str, run: str) -> Sequence[OpenLane]:
        """Make the run the current one; answers the lanes that end by this, which the sink has already let go."""
        if run == self.run and query == self.query:
            return ()
        if self.run is not None:
            self._replaced.append(self.run)
        self.query, self.run = query, run
        return self.end(self.lanes)

    def repeated(self, batch: int, planned_ms: int | None = None) -> Fence | DecidedCommit | SinkRefused | None:
        """The fence if the batch is the fence's; why not, if it is earlier or of another plan; None if it is later."""
        fence = self.fence
        if batch > fence.batch:
            return None
        if batch < fence.batch:
            return SinkRefused(
                SinkRefusal.SET_BACK,
                f"sink {self.name!r} has batch {fence.batch}, and this is batch {batch}: a query that is started again "
                "goes back by one batch at most, so its checkpoint is an older copy, or another run has gone on since",
            )
        if planned_ms is not None and fence.planned_ms is not None and planned_ms != fence.planned_ms:
            return SinkRefused(
                SinkRefusal.SET_BACK,
                f"batch {batch} of sink {self.name!r} is committed as it was planned at {fence.planned_ms}, and this "
                f"one was planned at {planned_ms} (Unix times in ms), so it may contain other records: the query's "
                "checkpoint is an older copy",
            )
        return fence

    def is_visible(self, batch: int) -> bool:
        """Whether all decided batches up to this one can be read. From then on its places do not change."""
        return all(it.copied is not None for it in self.under_way if it.commit.batch <= batch)

    # -------------------------------------------------------------------------------------------- lanes

    def lane_of(self, writer: Lane) -> OpenLane | None:
        """The open lane of that writer."""
        return self._by_writer.get(writer)

    def lane_in(self, slot: int) -> OpenLane | None:
        """The open lane that uses the slot."""
        return self._by_slot.get(slot)

    def open_lane(self, writer: Lane, now_s: float) -> OpenLane | SinkRefused:
        """A lane in a free slot, for a writer that has none."""
        if len(self._by_slot) >= LANES_MAX:
            return SinkRefused(
                SinkRefusal.TOO_MANY_LANES,
                f"sink {self.name!r} has {LANES_MAX} lanes open: write its batches from fewer partitions",
            )
        if self._free_slots:
            slot = heapq.heappop(self._free_slots)
        else:
            slot, self._slots = self._slots, self._slots + 1
        opened = OpenLane(writer, slot, now_s)
        self._by_slot[slot] = self._by_writer[writer] = opened
        return opened

    def withhold(self, lane: OpenLane) -> None:
        """Take the lane back, and never use its slot in this run of the node."""
        del self._by_slot[lane.slot], self._by_writer[lane.lane]

    def end(self, lanes: Iterable[OpenLane]) -> Sequence[OpenLane]:
        """End these lanes, and answer them: their transactions must be ended before the next join."""
        ended = list(lanes)
        for it in ended:
            del self._by_slot[it.slot], self._by_writer[it.lane]
            heapq.heappush(self._free_slots, it.slot)
        return ended

    def of_batches_through(self, batch: int) -> Sequence[OpenLane]:
        """The lanes that can no longer win once that batch is committed."""
        return [it for it in self._by_slot.values() if it.lane.batch <= batch]

    # ------------------------------------------------------------------------------------------ commits

    def winners(self, message: CommitBatch) -> Sequence[tuple[Winner, OpenLane]] | SinkRefused:
        """The lanes of the winners. A winner without records needs no lane, and is left out if it has none."""
        found: list[tuple[Winner, OpenLane]] = []
        for it in message.winners:
            writer = Lane(message.sink, message.query, message.run, message.batch, it.partition, it.attempt)
            lane = self._by_writer.get(writer)
            if lane is not None:
                found.append((it, lane))
            elif it.records:
                return SinkRefused(
                    SinkRefusal.UNKNOWN_LANE,
                    f"batch {message.batch} of sink {self.name!r} has no lane of partition {it.partition}, attempt "
                    f"{it.attempt}, of run {message.run!r}: it has timed out, the node was restarted since, or it was "
                    "never joined; write the batch again",
                )
        return found

    def decide(self, commit: SinkCommit) -> DecidedCommit:
        """The batch that was prepared is committed: the fence moves."""
        assert self.preparing is commit, "the decided commit is the prepared one"
        assert commit.batch > self.fence.batch, f"batch {commit.batch} is decided after {self.fence.batch}"
        self.preparing = None
        self.under_way.append(decided := DecidedCommit(commit))
        return decided

    def record_visible(self, places: tuple[Placement, ...]) -> None:
        """The oldest commit under way is recorded as visible, at these places."""
        commit = self.under_way.popleft().commit
        self.visible = Fence(commit.batch, places, commit.planned_ms)


def admit(lane: OpenLane | None, producer: Producer, event: ev.Event) -> Refusal | None:
    """Why a request for a lane's transactional id is refused; None: it may have its turn.

    An InitProducerId that may have its turn has claimed the lane.
    """
    match event:
        case ev.Init():
            return _admit_init(lane, producer, event)
        case ev.Add() | ev.End():
            if lane is None or not lane.is_of(producer):
                return Refusal.FENCED
            is_current = lane.granted == (event.producer_id, event.epoch)
            return Refusal.LANE if isinstance(event, ev.End) and event.commit and is_current else None
        case _:
            return None


def _admit_init(lane: OpenLane | None, producer: Producer, event: ev.Init) -> Refusal | None:
    """Once for each lane; again on the same connection as long as the grant was not used.

    A lane times out, and ends with its batch, so it takes no part in two-phase commit (KIP-939).
    """
    if lane is None:
        return Refusal.NOT_JOINED
    names_itself = event.producer_id != NO_PRODUCER_ID
    is_used = lane.granted is not None and producer.granted_on != event.connection
    if names_itself or is_used or lane.claimed_by not in (None, event.connection):
        return Refusal.FENCED
    if event.two_phase or event.keeps:
        return Refusal.LANE
    lane.claimed_by = event.connection
    return None


def note_grant(lane: OpenLane, answer: object) -> None:
    """Note the answer to the lane's InitProducerId, or to an end that grants an epoch."""
    if isinstance(answer, Granted):
        lane.granted = (answer.producer_id, answer.epoch)
    elif lane.granted is None:
        lane.claimed_by = None


# -------------------------------------------------------------------------------------- invalid requests


def check_lane(lane: Lane) -> SinkRefused | None:
    """Why this cannot be a lane of anything."""
    return (
        _check_names(lane.sink, lane.query, lane.run)
        or _check_number("batch", lane.batch)
        or _check_number("partition", lane.partition, least=_PARTITION_MIN)
        or _check_number("attempt", lane.attempt)
    )


def check_commit(message: CommitBatch) -> SinkRefused | None:
    """Why this cannot be a commit of anything."""
    refused = (
        _check_names(message.sink, message.query, message.run)
        or _check_number("batch", message.batch)
        or _check_number("time of the plan", message.planned_ms or 0)
    )
    if refused is not None:
        return refused
    partitions: set[int] = set()
    for it in message.winners:
        refused = (
            _check_number("partition", it.partition, least=_PARTITION_MIN)
            or _check_number("attempt", it.attempt)
            or _check_number("number of records", it.records)
        )
        if refused is not None:
            return refused
        if it.partition in partitions:
            return _bad(f"partition {it.partition} of batch {message.batch} has two winners: name one attempt of each")
        partitions.add(it.partition)
    return None


def check_abort(sink: str, query: str, run: str, batch: int) -> SinkRefused | None:
    """Why this cannot be an abort of anything."""
    return _check_names(sink, query, run) or _check_number("batch", batch)


def check_fence(sink: str, query: str, batch: int) -> SinkRefused | None:
    """Why this query cannot have committed this batch of the sink."""
    return _check_names(sink, query) or _check_number("batch", batch)


def _check_names(sink: str, query: str, *runs: str) -> SinkRefused | None:
    named = [("sink", sink, SINK_BYTES_MAX), ("query", query, NAME_BYTES_MAX)]
    named += [("run", run, NAME_BYTES_MAX) for run in runs]
    for what, name, bytes_max in named:
        if not 0 < len(name.encode(errors="surrogatepass")) <= bytes_max:
            return _bad(f"the {what} must have a name of 1 to {bytes_max} bytes in UTF-8")
        if not name.isprintable():
            return _bad(f"the name of the {what} must be of printable characters: {name!r}")
    return None


def _check_number(what: str, number: int, *, least: int = 0) -> SinkRefused | None:
    if least <= number <= _NUMBER_MAX:
        return None
    return _bad(f"the {what} must be a number from {least} to {_NUMBER_MAX}, and not {number}")


def _bad(sentence: str) -> SinkRefused:
    return SinkRefused(SinkRefusal.BAD_REQUEST, sentence)
