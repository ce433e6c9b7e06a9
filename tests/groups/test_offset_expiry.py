"""When a committed offset has had its time: the whole table."""

from __future__ import annotations

import pytest

from fairlog.groups.offset_expiry import GroupUse, is_expired

MEMBERS, NOBODY = True, False
KEPT_FOR = 100


@pytest.mark.parametrize(
    ("has_members", "subscribed", "empty_since_ms", "committed_ms", "expires_ms"),
    [
        (NOBODY, frozenset(), 0, 1_000, 1_100),
        (NOBODY, frozenset(), 1_050, 1_000, 1_150),
        (MEMBERS, frozenset({"t"}), 0, 1_000, None),
        (MEMBERS, frozenset({"t", "u"}), 0, 1_000, None),
        (MEMBERS, frozenset({"u"}), 0, 1_000, 1_100),
        (MEMBERS, frozenset({"u"}), 1_050, 1_000, 1_100),
        (MEMBERS, frozenset(), 0, 1_000, 1_100),
        (MEMBERS, None, 0, 1_000, None),
    ],
    ids=[
        "committed by who is no member",
        "the last member left after the commit",
        "consumed",
        "consumed with others",
        "consumed no more",
        "consumed no more, and when the group was empty does not matter",
        "members that consume nothing",
        "nobody can tell what the members consume",
    ],
)
def test_offset_is_kept_for_its_time_to_the_millisecond(
    has_members: bool,
    subscribed: frozenset[str] | None,
    empty_since_ms: int,
    committed_ms: int,
    expires_ms: int | None,
) -> None:
    """KIP-211's rules, with the moment before and the moment of each end."""
    use = GroupUse(has_members, subscribed, empty_since_ms)
    end = expires_ms or 10**15
    assert not is_expired("t", committed_ms, use, retention_ms=KEPT_FOR, now_ms=end - 1)
    assert is_expired("t", committed_ms, use, retention_ms=KEPT_FOR, now_ms=end) == (expires_ms is not None)
