"""A journal: an append-only row of frames over segment files, with group commit and preallocated room.

The way of a frame:

    append ──pwritev──▶ page cache ──Flusher: fdatasync──▶ disk        `end` grows, then `durable` follows
                           ▲
        room, preallocated ┘  Flusher's threads, ahead of need

`append` runs on the event loop: a write into preallocated room costs a few µs and cannot fail for want of
space. All else that touches the disk (making room, syncing, sealing, renaming) runs in the flusher's threads.

*Room.* While the loop appends, room is made ahead of it (zeros, or blocks for large frames), and near a segment's limit
a *spare*, which becomes the next segment in one step when a frame does not fit any more (`preallocation`). So
`make_room` seldom waits; it is where a full disk shows, as `NoRoom`. `has_room` leaves a reserve for the small frames
that decide transactions, or follow from a decision (APPLY, DISCARD, COMMITTED, the next grant): they are appended
without asking. Should even the reserve be used up, such a frame waits for room on the spot.

*Rolling.* The next segment takes frames at once, under a name that recovery counts as not durable; the next flush
seals the full one, syncs the new one and gives it its name, in this order (`segment_file`). Hence a segment that
has a successor is whole.

*Durability.* `_synced` is what fdatasync has confirmed. Every frame carries it, as the witness that recovery needs
(`recovery`). With fsync=commit it is also what `durable` says; with interval and never `durable` is simply `end`.

*Positions* count what is appended and nothing else: neither a close nor a new setting nor a new segment takes one. So a
node that appends the same frames has them at the same positions, with the same bytes but for their local envelopes
(`frame`). Only `advance` skips some, after a loss that no other node has had.

*Segments.* `segments` knows every one that is there: it reads their frames, and deletes whole ones.

Keeps invariant 11 (`reclaim` deletes whole segments that the caller has done with, never the last one) and 12:
the first failed write or sync sets `failed` for good; waiters and appends get StorageFailure, reads go on.
It does not know what the frames mean. Formats: docs/formats/journal-segment.md.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import structlog
import trio

from fairlog_types import JournalPosition, LeaderEpoch, StorageFailure
from journal.failpoints import reach
from journal.flush import Flusher
from journal.frame import (
    ENVELOPE_BYTES,
    HEADER_BYTES,
    LARGE_FRAME_BYTES,
    Buffer,
    encode_frame,
    in_envelope,
    padded,
)
from journal.preallocation import NoFiles, NoRoom, Preallocation, refused_to_open
from journal.reading import FrameAt
from journal.recent import RecentPayloads
from journal.reopen import Reopened, reopen
from journal.segment import Fsync, JournalKind, file_offset
from journal.segment_file import OpenFile, SegmentFile
from journal.segments import Segments

__all__ = ["FrameAt", "Fsync", "Journal", "JournalKind", "JournalSettings", "NoFiles", "NoRoom"]

_log = structlog.stdlib.get_logger(__name__)

_HEADER_ALLOWANCE = 256
"""What `has_room` adds for a frame's own fields, so that callers count only what they bring, in bytes."""
_DECISION_BYTES_MAX = 1024
"""Frames up to this size are given room on the spot rather than refused."""


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How a journal uses its disk."""

    fsync: Fsync = Fsync.COMMIT
    fsync_interval_ms: int = 100
    """With fsync=interval: the longest time for which what is appended may be in memory only."""
    segment_bytes_max: int = 32 * 2**20
    """A segment's file does not grow beyond it, but for a single frame that is larger."""


class Journal:
    """One journal, open for appending and reading. Made by `open`; for the loop's thread unless a method says else."""

    def __init__(
        self,
        directory: Path,
        reopened: Reopened,
        *,
        kind: JournalKind,
        settings: JournalSettings,
        flusher: Flusher,
        leader_epoch: LeaderEpoch,
        recent: RecentPayloads | None = None,
    ) -> None:
        last = reopened.last
        self.kind = kind
        self.leader_epoch = leader_epoch
        self.begun_with = reopened.begun_with or settings.fsync
        """The fsync under which the segment that was the last one was begun: what it has promised of its frames."""
        self.failed: StorageFailure | None = None
        """Why nothing is written any more; None while all is well."""
        self._begun_earlier = reopened.is_earlier
        self._directory = directory
        self._settings = settings
        self._waits_for_disk = settings.fsync is Fsync.COMMIT
        self._flusher = flusher
        self._recent = recent
        self._recent_key = object()
        """Of this journal in this run: the next one over the same files may have other frames at the same positions."""
        self._segments = Segments(directory, reopened.sealed, last)
        self._room = Preallocation(
            directory,
            active=last,
            limit_bytes=settings.segment_bytes_max,
            flusher=flusher,
            # Synced room makes every later fdatasync cheap. Where nobody waits for one, zeros may stay in memory
            # (their space is allotted all the same), and most are overwritten before they would be written.
            sync=flusher.sync if self._waits_for_disk else _leave_in_memory,
            failed=partial(self._fail, "making room"),
        )
        self._end = JournalPosition(0) if last is None else last.end
        self._synced = self._end
        self._closed_at = self._end if reopened.closed or self._end == 0 else None
        self._closing = False
        self._under_flush: tuple[SegmentFile, ...] = ()
        self._waiters: list[tuple[JournalPosition, int, trio.Event]] = []
        self._waiter_numbers = count()

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        kind: JournalKind,
        settings: JournalSettings,
        flusher: Flusher,
        leader_epoch: LeaderEpoch,
        recent: RecentPayloads | None = None,
    ) -> Journal:
        """Open the journal in `directory`, after recovering it; all it holds then is on disk.

        The directory need not exist: it and a first segment are made when room is first asked for, and no file stays
        open before the first append. `leader_epoch` goes into every frame appended. Only the last segment is read.
        `recent` keeps the payloads that are appended, for the next to read them.
        Raises CorruptStorage, naming file and byte, if something durable is damaged or missing; NoFiles if no file can
        be opened just now; StorageFailure if the disk refuses. Cancelled: nothing is left behind.
        """

        def work() -> Reopened:
            return reopen(directory, kind=kind, fsync=settings.fsync, sync=flusher.sync, on_cut=flusher.tail_cut)

        try:
            reopened = await trio.to_thread.run_sync(work)
        except OSError as error:
            no_files = refused_to_open(directory, error)
            raise no_files or StorageFailure(f"{directory}: the journal cannot be opened: {error}") from error
        cut = reopened.recovered
        if cut is not None:
            _log.warning(
                "journal.tail_cut",
                file=str(cut.file),
                position=cut.position,
                bytes_cut=cut.bytes_cut,
                frames_cut=cut.frames_cut,
                why=cut.why,
            )
        return cls(
            directory, reopened, kind=kind, settings=settings, flusher=flusher, leader_epoch=leader_epoch, recent=recent
        )

    @classmethod
    def unbegun(
        cls,
        directory: Path,
        *,
        kind: JournalKind,
        settings: JournalSettings,
        flusher: Flusher,
        leader_epoch: LeaderEpoch,
        recent: RecentPayloads | None = None,
    ) -> Journal:
        """What `open` answers where the caller knows that there is no `directory`, and without touching the disk."""
        nothing = Reopened((), None, closed=False, recovered=None)
        return cls(
            directory, nothing, kind=kind, settings=settings, flusher=flusher, leader_epoch=leader_epoch, recent=recent
        )

    @property
    def begun(self) -> bool:
        """Whether it has a segment, be it one without frames. From then on it always has."""
        return bool(self._segments)

    @property
    def may_have_another_owner(self) -> bool:
        """See `OpenJournal`: one process has the files."""
        return False

    async def confirm(self) -> None:
        """See `OpenJournal`: nobody else can own it."""

    @property
    def gets_tail_again(self) -> bool:
        """Whether frames that were lost come again: nobody else has them."""
        return False

    @property
    def start(self) -> JournalPosition:
        """Where the oldest segment that is still there begins; `end` if there is none."""
        oldest = self._segments.start
        return self._end if oldest is None else oldest

    @property
    def end(self) -> JournalPosition:
        """Behind the last frame: where the next one begins."""
        return self._end

    @property
    def durable(self) -> JournalPosition:
        """Through here a crash takes nothing: what is on disk with fsync=commit, else simply `end`."""
        return self._synced if self._waits_for_disk else self._end

    # Writing

    def append(
        self, kind: int, header: Sequence[object], payload: Sequence[Buffer] = (), *, timestamp_ms: int
    ) -> JournalPosition:
        """Append one frame and answer its position; `end - position` is then its `frame_bytes` (for `read_payload`).

        `kind` is 1…255, the caller's; `header` a row of what CBOR carries; `timestamp_ms` the caller's clock, by which
        whoever reads the frame goes. The payload's buffers are not needed any more afterwards. Raises NoRoom,
        with nothing written, if there is no room for it and it is larger than 1 KiB (smaller ones wait for room on the
        spot), or if the file cannot be opened just now (NoFiles); StorageFailure if the journal has failed or is
        closed.
        """
        self._check_writable()
        position, segment = self._end, self._room.active
        if segment is None:
            segment = self._segment_with_room(padded(HEADER_BYTES + _HEADER_ALLOWANCE + sum(map(len, payload))))
        buffers = encode_frame(
            position=position,
            durable=self._synced,
            leader_epoch=self.leader_epoch,
            timestamp_ms=timestamp_ms,
            kind=kind,
            header=header,
            payload=payload,
            salt=segment.salt,
        )
        size = sum(map(len, buffers))
        if size > segment.room_end - position:
            self._segment_with_room(size)
            return self.append(kind, header, payload, timestamp_ms=timestamp_ms)  # with the salt of that segment
        self._write(segment, buffers, size)
        if payload and self._recent is not None:
            self._recent.keep(self._recent_key, position, payload)
        return position

    def append_received(self, replicated: Buffer) -> JournalPosition:
        """Append a frame that another journal has at this position, by its replicated part; answers the position.

        The caller vouches that it is one (`frame.decode_replicated_untrusted`), and that its position is `end`. Raises
        as `append`, but for want of room only if the disk is full: no frame is so large that it would not wait for room
        on the spot, for it counts whether there is room or not.
        """
        self._check_writable()
        position, size = self._end, padded(ENVELOPE_BYTES + len(replicated))
        segment = self._room.active
        if segment is None or size > segment.room_end - position:
            segment = self._segment_with_room(size, refusable=False)
        buffers = in_envelope((replicated,), position=position, durable=self._synced, salt=segment.salt)
        self._write(segment, buffers, size)
        return position

    def _write(self, segment: SegmentFile, buffers: Sequence[Buffer], size: int) -> None:
        """Write a frame of `size` bytes at the end, which is in `segment`, where there is room for it."""
        position = self._end
        opened = segment.open_file or self._opened(segment)
        try:
            written = os.pwritev(opened.fd, buffers, file_offset(position, segment.base))
            reach("journal.append.after")
        except OSError as error:
            raise self._fail("writing a frame", error) from error
        if written != size:
            raise self._fail("writing a frame", OSError(f"only {written} of {size} bytes were taken"))
        self._end = segment.end = JournalPosition(position + size)
        if self._end >= self._room.refill_at:
            self._room.refill(size)
        if self._settings.fsync is Fsync.INTERVAL:
            self._flusher.start_within(self, self._settings.fsync_interval_ms / 1000)

    def has_room(self, payload_bytes: int) -> bool:
        """Whether a frame with so many bytes of payload (and up to 256 of header) can be appended without waiting.

        The reserve for decisions is left out of account: it is there for frames that are appended without asking.
        A segment whose file is not open yet has no room: opening it can be refused.
        """
        active = self._room.active
        return (active is None or active.open_file is not None) and self._room.has(_needed(payload_bytes))

    async def make_room(self, payload_bytes: int) -> None:
        """Return once `has_room(payload_bytes)`. Cancelled: the room is made all the same.

        Raises NoRoom if the disk is full (nothing has failed: ask again when there is space), NoFiles if no file can be
        opened just now (likewise), StorageFailure if the journal has failed or is closed.
        """
        self._check_writable()
        if self._room.active is not None:
            self._opened(self._room.active)
        try:
            await self._room.make(_needed(payload_bytes))
        except NoRoom:
            self._check_writable()  # a failed disk is the better reason
            raise
        self._check_writable()

    def start_flush(self) -> None:
        """Begin to put what is appended on disk, without waiting (fsync=commit; else nothing). Idempotent."""
        if self._waits_for_disk and self.wants_flush():
            self._flusher.start(self)

    async def flush(self, through: JournalPosition) -> None:
        """Return once `durable >= through`; if so already, at once, without a turn of the event loop.

        Raises StorageFailure if the journal fails before. Cancelled: the flush goes on.
        """
        assert through <= self._end, (through, self._end)
        if not self._waits_for_disk:
            through = min(through, self._synced)
        await self._wait_for(through)

    async def sync(self, through: JournalPosition | None = None) -> None:
        """Return once what is appended, before `through` or all, is on disk, whatever fsync says. Raises as `flush`."""
        await self._wait_for(self._end if through is None else through)

    async def begin(self) -> None:
        """Return once the journal has a segment on disk, so that it can be told from one that was lost.

        Raises as `roll`.
        """
        if not self.begun:
            await self.roll()
            await self._flushed(self._end)
            self._check_writable()

    async def roll(self) -> JournalPosition:
        """Begin a new segment, unless the last one is empty; answers its base, where the next frame will be.

        Raises NoRoom if the disk is full, StorageFailure if the journal has failed or is closed.
        """
        await self._roll(lambda: self._end)
        return self._end

    async def advance(self, to: JournalPosition) -> None:
        """Go on at `to` if the journal ends before: what was there is gone, but its positions must not be used again.

        For a restart after a power failure with fsync=interval|never, when the data log has copied more than the
        journal still holds. Returns with the new segment on disk. Raises as `roll`.
        """
        target = JournalPosition(padded(to))
        if target > self._end:
            await self._roll(lambda: target)
            await self.sync()

    async def begin_under_present_setting(self) -> None:
        """Begin a new segment if the last one was begun under another fsync, or in an earlier version of the format.

        Both hold for all frames of a segment. If the last one has no frames, its header is changed instead: neither
        takes a position. For a restart, before
        anything is appended, and after whoever asks for `begun_with`. All of it is on disk when this returns. Raises as
        `roll`.
        """
        if not self.begun or (self.begun_with is self._settings.fsync and not self._begun_earlier):
            return
        last = self._segments.writing[-1]
        if last.end > last.base:
            await self._roll(lambda: self._end)
            await self._nothing_to_flush()
            return
        try:
            await trio.to_thread.run_sync(last.begin_again, self._settings.fsync, self._flusher.sync)
        except OSError as error:
            no_files = refused_to_open(self._directory, error)
            raise no_files or self._fail("beginning a segment again", error) from error
        self._closed_at = None

    async def reclaim(self, before: JournalPosition) -> None:
        """Delete the segments that end at or before `before`, oldest first; never the last one.

        The caller vouches for invariant 11. Raises NoFiles if the directory cannot be opened just now: then nothing
        was deleted, and the next try may succeed. StorageFailure if the disk refuses; then they go at the next restart.
        Cancelled: the deletion goes on in its thread.
        """
        await self._segments.reclaim(before)

    async def close(self) -> None:
        """Put everything on disk, leave a close mark as witness, and let go of the files. Idempotent.

        Raises StorageFailure if that does not succeed; the files are let go of all the same; nothing durable is lost.
        """
        if self._closing:
            return
        self._closing = True
        self._room.stop()
        try:
            await self._room.settle()
            if self.failed is not None:
                raise self._refusal()
            if self._segments.writing and self._closed_at != self._end:
                await self._nothing_to_flush()
                reach("journal.close.before")
                await self._mark_closed()
        except OSError as error:
            raise self._fail("closing", error) from error
        finally:
            spare, self._room.spare, self._room.active = self._room.spare, None, None
            if spare is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(lambda: spare.path.unlink(missing_ok=True))
            self._segments.let_go_of_files()

    # Reading

    def named_segments(self) -> Sequence[tuple[Path, int]]:
        """See `Segments.named`: for whoever copies the files."""
        return self._segments.named()

    def frames(self, start: JournalPosition) -> Iterator[FrameAt]:
        """Yield the frames from `start` (where one begins) to the present `end`, in order. Blocking, for recovery.

        Raises CorruptStorage at a frame that is damaged, and if the journal does not reach back to `start` or ends
        before it; StorageFailure if the disk refuses.
        """
        return self._segments.frames(start, self._end)

    def read_payload(self, position: JournalPosition, frame_bytes: int) -> bytearray:
        """The payload of the frame at `position`, which takes `frame_bytes` (to the next frame). For any thread.

        If it was appended a moment ago it may come from memory, once, and nothing of the file is looked at. Raises
        CorruptStorage, naming file and byte, if there is no such frame; NoFiles if the file cannot be opened just now;
        StorageFailure if the disk refuses.
        """
        if self._recent is not None and (payload := self._recent.take(self._recent_key, position)) is not None:
            return payload
        return self._segments.read_payload(position, frame_bytes)

    def recent_payload(self, position: JournalPosition) -> bytearray | None:
        """What `read_payload` would answer from memory, and still does; None if it would read the file.

        Not to be changed, nor to be looked at when somebody may have read it since.
        """
        return None if self._recent is None else self._recent.peek(self._recent_key, position)

    def let_go(self, position: JournalPosition, frame_bytes: int) -> None:
        """The frame there has been copied, and will not be read again in this run. For any thread; never fails.

        A large one that is on disk leaves the page cache: what is appended next takes its memory, which the processor,
        and the host of a virtual machine, have at hand, where fresh memory is not. A small one is not worth the call.
        """
        if frame_bytes >= LARGE_FRAME_BYTES and position + frame_bytes <= self._synced:
            self._segments.drop_from_cache(position, frame_bytes)

    # The flusher's side (`Flushable`)

    def wants_flush(self) -> bool:
        """Whether something is not on disk, or a full segment waits to be sealed."""
        return self.failed is None and (self._synced < self._end or len(self._segments.writing) > 1)

    def flush_file(self) -> tuple[OpenFile, JournalPosition] | None:
        """The one file that a flush has to sync, and through where; None if a segment is to be sealed or named."""
        active = self._segments.writing[-1]
        if len(self._segments.writing) > 1 or not active.published or active.open_file is None:
            return None
        self._under_flush = (active,)
        return active.open_file, active.end

    def flush_work(self) -> Callable[[], JournalPosition]:
        """One flush, to be run in a thread."""
        chain = self._under_flush = tuple(self._segments.writing)
        sync = self._flusher.sync

        def work() -> JournalPosition:
            for segment in chain[:-1]:
                if not segment.published:
                    segment.sync(sync)
                    segment.publish()
                segment.seal(sync)
            active = chain[-1]
            reach("journal.flush.before")
            through = active.sync(sync)
            if not active.published:
                active.publish()
            reach("journal.flush.after")
            return through

        return work

    def flush_done(self, outcome: JournalPosition | OSError) -> None:
        """What the thread answered, or the kernel."""
        full, self._under_flush = self._under_flush[:-1], ()
        if isinstance(outcome, OSError):
            self._fail("fdatasync", outcome)
            return
        self._synced = max(self._synced, outcome)
        if full:
            self._segments.sealed(full)
        self._wake_waiters()

    # Within

    def _opened(self, segment: SegmentFile) -> OpenFile:
        try:
            return segment.writable()
        except OSError as error:
            raise refused_to_open(self._directory, error) or self._fail("opening a segment", error) from error

    def _segment_with_room(self, size: int, *, refusable: bool = True) -> SegmentFile:
        spare = self._room.spare
        if spare is None or size > spare.room_end - spare.end:
            if refusable and size > _DECISION_BYTES_MAX:
                raise NoRoom(f"{self._directory}: there is no room for a frame of {size} bytes; make_room first")
            self._room.make_now(size)
            active = self._room.active
            if active is not None and size <= active.room_end - active.end:
                return active
        return self._switch(self._end)

    async def _roll(self, base: Callable[[], JournalPosition]) -> None:
        self._check_writable()
        try:
            await self._room.make_spare()
        except NoRoom:
            self._check_writable()  # a failed disk is the better reason
            raise
        self._check_writable()
        active = self._room.active
        if active is None or active.end > active.base or base() > self._end:
            self._switch(base())

    def _switch(self, base: JournalPosition) -> SegmentFile:
        if self._room.active is not None:
            self._opened(self._room.active)  # sealing it must not fail for want of a file descriptor
        segment = self._room.take_spare()
        try:
            segment.begin(self.kind, self._settings.fsync, base=base, previous_end=self._end)
        except OSError as error:
            raise self._fail("beginning a segment", error) from error
        self._room.began()
        self._segments.began(segment)
        self._end = base
        # Also with fsync=never: the sooner it is sealed, the less has to be recovered from a nameless file.
        self._flusher.start(self)
        return segment

    async def _wait_for(self, through: JournalPosition) -> None:
        if through <= self._synced:
            # Not a whole checkpoint: a commit waits for its journals one after the other, and would lose a turn of the
            # loop, which under load is long, for each that was done along with an earlier one.
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        if self.failed is not None:
            raise self._refusal()
        await self._flushed(through)
        if through > self._synced:
            raise self._refusal()

    async def _flushed(self, through: JournalPosition) -> None:
        """Return after the next flush that covers `through`, or when the journal has failed."""
        self._flusher.start(self)
        synced = trio.Event()
        heapq.heappush(self._waiters, (through, next(self._waiter_numbers), synced))
        await synced.wait()

    async def _nothing_to_flush(self) -> None:
        """Return once all frames are on disk, and every full segment is sealed and its successor named."""
        while self.wants_flush():
            await self._flushed(self._end)
        if self.failed is not None:
            raise self._refusal()

    async def _mark_closed(self) -> None:
        """Return once the close mark is on disk. Everything else is, so no flush is under way."""
        try:
            self._segments.writing[-1].mark_closed()
        except OSError as error:
            no_files = refused_to_open(self._directory, error)
            if no_files is None:
                raise
            _log.warning("journal.closed_without_witness", directory=str(self._directory), error=str(no_files))
            return
        await self._flushed(self._end)
        if self.failed is not None:
            raise self._refusal()

    def _wake_waiters(self) -> None:
        while self._waiters and (self.failed is not None or self._waiters[0][0] <= self._synced):
            heapq.heappop(self._waiters)[2].set()

    def _fail(self, what: str, error: OSError) -> StorageFailure:
        if self.failed is None:
            self.failed = StorageFailure(
                f"{self._directory}: {what} failed: {error}. Nothing more is written to this journal; "
                "see to the disk, then restart the node."
            )
            _log.error("journal.failed", directory=str(self._directory), what=what, error=str(error))
            self._wake_waiters()
            self._room.stop()
            self._flusher.failed()
        return StorageFailure(str(self.failed))

    def _check_writable(self) -> None:
        if self.failed is not None or self._closing:
            raise self._refusal()

    def _refusal(self) -> StorageFailure:
        return StorageFailure(
            str(self.failed) if self.failed is not None else f"{self._directory}: the journal is closed"
        )


def _leave_in_memory(_fd: int) -> None:
    """In place of an fdatasync."""


def _needed(payload_bytes: int) -> int:
    return padded(HEADER_BYTES + _HEADER_ALLOWANCE + payload_bytes)
