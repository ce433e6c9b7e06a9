"""A sink commit: the transactions of a batch's winning lanes, committed as one. As values, and as records.

    SinkCommit ──▶ SINK_PREPARE_COMMIT ──▶ prepared, decided, placed together ──▶ visible ──▶ SINK_COMMITTED
                                  └──▶ one cannot prepare ──▶ SINK_ABORTED

A commit's parts have an order, which is that of the winners, and lie in it in every log that several of them have
written to. Until it is visible it stands beside the sink; then the sink's *fence* is its batch, with the places.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coordinator.group_records import (
    CommittedPart,
    Expectation,
    PreparedPart,
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
)
from coordinator.lane_ids import group_of_sink, lane_id
from coordinator.messages import ApplyCommit, Expected
from coordinator.producer import Decided
from fairlog_types import Offset, Placement, TxId

NO_BATCH = -1
"""Before the first batch of a sink."""


@dataclass(frozen=True, slots=True)
class Part:
    """The transaction of a winning lane, and the slot that it has used."""

    slot: int
    decided: Decided


@dataclass(frozen=True, slots=True)
class SinkCommit:
    """A batch that is to be committed."""

    sink: str
    query: str
    batch: int
    parts: tuple[Part, ...]
    timestamp_ms: int
    commit_number: int
    """As of `Decided`: that of all its parts."""
    planned_ms: int | None = None
    """As in `CommitBatch`."""

    @property
    def order_group(self) -> str:
        """Whose commits have one order (invariant 6)."""
        return group_of_sink(self.sink)

    @property
    def records(self) -> int:
        return sum(it.records for part in self.parts for it in part.decided.expected.values())

    def lane_ids(self) -> list[str]:
        """The transactional ids of its parts."""
        return [lane_id(self.sink, part.slot) for part in self.parts]

    def messages(self) -> tuple[ApplyCommit, ...]:
        """What the participants are to place together."""
        return tuple(part.decided.apply(self.order_group) for part in self.parts)

    def record(self) -> SinkPrepareCommitRecord:
        """SINK_PREPARE_COMMIT."""
        parts = tuple(
            PreparedPart(
                part.slot,
                part.decided.txid,
                {log: Expectation(it.leader_epoch, it.records) for log, it in part.decided.expected.items()},
            )
            for part in self.parts
        )
        return SinkPrepareCommitRecord(
            self.sink, self.query, self.batch, self.commit_number, parts, self.timestamp_ms, self.planned_ms
        )

    @classmethod
    def of_record(cls, record: SinkPrepareCommitRecord) -> SinkCommit:
        """What `record` was made of."""
        parts: list[Part] = []
        for part in record.parts:
            expected = {log: Expected(it.leader_epoch, it.records) for log, it in part.participants.items()}
            parts.append(Part(part.slot, Decided(part.txid, expected, record.timestamp_ms, record.commit_number)))
        return cls(
            record.sink,
            record.query,
            record.batch,
            tuple(parts),
            record.timestamp_ms,
            record.commit_number,
            record.planned_ms,
        )

    def committed_record(self, places: Mapping[TxId, tuple[Placement, ...]], now_ms: int) -> SinkCommittedRecord:
        """SINK_COMMITTED."""
        parts = tuple(CommittedPart(it.slot, it.decided.txid, places[it.decided.txid]) for it in self.parts)
        return SinkCommittedRecord(self.sink, self.batch, parts, now_ms)


@dataclass(frozen=True, slots=True)
class Fence:
    """The last batch that a sink has got, and where it is: no batch up to it is ever committed again."""

    batch: int = NO_BATCH
    placements: tuple[Placement, ...] = ()
    """Sorted; what lies in one log without a hole is one."""
    planned_ms: int | None = None
    """As in `CommitBatch`."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """What of a sink is durable."""

    sink: str
    query: str
    fence: Fence = Fence()
    """Of what is visible."""
    prepared: tuple[SinkCommit, ...] = ()
    """Not known to be visible, by their batches. All but the last are decided, and the last may be."""
    used_ms: int = 0

    def record(self) -> SinkRecord:
        """SINK."""
        fence = self.fence
        return SinkRecord(self.sink, self.query, fence.batch, fence.placements, self.used_ms, fence.planned_ms)


def joined_places(places: Iterable[Placement]) -> tuple[Placement, ...]:
    """The places by log and offset; what lies in one log without a hole becomes one."""
    found: list[Placement] = []
    for place in sorted(places, key=lambda it: (it.log, it.base_offset)):
        before = found[-1] if found else None
        if before is not None and before.log == place.log and before.base_offset + before.count == place.base_offset:
            found[-1] = Placement(place.log, Offset(before.base_offset), before.count + place.count)
        else:
            found.append(place)
    return tuple(found)
