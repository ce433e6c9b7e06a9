"""A shard, put together: partitions, their copier, a coordinator, one LMDB environment, one leader epoch, one failure.

    storage (data logs, flusher) ─▶ partitions ─▶ participant ─▶ group journals ─▶ coordinator
    up:    lead (journals replayed) ─▶ recover (decided again, what is placed goes to the copier) ─▶ run
    down:  drain ─▶ group journals closed ─▶ local journals ─▶ flusher ─▶ data logs

`open_storage` opens what a shard keeps its records in, and `open_shard` puts the shard together on top of it. A
simulation has a storage of its own, and is otherwise put together in the same way.

The coordinator speaks to the participant in messages (`coordinator.messages`), and to nothing else of the shard. With
neighbours its messages go to the shards that lead the logs (`routing`), over `links`.
Where its files lie, `shard.directory` says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import structlog
import trio

from coordinator.answers import Refusal
from coordinator.group_journal import GroupJournal
from coordinator.id_table import IdTable
from coordinator.ids import ProducerIds
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from datalog.environment import LmdbDataLogs
from datalog.interface import DataLogs
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, Offset, ShardNumber, StorageFailure, TxId
from journal.flush import Flusher, TailWatcher, open_flusher
from journal.interface import Journals, OpenJournal
from journal.journal import Fsync, JournalKind, JournalSettings
from journal.on_files import JournalsOnFiles
from journal.segment_file import make_root
from partition.modes import JOURNAL, TransactionMode
from shard.adding import Adding, AddingForOthers, AddLog
from shard.commands import Commands
from shard.conversation import Message
from shard.cutting import Cutting
from shard.directory import ShardDirectory
from shard.high_watermarks import OtherHighWatermarks
from shard.holding import Commits
from shard.kept_cuts import KeptCuts
from shard.links import Confirm, Links, Transport
from shard.offset_messages import OffsetsRefused, WriteOffsets
from shard.other_offsets import OtherOffsets, OwnOffsets
from shard.own_cuts import OwnCuts
from shard.participant import Participant
from shard.partitions import Partitions
from shard.past_cuts import PastCuts
from shard.placement import Placement
from shard.routing import RoutedParticipants

logger = structlog.get_logger("fairlog.shard")

GROUP_SEGMENT_BYTES_MAX = 8 * 2**20
"""Group journals are small and are snapshotted as whole segments; Kafka's __transaction_state uses 100 MiB for
want of such a cut, etcd snapshots every 10,000 entries."""

CUTS_OF_AN_EPOCH_BITS = 32
"""Of a kept cut's number, below the epoch of the shard that takes cuts. It is a u64; an epoch takes no more than 31."""


_Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ShardStorage:
    """What a shard keeps its records in, and what puts its journals on disk. Made by `open_storage`."""

    data_logs: DataLogs
    flusher: Flusher


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How a shard uses its journals, and the rules of its transactions."""

    fsync: Fsync
    fsync_interval_ms: int
    segment_bytes_max: int
    """Of local journals."""
    group_journals: int
    """Of all shards together."""
    producer_expiration_ms: int
    coordinator: CoordinatorSettings
    group_segment_bytes_max: int = GROUP_SEGMENT_BYTES_MAX

    def of_journals(self) -> Mapping[JournalKind, JournalSettings]:
        """For each kind of journal, how it uses its disk."""
        local = JournalSettings(self.fsync, self.fsync_interval_ms, self.segment_bytes_max)
        return {
            JournalKind.LOCAL: local,
            JournalKind.GROUP: replace(local, segment_bytes_max=self.group_segment_bytes_max),
        }


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The other shards, as one of them sees them."""

    placement: Placement
    shard_of: Callable[[LogId], ShardNumber | None]
    """Which of them leads a log; None if none of them does, or if the log's topic is not known here yet."""
    catch_up: Callable[[], Awaitable[None]]
    """Returns when every topic that was made before is known here. Raises StorageFailure, CorruptStorage."""
    transport: Transport


@dataclass(frozen=True, slots=True)
class _Connections:
    """What a shard has if there are others."""

    commits: Commits
    links: Links
    routed: RoutedParticipants
    commands: Commands
    cutting: Cutting
    kept_cuts: KeptCuts
    past_cuts: PastCuts
    own_offsets: OwnOffsets
    other_offsets: OtherOffsets
    adding: Adding
    other_high_watermarks: OtherHighWatermarks


class Shard:
    """All that one event loop owns of a node. Made by `open_shard`."""

    def __init__(
        self,
        partitions: Partitions,
        participant: Participant,
        coordinator: Coordinator,
        connections: _Connections | None = None,
    ) -> None:
        self.partitions = partitions
        self.coordinator = coordinator
        self._participant = participant
        self._connections = connections
        self.has_recovered = False
        """What the last run left undecided is decided."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Under which it leads its partitions and its groups in this run."""
        return self.partitions.leader_epoch

    @property
    def data_logs(self) -> DataLogs:
        return self.partitions.data_logs

    @property
    def failure(self) -> StorageFailure | None:
        """Why this shard takes no more writes until it is restarted; None as long as it does."""
        return self.partitions.failure

    async def lead(self, logs: Sequence[LogId], mode: TransactionMode = JOURNAL) -> None:
        """See `Partitions.lead`."""
        await self.partitions.lead(logs, mode, opened=self._participant.recall)

    async def drop(self, logs: Sequence[LogId]) -> None:
        """See `Partitions.drop`."""
        await self.partitions.drop(logs)

    async def recover(self) -> None:
        """Decide what the last run left undecided, once all that is there is led; then what is placed may be copied.

        An open transaction that its coordinator has not resumed is discarded: its BEGIN was lost with the power, or its
        abort left no trace here. With neighbours `run_links` runs by now, and those that take part in what is undecided
        are waited for. Raises StorageFailure, CorruptStorage; see `Coordinator.recover`.
        """
        await self.coordinator.recover(tail_kept=self._participant.whole_since < self.leader_epoch)
        connections = self._connections
        if connections is not None:
            connections.routed.begin_to_tell(self.coordinator.undecided)
            await self._participant.hear_coordinators(connections.links.others)
        self._participant.finish_recovery()
        self.partitions.finish_recovery()
        if connections is not None:
            connections.commits.recovered()
        self.has_recovered = True

    async def run_links(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """With neighbours: hear what they say, from when all logs are led on; until cancelled."""
        assert self._connections is not None
        links, commands, routed = self._connections.links, self._connections.commands, self._connections.routed
        await links.run(commands, routed.welcomed, task_status=task_status)

    async def hear(self, coordinator: ShardNumber) -> None:
        """See `Participant.hear`. Raises Stopped."""
        await self._participant.hear(coordinator)

    async def add_log(self, coordinator: ShardNumber, message: AddLog) -> Refusal | None:
        """Have another shard's coordinator add a log that is led here to a transaction, unless it has it.

        Waits for that shard, for as long as it takes. Raises StorageFailure if this one stops meanwhile.
        """
        assert self._connections is not None
        await self._participant.hear(coordinator)
        if self._participant.has_added(message):
            return None
        refusal = await self._connections.adding.add(coordinator, message)
        if refusal is None:
            self._participant.note_added(message)
        return refusal

    def receive(self, shard: ShardNumber, message: Message) -> None:
        """A message of a neighbour has come."""
        assert self._connections is not None
        self._connections.links.receive(shard, message)

    def connected(self, shard: ShardNumber) -> None:
        """Messages can be sent to a neighbour, again after `disconnected`, or to another process that may own it."""
        assert self._connections is not None
        self._connections.links.reached(shard)

    def disconnected(self, shard: ShardNumber) -> None:
        """Messages cannot be sent to a neighbour."""
        assert self._connections is not None
        self._connections.links.lost(shard)

    def stop(self) -> None:
        """This shard stops, and its neighbours may, too: what was asked of a disconnected one is given up, and so is
        a hold of it."""
        if self._connections is not None:
            self._connections.links.stop()

    def close_links(self) -> None:
        """Let nobody wait for a neighbour any more, nor for a hold of one."""
        if self._connections is not None:
            self._connections.links.close()
            self._connections.commits.close()

    @property
    def cutting(self) -> Cutting | None:
        """What takes cuts over several shards; None if there are no others."""
        return None if self._connections is None else self._connections.cutting

    @property
    def past_cuts(self) -> PastCuts | None:
        """What finds older cuts over several shards; None if there are no others."""
        return None if self._connections is None else self._connections.past_cuts

    async def keep_cuts(self) -> None:
        """Have a cut over all shards kept now and then, if there are others; until cancelled. Once it has recovered."""
        if self._connections is not None:
            await self._connections.kept_cuts.run(self._connections.cutting.keep)

    @property
    def other_offsets(self) -> OtherOffsets | None:
        """What has other shards write offsets of their groups; None if there are no others."""
        return None if self._connections is None else self._connections.other_offsets

    def serve_offsets(self, write: Callable[[WriteOffsets], Awaitable[OffsetsRefused | None]]) -> None:
        """From now on `write` writes offsets of the groups that this shard has, for other shards."""
        if self._connections is not None:
            self._connections.own_offsets.serve(write)

    async def high_watermarks_elsewhere(self, logs: Collection[LogId]) -> Mapping[LogId, Offset]:
        """Those of logs that neighbours lead, as far as these answer within a moment."""
        return {} if self._connections is None else await self._connections.other_high_watermarks.of(logs)

    async def drain(self) -> None:
        """Return once everything that is decided so far is visible. Raises StorageFailure if it will not be."""
        self.coordinator.place_due()
        await self.partitions.drain()


@asynccontextmanager
async def open_storage(
    directory: ShardDirectory, *, map_bytes: int, watcher: TailWatcher
) -> AsyncGenerator[ShardStorage, None]:
    """Open the data logs of the shard in `directory`, and start a flusher for its journals.

    On leaving, the flusher finishes what is queued. Raises CorruptStorage, StorageFailure.
    """
    data_logs = await trio.to_thread.run_sync(partial(LmdbDataLogs.open, directory.data_logs, map_bytes=map_bytes))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(close_in_thread, data_logs.close)
        flusher = await stack.enter_async_context(open_flusher(watcher=watcher))
        yield ShardStorage(data_logs, flusher)


@asynccontextmanager
async def open_shard(
    directory: ShardDirectory,
    storage: ShardStorage,
    settings: ShardSettings,
    *,
    leader_epoch: LeaderEpoch,
    producer_ids: ProducerIds,
    begun: bool,
    note_begun: Callable[[], Awaitable[None]],
    whole_since: Callable[[], LeaderEpoch],
    offsets_decided: Callable[[LogId, TxId, Offset | None], None],
    now_ms: Callable[[], int],
    neighbours: Neighbours | None = None,
    journals: Journals | None = None,
    confirm: Confirm | None = None,
) -> AsyncGenerator[Shard, None]:
    """Put together the shard in `directory`; it leads nothing yet. On leaving, its journals are closed.

    `journals` opens them; without it they are files of this machine, flushed as `settings` say. `confirm` is given if
    another process may own the shard without this one's knowing it (`shard.links`).
    `begun`: its group journals were made by an earlier start, so that a missing one is a loss; otherwise `note_begun`
    is awaited once they are on disk. `whole_since` is asked once all logs are led, see `fairlog.last_run`. Raises
    CorruptStorage, StorageFailure.
    """
    async with AsyncExitStack() as stack:
        for root in (directory.local_journals, directory.group_journals):
            await trio.to_thread.run_sync(partial(make_root, root, below=directory.data_dir))
        if journals is None:
            journals = JournalsOnFiles(storage.flusher, settings.of_journals(), leader_epoch)
        placement = Placement(1) if neighbours is None else neighbours.placement
        ids = IdTable(settings.group_journals, settings.coordinator.group_separator, shards=placement.at_first)
        partitions = Partitions(
            directory.local_journals,
            data_logs=storage.data_logs,
            journals=journals,
            leader_epoch=leader_epoch,
            producer_expiration_ms=settings.producer_expiration_ms,
            now_ms=now_ms,
            epoch_of=ids.epoch_of,
            keeps_cuts=neighbours is None,
        )
        stack.push_async_exit(_closing(partitions.close))
        participant = Participant(partitions, whole_since=whole_since, offsets_decided=offsets_decided)
        numbers = placement.group_journals(directory.number, settings.group_journals)
        group_journals = await _open_group_journals(stack, directory, numbers, journals, begun=begun)
        if not begun:
            await _begin(group_journals)
            await note_begun()
        make_coordinator = partial(
            Coordinator,
            table=ids,
            journals=[GroupJournal(journal, now_ms) for journal in group_journals],
            producer_ids=producer_ids,
            settings=settings.coordinator,
            now_ms=now_ms,
            on_failure=partitions.refuse_writes,
        )
        if neighbours is None:
            yield Shard(partitions, participant, make_coordinator(participants=participant))
        else:
            commits = Commits()

            def give_up(other: ShardNumber) -> None:
                commits.forget(other)
                participant.give_up(other)

            others = placement.others(directory.number)
            links = Links(leader_epoch, others, neighbours.transport, give_up, confirm)
            routed = RoutedParticipants(participant, links, neighbours.shard_of, commits)
            coordinator = make_coordinator(participants=routed)
            kept_cuts = KeptCuts(lambda: partitions.copier_statistics().copied_records)
            own_cuts = OwnCuts(partitions, coordinator, commits, kept_cuts.kept)
            # Other owners may have kept cuts in copies that nobody asks at the moment.
            number_from = 0 if confirm is None else leader_epoch << CUTS_OF_AN_EPOCH_BITS
            cutting = Cutting(directory.number, own_cuts, links, neighbours.shard_of, confirm, number_from=number_from)
            own_offsets = OwnOffsets(directory.number, leader_epoch)
            adding = AddingForOthers(coordinator, commits, neighbours.catch_up)
            connections = _Connections(
                commits,
                links,
                routed,
                Commands(
                    partitions,
                    participant,
                    leader_epoch,
                    own_cuts,
                    cutting,
                    own_offsets,
                    adding,
                    confirm,
                    place_due=coordinator.place_due,
                ),
                cutting,
                kept_cuts,
                PastCuts(directory.number, own_cuts, links, neighbours.shard_of),
                own_offsets,
                OtherOffsets(links),
                Adding(links),
                OtherHighWatermarks(links, neighbours.shard_of),
            )
            yield Shard(partitions, participant, coordinator, connections)


async def _open_group_journals(
    stack: AsyncExitStack,
    directory: ShardDirectory,
    numbers: Iterable[int],
    journals: Journals,
    *,
    begun: bool,
) -> Sequence[OpenJournal]:
    opened: list[OpenJournal] = []
    for number in numbers:
        journal = await journals.open(directory.group_journal(number), JournalKind.GROUP)
        stack.push_async_exit(_closing(journal.close))
        if begun and not journal.begun:
            raise CorruptStorage(
                f"the group journal {directory.group_journal(number)} is missing. Put back an intact copy of the "
                "directory; starting without it would lose what was answered."
            )
        opened.append(journal)
    return opened


async def _begin(journals: Sequence[OpenJournal]) -> None:
    """Let each be on disk, in parallel. Raises StorageFailure."""
    failures: list[StorageFailure] = []

    async def begin(journal: OpenJournal) -> None:
        try:
            await journal.begin()
        except StorageFailure as failure:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for journal in journals:
            nursery.start_soon(begin, journal)
    if failures:
        raise failures[0]


def _closing(close: Callable[[], Awaitable[None]]) -> _Exit:
    """An exit that closes journals. What has ended the shard is told, rather than what its closing meets then."""

    async def leave(_kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            await close()
        except StorageFailure as failure:
            if error is None:
                raise
            logger.warning("journals are not closed in good order", reason=str(failure))

    return leave


async def close_in_thread(close: Callable[[], None]) -> None:
    """Close something that blocks, even if the start was cancelled."""
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(close)
