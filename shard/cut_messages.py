"""What shards ask each other to take a cut over all of them, and what they answer (`shard.cutting`). Frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from datalog.cuts import EndsAtCut, KnownCuts
from fairlog_types import LogId, Offset
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
class KeepCut:
    """Have all shards keep a cut. Answered with None or NoCut."""


@dataclass(frozen=True, slots=True)
class NoteEnds:
    """Note how far all logs that are led there can be read, at one instant within a hold. Answered with Noted."""

    hold: int


@dataclass(frozen=True, slots=True)
class KeepEnds:
    """The hold was in force to the end: store what was noted in it as a cut. Answered with None."""

    hold: int
    number: int
    """Of the cut."""


@dataclass(frozen=True, slots=True)
class FindCuts:
    """What is known of the cuts of these logs, each read from its start? Answered with CutsOf."""

    starts: Mapping[LogId, Offset]


@dataclass(frozen=True, slots=True)
class FindEnds:
    """Where did these logs end at that cut? Answered with EndsAtCut."""

    number: int
    logs: tuple[LogId, ...]
    common: bool
    """At the newest cut that was taken over all shards, of those that are not newer than that one."""


@dataclass(frozen=True, slots=True)
class Held:
    """Of Hold: whether nothing is under way. Of Release: whether nothing has begun since."""

    is_held: bool


@dataclass(frozen=True, slots=True)
class Cuts:
    """Each log's part of a cut, without the logs that are not led there."""

    by_log: Mapping[LogId, LogCut]


@dataclass(frozen=True, slots=True)
class Noted:
    """Of NoteEnds."""

    newest: int
    """The number of the shard's newest cut; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class CutsOf:
    """What one shard knows of the cuts of some logs, without the logs that are not led there."""

    known: KnownCuts
    now: Mapping[LogId, LogCut]
    """How far each can be read."""


@dataclass(frozen=True, slots=True)
class NoCut:
    """No cut can be taken now. The same question may be asked again."""

    reason: str


CutQuestion = AwaitEnds | Hold | CutLogs | Release | TakeCut | KeepCut | NoteEnds | KeepEnds | FindCuts | FindEnds
CutAnswer = Held | Cuts | NoCut | Noted | CutsOf | EndsAtCut | None
