"""The metadata of the cluster in one process: it reads their stream, folds it, and proposes changes.

    a change ─▶ decided on memory ─▶ CHANGE appended ─▶ ┌────────┐
                                                        │ stream │ ─▶ read ─▶ fold ─▶ local copy ─▶ memory ─▶ readers
                  the change's caller is told ◀───┐     └────────┘      │
                                                  └── its base has an accepted entry

`run` reads the stream for ever. What is accepted goes into the local copy together with the position (`local_copy`),
then into memory, and then whoever waits is told. A change is decided on memory, and appended with the base of memory;
if another change was accepted on the same base, it is decided again. What a caller may be told, and when, is the rule
of `metadata_fold`.

While the engine is away, memory answers readers, and a change is told after ANSWER_SECONDS that its outcome is not
known. At a start, memory is that of the local copy at once. Whether the copy belongs to the stream is checked as soon
as the engine answers. If not, `run` raises a sentence that says so, or makes the copy anew.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog
import trio

from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_memory import ClusterMemory
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.common_memory import Changes
from fairlog.cluster.features import FEATURES, Feature, unsupported
from fairlog.cluster.local_copy import Copy
from fairlog.cluster.metadata_fold import (
    Batch,
    FoldState,
    FoundSnapshot,
    Outcome,
    Proposal,
    Proposer,
    SnapshotSearch,
    fold,
)
from fairlog.cluster.metadata_snapshots import SnapshotWriter
from fairlog.cluster.opening import StoreMismatch
from fairlog.cluster.stream_end import StreamEnd
from fairlog_types import CorruptStorage, StorageFailure
from stream.engine import EngineAway, EntryGone, Reader, StoredEntry, Stream, StreamCutOff, StreamPosition, Unknown

log = structlog.get_logger()

ANSWER_SECONDS = 10.0
"""How long a change waits for its outcome. Kafka's clients wait 30 s for an answer (request.timeout.ms)."""
CATCH_UP_SECONDS = 1.0
"""How long `catch_up` waits for an engine that does not answer."""
RETRY_SECONDS = 0.1
"""Between two tries while the engine is away: reading, or appending what has an unknown outcome."""

_Answer = TypeVar("_Answer")


class OutcomeUnknown(StorageFailure):
    """The engine did not answer in time, or the stream cannot be read any more: the change was made, or will be, or
    never. The message says which stream."""


@dataclass(frozen=True, slots=True)
class Founding:
    """What a new cluster begins with. In one that is there already, shards and separator must be these."""

    shards: int
    group_journal_count: int
    offsets_log_count: int
    group_separator: str


class MetadataLog:
    """The metadata of the cluster, as one process knows and changes it. `run` must be running for changes."""

    def __init__(
        self, stream: Stream, copy: Copy, features: Mapping[str, Feature] = FEATURES, identity: bytes | None = None
    ) -> None:
        """`copy` is this process' own; `identity` 16 random bytes. Raises CorruptStorage, StoreMismatch."""
        self._stream = stream
        self._copy = copy
        self._features = features
        self._proposer = Proposer(os.urandom(16) if identity is None else identity)
        self._state = FoldState() if copy.state is None else copy.state
        self._memory = None if self._state.accepted is None else self._read(copy.content)
        self._listeners: list[Callable[[], None]] = []
        self._moved = trio.Event()
        self._changing = trio.Lock()
        self._proposal: Proposal | None = None
        self._end = StreamEnd(stream)
        self._snapshots = SnapshotWriter(stream, self._proposer, self._touch)
        self._failed: StorageFailure | CorruptStorage | None = None

    @property
    def memory(self) -> ClusterMemory:
        """What is known. There must be a cluster: a copy that had one, or `found` has returned."""
        assert self._memory is not None
        return self._memory

    @property
    def read_to(self) -> StreamPosition:
        """The position of the first entry that was not read."""
        return self._state.next

    def listen(self, told: Callable[[], None]) -> None:
        """`told` is called after each change of memory that a reader could see."""
        self._listeners.append(told)

    def listen_no_more(self, told: Callable[[], None]) -> None:
        """The inverse of `listen`."""
        self._listeners.remove(told)

    async def run(self) -> None:
        """Read the stream, until cancelled. Raises CorruptStorage, StoreMismatch, StorageFailure, in groups."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._snapshots.run)
            while True:
                try:
                    await self._follow()
                except EngineAway as error:
                    log.warning("metadata cannot be read", stream=self._stream.name, reason=str(error))
                except EntryGone as error:
                    log.warning("metadata were trimmed before they were read", reason=str(error))
                except (CorruptStorage, StoreMismatch, StorageFailure) as error:
                    self._failed = StorageFailure(str(error))
                    self._wake()
                    raise
                await trio.sleep(RETRY_SECONDS)

    async def found(self, founding: Founding) -> None:
        """Wait until the cluster is known, and found it if there is none. Waits for the engine if nothing is known.

        Raises StoreMismatch if the cluster that is there has other shards or another separator, or features that this
        program does not support; CorruptStorage, StorageFailure.
        """
        while self._memory is None:
            self._raise_if_failed()
            try:
                end = await self._stream.end()  # once: it may append an entry, and then there is a later end
                while self._memory is None and self._state.next < end and self._failed is None:
                    await self._moves()
                await self.change(lambda: (self._first_records(founding), None))
            except (EngineAway, StreamCutOff, OutcomeUnknown) as error:
                log.warning("waits for the engine to know the cluster", stream=self._stream.name, reason=str(error))
                await trio.sleep(RETRY_SECONDS)
        await self.catch_up()
        self._require_same(founding, self._memory)

    async def catch_up(self) -> None:
        """Know all that was answered to anybody before this call; without the engine, what is known must do."""
        with trio.move_on_after(CATCH_UP_SECONDS) as scope:
            end = await self._end.ask()
            while end is not None and self._state.next < end and self._failed is None:
                await self._moves()
        if scope.cancelled_caught:
            self._end.rest()

    async def read_to_end(self) -> None:
        """Know all that was answered to anybody before this call, however long the engine is away.

        Raises StorageFailure.
        """
        while True:
            self._raise_if_failed()
            try:
                end = await self._stream.end()
            except (EngineAway, StreamCutOff) as error:  # `run` finds out that it is gone
                log.warning("waits for the engine to read metadata", stream=self._stream.name, reason=str(error))
                await trio.sleep(RETRY_SECONDS)
                continue
            while self._state.next < end:
                self._raise_if_failed()
                await self._moves()
            return

    async def change(self, decide: Callable[[], tuple[Changes, _Answer]]) -> _Answer:
        """Have a change accepted. `decide` says on memory what it is, and may be asked again.

        Raises what `decide` raises, and then nothing was changed; OutcomeUnknown, StorageFailure. Cancelled: the change
        may have been made, or may yet be.
        """
        deadline = trio.current_time() + ANSWER_SECONDS
        with trio.CancelScope(deadline=deadline) as waiting:
            await self._changing.acquire()
        if waiting.cancelled_caught:
            raise StorageFailure(
                f"earlier changes wait for the stream {self._stream.name}: nothing was changed by this one"
            )
        try:
            return await self._changed(decide, deadline)
        finally:
            self._changing.release()

    async def _changed(self, decide: Callable[[], tuple[Changes, _Answer]], deadline: float) -> _Answer:
        """What is decided on old memory is void, so only what appends nothing needs to know all that others did."""
        is_current = False
        while True:
            self._raise_if_failed()
            try:
                changes, answer = decide()
            except Exception:
                if is_current:
                    raise
                await self.catch_up()
                is_current = True
                continue
            if self._memory is not None:
                changes = self._memory.effective(changes)
            if changes:
                if await self._propose(changes, deadline):
                    return answer
            elif is_current:
                return answer
            else:
                await self.catch_up()
                is_current = True

    async def _touch(self) -> None:
        async with self._changing:
            same = {records.FORMAT_KEY: self.memory.raw[records.FORMAT_KEY]}
            try:
                await self._propose(same, trio.current_time() + ANSWER_SECONDS)
            except StorageFailure as error:
                log.warning("metadata are not trimmed", stream=self._stream.name, reason=str(error))
                await trio.sleep(RETRY_SECONDS)

    async def _propose(self, changes: Changes, deadline: float) -> bool:
        """Append what was decided on memory as it is now; False if another change was accepted before it."""
        proposal = self._proposer.propose(self._state, changes)
        if len(proposal.data) > self._stream.entry_bytes_max:
            raise StorageFailure(
                f"the change takes {len(proposal.data)} bytes, and an entry of the stream {self._stream.name} has room"
                f" for {self._stream.entry_bytes_max}: nothing was changed"
            )
        self._proposal = proposal
        try:
            with trio.CancelScope(deadline=deadline):
                await self._until_settled(proposal)
        finally:
            self._proposal = None
        if proposal.outcome in (None, Outcome.LOST):
            if not proposal.appends:
                self._raise_if_failed()
            why = f"the stream {self._stream.name} did not show it in time. Ask again"
            raise OutcomeUnknown(
                f"it is not known whether the change was made, or will be: {self._failed or why}"
            ) from self._failed
        return proposal.outcome is Outcome.ACCEPTED

    async def _until_settled(self, proposal: Proposal) -> None:
        """Append it, and again if it is not known what came of that, until its outcome was read."""
        while proposal.outcome is None and self._failed is None:
            if proposal.is_under_way:
                await self._moves()
            else:
                if proposal.appends:
                    await trio.sleep(RETRY_SECONDS)
                if proposal.outcome is None:
                    proposal.hear_begun()
                    self._stream.append(proposal.data, self._appended(proposal))

    def _appended(self, proposal: Proposal) -> Callable[[StreamPosition | Unknown], None]:
        def done(result: StreamPosition | Unknown) -> None:
            proposal.hear_appended(result)
            self._wake()

        return done

    async def _follow(self) -> None:
        """Read from where memory is. Raises EngineAway, EntryGone, CorruptStorage, StoreMismatch, StorageFailure."""
        try:
            start, end = await self._stream.start(), await self._stream.end()
        except StreamCutOff as error:
            raise CorruptStorage(f"the metadata stream {self._stream.name} is lost: {error}") from error
        state = self._state
        if end < state.next:
            raise CorruptStorage(
                f"the metadata stream {self._stream.name} ends at entry {end}, and entries up to {state.next} were read"
                " from it: somebody deleted it or made it anew. Restore it, or begin with empty data directories"
            )
        if state.next < start or (state.accepted is None and start > 0):
            await self._begin_anew(start, end)
        try:
            first = self._state.next
            if self._state.accepted is not None and self._state.accepted.position >= start:
                first = self._state.accepted.position  # read once more: is it what it was?
            async with self._stream.open_reader(first) as reader:
                await self._read_on(reader)
        except StreamCutOff as error:
            raise CorruptStorage(f"the metadata stream {self._stream.name} lost entries: {error}") from error

    async def _read_on(self, reader: Reader) -> None:
        while True:
            entries = self._checked(await reader.next())
            if entries:
                await self._take_in(fold(self._state, entries, self._stream.name))

    def _checked(self, entries: Sequence[StoredEntry]) -> Sequence[StoredEntry]:
        """Those that are new. Raises StoreMismatch if the last accepted one is not what it was."""
        known = self._state.accepted
        for position, data in entries:
            if known is not None and position == known.position and data[4:8] != known.crc.to_bytes(4, "little"):
                raise StoreMismatch(
                    f"entry {position} of the metadata stream {self._stream.name} is not the one that this node has"
                    " accepted there: the stream was made anew, or is another cluster's. Give the node the right"
                    " engine, or an empty data directory"
                )
        return [entry for entry in entries if entry.position >= self._state.next]

    async def _take_in(self, batch: Batch) -> None:
        for position, why in batch.strange:
            log.warning("metadata entry ignored", stream=self._stream.name, position=position, reason=why)
        memory = self._memory
        if memory is None and batch.accepted:
            memory = self._read({key: value for key, value in batch.changes.items() if value is not None})
        if batch.accepted or batch.state.snapshots != self._state.snapshots:
            await self._copy.write(batch.changes, batch.state)  # what is void can be read again
        seen = self._memory is None or self._apply(self._memory, batch)
        self._memory = memory
        self._state = batch.state
        if self._proposal is not None:
            self._proposal.hear(batch)
        if seen and batch.accepted:
            self._tell()
        self._snapshots.hear(batch, memory)
        self._wake()

    def _apply(self, memory: ClusterMemory, batch: Batch) -> bool:
        try:
            return memory.apply(batch.changes)
        except CorruptStorage as error:
            where = f"before entry {batch.state.next}"
            raise CorruptStorage(f"the metadata stream {self._stream.name} is corrupt {where}: {error}") from error

    async def _begin_anew(self, start: StreamPosition, end: StreamPosition) -> None:
        """Let memory and copy be those of a snapshot. Raises as `_follow`."""
        found = await self._search(start, end)
        if found is None:
            raise CorruptStorage(
                f"the metadata stream {self._stream.name} begins at entry {start}, and no snapshot in it says what was"
                " before: somebody else has trimmed it, or written into it"
            )
        if self._state.cluster not in (None, found.state.cluster):
            raise StoreMismatch(
                f"the metadata stream {self._stream.name} is of the cluster {found.state.cluster}, and this node is of"
                f" {self._state.cluster}: give it the right engine, or an empty data directory"
            )
        log.info("metadata begin at a snapshot", stream=self._stream.name, base=found.state.next - 1)
        if self._memory is None:
            memory, changes = self._read(found.content), found.content
        else:
            memory, changes = self._memory, self._memory.differences(found.content)
        await self._copy.write(changes, found.state)
        if self._memory is not None:
            self._memory.apply(changes)
        self._memory = memory
        self._state = found.state
        if self._proposal is not None:
            self._proposal.hear_skipped(found.state)
        self._tell()
        self._wake()

    async def _search(self, start: StreamPosition, end: StreamPosition) -> FoundSnapshot | None:
        search = SnapshotSearch(start, self._stream.name)
        if start < end:
            try:
                async with self._stream.open_reader(start) as reader:
                    while True:
                        entries = await reader.next()
                        found = search.read(entries)
                        if found is not None or entries[-1].position >= end - 1:
                            return found
            except StreamCutOff as error:
                raise CorruptStorage(f"the metadata stream {self._stream.name} lost entries: {error}") from error
        return None

    def _read(self, content: Mapping[bytes, bytes]) -> ClusterMemory:
        """Raises CorruptStorage, StoreMismatch."""
        try:
            memory = ClusterMemory(content, self._features)
        except KeyError as error:
            raise CorruptStorage(f"the metadata of {self._stream.name} lack the record {error}") from error
        if (problem := unsupported(self._features, memory.features.chosen)) is not None:
            raise StoreMismatch(f"in the metadata of the cluster, {problem} Run the version of Fairlog that set it")
        return memory

    def _first_records(self, founding: Founding) -> Changes:
        if self._memory is not None:
            return {}
        cluster = ClusterRecord(
            cluster_records.cluster_id_of(uuid.uuid4()),
            founding.group_journal_count,
            os.urandom(cluster_records.SECRET_BYTES),
        )
        return cluster_records.first_records(
            cluster,
            shards=founding.shards,
            offsets_logs=founding.offsets_log_count,
            group_separator=founding.group_separator,
        )

    def _require_same(self, founding: Founding, memory: ClusterMemory) -> None:
        for name, found, asked in (
            ("shards", memory.shards, founding.shards),
            ("transactions.group_separator", memory.group_separator, founding.group_separator),
        ):
            if found != asked:
                raise StoreMismatch(
                    f"the cluster {memory.cluster.cluster_id} was founded with {name} {found!r}, and this node has"
                    f" {asked!r}: set it to {found!r}, or give the node another cluster"
                )

    async def _moves(self) -> None:
        """Return when something was read, appended, or has failed."""
        await self._moved.wait()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _tell(self) -> None:
        for told in tuple(self._listeners):
            told()

    def _raise_if_failed(self) -> None:
        if self._failed is not None:
            raise StorageFailure(str(self._failed)) from self._failed
