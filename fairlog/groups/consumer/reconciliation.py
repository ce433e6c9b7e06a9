"""One member's way from its current assignment to its target: give up first, then take what is free.

    Stable ──▶ Unrevoked ──▶ Unreleased ──▶ Stable
       │            (each step may be skipped)  ▲
       └────────────────────────────────────────┘

A partition is taken only when no one owns it, and someone owns it until he has said that he gave it up; so no two
members ever read the same partition (that is, none that believe their epoch). A member moves on to the new epoch once
it has given up all that is not in its target.

Source: KIP-848, "Member Reconciliation"; Kafka's `CurrentAssignmentBuilder`. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairlog.groups.consumer.states import MemberState
from fairlog.groups.consumer.values import NOTHING, Member, Partitions
from fairlog.groups.offset_index import Partition


def is_reconciled(member: Member, target_epoch: int) -> bool:
    """Whether the member has reached the target of this epoch."""
    return member.state is MemberState.STABLE and member.epoch == target_epoch


def reconcile(
    member: Member,
    target_epoch: int,
    target: Partitions,
    said_owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> Member:
    """The member, one step nearer to its target; the same one if it cannot take a step.

    `said_owned` is what the member says that it owns, None if it does not say. `is_free` tells whether no one owns a
    partition.
    """
    if is_reconciled(member, target_epoch):
        return member
    if member.state is MemberState.UNREVOKED and _holds_on(member.revoking, said_owned):
        return member
    assigned = member.assigned & target
    revoking = member.assigned - target
    if revoking and _holds_on(revoking, said_owned):
        return _moved(member, member.epoch, MemberState.UNREVOKED, assigned, revoking)
    missing = target - assigned
    # What it gives up in this very step is its own no more, but nothing of that is in its target.
    free = frozenset(partition for partition in missing if is_free(partition))
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED
    return _moved(member, target_epoch, state, assigned | free, NOTHING)


def _holds_on(revoking: Partitions, said_owned: Partitions | None) -> bool:
    return said_owned is None or bool(revoking & said_owned)


def _moved(member: Member, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions) -> Member:
    if (epoch, state, assigned, revoking) == (member.epoch, member.state, member.assigned, member.revoking):
        return member
    previous = member.previous_epoch if epoch == member.epoch else member.epoch
    return replace(member, epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)
