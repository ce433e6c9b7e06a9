"""What shards ask each other to take a cut over all of them, and what they answer (`shard.cutting`). Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairlog_types import LogId
from partition.answers import LogCut


@dataclass(frozen=True, slots=True)
class AwaitEnds:
    """Wait until all that was answered in these logs before can be read. Answered with None or NoCut."""

    logs: tuple[LogId, ...] | None
    """None: all that are led there."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Prepare no commit until Release. Answered with Held, when none is under way any more."""

    number: int


@dataclass(frozen=True, slots=True)
class CutLogs:
    """How far these logs can be read, at one instant. Answered with Cuts."""

    logs: tuple[LogId, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """The end of the hold with that number. Answered with Held."""

    number: int


@dataclass(frozen=True, slots=True)
class TakeCut:
    """Take a cut over all shards. Answered with Cuts or NoCut."""

    logs: tuple[LogId, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Of Hold: whether nothing is under way. Of Release: whether nothing has begun since."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class Cuts:
    """Each log's part of a cut, without the logs that are not led there."""

    by_log: Mapping[LogId, LogCut]


@dataclass(frozen=True, slots=True)
class NoCut:
    """No cut can be taken now. The same question may be asked again."""

    reason: str


CutQuestion = AwaitEnds | Hold | CutLogs | Release | TakeCut
CutAnswer = Held | Cuts | NoCut | None
