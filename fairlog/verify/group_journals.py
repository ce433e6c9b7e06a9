"""Reads a group journal for `transactions`: a thin shell, in the process of `fairlog verify` or a task of the audit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coordinator import group_history
from fairlog import data_directory
from fairlog.verify.transactions import GroupHistory, read_history
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import Fsync, JournalKind


@dataclass(frozen=True, slots=True)
class ReadGroupJournal:
    """A group journal as it was found."""

    journal: ReadOnlyJournal
    history: GroupHistory
    has_snapshot: bool


def group_journal_name(number: int) -> str:
    """Where it is in the data directory."""
    return f"{data_directory.GROUP_JOURNALS}/{number}"


def read_group_journal(directory: Path, number: int) -> ReadGroupJournal:
    """Read the group journal with that number. Raises CorruptStorage, StorageFailure, OSError."""
    where = group_journal_name(number)
    journal = open_read_only(directory / where, kind=JournalKind.GROUP)
    found = group_history.read_history(journal)
    records = (group_history.decode_frame(journal, frame, kind) for frame, kind in found.frames)
    history = read_history(where, records, commit_number=found.snapshot_commit_number)
    history.loses_nothing = journal.begun_with in (None, Fsync.COMMIT)
    return ReadGroupJournal(journal, history, found.snapshot_end is not None)
