"""What is to be copied, as batches that can be read before the copy has ended (`partition.newest`).

Only what the journal still has in memory: to read it back would take longer than the copy. Only in logs without
markers, where all that a reader of committed records may see is what is placed. A log's part of a transaction comes
as a whole or not at all.

The copier changes the same bytes later in its thread, to what they are already.
"""

from __future__ import annotations

from copier.plan import batches_at
from datalog.batch import patch
from datalog.interface import Batch
from fairlog_types import Offset
from journal.interface import OpenJournal
from partition.placed import PlacedBatch, PlacedTransaction


def batches_in_memory(item: PlacedBatch | PlacedTransaction, journal: OpenJournal) -> list[tuple[Offset, Batch]]:
    """The item's batches as the data log will have them, each with the offset behind it; none if one is missing."""
    found: list[tuple[Offset, Batch]] = []
    for base_offset, batch in batches_at(item):
        payload = journal.recent_payload(batch.position)
        if payload is None:
            return []
        patch(payload, base_offset, item.leader_epoch)
        found.append((Offset(base_offset + batch.record_count), memoryview(payload)))
    return found
