"""Detects that a client has gone while its connection is not being read.

Only reading shows the end of a stream. A connection that carries a request out, or whose queue of answers is full, does
not read: it would have to keep the bytes after the request. So it asks the system from time to time.
"""

from __future__ import annotations

import select

import trio

from fairlog.security.tls_stream import TlsStream

HANG_UP_CHECK_S = 1.0
"""Between two questions to the system."""


def peer_socket(stream: trio.abc.Stream) -> trio.socket.SocketType | None:
    """The socket below a stream, for `has_hung_up`: also that of TLS, whose bytes only TLS may read and write.

    A client that closes TLS closes its socket as well. None if the stream has no socket.
    """
    below: object = stream
    if isinstance(below, TlsStream):
        below = below.transport_stream
    return below.socket if isinstance(below, trio.SocketStream) else None


def has_hung_up(peer: trio.socket.SocketType) -> bool:
    """Whether the peer sends no more, or cannot be reached: known to the system though there is unread data."""
    poll = select.poll()
    poll.register(peer.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
