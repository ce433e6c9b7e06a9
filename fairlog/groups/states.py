"""The states of a group (the table follows in this module)."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Where a group stands. The value is Kafka's word for it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
