"""Sockets that clients connect to, each with the listener that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import trio

from fairlog.config_values import Address, ListenerAddresses
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.tls import TlsListener


@dataclass(frozen=True, slots=True)
class Door:
    """A socket that accepts clients of a listener."""

    socket: trio.SocketListener
    listener: Listener = PLAIN
    tls: TlsListener | None = None
    """What makes its connections secret; None if the listener has no TLS."""

    def another(self) -> Door:
        """One of the same socket: closing it ends nothing, and connections wait meanwhile for who accepts next."""
        return Door(another_listener(self.socket), self.listener, self.tls)


def another_listener(listener: trio.SocketListener) -> trio.SocketListener:
    """As `Door.another`."""
    return trio.SocketListener(listener.socket.dup())


async def open_doors(
    stack: AsyncExitStack, addresses: Mapping[Listener, Address], tls: Mapping[str, TlsListener]
) -> Sequence[Door]:
    """Listen on the address of each listener until `stack` is left; a name may be several sockets.

    `tls` is by name, of the listeners that have it. Raises OSError; of several listeners it names the one.
    """
    doors: list[Door] = []
    for listener, address in addresses.items():
        try:
            sockets = await trio.open_tcp_listeners(address.port, host=address.host)
        except OSError as error:
            if len(addresses) == 1:
                raise
            where = ListenerAddresses.of({listener.name: address})
            raise OSError(error.errno, f"{error.strerror or error} ({where})") from error
        for socket in sockets:
            stack.push_async_callback(socket.aclose)
            doors.append(Door(socket, listener, tls.get(listener.name)))
    return doors


def bound_to(doors: Sequence[Door]) -> Mapping[str, Address]:
    """The first address of each listener, by name."""
    bound: dict[str, Address] = {}
    for door in doors:
        host, port = door.socket.socket.getsockname()[:2]
        bound.setdefault(door.listener.name, Address(host, port))
    return bound
