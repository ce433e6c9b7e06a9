"""Ports for brokers that are told where to listen."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports on which no program listens; they are kept from others as long as this process lives.

    A socket that is bound, allows others at its address, and does not listen is in nobody's way who allows it as well,
    as Java and Fairlog do when they listen; but the system gives its port to nobody who asks for any.
    """
    ports: list[int] = []
    for _ in range(count):
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        ports.append(holder.getsockname()[1])
        holder.detach()
    return ports
