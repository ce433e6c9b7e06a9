"""A replica of a shard: its directory on this machine, kept equal to the fold of the shard's stream.

    stream ─▶ fold ─ accepted ─▶ frames into the journals' files ─▶ each partition's fold ─▶ copier ─▶ data logs

A replica does what the owner did: it writes the same frames at the same positions, folds them with the same code and
copies what they place. So its data logs are a prefix of the owner's, and what becomes visible together there does so
here, too. It decides nothing and appends nothing, but for the FENCE by which it becomes the owner (`follow`).

*Start.* What the files hold may be the beginning of an entry, if the last run was killed in the middle of one. So
nothing is copied until the stream was read through what was its end at the start: only then is every part of each
transaction there.

*Mark.* Now and then the files are synced, and a mark says so (`stream_mark`): the next start reads from there on, and
the stream may be trimmed before it. Frames that the files have already are passed over.

A frame whose log is not known here is passed over, too: its topic was deleted (`adopt` knows all topics that were made
before the frame).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
import trio

from coordinator.group_history import SnapshotsCopied
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, StorageFailure
from journal.frame import ENVELOPE_BYTES, padded
from journal.journal import JournalKind, NoFiles, NoRoom
from journal.reading import FrameAt
from journal.segment_file import make_root
from journal.streamed import StreamedJournal, StreamedJournals
from partition.placed import Placed, PlacedStart
from partition.record_codec import replay_local
from shard.directory import ShardDirectory
from shard.partitions import Partitions
from shard.placed_together import placed_together
from shard.shard import ShardSettings, ShardStorage
from shard.stream_mark import read_mark, write_mark
from stream.election import Election, Try, Wait
from stream.engine import EngineAway, StoredEntry, Stream, StreamCutOff, StreamPosition, Unknown
from stream.entry import EntryKind, JournalFrame, NotAnEntry, Owner, decode_entry_untrusted, encode_entry, encode_fence
from stream.fold import NOTHING_READ, Fenced, Fold, Folded, FoldState, Frames

logger = structlog.get_logger("fairlog.replica")

FULL_PAUSE_S = 1.0
"""Between two attempts to write to a disk that is full."""


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """How often a node says something in its shards' streams, and how long it waits for others, in seconds."""

    failover_s: float = 3.0
    """Of reading on without hearing of the owner, until a replica tries to become it."""
    heartbeat_s: float = 0.5
    gives_up_s: float = 15.0
    """Of appending without an entry that is accepted, until an owner owns no more."""
    mark_every_s: float = 5.0
    """What a start reads again at most, and what the stream keeps for it."""


Adopt = Callable[[LogId], Awaitable[bool]]
"""Whether there is such a log, of all topics that were made by now; then the replica's partitions lead it."""


class Replica:
    """The copy of one shard on this machine. Made by `open_replica`; for the event loop."""

    def __init__(
        self,
        partitions: Partitions,
        group_journals: Iterable[StreamedJournal],
        journals: StreamedJournals,
        fold: Fold,
        adopt: Adopt,
    ) -> None:
        self.partitions = partitions
        self.fold = fold
        self._snapshots = {journal.name: SnapshotsCopied() for journal in group_journals}
        self.journals = journals
        self._adopt = adopt
        self._recovers_before: StreamPosition | None = None
        self._recovered = False
        self.taken = fold.between
        """Where the fold was when all that it had accepted was in the files."""
        self._deleted: set[LogId] = set()
        self._strangers: set[str] = set()
        """Journals of topics that had been deleted before their frames were read here."""

    @property
    def has_caught_up(self) -> bool:
        """Whether it has read everything that was in the stream at its start."""
        return self._recovered

    def recover_before(self, end: StreamPosition) -> None:
        """The stream ended there at the start."""
        self._recovers_before = end
        self._finish_recovery()

    def forget(self, logs: Iterable[LogId]) -> None:
        """The topics of these logs were deleted: drop what is here of them, before the next entry is taken."""
        self._deleted.update(logs)

    async def take(self, entry: StoredEntry) -> Folded:
        """Go over the next entry, and take what it holds if it counts.

        Waits for room while the disk is full, and for the copier if that is far behind. Raises CorruptStorage,
        StorageFailure.
        """
        folded = self.fold.step(entry.position, entry.data)
        if self._deleted and self._recovered:
            deleted, self._deleted = self._deleted, set()
            await self.partitions.drop(sorted(deleted))
        if isinstance(folded, Frames):
            if self._recovered and self.partitions.is_copier_behind(len(entry.data)):
                await self.partitions.room_in_copier(len(entry.data))
            await self._take(folded.frames)
        self.taken = self.fold.between
        self._finish_recovery()
        return folded

    def _finish_recovery(self) -> None:
        end = self._recovers_before
        if not self._recovered and end is not None and self.fold.next_position >= end:
            self._recovered = True
            self.partitions.finish_recovery()

    async def _take(self, frames: Sequence[JournalFrame]) -> None:
        journals = await self._journals_of(frames)
        await self._make_room(frames, journals)
        taken: dict[str, list[FrameAt]] = {}
        order: list[Placed] = []
        for name, data in frames:
            journal = journals.get(name)
            frame = None if journal is None else journal.take(data)
            if frame is not None:
                taken.setdefault(name, []).append(frame)
                order += self._folded(name, frame)
        self.journals.took(taken)
        for group in placed_together(order):
            self.partitions.place(group)
        if any(isinstance(item, PlacedStart) for item in order):
            self.partitions.urge()  # what is gone elsewhere is not read here for long
        for name, snapshots in self._snapshots.items():
            for frame in taken.get(name, ()):
                needless = snapshots.note(frame)
                if needless is not None:
                    await journals[name].reclaim(needless)

    async def _journals_of(self, frames: Sequence[JournalFrame]) -> Mapping[str, StreamedJournal]:
        journals: dict[str, StreamedJournal] = {}
        for name in dict.fromkeys(frame.journal for frame in frames):
            journal = self.journals.get(name)
            if journal is None:
                log = _log_of(name)
                if log is None:
                    raise CorruptStorage(
                        f"the stream has frames of the journal {name!r}, which the shard does not have: it was made "
                        "with another number of group journals"
                    )
                if name in self._strangers:
                    continue
                if await self._adopted(log):
                    journal = self.journals.get(name)
                    assert journal is not None, f"{log} was adopted"
                else:
                    self._strangers.add(name)  # whoever wrote the frame knew the topic: it does not come any more
            if journal is not None:
                journals[name] = journal
        return journals

    async def _adopted(self, log: LogId) -> bool:
        while True:
            try:
                return await self._adopt(log)
            except NoFiles as refusal:
                logger.warning("the replica waits for files that it may open", log=str(log), reason=str(refusal))
                await trio.sleep(FULL_PAUSE_S)

    async def _make_room(self, frames: Sequence[JournalFrame], journals: Mapping[str, StreamedJournal]) -> None:
        sizes: dict[str, int] = {}
        for name, data in frames:
            sizes[name] = sizes.get(name, 0) + padded(ENVELOPE_BYTES + len(data))
        for name, journal in journals.items():
            while True:
                try:
                    await journal.make_room_in_file(sizes[name])
                    break
                except (NoRoom, NoFiles) as refusal:
                    logger.warning("the replica waits for room on its disk", journal=name, reason=str(refusal))
                    await trio.sleep(FULL_PAUSE_S)

    def _folded(self, name: str, frame: FrameAt) -> Iterable[Placed]:
        log = _log_of(name)
        partition = None if log is None else self.partitions.get(log)
        if partition is None or frame.position < partition.state.folded_through:
            return ()  # of a group journal, or the data log has it: this file had lost its tail
        return tuple(replay_local((frame,), partition.state))


async def save_marks(
    journals: StreamedJournals,
    state: Callable[[], FoldState],
    path: Path,
    stream: str,
    every_s: float,
    saved: Callable[[FoldState], None],
) -> None:
    """Write a mark every `every_s`, if something has come, and tell `saved`; until cancelled. Raises StorageFailure.

    `state` is where the fold is, and everything that it has accepted is in the files.
    """
    mark: FoldState | None = None
    while True:
        await trio.sleep(every_s)
        if state() != mark:
            mark = await save_mark(journals, state(), path, stream)
            saved(mark)


async def save_mark(journals: StreamedJournals, state: FoldState, path: Path, stream: str) -> FoldState:
    """Sync the journals' files, then write a mark of `state`. Raises StorageFailure."""
    await journals.sync_files()
    try:
        await trio.to_thread.run_sync(write_mark, path, stream, state)
    except OSError as error:
        raise StorageFailure(f"{path} cannot be written: {error}") from error
    return state


def _log_of(name: str) -> LogId | None:
    """The log of a local journal of this name in the stream; None if it is a group journal's."""
    kind, _, rest = name.partition("/")
    if kind != "local":
        return None
    try:
        return LogId.parse(rest)
    except ValueError as error:
        raise CorruptStorage(f"the stream has frames of a journal {name!r}: {error}") from error


async def load_fold(directory: ShardDirectory, stream: Stream) -> Fold:
    """The fold from the shard's mark on, held against the stream.

    Raises CorruptStorage if the directory belongs to another stream, or holds what the stream does not.
    """
    try:
        state = await trio.to_thread.run_sync(read_mark, directory.stream_mark, stream.name)
    except OSError as error:
        raise StorageFailure(f"{directory.stream_mark} cannot be read: {error}") from error
    return Fold(stream.name) if state is None else Fold(stream.name, state)


async def follow(replica: Replica, stream: Stream, election: Election, node: str) -> None:
    """Keep the replica up with its stream; return when it has read its own FENCE, and so owns the shard.

    `node` is this node's name. Only a FENCE that was appended by this very call counts: one of an earlier time began an
    epoch in which this process, or the one before it, has written already.

    Raises EntryGone if the stream was trimmed further than the replica has read, StreamCutOff if it ends before;
    CorruptStorage, StorageFailure.
    """
    fold, me = replica.fold, Owner(node, secrets.randbits(128).to_bytes(16))
    await _recover_before_the_end(replica, stream)
    async with stream.open_reader(_first_to_read(fold)) as reader:
        while True:
            now_s = trio.current_time()
            todo = election.next(fold.next_position, now_s)
            if todo is Try.ASK_FOR_END:
                await _ask_for_end(stream, election)
                continue
            if todo is Try.FENCE:
                election.fenced(now_s)
                _append_fence(stream, fold, me)
                continue
            entries: Sequence[StoredEntry] = ()
            with trio.move_on_at(todo.until_s if isinstance(todo, Wait) else float("inf")):
                entries = await reader.next()
            for entry in entries:
                if entry.position < fold.next_position:
                    _check_same(fold, stream, entry)
                    continue
                folded = await replica.take(entry)
                election.read(folded, trio.current_time())
                if isinstance(folded, Fenced) and folded.owner == me:
                    return


def _first_to_read(fold: Fold) -> StreamPosition:
    """The last entry that was folded, so that it can be held against the mark; or the stream's first one."""
    return max(StreamPosition(0), fold.state.position)


def _check_same(fold: Fold, stream: Stream, entry: StoredEntry) -> None:
    """The entry at the mark must be the one that was folded there. Raises StreamCutOff."""
    state = fold.state
    assert entry.position == state.position != NOTHING_READ
    found = decode_entry_untrusted(entry.data)
    if isinstance(found, NotAnEntry) or found.epoch != state.epoch or found.sequence != state.sequence:
        return  # a void one: nothing is known of it
    if found.kind is EntryKind.FENCE:
        return  # the chain behind it is not its own; the entry that follows is held against it
    if found.chain != state.chain:
        raise StreamCutOff(
            f"position {state.position} of {stream.name} holds another entry than this copy has read there: the stream "
            "was made anew, or the directory belongs to another one"
        )


async def _recover_before_the_end(replica: Replica, stream: Stream) -> None:
    while True:
        try:
            replica.recover_before(await stream.end())
        except EngineAway as away:
            logger.warning("waits for the replicated log", stream=stream.name, reason=str(away))
            await trio.sleep(1)
        else:
            return


async def _ask_for_end(stream: Stream, election: Election) -> None:
    try:
        election.answered(await stream.end())
    except EngineAway:
        election.not_answered(trio.current_time())


def _append_fence(stream: Stream, fold: Fold, me: Owner) -> None:
    """Whether it was appended is learned by reading on."""
    state = fold.state
    data, _ = encode_entry(EntryKind.FENCE, LeaderEpoch(state.epoch + 1), 0, 0, encode_fence(me, state.seen))
    logger.info(
        "tries to own the shard",
        stream=stream.name,
        epoch=state.epoch + 1,
        heard_before=None if state.owner is None else state.owner.node,
    )

    def appended(outcome: StreamPosition | Unknown) -> None:
        if isinstance(outcome, Unknown):
            logger.warning("it is not known whether a FENCE was appended", stream=stream.name, reason=outcome.reason)

    stream.append(data, appended)


@asynccontextmanager
async def open_replica(
    directory: ShardDirectory,
    storage: ShardStorage,
    settings: ShardSettings,
    stream: Stream,
    *,
    group_journals: Sequence[int],
    adopt: Callable[[Partitions, LogId], Awaitable[bool]],
    now_ms: Callable[[], int],
    keeps_cuts: bool = True,
) -> AsyncGenerator[Replica, None]:
    """Open the replica in `directory`, which leads no log yet. On leaving, its journals are closed.

    `group_journals` are the numbers of the shard's. `keeps_cuts`: see `Copier`. Of several shards none may: as an owner
    it would be taken for the one that was there before the others (`shard.past_cuts`).

    Raises CorruptStorage, StorageFailure.
    """
    async with AsyncExitStack() as stack:
        for root in (directory.local_journals, directory.group_journals):
            await trio.to_thread.run_sync(partial(make_root, root, below=directory.data_dir))
        fold = await load_fold(directory, stream)
        epoch = fold.state.epoch
        sizes = {kind: each.segment_bytes_max for kind, each in settings.of_journals().items()}
        journals = StreamedJournals(storage.flusher, sizes, epoch)
        partitions = Partitions(
            directory.local_journals,
            data_logs=storage.data_logs,
            journals=journals,
            leader_epoch=epoch,
            producer_expiration_ms=settings.producer_expiration_ms,
            now_ms=now_ms,
            keeps_cuts=keeps_cuts,
        )
        stack.push_async_callback(partitions.close)
        groups: list[StreamedJournal] = []
        for number in group_journals:
            journal = await journals.open(directory.group_journal(number), JournalKind.GROUP)
            stack.push_async_callback(journal.close)
            groups.append(journal)
        yield Replica(partitions, groups, journals, fold, partial(adopt, partitions))
