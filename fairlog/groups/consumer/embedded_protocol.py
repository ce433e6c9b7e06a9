"""What members of the classic protocol say to each other through the broker, as far as a consumer group reads it.

Kafka's `ConsumerProtocolSubscription` (in JoinGroup) and `ConsumerProtocolAssignment` (in SyncGroup), versions 0 to 3.
A newer version begins with the same fields. Layouts: the message definitions of these names in Kafka.

    subscription   version int16, topics, user data, (1) owned partitions, (2) generation int32, (3) rack
    assignment     version int16, assigned partitions, user data

Arrays are counted by int32, texts by int16, bytes by int32 with -1 for none. Pure.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fairlog.groups.subscription import subscribed_topics_untrusted

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

VERSION_MAX = 3

NamedPartition = tuple[str, int]
"""Topic name and index."""


class NotEmbedded(ValueError):
    """These are not the bytes of a subscription, or of an assignment."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants, and what it has."""

    version: int
    topics: frozenset[str]
    owned: frozenset[NamedPartition]
    """Nothing before version 1: such members give up all before they join."""


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, shape: struct.Struct) -> int:
        (value,) = shape.unpack_from(self._data, self._position)
        self._position += shape.size
        return int(value)

    def skip_bytes(self) -> None:
        self._take(max(self.number(_INT32), 0))

    def text(self) -> str:
        return self._take(self.number(_INT16)).decode()

    def partitions(self) -> Iterable[NamedPartition]:
        for _ in range(self.number(_INT32)):
            name = self.text()
            for _ in range(self.number(_INT32)):
                yield name, self.number(_INT32)

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise NotEmbedded(f"{length} bytes are not there")
        return self._data[start : self._position]


def decode_subscription_untrusted(data: bytes) -> Subscription:
    """Raises NotEmbedded."""
    topics = subscribed_topics_untrusted(data)
    if topics is None:
        raise NotEmbedded("not a subscription")
    cursor = _Cursor(data)
    try:
        version = cursor.number(_INT16)
        for _ in range(cursor.number(_INT32)):
            cursor.text()
        cursor.skip_bytes()
        owned = frozenset(cursor.partitions()) if version >= 1 else frozenset[NamedPartition]()
    except (struct.error, UnicodeDecodeError) as error:
        raise NotEmbedded(str(error)) from error
    return Subscription(version, topics, owned)


def decode_assignment_untrusted(data: bytes) -> frozenset[NamedPartition]:
    """Of no bytes at all: nothing. Raises NotEmbedded."""
    if not data:
        return frozenset()
    cursor = _Cursor(data)
    try:
        if cursor.number(_INT16) < 0:
            raise NotEmbedded("the version is negative")
        return frozenset(cursor.partitions())
    except (struct.error, UnicodeDecodeError) as error:
        raise NotEmbedded(str(error)) from error


def encode_assignment(partitions: Iterable[NamedPartition], version: int) -> bytes:
    """In the member's version, which is not negative."""
    topics: defaultdict[str, list[int]] = defaultdict(list)
    for name, index in sorted(partitions):
        topics[name].append(index)
    parts = [_INT16.pack(min(version, VERSION_MAX)), _INT32.pack(len(topics))]
    for name, indexes in topics.items():
        text = name.encode()
        parts += [_INT16.pack(len(text)), text, _INT32.pack(len(indexes)), *map(_INT32.pack, indexes)]
    return b"".join([*parts, _INT32.pack(-1)])
