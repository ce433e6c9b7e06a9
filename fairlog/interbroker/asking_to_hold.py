"""A tool of the data directory has the running node's shards hold: the other end of `serving_tools`. Blocking.

The tool reads the directory's secret and, in the cluster store, where the process of the TAKER listens for other
processes. It is answered on the connection that it opens; closing that ends a hold.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager

from fairlog.edge.malformed import Malformed
from fairlog.interbroker.codec import decode_untrusted, encode
from fairlog.interbroker.handshake import NONCE_BYTES, TOOL, Connecting, Identity, Refused
from fairlog.interbroker.sealing import TAG_BYTES, Opener, Sealer
from shard.conversation import Command, Reply
from shard.cut_messages import Held, Hold, NoCut, Release
from shard.cutting import TAKER

_WAIT_S = 60.0
"""For one answer. A hold may have to wait for cuts that others take, and for what was answered to be copied."""

_REPLY_BYTES_MAX = 1 << 16
"""A reason may name a file."""

_LENGTH = struct.Struct(">I")


class CannotHold(Exception):
    """The shards cannot hold now, or nobody can be asked: a process may be starting again. The message says why."""


class HoldingNode:
    """A running node, as far as it holds; made by `connected`."""

    def __init__(self, connection: socket.socket, session_key: bytes, answer_key: bytes) -> None:
        self._connection = connection
        self._sealer = Sealer(session_key)
        self._opener = Opener(answer_key)
        self._commands = 0
        self._hold = 0

    def hold(self) -> bool:
        """Have all coordinators hold: whether they do, once what was answered before can be read in every shard.

        Raises CannotHold.
        """
        self._hold += 1
        return self._ask(Hold(self._hold))

    def release(self) -> bool:
        """Let them go on: whether they have held until now. Raises CannotHold."""
        return self._ask(Release(self._hold))

    def _ask(self, body: Hold | Release) -> bool:
        self._commands += 1
        try:
            self._connection.sendall(self._sealer.seal(encode(Command(0, 0, self._commands, self._commands - 1, body))))
            (length,) = _LENGTH.unpack(_received(self._connection, _LENGTH.size))
            # Of one that is longer the code is wrong.
            frame = _received(self._connection, min(length, TAG_BYTES + _REPLY_BYTES_MAX))
            reply = decode_untrusted(self._opener.open_untrusted(frame))
        except (OSError, Malformed) as error:
            raise CannotHold(_unreachable(error)) from error
        match reply:
            case Reply(body=Held(is_held)):
                return is_held
            case Reply(body=NoCut(reason)):
                raise CannotHold(reason)
            case _:
                raise CannotHold(f"shard {TAKER} gives an answer that is none")


@contextmanager
def connected(address: tuple[str, int], cluster_id: str, secret: bytes) -> Generator[HoldingNode]:
    """A connection to the TAKER's process at `address`. Raises CannotHold."""
    try:
        connection = socket.create_connection(address, timeout=_WAIT_S)
    except OSError as error:
        raise CannotHold(_unreachable(error)) from error
    with connection:
        handshake = Connecting(Identity(TOOL, cluster_id, secret), TAKER, secrets.token_bytes(NONCE_BYTES))
        try:
            connection.sendall(handshake.begin())
            while handshake.expects:
                connection.sendall(handshake.hear(_received(connection, handshake.expects)))
        except OSError as error:
            raise CannotHold(_unreachable(error)) from error
        except Refused as refused:
            raise CannotHold(str(refused)) from refused
        assert handshake.session_key is not None
        assert handshake.answer_key is not None
        yield HoldingNode(connection, handshake.session_key, handshake.answer_key)


def _received(connection: socket.socket, size: int) -> bytes:
    """Raises OSError, also at an early end."""
    received = b""
    while len(received) < size:
        more = connection.recv(size - len(received))
        if not more:
            raise ConnectionResetError("it has closed the connection")
        received += more
    return received


def _unreachable(error: Exception) -> str:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"shard {TAKER} cannot be reached: {reason}"
