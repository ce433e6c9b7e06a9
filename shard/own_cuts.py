"""What one shard answers to whoever takes a cut over all of them (`shard.cutting`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from fairlog_types import LogId, ShardNumber
from shard.cut_messages import Cuts, Held, NoCut
from shard.ends import OWN_WAIT_S, AskedEnds, Coordinates
from shard.holding import Commits
from shard.partitions import Partitions


class LeadsLogs(Protocol):
    """The shard."""

    @property
    def partitions(self) -> Partitions: ...

    @property
    def coordinator(self) -> Coordinates: ...


class OwnCuts:
    """The shard's part of cuts."""

    def __init__(self, shard: Callable[[], LeadsLogs], commits: Commits) -> None:
        """`shard` is asked for when the first question comes: it is put together behind this part."""
        self._shard = shard
        self._commits = commits

    async def await_ends(self, logs: Collection[LogId] | None) -> NoCut | None:
        """Wait until what was answered in the logs before the call can be read; until this shard has recovered, too.

        In all that are led here, if `logs` is None. None: it can. For OWN_WAIT_S at most.
        """
        await self._commits.until_recovered()
        if logs is None:
            logs = tuple(self._shard().partitions.by_log)
        ends = await AskedEnds.ask(self._shard(), logs, wait_s=OWN_WAIT_S)
        for log in logs:
            refusal = await ends.reached(log)
            if refusal is not None:
                return NoCut(refusal.value)
        return None

    def hold(self, taker: ShardNumber, number: int) -> Callable[[], Awaitable[Held]]:
        """See `Commits.hold`."""
        drained = self._commits.hold(taker, number)

        async def held() -> Held:
            return Held(await drained())

        return held

    def cut(self, logs: Collection[LogId]) -> Cuts:
        """How far the logs can be read, at this instant."""
        return Cuts(self._shard().partitions.cut(logs))

    def release(self, taker: ShardNumber, number: int) -> Held:
        """See `Commits.release`."""
        return Held(self._commits.release(taker, number))

    def forget(self, taker: ShardNumber) -> None:
        """See `Commits.forget`."""
        self._commits.forget(taker)
