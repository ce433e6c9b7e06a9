"""The journal of the groups that hash to it: append, replay, snapshot.

Signatures first; the head follows with the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairlog_types import JournalPosition, StorageFailure
from journal.group_records import GroupRecord


class GroupJournal:
    """One group journal, over an opened `Journal`, which the caller closes."""

    def __init__(self, journal: object) -> None: ...

    @property
    def failed(self) -> StorageFailure | None:
        """Why the journal is closed for writing; None as long as it is open."""
        raise NotImplementedError

    @property
    def bytes_since_snapshot(self) -> int:
        """How much a replay would read behind the last complete snapshot; true once `replay` has run."""
        raise NotImplementedError

    def replay(self) -> Iterator[GroupRecord]:
        """The last complete snapshot's records, then all that was appended since. Raises CorruptStorage.

        Synchronous, for recovery, before the first `append`.
        """
        raise NotImplementedError

    def has_room(self, record: GroupRecord) -> bool:
        """Would `append` find room for the record?"""
        raise NotImplementedError

    async def make_room(self, record: GroupRecord) -> None:
        """Make room for the record. Raises StorageFailure if the disk is full."""
        raise NotImplementedError

    def append(self, record: GroupRecord) -> JournalPosition:
        """Append; answer the position *behind* the record: durable once `flush` of it returned."""
        raise NotImplementedError

    def start_flush(self) -> None:
        """Begin to flush what is appended so far, without waiting."""
        raise NotImplementedError

    async def flush(self, through: JournalPosition) -> None:
        """Return once everything before `through` is durable. Raises StorageFailure."""
        raise NotImplementedError

    async def snapshot(self, records: Iterable[GroupRecord]) -> None:
        """Replace what was appended so far by `records`; then delete the segments before.

        `records` must be the state as of this very step: it is consumed before the first await. What is
        appended while the snapshot is being written stands beside it and is replayed after it.
        """
        raise NotImplementedError
