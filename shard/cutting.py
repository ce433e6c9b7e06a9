"""Cuts over several shards: up to where logs can be read together without splitting a transaction.

The shard TAKER takes all cuts, one after the other; the others ask it for theirs. A cut takes four questions, each
of them to all shards side by side:

    AwaitEnds   wait until everything that was answered before can be read (invariant 13)
    Hold        prepare no further commit, and wait until those that are prepared are visible (`shard.holding`)
    CutLogs     how far can your logs be read, at this instant?
    Release     go on; has nothing begun since Hold?

Within a shard all logs of a transaction become visible at one instant, so one shard's answer never splits it. A commit
over several shards is visible everywhere or nowhere as long as all coordinators hold. If one has not held to the end,
because it was started again or was too slow, the cut is thrown away.

Commits wait for three round trips, and for the commits that are under way. The pause between two cuts is as long as the
last one took, so a reader that asks again and again does not stop commits. While a shard is down there is no cut, and
no commits are held, because it does not answer AwaitEnds. A shard that has a question to answer gets no further one but
Release and KeepEnds, so questions do not pile up: the next question waits for that answer, as long as the last one
would have.

A cut that all shards keep for readers with a limit (`shard.kept_cuts`) is taken in the same way, of all logs. NoteEnds
takes the place of CutLogs, and KeepEnds follows Release:

    NoteEnds    note how far your logs can be read, at this instant; what is the number of your newest cut?
    KeepEnds    that was cut n: store it

The number is one more than the newest of all shards. If a shard is killed before it stores a cut, the cut is not used.

A backup takes its cut itself, in the files of the shards. The TAKER does everything else for it, in `while_all_hold`;
to the coordinators this is a cut like any other.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import trio

from fairlog_types import LogId, ShardNumber, StorageFailure
from journal.failpoints import reach
from shard.asking import NoAnswer, Question, answers_of
from shard.cut_messages import (
    AwaitEnds,
    CutLogs,
    CutQuestion,
    Cuts,
    Held,
    Hold,
    KeepCut,
    KeepEnds,
    NoCut,
    NoteEnds,
    Release,
    TakeCut,
)
from shard.ends import OWN_WAIT_S
from shard.holding import DRAIN_S, HOLD_S
from shard.links import Confirm, Links
from shard.own_cuts import OwnCuts

TAKER = ShardNumber(0)

_TAKEN_S = OWN_WAIT_S + HOLD_S
_HAVE_TAKEN_S = _TAKEN_S + HOLD_S
"""Time limits of a cut, in the TAKER and in the others. They are longer than the wait for one answer, so that the error
names the shard that does not answer."""

PAUSE_MIN_S = 0.005
"""Between two cuts."""
KEEP_SHARE = 100
"""Cuts that are kept hold commits for at most this fraction of the time: 1/KEEP_SHARE."""

KEEP_PAUSE_S = 10.0
"""After a kept cut that could not be taken. Meanwhile only readers wait for a shard that is down."""

PAUSE_MAX_S = 0.5
"""Between two attempts, if a coordinator cannot hold: doubled each time."""


_Found = TypeVar("_Found")


class Cutting:
    """Takes the cuts of a node if this shard is the TAKER, else asks the TAKER for them."""

    def __init__(
        self,
        own: ShardNumber,
        own_cuts: OwnCuts,
        links: Links,
        shard_of: Callable[[LogId], ShardNumber | None],
        confirm: Confirm | None = None,
        *,
        number_from: int = 0,
    ) -> None:
        """`shard_of` names the shard that leads a log; None if it is this one, or if the log has no leader.

        `confirm`: see `shard.links`. A cut counts only if this process, too, owned its shard to the end of the hold.
        `number_from`: cuts that are kept have numbers from there on, of which no earlier owner has given any.
        """
        self._confirm = confirm
        self._number_from = number_from
        self._own = own
        self._own_cuts = own_cuts
        self._links = links
        self._shard_of = shard_of
        self._lock = trio.Lock()
        self._asked: dict[ShardNumber, Question] = {}
        """The last one to each other shard."""
        self._holds = 0
        self._earliest_s = 0.0
        """When the next cut may begin."""
        self._kept_s = -math.inf
        """When the last cut began that is kept."""
        self._keep_earliest_s = 0.0

    async def cut(self, logs: Sequence[LogId]) -> Cuts | NoCut:
        """The newest cut of those of these logs that are led, with everything that was answered before the call.

        Waits at most somewhat longer than OWN_WAIT_S, so that the error names a shard that does not answer.
        """
        with trio.move_on_after(_TAKEN_S if self._own == TAKER else _HAVE_TAKEN_S + HOLD_S):
            async with self._lock:
                try:
                    return await (self._take(logs) if self._own == TAKER else self._have_taken(logs))
                except NoAnswer as none:
                    return NoCut(str(none))
        return NoCut("the shards have not agreed on a cut in time")

    async def _have_taken(self, logs: Iterable[LogId]) -> Cuts | NoCut:
        """Raises NoAnswer, as all that follow."""
        (answer,) = await answers_of(await self._ask({TAKER: TakeCut(tuple(logs))}, _HAVE_TAKEN_S))
        return answer

    async def keep(self) -> NoCut | None:
        """Have all shards keep a cut of all their logs. None: one was taken since the call.

        NoCut: none can be, or one was taken so little ago that it would hold commits for too long. Ask again later.
        """
        if self._own != TAKER:
            return await self._links.ask(TAKER, KeepCut()).answer()
        now_s = trio.current_time()
        async with self._lock:
            if self._kept_s >= now_s:
                return None
            if trio.current_time() < self._keep_earliest_s:
                return NoCut("a cut was kept a moment ago, or could not be")
            try:
                found = await self._keep()
            except NoAnswer as none:
                found = NoCut(str(none))
        if isinstance(found, NoCut):
            self._keep_earliest_s = max(self._keep_earliest_s, trio.current_time() + KEEP_PAUSE_S)
            return found
        await found()
        return None

    async def _keep(self) -> NoCut | Callable[[], Awaitable[None]]:
        """What it returns stores the cut in this shard. Raises NoAnswer."""
        others = dict.fromkeys(self._links.others, ())
        refused = await self._await_ends((), others, HOLD_S)  # no commits are held while a shard is down
        if refused is not None:
            return refused
        await trio.sleep_until(self._earliest_s)
        began_s = trio.current_time()

        async def note() -> int:
            """The number of the newest cut of all shards."""
            hold = self._holds
            asked = await self._ask(dict.fromkeys(others, NoteEnds(hold)), HOLD_S)
            own = self._own_cuts.note(hold)
            return max(noted.newest for noted in (own, *await answers_of(asked)))

        try:
            newest = await self._while_all_hold(others, note, PAUSE_MIN_S)
        finally:
            now_s = trio.current_time()
            self._keep_earliest_s = now_s + KEEP_SHARE * (now_s - began_s)
        if newest is None:
            return NoCut("a commit is under way for too long, or a shard has not held to the end")
        self._kept_s = began_s
        keep = KeepEnds(self._holds, max(newest[0] + 1, self._number_from))
        for shard in others:
            self._links.ask(shard, keep)  # without waiting for their disks
        return self._own_cuts.keep(keep)

    async def while_all_hold(self, inside: Callable[[], Awaitable[None]]) -> bool | NoCut:
        """Run `inside` while all coordinators hold and everything answered before the call can be read in every shard.

        True: they have held to the end of it. False: they have not, or could not; `inside` may not have run, or may
        have been cancelled after HOLD_S. The same call may be made again. Only the TAKER's is called. Raises what
        `inside` raises.
        """
        assert self._own == TAKER, self._own
        by_shard = dict.fromkeys(self._links.others)

        async def within_a_hold() -> bool:
            with trio.move_on_after(HOLD_S) as holding:
                await inside()
            return not holding.cancelled_caught

        async with self._lock:
            try:
                with trio.move_on_after(_TAKEN_S) as waiting:
                    refused = await self._await_ends(None, by_shard, OWN_WAIT_S)
                    if refused is not None:
                        return refused
                    await trio.sleep_until(self._earliest_s)
                if waiting.cancelled_caught:
                    return NoCut("what was answered before cannot be read in time")
                return await self._while_all_hold(by_shard, within_a_hold, PAUSE_MIN_S) == (True,)
            except NoAnswer as none:
                return NoCut(str(none))

    async def _take(self, logs: Iterable[LogId]) -> Cuts | NoCut:
        by_shard: dict[ShardNumber, list[LogId]] = {shard: [] for shard in (self._own, *self._links.others)}
        for log in logs:
            shard = self._shard_of(log)
            by_shard[self._own if shard is None else shard].append(log)
        own_logs = by_shard.pop(self._own)
        refused = await self._await_ends(own_logs, by_shard, OWN_WAIT_S)
        if refused is not None:
            return refused

        async def ends() -> Cuts:
            found = dict(self._own_cuts.cut(own_logs).by_log)
            asked = await self._ask({shard: CutLogs(tuple(of)) for shard, of in by_shard.items()}, HOLD_S)
            for cuts in await answers_of(asked):
                found |= cuts.by_log
            return Cuts(found)

        pause_s = PAUSE_MIN_S
        while True:
            await trio.sleep_until(self._earliest_s)
            found = await self._while_all_hold(by_shard, ends, pause_s)
            if found is not None:
                return found[0]
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _await_ends(
        self,
        own_logs: Collection[LogId] | None,
        by_shard: Mapping[ShardNumber, Collection[LogId] | None],
        wait_s: float,
    ) -> NoCut | None:
        """None for logs: all of that shard."""
        questions = {shard: AwaitEnds(None if of is None else tuple(of)) for shard, of in by_shard.items()}
        asked = await self._ask(questions, wait_s)
        for answer in (await self._own_cuts.await_ends(own_logs), *await answers_of(asked)):
            if isinstance(answer, NoCut):
                return answer
        return None

    async def _while_all_hold(
        self, others: Collection[ShardNumber], inside: Callable[[], Awaitable[_Found]], pause_s: float
    ) -> tuple[_Found] | None:
        """What is found inside a hold of all coordinators; at least `pause_s` must pass before the next one.

        None: a coordinator cannot hold, or has not held to the end. Raises NoAnswer, and what `inside` raises.
        """
        began_s = trio.current_time()
        self._holds += 1
        number, released = self._holds, False
        asked = await self._ask(dict.fromkeys(others, Hold(number)), DRAIN_S + HOLD_S)
        try:
            if not _all_held((await self._own_cuts.hold(self._own, number)(), *await answers_of(asked))):
                return None
            found = await inside()
            reach("cuts.taken")
            asked = await self._ask(dict.fromkeys(others, Release(number)), HOLD_S)
            released = True
            own = self._own_cuts.release(self._own, number)
            confirmed = None if self._confirm is None else self._confirm()
            held = own, *await answers_of(asked)
            if confirmed is not None:
                await _still_owned(confirmed)
            return (found,) if _all_held(held) else None
        finally:
            if not released:
                self._let_go(number, others)
            now_s = trio.current_time()
            self._earliest_s = now_s + max(pause_s, now_s - began_s)

    def _let_go(self, number: int, others: Iterable[ShardNumber]) -> None:
        """End all holds that are still in force or still under way, without waiting."""
        self._own_cuts.release(self._own, number)
        for shard in others:
            self._say(shard, Release(number), HOLD_S)

    async def _ask(self, questions: Mapping[ShardNumber, CutQuestion], wait_s: float) -> Sequence[Question]:
        """Ask; answers may take so long. Raises NoAnswer if one of them does not answer its previous question."""
        soon_s = trio.current_time() + HOLD_S
        last = [self._asked[shard] for shard in questions if shard in self._asked]
        await answers_of([each._replace(due_s=max(each.due_s, soon_s)) for each in last])
        return [self._say(shard, question, wait_s) for shard, question in questions.items()]

    def _say(self, shard: ShardNumber, question: CutQuestion, wait_s: float) -> Question:
        said = self._asked[shard] = Question(shard, self._links.ask(shard, question), trio.current_time() + wait_s)
        return said


async def _still_owned(confirmed: Callable[[], Awaitable[None]]) -> None:
    try:
        await confirmed()
    except StorageFailure as failure:
        raise NoAnswer(str(failure)) from failure


def _all_held(answers: Iterable[Held | None]) -> bool:
    return all(answer is not None and answer.is_held for answer in answers)
