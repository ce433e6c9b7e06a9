"""Every batch of a data log: is it what its key says, whole, and next to the one before? Pure.

Keeps watch over 3 and 4 of docs/formats/data-log.md: invariant 2, and of 1 that control batches are where there may be
some.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from datalog import layout
from datalog.batch import BadBatch, BatchHeader, Buffer, check_crc
from datalog.control_batch import ControlRecord, decode_control_batch
from datalog.stored import StoredBatch
from fairlog.verify.findings import Violation
from fairlog.verify.rules import LogRules, parse_kept_header


class KeptBatch(NamedTuple):
    """A stored batch whose header could be read, as the checkers of one log are fed with it."""

    base_offset: int
    last_offset: int
    """Its key."""
    size_bytes: int
    header: BatchHeader
    where: str
    """For a violation."""
    control: ControlRecord | None = None
    """What a control batch says, if it marks the end of a transaction."""


class LogCheck(Protocol):
    """A checker that sees all batches of one log, in order."""

    def feed(self, batch: KeptBatch) -> Iterator[Violation]: ...

    def finish(self) -> Iterator[Violation]: ...


def read_batch(log_name: str, stored: StoredBatch) -> KeptBatch | Violation:
    """The batch under its key, header and checksum checked."""
    where = f"{log_name}, byte {stored.at} of the file"
    if len(stored.key) != layout.BATCH_KEY_BYTES:
        return Violation(where, f"the key {stored.key.hex()} is no offset")
    key = layout.decode_batch_key(stored.key)
    where = f"{log_name}, offset {key}"
    try:
        header = parse_kept_header(stored.data)
        if header.size_bytes != len(stored.data):
            return Violation(where, f"the batch has {len(stored.data)} bytes, its header says {header.size_bytes}", 2)
        check_crc(header, stored.data)
    except BadBatch as error:
        return Violation(where, f"the batch at byte {stored.at} of the file is damaged: {error}")
    return KeptBatch(header.base_offset, key, len(stored.data), header, where, _marker_in(header, stored.data))


def _marker_in(header: BatchHeader, data: Buffer) -> ControlRecord | None:
    if not header.control:
        return None
    try:
        return decode_control_batch(data)
    except BadBatch:
        return None


class DensityCheck:
    """Keys, density and bounds of one log. Batches before the log's start may wait to be removed."""

    def __init__(self, log_name: str, *, log_start: int, next_offset: int, rules: LogRules) -> None:
        self._log_name = log_name
        self._log_start = log_start
        self._next_offset = next_offset
        self._holes_before = rules.holes_before
        self._markers = rules.markers
        self._expected: int | None = None

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        header, where = batch.header, batch.where
        if header.control and not self._markers:
            yield Violation(where, "a control batch, in a topic of the mode journal", 1)
        elif header.control and batch.control is None:
            yield Violation(where, "a control batch that marks the end of no transaction", 1)
        if header.last_offset != batch.last_offset:
            yield Violation(where, f"the batch there says that its last offset is {header.last_offset}", 2)
        expected = max(self._log_start, self._holes_before) if self._expected is None else self._expected
        if header.base_offset > expected >= self._holes_before:
            yield Violation(where, f"the batch begins with {header.base_offset}, due is {expected}", 2)
        elif self._expected is not None and header.base_offset < self._expected:
            yield Violation(where, f"the batch begins with {header.base_offset}, before {self._expected}", 2)
        self._expected = batch.last_offset + 1

    def finish(self) -> Iterator[Violation]:
        end = self._log_start if self._expected is None else self._expected
        if end != self._next_offset:
            what = f"its batches end before offset {end}, its record has next offset {self._next_offset}"
            yield Violation(self._log_name, what, 2)
