"""Ports that a supervisor keeps for its processes: so that they are there, and stay theirs while a process is away.

A port is reserved by a socket that is bound to it and does not listen. With SO_REUSEADDR, which trio's listeners have
as well, Linux lets others bind to it too as long as none that is bound listens; and it gives it to none that asks for
any port. So the process that the port is for can listen on it, now and after a restart; connection attempts in between
are refused. A port on which somebody listens cannot be reserved: that is told before anything is started.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fairlog.config import ConfigError
from fairlog.config_values import Address

_TRIES = 10
"""A host of several addresses needs the port that the system picks for the first one on all of them."""


class PortTaken(ConfigError):
    """An address cannot be listened on. The message is one sentence."""


@contextmanager
def reserved(address: Address, what: str, advice: str = "") -> Generator[Address]:
    """Reserve an address; answers it, with the port that the system has picked if it had port 0. Blocks.

    `what` follows the address in the message, and `advice` ends it. Raises PortTaken.
    """
    with ExitStack() as stack:
        try:
            port = _reserve(stack, address)
        except OSError as error:
            raise PortTaken(f"cannot listen on {address}{what}: {error.strerror or error}{advice}") from error
        yield Address(address.host, port)


def _reserve(stack: ExitStack, address: Address) -> int:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError):
            return _reserve_once(stack, address)
        if address.port:
            break
    return _reserve_once(stack, address)


def _reserve_once(stack: ExitStack, address: Address) -> int:
    """Reserve the port on all of the host's addresses, or on none."""
    port = address.port
    with ExitStack() as sockets:
        for family, place in _places(address):
            try:
                each = sockets.enter_context(socket.socket(family, socket.SOCK_STREAM))
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue  # trio's listeners do without it, too
                raise
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            each.bind((place[0], port, *place[2:]))
            port = port or int(each.getsockname()[1])
        stack.push(sockets.pop_all())
    return port


def _places(address: Address) -> Sequence[tuple[int, tuple[Any, ...]]]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(int(family), tuple(place)) for family, _, _, _, place in found]
