"""A log with transactions in LMDB, and what it held in plain lists: for tests of whole cleanings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from datalog.environment import LmdbDataLogs
from datalog.interface import Mark, ReadRequest, ReadResult
from datalog.keyed import open_batch
from fairlog.retention.cleaner import LogCleaner
from fairlog.retention.cleaning import Rules
from fairlog.retention.judging import KeyJudge
from fairlog_types import JournalPosition, LogId, Offset
from tests.datalog.batches import keyed_batch

LOG = LogId.of_topic(UUID(int=7), 0)
RULES = Rules(delete_retention_ms=1_000, lag_min_ms=0, lag_max_ms=1 << 62, dirty_ratio_min=0.0)
SALT = b"salt of 16 bytes"
Pairs = Sequence[tuple[bytes | None, bytes | None]]
Row = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""

TRANSACTIONAL = 0x10


def values_of(batch: bytes) -> list[Row]:
    """The records of a batch whose values have less than 64 bytes and no headers."""
    rows: list[Row] = []
    for record in open_batch(batch).records:
        data = open_batch(batch).data[record.start : record.end]
        length = data.rindex(b"\0", len(data) - 1)
        value = None if record.tombstone else data[:length].rpartition(b"=")[2]
        rows.append((record.offset, record.key, value))
    return rows


@dataclass
class ModelLog:
    """Writes to the log and to lists alike."""

    logs: LmdbDataLogs
    written: list[Row] = field(default_factory=list)
    transactions: list[range] = field(default_factory=list)
    """Offsets of each that has several batches."""

    def create(self) -> None:
        with self.logs.write() as writer:
            writer.create(LOG)

    def append(self, *batches: Pairs, timestamp_ms: int = 0, transactional: bool = False, producer_id: int = 1) -> None:
        """Append batches in one write, as a transaction if it says so. Values must not contain "="."""
        first = end = len(self.written)
        with self.logs.write() as writer:
            for pairs in batches:
                marked = [(key, None if value is None else b"=" + value) for key, value in pairs]
                data = keyed_batch(
                    end,
                    marked,
                    timestamp_ms=timestamp_ms,
                    attributes=TRANSACTIONAL if transactional else 0,
                    producer=(producer_id, 0, end),
                )
                writer.append(LOG, Offset(end), len(pairs), timestamp_ms, data)
                self.written += [(end + index, key, value) for index, (key, value) in enumerate(pairs)]
                end += len(pairs)
            if transactional and len(batches) > 1:
                writer.bind(LOG, Offset(first), Offset(end - 1))
                self.transactions.append(range(first, end))
            position = JournalPosition(end)
            writer.put_mark(LOG, Mark(position, position, Offset(end)))

    def stored(self, start: int = 0) -> list[Row]:
        """What a reader finds from an offset on."""
        (answer,) = self.logs.read([ReadRequest(LOG, Offset(start), 1 << 30)], bytes_max=1 << 30)
        assert isinstance(answer, ReadResult)
        return [row for batch in answer.batches for row in values_of(batch) if row[0] >= start]

    def cleaner(
        self,
        rules: Rules = RULES,
        *,
        now_ms: Callable[[], int] = lambda: 0,
        keys_max: int = 1_000,
        seen: int = 0,
    ) -> LogCleaner:
        return LogCleaner(
            self.logs,
            LOG,
            rules,
            seen=Offset(seen),
            keys_max=keys_max,
            salt=SALT,
            now_ms=now_ms,
            judge=KeyJudge(),
        )

    def clean(self, rules: Rules = RULES, *, now_ms: int = 0, keys_max: int = 1_000) -> LogCleaner:
        """A whole cleaning."""
        cleaner = self.cleaner(rules, now_ms=lambda: now_ms, keys_max=keys_max)
        for _ in cleaner.steps():
            pass
        return cleaner


def map_of(rows: Sequence[Row]) -> dict[bytes, bytes]:
    """What a reader makes of them: the last value of each key that is not deleted."""
    found: dict[bytes, bytes] = {}
    for _, key, value in rows:
        if key is not None and value is not None:
            found[key] = value
        elif key is not None:
            found.pop(key, None)
    return found
