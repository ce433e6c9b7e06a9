"""The data logs as the rooms above see them: their promises, independent of the storage.

`datalog.environment.LmdbDataLogs` keeps them in LMDB; any other storage has to pass the same behaviour suites
(tests/datalog/behaviour.py). Every method is synchronous and may block on the disk: the event loop calls them in
worker threads. Any number of threads may read at once; writers take turns.

A log is a dense run of record batches (invariant 2) with its copied-through mark; both change in the same write
(invariant 4). Everything that one `write` block does becomes visible at once, over all logs (invariant 7). What does
not fit into one block is staged by several, where no reader sees it, and published by the last.

In a log of the marker mode, batches of open transactions are among the others (KIP-98). The open transactions are kept
with the data (`OpenInLog`), and so are the aborted ones (`AbortedTransaction`): by the first a reader of committed
records knows where to stop, the *last stable offset*, by the second what to leave out. A log of the journal mode has
neither, and its last stable offset is its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from datalog.offset_entries import CommittedOffset, OffsetEntry, OffsetKey
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerId, StorageFailure, TxId


class UnknownLog(Exception):
    """The log was never created, or it was dropped."""

    def __init__(self, log: LogId) -> None:
        super().__init__(f"there is no data log {log}")
        self.log = log


class UnknownFormat(StorageFailure):
    """The directory holds data logs of a format that this version does not know, or something else altogether."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The copied-through mark: how far of a log's journal is in the data log."""

    copied_through: JournalPosition
    """Everything decided before this journal position is in the data log."""
    replay_from: JournalPosition
    """Where a restart begins to read the journal: at most `copied_through`."""
    next_offset: Offset
    """The offset of the next record; for an offsets log, the number of the next entry."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read: offsets from `log_start` up to, and without, `next_offset` (the high watermark)."""

    log_start: Offset
    next_offset: Offset
    size_bytes: int
    """Of the batches kept."""
    last_stable_offset: Offset
    """Before it all is decided: where the oldest open transaction begins, or `next_offset`; `log_start` at least."""


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction that has batches in a log, and no marker behind them yet."""

    txid: TxId
    leader_epoch: LeaderEpoch
    """In which it was begun there."""
    first_offset: Offset
    """Of its first batch in the log."""
    records: int
    """Of its batches so far."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """The producer's batches from `first_offset` to its abort marker at `last_offset` are not to be delivered."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset
    """Of the log once the marker was there. Whatever was aborted before it and is not in the list yet ends behind this
    transaction; so a reader that stops at or before it has seen all that concerns it."""


@dataclass(frozen=True, slots=True)
class Space:
    """How much of what there may be is taken, in bytes, by all data logs together."""

    used_bytes: int
    """Of the file, to the last page ever used; pages that were freed in between are used again before it grows."""
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read `log` from `offset`, whole batches, `bytes_max` of them at most."""

    log: LogId
    offset: Offset
    bytes_max: int
    committed_only: bool = False
    """Stop at the last stable offset, and tell what was aborted in what was read."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Batches in order; the first may begin before the offset asked for. Empty at the log's end.

    If only committed records were asked for, it is empty at and behind the last stable offset, too.
    """

    log: LogId
    batches: list[bytes]
    next_offset: Offset
    """The high watermark, as of the moment of reading."""
    log_start_offset: Offset
    last_stable_offset: Offset
    """As of the same moment."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """If only committed records were asked for: the transactions that have records among `batches`, or might have, by
    ascending `last_offset`."""


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """The offset asked for lies before the log's start or behind its end."""

    log: LogId
    next_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class LogMissing:
    """`UnknownLog`, as one answer among others of the same read."""

    log: LogId


ReadAnswer = ReadResult | OffsetOutOfRange | LogMissing


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record found by its timestamp (ms)."""

    offset: Offset
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """How far a log's records of some leader epoch, and of those before it, reach."""

    leader_epoch: LeaderEpoch | None
    """The largest one, up to that which was asked for, that a record of the log has; None if none has one."""
    end_offset: Offset
    """Behind the last of these records: where the next epoch's begin, or the log's end."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Batches that go together: those of one transaction in one log, or a single one."""

    base_offset: Offset
    """Of the first batch that is there."""
    last_offset: Offset
    """Of the transaction, though compaction may have taken its last batch."""
    batches: int
    size_bytes: int
    max_timestamp_ms: int
    """The largest of its batches'."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A compaction that was done: when it ended, it had left one record per key before an offset."""

    before: Offset
    ended_ms: int
    """Unix time."""
    tombstones: int
    """How many of the records that it left are tombstones that may go one day."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far compaction has come with a log."""

    through: Offset
    """Before it, only the latest record per key is left; the next cleaning's news begin here."""
    clean_bytes: int
    """Of the batches before `through`, as the last cleaning has counted them."""
    doubt_from: Offset | None
    """The first batch of which superseded records may have been left all the same; None if there is none."""
    history: tuple[Cleaning, ...]
    """By ascending offset, and time."""


class NoRoom(StorageFailure):
    """The map is full, or the disk has not the room that a write block asked for.

    Nothing was written that anybody could see, and nothing is damaged by it: other writes may find enough.
    """


class TooManyLogs(StorageFailure):
    """There is no name left for another log before the environment is opened anew. Nothing was written."""


class DataLogWriter(Protocol):
    """One write: all of it or nothing. Used in the thread that opened it, and not after its block."""

    def create(self, log: LogId) -> None:
        """Make an empty log with the mark (0, 0, 0). Does nothing if it exists."""
        ...

    def drop(self, log: LogId) -> None:
        """Remove the log with its batches, mark, producers and offsets. Does nothing if it does not exist."""
        ...

    def append(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        """Add one batch, already patched, behind the last one.

        `base_offset` must be the log's next offset (invariant 2) and, like `record_count` and
        `max_timestamp_ms`, what the batch's header says: AssertionError otherwise, for it is a bug of ours.
        Raises UnknownLog; StorageFailure if the disk or the map is full.
        """
        ...

    def stage(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        """Put one batch, already patched, behind the log's end, or behind what is staged there: no reader sees it.

        So what is too large for one block is written in several, and becomes part of the log by `publish`. Until then
        nothing can be appended to the log (AssertionError), and what is never published has gone when the data logs are
        opened anew. Arguments and errors are those of `append`, but that `base_offset` must follow what is staged.
        """
        ...

    def publish(self, log: LogId, staged: Iterable[tuple[Offset, int, int]]) -> None:
        """Let all that is staged be part of the log, as if it had been appended in this block.

        `staged` names it, in order: last offset, max timestamp in ms and size in bytes of each batch. AssertionError if
        it ends elsewhere than what is there. Raises UnknownLog.
        """
        ...

    def put_offsets(self, log: LogId, entries: Sequence[OffsetEntry]) -> None:
        """Keep the newest committed offset per key; the last of two entries with one key wins. Raises UnknownLog."""
        ...

    def put_producer(self, log: LogId, producer_id: ProducerId, state: bytes) -> None:
        """Keep `state`, opaque here, in place of what was kept for this producer. Raises UnknownLog."""
        ...

    def delete_producer(self, log: LogId, producer_id: ProducerId) -> None:
        """Forget the producer; does nothing if it is not known. Raises UnknownLog."""
        ...

    def put_open(self, log: LogId, transaction: OpenInLog) -> None:
        """Remember the transaction as open, in place of what was said of its producer before. Raises UnknownLog.

        In the block that appends its batch. A producer has one transaction open at a time: AssertionError if an older
        one was not deleted.
        """
        ...

    def delete_open(self, log: LogId, producer_id: ProducerId) -> OpenInLog | None:
        """The producer's transaction is decided: forget that it is open, and answer it. Raises UnknownLog."""
        ...

    def put_aborted(self, log: LogId, aborted: AbortedTransaction) -> None:
        """Remember a transaction as aborted, once its marker is appended. Raises UnknownLog.

        In the order of the markers; `aborted.last_stable_offset` is what `last_stable_offset` answers then.
        """
        ...

    def last_stable_offset(self, log: LogId) -> Offset:
        """As this block has it so far. Raises UnknownLog."""
        ...

    def mark(self, log: LogId) -> Mark:
        """The copied-through mark, as this block has it so far. Raises UnknownLog."""
        ...

    def put_mark(self, log: LogId, mark: Mark) -> None:
        """Move the copied-through mark; it never goes back.

        For a topic's log `mark.next_offset` must be what the appends have led to; an offsets log takes it
        from here. AssertionError otherwise. Raises UnknownLog.
        """
        ...

    def delete_before(self, log: LogId, offset: Offset, *, batches_max: int | None = None) -> int:
        """Let the log start at `offset` (retention, DeleteRecords): answer the bytes of the batches deleted.

        Readers find the new start as soon as the block is committed; aborted transactions that end before it, and
        cuts at which the log ended before it, are forgotten. With `batches_max` no more batches than that are
        deleted; what is left before the start is deleted by further calls, until one answers 0. A batch that reaches
        over `offset` is kept whole. An offset at or before the log's start moves nothing.
        Raises UnknownLog; ValueError if `offset` lies behind the log's end.
        """
        ...

    def bind(self, log: LogId, base_offset: Offset, last_offset: Offset) -> None:
        """Remember that the batches from one offset to the other are one transaction: a `Unit`. Raises UnknownLog."""
        ...

    def unbind(self, log: LogId, last_offset: Offset) -> None:
        """Forget what `bind` said of the transaction that ends there, if it did. Raises UnknownLog."""
        ...

    def replace(self, log: LogId, last_offset: Offset, data: bytes | bytearray | None) -> bool:
        """Put `data` in place of the batch that ends with `last_offset`, or nothing (compaction).

        `data` has the same base and last offset, and fewer records. False, and nothing is done, if there is no such
        batch any more. Never the log's last batch: AssertionError. Raises UnknownLog.
        """
        ...

    def put_cleaned(self, log: LogId, cleaned: Cleaned) -> None:
        """Keep how far compaction has come, in place of what was kept. Raises UnknownLog."""
        ...

    def put_cut(self, now_s: float) -> None:
        """What this block leaves is a cut: keep it for `DataLogs.cut_within`, if one is due (`datalog.cuts`).

        `now_s` is of a clock that does not go back while the data logs are open. Whoever appends calls it, with every
        block or with some; what other blocks have added is part of the next cut that is kept.
        """
        ...

    def forget_cleaned_cuts(self, log: LogId, *, rows_max: int) -> int:
        """Forget where the log ended at cuts in the part that compaction has been through; `rows_max` of them at most.

        Answers how many were forgotten: less than `rows_max` when none are left. From there `DataLogs.cut_within` gives
        the first cut behind that part. Raises UnknownLog.
        """
        ...


class DataLogs(Protocol):
    """All data logs of a node."""

    def write(self, *, room_bytes: int = 0) -> AbstractContextManager[DataLogWriter]:
        """A write block: committed when it ends, undone if it raises. Waits for another thread's block.

        With `room_bytes`, so much room is made sure of on the disk before, and NoRoom raised if there is not. Whoever
        can do without the write (compaction) asks for it, lest a full disk fail the commit.

        Raises NoRoom inside or at its end if the map is full, and StorageFailure at its end if it could not be
        committed (nothing of it is visible then); once the disk has failed a commit or a sync, all further blocks are
        refused at their beginning.
        """
        ...

    def read(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> list[ReadAnswer]:
        """Read all requests from one consistent cut, in the order given; answers stand in the same order.

        Each log gives whole batches, beginning with the one that contains the offset, as long as neither its
        own nor the common `bytes_max` is exceeded; but the first batch found at all is returned whatever its size
        (KIP-74), so that no consumer is stuck behind a large one.
        """
        ...

    def mark(self, log: LogId) -> Mark | None:
        """The copied-through mark, None if there is no such log."""
        ...

    def bounds(self, log: LogId) -> Bounds:
        """What can be read. Raises UnknownLog."""
        ...

    def logs(self) -> list[LogId]:
        """All logs, sorted by their names."""
        ...

    def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> dict[LogId, Offset]:
        """Where to stop reading these topics' logs, each from its start, to have `records_max` records at most.

        The ends are a cut: what lies before them holds of every transaction all or nothing, except in logs of the
        marker mode. It is the newest cut that keeps the limit. If there is none with anything to read, it is the next
        one, however many records that has; where the index does not reach back to a start, the oldest one that is
        known. No end lies behind the log's last stable offset, nor before its start; a start before the log's start
        counts as that. Records are counted by their offsets: what compaction has taken counts as well, and markers do.

        A search of some log2(number of cuts) steps, with a lookup of some microseconds for each log that grew between:
        for worker threads. Raises UnknownLog; ValueError for an offsets log.
        """
        ...

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None:
        """The first record whose timestamp is `timestamp_ms` or later, None if there is none.

        Exact to the record where the batch is uncompressed or its codec is at hand (`datalog.records`); else the
        batch's first offset with the batch's max timestamp: never too late. Raises UnknownLog.
        """
        ...

    def max_timestamp(self, log: LogId) -> TimestampOffset | None:
        """The first record that has the log's largest timestamp, None if the log is empty.

        If `delete_before` has cut that record off inside its batch, the log's start stands for it. Raises UnknownLog.
        """
        ...

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd:
        """Where the records of this leader epoch and of those before it end. Raises UnknownLog.

        Leader epochs never fall along a log, so this is a search in a few steps.
        """
        ...

    def open_transactions(self, log: LogId) -> list[OpenInLog]:
        """The transactions that are open in the log, by ascending producer id. Raises UnknownLog."""
        ...

    def producers(self, log: LogId) -> list[tuple[ProducerId, bytes]]:
        """What `put_producer` kept, by ascending producer id. Raises UnknownLog."""
        ...

    def offsets(self, log: LogId, group: str | None = None) -> list[tuple[OffsetKey, CommittedOffset]]:
        """The committed offsets of one group, or of all. Raises UnknownLog."""
        ...

    def committed_offsets(self, log: LogId, keys: Sequence[OffsetKey]) -> list[CommittedOffset | None]:
        """The committed offset of each key, None where there is none; from one consistent cut. Raises UnknownLog."""
        ...

    def offset_groups(self, log: LogId) -> dict[str, int]:
        """The groups that have committed offsets, each with the time of its newest one in ms. Raises UnknownLog."""
        ...

    def space(self) -> Space:
        """How much of what there may be is taken. Raises StorageFailure."""
        ...

    def units(self, log: LogId, offset: Offset, *, batches_max: int) -> list[Unit]:
        """The units of the log from the one that contains `offset` on, in order.

        Stops behind the unit that makes it `batches_max` batches or more. What lies before the log's start is left out,
        also of a unit. Raises UnknownLog.
        """
        ...

    def cleaned(self, log: LogId) -> Cleaned:
        """How far compaction has come. Raises UnknownLog."""
        ...

    def time_index_is_behind(self, log: LogId) -> bool:
        """Whether the batch with the log's max timestamp is gone, so that searches by timestamp may take long.

        Raises UnknownLog.
        """
        ...

    def reindexing(self, log: LogId) -> Iterator[None]:
        """Make the log's time index anew, in bounded steps: one for each `next`.

        The index is right at any moment, whether the steps are gone through or not. Each raises what `write` does, and
        UnknownLog.
        """
        ...

    def sync(self) -> None:
        """Return once everything committed so far is on disk, also the last commit (invariant 11).

        Raises StorageFailure.
        """
        ...

    def close(self) -> None:
        """Sync and close; twice is as good as once. Waits for reads in flight; later ones raise StorageFailure.

        No write block may be open, or be opened afterwards.
        """
        ...
