"""Cuts over several shards that lie in the past, for readers with a limit.

    FindCuts ─▶ what each shard knows of its logs' cuts ─▶ search (`datalog.cuts`) ◀─▶ FindEnds, in each of its steps

The search is the same as in one shard. It asks where logs ended at a cut. All shards that lead these logs must know the
cut, so that their answers are of the same moment; otherwise the search takes the newest older cut that all of them
know. No commits are held, and the search waits for nothing but the answers. It ignores cuts that are newer than the
first answer of any shard: another shard may have answered before they were taken.

A shard may have cuts of its own from before its first common cut: the shard that the node had when it was the only one.
The logs of the other shards did not exist then, so these are cuts for all. If several shards have cuts of their own,
these cannot be compared. A shard that was added later knows no common cut older than its first one. If a log of it
ended before the reader's start at that cut, it did so at all older cuts, and the shard is not asked about these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio

from datalog.cuts import Cut, EndsAtCut, LogCuts, LookedUp, Lookup, RowsAreGone, search
from fairlog_types import LogId, Offset, ShardNumber
from shard.asking import NoAnswer, Question, answers_of
from shard.cut_messages import Cuts, CutsOf, FindCuts, FindEnds, NoCut
from shard.links import Links
from shard.own_cuts import OwnCuts

ANSWER_S = 5.0
"""A lookup takes a millisecond, or a second with 25,000 logs."""

ATTEMPTS_MAX = 5
"""A search begins again if compaction or retention has deleted rows meanwhile, which happens every few minutes."""

_ByShard = Mapping[ShardNumber, tuple[LogId, ...]]


class _Refused(Exception):
    """A shard cannot read its index."""


class PastCuts:
    """Finds them, for readers that ask this shard."""

    def __init__(
        self, own: ShardNumber, own_cuts: OwnCuts, links: Links, shard_of: Callable[[LogId], ShardNumber | None]
    ) -> None:
        """`shard_of` names the shard that leads a log; None if it is this one, or if the log has no leader."""
        self._own = own
        self._own_cuts = own_cuts
        self._links = links
        self._shard_of = shard_of
        self._asked: dict[ShardNumber, Question] = {}
        """The last one to each other shard."""

    async def find(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Cuts | NoCut | None:
        """A cut at most `records_max` records after the starts, all logs together; logs without a leader are left out.

        None: take the newest cut. `datalog.cuts.search` says which cut is found. A start before the log's start counts
        as the log's start. Raises StorageFailure, CorruptStorage of this shard.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._find(starts, records_max)
            except RowsAreGone:
                continue
            except (NoAnswer, _Refused) as none:
                return NoCut(str(none))
        return NoCut("cuts are deleted by retention or compaction just now")

    async def _find(self, starts: Mapping[LogId, Offset], records_max: int) -> Cuts | None:
        """Raises NoAnswer, _Refused, RowsAreGone, and what `find` raises."""
        by_shard = self._by_shard(starts)
        questions = {shard: FindCuts({log: starts[log] for log in logs}) for shard, logs in by_shard.items()}
        answers: Sequence[CutsOf] = await self._ask(questions)
        now = {log: cut for of in answers for log, cut in of.now.items()}
        own = [of.known.newest_own for of in answers if of.known.newest_own]
        newest_own = own[0] if len(own) == 1 else 0
        known = {
            log: _known(of, log, has_own=newest_own > 0) for of in answers for log in of.known.by_log if log in of.now
        }
        logs = tuple(known)
        newest = max(min((of.known.newest for of in answers), default=0), newest_own)
        searching = search(tuple(known.values()), records_max=records_max, newest=newest)
        try:
            lookup = next(searching)
            while True:
                lookup = searching.send(await self._look_up(logs, lookup, newest_own))
        except StopIteration as stopped:
            ends, is_now = stopped.value
        if is_now:
            return None
        cut = {log: (now[log], end) for log, end in zip(logs, ends, strict=True)}
        return Cuts({log: now._replace(end=max(end, now.log_start)) for log, (now, end) in cut.items()})

    async def _look_up(self, logs: Sequence[LogId], lookup: Lookup, newest_own: int) -> LookedUp:
        """Where these logs ended at the newest cut that all their shards know. Raises NoAnswer, _Refused."""
        asked = [logs[index] for index in lookup.logs]
        by_shard = self._by_shard(asked)
        number = lookup.number
        while number > newest_own:
            found = await self._ends_at(number, by_shard, common=True)
            oldest = min((of.number for of in found), default=number)
            if all(of.number == oldest for of in found) and oldest > newest_own:
                return _looked_up(oldest, asked, found)
            number = oldest
        number = min(lookup.number, newest_own)
        return _looked_up(number, asked, await self._ends_at(number, by_shard, common=False))

    async def _ends_at(self, number: int, by_shard: _ByShard, *, common: bool) -> Sequence[EndsAtCut]:
        return await self._ask({shard: FindEnds(number, logs, common) for shard, logs in by_shard.items()})

    async def _ask(self, questions: Mapping[ShardNumber, FindCuts | FindEnds]) -> Sequence[Any]:
        """The answers of all. Raises NoAnswer, _Refused."""
        now_s = trio.current_time()
        overdue = [last for shard in questions if (last := self._asked.get(shard)) is not None and last.due_s <= now_s]
        await answers_of(overdue)  # so that questions do not pile up for a shard that is down
        asked: list[Question] = []
        for shard, question in questions.items():
            if shard != self._own:
                self._asked[shard] = Question(shard, self._links.ask(shard, question), now_s + ANSWER_S)
                asked.append(self._asked[shard])
        answers: list[Any] = []
        match questions.get(self._own):
            case FindCuts() as question:
                answers.append(await self._own_cuts.find(question))
            case FindEnds() as question:
                answers.append(await self._own_cuts.find_ends(question))
            case None:
                await trio.lowlevel.checkpoint()
        answers += await answers_of(asked)
        for answer in answers:
            if isinstance(answer, NoCut):
                raise _Refused(answer.reason)
        return answers

    def _by_shard(self, logs: Collection[LogId]) -> _ByShard:
        by_shard: dict[ShardNumber, list[LogId]] = {}
        for log in logs:
            shard = self._shard_of(log)
            by_shard.setdefault(self._own if shard is None else shard, []).append(log)
        return {shard: tuple(of) for shard, of in by_shard.items()}


def _known(of: CutsOf, log: LogId, *, has_own: bool) -> LogCuts:
    """The cuts of the log that its shard knows, as far as can be said.

    `has_own`: cuts from before the first common one can be used.
    """
    cuts = replace(of.known.by_log[log], end=of.now[log].readable_end)
    at_oldest = of.known.at_oldest_common.get(log)
    if cuts.oldest is None or at_oldest is None or (has_own and at_oldest > cuts.start):
        return cuts
    return replace(cuts, oldest=max(cuts.oldest, Cut(of.known.oldest_common, at_oldest)))


def _looked_up(number: int, logs: Iterable[LogId], found: Iterable[EndsAtCut]) -> LookedUp:
    ends = {log: end for of in found for log, end in of.by_log.items()}
    return LookedUp(number, [ends.get(log) for log in logs])
