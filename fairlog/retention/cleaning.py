"""Compaction's rules: when a log is due, and which records and which tombstones may be removed.

    log start          cleaned through                          E     end
        │ one record per key  │ new since the last cleaning     │ too young
        └──────── swept ──────┴──────── keys noted, swept ──────┘

A cleaning notes the last offset of each key in the new part, and then sweeps from the log's start: a record is removed
if a later one of its key was noted. Afterwards everything before E has one record per key. The new part ends at the
first unit younger than `min.compaction.lag.ms`; that unit and all later ones neither change nor count. Records without
a key stay.

**What a reader sees.** A reader that has read a log from anywhere to E or beyond has for each key the same value as
from the uncompacted log: a record is removed only if another one of its key follows, before E.

**Tombstones.** A key without a value means that the key is deleted. It may be removed once it is no longer needed: all
older records of the key are gone, and have been for `delete.retention.ms`, so that a reader that has read one of them
had that long to reach the tombstone. When a cleaning has ended, no older record of a key is left before it: it leaves a
mark (`Cleaning`: offset and time) for later cleanings. A cleaning removes tombstones before the largest offset whose
mark is old enough. A batch that could not be cleaned holds the marks back: they never go past it.

Keys of 16 bytes or more are kept as hashes of 16 bytes, salted, so that no client can make two keys look alike. Shorter
ones are kept as they are.

Pure: no I/O; the clock and the salt come in as arguments.

Source: https://kafka.apache.org/documentation/#compaction; KIP-354 (max lag), KIP-534 (tombstones are kept for as long
as they should be)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from datalog.interface import Cleaned, Cleaning
from datalog.keyed import KeyedRecord
from fairlog_types import Offset

SALT_BYTES = 16
_HASH_BYTES = 16
KEY_MEMORY_BYTES = 200
"""What a noted key takes: measured on CPython 3.11, the dictionary's growth included."""

_MARKS_PER_RETENTION = 64
"""Cleanings within so small a part of `delete.retention.ms` share a mark: tombstones stay that much longer, at most."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A topic's configs."""

    delete_retention_ms: int
    lag_min_ms: int
    lag_max_ms: int
    dirty_ratio_min: float


@dataclass(frozen=True, slots=True)
class News:
    """What there is to clean, beside what is clean."""

    end: Offset
    """E: keys are noted up to here."""
    size_bytes: int
    """From `cleaned through` to E."""
    oldest_ms: int | None
    """The largest timestamp of the first unit there; None if there is none."""


def why_due(rules: Rules, cleaned: Cleaned, news: News, *, seen: Offset, now_ms: int) -> str | None:
    """Why the log is to be cleaned now, in a word for the log line; None if it is not.

    `seen` is the E of the last cleaning in this run of the node, for a log's last batch is never clean.
    """
    if matured(cleaned.history, rules, now_ms=now_ms, with_tombstones=True) is not None:
        return "tombstones"
    if news.end <= seen or news.oldest_ms is None:
        return None
    if news.size_bytes > rules.dirty_ratio_min * (cleaned.clean_bytes + news.size_bytes):
        return "ratio"
    if 0 <= news.oldest_ms < now_ms - rules.lag_max_ms:
        return "lag"
    return None


def is_young(rules: Rules, max_timestamp_ms: int, *, now_ms: int) -> bool:
    """Whether a unit, and all behind it, has yet to be left alone."""
    return rules.lag_min_ms > 0 and max_timestamp_ms > now_ms - rules.lag_min_ms


class KeysExceeded(Exception):
    """There is no memory for more keys."""


class Keys:
    """The last offset of each key that was noted."""

    def __init__(self, salt: bytes, *, keys_max: int) -> None:
        self._salt = salt
        self._keys_max = keys_max
        self._last: dict[bytes, Offset] = {}

    def __len__(self) -> int:
        return len(self._last)

    def note(self, records: Sequence[KeyedRecord]) -> None:
        """Note a batch's records, later than all before.

        Raises KeysExceeded. Then some of them are noted; that does no harm, for they are there.
        """
        last, hashed = self._last, self._hashed
        has_room = len(last) + len(records) <= self._keys_max
        for record in records:
            key = record.key
            if key is not None:
                if len(key) >= _HASH_BYTES:
                    key = hashed(key)
                if not has_room and len(last) >= self._keys_max and key not in last:
                    raise KeysExceeded
                last[key] = record.offset

    def left_of(self, records: Sequence[KeyedRecord], *, tombstones_before: Offset) -> list[KeyedRecord]:
        """The records of a batch that stay: those without a key, and those of whose key no later record is noted.

        Tombstones before `tombstones_before` do not stay.
        """
        noted, hashed = self._last.get, self._hashed
        return [
            record
            for record in records
            if (key := record.key) is None
            or not (
                noted(key if len(key) < _HASH_BYTES else hashed(key), -1) > record.offset
                or (record.tombstone and record.offset < tombstones_before)
            )
        ]

    def _hashed(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_HASH_BYTES, salt=self._salt).digest()


def matured(
    history: Sequence[Cleaning], rules: Rules, *, now_ms: int, with_tombstones: bool = False
) -> Cleaning | None:
    """The last cleaning that is `delete.retention.ms` ago (and has kept tombstones), None if there is none."""
    return next(
        (
            cleaning
            for cleaning in reversed(history)
            if cleaning.ended_ms + rules.delete_retention_ms <= now_ms and (cleaning.tombstones or not with_tombstones)
        ),
        None,
    )


def history_after(
    history: Sequence[Cleaning], rules: Rules, done: Cleaning, *, tombstones_before: Offset
) -> tuple[Cleaning, ...]:
    """The marks for the cleanings to come, after `done`, which has removed tombstones before an offset.

    `done.tombstones` are those that it left behind the last mark of `history`.
    """
    marks = [cleaning for cleaning in history if cleaning.before > tombstones_before]
    last = history[-1].before if history else Offset(0)
    if done.before <= last:
        return tuple(marks)
    span_ms = max(1, rules.delete_retention_ms // _MARKS_PER_RETENTION)
    if marks and marks[-1].ended_ms // span_ms == done.ended_ms // span_ms:
        shared = marks.pop()
        done = Cleaning(done.before, done.ended_ms, shared.tombstones + done.tombstones)
    return (*marks, done)
