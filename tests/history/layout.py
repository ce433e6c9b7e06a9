"""What the workload's clients share: topics, roles, and how a client is told who it is. Pure.

Plain records go into IN, which transformers consume; and, as the writers' transactions, into OUT.
"""

from __future__ import annotations

from enum import Enum

IN, OUT = "in", "out"
TOPICS = {IN: 2, OUT: 3}
"""Partitions of each topic."""
PARTITIONS = tuple((topic, index) for topic, count in TOPICS.items() for index in range(count))
TRANSFORMERS = "transformers"
"""The transformers' consumer group."""

BESIDE = "-beside"
"""Ends the name under which a holder's plain records stand in the history, beside its open transaction."""


class Role(Enum):
    """What a client does all its life."""

    WRITER = "writer"
    HOLDER = "holder"
    PLAIN = "plain"
    TRANSFORMER = "transformer"
    READER = "reader"
    PLAIN_READER = "plain-reader"
    NEAR_READER = "near-reader"
    CUTTER = "cutter"
    COPY_CUTTER = "copy-cutter"
    GOES_ON = "goes-on"
    RESUMER = "resumer"


SLOTS = (
    Role.WRITER,
    Role.WRITER,
    Role.WRITER,
    Role.PLAIN,
    Role.TRANSFORMER,
    Role.TRANSFORMER,
    Role.READER,
    Role.PLAIN_READER,
    Role.CUTTER,
    Role.HOLDER,
    Role.GOES_ON,
    Role.RESUMER,
)
"""The clients of a workload. A slot's client is followed by the next one when it ends, however it does."""
SLOTS_OF_A_CLUSTER = (
    Role.WRITER,
    Role.WRITER,
    Role.WRITER,
    Role.PLAIN,
    Role.TRANSFORMER,
    Role.TRANSFORMER,
    Role.READER,
    Role.NEAR_READER,
    Role.NEAR_READER,
    Role.CUTTER,
    Role.COPY_CUTTER,
    Role.HOLDER,
)
"""The clients of a workload on several nodes: those that find a partition's leader when it is another one, and some
that read from copies.
"""
LANES = 3
"""Transactional ids of a resumer."""


def many(role: Role) -> tuple[Role, ...]:
    """The clients of a workload that is about one role: eight of it, the readers, and the holder."""
    return (*(role for _ in range(8)), Role.READER, Role.PLAIN_READER, Role.CUTTER, Role.HOLDER)


def place(topic: str | None, index: int | None) -> str:
    """The name of a partition in a history."""
    assert topic is not None
    assert index is not None
    return f"{topic}/{index}"


def rack(slot: int) -> str:
    """Where a slot's clients are: in the rack of one of three nodes."""
    return f"rack-{slot % 3 + 1}"


def transactional_id(role: Role, slot: int) -> str:
    """Of a slot's clients: each takes over from the one before."""
    return f"{role.value}-{slot}"


def transactional_ids(role: Role, slot: int) -> list[str]:
    """All ids of a slot's clients. None if the role has no transactions of its own."""
    if role is Role.RESUMER:
        return [f"{transactional_id(role, slot)}-{lane}" for lane in range(LANES)]
    has_one = role in (Role.WRITER, Role.TRANSFORMER, Role.HOLDER, Role.GOES_ON)
    return [transactional_id(role, slot)] if has_one else []
