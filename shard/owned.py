"""A shard of which this process is the owner, with its journals on the shard's stream.

    follow ─▶ own FENCE read ─▶ Epoch: is heard ─▶ open_owned: put together as ever, journals on the stream ─▶ serves
                                    ├ deposed, or an outcome is unknown: `over`, all writes fail
                                    ├ the disk of this machine fails: `over`, and it hands over
                                    └ hand_over: all that it wrote, then the last entry

The shard is the one of `shard.shard`, and so is its recovery: what a replica has on its disk when it has read its own
FENCE is what a restart finds. What an owner had appended and nobody has accepted is gone with it, and nobody was told
of it: neither clients nor other shards. So it is as if the process had been killed a moment earlier, and open
transactions go on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from coordinator.ids import ProducerIds
from fairlog_types import LogId, Offset, StorageFailure, TxId
from journal.flush import Flusher
from journal.journal import JournalKind
from journal.streamed import StreamedJournals
from shard.directory import ShardDirectory
from shard.links import Confirm
from shard.progress import CopyProgress
from shard.replica import StreamTimes, save_marks
from shard.shard import Neighbours, Shard, ShardSettings, ShardStorage, open_shard
from stream.engine import Stream
from stream.fold import NO_EPOCH, Fold
from stream.writer import Ended, StreamWriter

logger = structlog.get_logger("fairlog.owned")


class Epoch:
    """An epoch of this node, from its FENCE on. Heartbeats begin at once, before the shard is open."""

    def __init__(
        self,
        stream: Stream,
        fold: Fold,
        flusher: Flusher,
        segment_bytes_max: dict[JournalKind, int],
        times: StreamTimes,
    ) -> None:
        """`fold` has just gone over the FENCE, and is nobody else's from now on."""
        self.state_at_first = fold.state
        """Behind the FENCE."""
        self.journals = StreamedJournals(flusher, segment_bytes_max, fold.state.epoch)
        self.writer = StreamWriter(
            stream,
            fold,
            heartbeat_s=times.heartbeat_s,
            gives_up_s=times.gives_up_s,
            accepted=self.journals.accepted,
            ended=self._has_ended,
        )
        self.journals.append_with(self.writer)
        self._shard: Shard | None = None

    def _has_ended(self, why: Ended) -> None:
        name, epoch = self.writer.stream_name, self.state_at_first.epoch
        logger.warning("is not the owner any more", stream=name, epoch=epoch, reason=why.reason)
        self.journals.fail(
            StorageFailure(f"{why.reason}; what was not answered may have been written or not, ask again")
        )
        self._tell()

    def opened(self, shard: Shard) -> None:
        """The shard is open, and fails if the epoch ends, or has ended already."""
        self._shard = shard
        self._tell()

    def _tell(self) -> None:
        if self._shard is not None and self.journals.failed is not None:
            self._shard.partitions.end(self.journals.failed)


class OwnedShard:
    """The shard, and what it appends to its stream. Made by `open_owned`."""

    def __init__(self, shard: Shard, epoch: Epoch) -> None:
        self.shard = shard
        self.over = shard.partitions.has_failed
        """Set when nothing is written any more: somebody else is the owner, or has to become it."""
        self.writer = epoch.writer
        self.state_at_first = epoch.state_at_first
        self._journals = epoch.journals

    @property
    def confirm(self) -> Confirm:
        """See `StreamedJournals.confirm`."""
        return self._journals.confirm

    @property
    def failed_disk(self) -> StorageFailure | None:
        """What this machine's disk has refused: it is not to be written to any more as long as the process lives."""
        copying = self.shard.partitions.failed_copy
        if copying is not None and copying.__cause__ is self._journals.failed:
            copying = None  # the copier waited for what nobody has accepted
        return self._journals.failed_file or copying

    async def hand_over(self, successor: str | None) -> bool:
        """Let the node `successor`, or whoever comes first, be the owner of the next epoch.

        The shard serves nobody and decides nothing any more. Whether that was accepted: then nobody waits for the
        failover time.
        """
        handed_over = await self.writer.hand_over(successor)
        logger.info("handed the shard over" if handed_over else "could not hand the shard over", successor=successor)
        return handed_over


@asynccontextmanager
async def open_owned(
    directory: ShardDirectory,
    storage: ShardStorage,
    settings: ShardSettings,
    epoch: Epoch,
    *,
    mark_every_s: float,
    progress: CopyProgress,
    producer_ids: ProducerIds,
    offsets_decided: Callable[[LogId, TxId, Offset | None], None],
    now_ms: Callable[[], int],
    neighbours: Neighbours | None = None,
) -> AsyncGenerator[OwnedShard, None]:
    """Put together the shard in `directory`, which has all that was accepted before the epoch's FENCE.

    Its writer runs. It leads nothing yet. `progress` is told how far it is. On leaving, its journals are closed. Raises
    CorruptStorage, StorageFailure.
    """
    state = epoch.state_at_first
    opening = open_shard(
        directory,
        storage,
        settings,
        leader_epoch=state.epoch,
        producer_ids=producer_ids,
        begun=False,  # a replica to which nothing of a group journal has come has no file of it
        note_begun=_nothing,
        whole_since=lambda: NO_EPOCH,  # nothing that was answered is ever missing
        offsets_decided=offsets_decided,
        now_ms=now_ms,
        neighbours=neighbours,
        journals=epoch.journals,
        confirm=epoch.journals.confirm,
    )
    async with opening as shard:
        epoch.opened(shard)
        progress.owns(lambda: epoch.writer.state, lambda: shard.has_recovered)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_save_marks, shard, epoch, directory.stream_mark, mark_every_s, progress)
            yield OwnedShard(shard, epoch)
            nursery.cancel_scope.cancel()


async def _save_marks(shard: Shard, epoch: Epoch, path: Path, every_s: float, progress: CopyProgress) -> None:
    writer = epoch.writer
    try:
        await save_marks(epoch.journals, lambda: writer.state, path, writer.stream_name, every_s, progress.saved)
    except StorageFailure as failure:
        shard.partitions.fail(failure)


async def _nothing() -> None:
    """Nothing has to be noted: the stream says what there was."""
