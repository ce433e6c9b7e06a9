"""Membership of a node that coordinates no members: every group is empty, and everybody may commit.

It stands where `Membership` is wanted until there are members (`fairlog/node.py`), and in tests of offsets alone.
"""

from __future__ import annotations

from collections.abc import Collection

from fairlog.groups.interface import GroupDescription, GroupRefusal


class NoMembers:
    """A `Membership` without members."""

    def may_commit(
        self,
        group: str,  # noqa: ARG002
        member_id: str,  # noqa: ARG002
        instance_id: str | None,  # noqa: ARG002
        generation: int,  # noqa: ARG002
        *,
        transactional: bool,  # noqa: ARG002
    ) -> GroupRefusal | None:
        return None

    def is_empty(self, group: str) -> bool:  # noqa: ARG002
        return True

    def empty_since_ms(self, group: str) -> int | None:  # noqa: ARG002
        return None

    def subscribed(self, group: str) -> frozenset[str] | None:  # noqa: ARG002
        return frozenset()

    def known(self) -> Collection[str]:
        return ()

    def describe(self, group: str) -> GroupDescription | None:  # noqa: ARG002
        return None
