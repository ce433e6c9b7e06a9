"""Is every transactional batch where a transaction was placed, and every placed transaction there? Pure.

Who knows where a transaction's records are in a log: the producer's window (the last five), the group journal's
COMMITTED, the local journal's APPLY. They must agree. Each place must hold batches of that producer and epoch, from
its first offset to its last, and nothing else (invariants 1 and 3).

What is known of a producer begins somewhere: older transactions have been forgotten, with the journals that were cut.
But from the first place that is known of it in a log, all later ones are known: so a transactional batch behind that
which lies in no place was copied twice, or never committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Kind, Summary, Violation
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
    later_are_known: bool = field(default=True, compare=False)
    """So are all later places of its producer in this log."""

    @property
    def end(self) -> int:
        return self.base_offset + self.count


class KnownPlaces:
    """The places in one log, from all sources, in any order: one for each transaction, and what contradicts it."""

    def __init__(self, log_name: str, places: Iterable[KnownPlace], *, next_offset: int) -> None:
        self._log_name = log_name
        self._next_offset = next_offset
        self._contradictions: list[Violation] = []
        self.known_from: dict[ProducerId, int] = {}
        """From here on all places of that producer are known."""
        by_txid: dict[TxId, KnownPlace] = {}
        for place in sorted(places):
            if place.count and place.later_are_known:
                self.known_from.setdefault(place.txid.producer_id, place.base_offset)
            known = by_txid.setdefault(place.txid, place)
            if (known.base_offset, known.count) != (place.base_offset, place.count):
                what = (
                    f"{known.told_by} has {known.count} records of transaction {place.txid} here, {place.told_by} has "
                    f"{place.count} at offset {place.base_offset}"
                )
                self._contradictions.append(self._violation(known, what, 4, Kind.CONTRADICTING_PLACES))
        self.places: Sequence[KnownPlace] = sorted(place for place in by_txid.values() if place.count)
        """One for each transaction, by their offsets."""

    def check(self) -> Iterator[Violation]:
        """What can be said of them without looking at the log."""
        yield from self._contradictions
        for place in self.places:
            if place.end > self._next_offset:
                what = (
                    f"{place.told_by} has {place.count} records of transaction {place.txid} here, and the log ends at "
                    f"{self._next_offset}"
                )
                yield self._violation(place, what, 5, Kind.PLACE_BEYOND_THE_END)

    def check_overlaps(self) -> Iterator[Violation]:
        """For logs in which a transaction's records follow one another."""
        for before, after in pairwise(self.places):
            if after.base_offset < before.end:
                what = f"transactions {before.txid} and {after.txid} are both placed here"
                yield self._violation(after, what, 3, Kind.PLACES_OVERLAP)

    def _violation(self, place: KnownPlace, what: str, invariant: int, kind: Kind) -> Violation:
        where = f"{self._log_name}, offset {place.base_offset}"
        return Violation(where, what, invariant, kind=kind, offset=place.base_offset)


@dataclass(slots=True)
class _Reached:
    """A place that the batches have come to."""

    place: KnownPlace
    found: int = 0
    """How many of its offsets are batches of its producer and epoch, from `whole_from` on."""


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
        self._known = KnownPlaces(log_name, places, next_offset=next_offset)
        self._ahead = deque(self._known.places)
        self._reached: list[_Reached] = []
        """Places that the present batch may lie in: more than one if they overlap."""

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        while self._ahead and self._ahead[0].base_offset <= batch.last_offset:
            self._reached.append(_Reached(self._ahead.popleft()))
        for each in self._reached:
            if each.place.end <= batch.base_offset:
                yield from self._leave(each)
        self._reached = [each for each in self._reached if each.place.end > batch.base_offset]
        if batch.header.control:
            return
        if self._reached:
            yield from self._inside(batch)
        elif batch.header.transactional:
            yield from self._outside(batch)

    def finish(self) -> Iterator[Violation]:
        yield from self._known.check()
        yield from self._known.check_overlaps()
        for each in (*self._reached, *map(_Reached, self._ahead)):
            yield from self._leave(each)

    def _outside(self, batch: KeptBatch) -> Iterator[Violation]:
        producer_id = batch.header.producer_id
        known_from = self._known.known_from.get(producer_id)
        if known_from is None or batch.base_offset < known_from:
            self._summary.counts["transactional batches older than what is known of their producers"] += 1
            return
        what = (
            f"a transactional batch of producer {producer_id}, epoch {batch.header.producer_epoch}, that no committed "
            "transaction has here: copied twice, or never committed"
        )
        yield Violation(batch.where, what, 1, kind=Kind.UNKNOWN_TRANSACTION, offset=batch.base_offset)

    def _inside(self, batch: KeptBatch) -> Iterator[Violation]:
        header, fits = batch.header, False
        for each in self._reached:
            place = each.place
            is_own = header.transactional and (header.producer_id, header.producer_epoch) == place.txid[:2]
            if is_own and batch.base_offset >= place.base_offset and batch.last_offset < place.end:
                fits = True
                if batch.last_offset >= self._whole_from:
                    each.found += batch.last_offset + 1 - max(batch.base_offset, self._whole_from)
        if fits:
            self._summary.counts["transactional batches found in their places"] += 1
            return
        place = self._reached[0].place
        what = f"transaction {place.txid} has offsets {place.base_offset} to {place.end - 1}"
        if not header.transactional:  # the audit tells it as a torn transaction
            whose = f"a plain batch of producer {header.producer_id}, epoch {header.producer_epoch}"
            yield Violation(batch.where, f"{what}; among them is {whose}", 3)
            return
        if (header.producer_id, header.producer_epoch) == place.txid[:2]:
            found = f"a batch reaches from {batch.base_offset} to {batch.last_offset}"
        else:
            found = f"among them is a transactional batch of producer {header.producer_id}, epoch"
            found = f"{found} {header.producer_epoch}"
        yield Violation(batch.where, f"{what}; {found}", 3, kind=Kind.STRANGER, offset=batch.base_offset)

    def _leave(self, each: _Reached) -> Iterator[Violation]:
        """All batches before the place's end have been seen."""
        place = each.place
        if place.end <= self._whole_from or place.end > self._next_offset:
            return  # what is deleted is not asked for, and what lies beyond the end is a violation by itself
        due = place.end - max(place.base_offset, self._whole_from)
        if each.found == due:
            self._summary.counts["parts of transactions found whole"] += 1
            return
        where = f"{self._log_name}, offset {place.base_offset}"
        what = (
            f"{place.told_by} has {place.count} records of transaction {place.txid} from here on; {each.found} of "
            f"{due} offsets are there as its records"
        )
        yield Violation(where, what, 5, kind=Kind.TORN_TRANSACTION, offset=place.base_offset)
