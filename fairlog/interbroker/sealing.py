"""What makes a frame one of this connection's, in its place: a code over its number and its body. Pure.

    tag = the first 16 bytes of HMAC-SHA256(session key, number of the frame from 0 on, 8 bytes | body)

The session key is known to the two sides of one connection (`handshake`). So nobody else can put a frame in, and none
can be changed, left out, doubled or moved. It costs 2 to 4 µs a frame on each side, and some 10 ms a frame of 16 MiB.
"""

from __future__ import annotations

import hmac
import struct

from fairlog.edge.malformed import Malformed

TAG_BYTES = 16
"""Half of SHA-256's, as RFC 2104 (section 5) allows."""

_NUMBER = struct.Struct(">Q")
_LENGTH = struct.Struct(">I")


class Sealer:
    """The sender's side of a connection."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._frames = 0

    def seal(self, body: bytes) -> bytes:
        """The next frame, with its length. What is sealed must be sent, and in this order."""
        tag = _tag(self._key, self._frames, body)
        self._frames += 1
        return _LENGTH.pack(TAG_BYTES + len(body)) + tag + body


class Opener:
    """The receiver's side of a connection."""

    def __init__(self, session_key: bytes) -> None:
        self._key = session_key
        self._frames = 0

    def open_untrusted(self, frame: bytes) -> bytes:
        """The body of the next frame, which comes without its length. Raises Malformed; then nothing more is opened."""
        tag, body = frame[:TAG_BYTES], frame[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._frames, body)):
            raise Malformed(f"the frame {self._frames} is not what was sent on this connection in this place")
        self._frames += 1
        return body


def _tag(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, _NUMBER.pack(number) + body, "sha256")[:TAG_BYTES]
