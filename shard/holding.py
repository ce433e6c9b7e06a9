"""The commits of one coordinator that are under way, and the holds that let a cut over shards see none in part.

A commit over several shards becomes visible in each of them at a different instant. The taker of a cut
(`shard.cutting`) has every coordinator *hold*: the coordinator prepares no further commit, and waits until those that
it has prepared are visible everywhere. While all coordinators hold, no commit is visible in part, and none begins: if a
client made a commit because an earlier one was answered, a cut has both, the earlier one alone, or neither.

    admit ─▶ began ─▶ … ─▶ ended          a commit
    hold ─▶ nothing under way ─▶ release  a hold: `admit` waits meanwhile

A hold ends when its taker has started again, or by itself: after DRAIN_S for the commits under way in the slowest
coordinator, and HOLD_S for the cut. So a taker that dies delays commits for no longer. A hold whose time is over is
forgotten with the first commit that is admitted; `release` says whether it was in force to the end. So no cut depends
on a clock.

A commit that is under way for longer than DRAIN_S waits for a shard that is down, or whose disk has failed. Then this
coordinator refuses to hold, and there is no cut. It also refuses until it has recovered, because it does not know yet
what it has decided.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from fairlog_types import ShardNumber, TxId

HOLD_S = 1.0
"""A cut takes two round trips within a machine, once all coordinators hold."""

DRAIN_S = 5.0
"""On a slow disk or a busy machine a commit takes seconds, and several may be under way."""


class Commits:
    """Those of one coordinator."""

    def __init__(self) -> None:
        self._under_way: dict[TxId, float] = {}
        """When each began."""
        self._ended = trio.Event()
        """Set, and replaced, when the last one that is under way has ended."""
        self._holds: dict[ShardNumber, tuple[int, float]] = {}
        """By the shard that takes a cut: the hold's number, and until when it holds."""
        self._released = trio.Event()
        """Set, and replaced, when a hold has ended."""
        self._recovered = trio.Event()
        self._closed = False

    def recovered(self) -> None:
        """The shard has recovered: all commits that the last run had decided have begun here."""
        self._recovered.set()

    async def until_recovered(self) -> None:
        """Wait for that."""
        await self._recovered.wait()

    async def admit(self) -> None:
        """Wait until there is no hold. A commit may begin in the step in which this returns, and in no later one."""
        while self._holds:
            deadline = max(until for _, until in self._holds.values())
            if trio.current_time() >= deadline:
                self._holds.clear()
                return
            with trio.move_on_at(deadline):
                await self._released.wait()

    def began(self, txids: Iterable[TxId]) -> None:
        """These are prepared, or placed again after a restart."""
        now_s = trio.current_time()
        for txid in txids:
            self._under_way.setdefault(txid, now_s)

    def ended(self, txids: Iterable[TxId]) -> None:
        """These are visible in all their shards, or aborted; unknown ones are ignored."""
        before = len(self._under_way)
        for txid in txids:
            self._under_way.pop(txid, None)
        if before and not self._under_way:
            self._ended.set()
            self._ended = trio.Event()

    def hold(self, taker: ShardNumber, number: int) -> Callable[[], Awaitable[bool]]:
        """Hold, in this step. The result waits until no commit is under way: True. False: this coordinator cannot hold.

        A later hold of the same taker replaces its earlier one.
        """
        now_s = trio.current_time()
        if (
            self._closed
            or not self._recovered.is_set()
            or any(now_s - began_s > DRAIN_S for began_s in self._under_way.values())
        ):
            return _refused
        self._holds[taker] = number, now_s + DRAIN_S + HOLD_S

        async def drained() -> bool:
            with trio.move_on_at(now_s + DRAIN_S):
                while self._under_way:
                    await self._ended.wait()
                return True
            self.release(taker, number)
            return False

        return drained

    def release(self, taker: ShardNumber, number: int) -> bool:
        """End that hold; whether no commit was admitted since it began."""
        if self._holds.get(taker, (None, 0.0))[0] != number:
            return False
        self.forget(taker)
        return True

    def close(self) -> None:
        """This shard stops: refuse further holds, and end those in force. Their takers hear that they ended early."""
        self._closed = True
        for taker in tuple(self._holds):
            self.forget(taker)

    def forget(self, taker: ShardNumber) -> None:
        """That shard has started again, and does not know its hold any more."""
        if self._holds.pop(taker, None) is not None:
            self._released.set()
            self._released = trio.Event()


async def _refused() -> bool:
    await trio.lowlevel.checkpoint()
    return False
