"""What bounds consumer groups and their members, as numbers; `fairlog.config` says what each is for. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConsumerGroupSettings:
    """The keys of `[groups]` that the machine goes by."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = 1_000
    classic_session_timeout_min_ms: int = 6_000
    classic_session_timeout_max_ms: int = 1_800_000
    """What a member of the classic protocol may ask for."""
