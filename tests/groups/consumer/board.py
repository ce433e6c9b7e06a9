"""Topics for consumer groups to share, and heartbeats to send."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from fairlog.groups.consumer.values import JOINING, NOTHING, Beat


@dataclass
class Board:
    """Topics by name; implements `topics.Topics`."""

    sizes: dict[str, int] = field(default_factory=dict)
    generation: int = 1
    births: int = 0
    ids: dict[str, str] = field(default_factory=dict)

    def make(self, name, size):
        """Make a topic, anew if there was one, or let it grow."""
        if name not in self.sizes:
            self.births += 1
            self.ids[name] = f"{self.births:032x}"
        self.sizes[name] = size
        self.generation += 1

    def delete(self, name):
        del self.sizes[name]
        self.generation += 1

    def find(self, name):
        return (self.ids[name], self.sizes[name]) if name in self.sizes else None

    def name_of(self, topic):
        return next((name for name in self.sizes if self.ids[name] == topic), None)

    def matching(self, regex):
        return [name for name in self.sizes if re.fullmatch(regex, name)]

    def all(self, *names):
        """The partitions of these topics."""
        return frozenset((self.ids[name], index) for name in names for index in range(self.sizes[name]))


def beat(member_id, epoch, owned=None, **other):
    """A heartbeat that says no more than it must."""
    fields = {
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": None,
        "topic_names": None,
        "topic_regex": None,
        "assignor": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "connection": 1,
    }
    return Beat(member_id, epoch, owned=owned, **{**fields, **other})


def joining(member_id, *names, **other):
    """The first heartbeat of a member."""
    fields = {"rebalance_timeout_ms": 60_000, "topic_names": frozenset(names)}
    return beat(member_id, JOINING, NOTHING, **{**fields, **other})


def array(items: Iterable[bytes]) -> bytes:
    items = list(items)
    return struct.pack(">i", len(items)) + b"".join(items)


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def subscription(*topics, owned=(), version=1):
    """As a client's library writes it."""
    data = struct.pack(">h", version) + array(map(text, topics)) + struct.pack(">i", -1)
    if version >= 1:
        names = sorted({name for name, _ in owned})
        data += array(
            text(name) + array(struct.pack(">i", index) for each, index in sorted(owned) if each == name)
            for name in names
        )
    return data + struct.pack(">i", 7) if version >= 2 else data
