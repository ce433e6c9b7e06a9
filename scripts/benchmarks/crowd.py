"""Many transactional ids at once, to create in bulk: existing ids, and finished or open transactions.

A crowd has WIDTH connections and handles that many ids at a time: it sends each step of the protocol on all connections
and then reads all answers, so the broker always has WIDTH requests to work on. If an answer says "later", the request
is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks import plain_protocol as protocol
from benchmarks.plain_protocol import Connection, Request, Who

WIDTH = 32
TIMEOUT_MS = 900_000
_RETRY_PAUSE_S, _RETRY_S_MAX = 0.002, 60.0


class Crowd:
    """The client process of this module. Ids are `PREFIX-NUMBER`; partitions are taken in turns."""

    def __init__(self, address: str, prefix: str, topic: str, partitions: int) -> None:
        self._prefix = prefix
        self._topic = topic
        self._partitions = partitions
        self._connections = [Connection(address) for _ in range(WIDTH)]
        self._sequences: dict[tuple[Who, int], int] = {}
        self._steps([protocol.find_coordinator(prefix)])
        self._open: list[Who] = []

    def commit_once(self, first: int, count: int) -> float:
        """Ids FIRST to FIRST + COUNT, each with one committed transaction of one record; returns the seconds."""
        started = time.perf_counter()
        for number in range(first, first + count, WIDTH):
            everyone = self._begin(range(number, min(number + WIDTH, first + count)))
            self._write(everyone, number)
            self._steps([protocol.end(who, commit=True) for who in everyone])
        return time.perf_counter() - started

    def commit_many(self, count: int) -> float:
        """COUNT transactions of one record, by WIDTH ids that commit repeatedly; returns the seconds."""
        started = time.perf_counter()
        everyone = self._begin(range(WIDTH))
        for number in range(0, count, WIDTH):
            some = everyone[: count - number]
            self._write(some, number)
            self._steps([protocol.end(who, commit=True) for who in some])
        return time.perf_counter() - started

    def open(self, first: int, count: int) -> None:
        """Begin a transaction with one record for each of these ids, and leave it open."""
        for number in range(first, first + count, WIDTH):
            everyone = self._begin(range(number, min(number + WIDTH, first + count)))
            self._write(everyone, number)
            self._open += everyone

    def abort_open(self) -> None:
        """Abort the transactions that `open` has left."""
        while self._open:
            everyone, self._open = self._open[:WIDTH], self._open[WIDTH:]
            self._steps([protocol.end(who, commit=False) for who in everyone])

    def fence(self, first: int, count: int) -> None:
        """Abort the transactions that an earlier crowd with the same prefix has left open, by taking its ids over."""
        for number in range(first, first + count, WIDTH):
            self._begin(range(number, min(number + WIDTH, first + count)))

    def close(self) -> None:
        """Close the connections; open transactions stay open."""
        for connection in self._connections:
            connection.close()

    def _begin(self, numbers: Sequence[int]) -> list[Who]:
        ids = [f"{self._prefix}-{number}" for number in numbers]
        answers = self._steps([protocol.init_producer_id(each, TIMEOUT_MS) for each in ids])
        self._sequences.clear()  # each has a new epoch, and no earlier producer writes again
        return [protocol.initialized(each, answer) for each, answer in zip(ids, answers, strict=True)]

    def _write(self, everyone: Sequence[Who], number: int) -> None:
        """One record by each id, each to another partition; the partitions move on with `number`."""
        partitions = [(number + index) % self._partitions for index in range(len(everyone))]
        pairs = list(zip(everyone, partitions, strict=True))
        self._steps([protocol.add_partition(who, self._topic, partition) for who, partition in pairs])
        self._steps(
            [protocol.produce(who, self._topic, partition, self._next(who, partition)) for who, partition in pairs]
        )

    def _next(self, who: Who, partition: int) -> int:
        """The next sequence of this producer, in this epoch, in this partition."""
        key = (who, partition)
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        return sequence

    def _steps(self, requests: Sequence[Request]) -> list[bytes]:
        """The answers to these requests, one on each connection, all without an error. Raises Refused."""
        answers = [b""] * len(requests)
        waiting = list(range(len(requests)))
        deadline = time.monotonic() + _RETRY_S_MAX
        while waiting:
            for index in waiting:
                self._connections[index].send(requests[index])
            again: list[int] = []
            for index in waiting:
                answers[index] = self._connections[index].receive()
                code = protocol.error_code(requests[index].key, answers[index])
                if code in protocol.RETRIABLE and time.monotonic() < deadline:
                    again.append(index)
                elif code != protocol.NONE:
                    raise protocol.Refused(f"request {requests[index].key} was answered with error {code}")
            waiting = again
            if waiting:
                time.sleep(_RETRY_PAUSE_S)
        return answers
