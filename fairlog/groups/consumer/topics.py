"""The topics of the cluster, as consumer groups look at them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """The topics that there are now."""

    @property
    def generation(self) -> int:
        """Grows with every change that could make another answer differ."""
        ...

    def find(self, name: str) -> tuple[str, int] | None:
        """Id (in hex) and number of partitions; None if there is no such topic."""
        ...

    def name_of(self, topic: str) -> str | None:
        """The name of the topic with this id (in hex); None if there is none."""
        ...

    def matching(self, regex: str) -> Iterable[str]:
        """The names of all topics that match as a whole; the pattern was accepted before."""
        ...
