"""GET of one document from another process's admin listener: a connection, a question, an answer, by a deadline."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

import h11
import trio

from fairlog.config_values import Address

_RECEIVE_BYTES = 64 * 1024
_HEAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered."""

    status: int
    body: bytes


async def get_untrusted(
    address: Address, path: str, *, accept: str, deadline_s: float, body_bytes_max: int
) -> Answer | None:
    """The answer to GET `path`; None if there is none within `deadline_s`, or none that HTTP and the limit allow."""
    with trio.move_on_after(deadline_s):
        try:
            async with await trio.open_tcp_stream(reached_at(address.host), address.port) as stream:
                return await _exchange(stream, path, accept, body_bytes_max)
        except (OSError, trio.BrokenResourceError, h11.ProtocolError):
            return None
    return None


async def _exchange(stream: trio.SocketStream, path: str, accept: str, body_bytes_max: int) -> Answer | None:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
    headers = [(b"host", b"localhost"), (b"accept", accept.encode("latin-1")), (b"connection", b"close")]
    request = h11.Request(method="GET", target=path, headers=headers)
    await stream.send_all(_bytes(connection.send(request)) + _bytes(connection.send(h11.EndOfMessage())))
    head: h11.Response | None = None
    body = bytearray()
    while True:
        match connection.next_event():
            case h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))
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
