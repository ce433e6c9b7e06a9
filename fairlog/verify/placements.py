"""Is every transactional batch where a transaction was placed, and every placed transaction there? Pure.

Who knows where a transaction's records are in a log: the producer's window (the last five), the group journal's
COMMITTED, the local journal's APPLY. They must agree. Each place must hold batches of that producer and epoch, from
its first offset to its last, and nothing else (invariants 1 and 3).

What is known of a producer begins somewhere: older transactions have been forgotten, with the journals that were cut.
But from the first place that is known of it in a log, all later ones are known: so a transactional batch behind that
which lies in no place was copied twice, or never committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.rules import LogRules
from fairlog_types import ProducerId, TxId


@dataclass(frozen=True, slots=True, order=True)
class KnownPlace:
    """`count` records of a transaction, from `base_offset` of one log."""

    base_offset: int
    count: int
    txid: TxId
    told_by: str
    """Who says so, for a violation."""

    @property
    def end(self) -> int:
        return self.base_offset + self.count


class PlacementsCheck:
    """One log's transactions."""

    def __init__(
        self,
        log_name: str,
        places: Iterable[KnownPlace],
        *,
        log_start: int,
        next_offset: int,
        rules: LogRules,
        summary: Summary,
    ) -> None:
        """`places` are of what has been copied, from all sources, in any order."""
        self._log_name = log_name
        self._next_offset = next_offset
        self._whole_from = max(log_start, rules.holes_before)
        self._summary = summary
        self._contradictions: list[Violation] = []
        self._places = self._merged(places)
        self._at = 0
        self._covered_to = 0
        """Within the present place: the offset that is due next."""
        self._known_from: dict[ProducerId, int] = {}
        for place in self._places:
            self._known_from.setdefault(place.txid.producer_id, place.base_offset)

    def _merged(self, places: Iterable[KnownPlace]) -> list[KnownPlace]:
        by_txid: dict[TxId, KnownPlace] = {}
        for place in sorted(places):
            known = by_txid.setdefault(place.txid, place)
            if (known.base_offset, known.count) != (place.base_offset, place.count):
                what = (
                    f"{place.told_by} has {place.count} records of transaction {place.txid} here, {known.told_by} has "
                    f"{known.count} at offset {known.base_offset}"
                )
                self._contradictions.append(Violation(f"{self._log_name}, offset {place.base_offset}", what, 4))
        merged = sorted(place for place in by_txid.values() if place.count)
        for before, after in pairwise(merged):
            if after.base_offset < before.end:
                what = f"transactions {before.txid} and {after.txid} are both placed here"
                self._contradictions.append(Violation(f"{self._log_name}, offset {after.base_offset}", what, 3))
        return merged

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        while self._at < len(self._places) and self._places[self._at].end <= batch.base_offset:
            yield from self._leave(self._places[self._at])
            self._at += 1
        place = self._places[self._at] if self._at < len(self._places) else None
        if place is None or batch.last_offset < place.base_offset:
            yield from self._outside(batch)
            return
        yield from self._inside(place, batch)
        self._covered_to = batch.last_offset + 1

    def finish(self) -> Iterator[Violation]:
        yield from self._contradictions
        for place in self._places[self._at :]:
            yield from self._leave(place)

    def _outside(self, batch: KeptBatch) -> Iterator[Violation]:
        if not batch.header.transactional:
            return
        producer_id = batch.header.producer_id
        known_from = self._known_from.get(producer_id)
        if known_from is None or batch.base_offset < known_from:
            self._summary.counts["transactional batches older than what is known of their producers"] += 1
            return
        what = (
            f"a transactional batch of producer {producer_id}, epoch {batch.header.producer_epoch}, that no committed "
            "transaction has here: copied twice, or never committed"
        )
        yield Violation(batch.where, what, 1)

    def _inside(self, place: KnownPlace, batch: KeptBatch) -> Iterator[Violation]:
        header = batch.header
        self._summary.counts["transactional batches found in their places"] += 1
        what = f"transaction {place.txid} has offsets {place.base_offset} to {place.end - 1}"
        if not header.transactional or (header.producer_id, header.producer_epoch) != place.txid[:2]:
            kind = "transactional" if header.transactional else "plain"
            whose = f"a {kind} batch of producer {header.producer_id}, epoch {header.producer_epoch}"
            yield Violation(batch.where, f"{what}; among them is {whose}", 3)
        elif batch.base_offset < place.base_offset or batch.last_offset >= place.end:
            where = f"a batch reaches from {batch.base_offset} to {batch.last_offset}"
            yield Violation(batch.where, f"{what}; {where}", 3)

    def _leave(self, place: KnownPlace) -> Iterator[Violation]:
        """All batches before the place's end have been seen."""
        if place.end <= self._whole_from:
            return
        if place.end > self._next_offset:
            what = (
                f"{place.told_by} has {place.count} records of transaction {place.txid} here, and the log ends at "
                f"{self._next_offset}"
            )
            yield Violation(f"{self._log_name}, offset {place.base_offset}", what, 5)
        elif self._covered_to < place.end:
            due = max(self._covered_to, place.base_offset, self._whole_from)
            what = (
                f"{place.told_by} has {place.count} records of transaction {place.txid} from offset "
                f"{place.base_offset} on; from {due} on they are missing"
            )
            yield Violation(f"{self._log_name}, offset {due}", what, 5)
        else:
            self._summary.counts["parts of transactions found whole"] += 1
