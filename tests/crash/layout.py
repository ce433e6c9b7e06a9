"""Which topics the load writes to: its partitions are numbered through, whatever topic and mode each is of.

A run over one mode has one topic; a mixed one has one of each, and transactions that touch both. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.clients.modes import Mode


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of the load."""

    run: str
    """Names the topics. Of this run only: a client that a failed run left behind must not find another run's."""
    modes: tuple[Mode, ...]
    """Of each of the load's partitions."""

    @property
    def partitions(self) -> int:
        return len(self.modes)

    @property
    def marked(self) -> frozenset[int]:
        """The partitions of marker mode: there readers of committed records wait for transactions that are open."""
        return frozenset(partition for partition, mode in enumerate(self.modes) if mode is Mode.MARKERS)

    def topics(self) -> Mapping[str, Mode]:
        """All topics by name."""
        return {self._topic(mode): mode for mode in self.modes}

    def partitions_of(self, topic: str) -> tuple[int, ...]:
        """The load's partitions in a topic, in the topic's order."""
        return tuple(partition for partition, mode in enumerate(self.modes) if self._topic(mode) == topic)

    def place(self, partition: int) -> tuple[str, int]:
        """A partition as clients call it: topic and number."""
        topic = self._topic(self.modes[partition])
        return topic, self.partitions_of(topic).index(partition)

    def _topic(self, mode: Mode) -> str:
        return f"{self.run}-{mode.value}"
