"""An owner of a shard, as it is asked for ends of its logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coordinator.service import Coordinator
from shard.links import Confirm
from shard.partitions import Partitions


@dataclass(frozen=True)
class AskedOwner:
    """Implements `shard.ends.Leads`. With `confirm` another process may own the shard."""

    partitions: Partitions
    coordinator: Coordinator
    confirm: Confirm | None = None
    appends_wait: Callable[[], bool] = lambda: False
