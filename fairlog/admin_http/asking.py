"""GET of one document from another process's admin listener: a connection, a question, an answer, by a deadline.

With TLS the other process is known by its certificate, which has to be the node's own, as it is in the file now, or as
it was before (`OwnCertificate`): names, CAs and dates do not matter then.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import h11
import structlog
import trio

from fairlog.config_values import Address
from fairlog.security.own_certificate import first_certificate
from fairlog.security.tls_stream import TlsStream

log = structlog.get_logger()

_RECEIVE_BYTES = 64 * 1024
_HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered."""

    status: int
    body: bytes


class OwnCertificate:
    """The node's certificate, as other processes of the node show it.

    Who shows another one, or speaks something else than TLS, is not asked anything. A log line says so once for each
    address, until the right one is shown there: then another program has the port, or the process was not told to have
    TLS.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._foreign: set[Address] = set()
        self._known: deque[bytes] = deque(maxlen=2)
        """As it is in the file, and as it was before: another process may be about to read it."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    async def secured(self, stream: trio.SocketStream, address: Address) -> TlsStream:
        """The stream inside TLS with who has the certificate. Raises OSError, ValueError, BrokenResourceError."""
        now = await trio.to_thread.run_sync(first_certificate, self._file)
        if now not in self._known:
            self._known.append(now)
        secret = TlsStream(stream, self._context, server_side=False)
        try:
            await secret.do_handshake()
        except trio.BrokenResourceError as broken:
            cause = broken.__cause__
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                self._say_foreign(address, f"no TLS: {cause}")
            raise
        if secret.certificate not in self._known:
            self._say_foreign(address, f"it is not the certificate of {self._file}")
            raise trio.BrokenResourceError("it is not the node's certificate")
        self._foreign.discard(address)
        return secret

    def _say_foreign(self, address: Address, reason: str) -> None:
        if address not in self._foreign:
            self._foreign.add(address)
            log.warning("another program answers at the admin port of a shard", address=str(address), reason=reason)


async def get_untrusted(
    address: Address,
    path: str,
    *,
    accept: str,
    deadline_s: float,
    body_bytes_max: int,
    bearer: str | None = None,
    certificate: OwnCertificate | None = None,
) -> Answer | None:
    """The answer to GET `path`; None if there is none within `deadline_s`, or none that HTTP and the limit allow.

    `bearer` is shown, in case the other one asks who calls. `certificate` is what its TLS has to show, if it has TLS.
    """
    with trio.move_on_after(deadline_s):
        try:
            async with await trio.open_tcp_stream(reached_at(address.host), address.port) as stream:
                spoken = stream if certificate is None else await certificate.secured(stream, address)
                return await _exchange(spoken, path, accept, bearer, body_bytes_max)
        except (OSError, ValueError, trio.BrokenResourceError, h11.ProtocolError):
            return None
    return None


async def _exchange(
    stream: trio.abc.Stream, path: str, accept: str, bearer: str | None, body_bytes_max: int
) -> Answer | None:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
    headers = [(b"host", b"localhost"), (b"accept", accept.encode("latin-1")), (b"connection", b"close")]
    if bearer is not None:
        headers.append((b"authorization", f"Bearer {bearer}".encode("ascii")))
    request = h11.Request(method="GET", target=path, headers=headers)
    await stream.send_all(_bytes(connection.send(request)) + _bytes(connection.send(h11.EndOfMessage())))
    head: h11.Response | None = None
    body = bytearray()
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(_RECEIVE_BYTES)))
            case h11.Response() as head:
                pass
            case h11.Data(data=data):
                body += data
                if len(body) > body_bytes_max:
                    return None
            case h11.EndOfMessage() if head is not None:
                return Answer(head.status_code, bytes(body))
            case h11.InformationalResponse():
                pass
            case _:
                return None


def _bytes(sent: bytes | None) -> bytes:
    assert sent is not None
    return sent


def reached_at(host: str) -> str:
    """Who listens on all addresses is reached on loopback."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
