"""Does the data log hold what its journal still holds, once and unchanged? Pure.

The data log is a function of the journal (invariant 4). As far back as the journal has not been cut, each batch of
the data log is compared with the frame that it was copied from: same place, same checksum, same count, and the leader
epoch of the frame that decided it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.rules import LogRules
from fairlog_types import JournalPosition


class CopiedBatch(NamedTuple):
    """A batch that the journal has placed before the mark, as the data log must have it."""

    base_offset: int
    record_count: int
    crc: int
    leader_epoch: int
    position: JournalPosition
    """Of the frame that has it."""


class CopiesCheck:
    """One log against its journal."""

    def __init__(
        self,
        log_name: str,
        copied: Sequence[CopiedBatch],
        *,
        complete_from: int,
        log_start: int,
        rules: LogRules,
        summary: Summary,
    ) -> None:
        """From the offset `complete_from` on, `copied` has every batch of the log."""
        self._log_name = log_name
        self._due = {
            batch.base_offset: batch
            for batch in copied
            if batch.base_offset >= rules.holes_before and batch.base_offset + batch.record_count > log_start
        }
        self._complete_from = max(complete_from, rules.holes_before)
        self._log_start = log_start
        self._summary = summary

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        due = self._due.pop(batch.base_offset, None)
        if due is None:
            waits_to_be_removed = batch.last_offset < self._log_start
            if batch.base_offset >= self._complete_from and not waits_to_be_removed:
                yield Violation(batch.where, f"the journal has placed no batch at {batch.base_offset}", 4)
            return
        header = batch.header
        self._summary.counts["batches compared with their journal"] += 1
        held = (header.record_count, header.crc, header.partition_leader_epoch)
        if held != (due.record_count, due.crc, due.leader_epoch):
            what = (
                f"the journal, position {due.position}, has {due.record_count} records with checksum {due.crc:#010x} "
                f"for here, decided in leader epoch {due.leader_epoch}; the data log has {held[0]}, {held[1]:#010x}, "
                f"{held[2]}"
            )
            yield Violation(batch.where, what, 4)

    def finish(self) -> Iterator[Violation]:
        for base_offset, due in sorted(self._due.items()):
            what = f"the journal has placed {due.record_count} records here, position {due.position}; none are"
            yield Violation(f"{self._log_name}, offset {base_offset}", what, 4)
