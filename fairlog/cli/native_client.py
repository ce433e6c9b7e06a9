"""A small synchronous client of the native protocol for the command line: one connection, one request at a time.

It has the few requests that an operator makes. With several processes each has sinks of its own: `all_sinks` asks the
other brokers as well, which the first one names, and `forget` goes on to the one that it is sent to.

Spark's driver and executors have a client of their own (`pyspark_fairlog/native.py`), which stands without this
package; this one stands without theirs, so that the node's command needs no part of Spark. Two clients of one page
(docs/formats/native-protocol.md) also keep each other honest.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import cbor2

from fairlog.cli import client_properties
from fairlog.cli.client_properties import ClientProperties
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address
from fairlog.native.messages import FRAME_BYTES_MAX, PREAMBLE

TIMEOUT_S = 15.0
"""For connecting and for each wait, as with Kafka's requests (`fairlog.cli.client`)."""

_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """So many records of a batch, from `base_offset` on."""

    topic: str
    partition: int
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Sink:
    """What the node remembers of a sink."""

    sink: str
    query: str
    run: str | None
    """The current one; None if none has joined since the node was started."""
    batch: int | None
    """The last one that is committed; None before the first."""
    placements: tuple[PlacedRecords, ...]
    """Of that batch."""
    open_lanes: tuple[str, ...]
    """Transactional ids."""
    used_ms: int


class _Elsewhere(ClientError):
    """Another broker has the sink."""

    def __init__(self, sentence: str, address: Address) -> None:
        super().__init__(sentence)
        self.address = address


class NativeConnection:
    """A connection to one node; use `connect_natively`."""

    def __init__(self, address: Address, stream: socket.socket) -> None:
        self._address = address
        self._stream = stream
        self._id = 0

    def greet(self) -> None:
        """Exchange preambles. Raises ClientError if the other end is no node that speaks this version."""
        if self._exchange(PREAMBLE, len(PREAMBLE)) != PREAMBLE:
            raise ClientError(
                f"the broker at {self._address} has no sinks: it is not a Fairlog node, or it is a newer version"
            )

    def sign_in(self, mechanism: str, properties: ClientProperties) -> None:
        """Show who the client is. Raises ClientError."""
        named = {"mechanism": mechanism}

        def exchange(message: bytes) -> bytes:
            answer = self._ask("sign-in", {"message": message.decode(), **named})
            named.clear()
            return str(answer["message"]).encode()

        properties.sign_in(exchange)

    def sinks(self) -> tuple[list[Sink], Mapping[int, Address]]:
        """The sinks of this broker, and the other brokers of its node. Raises ClientError."""
        answer = self._ask("sinks", {})
        rows, others = answer.get("sinks", []), answer.get("others", [])
        if not isinstance(rows, list) or not isinstance(others, list):
            raise ClientError(f"the answer of {self._address} contains no list of sinks")
        return [_sink(row) for row in cast("list[dict[str, object]]", rows)], dict(
            map(_broker, cast("list[object]", others))
        )

    def forget(self, sink: str) -> None:
        """Let the node forget a sink, whichever of its brokers has it. Raises ClientError."""
        try:
            self._ask("forget", {"sink": sink})
        except _Elsewhere as elsewhere:  # every broker knows the right one
            with connect_natively(elsewhere.address) as there:
                there._ask("forget", {"sink": sink})

    def _ask(self, op: str, arguments: Mapping[str, object]) -> dict[str, object]:
        self._id += 1
        body = cbor2.dumps([self._id, op, arguments])
        (length,) = _LENGTH.unpack(self._exchange(_LENGTH.pack(len(body)) + body, _LENGTH.size))
        if length > FRAME_BYTES_MAX:
            raise ClientError(f"{self._address} does not speak the native protocol: a frame of {length} bytes")
        answer = self._decoded(self._exchange(b"", length))
        match answer:
            case [self._id, "ok", dict()]:
                return cast("dict[str, object]", cast("list[object]", answer)[2])
            case [self._id, "not-coordinator", str(sentence), {"host": str(host), "port": int(port)}]:
                raise _Elsewhere(sentence, Address(host, port))
            case [self._id | None, str(), str(sentence)]:
                raise ClientError(sentence)
            case _:
                raise ClientError(f"{self._address} sent an answer that does not belong to the request")

    def _exchange(self, sent: bytes, count: int) -> bytes:
        """Send these bytes, receive so many."""
        parts: list[bytes] = []
        try:
            self._stream.sendall(sent)
            while count:
                part = self._stream.recv(min(count, 1 << 20))
                if not part:
                    raise ClientError(
                        f"the broker at {self._address} closed the connection; only Fairlog nodes have sinks"
                    )
                parts.append(part)
                count -= len(part)
        except TimeoutError as error:
            raise ClientError(f"the broker at {self._address} did not answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise ClientError(f"the connection to {self._address} broke: {error.strerror or error}") from error
        return b"".join(parts)

    def _decoded(self, answer: bytes) -> object:
        try:
            return cast("object", cbor2.loads(answer))
        except (cbor2.CBORDecodeError, ValueError) as error:
            raise ClientError(f"the answer of {self._address} is not CBOR: {error}") from error


@contextmanager
def connect_natively(address: Address) -> Generator[NativeConnection]:
    """A connection that has been greeted. Raises ClientError."""
    try:
        stream = socket.create_connection((address.host, address.port), TIMEOUT_S)
    except OSError as error:
        raise ClientError(f"cannot reach a broker at {address}: {error.strerror or error}") from error
    properties = client_properties.current()
    with stream, properties.secured(stream, address) as secured:
        connection = NativeConnection(address, secured)
        connection.greet()
        mechanism = properties.mechanism
        if mechanism is not None:
            connection.sign_in(mechanism, properties)
        yield connection


def all_sinks(bootstrap: Address) -> tuple[list[Sink], Sequence[str]]:
    """The sinks of all brokers of a node, by name; and of each broker that does not answer, why. Raises ClientError."""
    with connect_natively(bootstrap) as connection:
        found, others = connection.sinks()
    missing: list[str] = []
    for node_id, address in others.items():
        try:
            with connect_natively(address) as connection:
                found += connection.sinks()[0]
        except ClientError as error:
            missing.append(f"broker {node_id} does not answer ({error})")
    return sorted(found, key=lambda it: it.sink), missing


def _broker(row: object) -> tuple[int, Address]:
    match row:
        case [int(node_id), str(host), int(port)]:
            return node_id, Address(host, port)
        case _:
            raise ClientError(f"unexpected answer, expected a broker's id, host and port: {row!r:.60}")


def _sink(row: dict[str, object]) -> Sink:
    try:
        placements = cast("list[tuple[str, int, int, int]]", row["placements"])
        return Sink(
            cast("str", row["sink"]),
            cast("str", row["query"]),
            cast("str | None", row["run"]),
            cast("int | None", row["batch"]),
            tuple(PlacedRecords(*each) for each in placements),
            tuple(cast("list[str]", row["open_lanes"])),
            cast("int", row["used_ms"]),
        )
    except (KeyError, TypeError) as error:
        raise ClientError(f"unexpected answer, expected a list of sinks: {error}") from error
