"""Where a group stands in its partitions, and where it would stand after a reset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from fairlog.cli.brokers import Brokers
from fairlog.cli.groups_admin import Committed, Group, Member, Place
from fairlog.cli.topics_admin import describe_topic, leaders_of, offsets_at, partition_count


class TargetKind(Enum):
    """What a reset goes by."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to reset to."""

    kind: TargetKind
    number: int = 0
    """The offset, or Unix time in ms."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a group stands in one partition."""

    topic: str
    partition: int
    committed: int | None
    """None if the group has committed nothing there."""
    end: int | None
    """The partition's end; None if there is no such partition any more, or its leader does not answer."""
    lag: int | None
    """How many records are yet to be read."""
    client_id: str | None
    """Who reads it now, if anybody."""
    member_id: str | None
    metadata: str | None
    """What was committed along with the offset."""


def standings(brokers: Brokers, group: Group | None, committed: Mapping[Place, Committed]) -> Sequence[Standing]:
    """Every partition that the group has an offset for, or that a member of it reads, in order."""
    owners: dict[Place, Member] = {}
    if group is not None:
        owners = {place: member for member in group.members for place in member.partitions}
    places = sorted(committed.keys() | owners.keys())
    ends = offsets_of(brokers, places, Target(TargetKind.LATEST))
    return [_standing(place, committed.get(place), ends.get(place), owners.get(place)) for place in places]


def offsets_of(brokers: Brokers, places: Collection[Place], target: Target) -> Mapping[Place, int]:
    """Where `target` is in each partition, in order.

    Without partitions that do not exist, and those whose leader does not answer.
    """
    found: dict[Place, int] = {}
    for topic in sorted({topic for topic, _ in places}):
        if partition_count(brokers, topic) is None:
            continue
        described = describe_topic(brokers, topic)
        held = {each.partition: each.offsets for each in described if each.offsets is not None}
        timed: Mapping[int, int] = {}
        if target.kind is TargetKind.TIMESTAMP:
            timed = offsets_at(brokers, topic, leaders_of(described), target.number)
            held = {partition: offsets for partition, offsets in held.items() if partition in timed}
        for partition in sorted(partition for of_topic, partition in places if of_topic == topic and partition in held):
            start, end = held[partition].start, held[partition].end
            match target.kind:
                case TargetKind.EARLIEST:
                    offset = start
                case TargetKind.LATEST:
                    offset = end
                case TargetKind.OFFSET:
                    offset = min(max(target.number, start), end)
                case TargetKind.TIMESTAMP:
                    offset = timed[partition] if timed[partition] >= 0 else end  # no record is as late as that
            found[topic, partition] = offset
    return found


def _standing(place: Place, committed: Committed | None, end: int | None, owner: Member | None) -> Standing:
    return Standing(
        *place,
        committed=None if committed is None else committed.offset,
        end=end,
        lag=None if committed is None or end is None else max(0, end - committed.offset),
        client_id=None if owner is None else owner.client_id,
        member_id=None if owner is None else owner.member_id,
        metadata=None if committed is None else committed.metadata,
    )
