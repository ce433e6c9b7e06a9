"""What bounds groups and their members, as numbers; `fairlog.config` says what each is for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The keys of `[groups]` that the machine goes by."""

    initial_rebalance_delay_ms: int = 200
    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    members_max: int = 1_000
    """Of one group, with those who are about to join."""
