"""Which batches of sinks are in a backup: a sink's fence as of the cut. Pure.

The rows of a batch are in the data logs, its fence is in a group journal, and the two are not read at one moment. But
the group journals name every batch before its rows can be seen (SINK_PREPARE_COMMIT) and once more afterwards
(SINK_COMMITTED). So they are read after the cut, and each batch that they name is looked for in the cut:

    journals   ├── read: known ──┤        ├── read: all ──┤
    data logs                        cut                        ─▶ time

    the last record of the batch     the batch is in the cut …
    SINK, in a snapshot              yes: its snapshot was complete before the cut (`group_journals` makes sure)
    SINK_COMMITTED, known           yes: it was visible before the cut
    SINK_COMMITTED, after that      if its places are: before the log's end, and not open there (marker mode)
    SINK_PREPARE_COMMIT             if the producers' windows know its transactions; and they know the places
    SINK_ABORTED                    no

What is in the cut is folded as a restart folds it, with the same code; so the fence is there if and only if the rows
of its batch are. A batch without rows leaves no trace in the cut: if it was not known before, its sink has the fence of
the previous batch, and a replay commits an empty batch once more. A log that the cut does not have is ignored: it is
deleted, being deleted, or not created yet.

A batch is in the cut as a whole or not at all (invariant 7); one that is there in part is damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.group_records import (
    CommittedPart,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
    SinkRecords,
)
from coordinator.replay import replay
from coordinator.sink_commits import NO_BATCH
from fairlog_types import CorruptStorage, LogId, Offset, Placement, TxId


class Cut(Protocol):
    """The data logs, as of one moment."""

    def next_offset(self, log: LogId) -> Offset | None:
        """Where the log ends; None if there is no such log, or it is being deleted."""
        ...

    def is_open(self, log: LogId, txid: TxId) -> bool:
        """Whether the transaction is open there, in a log of marker mode."""
        ...

    def placed(self, log: LogId, txid: TxId) -> Placement | None:
        """Where the transaction is, if it is one of its producer's last."""
        ...


@dataclass(frozen=True, slots=True)
class ToldOfSinks:
    """What one group journal says about sinks."""

    records: Sequence[SinkRecords]
    """From the last complete snapshot on, in the journal's order. It was complete before the cut."""
    known: int
    """How many of them are known to have been written before the cut; some of the others may have been, too."""


def fences_of(told: Iterable[ToldOfSinks], cut: Cut) -> tuple[SinkRecord, ...]:
    """The sinks that have a batch in the cut, by name. Raises CorruptStorage if one is there in part."""
    fences: list[SinkRecord] = []
    for journal in told:
        sinks = replay(_in_the_cut(journal, cut)).sinks.values()
        fences += (state.record() for state in sinks if state.fence.batch != NO_BATCH)
    return tuple(sorted(fences, key=lambda fence: fence.sink))


def _in_the_cut(told: ToldOfSinks, cut: Cut) -> Iterator[SinkRecords]:
    """The records, without SINK_COMMITTED of what is not in the cut, and with one for all that is."""
    undecided: dict[tuple[str, int], SinkPrepareCommitRecord] = {}
    for index, record in enumerate(told.records):
        match record:
            case SinkPrepareCommitRecord(sink, batch=batch):
                undecided[sink, batch] = record
            case SinkCommittedRecord(sink, batch) | SinkAbortedRecord(sink, batch):
                undecided.pop((sink, batch), None)
            case _:
                pass
        if not isinstance(record, SinkCommittedRecord) or index < told.known or _is_there(record, cut):
            yield record
    for record in undecided.values():
        places = _places_of(record, cut)
        if places:
            parts = tuple(CommittedPart(it.slot, it.txid, tuple(places.get(it.txid, ()))) for it in record.parts)
            yield SinkCommittedRecord(record.sink, record.batch, parts, record.timestamp_ms)


def _is_there(record: SinkCommittedRecord, cut: Cut) -> bool:
    """Whether all its places are in the cut."""
    found: list[bool] = []
    for part in record.parts:
        for place in part.placements:
            end = cut.next_offset(place.log)
            if end is not None:
                found.append(place.base_offset + place.count <= end and not cut.is_open(place.log, part.txid))
    return _all_or_none(record, found)


def _places_of(record: SinkPrepareCommitRecord, cut: Cut) -> Mapping[TxId, Sequence[Placement]]:
    """Where its transactions are in the cut; nothing if it is not there."""
    places: dict[TxId, list[Placement]] = {}
    found: list[bool] = []
    for part in record.parts:
        for log, expected in part.participants.items():
            if expected.records and cut.next_offset(log) is not None:
                place = cut.placed(log, part.txid)
                found.append(place is not None)
                if place is not None:
                    places.setdefault(part.txid, []).append(place)
    return places if _all_or_none(record, found) else {}


def _all_or_none(record: SinkCommittedRecord | SinkPrepareCommitRecord, found: Sequence[bool]) -> bool:
    if any(found) and not all(found):
        raise CorruptStorage(f"only a part of batch {record.batch} of sink {record.sink!r} is in the data logs")
    return any(found)
