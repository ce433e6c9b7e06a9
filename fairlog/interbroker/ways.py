"""How a broker reaches another one, and is reached: as it is (`Plain`), or by TLS (`ByTls`).

    connect ─▶ TCP ─▶ (TLS: both show a certificate) ─▶ the handshake of brokers (`handshake`) ─▶ frames

By TLS each side shows the node's certificate, which has to come from one of the CAs that the other side knows. Who
connects checks also that the certificate is for the host that it has connected to: the one that the other node
advertises. Who accepts cannot know that, since it is not told yet who comes. That both belong to the cluster, the
handshake of brokers proves, as without TLS.

As long as a cluster moves from one way to the other, a node that has TLS may speak both (`plaintext`). It connects as
the other node has announced, and accepts what begins as TLS does, or does not. Otherwise nodes with and without TLS
refuse each other, and both can say why: each sees by the first bytes what the other one speaks.
"""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager

import trio

from fairlog.cluster.interface import InnerAddress
from fairlog.security.tls import HandshakeFailed, TlsListeners, say_last, send_alert
from fairlog.security.tls_stream import TlsStream

InnerStream = trio.SocketStream | TlsStream

_TLS_BEGINS = b"\x16"
"""A record of TLS that has a message of a handshake. The handshake of brokers begins with a letter."""
_ALERT = b"\x15\x03\x03\0\2\2\x46"
"""What TLS says to what is none of its versions; OpenSSL says nothing to what is no TLS."""


class Way(ABC):
    """Of one node, to and from all others."""

    has_tls = False
    """Whether other nodes are to connect by TLS."""

    @abstractmethod
    async def connect(self, address: InnerAddress) -> InnerStream:
        """Connect to another broker.

        Raises OSError; HandshakeFailed, whose message says why, with the other side as "it". If it raises, or is
        cancelled, nothing is left open.
        """

    @abstractmethod
    async def accept(self, stream: trio.SocketStream) -> InnerStream | None:
        """What is spoken inside of an accepted connection; None if the other side closes it before it sends anything.

        Raises HandshakeFailed; then, and if it is cancelled, the caller closes `stream`.
        """

    @property
    def failed(self) -> int:
        """TLS handshakes, so far."""
        return 0


class Plain(Way):
    """Without TLS."""

    async def connect(self, address: InnerAddress) -> trio.SocketStream:
        """See `Way.connect`."""
        with _names_of_hosts(address):
            return await trio.open_tcp_stream(address.host, address.port)

    async def accept(self, stream: trio.SocketStream) -> trio.SocketStream:
        """See `Way.accept`."""
        return stream


class ByTls(Way):
    """With certificates on both sides."""

    has_tls = True

    def __init__(self, tls: TlsListeners, *, plaintext: bool = False) -> None:
        """`tls` is of one listener, for nodes. With `plaintext` those that have no TLS are spoken to as well."""
        (self._listener,) = tls.by_name.values()
        self._tls = tls
        self._plaintext = plaintext
        self._failed = 0
        """Of those that this side has begun, that were none, or that took too long."""

    @property
    def failed(self) -> int:
        """See `Way.failed`."""
        return self._failed + self._listener.failed

    async def connect(self, address: InnerAddress) -> InnerStream:
        """See `Way.connect`."""
        with _names_of_hosts(address):
            stream = await trio.open_tcp_stream(address.host, address.port)
        if self._plaintext and not address.has_tls:
            return stream
        try:
            with _names_of_hosts(address):
                return await self._secured(stream, address.host)
        except BaseException as failure:
            self._failed += isinstance(failure, HandshakeFailed)
            await trio.aclose_forcefully(stream)
            raise

    async def _secured(self, stream: trio.SocketStream, host: str) -> TlsStream:
        assert self._tls.connecting is not None
        secret = TlsStream(stream, self._tls.connecting, server_side=False, server_hostname=host)
        failure: BaseException | None = None
        try:
            await secret.do_handshake()
        except trio.BrokenResourceError as error:
            failure = error.__cause__
        else:
            return secret
        await send_alert(secret)
        raise HandshakeFailed(_reason(failure)) from failure

    async def accept(self, stream: trio.SocketStream) -> InnerStream | None:
        """See `Way.accept`."""
        try:
            first = await stream.socket.recv(1, socket.MSG_PEEK)
        except OSError:
            return None
        if first == _TLS_BEGINS:
            try:
                secured = await self._listener.secured(stream, signs_in=True)
            except trio.Cancelled:  # its time is up
                self._failed += 1
                raise
            return None if secured is None else secured[0]
        if not first or self._plaintext:
            return stream if first else None
        self._failed += 1
        await say_last(stream, _ALERT)
        raise HandshakeFailed("it does not speak TLS: its node may have none for other nodes (security.inner_listener)")


@contextmanager
def _names_of_hosts(address: InnerAddress) -> Generator[None]:
    """Another node may have announced what is none."""
    try:
        yield
    except ValueError as error:  # IDNA's, or OpenSSL's
        raise OSError(f"{address.host!r} is no name of a host") from error


def why_it_ended(error: OSError | trio.BrokenResourceError) -> str:
    """Why a connection has: also that the other side refuses this node's certificate, which in TLS 1.3 it says only
    after the handshake has succeeded here.
    """
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        return _reason(cause)
    return str(error) or "the other side has closed the connection"


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return (
            "it has closed the connection in the TLS handshake: its node may have no TLS for other nodes "
            "(security.inner_listener)"
        )
    words = (error.reason or "TLS error").replace("_", " ").lower()
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{words}: it does not speak TLS"
    if "ALERT" in (error.reason or ""):
        return f"it refuses the TLS handshake, or this node's certificate: {words}"
    return words
