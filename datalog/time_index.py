"""Where a search for a timestamp begins: the rule of the sparse time index.

Timestamps are the clients', so they need not grow along a log; the *running max*, the largest timestamp up to a batch,
does. An entry says:

    (P → b)   every batch before b has a max timestamp of at most P, and b has a larger one.

A batch is named by its key, its last offset. The entry is written when a batch makes the running max grow and at least
`ENTRY_SPACING_BYTES` have been appended since the last entry. P is the running max *before* the batch, so that a long
stretch without growth costs nothing:

    batches      ▁▂▃▅▅▅▃▃▅▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▆
                 │◀─ spacing ─▶│                 ▲ entry (P = ▅ → here)

Lookup of T: the entry with the largest P < T (or the log's start, if there is none), then batch headers forward. All
growth between two entries is within the spacing after the first, so the scan is short. It can be longer only where
retention has removed the batches that held a running max. The first batch whose max timestamp is at least T holds the
answer.

Retention deletes a batch's entry with the batch. Compaction leaves entries as they are: whatever is removed from a log,
an entry stays true for the batches before b, and if b was removed, the search begins with the next batch.

If either of them removes the batch that first reached the log's max, then the running max is only an upper bound, and
no entry is added until it is exceeded. The index is then *behind*: correct, but searches may be long.
`datalog.reindexing` rebuilds it by the same rule from the remaining batches.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable

from datalog.layout import NO_TIMESTAMP, LogRecord
from fairlog_types import Offset

ENTRY_SPACING_BYTES = 1 << 20
"""An entry costs about 30 bytes and a page write; a scan of this much takes well under a millisecond."""


def note(record: LogRecord, last_offset: Offset, max_timestamp_ms: int, size_bytes: int) -> int | None:
    """Account for an appended batch; returns P if an entry (P → this batch) is due."""
    previous = record.max_timestamp_ms
    due = (
        max_timestamp_ms > previous
        and previous != NO_TIMESTAMP  # the first batch is found from the log's start
        and record.unindexed_bytes >= ENTRY_SPACING_BYTES
    )
    if max_timestamp_ms > previous:
        record.max_timestamp_ms = max_timestamp_ms
        record.max_timestamp_at = last_offset
    record.unindexed_bytes = size_bytes if due else record.unindexed_bytes + size_bytes
    return previous if due else None


def note_all(record: LogRecord, kept: Iterable[tuple[Offset, int, int]]) -> list[tuple[int, Offset]]:
    """Account for batches in order; returns the entries (P, b) that are due.

    `kept` gives (last offset, max timestamp in ms, size in bytes). A `record` without timestamps starts a new index.
    """
    entries: list[tuple[int, Offset]] = []
    for last_offset, max_timestamp_ms, size_bytes in kept:
        before = note(record, last_offset, max_timestamp_ms, size_bytes)
        if before is not None:
            entries.append((before, last_offset))
    return entries
