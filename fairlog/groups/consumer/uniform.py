"""The `uniform` assignor: as even as the subscriptions allow, and as few moves as that takes.

Three steps:

1. Everyone keeps what it has of topics that it still subscribes to.
2. What is left goes to the subscriber that has least, topics with few subscribers first.
3. While a member has at least two partitions more than another subscriber of one of their topics, one moves.

Step 3 looks at *classes*: topics with the same subscribers. If all members subscribe to the same topics, which is the
usual case, there is one class, and all loads differ by at most 1 in the end. Otherwise no single move can make
the assignment more even. Each move makes the sum of the squares of the loads smaller, so it ends.

Source: KIP-848; Kafka's `UniformAssignor` promises the same and goes another way. Pure.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlog.groups.consumer.assignor import Subscribers, TopicSizes, subscribers_by_topic
from fairlog.groups.consumer.values import Partitions
from fairlog.groups.offset_index import Partition


@dataclass(slots=True)
class _Class:
    """Topics with the same subscribers, and who has which of their partitions."""

    members: tuple[str, ...]
    has: dict[str, list[Partition]] = field(default_factory=dict[str, list[Partition]])
    """By member; sorted, so that the last ones move first."""
    free: list[Partition] = field(default_factory=list[Partition])


def assign_uniformly(subscribers: Subscribers, sizes: TopicSizes) -> dict[str, Partitions]:
    """See `assignor.Assignor`."""
    classes = _keep(subscribers, sizes)
    loads = dict.fromkeys(subscribers, 0)
    for each in classes:
        for member_id, partitions in each.has.items():
            loads[member_id] += len(partitions)
    for each in classes:
        _fill(each, loads)
    while sum(_balance(each, loads) for each in classes):
        pass
    targets: dict[str, list[Partition]] = {member_id: [] for member_id in subscribers}
    for each in classes:
        for member_id, partitions in each.has.items():
            targets[member_id] += partitions
    return {member_id: frozenset(partitions) for member_id, partitions in targets.items()}


def _keep(subscribers: Subscribers, sizes: TopicSizes) -> Sequence[_Class]:
    """The classes, those with few subscribers first; with what each member keeps, and what is free."""
    by_members: dict[tuple[str, ...], _Class] = {}
    class_of: dict[str, _Class] = {}
    topics = subscribers_by_topic(subscribers)
    for topic in sorted(topics):
        members = tuple(topics[topic])
        class_of[topic] = by_members.setdefault(members, _Class(members, {member_id: [] for member_id in members}))
    taken: defaultdict[str, set[int]] = defaultdict(set)
    for member_id, subscriber in subscribers.items():
        for topic, index in sorted(subscriber.target):
            if topic in subscriber.topics and index < sizes[topic]:
                class_of[topic].has[member_id].append((topic, index))
                taken[topic].add(index)
    for topic, its_class in class_of.items():
        its_class.free += [(topic, index) for index in range(sizes[topic]) if index not in taken[topic]]
    return sorted(by_members.values(), key=lambda each: (len(each.members), each.members))


def _fill(its_class: _Class, loads: dict[str, int]) -> None:
    """Give what is free to those that have least."""
    heap = [(loads[member_id], member_id) for member_id in its_class.members]
    heapq.heapify(heap)
    for partition in its_class.free:
        load, member_id = heap[0]
        its_class.has[member_id].append(partition)
        loads[member_id] = load + 1
        heapq.heapreplace(heap, (load + 1, member_id))


def _balance(its_class: _Class, loads: dict[str, int]) -> bool:
    """Move partitions of this class from those that have most to those that have least; whether any moved."""
    takers = [(loads[member_id], member_id) for member_id in its_class.members]
    givers = [(-loads[member_id], member_id) for member_id in its_class.members if its_class.has[member_id]]
    heapq.heapify(takers)
    heapq.heapify(givers)
    moved = False
    while givers:
        load, taker = takers[0]
        if load != loads[taker]:  # it has given since it was put here
            heapq.heapreplace(takers, (loads[taker], taker))
            continue
        most, giver = givers[0]
        if -most - load < 2:
            break
        its_class.has[taker].append(its_class.has[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
        heapq.heapreplace(takers, (load + 1, taker))
        if its_class.has[giver]:
            heapq.heapreplace(givers, (-loads[giver], giver))
        else:
            heapq.heappop(givers)
        moved = True
    return moved
