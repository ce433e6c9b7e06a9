"""The newest batches of a log: decided and on disk in its journal, but not in the data log yet. In memory, in order.

    … in the data log ──▶│◀── newest ──▶│
                  high watermark       end

They are here while they are copied, for a millisecond or two, if somebody waits for them: a reader at the end of a log
waits for the journal's disk, and not for the data log's as well. What they will be in the data log is settled, also
over a crash: a restart places what a journal has on disk at the same offsets.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from datalog.interface import Batch
from fairlog_types import Offset


class Newest:
    """Batches that follow each other without a gap; each with the offset behind its last record."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: list[tuple[Offset, Batch]] = []

    @property
    def end(self) -> Offset | None:
        """Behind the last record; None if there is none."""
        return self._batches[-1][0] if self._batches else None

    def add(self, batches: Iterable[tuple[Offset, Batch]]) -> None:
        """Those that come next."""
        self._batches.extend(batches)

    def drop_before(self, offset: Offset) -> None:
        """The data log has all that is before `offset`."""
        del self._batches[: self._first_behind(offset)]

    def read(self, offset: int, *, bytes_max: int) -> list[Batch]:
        """Batches from the one with the record at `offset` on, which is here: the first, and more up to `bytes_max`."""
        found: list[Batch] = []
        size = 0
        for at in range(self._first_behind(offset), len(self._batches)):
            batch = self._batches[at][1]
            size += len(batch)
            if found and size > bytes_max:
                break
            found.append(batch)
        return found

    def clear(self) -> None:
        """The log is gone."""
        self._batches.clear()

    def _first_behind(self, offset: int) -> int:
        """The index of the first batch that ends behind `offset`."""
        return bisect_right(self._batches, offset, key=_end_of)


def _end_of(batch: tuple[Offset, Batch]) -> Offset:
    return batch[0]
