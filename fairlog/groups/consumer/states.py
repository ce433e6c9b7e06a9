"""The states of a consumer group and of its members (KIP-848). Pure.

Unlike a classic group's, a group's state moves nothing: it is read off its epochs and its members.

    Empty ──▶ Assigning ──▶ Reconciling ──▶ Stable
                  ▲              │             │
                  └──────────────┴─────────────┘  something changes: the group epoch grows
"""

from __future__ import annotations

from enum import Enum


class ConsumerGroupState(Enum):
    """Where a group stands. The value is Kafka's word for it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """Something has changed, and the target assignment does not know of it yet."""
    RECONCILING = "Reconciling"
    """Some member has not reached the target assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(Enum):
    """How far a member is on its way to the target. The value is that of the format of kept groups."""

    STABLE = 0
    UNREVOKED = 1
    """It was told to give up partitions, and has not said that it did."""
    UNRELEASED = 2
    """It has all of its target but what other members have yet to give up."""
