"""TLS inside a connection: `ssl`'s state machine over a socket, which decrypts in one step all that has come.

    socket ──bytes──▶ received ──16 KiB──▶ incoming ──SSLObject──▶ what the peer says
    socket ◀──128 KiB── outgoing ◀──16 KiB── SSLObject ◀── what is said to it

librdkafka makes a record of TLS of each piece of a request, so a request of 1 MB comes in 500 of them, and trio's
SSLStream takes a turn of the event loop for each. Here `receive_into` reads records until none is complete, or the
buffer is full: a produced GB costs 5 s of CPU instead of 15 (docs/decisions/0084-tls-stream.md).

OpenSSL's buffers in memory grow and never shrink, so they are given little at a time. A peer that sends records without
data in them (new keys, again and again) is cut off after `BARREN_BYTES_MAX`: OpenSSL reads all of them in one call.

A peer may close the connection without TLS's own goodbye, as most clients do: that is the end of the stream. Frames
and HTTP say by themselves where they end. What goes out does so under a lock, whole records one after the other: also
reading may have something to say, such as a new key.
"""

from __future__ import annotations

import os
import ssl

import trio

_REFILL_BYTES = 128 << 10
"""At most so much is read from the socket at a time."""
_PIECE_BYTES = 16 << 10
"""So much OpenSSL is given at a time. It is the most that a record of TLS has in it (RFC 8446, 5.1)."""
ENCRYPTED_BYTES = 128 << 10
"""So much is encrypted at a time: it is held twice until the peer has read it, for a thousand connections 128 MiB."""
BARREN_BYTES_MAX = 32 << 10
"""A peer may send so much without any data: more than a record, which is read when it is complete."""
_TURN_BYTES = 1 << 20
"""After sending so much others run, though the peer takes more."""


class TlsStream(trio.abc.Stream):
    """One task may receive while others send. `do_handshake` comes first."""

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
        self._received = memoryview(b"")
        """From the socket, and not given to OpenSSL yet."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._tickets = b""
        """For resuming the handshake: what a server says first of all, when it has something else to say."""
        self._barren = 0
        """Bytes that OpenSSL was given since it last had data."""
        self._has_ended = False
        self._failure: Exception | None = None
        """Of receiving, for good."""
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
        while not self._has_shaken_hands():
            await self._say()
            if not self._feed():
                await self._refill()
        if self._tls.server_side and self._tls.version() == "TLSv1.3":
            # Whoever closes without having read them resets the connection, and what it has sent could be lost.
            self._tickets = self._outgoing.read()
        self._barren = 0
        await self._say()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What has come, at most so many bytes; empty at the end. Raises trio.BrokenResourceError."""
        await trio.lowlevel.checkpoint_if_cancelled()
        most = _REFILL_BYTES if max_bytes is None else max_bytes
        while True:
            has_come = self._tls.pending() + self._incoming.pending + len(self._received)
            buffer = bytearray(max(1, min(most, has_come)))
            with memoryview(buffer) as view:
                filled = self._take(view)
            if filled or self._has_ended:
                return bytes(buffer[:filled])
            await self._wait_for_more()

    async def receive_into(self, buffer: memoryview) -> int:
        """Fill the buffer, which is not empty, with what has come; how many bytes that is, 0 at the end.

        Raises trio.BrokenResourceError.
        """
        await trio.lowlevel.checkpoint()  # what has come may be enough for a long time
        while True:
            filled = self._take(buffer)
            if filled or self._has_ended:
                return filled
            await self._wait_for_more()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream.send_all`. Tasks may do it at the same time. Raises trio.BrokenResourceError."""
        await self._say(memoryview(data))

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self.transport_stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close the connection. It says no goodbye, which a peer that has gone would answer with a reset."""
        await self.transport_stream.aclose()

    def _has_shaken_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            raise self._broken() from error
        return True

    def _take(self, buffer: memoryview) -> int:
        """Read records until none is complete, or the buffer is full; how many bytes that is.

        What came before a record that is none is answered first.
        """
        filled = 0
        while filled < len(buffer) and not self._has_ended:
            if self._failure is not None:
                if filled:
                    break
                raise self._broken() from self._failure
            try:
                count: int = self._tls.read(len(buffer) - filled, buffer[filled:])  # pyright: ignore
            except ssl.SSLWantReadError:
                if self._barren > BARREN_BYTES_MAX:
                    self._failure = ssl.SSLError("records without data in them")
                elif not self._feed():
                    break
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._has_ended = True
            except ssl.SSLError as error:
                self._failure = error
            else:
                self._barren = 0
                self._has_ended = not count
                filled += count
        return filled

    def _feed(self) -> bool:
        """Give OpenSSL more of what has come; whether there was any."""
        if not self._received:
            return False
        piece = self._received[:_PIECE_BYTES]
        self._incoming.write(piece)
        self._barren += len(piece)
        self._received = self._received[_PIECE_BYTES:] if len(self._received) > _PIECE_BYTES else memoryview(b"")
        return True

    async def _wait_for_more(self) -> None:
        if self._outgoing.pending:
            await self._say()
        await self._refill()

    async def _refill(self) -> None:
        self._received = memoryview(await self.transport_stream.receive_some(_REFILL_BYTES))
        if not self._received:
            self._incoming.write_eof()

    async def _say(self, data: memoryview = memoryview(b"")) -> None:  # noqa: B008 (it cannot be changed)
        """Encrypt the data, and send it after what else there is to be said."""
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            for start in range(0, max(1, len(data)), ENCRYPTED_BYTES):
                if self._is_broken:
                    raise trio.BrokenResourceError("the connection has failed before")
                if start and start % _TURN_BYTES == 0:
                    await trio.lowlevel.checkpoint()
                if records := self._encrypted(data[start : start + ENCRYPTED_BYTES]):
                    await self._send(records)
        finally:
            self._sending.release()

    def _encrypted(self, data: memoryview) -> list[bytes]:
        """Records, after what else there is to be said; none if that is nothing."""
        records: list[bytes] = []
        for start in range(0, max(1, len(data)), _PIECE_BYTES):
            if len(data):
                try:
                    self._tls.write(data[start : start + _PIECE_BYTES])  # all of it: the buffer has no bound
                except ssl.SSLError as error:
                    raise self._broken() from error
            if said := self._outgoing.read():
                records += (self._tickets, said) if self._tickets else (said,)
                self._tickets = b""
        return records

    async def _send(self, records: list[bytes]) -> None:
        """Almost always the system takes them at once. A record of which a part was sent cannot be taken back."""
        try:
            sent = os.writev(self.transport_stream.socket.fileno(), records)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._broken() from error
        said = b"" if sent == sum(map(len, records)) else b"".join(records)
        if said:
            try:
                await self.transport_stream.send_all(said[sent:])
            except BaseException:
                self._is_broken = True
                raise

    def _broken(self) -> trio.BrokenResourceError:
        self._is_broken = True
        return trio.BrokenResourceError("TLS with the peer has failed")
