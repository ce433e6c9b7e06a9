"""The journals of a shard on a replicated log, with files of this machine as their copy.

    owner    append ─▶ memory ─▶ StreamWriter ─▶ replicated log ─▶ accepted ──┐
                                                                              ├─▶ `take` ─▶ file ─▶ `durable`
    replica  a reader of the log, through the same fold ──────────────────────┘

A frame comes into a file when the fold has accepted it, and not before: what lies in the files is the same on every
machine, up to where each has read, and a deposed owner has nothing to take back. `end` is behind what was appended,
`durable` behind what was accepted; in between, frames are in memory.

All journals of a shard share one writer, so a flush of one of them appends what all of them hold, in the order in
which it was appended, as one entry.

*The files* need no sync: what a machine loses with its power, it reads again. `sync_files` puts them on disk, after
which the replicated log may let go of what they hold.

*Room.* A frame that is appended must find room in the file when it is accepted. So `has_room` asks for all that is not
accepted yet as well. A segment that was begun meanwhile may be smaller: then a frame waits for room on the spot, and
only a full disk refuses it. After that the files take nothing more, and are not said to be on disk (`sync_files`).

A journal's name in the stream is its directory's, with the one above: `local/<log>`, `group/<number>`.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import trio

from fairlog_types import CorruptStorage, JournalPosition, LeaderEpoch, StorageFailure
from journal.flush import Flusher
from journal.frame import ENVELOPE_BYTES, BadFrame, Buffer, decode_replicated_untrusted, encode_replicated, padded
from journal.journal import Fsync, Journal, JournalKind, JournalSettings
from journal.on_files import JournalsOnFiles
from journal.reading import FrameAt, frame_at
from stream.entry import JournalFrame
from stream.writer import StreamWriter

UNACCEPTED_BYTES_MAX = 64 * 2**20
"""What a shard's journals hold in memory before writers wait: the engine is away, or slower than they are."""


class StreamedJournal:
    """One journal. Implements `journal.interface.OpenJournal`, whose methods `Journal` explains."""

    def __init__(self, name: str, file: Journal, shard: StreamedJournals) -> None:
        self.name = name
        self._file = file
        self._shard = shard
        self._end = file.end
        self._closed = False
        self._waiters: list[tuple[JournalPosition, int, trio.Event]] = []
        self._waiter_numbers = count()

    @property
    def failed(self) -> StorageFailure | None:
        return self._shard.failed or self._file.failed

    @property
    def failed_file(self) -> StorageFailure | None:
        """Why its file is not written to any more."""
        return self._file.failed

    @property
    def begun(self) -> bool:
        """The stream has begun; that there is no file says only that nothing of this journal has come."""
        return True

    @property
    def begun_with(self) -> Fsync:
        """What is accepted is kept, whatever becomes of the file."""
        return Fsync.COMMIT

    @property
    def may_have_another_owner(self) -> bool:
        """See `OpenJournal`."""
        return True

    async def confirm(self) -> None:
        """See `StreamedJournals.confirm`."""
        await self._shard.confirm()()

    @property
    def gets_tail_again(self) -> bool:
        """A replica's come from the replicated log; an owner has them all, and appends behind them."""
        return self._shard.follows

    @property
    def start(self) -> JournalPosition:
        return self._file.start

    @property
    def end(self) -> JournalPosition:
        return self._end

    @property
    def durable(self) -> JournalPosition:
        return self._file.end

    # Writing

    def append(
        self, kind: int, header: Sequence[object], payload: Sequence[Buffer] = (), *, timestamp_ms: int
    ) -> JournalPosition:
        """As `Journal.append`, in memory. An owner alone appends."""
        self._check_writable()
        position = self._end
        parts = encode_replicated(
            position=position,
            leader_epoch=self._shard.leader_epoch,
            timestamp_ms=timestamp_ms,
            kind=kind,
            header=header,
            payload=payload,
        )
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._shard.writer.add(JournalFrame(self.name, data))
        self._end = JournalPosition(position + padded(ENVELOPE_BYTES + len(data)))
        return position

    def has_room(self, payload_bytes: int) -> bool:
        return self._shard.has_room and self._file.has_room(self._unaccepted_bytes + payload_bytes)

    async def make_room(self, payload_bytes: int) -> None:
        self._check_writable()
        while not self._shard.has_room:
            await self._shard.room()
            self._check_writable()
        await self._file.make_room(self._unaccepted_bytes + payload_bytes)

    @property
    def _unaccepted_bytes(self) -> int:
        return self._end - self._file.end

    def start_flush(self) -> None:
        if self._file.end < self._end and self.failed is None:
            self._shard.writer.flush()

    async def flush(self, through: JournalPosition) -> None:
        assert through <= self._end, (through, self._end)
        if through <= self._file.end:
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        self._check_writable()
        self._shard.writer.flush()
        accepted = trio.Event()
        heapq.heappush(self._waiters, (through, next(self._waiter_numbers), accepted))
        await accepted.wait()
        if through > self._file.end:
            raise self._refusal()

    async def sync(self, through: JournalPosition | None = None) -> None:
        """Return once what is appended is accepted. The file needs no sync: what it loses comes again."""
        await self.flush(self._end if through is None else through)

    async def begin(self) -> None:
        await self._file.begin()

    async def roll(self) -> JournalPosition:
        """As `Journal.roll`, for this machine's file: the answer is where the next frame will be, in a new segment or,
        if somebody else has appended meanwhile, a little later."""
        await self.flush(self._end)
        await self._file.roll()
        return self._end

    async def advance(self, to: JournalPosition) -> None:
        assert to <= self._end, f"{self.name} ends at {self._end}: positions of a replicated journal are not skipped"

    async def begin_under_present_setting(self) -> None:
        await self._file.begin_under_present_setting()

    async def reclaim(self, before: JournalPosition) -> None:
        """As `Journal.reclaim`. What stands for the deleted frames is on this machine's disk before."""
        await self._file.sync()
        await self._file.reclaim(before)

    async def close(self) -> None:
        """Let go of the file, in good order. What is not accepted is forgotten. Idempotent."""
        if not self._closed:
            self._closed = True
            self._shard.closed(self.name)
            self.wake()
        try:
            await self._file.close()
        finally:
            self._shard.note_file(self._file.failed)

    # What was accepted

    def take(self, data: Buffer) -> FrameAt | None:
        """Write a frame into the file that was accepted, unless it is there; what it says, for a replica.

        None: it is there. Raises CorruptStorage if it is no frame, or not the next one.
        """
        frame = decode_replicated_untrusted(data)
        if isinstance(frame, BadFrame):
            raise CorruptStorage(
                f"an entry of the stream has a damaged frame of the journal {self.name}: {frame.value}"
            )
        if frame.position < self._file.end:
            return None
        if frame.position > self._file.end:
            raise CorruptStorage(
                f"the journal {self.name} ends at {self._file.end}, but the stream goes on at {frame.position}: "
                "segment files were removed, or the directory belongs to another stream"
            )
        try:
            found = frame_at(frame)
        except ValueError as error:
            raise CorruptStorage(f"the journal {self.name}, position {frame.position}: {error}") from error
        self._file.append_received(data)
        self._end = max(self._end, self._file.end)
        return found

    def take_own(self, data: Buffer) -> None:
        """Write a frame into the file that was appended here, and was accepted. Raises StorageFailure."""
        self._file.append_received(data)

    async def sync_file(self) -> None:
        """Put on disk what the file has. Raises StorageFailure."""
        await self._file.sync()

    def named_segments(self) -> Sequence[tuple[Path, int]]:
        """See `Segments.named`."""
        return self._file.named_segments()

    async def make_room_in_file(self, size: int) -> None:
        """Room for frames of `size` bytes that will be taken. Raises as `Journal.make_room`."""
        if not self._file.has_room(size):
            await self._file.make_room(size)

    def wake(self) -> None:
        """Let those go on who wait for what was accepted; all of them, after a failure."""
        over = self._closed or self.failed is not None
        while self._waiters and (over or self._waiters[0][0] <= self._file.end):
            heapq.heappop(self._waiters)[2].set()

    # Reading

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]:
        return self._file.frames(start)

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        return self._file.read_payload(position, frame_bytes)

    def recent_payload(self, position: JournalPosition) -> bytearray | None:
        return self._file.recent_payload(position)

    def let_go(self, position: JournalPosition, frame_bytes: int) -> None:
        self._file.let_go(position, frame_bytes)

    def _check_writable(self) -> None:
        if self._closed or self.failed is not None:
            raise self._refusal()

    def _refusal(self) -> StorageFailure:
        return self.failed or StorageFailure(f"the journal {self.name} is closed")


class StreamedJournals:
    """Opens the journals of a shard, and hands them what was accepted. Implements `journal.interface.Journals`."""

    def __init__(self, flusher: Flusher, segment_bytes_max: dict[JournalKind, int], leader_epoch: LeaderEpoch) -> None:
        """`leader_epoch` goes into every frame that is appended: the stream's epoch."""
        self.leader_epoch = leader_epoch
        self.failed: StorageFailure | None = None
        """Why nothing is appended any more; None while all is well."""
        settings = {
            kind: JournalSettings(Fsync.NEVER, segment_bytes_max=size) for kind, size in segment_bytes_max.items()
        }
        self._files = JournalsOnFiles(flusher, settings, leader_epoch)
        self._by_name: dict[str, StreamedJournal] = {}
        self._unsynced: dict[StreamedJournal, None] = {}
        """In the order in which they were written to."""
        self._lacks: StorageFailure | None = None
        """Why a file does not have what was accepted; None as long as all have it."""
        self._failed_file: StorageFailure | None = None
        """Of a journal that was closed."""
        self._writer: StreamWriter | None = None
        self._room_again = trio.Event()

    async def open(self, directory: Path, kind: JournalKind) -> StreamedJournal:
        return self._opened(directory, await self._files.open(directory, kind))

    def unbegun(self, directory: Path, kind: JournalKind) -> StreamedJournal:
        return self._opened(directory, self._files.unbegun(directory, kind))

    def _opened(self, directory: Path, file: Journal) -> StreamedJournal:
        name = f"{directory.parent.name}/{directory.name}"
        journal = self._by_name[name] = StreamedJournal(name, file, self)
        return journal

    def get(self, name: str) -> StreamedJournal | None:
        """The journal of this name, if it is open."""
        return self._by_name.get(name)

    @property
    def failed_file(self) -> StorageFailure | None:
        """Why a file of this machine is not written to any more, as long as the process lives; None: all are well."""
        failures = (journal.failed_file for journal in self._by_name.values())
        return self._failed_file or next((failure for failure in failures if failure is not None), None)

    def closed(self, name: str) -> None:
        """The journal is being closed, and takes nothing more."""
        self._by_name.pop(name, None)
        self._wake_for_room()

    def note_file(self, failed: StorageFailure | None) -> None:
        """A file was closed, and has failed, perhaps only then."""
        self._failed_file = self._failed_file or failed

    # The owner's side

    def append_with(self, writer: StreamWriter) -> None:
        """From now on this process owns the shard, and appends with `writer`."""
        self._writer = writer

    @property
    def writer(self) -> StreamWriter:
        assert self._writer is not None, "a replica appends nothing"
        return self._writer

    @property
    def follows(self) -> bool:
        """Whether this is a replica: it takes what was accepted elsewhere."""
        return self._writer is None

    @property
    def has_room(self) -> bool:
        return self.failed is None and self.writer.unaccepted_bytes < UNACCEPTED_BYTES_MAX

    async def room(self) -> None:
        """Return when there may be room again, or a journal was closed, or nothing can be appended any more."""
        self.writer.flush()
        await self._room_again.wait()

    def _wake_for_room(self) -> None:
        self._room_again.set()
        self._room_again = trio.Event()

    def accepted(self, frames: Sequence[JournalFrame]) -> None:
        """Frames that were appended here were accepted: they go into the files, and then those who wait go on.

        None after one that a file did not take: those behind it would lie where they do not belong.
        """
        if self._lacks is not None:
            return
        journals: dict[str, StreamedJournal] = {}
        for name, data in frames:
            journal = journals.get(name) or self._by_name.get(name)
            if journal is None:
                continue  # its log was deleted meanwhile
            journals[name] = journal
            try:
                journal.take_own(data)
            except StorageFailure as failure:
                self._lacks = failure
                self.fail(failure)
                return
        self._unsynced.update(dict.fromkeys(journals.values()))
        for journal in journals.values():
            journal.wake()
        if self.has_room:
            self._wake_for_room()

    def confirm(self) -> Callable[[], Awaitable[None]]:
        """What is awaited until it is certain that this process still owned the shard at the moment of this call.

        A deposed owner does not know it, and what it knows may be out of date, until it looks at the stream. It costs
        an entry, if nothing else is appended from now on. Awaiting raises StorageFailure if this one is deposed, or
        its outcomes are unknown.
        """
        return partial(self._confirm, self.writer.appended)

    async def _confirm(self, after: int) -> None:
        if not await self.writer.confirm(after):
            raise self.failed or StorageFailure("the shard was handed over")

    def fail(self, failure: StorageFailure) -> None:
        """Nothing more is appended; whoever waits for what was not accepted hears that it is not known."""
        if self.failed is None:
            self.failed = failure
            for journal in self._by_name.values():
                journal.wake()
            self._wake_for_room()

    # Files on disk

    async def sync_files(self) -> None:
        """Put on disk what was taken before this call.

        Raises StorageFailure, also if a file did not take what was accepted. Then, and when cancelled, the next call
        has it all to do again.
        """
        if self._lacks is not None:
            raise self._lacks
        failures: list[StorageFailure] = []

        async def sync(journal: StreamedJournal) -> None:
            through = journal.durable
            try:
                await journal.sync_file()
            except StorageFailure as failure:
                failures.append(failure)
            else:
                if journal.durable == through:
                    self._unsynced.pop(journal, None)

        async with trio.open_nursery() as nursery:
            for journal in self._unsynced:
                nursery.start_soon(sync, journal)
        if failures:
            raise failures[0]

    def named_segments(self) -> Sequence[tuple[Path, int]]:
        """Those of all journals that are open, as `Segments.named` says."""
        return [found for journal in self._by_name.values() for found in journal.named_segments()]

    def took(self, names: Iterable[str]) -> None:
        """A replica has taken frames into these journals."""
        self._unsynced.update((self._by_name[name], None) for name in names if name in self._by_name)
