"""The interface of the data logs: their promises, independent of the storage.

`datalog.environment.LmdbDataLogs` keeps them in LMDB; any other storage has to pass the same behaviour suites
(tests/datalog/behaviour.py). Every method is synchronous and may block on the disk: the event loop calls them in worker
threads. Any number of threads may read at once; writers take turns.

A log is a dense run of record batches (invariant 2) with its copied-through mark; both change in the same write
(invariant 4). Everything that one `write` block does becomes visible at once, in all logs (invariant 7). Data that does
not fit into one block is staged by several blocks, where no reader sees it, and published by the last.

In a log of marker mode, batches of open transactions are among the others (KIP-98). The open transactions are kept with
the data (`OpenInLog`), and so are the aborted ones (`AbortedTransaction`). The first tell a reader of committed records
where to stop, at the *last stable offset*; the second tell it what to leave out. A log of journal mode has neither, and
its last stable offset is its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from datalog.cuts import EndsAtCut, KnownCuts
from datalog.offset_entries import CommittedOffset, Entry, OffsetKey
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, ProducerId, StorageFailure, TxId


class UnknownLog(Exception):
    """The log was never created, or it was dropped."""

    def __init__(self, log: LogId) -> None:
        super().__init__(f"there is no data log {log}")
        self.log = log


class UnknownFormat(StorageFailure):
    """The directory contains data logs of a format that this version does not know, or something else."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The copied-through mark: up to where a log's journal is in the data log."""

    copied_through: JournalPosition
    """Everything decided before this journal position is in the data log."""
    replay_from: JournalPosition
    """Where a restart begins to read the journal; not after `copied_through`."""
    next_offset: Offset
    """The offset of the next record; for an offsets log, the number of the next entry."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The readable part of a log: offsets from `log_start` up to, and without, `next_offset` (the high watermark)."""

    log_start: Offset
    next_offset: Offset
    size_bytes: int
    """Of the batches kept."""
    last_stable_offset: Offset
    """Everything before it is decided: it is where the oldest open transaction begins, or `next_offset`; at least
    `log_start`.
    """


@dataclass(frozen=True, slots=True)
class OpenInLog:
    """A transaction that has batches in a log, and no marker after them yet."""

    txid: TxId
    leader_epoch: LeaderEpoch
    """The leader epoch in which it began there."""
    first_offset: Offset
    """Of its first batch in the log."""
    records: int
    """Of its batches so far."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """The producer's batches from `first_offset` to its abort marker at `last_offset` must not be delivered."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: Offset
    """The log's last stable offset once the marker was there. A transaction that was aborted before this offset and is
    not in the list yet ends after this transaction; so a reader that stops at or before this offset has seen all that
    concern it.
    """


@dataclass(frozen=True, slots=True)
class Space:
    """How much of the map all data logs together use, in bytes."""

    used_bytes: int
    """The size of the file, up to the last page ever used; freed pages are reused before it grows."""
    bytes_max: int


class ReadRequest(NamedTuple):
    """Read `log` from `offset`: whole batches, at most `bytes_max` bytes."""

    log: LogId
    offset: Offset
    bytes_max: int
    committed_only: bool = False
    """Stop at the last stable offset, and return the aborted transactions in the part that was read."""


Batch = bytes | memoryview
"""As stored."""


class ReadResult(NamedTuple):
    """Batches in order; the first may begin before the requested offset. Empty at the log's end.

    If only committed records were requested, it is also empty at and after the last stable offset.
    """

    log: LogId
    batches: Sequence[Batch]
    next_offset: Offset
    """The high watermark, as of the moment of reading."""
    log_start_offset: Offset
    last_stable_offset: Offset
    """The last stable offset, as of the same moment."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """If only committed records were requested: the aborted transactions that have, or may have, records among
    `batches`, by ascending `last_offset`.
    """


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """The requested offset is before the log's start or after its end."""

    log: LogId
    next_offset: Offset
    log_start_offset: Offset


@dataclass(frozen=True, slots=True)
class LogMissing:
    """`UnknownLog`, as one answer among others of the same read."""

    log: LogId


ReadAnswer = ReadResult | OffsetOutOfRange | LogMissing


class Loan:
    """Answers to read requests, whose batches may lie in the data logs' own memory: to be used until `end` only.

    A view of a batch that is used later raises ValueError. A part of one that was made before shows whatever is there.
    """

    def __init__(
        self,
        answers: list[ReadAnswer],
        views: Sequence[memoryview] = (),
        give_back: Callable[[], None] | None = None,
    ) -> None:
        """`views` are the batches that are lent. Without `give_back` all batches are copies."""
        self.answers = answers
        self._views = views
        self._give_back = give_back

    @property
    def is_over(self) -> bool:
        """Whether nothing is lent, or no longer."""
        return self._give_back is None

    def end(self) -> None:
        """Nothing of it is used any more, in any thread. May be called twice."""
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        try:
            for view in self._views:
                view.release()
        finally:
            give_back()


@dataclass(frozen=True, slots=True)
class TimestampOffset:
    """A record found by its timestamp (ms)."""

    offset: Offset
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Where a log's records of a leader epoch, and of earlier ones, end."""

    leader_epoch: LeaderEpoch | None
    """The largest epoch, up to the requested one, of any record of the log; None if there is no such record."""
    end_offset: Offset
    """After the last of these records: where the next epoch's begin, or the log's end."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Batches that belong together: those of one transaction in one log, or a single one."""

    base_offset: Offset
    """The base offset of the first batch that is left."""
    last_offset: Offset
    """The last offset of the transaction, even if compaction has removed its last batch."""
    batches: int
    size_bytes: int
    max_timestamp_ms: int
    """The largest max timestamp of its batches."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A completed compaction: when it ended, there was one record per key left before an offset."""

    before: Offset
    ended_ms: int
    """Unix time."""
    tombstones: int
    """How many of the remaining records are tombstones that may be removed later."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """The progress of compaction in a log."""

    through: Offset
    """Before it, only the latest record per key is left; the next cleaning's new records begin here."""
    clean_bytes: int
    """The size of the batches before `through`, as counted by the last cleaning."""
    doubt_from: Offset | None
    """The first batch in which superseded records may still be left; None if there is none."""
    history: tuple[Cleaning, ...]
    """By ascending offset, and time."""


class NoRoom(StorageFailure):
    """The map is full, or the disk does not have the room that a write block asked for.

    Nothing visible was written, and nothing is damaged: other writes may find enough room.
    """


class TooManyLogs(StorageFailure):
    """There is no handle left for another log until the environment is opened again. Nothing was written."""


class DataLogWriter(Protocol):
    """One write: all or nothing. Use it only in the thread that opened it, and not after its block."""

    def create(self, log: LogId) -> None:
        """Create an empty log with the mark (0, 0, 0). Does nothing if it exists."""
        ...

    def drop(self, log: LogId) -> None:
        """Remove the log with its batches, mark, producers and offsets. Does nothing if it does not exist."""
        ...

    def append(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        """Append one batch, already patched.

        `base_offset` must be the log's next offset (invariant 2) and, like `record_count` and `max_timestamp_ms`, equal
        to the batch's header: AssertionError otherwise, since this is a bug of ours. Raises UnknownLog; StorageFailure
        if the disk or the map is full.
        """
        ...

    def stage(
        self, log: LogId, base_offset: Offset, record_count: int, max_timestamp_ms: int, data: bytes | bytearray
    ) -> None:
        """Put one batch, already patched, after the log's end, or after batches staged there: no reader sees it.

        So data that is too large for one block is written in several, and becomes part of the log by `publish`. Until
        then nothing can be appended to the log (AssertionError). If it is never published, it is deleted when the data
        logs are opened again. Arguments and errors are those of `append`, except that `base_offset` must follow the
        staged batches.
        """
        ...

    def publish(self, log: LogId, staged: Iterable[tuple[Offset, int, int]]) -> None:
        """Make all staged batches part of the log, as if they had been appended in this block.

        `staged` lists them in order: last offset, max timestamp in ms and size in bytes of each batch. AssertionError
        if its end differs from that of the staged batches. Raises UnknownLog.
        """
        ...

    def put_offsets(self, log: LogId, entries: Sequence[Entry]) -> None:
        """Keep the newest committed offset per key, and the newest record per group. Raises UnknownLog.

        Of two entries with one key the last wins.
        """
        ...

    def forget_groups(self, log: LogId) -> None:
        """Remove the records of all groups; their committed offsets stay. Raises UnknownLog."""
        ...

    def put_producer(self, log: LogId, producer_id: ProducerId, state: bytes) -> None:
        """Store `state`, opaque here, replacing this producer's previous state. Raises UnknownLog."""
        ...

    def delete_producer(self, log: LogId, producer_id: ProducerId) -> None:
        """Forget the producer; does nothing if it is not known. Raises UnknownLog."""
        ...

    def put_open(self, log: LogId, transaction: OpenInLog) -> None:
        """Record the transaction as open, replacing the producer's previous record. Raises UnknownLog.

        Call it in the block that appends its batch. A producer has one open transaction at a time: AssertionError if an
        older one was not deleted.
        """
        ...

    def delete_open(self, log: LogId, producer_id: ProducerId) -> OpenInLog | None:
        """The producer's transaction is decided: delete its record, and return it. Raises UnknownLog."""
        ...

    def put_aborted(self, log: LogId, aborted: AbortedTransaction) -> None:
        """Record a transaction as aborted, after its marker is appended. Raises UnknownLog.

        Call it in the order of the markers; `aborted.last_stable_offset` is the value of `last_stable_offset` at that
        time.
        """
        ...

    def last_stable_offset(self, log: LogId) -> Offset:
        """The last stable offset, as this block has it so far. Raises UnknownLog."""
        ...

    def mark(self, log: LogId) -> Mark:
        """The copied-through mark, as this block has it so far. Raises UnknownLog."""
        ...

    def put_mark(self, log: LogId, mark: Mark) -> None:
        """Move the copied-through mark; it never goes back.

        For a topic's log `mark.next_offset` must equal the result of the appends; an offsets log takes it from here.
        AssertionError otherwise. Raises UnknownLog.
        """
        ...

    def delete_before(self, log: LogId, offset: Offset, *, batches_max: int | None = None) -> int:
        """Let the log start at `offset` (retention, DeleteRecords). Returns the bytes of the deleted batches.

        Readers see the new start as soon as the block is committed. Aborted transactions that end before it, and cuts
        at which the log ended before it, are deleted. At most `batches_max` batches are deleted, if it is given;
        further calls delete the rest before the start, until one returns 0. A batch that contains `offset` is kept
        whole. An offset at or before the log's start changes nothing. Raises UnknownLog; ValueError if `offset` is
        after the log's end.
        """
        ...

    def bind(self, log: LogId, base_offset: Offset, last_offset: Offset) -> None:
        """Record that the batches from one offset to the other are one transaction: a `Unit`. Raises UnknownLog."""
        ...

    def unbind(self, log: LogId, last_offset: Offset) -> None:
        """Delete the record that `bind` made of the transaction that ends there, if any. Raises UnknownLog."""
        ...

    def replace(self, log: LogId, last_offset: Offset, data: bytes | bytearray | None) -> bool:
        """Replace the batch that ends with `last_offset` by `data`, or delete it (compaction).

        `data` has the same base and last offset, and fewer records. Returns False, and does nothing, if the batch no
        longer exists. It must not be the log's last batch: AssertionError. Raises UnknownLog.
        """
        ...

    def put_cleaned(self, log: LogId, cleaned: Cleaned) -> None:
        """Store the progress of compaction, replacing the previous one. Raises UnknownLog."""
        ...

    def put_cut(self, now_s: float) -> None:
        """The state that this block leaves is a cut: store it for `DataLogs.cut_within`, if one is due
        (`datalog.cuts`).

        `now_s` is from a clock that does not go back while the data logs are open. The writer that appends calls this
        in every block or in some; records of other blocks are part of the next stored cut.
        """
        ...

    def put_common_cut(self, number: int, ends: Mapping[LogId, Offset]) -> None:
        """Store a cut that was taken over all shards of the node, with these ends of the topics' logs of this one.

        Logs that were made later have no end in it. `number` is larger than `DataLogs.newest_cut`, and it is in no
        other block: AssertionError. No end is after the log's last stable offset, or before that of an older cut.
        """
        ...

    def forget_cleaned_cuts(self, log: LogId, *, rows_max: int) -> int:
        """Delete the log's rows of cuts in the compacted part; at most `rows_max` of them.

        Returns how many were deleted: less than `rows_max` when none are left. For a start in that part
        `DataLogs.cut_within` then returns the first cut after it. Raises UnknownLog.
        """
        ...


class DataLogs(Protocol):
    """All data logs of a node."""

    def write(self, *, room_bytes: int = 0) -> AbstractContextManager[DataLogWriter]:
        """A write block: committed when it ends, undone if it raises. Waits for another thread's block.

        With `room_bytes`, this much disk space is reserved first, and NoRoom is raised if there is not enough. Writes
        that can be postponed (compaction) use it, so that a full disk does not make the commit fail.

        Raises NoRoom inside or at its end if the map is full, and StorageFailure at its end if it could not be
        committed (then nothing of it is visible). After the disk has failed a commit or a sync, all further blocks are
        refused at their beginning.
        """
        ...

    def read(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> list[ReadAnswer]:
        """Read all requests from one consistent cut, in the order given; the answers have the same order.

        Each log returns whole batches, beginning with the one that contains the offset, as long as neither its own nor
        the common `bytes_max` is exceeded. But the very first batch is returned whatever its size is (KIP-74), so that
        no consumer is stuck before a large one.
        """
        ...

    def lend(self, requests: Sequence[ReadRequest], *, bytes_max: int) -> Loan:
        """The same; but large answers are lent and not copied (`datalog.loans`). The caller ends the loan, soon."""
        ...

    def mark(self, log: LogId) -> Mark | None:
        """The copied-through mark, None if there is no such log."""
        ...

    def bounds(self, log: LogId) -> Bounds:
        """The readable part of the log. Raises UnknownLog."""
        ...

    def logs(self) -> list[LogId]:
        """All logs, sorted by their names."""
        ...

    def cut_within(self, starts: Mapping[LogId, Offset], *, records_max: int) -> dict[LogId, Offset]:
        """Where to stop reading these topics' logs, each from its start, to get at most `records_max` records.

        The ends are a cut: the records before them contain all or nothing of every transaction, except in logs of
        marker mode. It is the newest cut within the limit. If no such cut has anything to read, it is the next one,
        however many records that has; where the index does not reach back to a start, the oldest known one. No end is
        after the log's last stable offset or before its start; a start before the log's start counts as the log's
        start. Records are counted by their offsets, so removed records and markers count as well.

        A search of about log2(number of cuts) steps, with a lookup of a few microseconds for each log that grew in
        between; call it in a worker thread. Raises UnknownLog; ValueError for an offsets log.
        """
        ...

    @property
    def newest_cut(self) -> int:
        """The number of the newest cut that is stored; 0 if there is none. Any thread may ask for it."""
        ...

    def known_cuts(self, starts: Mapping[LogId, Offset]) -> KnownCuts:
        """What a search over several shards needs to know of these topics' logs, each read from its start.

        Logs that do not exist are missing. A start before the log's start counts as the log's start.
        """
        ...

    def ends_at(self, number: int, logs: Collection[LogId], *, common: bool) -> EndsAtCut:
        """Where these logs ended at the cut with that number; of common cuts, at the newest one that is not newer."""
        ...

    def offset_for_timestamp(self, log: LogId, timestamp_ms: int) -> TimestampOffset | None:
        """The first record whose timestamp is `timestamp_ms` or later, None if there is none.

        Exact to the record if the batch is uncompressed or its codec is available (`datalog.records`); otherwise the
        batch's first offset with the batch's max timestamp: never too late. Raises UnknownLog.
        """
        ...

    def max_timestamp(self, log: LogId) -> TimestampOffset | None:
        """The first record that has the log's largest timestamp, None if the log is empty.

        If `delete_before` has cut that record off inside its batch, it is the log's start. Raises UnknownLog.
        """
        ...

    def end_of_epoch(self, log: LogId, leader_epoch: LeaderEpoch) -> EpochEnd:
        """Where the records of this leader epoch and of earlier ones end. Raises UnknownLog.

        Leader epochs never decrease along a log, so this is a binary search.
        """
        ...

    def open_transactions(self, log: LogId) -> list[OpenInLog]:
        """The transactions that are open in the log, by ascending producer id. Raises UnknownLog."""
        ...

    def producers(self, log: LogId) -> list[tuple[ProducerId, bytes]]:
        """The states stored by `put_producer`, by ascending producer id. Raises UnknownLog."""
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

    def groups(self, log: LogId) -> list[tuple[bytes, bytes]]:
        """The groups of which it is known who is in them: the digest of each one's name, and its record.

        Raises UnknownLog.
        """
        ...

    def space(self) -> Space:
        """How much of the map is used. Raises StorageFailure."""
        ...

    def units(self, log: LogId, offset: Offset, *, batches_max: int) -> list[Unit]:
        """The units of the log from the one that contains `offset` on, in order.

        Stops after the unit that makes it `batches_max` batches or more. Batches before the log's start are left out,
        also those of a unit. Raises UnknownLog.
        """
        ...

    def cleaned(self, log: LogId) -> Cleaned:
        """The progress of compaction. Raises UnknownLog."""
        ...

    def time_index_is_behind(self, log: LogId) -> bool:
        """Whether the batch with the log's max timestamp is gone, so that searches by timestamp may take long.

        Raises UnknownLog.
        """
        ...

    def reindexing(self, log: LogId) -> Iterator[None]:
        """Rebuild the log's time index in bounded steps: one for each `next`.

        The index is correct at any moment, whether the steps are completed or not. Each step raises what `write`
        raises, and UnknownLog.
        """
        ...

    def copy_into(self, descriptor: int) -> None:
        """Write the whole file as it is at some moment of this call, without unused pages, into a file or a pipe.

        Pages that are freed meanwhile are not used again, so the file grows. Blocks as long as the reader of a pipe
        does. Raises StorageFailure, also if that reader has gone; CorruptStorage.
        """
        ...

    def sync(self) -> None:
        """Return once everything committed so far is on disk, including the last commit (invariant 11).

        Raises StorageFailure.
        """
        ...

    def close(self) -> None:
        """Sync and close; may be called twice. Waits for reads in progress and loans; later ones raise StorageFailure.

        No write block may be open, or be opened afterwards.
        """
        ...
