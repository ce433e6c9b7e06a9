"""Which records of a batch stay: the part of compaction that goes over every record.

    begin ─▶ note, for the batches of the new part ─▶ judge, for the batches from the log's start      one pass

It knows batches by their bytes alone, and no log: so a process of its own can do it (`judge_process`).

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from datalog.decompress import UnreadableRecords
from datalog.keyed import open_batch, without
from fairlog.retention.cleaning import Keys, KeysExceeded
from fairlog_types import Offset


class Verdict(NamedTuple):
    """What stays of one batch."""

    left: int
    """How many of its records."""
    changed: bytes | None
    """The batch with only these. None if all of them stay, or none."""
    tombstones: int
    """How many of them are tombstones, from the offset on that was asked for."""
    unreadable: str | None
    """Why its records cannot be read; then all of them stay."""


class JudgeFailed(Exception):
    """The judge cannot be had, has ended, or does not answer. Nothing has happened, and another one may be asked."""


class Judge(Protocol):
    """Answers about batches of committed records, as they are stored. Each method may raise JudgeFailed."""

    def begin(self, salt: bytes, keys_max: int) -> None:
        """Forget all keys. `salt` has `cleaning.SALT_BYTES`; `keys_max` is how many there is memory for."""
        ...

    def note(self, batches: Sequence[bytes]) -> list[bool]:
        """Note the keys of batches that are later than all before: of each, whether there was memory for all its keys.

        Once there was not, no later ones are noted. What cannot be read has no keys.
        """
        ...

    def keys(self) -> int:
        """How many are noted."""
        ...

    def judge(self, batches: Sequence[bytes], *, tombstones_before: Offset, counted_before: Offset) -> list[Verdict]:
        """What stays of each batch. Tombstones before the first offset do not; those from the second on are counted."""
        ...


class KeyJudge:
    """The judge itself."""

    def __init__(self) -> None:
        self._keys = Keys(b"", keys_max=0)
        self._exceeded = False

    def begin(self, salt: bytes, keys_max: int) -> None:
        self._keys = Keys(salt, keys_max=keys_max)
        self._exceeded = False

    def note(self, batches: Sequence[bytes]) -> list[bool]:
        return [self._note(batch) for batch in batches]

    def _note(self, batch: bytes) -> bool:
        if self._exceeded:
            return False
        try:
            self._keys.note(open_batch(batch).records)
        except UnreadableRecords:
            pass  # and `judge` says so
        except KeysExceeded:
            self._exceeded = True
        return not self._exceeded

    def keys(self) -> int:
        return len(self._keys)

    def judge(self, batches: Sequence[bytes], *, tombstones_before: Offset, counted_before: Offset) -> list[Verdict]:
        return [self._judge(batch, tombstones_before, counted_before) for batch in batches]

    def _judge(self, batch: bytes, tombstones_before: Offset, counted_before: Offset) -> Verdict:
        try:
            opened = open_batch(batch)
            left = self._keys.left_of(opened.records, tombstones_before=tombstones_before)
            changed = bytes(without(opened, left)) if 0 < len(left) < len(opened.records) else None
        except UnreadableRecords as error:
            return Verdict(0, None, 0, str(error))
        tombstones = 0
        if left and left[-1].offset >= counted_before:
            tombstones = sum(record.tombstone and record.offset >= counted_before for record in left)
        return Verdict(len(left), changed, tombstones, None)
