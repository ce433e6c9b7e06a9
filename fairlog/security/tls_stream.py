"""TLS inside a connection: `ssl`'s state machine over a socket, which decrypts in one step all that has come.

    socket ──bytes──▶ incoming ──SSLObject──▶ what the peer says
    socket ◀──bytes── outgoing ◀──SSLObject── what is said to it

librdkafka makes a record of TLS of each piece of a request, so a request of 1 MB comes in 500 of them, and trio's
SSLStream takes a turn of the event loop for each. Here `receive_into` reads records until none is complete, or the
buffer is full: a produced GB costs 4 s of CPU instead of 15 (docs/decisions/0084-tls-stream.md).

A peer may close the connection without TLS's own goodbye, as most clients do: that is the end of the stream. Frames
and HTTP say by themselves where they end. What goes out does so under a lock, whole records one after the other: also
reading may have something to say, such as a new key.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

_REFILL_BYTES = 128 << 10
"""At most so much is read from the socket at a time."""
_READ_BYTES = 16 << 10
"""The most that a record of TLS has in it (RFC 8446, 5.1)."""
ENCRYPTED_BYTES = 128 << 10
"""So much is encrypted at a time: it is held twice until the peer has read it, for a thousand connections 128 MiB."""


class TlsStream(trio.abc.Stream):
    """One task may receive while another one sends. `do_handshake` comes first."""

    def __init__(
        self,
        transport_stream: trio.SocketStream,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
    ) -> None:
        """`server_hostname` is how a client knows the server, if `context` checks that."""
        self.transport_stream = transport_stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._tickets = b""
        """For resuming the handshake: what a server says first of all, when it has something else to say."""
        self._sending = trio.Lock()
        self._is_broken = False

    @property
    def certificate(self) -> bytes | None:
        """The peer's, in DER; None if it has shown none."""
        return self._tls.getpeercert(binary_form=True)

    def unsent(self) -> bytes:
        """What TLS still has to say after a handshake that has failed: an alert. Once."""
        return self._outgoing.read()

    async def do_handshake(self) -> None:
        """Raises trio.BrokenResourceError, whose cause is an ssl.SSLError if the handshake has failed."""
        while not self._is_through(self._tls.do_handshake):
            await self._send_outgoing()
            await self._refill()
        if self._tls.server_side and self._tls.version() == "TLSv1.3":
            # Whoever closes without having read them resets the connection, and what it has sent could be lost.
            self._tickets = self._outgoing.read()
        await self._send_outgoing()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come, at most so many bytes; empty at the end. Raises trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint_if_cancelled()
        most = _REFILL_BYTES if max_bytes is None else max_bytes
        while True:
            parts, left, is_end = list[bytes](), most, False
            while left and not is_end and (part := self._read(min(left, _READ_BYTES))) is not None:
                parts.append(part)
                left -= len(part)
                is_end = not part
            if parts:
                return parts[0] if len(parts) == 1 else b"".join(parts)
            await self._wait_for_more()

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the buffer, which is not empty, with what has come; how many bytes that is, 0 at the end.

        Raises trio.BrokenResourceError.
        """
        await trio.lowlevel.checkpoint()  # what has come may be enough for a long time
        while True:
            filled, is_end = 0, False
            while filled < len(buffer) and not is_end and (count := self._read_into(buffer[filled:])) is not None:
                filled += count
                is_end = not count
            if filled or is_end:
                return filled
            await self._wait_for_more()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream.send_all`. Tasks may do it at the same time. Raises trio.BrokenResourceError."""
        view = memoryview(data)
        for start in range(0, len(view), ENCRYPTED_BYTES):
            await self._send_outgoing(view[start : start + ENCRYPTED_BYTES])

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection. It says no goodbye, which a peer that has gone would answer with a reset."""
        await self.transport_stream.aclose()

    def _read(self, most: int) -> bytes | None:
        """Of one record; None if none is complete, empty at the end."""
        try:
            return self._tls.read(most)
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return b""
        except ssl.SSLError as error:
            raise self._broken() from error

    def _read_into(self, buffer: memoryview) -> int | None:
        """As `_read`."""
        try:
            return self._tls.read(len(buffer), buffer)  # pyright: ignore[reportReturnType, reportArgumentType]
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            return 0
        except ssl.SSLError as error:
            raise self._broken() from error

    def _is_through(self, step: Callable[[], None]) -> bool:
        """Whether the step is done; else more has to come for it."""
        try:
            step()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise self._broken() from error
        return True

    async def _wait_for_more(self) -> None:
        if self._outgoing.pending:
            await self._send_outgoing()
        await self._refill()

    async def _refill(self) -> None:
        received = await self.transport_stream.receive_some(_REFILL_BYTES)
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()

    async def _send_outgoing(self, data: memoryview | None = None) -> None:
        """Encrypt the data, and send it after what else there is to be said."""
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if self._is_broken:
                raise trio.BrokenResourceError("the connection has failed before")
            if data is not None:
                self._encrypt(data)
            if said := self._outgoing.read():
                said, self._tickets = self._tickets + said, b""
                await self._send(said)
        finally:
            self._sending.release()

    def _encrypt(self, data: memoryview) -> None:
        try:
            self._tls.write(data)  # all of it: the memory that it goes to has no bound
        except ssl.SSLError as error:
            raise self._broken() from error

    async def _send(self, said: bytes) -> None:
        """Almost always the system takes it at once. A record of which a part was sent cannot be taken back."""
        try:
            sent = os.write(self.transport_stream.socket.fileno(), said)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        if sent < len(said):
            try:
                await self.transport_stream.send_all(said[sent:])
            except BaseException:
                self._is_broken = True
                raise

    def _broken(self) -> trio.BrokenResourceError:
        self._is_broken = True
        return trio.BrokenResourceError("TLS with the peer has failed")
