"""The journal of the groups that hash to it: append, replay, snapshot.

A thin shell over a `Journal` of kind GROUP. It keeps no state of the groups; the coordinator does, and hands its
state over when a snapshot is taken. It counts the PREPARE_COMMITs, of transactions and of sinks: their numbers are the
commit order of all groups of the journal, and a snapshot keeps the count.

A snapshot lets older segments go. It is written while the node serves, so other records are appended beside it; what
then counts is sorted out by `group_history`. Segments before the snapshot's state are deleted only when its END
is on disk, so at every moment there is either the old history or a complete snapshot (docs/formats/group-journal.md has
the crash cases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import trio.lowlevel

from coordinator.group_history import PART, SNAPSHOT_BEGIN, SNAPSHOT_END, decode_frame, read_history
from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    GroupRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkPrepareCommitRecord,
    encode_group,
    record_bytes_max,
)
from fairlog_types import JournalPosition, LeaderEpoch, StorageFailure
from journal.failpoints import reach
from journal.frame import encode_frame
from journal.interface import OpenJournal
from journal.segment import Fsync, JournalKind
from journal.segment_file import begin_at

_BRACKET_BYTES_MAX = 24
"""Of the header of SNAPSHOT_BEGIN or SNAPSHOT_END."""

_PARTS_PER_STEP = 200
"""About 2 ms of the event loop between two checkpoints."""

_FAILPOINTS: dict[type[GroupRecord], str] = {
    ProducerRecord: "group.producer_state.appended",
    BeginRecord: "group.begin.appended",
    PrepareCommitRecord: "group.prepare_commit.appended",
    CommittedRecord: "group.committed.appended",
    PrepareAbortRecord: "group.prepare_abort.appended",
    AbortedRecord: "group.aborted.appended",
    SinkPrepareCommitRecord: "group.sink_prepare_commit.appended",
    SinkCommittedRecord: "group.sink_committed.appended",
    SinkAbortedRecord: "group.sink_aborted.appended",
}


class GroupJournal:
    """One group journal, over an opened `Journal`, which the caller closes."""

    def __init__(self, journal: OpenJournal, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the wall clock, which every frame carries."""
        self._journal = journal
        self._now_ms = now_ms
        self._snapshot_end = journal.start
        self._snapshot_running = False
        self._last_commit_number = 0

    @property
    def failed(self) -> StorageFailure | None:
        """Why the journal is closed for writing; None as long as it is open."""
        return self._journal.failed

    @property
    def may_have_another_owner(self) -> bool:
        """See `OpenJournal`."""
        return self._journal.may_have_another_owner

    async def confirm(self) -> None:
        """See `OpenJournal`."""
        await self._journal.confirm()

    @property
    def bytes_since_snapshot(self) -> int:
        """How much stands behind the last complete snapshot, in bytes; meaningful once `replay` has run."""
        return self._journal.end - self._snapshot_end

    @property
    def next_commit_number(self) -> int:
        """Of the PREPARE_COMMIT, or SINK_PREPARE_COMMIT, that is appended next; meaningful once `replay` has run."""
        return self._last_commit_number + 1

    def replay(self) -> Iterator[GroupRecord]:
        """The last complete snapshot's records, then all that was appended since its state was taken.

        Synchronous, for recovery, before the first `append`. Raises CorruptStorage, naming the position.
        """
        history = read_history(self._journal)
        if history.snapshot_end is not None:
            self._snapshot_end = history.snapshot_end
        self._last_commit_number = history.snapshot_commit_number
        for frame, kind in history.frames:
            record = decode_frame(self._journal, frame, kind)
            self._note_commit_number(record)
            yield record

    def has_room(self, record: GroupRecord) -> bool:
        """Will `append` find room for the record?"""
        return self._journal.has_room(record_bytes_max(record))

    async def make_room(self, record: GroupRecord) -> None:
        """Make room for the record. Raises StorageFailure if the disk is full."""
        await self._journal.make_room(record_bytes_max(record))

    def append(self, record: GroupRecord) -> JournalPosition:
        """Append; answer the position *behind* the record: `flush` of it makes the record durable.

        Raises StorageFailure if the journal is closed for writing; NoRoom (one of them) if room is missing.
        """
        kind, header, payload = encode_group(record)
        self._journal.append(kind, header, (payload,) if payload else (), timestamp_ms=self._now_ms())
        self._note_commit_number(record)
        end = self._journal.end
        failpoint = _FAILPOINTS.get(type(record))
        if failpoint is not None:
            reach(failpoint)
        return end

    def _note_commit_number(self, record: GroupRecord) -> None:
        """One that is written again has the number that it had."""
        if isinstance(record, PrepareCommitRecord | SinkPrepareCommitRecord):
            self._last_commit_number = max(self._last_commit_number, record.commit_number)

    def start_flush(self) -> None:
        """Begin to flush what is appended so far, without waiting."""
        self._journal.start_flush()

    async def flush(self, through: JournalPosition) -> None:
        """Return once everything before `through` is durable. Raises StorageFailure. Cancelling changes nothing."""
        await self._journal.flush(through)

    async def to_disk(self, through: JournalPosition) -> None:
        """Return once everything before `through` is on disk, whatever `journal.fsync` says. Otherwise as `flush`."""
        await self._journal.sync(through)

    async def snapshot(self, state: Callable[[], Iterable[GroupRecord]]) -> None:
        """Let the records of `state` stand for all that was appended so far, and delete the segments before them.

        `state` is called, and all of it taken, in the step in which a new segment has begun: what is appended from then
        on is replayed after it. One snapshot at a time. Raises StorageFailure; then, and when cancelled, the journal
        reads as if the snapshot had not been begun, and another one may follow.
        """
        assert not self._snapshot_running, "a snapshot of this group journal is being written"
        self._snapshot_running = True
        try:
            reach("group.snapshot.before")
            # In a segment of its own, and the state is that of its beginning: so all before it can be deleted.
            as_of = await self._journal.roll()
            await self._write_snapshot(as_of, self._last_commit_number, list(state()))
            await self._journal.reclaim(as_of)
        finally:
            self._snapshot_running = False

    async def _write_snapshot(self, as_of: JournalPosition, commit_number: int, records: list[GroupRecord]) -> None:
        await self._room_for(_BRACKET_BYTES_MAX)
        self._journal.append(SNAPSHOT_BEGIN, (as_of, commit_number), timestamp_ms=self._now_ms())
        for number, record in enumerate(records):
            if number == len(records) // 2:
                reach("group.snapshot.middle")
            if number % _PARTS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            kind, header, payload = encode_group(record)
            await self._room_for(record_bytes_max(record))
            self._journal.append(PART | kind, header, (payload,) if payload else (), timestamp_ms=self._now_ms())
        await self._room_for(_BRACKET_BYTES_MAX)
        self._journal.append(SNAPSHOT_END, (len(records),), timestamp_ms=self._now_ms())
        end = self._journal.end
        await self._journal.sync()
        self._snapshot_end = end
        reach("group.snapshot.after")

    async def _room_for(self, record_bytes: int) -> None:
        """Return in a step in which there is room, whoever else appends meanwhile."""
        while not self._journal.has_room(record_bytes):
            await self._journal.make_room(record_bytes)


def begin_with_snapshot(
    directory: Path, fsync: Fsync, leader_epoch: LeaderEpoch, records: Iterable[GroupRecord], *, timestamp_ms: int
) -> None:
    """Make a group journal that begins with a snapshot of these records, on disk when this returns. Blocking.

    For groups that have their past in a backup. Does nothing to a journal that has a segment. Raises OSError.
    """
    start = JournalPosition(0)
    parts = [encode_group(record) for record in records]
    framed = [
        (SNAPSHOT_BEGIN, [start, 0], b""),
        *((PART | kind, header, payload) for kind, header, payload in parts),
        (SNAPSHOT_END, [len(parts)], b""),
    ]

    def frames(salt: int) -> bytes:
        written = bytearray()
        for kind, header, payload in framed:
            position = JournalPosition(len(written))
            frame = encode_frame(
                position=position,
                durable=start,
                leader_epoch=leader_epoch,
                timestamp_ms=timestamp_ms,
                kind=kind,
                header=header,
                payload=(payload,) if payload else (),
                salt=salt,
            )
            written += b"".join(frame)
        return bytes(written)

    begin_at(directory, JournalKind.GROUP, fsync, start, frames)
