"""Giving back the journals' disk space: what is copied, and safely so, need not be kept twice.

How it works. The data logs commit with `metasync=False`: a crash of the machine may undo the last LMDB
transaction, and the journal must still have what that one had copied. So a pass goes strictly in this order:

1. `urge` the changes of state that rest, so that the mark of an idle log moves on, too;
2. take the committed marks;
3. `data_logs.sync()`: from here on nothing takes these marks back (where their map is full and it needs a commit for
   that, the pass is for nothing, and no failure);
4. for each log, delete the journal segments that end at or before the mark's `replay_from`.

`replay_from` lies before the first frame of every transaction that was open when the marked item was decided,
and a transaction that has begun since has its frames behind that item: so no segment with a frame of an open
transaction is deleted. That is invariant 11, and this module keeps it. Only whole segments go; a pass
without a moved mark costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import trio

from copier.copier import Copier
from datalog.interface import DataLogs, NoRoom
from fairlog_types import JournalPosition, LogId, StorageFailure
from journal.journal import NoFiles

INTERVAL_S = 10.0
"""How long a full journal segment may outlive its use on a quiet node."""

COPIED_BYTES_MAX = 256 * 2**20
"""A pass is due early when so much was copied since the last one: it bounds the disk that a fast node takes,
and what a restart has to skip."""


class ReclaimableJournal(Protocol):
    """What reclaiming needs of a local journal; `journal.journal.Journal` has it."""

    async def reclaim(self, before: JournalPosition) -> None: ...


class Reclaimer:
    """Deletes journal segments behind the marks, every `interval_s` and whenever `copied_bytes_max` were copied."""

    def __init__(
        self,
        copier: Copier,
        data_logs: DataLogs,
        journal_of: Callable[[LogId], ReclaimableJournal],
        *,
        interval_s: float = INTERVAL_S,
        copied_bytes_max: int = COPIED_BYTES_MAX,
    ) -> None:
        self._copier = copier
        self._data_logs = data_logs
        self._journal_of = journal_of
        self._interval_s = interval_s
        self._copied_bytes_max = copied_bytes_max
        self._reclaimed: Mapping[LogId, JournalPosition] = {}
        """Up to where each journal was reclaimed in the last pass."""

    async def run(self) -> None:
        """Make passes until cancelled; return when copying has stopped, for then the marks stand still.

        A data log or journal that refuses stops the copier, and with it the node's writes.
        """
        while self._copier.failed is None:
            copied_bytes = self._copier.statistics().copied_payload_bytes
            try:
                with trio.move_on_after(self._interval_s):
                    await self._copier.copied_payload(copied_bytes + self._copied_bytes_max)
                await self.reclaim()
            except (StorageFailure, OSError) as error:
                self._copier.fail(error)

    async def reclaim(self) -> None:
        """Make one pass. Raises StorageFailure or OSError; a cancelled one leaves the rest to the next pass."""
        self._copier.urge()
        marks = self._copier.marks
        wanted = {log: mark.replay_from for log, mark in marks.items()}
        moved = {log: before for log, before in wanted.items() if before > self._reclaimed.get(log, 0)}
        if not moved:
            await trio.lowlevel.checkpoint()
            return
        try:
            await trio.to_thread.run_sync(self._data_logs.sync)
        except NoRoom:
            return
        for log, before in moved.items():
            try:
                if log in marks:
                    await self._journal_of(log).reclaim(before)
            except NoFiles:
                wanted[log] = self._reclaimed.get(log, JournalPosition(0))  # the next pass tries again
            except StorageFailure:
                if log in marks:
                    raise
                # The log was deleted meanwhile, and its journal was closed under the reclaiming.
        self._reclaimed = wanted
