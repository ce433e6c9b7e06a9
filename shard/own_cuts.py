"""One shard's answers to the taker of a cut over all shards (`shard.cutting`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial

import structlog
import trio

from datalog.cuts import EndsAtCut
from fairlog_types import CorruptStorage, LogId, Offset, ShardNumber, StorageFailure
from journal.failpoints import reach
from shard.cut_messages import Cuts, CutsOf, FindCuts, FindEnds, Held, KeepEnds, NoCut, Noted
from shard.ends import OWN_WAIT_S, AskedEnds, Coordinates
from shard.holding import Commits
from shard.partitions import Partitions

logger = structlog.get_logger("fairlog.cuts")


class OwnCuts:
    """The shard's part of cuts. Implements `shard.ends.Leads`."""

    def __init__(
        self, partitions: Partitions, coordinator: Coordinates, commits: Commits, kept: Callable[[], None]
    ) -> None:
        """`kept` is called when the ends that were noted last are about to be stored."""
        self.partitions = partitions
        self.coordinator = coordinator
        # The answers to other shards are confirmed as a whole (`shard.commands`). The taker asks its own shard without
        # that, and is certain of it at the end of each hold (`shard.cutting`).
        self.confirm = None
        self.appends_wait = _never
        self._commits = commits
        self._kept = kept
        self._noted: tuple[int, Mapping[LogId, Offset]] | None = None
        """Within the hold with that number."""
        self._newest = 0
        """The number of the newest cut that is stored or being stored."""
        self._storing = trio.Lock()
        """Cuts are stored in the order of their numbers, even if one of them takes long."""

    async def await_ends(self, logs: Collection[LogId] | None) -> NoCut | None:
        """Wait until this shard has recovered, and all that was answered in the logs before the call can be read.

        `logs` None means all logs that are led here. None: it can be read. NoCut: it cannot within OWN_WAIT_S.
        """
        await self._commits.until_recovered()
        if logs is None:
            logs = tuple(self.partitions.by_log)
        ends = await AskedEnds.ask(self, logs, wait_s=OWN_WAIT_S)
        for log in logs:
            refusal = await ends.reached(log)
            if refusal is not None:
                return NoCut(refusal.value)
        return None

    def hold(self, taker: ShardNumber, number: int) -> Callable[[], Awaitable[Held]]:
        """See `Commits.hold`."""
        drained = self._commits.hold(taker, number)

        async def held() -> Held:
            has_drained = await drained()
            if has_drained:
                reach("cuts.held")
            return Held(has_drained)

        return held

    def cut(self, logs: Collection[LogId]) -> Cuts:
        """How far the logs can be read, at this instant."""
        return Cuts(self.partitions.cut(logs))

    def note(self, hold: int) -> Noted:
        """Note how far all logs can be read, at this instant."""
        self._noted = hold, {log: cut.end for log, cut in self.partitions.cut(self.partitions.by_log).items()}
        return Noted(max(self._newest, self.partitions.data_logs.newest_cut))

    def keep(self, message: KeepEnds) -> Callable[[], Awaitable[None]]:
        """The ends noted in that hold are the cut with that number. The result stores it.

        After a restart, or once another cut was noted, there is nothing to store. If the disk is still busy with an
        earlier cut, this one is not stored: then this shard does not know it.
        """
        if self._noted is None or self._noted[0] != message.hold:
            return trio.lowlevel.checkpoint
        (_, ends), self._noted = self._noted, None
        self._newest = message.number
        if self._storing.locked():
            return trio.lowlevel.checkpoint
        self._kept()
        return partial(self._store, message.number, ends)

    async def _store(self, number: int, ends: Mapping[LogId, Offset]) -> None:
        def store() -> None:
            with self.partitions.data_logs.write() as writer:
                writer.put_common_cut(number, ends)
                reach("cuts.keep.before_commit")
            reach("cuts.keep.after_commit")

        async with self._storing:
            try:
                await trio.to_thread.run_sync(store)
            except (StorageFailure, CorruptStorage) as failure:
                logger.warning("a cut is not kept", number=number, reason=str(failure))

    async def find(self, question: FindCuts) -> CutsOf:
        """See FindCuts. Raises StorageFailure, CorruptStorage."""
        known = await trio.to_thread.run_sync(partial(self.partitions.data_logs.known_cuts, dict(question.starts)))
        return CutsOf(known, self.partitions.cut(known.by_log))

    async def find_ends(self, question: FindEnds) -> EndsAtCut:
        """See FindEnds. Raises StorageFailure, CorruptStorage."""
        find = partial(self.partitions.data_logs.ends_at, common=question.common)
        return await trio.to_thread.run_sync(find, question.number, question.logs)

    def release(self, taker: ShardNumber, number: int) -> Held:
        """See `Commits.release`."""
        return Held(self._commits.release(taker, number))

    def forget(self, taker: ShardNumber) -> None:
        """See `Commits.forget`."""
        self._commits.forget(taker)


def _never() -> bool:
    return False
