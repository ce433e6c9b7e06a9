"""Cuts over several shards that lie in the past, for readers with a limit.

    FindCuts ─▶ what each shard knows of its logs' cuts ─▶ search (`datalog.cuts`) ◀─▶ FindEnds, in each of its steps

The search is that of one shard. It asks where logs ended at a cut. All shards that lead these logs must know the cut,
so that what they answer is of the same moment: otherwise the newest older one is taken that all of them know. Nobody is
held, and nothing is waited for but the answers.

Before its first common cut a shard may have kept cuts of its own: the one that the node had at first. The logs of the
others did not exist then, so these are cuts for all. If several have kept some, they cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import trio

from datalog.cuts import EndsAtCut, LookedUp, Lookup, search
from fairlog_types import LogId, Offset, ShardNumber
from shard.asking import NoAnswer, Question, answers_of
from shard.cut_messages import Cuts, CutsOf, FindCuts, FindEnds, NoCut
from shard.links import Links
from shard.own_cuts import OwnCuts

ANSWER_S = 5.0
"""A lookup takes a millisecond, with thousands of logs a tenth of a second."""

_ByShard = Mapping[ShardNumber, tuple[LogId, ...]]


class _Refused(Exception):
    """A shard cannot read its index."""


class PastCuts:
    """Finds them, for readers that ask this shard."""

    def __init__(
        self, own: ShardNumber, own_cuts: OwnCuts, links: Links, shard_of: Callable[[LogId], ShardNumber | None]
    ) -> None:
        """`shard_of` names the shard that leads a log; None if it is this one, or nobody does."""
        self._own = own
        self._own_cuts = own_cuts
        self._links = links
        self._shard_of = shard_of

    async def find(self, starts: Mapping[LogId, Offset], *, records_max: int) -> Cuts | NoCut | None:
        """A cut at most `records_max` records after the starts, all together, of the logs that are led.

        None: the newest cut is the one to take. `datalog.cuts.search` says which one it is. A start before the log's
        start counts as the log's start. Raises StorageFailure, CorruptStorage of this shard.
        """
        try:
            return await self._find(starts, records_max)
        except (NoAnswer, _Refused) as none:
            return NoCut(str(none))

    async def _find(self, starts: Mapping[LogId, Offset], records_max: int) -> Cuts | None:
        """Raises NoAnswer, _Refused, and what `find` raises."""
        by_shard = self._by_shard(starts)
        questions = {shard: FindCuts({log: starts[log] for log in logs}) for shard, logs in by_shard.items()}
        answers: Sequence[CutsOf] = await self._ask(questions)
        now = {log: cut for of in answers for log, cut in of.now.items()}
        known = {log: cuts for of in answers for log, cuts in of.known.by_log.items() if log in now}
        logs = tuple(known)
        newest = max((of.known.newest for of in answers), default=0)
        own = [of.known.newest_own for of in answers if of.known.newest_own]
        newest_own = own[0] if len(own) == 1 else 0
        log_cuts = [replace(known[log], end=now[log].readable_end) for log in logs]
        searching = search(log_cuts, records_max=records_max, newest=newest)
        try:
            lookup = next(searching)
            while True:
                lookup = searching.send(await self._look_up(logs, lookup, newest_own))
        except StopIteration as stopped:
            ends, is_now = stopped.value
        return None if is_now else Cuts({log: now[log]._replace(end=end) for log, end in zip(logs, ends, strict=True)})

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
        due_s = trio.current_time() + ANSWER_S
        asked = [
            Question(shard, self._links.ask(shard, question), due_s)
            for shard, question in questions.items()
            if shard != self._own
        ]
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


def _looked_up(number: int, logs: Iterable[LogId], found: Iterable[EndsAtCut]) -> LookedUp:
    ends = {log: end for of in found for log, end in of.by_log.items()}
    return LookedUp(number, [ends.get(log) for log in logs])
