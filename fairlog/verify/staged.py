"""What stands behind a log's end: is it what a large copy has staged there? Pure.

A stop or a crash between two stages leaves batches behind the ends of logs, which the next start deletes
(docs/formats/data-log.md, *staged batches*). They are no damage. Anything else that stands there is: such a batch is of
a transaction that the journal has placed behind the mark, at this place, and they follow one another from the log's
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlog.verify.batches import KeptBatch
from fairlog.verify.copies import CopiedBatch
from fairlog.verify.findings import Summary, Violation


class StagedCheck:
    """The batches of one log whose keys are its next offset or more."""

    def __init__(self, *, next_offset: int, due: Iterable[CopiedBatch] | None, summary: Summary) -> None:
        """`due`: what the journal has placed behind the mark for transactions; None if there is no journal to ask."""
        self._expected = next_offset
        self._due = None if due is None else {batch.base_offset: batch for batch in due}
        self._summary = summary

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        self._summary.counts["batches staged behind a log's end"] += 1
        header = batch.header
        if batch.base_offset != self._expected or header.last_offset != batch.last_offset:
            what = f"a batch of offsets {batch.base_offset} to {header.last_offset} behind the log's end, where due is "
            yield Violation(batch.where, f"{what}{self._expected}", 2)
        self._expected = batch.last_offset + 1
        if header.control or not header.transactional:
            yield Violation(batch.where, "a batch behind the log's end that is of no transaction", 2)
        if self._due is None:
            return
        due = self._due.get(batch.base_offset)
        held = (header.record_count, header.crc, header.partition_leader_epoch)
        if due is None or held != (due.record_count, due.crc, due.leader_epoch):
            yield Violation(batch.where, "a batch behind the log's end that the journal has not placed there", 4)
