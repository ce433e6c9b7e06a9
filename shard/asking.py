"""Questions to other shards that are answered in time, or not at all.

A shard that is down answers nothing, and `shard.links` says a question again until it is back. Whoever takes a cut does
not wait for that: it waits until an answer is due, and names the shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import trio

from fairlog_types import ShardNumber, StorageFailure
from shard.links import Asked


class NoAnswer(Exception):
    """A shard has not answered in time. The message names it."""


class Question(NamedTuple):
    """Something that was asked of one shard."""

    shard: ShardNumber
    asked: Asked
    due_s: float
    """When the shard will have answered, unless it is down."""


async def answers_of(questions: Iterable[Question]) -> Sequence[Any]:
    """In the order of the questions. Raises NoAnswer."""
    answers: list[Any] = []
    for shard, asked, due_s in questions:
        with trio.move_on_at(math.inf if asked.is_answered else due_s) as waiting:
            try:
                answers.append(await asked.answer())
            except StorageFailure as failure:
                raise NoAnswer(str(failure)) from failure
        if waiting.cancelled_caught:
            raise NoAnswer(f"shard {shard} has not answered in time: its process is down, or has much to do")
    return answers
