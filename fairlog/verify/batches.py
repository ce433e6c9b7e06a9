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
from fairlog.verify.findings import Kind, Violation
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
    """The batch under its key, header and checksum checked. A violation has its offset, unless the key is none."""
    key = key_of(stored)
    if key is None:
        where = f"{log_name}, byte {stored.at} of the file"
        return Violation(where, f"the key {stored.key.hex()} is no offset", kind=Kind.DAMAGED_BATCH)
    where = f"{log_name}, offset {key}"
    try:
        header = parse_kept_header(stored.data)
        if header.size_bytes != len(stored.data):
            what = f"the batch has {len(stored.data)} bytes, its header says {header.size_bytes}"
            return Violation(where, what, 2, kind=Kind.DAMAGED_BATCH, offset=key)
        check_crc(header, stored.data)
    except BadBatch as error:
        what = f"the batch at byte {stored.at} of the file is damaged: {error}"
        return Violation(where, what, kind=Kind.DAMAGED_BATCH, offset=key)
    return kept_batch(log_name, key, header, stored.data)


def key_of(stored: StoredBatch) -> int | None:
    """The last offset of a batch by its key; None for a key that is none."""
    return layout.decode_batch_key(stored.key) if len(stored.key) == layout.BATCH_KEY_BYTES else None


def kept_batch(log_name: str, key: int, header: BatchHeader, data: Buffer) -> KeptBatch:
    """A batch that `read_batch` has found whole. Of `data` control batches alone need more than the header."""
    control = _marker_in(header, data)
    return KeptBatch(header.base_offset, key, header.size_bytes, header, f"{log_name}, offset {key}", control)


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
        self._next_offset = next_offset
        self._holes_before = rules.holes_before
        self._markers = rules.markers
        self._is_first = True
        self._expected: int | None = max(log_start, rules.holes_before)
        """Where the next batch begins; None if those before it could not be read."""
        self._end = log_start

    def feed(self, batch: KeptBatch) -> Iterator[Violation]:
        header, where, key = batch.header, batch.where, batch.last_offset
        if header.control and not self._markers:
            what = "a control batch, in a topic of the mode journal"
            yield Violation(where, what, 1, kind=Kind.CONTROL_BATCH, offset=key)
        elif header.control and batch.control is None:
            what = "a control batch that marks the end of no transaction"
            yield Violation(where, what, 1, kind=Kind.CONTROL_BATCH, offset=key)
        if header.last_offset != key:
            what = f"the batch there says that its last offset is {header.last_offset}"
            yield Violation(where, what, 2, kind=Kind.WRONG_KEY, offset=key)
        base, expected = header.base_offset, self._expected
        if expected is not None and base > expected >= self._holes_before:
            what = f"the batch begins with {base}, due is {expected}"
            yield Violation(where, what, 2, kind=Kind.HOLE, offset=expected)
        elif expected is not None and base < expected and not self._is_first:
            what = f"the batch begins with {base}, before {expected}"
            yield Violation(where, what, 2, kind=Kind.OFFSET_TWICE, offset=base)
        self.skip(key)

    def skip(self, last_offset: int) -> None:
        """There is a batch that ends there; it may be damaged."""
        self._expected = self._end = last_offset + 1
        self._is_first = False

    def lose_track(self) -> None:
        """Nothing is known of the batches from here to the one that comes next."""
        self._expected = None

    def finish(self) -> Iterator[Violation]:
        if self._end != self._next_offset:
            what = f"its batches end before offset {self._end}, its record has next offset {self._next_offset}"
            yield Violation(self._log_name, what, 2, kind=Kind.WRONG_END, offset=self._next_offset)
