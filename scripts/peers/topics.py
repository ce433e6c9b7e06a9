"""Topics of a real broker, through the admin client; and whether a broker answers at all."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

WAIT_S = 120.0
_POLL_S = 0.02


def create(
    address: str, names: Sequence[str], partitions: int, configs: Mapping[str, str], *, replicas: int = 1
) -> None:
    """Create topics; return when each of their partitions has a leader."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    topics = [NewTopic(name, partitions, replicas, config=dict(configs)) for name in names]
    for future in admin.create_topics(topics, operation_timeout=WAIT_S).values():
        future.result(timeout=WAIT_S)
    # CreateTopics is answered when the controller has decided; the broker's own view follows.
    missing = set(names)
    deadline = time.monotonic() + WAIT_S
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} topics have no leaders after {WAIT_S:.0f} s, among them {min(missing)}")
        known = admin.list_topics(timeout=WAIT_S).topics
        missing -= {
            name
            for name in missing & known.keys()
            if len(known[name].partitions) == partitions
            and all(partition.leader >= 0 for partition in known[name].partitions.values())
        }
        if missing:
            time.sleep(_POLL_S)


def answers(address: str, timeout_s: float = 1.0) -> bool:
    """Whether the program at `address` answers a Metadata request, and names a broker."""
    return brokers_known(address, timeout_s) > 0


def brokers_known(address: str, timeout_s: float = 1.0) -> int:
    """How many brokers the program at `address` names in answer to a Metadata request (version 1, for no topic).

    0 if it does not answer. It uses a socket directly: a client library waits between its attempts, and the time until
    the first answer is measured.
    """
    host, port = address.rsplit(":", 1)
    request = struct.pack(">hhih", 3, 1, 0, -1) + struct.pack(">i", 0)
    try:
        with socket.create_connection((host, int(port)), timeout_s) as connection, connection.makefile("rb") as file:
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = file.read(12)
            return struct.unpack(">iii", head)[2] if len(head) == 12 else 0
    except OSError:
        return 0


def all_in_sync(address: str) -> bool:
    """Whether every replica of every partition is in sync."""
    known = AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=WAIT_S).topics
    partitions = [partition for topic in known.values() for partition in topic.partitions.values()]
    return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)


def delete(address: str, names: Sequence[str]) -> None:
    """Delete these topics; the broker frees their space later."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for future in admin.delete_topics(list(names), operation_timeout=WAIT_S).values():
        future.result(timeout=WAIT_S)
