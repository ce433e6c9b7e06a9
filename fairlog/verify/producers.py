"""Sequences and windows: is a batch repeated, and does a window remember what the log holds? Pure.

In one log the sequences of a producer's epoch only go on: by copying twice they would go back. They may leave gaps
(aborted batches had numbers too), and begin with 0 again when the producer had been forgotten meanwhile. What a window
says of the last batches and transactions must be found where it says (invariants 4 and 9).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from datalog.batch import BatchHeader
from fairlog.verify.batches import KeptBatch
from fairlog.verify.findings import Kind, Violation
from fairlog.verify.rules import LogRules
from fairlog_types import NO_PRODUCER_ID, ProducerId
from partition.producer_window import BATCHES_KEPT, TRANSACTIONS_KEPT, ProducerWindow, last_sequence

_SEQUENCES = 1 << 31


@dataclass(slots=True)
class _Last:
    """The last batch of a producer in the log, as far as it was read."""

    epoch: int
    sequence: int
    """Of its last record."""
    base_offset: int
    plain: bool


class FirstBatchesCheck:
    """Is the first batch of a producer's epoch there again, byte for byte? Of sequence 0 their order cannot tell.

    For the audit, which has neither the local journals nor the windows' batches: `ProducersCheck` and `copies` compare
    with these. Holds the first batches of each producer's present epoch.
    """

    def __init__(self) -> None:
        self._first: dict[ProducerId, tuple[int, dict[tuple[int, int], int]]] = {}
        """Epoch; checksum and count → base offset."""

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        header = batch.header
        if header.producer_id == NO_PRODUCER_ID or header.control or header.base_sequence != 0:
            return
        epoch, first = self._first.get(header.producer_id, (header.producer_epoch, {}))
        if epoch != header.producer_epoch:
            first = {}
        self._first[header.producer_id] = header.producer_epoch, first
        known = first.setdefault((header.crc, header.record_count), batch.base_offset)
        if known != batch.base_offset:
            what = (
                f"the first batch of producer {header.producer_id}, epoch {header.producer_epoch}, is there again, "
                f"byte for byte; it is at offset {known} as well"
            )
            yield Violation(batch.where, what, 4, kind=Kind.BATCH_TWICE, offset=batch.base_offset)

    def finish(self) -> Iterator[Violation]:
        return iter(())


class ProducersCheck:
    """One log's producers. Producers without batches cost nothing but their window."""

    def __init__(
        self,
        log_name: str,
        windows: Mapping[ProducerId, ProducerWindow],
        *,
        log_start: int,
        copied_through: int,
        rules: LogRules,
    ) -> None:
        self._log_name = log_name
        self._windows = windows
        self._copied_through = copied_through
        self._last: dict[ProducerId, _Last] = {}
        self._remembered: dict[int, tuple[ProducerId, int, int]] = {}
        """Plain batches that windows remember: base offset → producer, first and last sequence."""
        for producer_id, window in windows.items():
            for first, last, base_offset in window.batches:
                if base_offset is not None and base_offset >= max(log_start, rules.holes_before):
                    self._remembered[base_offset] = (producer_id, first, last)

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        header = batch.header
        remembered = self._remembered.pop(batch.base_offset, None)
        if remembered is not None:
            held = (header.producer_id, header.base_sequence, _last_sequence(header))
            if held != remembered:
                what = "the window of producer {} remembers the sequences {} to {} here".format(*remembered)
                yield Violation(batch.where, f"{what}; the batch is {held[1]} to {held[2]} of {held[0]}", 4)
        if header.producer_id == NO_PRODUCER_ID or header.control:
            return
        before = self._last.get(header.producer_id)
        if before is not None and header.base_sequence != 0 and _goes_back(before, header):
            what = (
                f"producer {header.producer_id} comes with epoch {header.producer_epoch}, sequence "
                f"{header.base_sequence}, behind epoch {before.epoch}, sequence {before.sequence} at offset "
                f"{before.base_offset}: a batch is there twice, or out of order"
            )
            yield Violation(batch.where, what, 4, kind=Kind.SEQUENCE, offset=batch.base_offset)
        self._last[header.producer_id] = _Last(
            header.producer_epoch, _last_sequence(header), batch.base_offset, not header.transactional
        )

    def finish(self) -> Iterator[Violation]:
        for base_offset, (producer_id, first, last) in sorted(self._remembered.items()):
            what = f"the window of producer {producer_id} remembers a batch of sequences {first} to {last} here"
            yield Violation(f"{self._log_name}, offset {base_offset}", f"{what}, and none begins here", 4)
        for producer_id, window in self._windows.items():
            yield from self._check_window(producer_id, window)

    def _check_window(self, producer_id: ProducerId, window: ProducerWindow) -> Iterator[Violation]:
        where = f"{self._log_name}, producer {producer_id}"
        if window.as_of > self._copied_through:
            what = f"its window is as of journal position {window.as_of}, copied is {self._copied_through}"
            yield Violation(where, what, 4)
        if len(window.batches) > BATCHES_KEPT or len(window.applied) > TRANSACTIONS_KEPT:
            yield Violation(where, "its window remembers more than a window does")
        for before, after in pairwise(window.batches):
            if after.first_sequence != (before.last_sequence + 1) % _SEQUENCES:
                what = f"its window has a gap between the sequences {before.last_sequence} and {after.first_sequence}"
                yield Violation(where, what, 4)
        last = self._last.get(producer_id)
        if last is None:
            return
        if last.epoch > window.epoch:
            what = f"its last batch, at offset {last.base_offset}, has epoch {last.epoch}, its window {window.epoch}"
            yield Violation(where, what, 9)
        placed = [base_offset for _, _, base_offset in window.batches if base_offset is not None]
        if last.plain and placed and max(placed) < last.base_offset:
            what = f"its last batch is at offset {last.base_offset}, its window knows of none behind {max(placed)}"
            yield Violation(where, what, 4)


def _last_sequence(header: BatchHeader) -> int:
    return last_sequence(header.base_sequence, header.last_offset_delta + 1)


def _goes_back(before: _Last, header: BatchHeader) -> bool:
    if header.producer_epoch != before.epoch:
        return header.producer_epoch < before.epoch
    ahead = (header.base_sequence - before.sequence) % _SEQUENCES
    return ahead == 0 or ahead >= _SEQUENCES // 2
