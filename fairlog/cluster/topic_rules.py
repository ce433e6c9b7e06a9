"""Which topics may be created: Kafka's rules for names, so that a tool that works there works here. Pure.

A name is 1 to 249 of the characters a-z A-Z 0-9 . _ - and neither "." nor "..". Two names that differ
only in "." against "_" collide, because metric names turn the one into the other (Kafka's
`org.apache.kafka.common.internals.Topic`, whose 249 leaves room for a partition's number in a file name).
"""

from __future__ import annotations

import re

from fairlog.cluster.interface import InvalidPartitions, InvalidTopic, Topic

NAME_CHARACTERS_MAX = 249
PARTITIONS_MAX = 100_000
"""More in one topic is a slip of the finger; each has a journal with an open file."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_untrusted(name: str, partitions: int) -> None:
    """Raise InvalidTopic, with the reason, unless a topic like this may be made."""
    if not name:
        raise InvalidTopic("a topic's name is not empty")
    if name in (".", ".."):
        raise InvalidTopic(f"a topic cannot be named {name!r}")
    if len(name) > NAME_CHARACTERS_MAX:
        raise InvalidTopic(f"a topic's name has at most {NAME_CHARACTERS_MAX} characters, this one has {len(name)}")
    if not _LEGAL.fullmatch(name):
        raise InvalidTopic(f"the topic name {name!r} has characters other than a-z A-Z 0-9 . _ -")
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidTopic(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")


def check_total_untrusted(topic: Topic, total: int) -> None:
    """Raise InvalidPartitions, with the reason, unless the topic may be given partitions up to `total`."""
    if total <= topic.partitions:
        has = f"{topic.partitions} partition{'s' if topic.partitions != 1 else ''}"
        raise InvalidPartitions(
            f"topic {topic.name} has {has} already; partitions can only be added, and {total} is no more"
        )
    if total > PARTITIONS_MAX:
        raise InvalidPartitions(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {total}")


def folded_name(name: str) -> str:
    """What two colliding names have in common."""
    return name.replace(".", "_")
