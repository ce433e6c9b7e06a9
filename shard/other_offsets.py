"""Offsets of consumer groups that another shard has, written in a transaction of this one.

    OtherOffsets.write ─▶ WriteOffsets ┈┈▶ OwnOffsets.write of the group's shard ─▶ the groups' room

A command is said again to each start of the other shard (`shard.links`). The offsets may have been written before it
was killed, so a later start refuses them: whoever asked aborts the transaction, and tries again in another one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from fairlog_types import ProducerEpoch, ProducerId, ShardNumber, StorageFailure
from journal.failpoints import reach
from shard.links import Links
from shard.offset_messages import OffsetsRefused, WhyNotWritten, WriteOffsets


class OtherOffsets:
    """Has other shards write offsets."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def write(
        self,
        shard: ShardNumber,
        group: str,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        offsets: Sequence[tuple[str, int, int]],
    ) -> OffsetsRefused | None:
        """Have that shard write offsets of its group in the transaction, to which the group's log was added.

        Waits for the shard, for as long as it takes. Raises StorageFailure if this one stops meanwhile.
        """
        listener_epoch = self._links.epoch_of(shard)
        if listener_epoch is None:
            return _started_again(shard)
        message = WriteOffsets(listener_epoch, group, transactional_id, producer_id, epoch, tuple(offsets))
        answer: OffsetsRefused | None = await self._links.ask(shard, message).answer()
        return answer


class OwnOffsets:
    """Writes offsets of this shard's groups for other shards, as soon as the groups are served.

    The room of the groups is built on this shard, and reads its data logs before it serves; others may ask before that.
    So what writes comes with `serve`, and not with the constructor.
    """

    def __init__(self, own: ShardNumber, epoch: int) -> None:
        """`epoch` is that of this start."""
        self._own = own
        self._epoch = epoch
        self._served = trio.Event()
        self._write: Callable[[WriteOffsets], Awaitable[OffsetsRefused | None]] | None = None

    def serve(self, write: Callable[[WriteOffsets], Awaitable[OffsetsRefused | None]]) -> None:
        """From now on `write` writes them; it may raise StorageFailure."""
        self._write = write
        self._served.set()

    async def write(self, message: WriteOffsets) -> OffsetsRefused | None:
        """Carry out a command of another shard."""
        if message.listener_epoch != self._epoch:
            await trio.lowlevel.checkpoint()
            return _started_again(self._own)
        await self._served.wait()
        assert self._write is not None
        try:
            refused = await self._write(message)
        except StorageFailure as failure:
            return OffsetsRefused(WhyNotWritten.STORAGE, str(failure))
        reach("participant.offsets_written")
        return refused


def _started_again(shard: ShardNumber) -> OffsetsRefused:
    return OffsetsRefused(WhyNotWritten.STARTED_AGAIN, f"shard {shard} was started again meanwhile")
