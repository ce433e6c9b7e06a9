"""Reads a group journal for `transactions`: a thin shell, in the process of `fairlog verify` or a task of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator import group_history
from fairlog.verify.transactions import GroupHistory, read_history
from journal.read_only import ReadOnlyJournal, open_read_only
from journal.segment import Fsync, JournalKind
from shard.directory import ShardDirectory


@dataclass(frozen=True, slots=True)
class ReadGroupJournal:
    """A group journal as it was found."""

    journal: ReadOnlyJournal
    history: GroupHistory
    has_snapshot: bool


def shard_of_group_journal(shards: Sequence[ShardDirectory], number: int) -> ShardDirectory:
    """The one that has it; the first one if none has: a node makes all at its first start, so that it is lost."""
    return next((shard for shard in shards if shard.group_journal(number).exists()), shards[0])


def group_journal_name(shard: ShardDirectory, number: int) -> str:
    """Where it is in the data directory."""
    return shard.name_of(shard.group_journal(number))


def read_group_journal(shard: ShardDirectory, number: int) -> ReadGroupJournal:
    """Read the group journal with that number. Raises CorruptStorage, StorageFailure, OSError."""
    where = group_journal_name(shard, number)
    journal = open_read_only(shard.group_journal(number), kind=JournalKind.GROUP)
    found = group_history.read_history(journal)
    records = (group_history.decode_frame(journal, frame, kind) for frame, kind in found.frames)
    history = read_history(where, records, commit_number=found.snapshot_commit_number)
    history.loses_nothing = journal.begun_with in (None, Fsync.COMMIT)
    history.shard = shard.number
    has_snapshot = found.snapshot_end is not None
    history.forgets_nothing = not has_snapshot and journal.start == 0
    return ReadGroupJournal(journal, history, has_snapshot)
