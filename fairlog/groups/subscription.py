"""The topics in a consumer's metadata, as far as the broker needs to read it.

What members tell their leader is opaque to the broker. Two things need a look inside all the same: whether a group
still consumes a topic whose offsets are to be deleted, and whether a static member came back wanting other topics.
All versions of Kafka's consumer protocol (`ConsumerProtocolSubscription`) begin alike: version int16, then
an int32-counted array of int16-counted names. What follows is not read.

Pure.
"""

from __future__ import annotations

import struct

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")

CONSUMER = "consumer"
"""The protocol type of members whose metadata this is."""


def subscribed_topics_untrusted(metadata: bytes) -> frozenset[str] | None:
    """The names; None if these are not the bytes of a subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        position = _HEAD.size
        names: set[str] = set()
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if length < 0 or position + length > len(metadata):
                return None
            names.add(metadata[position : position + length].decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(names)
