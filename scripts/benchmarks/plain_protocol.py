"""A minimal transactional client: four requests in old versions, encoded by hand. Pure except `Connection`.

A stock client is a handful of threads and takes milliseconds to start: with a hundred thousand of them one would
measure the clients. Bulk data (existing ids, finished or open transactions) are made with this client; timed operations
go through confluent-kafka.

InitProducerId v0, AddPartitionsToTxn v0, Produce v3 (acks=all), EndTxn v0 and FindCoordinator v1; Kafka 4 and Fairlog
serve them all.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from crc32c import crc32c

PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 0, 10, 22, 24, 26
_VERSIONS = {PRODUCE: 3, FIND_COORDINATOR: 1, INIT_PRODUCER_ID: 0, ADD_PARTITIONS: 0, END_TXN: 0}

NONE = 0
RETRIABLE = frozenset({14, 15, 16, 51})
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT_TRANSACTIONS."""


class Refused(Exception):
    """The broker answered with an error that a later retry does not solve."""


@dataclass(frozen=True, slots=True)
class Request:
    key: int
    body: bytes


class Connection:
    """One connection; requests are answered in their order. Addresses in the broker's answers are ignored."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def send(self, request: Request) -> None:
        head = struct.pack(">hhi", request.key, _VERSIONS[request.key], 0) + text("bench")
        self._socket.sendall(struct.pack(">i", len(head) + len(request.body)) + head + request.body)

    def receive(self) -> bytes:
        """The next answer, without its correlation id. Raises ConnectionError if the broker has gone."""
        head = self._file.read(4)
        if len(head) < 4:
            raise ConnectionError("the broker closed the connection")
        return self._file.read(struct.unpack(">i", head)[0])[4:]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Who:
    """A transactional id with the answer to InitProducerId."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def packed(self) -> bytes:
        return text(self.transactional_id) + struct.pack(">qh", self.producer_id, self.epoch)


def find_coordinator(transactional_id: str) -> Request:
    """Kafka creates its transaction log at the first request."""
    return Request(FIND_COORDINATOR, text(transactional_id) + b"\x01")


def init_producer_id(transactional_id: str, timeout_ms: int) -> Request:
    return Request(INIT_PRODUCER_ID, text(transactional_id) + struct.pack(">i", timeout_ms))


def initialized(transactional_id: str, answer: bytes) -> Who:
    _throttle_ms, _code, producer_id, epoch = struct.unpack(">ihqh", answer)
    return Who(transactional_id, producer_id, epoch)


def add_partition(who: Who, topic: str, partition: int) -> Request:
    return Request(ADD_PARTITIONS, who.packed + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, partition))


def produce(who: Who, topic: str, partition: int, sequence: int) -> Request:
    """One record of five bytes."""
    data = batch(who.producer_id, who.epoch, sequence)
    body = text(who.transactional_id) + struct.pack(">hii", -1, 30_000, 1) + text(topic)
    return Request(PRODUCE, body + struct.pack(">iii", 1, partition, len(data)) + data)


def end(who: Who, *, commit: bool) -> Request:
    return Request(END_TXN, who.packed + (b"\x01" if commit else b"\x00"))


def error_code(key: int, answer: bytes) -> int:
    """The error code of an answer to a request of at most one partition."""
    match key:
        case 10 | 22 | 26:
            return struct.unpack_from(">h", answer, 4)[0]
        case 24:
            return struct.unpack(">h", answer[-2:])[0]
        case _:  # Produce: [topics: name, [partitions: index, code, offset, timestamp]], throttle time
            return struct.unpack(">h", answer[-22:-20])[0]


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def batch(producer_id: int, epoch: int, sequence: int) -> bytes:
    """A transactional record batch (v2) of one record with a value of five bytes, dated 1 ms after 1970 began."""
    record = bytes([0, 0, 0, 1, 10]) + b"value" + bytes([0])
    body = struct.pack(">hiqqqhii", 0x10, 0, 1, 1, producer_id, epoch, sequence, 1)
    body += bytes([2 * len(record)]) + record
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body
