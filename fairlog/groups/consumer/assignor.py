"""What a server-side assignor is: from subscriptions to a target assignment. Pure.

An assignor must give each partition of a subscribed topic to exactly one of its subscribers, and nothing else to
anyone. The same input gives the same output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fairlog.groups.consumer.values import Partitions


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, as far as an assignor looks at it."""

    instance_id: str | None
    topics: frozenset[str]
    """Ids in hex; all of them exist."""
    target: Partitions
    """What the target assignment has given it so far. No two members have the same partition."""


Subscribers = Mapping[str, Subscriber]
"""By member id."""

TopicSizes = Mapping[str, int]
"""How many partitions each topic has, by its id in hex."""

Assignor = Callable[[Subscribers, TopicSizes], dict[str, Partitions]]
"""Answers the target of each member, by member id."""


def subscribers_by_topic(subscribers: Subscribers) -> dict[str, list[str]]:
    """The ids of the members that subscribe to each topic, sorted. Topics without any are left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for member_id in sorted(subscribers):
        for topic in subscribers[member_id].topics:
            found[topic].append(member_id)
    return dict(found)
