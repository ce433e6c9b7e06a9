"""How far logs of other shards can be read, as these say: for those who look at the lag of groups. It is no cut.

    OtherHighWatermarks.of ─▶ FindHighWatermarks ┈┈▶ Partitions.high_watermarks of each shard ─▶ HighWatermarks

A shard whose process is down does not answer. Its logs are left out after WAIT_S, and it is asked nothing more until it
has answered, since `shard.links` says a question until then. Many logs are asked about in several questions, so that
no step takes long.
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

LOGS_PER_QUESTION = 1_000


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
        """`shard_of` names the shard that leads a log; None if it is this one, or if the log has no leader."""
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
            last = self._asked.pop(shard, None)
            if last is not None and not last.is_answered:
                self._asked[shard] = last
                continue
            for start in range(0, len(of), LOGS_PER_QUESTION):
                question = FindHighWatermarks(tuple(of[start : start + LOGS_PER_QUESTION]))
                asked = self._asked[shard] = self._links.ask(shard, question)
                questions.append(Question(shard, asked, due_s))
        found: dict[LogId, Offset] = {}
        for question in questions:
            try:
                (answer,) = await answers_of((question,))
            except NoAnswer:
                continue
            found |= answer.by_log
        return found
