"""How far logs of other shards can be read, as these say: for those who look at the lag of groups. It is no cut.

    OtherHighWatermarks.of ─▶ FindHighWatermarks ┈┈▶ Partitions.high_watermarks of each shard ─▶ HighWatermarks

A shard whose process is down does not answer. Its logs are left out after WAIT_S, and it is asked nothing more until it
has answered, since `shard.links` says the last question until then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import trio

from fairlog_types import LogId, Offset, ShardNumber
from shard.asking import NoAnswer, Question, answers_of
from shard.links import Asked, Links

WAIT_S = 1.0
"""For the answers of all shards. They take a millisecond, or a long step of another task there."""

LOGS_MAX = 100_000
"""Of one shard; what is beyond is left out. A message has room for some 300,000 logs."""


@dataclass(frozen=True, slots=True)
class FindHighWatermarks:
    """How far can these logs be read? Answered with HighWatermarks."""

    logs: tuple[LogId, ...]


@dataclass(frozen=True, slots=True)
class HighWatermarks:
    """The high watermark of each log, without the logs that are not led there."""

    by_log: Mapping[LogId, Offset]


class OtherHighWatermarks:
    """Asks other shards."""

    def __init__(self, links: Links, shard_of: Callable[[LogId], ShardNumber | None]) -> None:
        """`shard_of` names the shard that leads a log; None if it is this one, or nobody does."""
        self._links = links
        self._shard_of = shard_of
        self._asked: dict[ShardNumber, Asked] = {}

    async def of(self, logs: Collection[LogId]) -> Mapping[LogId, Offset]:
        """The high watermarks of those of these logs that another shard leads, as far as it answers in time."""
        by_shard: dict[ShardNumber, list[LogId]] = {}
        for log in logs:
            if (shard := self._shard_of(log)) is not None:
                by_shard.setdefault(shard, []).append(log)
        due_s = trio.current_time() + WAIT_S
        questions: list[Question] = []
        for shard, of in by_shard.items():
            last = self._asked.get(shard)
            if last is None or last.is_answered:
                asked = self._asked[shard] = self._links.ask(shard, FindHighWatermarks(tuple(of[:LOGS_MAX])))
                questions.append(Question(shard, asked, due_s))
        found: dict[LogId, Offset] = {}
        for question in questions:
            try:
                (answer,) = await answers_of((question,))
            except NoAnswer:
                continue
            found |= answer.by_log
        return found
