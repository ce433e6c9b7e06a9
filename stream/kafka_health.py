"""How the engine on Kafka is doing: what it answered last, since when, and counts. For metrics; on the loop."""

from __future__ import annotations

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True)
class KafkaHealth:
    """The engine at one moment."""

    answers: bool
    """Whether the last thing heard of it was an answer; True before anything was heard."""
    since: float
    """Since when that is so, by `trio.current_time`."""
    said: str
    """What was wrong; empty if it answers."""
    appends: int
    """Appends that were answered with a position."""
    bytes: int
    """The size of their entries."""
    unknown: int
    """Appends whose outcome is unknown."""


class HealthWatch:
    """Keeps it up to date."""

    def __init__(self) -> None:
        self._said = ""
        self._since = trio.current_time()
        self._appends = self._bytes = self._unknown = 0

    def appended(self, size: int) -> None:
        self._appends += 1
        self._bytes += size
        self.answered()

    def unknown(self, reason: str) -> None:
        self._unknown += 1
        self.away(reason)

    def answered(self) -> None:
        """Anything that only an engine that is there can say."""
        if self._said:
            self._said, self._since = "", trio.current_time()

    def away(self, said: str) -> None:
        """It did not answer, or refused."""
        if not self._said:
            self._since = trio.current_time()
        self._said = said

    def snapshot(self) -> KafkaHealth:
        return KafkaHealth(not self._said, self._since, self._said, self._appends, self._bytes, self._unknown)
