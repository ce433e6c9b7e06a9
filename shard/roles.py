"""A node's copy of a shard through its roles: replica, owner, replica again.

    ┌─▶ follow ── own FENCE read ──▶ own ── deposed, or an outcome unknown ──┐
    │      └─ to stop: mark saved      └─ to stop: hands over                │
    └────────────────────────────────────────────────────────────────────────┘

Both roles work on one directory and one storage, and never at the same time. What a node does in each of them is the
node's (`Roles`): which logs there are, whom it serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog
import trio

from coordinator.ids import ProducerIds
from fairlog_types import LogId, Offset, StorageFailure, TxId
from journal.streamed import StreamedJournals
from shard.directory import ShardDirectory
from shard.giving import Giver
from shard.owned import Epoch, OwnedShard, open_owned
from shard.partitions import Partitions
from shard.progress import CopyProgress
from shard.replica import Replica, StreamTimes, follow, open_replica, save_mark, save_marks
from shard.shard import Neighbours, ShardSettings, ShardStorage
from stream.election import Election
from stream.engine import EntryGone, Stream
from stream.fold import Fold, FoldState
from stream.writer import StreamWriter

logger = structlog.get_logger("fairlog.roles")

HAND_OVER_S = 5.0
"""So long the last entry may take; without it others wait for the failover time."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A node's copy of one shard."""

    directory: ShardDirectory
    storage: ShardStorage
    settings: ShardSettings
    group_journals: Sequence[int]
    """The numbers of those that the shard has."""
    stream: Stream
    node: str
    """This node's name."""
    rank: int
    """Of this node among those that have a copy: the first ones try first to be the owner."""
    times: StreamTimes
    producer_ids: ProducerIds
    now_ms: Callable[[], int]
    neighbours: Neighbours | None = None
    progress: CopyProgress = field(default_factory=CopyProgress)
    """Told how far the copy is, in whatever role."""
    giver: Giver = field(default_factory=Giver)
    """Gives copies of it to nodes that join."""


class Roles(Protocol):
    """What a node does with its copy."""

    async def lead(self, partitions: Partitions) -> None:
        """Have a replica's partitions lead all logs of the shard that there are."""
        ...

    async def adopt(self, partitions: Partitions, log: LogId) -> bool:
        """Know all topics that were made by now; whether one of them has this log, which is led then."""
        ...

    def following(self, replica: Replica) -> AbstractAsyncContextManager[object]:
        """Entered while the copy follows the shard's stream as a replica."""
        ...

    async def own(self, owned: OwnedShard, stop: trio.Event) -> None:
        """Lead all logs, recover, and serve, until `stop`, or until it is over; decides nothing afterwards.

        With neighbours: recovery may wait for them, also then; and nothing is heard from them afterwards, for the shard
        may be handed over.
        """
        ...

    def offsets_decided(self, log: LogId, txid: TxId, offset: Offset | None) -> None:
        """See `Participant`."""
        ...

    def successor(self) -> str | None:
        """The node that is to own the shard when this one stops; None: whichever comes first."""
        ...


async def play_roles(copy: Copy, roles: Roles, stop: trio.Event) -> None:
    """Follow, own when it is this node's turn, and follow again, until `stop` is set.

    Then the shard is handed over if it is owned here. Raises EntryGone, by itself, if the stream was trimmed further
    than the copy has read: it has to be made anew of another one. CorruptStorage, StorageFailure, StreamCutOff, in
    groups.
    """
    try:
        while not stop.is_set():
            await _follow_and_own(copy, roles, stop)
    except ExceptionGroup as error:
        gone, others = error.split(EntryGone)
        if gone is None or others is not None:
            raise
        raise EntryGone(*_first_in(gone).args) from error
    finally:
        copy.progress.ends()


def _first_in(group: ExceptionGroup[EntryGone]) -> EntryGone:
    first = group.exceptions[0]
    return _first_in(first) if isinstance(first, ExceptionGroup) else first


async def _follow_and_own(copy: Copy, roles: Roles, stop: trio.Event) -> None:
    async with trio.open_nursery() as nursery:
        # What is decided goes on in shielded scopes when `own` is cancelled, and waits for what is appended.
        appending, watching = trio.CancelScope(shield=True), trio.CancelScope()

        def begin(fold: Fold) -> Epoch:
            sizes = {kind: each.segment_bytes_max for kind, each in copy.settings.of_journals().items()}
            epoch = Epoch(copy.stream, fold, copy.storage.flusher, sizes, copy.times)
            nursery.start_soon(_run_in, appending, epoch.writer.run)
            nursery.start_soon(_give_up_when_cancelled, watching, epoch.writer)
            return epoch

        try:
            epoch = await _follow(copy, roles, stop, begin)
            if epoch is not None:
                await _own(copy, roles, epoch, stop)
        finally:
            watching.cancel()
            appending.cancel()


async def _give_up_when_cancelled(watching: trio.CancelScope, writer: StreamWriter) -> None:
    """What is shielded would wait for the engine, which may be away; whoever cancels a copy does not."""
    with watching:
        try:
            await trio.sleep_forever()
        finally:
            if not watching.cancel_called:
                writer.give_up(f"the copy is given up, and what was appended to {writer.stream_name} is not waited for")


async def _run_in(scope: trio.CancelScope, run: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await run()


async def _follow(copy: Copy, roles: Roles, stop: trio.Event, begin: Callable[[Fold], Epoch]) -> Epoch | None:
    """Returns when this node owns the shard; None when it is to stop before that."""
    epoch, until_stop = None, trio.CancelScope()
    opening = open_replica(
        copy.directory,
        copy.storage,
        copy.settings,
        copy.stream,
        group_journals=copy.group_journals,
        adopt=roles.adopt,
        now_ms=copy.now_ms,
        keeps_cuts=copy.neighbours is None,
    )
    async with opening as replica:
        copy.progress.follows(lambda: replica.taken, lambda: replica.has_caught_up)
        await roles.lead(replica.partitions)
        path, stream, every_s = copy.directory.stream_mark, copy.stream, copy.times.mark_every_s
        async with trio.open_nursery() as background:
            background.start_soon(replica.partitions.copy)
            background.start_soon(_raise_failure, replica.partitions)
            taken, saved = lambda: replica.taken, copy.progress.saved
            background.start_soon(save_marks, replica.journals, taken, path, stream.name, every_s, saved)
            election = Election(copy.node, copy.rank, copy.times.failover_s, replica.fold.state, trio.current_time())
            async with roles.following(replica):
                background.start_soon(_cancel_when, stop, until_stop)
                with until_stop, _giving(copy, replica.journals, taken, lambda: replica.has_caught_up):
                    await follow(replica, stream, election, copy.node)
                    epoch = begin(replica.fold)
                    copy.progress.opens(partial(_state_of, epoch))
            background.cancel_scope.cancel()
        if epoch is None:
            await save_mark(replica.journals, replica.taken, path, stream.name)
    return epoch


def _state_of(epoch: Epoch) -> FoldState:
    return epoch.writer.state


def _has_recovered(owned: OwnedShard) -> bool:
    return owned.shard.has_recovered


def _giving(
    copy: Copy, journals: StreamedJournals, state: Callable[[], FoldState], is_complete: Callable[[], bool]
) -> AbstractContextManager[None]:
    return copy.giver.gives(copy.directory, copy.storage.data_logs, journals, copy.stream.name, state, is_complete)


async def _own(copy: Copy, roles: Roles, epoch: Epoch, stop: trio.Event) -> None:
    """Returns when somebody else owns the shard, or has to. Raises StorageFailure if this machine's disk has failed."""
    opening = open_owned(
        copy.directory,
        copy.storage,
        copy.settings,
        epoch,
        mark_every_s=copy.times.mark_every_s,
        progress=copy.progress,
        producer_ids=copy.producer_ids,
        offsets_decided=roles.offsets_decided,
        now_ms=copy.now_ms,
        neighbours=copy.neighbours,
    )
    owned: OwnedShard | None = None
    try:
        async with opening as owned:
            failure: StorageFailure | ExceptionGroup[Exception] | None = None
            try:
                state, has_recovered = partial(_state_of, epoch), partial(_has_recovered, owned)
                with _giving(copy, epoch.journals, state, has_recovered):
                    await roles.own(owned, stop)
            except (StorageFailure, ExceptionGroup) as error:
                if not _is_of_storage(error):
                    raise
                failure = error
            await _leave(owned, roles)
            if failure is not None:
                raise failure
    except (StorageFailure, ExceptionGroup) as error:
        if epoch.writer.ended is None or not _is_of_storage(error):
            raise
    failed_disk = epoch.journals.failed_file if owned is None else owned.failed_disk
    if failed_disk is not None:
        raise failed_disk


async def _raise_failure(partitions: Partitions) -> None:
    """A replica that copies nothing any more is no replica."""
    await partitions.has_failed.wait()
    assert partitions.failure is not None
    raise partitions.failure


async def _leave(owned: OwnedShard, roles: Roles) -> None:
    """Hand over, unless others have to find out: also if this machine's disk has failed, for the stream is whole."""
    if owned.writer.ended is None:
        with trio.move_on_after(HAND_OVER_S):
            await owned.hand_over(roles.successor())


def _is_of_storage(error: StorageFailure | ExceptionGroup[Exception]) -> bool:
    """Whether nothing else has gone wrong than what an owner that has ended meets."""
    return isinstance(error, StorageFailure) or error.split(StorageFailure)[1] is None


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
