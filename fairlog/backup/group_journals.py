"""What the group journals say about sinks around a cut of the data logs, while their node continues to write.

A journal is read as a restart would recover it, without any lock (`journal.read_only`). While a node appends, rolls and
deletes, such a reading may fail: a file has got its name or is gone, a frame is half written. Then it is repeated. It
is also repeated if a file was renamed meanwhile, because a list made at that moment may have neither name. The result
of a reading is never older than its beginning, because the frames that were there then are whole.

A snapshot replaces the records before it, and has only each sink's last batch: that may be later than the cut, and then
the sink's batch as of the cut is no longer known. So a cut is used only if no snapshot was completed between the
reading before it and the reading after it; otherwise another cut is taken. A node without sinks is read once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coordinator.group_history import decode_frame, read_history
from coordinator.group_records import SINK_KINDS, SinkRecords
from datalog.foreign import ForeignEnvironment
from datalog.handles import Transaction
from fairlog.backup.fences import ToldOfSinks
from fairlog.data_directory import names_in
from fairlog_types import CorruptStorage, JournalPosition, StorageFailure
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import JournalKind
from shard.directory import ShardDirectory

_READINGS = 10
"""Of one journal, until one is not disturbed. A journal gets a new file every few megabytes."""

_CUTS = 10
"""Until one has no snapshot beside it. There is one every few hundred kilobytes."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One group journal, as of some moment."""

    snapshot_end: JournalPosition | None
    records: Sequence[SinkRecords]


class GroupJournalsAround:
    """The group journals of one shard, read around the beginning of a read transaction of its data logs."""

    def __init__(self, shard: ShardDirectory) -> None:
        self._directory = shard.group_journals
        self.told: Sequence[ToldOfSinks] = ()
        """Of each journal, once `begin` has been entered."""

    @contextmanager
    def begin(self, environment: ForeignEnvironment) -> Generator[Transaction]:
        """A read transaction of the data logs, of whose moment `told` tells.

        Blocking. Raises StorageFailure as `ForeignEnvironment.begin`, if a journal cannot be read, or if there is no
        cut without a snapshot beside it.
        """
        before: Sequence[_Reading] | None = None
        for _ in range(_CUTS):
            with environment.begin() as transaction:
                behind = self._read()
                told = _around(before, behind)
                if told is not None:
                    self.told = told
                    yield transaction
                    return
            before = behind
        raise StorageFailure(f"the journals in {self._directory} change faster than they can be read; try again")

    def _read(self) -> Sequence[_Reading]:
        return [_read(self._directory / name) for name in names_in(self._directory)]


def _around(before: Sequence[_Reading] | None, behind: Sequence[_Reading]) -> Sequence[ToldOfSinks] | None:
    """What is told, if `behind` tells all of the time since `before`; None if it may not."""
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
        raise CorruptStorage("its files change under the reading")
    return journal
