"""The `range` assignor: each topic's partitions are cut into as many consecutive ranges as it has subscribers.

Members are ordered by instance id, then by member id, so topics with the same subscribers and the same number of
partitions are cut alike: whoever joins two such topics by key finds both sides in one member. The first members of
the order get one partition more if it does not come out even. Source: KIP-848; Kafka's `RangeAssignor`. Pure.
"""

from __future__ import annotations

from fairlog.groups.consumer.assignor import Subscribers, TopicSizes, subscribers_by_topic
from fairlog.groups.consumer.values import Partitions
from fairlog.groups.offset_index import Partition


def assign_ranges(subscribers: Subscribers, sizes: TopicSizes) -> dict[str, Partitions]:
    """See `assignor.Assignor`."""

    def place(member_id: str) -> tuple[bool, str]:
        instance_id = subscribers[member_id].instance_id
        return instance_id is None, instance_id or member_id

    targets: dict[str, list[Partition]] = {member_id: [] for member_id in subscribers}
    for topic, members in subscribers_by_topic(subscribers).items():
        share, more = divmod(sizes[topic], len(members))
        start = 0
        for position, member_id in enumerate(sorted(members, key=place)):
            end = start + share + (position < more)
            targets[member_id].extend((topic, index) for index in range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in targets.items()}
