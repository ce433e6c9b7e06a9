"""The batches of sinks: each once, in their order, and all of its lanes as one. Pure.

    a sink's records     its batches only grow, one query commits them, none is prepared again     invariant 5
    one sink commit      placed in each shard under one apply number; copied in all logs of all
                         lanes, or none; a shard that lags behind another still holds it           invariant 7
    in each log          the lanes' parts follow each other, in the order of SINK_PREPARE_COMMIT  invariant 3

`transactions` checks, as of any other, that each lane's transaction is whole, and that it is placed nowhere if its sink
commit is aborted or has never named it. A log of marker mode has the lanes' records where they were
written, so there only the markers come at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import assert_never

from coordinator.group_records import (
    Expectation,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
    SinkRecords,
)
from coordinator.messages import UNCOUNTED
from coordinator.sink_commits import NO_BATCH
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.journals import AppliedPart
from fairlog_types import LogId, Placement, ProducerId, ShardNumber, TxId
from partition.records import Prepared

ONLY_SHARD = ShardNumber(0)
"""Unless there are several."""


class Fate(Enum):
    """The last that a group journal says of a transaction, or of a batch."""

    BEGUN = "has only begun"
    PREPARED = "is prepared, and not known to be copied"
    COMMITTED = "is committed"
    ABORTED = "is aborted"


@dataclass(frozen=True, slots=True)
class LogView:
    """What one log knows of transactions."""

    name: str
    next_offset: int
    applied: Mapping[TxId, AppliedPart]
    """Copied."""
    pending: Mapping[TxId, AppliedPart]
    """Decided, and not copied yet."""
    markers: bool = False
    """It is of marker mode."""
    forgetful: Collection[ProducerId] = ()
    """Producers whose earlier transactions may be here, though they are not among those above."""
    shard: ShardNumber = ONLY_SHARD
    """Which leads it."""
    prepared: Mapping[TxId, Prepared] = field(default_factory=dict[TxId, Prepared])
    """What it has prepared for coordinators of other shards, as far as its journal still tells."""
    open: Mapping[TxId, int] | None = None
    """Transactions that are not decided, and their records; None if that is not known for certain."""
    never_cut: bool = False
    """All that was ever written to its journal is there."""

    def lacks(self, txid: TxId) -> bool:
        """Whether it is certain that the transaction is not copied here."""
        return txid not in self.applied and txid.producer_id not in self.forgetful

    def count_of(self, txid: TxId) -> int | None:
        """What the log itself says that it holds of the transaction, as PREPARED or placed; None if nothing."""
        if (prepared := self.prepared.get(txid)) is not None:
            return prepared.record_count
        part = self.pending.get(txid) or self.applied.get(txid)
        return None if part is None else part.count

    def has_not_prepared(self, txid: TxId) -> bool:
        """Whether it is certain that there never was a PREPARED."""
        return self.never_cut and txid not in self.prepared

    def has_lost(self, txid: TxId, count: int) -> bool:
        """Whether it is certain that so many records can neither be read here, nor be placed by the next start."""
        is_placed = txid in self.pending or not self.lacks(txid)
        return not is_placed and self.open is not None and self.open.get(txid, 0) != count


def counted(participants: Mapping[LogId, Expectation]) -> Mapping[LogId, int]:
    """Records of each participant that has any, as far as the coordinator has counted them.

    It has counted all of a sink's batch, also those of other shards.
    """
    return {log: it.records for log, it in participants.items() if it.records not in (0, UNCOUNTED)}


@dataclass(slots=True)
class ToldCommit:
    """What a group journal tells of one sink commit."""

    sink: str
    batch: int
    fate: Fate
    expected: Mapping[TxId, Mapping[LogId, int]]
    """The lanes' transactions, in their order; records of each participant that has any."""
    placements: Mapping[TxId, Sequence[Placement]] = field(default_factory=dict[TxId, Sequence[Placement]])
    """As SINK_COMMITTED has them."""


@dataclass(slots=True)
class _Sink:
    query: str
    batch: int = NO_BATCH
    """The last that is known to be visible."""


class SinkHistory:
    """What one group journal tells of its sinks; fed with its records in their order."""

    def __init__(self, where: str) -> None:
        self.commits: list[ToldCommit] = []
        self.fences: list[SinkRecord] = []
        """As the snapshot has them."""
        self.violations: list[Violation] = []
        self._where = where
        self._sinks: dict[str, _Sink] = {}
        self._open: dict[tuple[str, int], ToldCommit] = {}
        """Prepared, and neither committed nor aborted."""

    def take(self, record: SinkRecords) -> None:
        """The next record of a sink."""
        match record:
            case SinkRecord():
                self.fences.append(record)
                self._sinks[record.sink] = _Sink(record.query, record.batch)
            case SinkForgottenRecord(sink):
                self._sinks.pop(sink, None)
            case SinkPrepareCommitRecord():
                self._prepare(record)
            case SinkCommittedRecord():
                self._commit(record)
            case SinkAbortedRecord(sink, batch):
                commit = self._open.pop((sink, batch), None)
                if commit is not None:
                    commit.fate = Fate.ABORTED
            case _:
                assert_never(record)

    def _prepare(self, record: SinkPrepareCommitRecord) -> None:
        sink = self._sinks.setdefault(record.sink, _Sink(record.query))
        under_way = self._under_way(record.sink)
        if sink.query != record.query:
            if sink.batch != NO_BATCH or under_way:
                what = f"query {record.query!r} has prepared it, and the sink is of query {sink.query!r}"
                self._violate(record, what)
            sink.query = record.query
        expected = {part.txid: counted(part.participants) for part in record.parts}
        known = self._open.get((record.sink, record.batch))
        if known is not None and tuple(known.expected) == tuple(expected):
            return  # as the snapshot has it
        if known is not None:
            self._violate(record, "is prepared again, with other transactions, and was not aborted")
        elif record.batch <= sink.batch:
            self._violate(record, f"is prepared, and the sink has had batch {sink.batch}")
        elif under_way and record.batch < under_way[-1]:
            self._violate(record, f"is prepared, and the sink had come to batch {under_way[-1]}")
        commit = ToldCommit(record.sink, record.batch, Fate.PREPARED, expected)
        self.commits.append(commit)
        self._open[record.sink, record.batch] = commit

    def _commit(self, record: SinkCommittedRecord) -> None:
        sink = self._sinks.setdefault(record.sink, _Sink(""))
        placements = {part.txid: part.placements for part in record.parts}
        commit = self._open.pop((record.sink, record.batch), None)
        if commit is None:
            self._violate(record, "is committed, and nobody has prepared it")
            return
        if tuple(commit.expected) != tuple(placements):
            self._violate(record, "is committed with other transactions than were prepared")
        before = self._under_way(record.sink)
        if before and before[0] < record.batch:
            self._violate(record, f"is committed before batch {before[0]}, which was decided before it")
        commit.fate, commit.placements = Fate.COMMITTED, placements
        sink.batch = record.batch

    def _under_way(self, sink: str) -> list[int]:
        return sorted(batch for of, batch in self._open if of == sink)

    def _violate(self, record: SinkPrepareCommitRecord | SinkCommittedRecord, what: str) -> None:
        where = f"{self._where}, batch {record.batch} of sink {record.sink!r}"
        self.violations.append(Violation(where, what, 5, kind=Kind.DAMAGED_TRANSACTIONS))


def check_sink_commits(
    where: str,
    history: SinkHistory,
    logs: Mapping[LogId, LogView],
    parts: Mapping[TxId, Mapping[LogId, AppliedPart]],
    summary: Summary,
) -> Iterator[Violation]:
    """The sinks of the group journal `where` against `logs`: every log that there is.

    `parts` has what the logs know of each transaction.
    """
    yield from history.violations
    for record in history.fences:
        for place in record.placements:
            view = logs.get(place.log)
            if view is not None and place.base_offset + place.count > view.next_offset:
                what = f"has {place.count} records at {place.base_offset} of {view.name}, which ends at"
                whose = f"{where}, batch {record.batch} of sink {record.sink!r}"
                what = f"{what} {view.next_offset}"
                yield Violation(whose, what, 5, kind=Kind.PLACE_BEYOND_THE_END, log=place.log, offset=place.base_offset)
    for commit in history.commits:
        summary.counts[f"batches of sinks of which {commit.fate.name} is the last word"] += 1
        if commit.fate is not Fate.ABORTED:
            yield from _check_commit(f"{where}, batch {commit.batch} of sink {commit.sink!r}", commit, logs, parts)


def _check_commit(
    where: str,
    commit: ToldCommit,
    logs: Mapping[LogId, LogView],
    parts: Mapping[TxId, Mapping[LogId, AppliedPart]],
) -> Iterator[Violation]:
    placed = [(log, part) for txid in commit.expected for log, part in parts.get(txid, {}).items()]
    for of in by_shard(placed, logs).values():
        numbers = {part.apply_number for _, part in of}
        if len(numbers) > 1:
            what = f"was not placed as one: it has the apply numbers {sorted(numbers)}"
            log, last = max(of, key=lambda each: each[1].apply_number)
            yield Violation(where, what, 7, kind=Kind.APPLY_NUMBERS_DIFFER, log=log, offset=last.base_offset)
    there: list[tuple[int, LogId, str]] = []
    missing: list[tuple[LogId, str]] = []
    lost: list[tuple[LogId, str]] = []
    lanes_in: dict[LogId, list[TxId]] = {}
    for txid, expected in commit.expected.items():
        for log, count in expected.items():
            if log in logs:
                lanes_in.setdefault(log, []).append(txid)
                named = f"{txid} in {logs[log].name}"
                if (part := logs[log].applied.get(txid)) is not None:
                    there.append((part.base_offset, log, named))
                elif logs[log].lacks(txid):
                    missing.append((log, named))
                    if logs[log].has_lost(txid, count):
                        lost.append((log, named))
    if commit.fate is Fate.PREPARED and there:
        shards = {logs[log].shard for _, log, _ in there}
        half = [named for log, named in missing if logs[log].shard in shards]
        half += [named for log, named in lost if logs[log].shard not in shards]
        if half:
            what = f"half of it is copied: {', '.join(named for *_, named in there)}; and not {', '.join(half)}"
            base_offset, log, _ = min(there)
            yield Violation(where, what, 7, kind=Kind.HALF_A_TRANSACTION, log=log, offset=base_offset)
    for log, txids in lanes_in.items():
        if not logs[log].markers:
            yield from _check_neighbours(where, commit, log, logs[log].name, txids, parts)


def by_shard(
    placed: Iterable[tuple[LogId, AppliedPart]], logs: Mapping[LogId, LogView]
) -> Mapping[ShardNumber, Sequence[tuple[LogId, AppliedPart]]]:
    """Parts of transactions, with their logs. Each shard counts its apply numbers by itself."""
    found: dict[ShardNumber, list[tuple[LogId, AppliedPart]]] = {}
    for log, part in placed:
        found.setdefault(logs[log].shard, []).append((log, part))
    return found


def _check_neighbours(
    where: str,
    commit: ToldCommit,
    log: LogId,
    log_name: str,
    txids: Sequence[TxId],
    parts: Mapping[TxId, Mapping[LogId, AppliedPart]],
) -> Iterator[Violation]:
    due: int | None = None
    for txid in txids:
        place = _place_of(commit, txid, log, parts)
        if place is not None and due is not None and place[0] != due:
            what = f"transaction {txid} lies at offset {place[0]} of {log_name}, due is {due}, behind the lane before"
            yield Violation(where, what, 3, kind=Kind.LANES_APART, log=log, offset=place[0])
        due = None if place is None else place[0] + place[1]


def _place_of(
    commit: ToldCommit, txid: TxId, log: LogId, parts: Mapping[TxId, Mapping[LogId, AppliedPart]]
) -> tuple[int, int] | None:
    """Where the transaction's records are in the log, and how many; None if nobody knows."""
    for place in commit.placements.get(txid, ()):
        if place.log == log:
            return place.base_offset, place.count
    part = parts.get(txid, {}).get(log)
    return None if part is None else (part.base_offset, part.count)
