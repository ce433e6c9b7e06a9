"""Which batches of a log with markers were aborted, by the log's list of aborted transactions. Pure.

A producer has one transaction open at a time, so all its transactional batches between an aborted transaction's first
offset and its marker belong to that transaction. Clients find the same by following the batches in order. So a
producer's first marker after a batch decides about the batch, and is found by bisection: one read can decide about
thousands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import itemgetter

from datalog.batch import BatchHeader
from datalog.interface import AbortedTransaction
from fairlog_types import Offset, ProducerId

_marker_of = itemgetter(1)


class AbortedRanges:
    """The aborted transactions that a read has returned, in the order of their markers."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._of_producer: dict[ProducerId, list[tuple[Offset, Offset]]] = {}
        for each in aborted:
            self._of_producer.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))

    def contain(self, header: BatchHeader) -> bool:
        """Whether the batch contains data of one of them; their markers do not."""
        if not self._of_producer or not header.transactional or header.control:
            return False
        ranges = self._of_producer.get(header.producer_id, ())
        at = bisect_right(ranges, header.base_offset, key=_marker_of)
        return at < len(ranges) and ranges[at][0] <= header.base_offset
