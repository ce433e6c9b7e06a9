"""Listening sockets that outlive who accepts from them."""

from __future__ import annotations

import trio


def another_listener(listener: trio.SocketListener) -> trio.SocketListener:
    """One of the same socket: closing it ends nothing, and connections wait meanwhile for who accepts next."""
    return trio.SocketListener(listener.socket.dup())
