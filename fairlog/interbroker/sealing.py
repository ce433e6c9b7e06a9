"""What makes a frame one of this connection's, in its place: a code over its number and its messages. Pure.

    frame = length of the rest | tag | length, message | length, message | …
    tag   = the first 16 bytes of HMAC-SHA256(session key, number of the frame from 0 on, 8 bytes | all behind the tag)

The session key is known to the two sides of one connection (`handshake`). So nobody else can put a frame in, and none
can be changed, left out, doubled or moved. It costs 2 to 4 µs a frame on each side, and some 10 ms a frame of 16 MiB.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Sequence

from fairlog.edge.malformed import Malformed

TAG_BYTES = 16
"""Half of SHA-256's, as RFC 2104 (section 5) allows."""

LENGTH_BYTES = 4
"""Of a frame, and of each message in it."""

_NUMBER = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")


class Sealer:
    """The sender's side of a connection."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._frames = 0

    def seal(self, messages: Sequence[bytes]) -> bytes:
        """The next frame, with its length. What is sealed must be sent, and in this order."""
        body = b"".join([part for message in messages for part in (_LENGTH.pack(len(message)), message)])
        tag = _tag(self._key, self._frames, body)
        self._frames += 1
        return _LENGTH.pack(TAG_BYTES + len(body)) + tag + body


class Opener:
    """The receiver's side of a connection."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._frames = 0

    def open_untrusted(self, frame: bytes) -> Sequence[bytes]:
        """The messages of the next frame, which comes without its length; at least one.

        Raises Malformed; then nothing more is opened.
        """
        tag, body = frame[:TAG_BYTES], frame[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._frames, body)):
            raise Malformed(f"the frame {self._frames} is not what was sent on this connection in this place")
        self._frames += 1
        return _messages_untrusted(body)


def _messages_untrusted(body: bytes) -> Sequence[bytes]:
    messages: list[bytes] = []
    at = 0
    while not messages or at < len(body):
        begin = at + LENGTH_BYTES
        at = begin + int.from_bytes(body[at:begin], "big")
        if max(begin, at) > len(body):
            raise Malformed("a frame that ends within a message")
        messages.append(body[begin:at])
    return messages


def _tag(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + body, "sha256")[:TAG_BYTES]
