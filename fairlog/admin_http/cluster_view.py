"""What the admin listener shows and changes of a cluster of several machines; `fairlog.cluster_node` fills it. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol


class Status(Protocol):
    """`fairlog.cluster_node.status.ClusterStatus` is one: a dataclass."""

    @property
    def own_roles(self) -> Mapping[int, str]: ...

    @property
    def engine_answers(self) -> bool: ...


class MoveOutcome(Enum):
    """What has come of the question that another node should own a shard."""

    ASKED = "asked"
    """Whoever plans knows it."""
    UNKNOWN = "unknown"
    """There is no such shard, or no such node."""
    DOWN = "down"
    """The node is not up."""
    ENGINE_AWAY = "engine_away"
    """Nothing was changed."""
    NOT_KNOWN = "not_known"
    """The engine has not said whether it was changed."""


class MoveAnswer(NamedTuple):
    outcome: MoveOutcome
    message: str
    """A sentence for people."""


Look = Callable[[], Status | None]
"""The cluster as it is now; None while the node does not know it yet."""
Metrics = Callable[[Any, str], tuple[bytes, str]]
"""A page of metrics for a scraper's Accept header, and its content type. Blocks."""
Move = Callable[[int, int | None], Awaitable[MoveAnswer]]
"""Ask that a node owns a shard; no node: that whoever plans is free again. The cluster is known."""
