"""When a committed offset has had its time: Kafka's rules (KIP-211). Pure.

| the group | an offset is kept for the retention time after |
|---|---|
| has members that consume the topic, or nobody can tell what they consume | (it is kept) |
| has members, of which none consumes the topic | its commit |
| has no members | its commit, or the moment when the last member left, whichever is later |

When the last member left is in memory. So of a group without members the start of the run counts as that moment: it
has the whole retention time to come back. (Kafka keeps that moment on disk.)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How a group is used now."""

    has_members: bool
    subscribed: frozenset[str] | None
    """Topic names that members consume; None if that cannot be told."""
    empty_since_ms: int
    """When the last member left, at the earliest the start of the run. Only for a group without members."""


def is_expired(topic: str, commit_timestamp_ms: int, use: GroupUse, *, retention_ms: int, now_ms: int) -> bool:
    """Whether an offset in a partition of `topic`, committed at that time, may be forgotten now."""
    if not use.has_members:
        return now_ms - max(commit_timestamp_ms, use.empty_since_ms) >= retention_ms
    if use.subscribed is None or topic in use.subscribed:
        return False
    return now_ms - commit_timestamp_ms >= retention_ms
