"""What the group journals say about sinks around a cut of the data logs, while their node continues to write.

A journal is read as a restart would recover it, without any lock (`journal.read_only`). While a node appends, rolls and
deletes, such a reading may fail: a file was renamed or deleted, a frame is half written. Then it is repeated. It is
also repeated if a file was renamed meanwhile, because a list made at that moment may have neither name. The result of
a reading is never older than its beginning, because the frames that were there then are complete.

A snapshot replaces the records before it, and has only each sink's last batch. That batch may be later than the cut;
then the sink's last batch in the cut is no longer known. So a cut is used only if no snapshot was completed between the
reading before it and the reading after it; otherwise another cut is taken. A node without sinks is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.group_history import decode_frame, read_history
from coordinator.group_records import SINK_KINDS, SinkRecords
from datalog.handles import Transaction
from fairlog.backup.fences import ToldOfSinks
from fairlog.data_directory import names_in
from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import JournalKind
from shard.directory import ShardDirectory

_READINGS = 10
"""Attempts to read one journal undisturbed. A journal gets a new file every few megabytes."""

_CUTS = 10
"""Attempts to get a cut without a snapshot beside it. There is a snapshot every few hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One group journal, as of some moment."""

    snapshot_end: JournalPosition | None
    records: Sequence[SinkRecords]


class GroupJournalsAround:
    """The group journals of all shards, read around the moment at which read transactions of their data logs begin."""

    def __init__(self, shards: Sequence[ShardDirectory]) -> None:
        self._shards = shards
        self.told: Sequence[ToldOfSinks] = ()
        """Of each journal, once `begin` has been entered."""

    @contextmanager
    def begin(
        self, moment: Callable[[], AbstractContextManager[Sequence[Transaction]]]
    ) -> Generator[Sequence[Transaction]]:
        """The read transactions that `moment` begins; `told` is of the same moment.

        Blocking. Raises StorageFailure as `moment` does, if a journal cannot be read, or if there is no cut without a
        snapshot beside it.
        """
        before: Sequence[_Reading] | None = None
        for _ in range(_CUTS):
            with moment() as transactions:
                behind = self._read()
                told = _around(before, behind)
                if told is not None:
                    self.told = told
                    yield transactions
                    return
            before = behind
        journals = " and ".join(str(shard.group_journals) for shard in self._shards)
        raise StorageFailure(f"the journals in {journals} change faster than they can be read; try again")

    def _read(self) -> Sequence[_Reading]:
        return [_read(shard.group_journals / name) for shard in self._shards for name in names_in(shard.group_journals)]


def _around(before: Sequence[_Reading] | None, behind: Sequence[_Reading]) -> Sequence[ToldOfSinks] | None:
    """What the journals say, if `behind` has everything since `before`; None if it may not."""
    if not any(one.records for one in behind):
        return ()
    if before is None or [one.snapshot_end for one in before] != [one.snapshot_end for one in behind]:
        return None
    return [ToldOfSinks(after.records, len(one.records)) for one, after in zip(before, behind, strict=True)]


def _read(directory: Path) -> _Reading:
    for left in reversed(range(_READINGS)):
        try:
            journal = _open(directory)
            history = read_history(journal)
            of_sinks = [decode_frame(journal, frame, kind) for frame, kind in history.frames if kind in SINK_KINDS]
            return _Reading(history.snapshot_end, [it for it in of_sinks if isinstance(it, SinkRecords)])
        except (CorruptStorage, OSError) as error:
            if not left:
                raise StorageFailure(f"the group journal {directory} cannot be read: {error}") from error
    raise AssertionError("the last reading returns or raises")


def _open(directory: Path) -> ReadOnlyJournal:
    """Raises CorruptStorage, OSError, also if the node changes the journal's files meanwhile."""
    files = names_in(directory)
    journal = open_read_only(directory, kind=JournalKind.GROUP)
    if names_in(directory) != files:
        raise CorruptStorage("its files changed while it was read")
    return journal
