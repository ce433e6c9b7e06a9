"""The group journals against all logs: each committed transaction once and whole, in its group's order. Pure.

    COMMITTED           every expected part is placed, with the count that PREPARE_COMMIT expects       invariant 5
    PREPARE_COMMIT      copied in all logs of a shard or in none; a shard that lags behind another
                        still holds all of its part, and places it at the next start               invariant 7
    PREPARE_ABORT, BEGIN     placed nowhere                                                            invariant 1
    one group           its transactions lie in every log in the order of their PREPARE_COMMITs        invariant 6
    commit numbers      those of the PREPARE_COMMITs are 1, 2, 3, …                                   invariant 6
    a sink's batch      see `sink_commits`
    one transaction     has one apply number in all its logs of a shard
    PREPARED            is of a coordinator in another shard, which knows what is placed           invariants 1, 5

A group journal tells of the last five transactions of each id, and of all since its last snapshot. What a log knows of
a transaction comes from its producers' windows and its journal (`LogView`). Logs that were deleted are left out
(docs/decisions/0003-deleted-topics.md).

PREPARE_COMMIT does not count what logs of other shards hold (docs/decisions/0052-transactions-over-shards.md). That is
what their PREPAREDs count; where the journal has it no more, what was applied.

A transaction that is there in part is what a node leaves that was killed in the middle of its second recovery in a row
(docs/copying.md): no reader sees that, and the next start mends it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    Expectation,
    ExpiredRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
    SinkRecords,
)
from coordinator.lane_ids import group_of_sink, lane_id
from coordinator.messages import UNCOUNTED
from fairlog.verify.findings import Kind, Summary, Violation
from fairlog.verify.journals import AppliedPart
from fairlog.verify.placements import KnownPlace
from fairlog.verify.sink_commits import ONLY_SHARD, Fate, LogView, SinkHistory, by_shard, check_sink_commits, counted
from fairlog_types import LogId, Offset, Placement, ProducerId, ShardNumber, TxId


@dataclass(slots=True)
class Told:
    """What a group journal tells of one transaction."""

    txid: TxId
    transactional_id: str
    fate: Fate
    group: str
    """Whose transactions have one commit order."""
    commit_number: int | None = None
    """None if the PREPARE_COMMIT is not there any more."""
    expected: Mapping[LogId, int] | None = None
    """Records of each participant that has any, as far as the coordinator has counted them; None if the PREPARE_COMMIT
    is not there any more."""
    count_themselves: Collection[LogId] = ()
    """Participants in other shards, which the coordinator has not counted."""
    placements: Sequence[Placement] = ()


@dataclass(slots=True)
class GroupHistory:
    """One group journal, read to its end."""

    where: str
    told: dict[TxId, Told] = field(default_factory=dict[TxId, Told])
    commits: dict[TxId, None] = field(default_factory=dict[TxId, None])
    """In the order of their first PREPARE_COMMITs; in a snapshot, that of its records."""
    groups: dict[str, str] = field(default_factory=dict[str, str])
    """By transactional id, as its last record tells."""
    last_commit_number: int = 0
    """That of the last PREPARE_COMMIT so far, or of the last before the snapshot."""
    missing: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Commit numbers that follow each other, with a gap between."""
    loses_nothing: bool = True
    """It was written with fsync=commit: whatever was placed is told."""
    forgets_nothing: bool = True
    """It has no snapshot: whatever was ever told is told still."""
    shard: ShardNumber = ONLY_SHARD
    """Of the coordinator whose journal it is."""
    sinks: SinkHistory = field(init=False)

    def __post_init__(self) -> None:
        self.sinks = SinkHistory(self.where)

    def tell(self, txid: TxId, transactional_id: str, fate: Fate) -> Told:
        """What is told of the transaction so far; of one that is new, this fate."""
        group = self.groups.get(transactional_id, transactional_id)
        return self.told.setdefault(txid, Told(txid, transactional_id, fate, group))

    def note_commit_number(self, number: int) -> None:
        """Of a PREPARE_COMMIT. One that is written again, or is a snapshot's, has a number that is past."""
        if number > self.last_commit_number:
            if number > self.last_commit_number + 1:
                self.missing.append((self.last_commit_number, number))
            self.last_commit_number = number

    def note_prepared(
        self, txid: TxId, transactional_id: str, participants: Mapping[LogId, Expectation], commit_number: int
    ) -> None:
        """The transaction is to be committed, if all participants hold what is expected."""
        told = self.tell(txid, transactional_id, Fate.PREPARED)
        told.commit_number = commit_number
        told.fate = Fate.PREPARED if told.fate is Fate.BEGUN else told.fate
        told.expected = counted(participants)
        told.count_themselves = [log for log, it in participants.items() if it.records == UNCOUNTED]
        self.commits.setdefault(txid)

    def note_committed(self, txid: TxId, transactional_id: str, placements: Sequence[Placement]) -> None:
        """The transaction is copied."""
        told = self.tell(txid, transactional_id, Fate.COMMITTED)
        told.fate, told.placements = Fate.COMMITTED, placements
        self.commits.setdefault(txid)


def read_history(where: str, records: Iterable[GroupRecord], *, commit_number: int = 0) -> GroupHistory:
    """Sort a group journal's records by transaction. `commit_number` is the last one before its snapshot."""
    history = GroupHistory(where, last_commit_number=commit_number)
    for record in records:
        match record:
            case ProducerRecord(transactional_id, group):
                history.groups[transactional_id] = group
            case ExpiredRecord():
                pass
            case BeginRecord(txid, transactional_id):
                history.tell(txid, transactional_id, Fate.BEGUN)
            case PrepareCommitRecord(txid, transactional_id, participants, commit_number=number):
                history.note_commit_number(number)
                history.note_prepared(txid, transactional_id, participants, number)
            case CommittedRecord(txid, transactional_id, placements):
                history.note_committed(txid, transactional_id, placements)
            case PrepareAbortRecord(txid, transactional_id) | AbortedRecord(txid, transactional_id):
                told = history.tell(txid, transactional_id, Fate.ABORTED)
                told.fate = Fate.ABORTED
            case _:
                _read_of_sink(history, record)
    return history


def _read_of_sink(history: GroupHistory, record: SinkRecords) -> None:
    history.sinks.take(record)
    match record:
        case SinkPrepareCommitRecord(sink, commit_number=number, parts=prepared):
            history.note_commit_number(number)
            for part in prepared:
                history.groups[lane_id(sink, part.slot)] = group_of_sink(sink)
                history.note_prepared(part.txid, lane_id(sink, part.slot), part.participants, number)
        case SinkCommittedRecord(sink, parts=committed):
            for part in committed:
                history.note_committed(part.txid, lane_id(sink, part.slot), part.placements)
        case SinkAbortedRecord():
            for commit in history.sinks.commits:
                if commit.fate is Fate.ABORTED and (commit.sink, commit.batch) == (record.sink, record.batch):
                    for txid in commit.expected:
                        history.told[txid].fate = Fate.ABORTED
        case SinkRecord() | SinkForgottenRecord():
            pass


def committed_places(histories: Sequence[GroupHistory]) -> Mapping[LogId, Sequence[KnownPlace]]:
    """What COMMITTED tells of each log. Of a journal that may have lost some, nothing: `placements` needs all."""
    places: dict[LogId, list[KnownPlace]] = {}
    for history in histories:
        if history.loses_nothing:
            for told in history.told.values():
                for place in told.placements:
                    known = KnownPlace(place.base_offset, place.count, told.txid, f"COMMITTED in {history.where}")
                    places.setdefault(place.log, []).append(known)
    return places


def check_transactions(
    histories: Sequence[GroupHistory], logs: Mapping[LogId, LogView], summary: Summary
) -> Iterator[Violation]:
    """All that the group journals tell, against `logs`: every log that there is."""
    parts: dict[TxId, dict[LogId, AppliedPart]] = {}
    for log, view in logs.items():
        for txid, part in (*view.pending.items(), *view.applied.items()):
            parts.setdefault(txid, {})[log] = part
    for history in histories:
        for told in history.told.values():
            yield from _check_one(history, told, logs, parts.get(told.txid, {}))
            summary.counts[f"transactions of which {told.fate.name} is the last word"] += 1
        yield from check_sink_commits(history.where, history.sinks, logs, parts, summary)
        for before, number in history.missing:
            what = f"PREPARE_COMMIT {before} is followed by {number}: {number - before - 1} are missing"
            yield Violation(history.where, what, 6)
        yield from _check_order(history, logs, parts)
        yield from _check_told(history, logs, parts)
    for txid, placed in parts.items():
        for of in by_shard(placed.items(), logs).values():
            if len({part.apply_number for _, part in of}) < 2:
                continue
            named = ", ".join(f"{part.apply_number} in {logs[log].name}" for log, part in of)
            log, last = max(of, key=lambda each: each[1].apply_number)
            what = f"has more than one apply number: {named}"
            kind = Kind.APPLY_NUMBERS_DIFFER
            yield Violation(f"transaction {txid}", what, 6, kind=kind, log=log, offset=last.base_offset)


def _check_one(
    history: GroupHistory, told: Told, logs: Mapping[LogId, LogView], parts: Mapping[LogId, AppliedPart]
) -> Iterator[Violation]:
    where = f"{history.where}, transaction {told.txid} of {told.transactional_id!r}"
    expected = {log: count for log, count in (told.expected or {}).items() if log in logs}
    unknown: list[LogId] = []
    for log in told.count_themselves:
        if log not in logs:
            continue
        count = logs[log].count_of(told.txid)
        if count is None:
            unknown.append(log)
        elif count:
            expected[log] = count
        if (parts or told.fate is Fate.COMMITTED) and logs[log].has_not_prepared(told.txid):
            yield Violation(where, f"is decided, and {logs[log].name} has not prepared it", 5)
    if told.fate is Fate.COMMITTED:
        yield from _check_committed(where, told, expected, unknown, logs, parts)
    elif told.fate is Fate.PREPARED:
        yield from _check_half(where, told, expected, logs)
        if history.loses_nothing:
            yield from _check_lagging(where, told, expected, logs, parts)
        for log, part in parts.items():
            if part.count != expected.get(log, 0):
                what = f"{expected.get(log, 0)} records are expected in {logs[log].name}, placed are {part.count}"
                yield Violation(where, what, 5, kind=Kind.WRONG_COUNT, log=log, offset=part.base_offset)
    elif history.loses_nothing:
        for log, part in parts.items():
            what = f"{told.fate.value}, yet {part.count} records of it are placed at {part.base_offset}"
            what = f"{what} of {logs[log].name}"
            yield Violation(where, what, 1, kind=Kind.NEVER_COMMITTED, log=log, offset=part.base_offset)


def _check_half(
    where: str, told: Told, expected: Mapping[LogId, int], logs: Mapping[LogId, LogView]
) -> Iterator[Violation]:
    """What a shard has copied, it has copied in all its logs."""
    for shard in sorted({logs[log].shard for log in expected}):
        here = [log for log in expected if logs[log].shard == shard]
        copied = {log: logs[log].applied[told.txid] for log in here if told.txid in logs[log].applied}
        missing = [logs[log].name for log in here if logs[log].lacks(told.txid)]
        if copied and missing:
            there = ", ".join(logs[log].name for log in copied)
            what = f"half of it is copied: it is in {there}, and not in {', '.join(missing)}"
            log, first = min(copied.items(), key=lambda each: each[1].base_offset)
            yield Violation(where, what, 7, kind=Kind.HALF_A_TRANSACTION, log=log, offset=first.base_offset)


def _check_lagging(
    where: str,
    told: Told,
    expected: Mapping[LogId, int],
    logs: Mapping[LogId, LogView],
    parts: Mapping[LogId, AppliedPart],
) -> Iterator[Violation]:
    """What one shard has placed, each other one has placed, or holds until it does."""
    for log, count in expected.items():
        view = logs[log]
        placed = {other: part for other, part in parts.items() if logs[other].shard != view.shard}
        if placed and view.has_lost(told.txid, count):
            there = ", ".join(logs[other].name for other in placed)
            what = f"half of it is placed: it is in {there}, and {view.name} neither has nor holds its {count} records"
            other, first = min(placed.items(), key=lambda each: each[1].base_offset)
            yield Violation(where, what, 7, kind=Kind.HALF_A_TRANSACTION, log=other, offset=first.base_offset)


def check_prepared(
    histories: Sequence[GroupHistory], logs: Mapping[LogId, LogView], whole: Collection[ShardNumber]
) -> Iterator[Violation]:
    """Each PREPARED is of a coordinator in another shard, which knows what is placed.

    What it does not know, and is open, the next start aborts. `whole`: the shards of which all group journals were
    read; only if they also lose and forget nothing, it is certain what their coordinators do not know.
    """
    known = {txid: history for history in histories for txid in history.told}
    uncertain = {history.shard for history in histories if not (history.loses_nothing and history.forgets_nothing)}
    for view in logs.values():
        for txid, prepared in view.prepared.items():
            where, coordinator = f"transaction {txid}", prepared.coordinator_shard
            teller = known.get(txid)
            if coordinator == view.shard or (teller is not None and teller.shard != coordinator):
                told_by = "" if teller is None else f", and {teller.where} tells of it"
                what = f"{view.name} has prepared it for a coordinator in shard {coordinator}{told_by}"
                yield Violation(where, what, 5)
                continue
            part = view.pending.get(txid) or view.applied.get(txid)
            if teller is None and part is not None and coordinator in set(whole) - uncertain:
                what = (
                    f"{part.count} records of it are placed at {part.base_offset} of {view.name}, and its coordinator "
                    f"in shard {coordinator} knows nothing of it"
                )
                yield Violation(where, what, 1)


def _check_committed(
    where: str,
    told: Told,
    expected: Mapping[LogId, int],
    unknown: Collection[LogId],
    logs: Mapping[LogId, LogView],
    parts: Mapping[LogId, AppliedPart],
) -> Iterator[Violation]:
    placed = {placement.log: placement for placement in told.placements if placement.log in logs}
    for log, count in expected.items():
        there = placed[log].count if log in placed else 0
        if there != count:
            what = f"COMMITTED has {there} records in {logs[log].name}, PREPARE_COMMIT expected {count}"
            offset = placed[log].base_offset if log in placed else None
            yield Violation(where, what, 5, kind=Kind.WRONG_COUNT, log=log, offset=offset)
    if told.expected is not None:
        for log in placed.keys() - expected.keys() - set(unknown):
            what = f"COMMITTED has records in {logs[log].name}, where none were expected"
            yield Violation(where, what, 1, kind=Kind.WRONG_COUNT, log=log, offset=placed[log].base_offset)
    for log, placement in placed.items():  # without a kind: to the audit `placements` tells these
        view, part = logs[log], parts.get(log)
        if part is not None and (part.base_offset, part.count) != (placement.base_offset, placement.count):
            what = (
                f"COMMITTED has {placement.count} records at {placement.base_offset} of {view.name}, the log knows of "
                f"{part.count} at {part.base_offset}"
            )
            yield Violation(where, what, 4)
        elif part is None and view.open is not None and told.txid in view.open:
            what = (
                f"COMMITTED has {placement.count} records at {placement.base_offset} of {view.name}, where it is open"
            )
            yield Violation(where, what, 5)
        elif part is None and placement.base_offset + placement.count > view.next_offset:
            what = (
                f"COMMITTED has {placement.count} records at {placement.base_offset} of {view.name}, which ends at "
                f"{view.next_offset}"
            )
            yield Violation(where, what, 5)


def _check_order(
    history: GroupHistory, logs: Mapping[LogId, LogView], parts: Mapping[TxId, Mapping[LogId, AppliedPart]]
) -> Iterator[Violation]:
    """Each group's transactions, in the order of their PREPARE_COMMITs, lie one after the other in every log.

    A snapshot has the commits of one id in their order, and has no numbers of those that are copied: so these are
    compared within their id only. With markers, the records of several ids lie where they were written.
    """
    committed = [it for it in map(history.told.__getitem__, history.commits) if it.fate is not Fate.ABORTED]
    places = {
        it.txid: {log: part.base_offset for log, part in parts.get(it.txid, {}).items() if part.count}
        | {place.log: place.base_offset for place in it.placements if place.log in logs}
        for it in committed
    }
    last: dict[tuple[str, LogId], tuple[Told, int]] = {}
    for told in committed:
        for log, base_offset in places[told.txid].items():
            before, last[key] = last.get(key := (told.transactional_id, log)), (told, base_offset)
            if before is not None and base_offset <= before[1]:
                yield _not_in_order(history, told, base_offset, *before, log, logs)
    shared = {it.group for it in committed if it.group != it.transactional_id}
    numbered = [(it.commit_number, at) for at, it in enumerate(committed) if it.commit_number and it.group in shared]
    last.clear()
    for told in (committed[at] for _, at in sorted(numbered)):
        for log, base_offset in places[told.txid].items():
            if logs[log].markers:
                continue
            before, last[key] = last.get(key := (told.group, log)), (told, base_offset)
            # Those of one id are told above, and the lanes of one batch have one number.
            if before is None or told.transactional_id == before[0].transactional_id:
                continue
            if base_offset <= before[1] and told.commit_number != before[0].commit_number:
                yield _not_in_order(history, told, base_offset, *before, log, logs)


def _not_in_order(
    history: GroupHistory,
    told: Told,
    base_offset: int,
    before: Told,
    before_offset: int,
    log: LogId,
    logs: Mapping[LogId, LogView],
) -> Violation:
    what = (
        f"lies at offset {base_offset} of {logs[log].name}, and {before.txid}, which its group has committed before "
        f"it, at {before_offset}"
    )
    where = f"{history.where}, transaction {told.txid} of {told.transactional_id!r}"
    return Violation(where, what, 6, kind=Kind.WRONG_ORDER, log=log, offset=Offset(base_offset))


def _check_told(
    history: GroupHistory, logs: Mapping[LogId, LogView], parts: Mapping[TxId, Mapping[LogId, AppliedPart]]
) -> Iterator[Violation]:
    """What a log has of a producer, later than the first commit of it that is told, must be told as well."""
    if not history.loses_nothing:
        return
    first: dict[ProducerId, TxId] = {}
    for txid in history.commits:
        if history.told[txid].fate is not Fate.ABORTED:
            first.setdefault(txid.producer_id, txid)
    for txid, placed in parts.items():
        known_from = first.get(txid.producer_id)
        if known_from is not None and known_from < txid and txid not in history.told:
            log, part = next(iter(placed.items()))
            what = f"{part.count} records of it are placed at {part.base_offset} of {logs[log].name}, and no"
            what, kind = f"{what} PREPARE_COMMIT tells of it", Kind.UNKNOWN_TRANSACTION
            where = f"{history.where}, transaction {txid}"
            yield Violation(where, what, 1, kind=kind, log=log, offset=part.base_offset)
