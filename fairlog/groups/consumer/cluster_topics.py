"""The cluster store's topics as consumer groups look at them, with the patterns that they subscribe by.

A pattern that was not seen before is matched against all names in a worker thread (`prepare`), since fifty thousand
take 0.3 s; after that only new names are matched, on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol
from uuid import UUID

import trio

from fairlog.cluster.interface import Topic
from fairlog.groups.consumer.patterns import Patterns


class Cluster(Protocol):
    """What is needed of the cluster store."""

    @property
    def generation(self) -> int: ...

    def topics(self) -> Sequence[Topic]: ...

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...


class ClusterTopics:
    """Implements `topics.Topics`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._patterns = Patterns()
        self._looking = trio.CapacityLimiter(1)
        """A pattern may take long to be looked at, and Fetch shall find threads free."""
        self._names: frozenset[str] = frozenset()
        self._names_generation: int | None = None

    @property
    def generation(self) -> int:
        return self._cluster.generation

    def find(self, name: str) -> tuple[str, int] | None:
        topic = self._cluster.topic(name)
        return None if topic is None else (topic.topic_id.hex, topic.partitions)

    def name_of(self, topic: str) -> str | None:
        found = self._cluster.topic_by_id(UUID(hex=topic))
        return None if found is None else found.name

    def matching(self, regex: str) -> Iterable[str]:
        return self._patterns.matching(regex, self._all_names())

    async def prepare(self, regex: str) -> None:
        """Let `matching` be quick for this pattern. Raises BadPattern if it is not one."""
        if self._patterns.accept_untrusted(regex):
            names = self._all_names()
            matched = await trio.to_thread.run_sync(self._patterns.look_at, regex, names, limiter=self._looking)
            self._patterns.note(regex, matched, names)

    def _all_names(self) -> frozenset[str]:
        if self._names_generation != self._cluster.generation:
            self._names_generation = self._cluster.generation
            self._names = frozenset(topic.name for topic in self._cluster.topics())
        return self._names
