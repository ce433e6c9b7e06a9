"""The requests that strains are made of, packed by hand in old versions, and a socket that sends them.

Stock clients do not leave answers unread, nor do a few threads of them make ten thousand transactions. Nothing is
decoded that a strain does not look at.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType

from crc32c import crc32c

PRODUCE, FETCH, METADATA, API_VERSIONS, CREATE_TOPICS = 0, 1, 3, 18, 19
INIT_PRODUCER_ID, ADD_PARTITIONS, END_TXN = 22, 24, 26
_VERSIONS = {
    PRODUCE: 3,
    FETCH: 4,
    METADATA: 1,
    API_VERSIONS: 0,
    CREATE_TOPICS: 2,
    INIT_PRODUCER_ID: 0,
    ADD_PARTITIONS: 0,
    END_TXN: 0,
}

PIPELINED = 12
"""Requests that are sent before the first is answered; the node takes 16."""

_LENGTH = struct.Struct(">i")
_NOW_MS = int(time.time() * 1000)
"""Retention would take away what is older."""


class Refused(Exception):
    """The node answered with an error, or with other bytes than were due."""


@dataclass(frozen=True, slots=True)
class Request:
    key: int
    body: bytes

    @property
    def framed(self) -> bytes:
        """With its header and length, as it goes over the line."""
        head = struct.pack(">hhi", self.key, _VERSIONS[self.key], 0) + text("strain")
        return _LENGTH.pack(len(head) + len(self.body)) + head + self.body


class Wire:
    """One connection; answers come in the order of the requests."""

    def __init__(self, address: str, *, timeout_s: float = 120.0, receive_bytes: int | None = None) -> None:
        """With `receive_bytes` the system keeps so little of what nobody reads."""
        host, port = address.rsplit(":", 1)
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, request: Request) -> None:
        self.socket.sendall(request.framed)

    def receive(self) -> bytes:
        """The next answer, without its correlation id. Raises ConnectionError if the node has closed."""
        length = _LENGTH.unpack(self._exactly(4))[0]
        return bytes(self._exactly(length)[4:])

    def call(self, request: Request) -> bytes:
        self.send(request)
        answer = self.receive()
        check(request, answer)
        return answer

    def call_all(self, requests: Iterable[Request]) -> list[bytes]:
        """The answers of many, of which some are under way at a time. Raises Refused at the first error."""
        answers: list[bytes] = []
        waiting: deque[Request] = deque()
        for request in requests:
            if len(waiting) == PIPELINED:
                answers.append(self._answer_to(waiting.popleft()))
            self.send(request)
            waiting.append(request)
        answers.extend(self._answer_to(request) for request in waiting)
        return answers

    def is_closed_by_node(self) -> bool:
        """Whether the node has ended the connection; what it has sent before is thrown away."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def _answer_to(self, request: Request) -> bytes:
        answer = self.receive()
        check(request, answer)
        return answer

    def _exactly(self, count: int) -> memoryview:
        data = memoryview(bytearray(count))
        filled = 0
        while filled < count:
            received = self.socket.recv_into(data[filled:])
            if received == 0:
                raise ConnectionError("the node has closed the connection")
            filled += received
        return data


@dataclass(frozen=True, slots=True)
class Who:
    """A transactional id with what InitProducerId has answered."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def packed(self) -> bytes:
        return text(self.transactional_id) + struct.pack(">qh", self.producer_id, self.epoch)


def api_versions() -> Request:
    return Request(API_VERSIONS, b"")


def metadata(topics: Sequence[str] | None) -> Request:
    """Of these topics, which are made if they are not there; None: of all that there are."""
    if topics is None:
        return Request(METADATA, _LENGTH.pack(-1))
    return Request(METADATA, _LENGTH.pack(len(topics)) + b"".join(map(text, topics)))


def create_topics(names: Sequence[str], *, partitions: int) -> Request:
    each = b"".join(text(name) + struct.pack(">ihii", partitions, 1, 0, 0) for name in names)
    return Request(CREATE_TOPICS, _LENGTH.pack(len(names)) + each + _LENGTH.pack(60_000) + b"\0")


def init_producer_id(transactional_id: str, *, timeout_ms: int = 900_000) -> Request:
    return Request(INIT_PRODUCER_ID, text(transactional_id) + _LENGTH.pack(timeout_ms))


def initialized(transactional_id: str, answer: bytes) -> Who:
    _throttle_ms, _code, producer_id, epoch = struct.unpack(">ihqh", answer)
    return Who(transactional_id, producer_id, epoch)


def add_partition(who: Who, topic: str, partition: int) -> Request:
    return Request(ADD_PARTITIONS, who.packed + _LENGTH.pack(1) + text(topic) + struct.pack(">ii", 1, partition))


def produce(topic: str, partition: int, data: bytes, *, by: Who | None = None) -> Request:
    """acks=all, and two minutes of patience."""
    transactional_id = struct.pack(">h", -1) if by is None else text(by.transactional_id)
    body = transactional_id + struct.pack(">hii", -1, 120_000, 1) + text(topic)
    return Request(PRODUCE, body + struct.pack(">iii", 1, partition, len(data)) + data)


def produce_to_many(topic: str, batches: Sequence[tuple[int, bytes]]) -> Request:
    """(partition, batch), … in one request. A partition that comes twice gets two batches."""
    lines = b"".join(struct.pack(">ii", partition, len(data)) + data for partition, data in batches)
    return Request(PRODUCE, struct.pack(">hhii", -1, -1, 120_000, 1) + text(topic) + _LENGTH.pack(len(batches)) + lines)


def end(who: Who, *, commit: bool) -> Request:
    return Request(END_TXN, who.packed + (b"\x01" if commit else b"\x00"))


def fetch(
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]], *, bytes_max: int, wait_ms: int = 0, min_bytes: int = 1
) -> Request:
    """(topic, ((partition, offset), …)); uncommitted records, too, as consumers that know of no transactions ask."""
    body = struct.pack(">iiiibi", -1, wait_ms, min_bytes, bytes_max, 0, len(topics))
    for name, partitions in topics:
        lines = b"".join(struct.pack(">iqi", partition, offset, bytes_max) for partition, offset in partitions)
        body += text(name) + _LENGTH.pack(len(partitions)) + lines
    return Request(FETCH, body)


def fetched_bytes(answer: bytes) -> int:
    """Of records, in the answer to a fetch of one partition."""
    return 0 if len(answer) < _LENGTH.size else len(answer) - _RECORDS_AT


_RECORDS_AT = 4 + 4 + 2 + len("strain") + 4 + 4 + 2 + 8 + 8 + 4 + 4
"""Of a topic whose name is as long as `strain`: what stands before the records, with no aborted transactions."""


def check(request: Request, answer: bytes) -> None:
    """Raises Refused if the answer says that the request went wrong. Of many partitions one is looked at."""
    match request.key:
        case 22 | 26:
            code = struct.unpack_from(">h", answer, 4)[0]
        case 24:
            code = struct.unpack(">h", answer[-2:])[0]
        case 0:
            code = struct.unpack(">h", answer[-22:-20])[0]
        case 19:  # throttle time, [name, code, message]
            code = struct.unpack_from(">h", answer, 10 + struct.unpack_from(">h", answer, 8)[0])[0]
        case _:
            return
    if code:
        raise Refused(f"request {request.key} was answered with error {code}")


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def batch(value: bytes, *, by: Who | None = None, sequence: int = -1) -> bytes:
    """A record batch (v2) of one record with this value, of today; with `by`, in its transaction."""
    inner = b"\x00\x00\x00\x01" + _varint(len(value)) + value + b"\x00"
    producer_id, epoch, attributes = (-1, -1, 0) if by is None else (by.producer_id, by.epoch, 0x10)
    body = (
        struct.pack(">hiqqqhii", attributes, 0, _NOW_MS, _NOW_MS, producer_id, epoch, sequence, 1)
        + _varint(len(inner))
        + inner
    )
    return struct.pack(">qiibI", 0, len(body) + 9, -1, 2, crc32c(body)) + body


def _varint(value: int) -> bytes:
    """Zigzag, of a number that is not negative."""
    value *= 2
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
