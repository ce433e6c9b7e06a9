"""A small synchronous Kafka client for the command line, on kio's messages.

How it works. One connection, one request at a time: write a frame, read a frame, check that the answer
belongs to the request. `connect` asks ApiVersions first; each request has one version that this program
speaks, and a broker that does not serve it is told so by name instead of being sent something it misreads.
Nothing here is specific to Fairlog: the same commands work against any broker.

Who it is, and whether there is TLS, `fairlog.cli.client_properties` says.

What it does not do: pipelining, retries. More than one broker: `fairlog.cli.brokers`.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from kio.schema.api_versions.v0.response import ApiVersionsResponse as ApiVersionsResponse0
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from kio.static.primitive import i16, i32
from kio.static.protocol import RequestPayload, ResponsePayload

from fairlog.cli import client_properties
from fairlog.cli.client_properties import ClientProperties
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address

CLIENT_ID = "fairlog-cli"
TIMEOUT_S = 15.0
"""For connecting and for each answer; a stopping broker needs up to its stop_grace_ms to answer."""
_ANSWER_BYTES_MAX = 256 * 1024 * 1024
_FIRST_REQUESTS = 2
"""ApiVersions, which a listener without TLS answers to everybody, and what is asked next."""
_HINT_AT_FIRST = " before it answered: does it want TLS or a sign-in? see --client-properties"

Answer = TypeVar("Answer", bound=ResponsePayload)


class NoAnswer(ClientError):
    """The broker cannot be reached, or has not answered."""


class Refused(ClientError):
    """The broker's answer has an error code."""

    def __init__(self, what: str, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{what}: {code.name.upper()}" + (f" ({message})" if message else ""))
        self.code = code


_IN_WORDS = {ErrorCode.unknown_topic_or_partition: "there is no such topic or partition"}
"""For answers that have room for a code only, or a broker that leaves the message out."""


def check(what: str, code: ErrorCode, message: str | None = None) -> None:
    """Raise Refused, naming `what` was asked, unless `code` says that all is well."""
    if code is not ErrorCode.none:
        raise Refused(what, code, message or _IN_WORDS.get(code))


class Connection:
    """A connection to one broker; use `connect`."""

    def __init__(self, address: Address, stream: socket.socket) -> None:
        self.address = address
        self._stream = stream
        self._correlation_id = 0
        self._versions: dict[int, range] = {}

    def request(self, payload: RequestPayload, answer: type[Answer]) -> Answer:
        """Send `payload`, wait for its answer. Raises ClientError."""
        return _read(answer, self.request_undecoded(payload), self.address)

    def request_undecoded(self, payload: RequestPayload) -> bytes:
        """Send `payload`, return its answer from the header on. Raises ClientError."""
        key, version = int(payload.__api_key__), int(payload.__version__)
        served = self._versions.get(key, range(0))
        if version not in served:
            has = f"serves {served.start} to {served.stop - 1}" if served else "does not serve it"
            raise ClientError(f"{api_key_map[key]} version {version} is needed, but the broker at {self.address} {has}")
        return self._exchange(payload)

    def sign_in(self, mechanism: str, properties: ClientProperties) -> None:
        """Show who the client is. Raises ClientError."""
        what = f"signing in at {self.address}"
        chosen = self.request(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        check(what, chosen.error_code, f"it offers {', '.join(chosen.mechanisms) or 'nothing'}")

        def exchange(message: bytes) -> bytes:
            answer = self.request(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
            check(what, answer.error_code, answer.error_message)
            return answer.auth_bytes

        properties.sign_in(exchange)

    def serves(self, api_key: int) -> bool:
        """Does the broker serve this API, in whatever version?"""
        return api_key in self._versions

    def negotiate(self) -> None:
        """Learn which versions the broker serves. Raises ClientError."""
        asked = ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="1")
        frame = self._exchange(asked)
        # A broker that does not know our version answers in version 0, whose beginning is the same.
        if struct.unpack_from(">h", frame, 4)[0] == ErrorCode.unsupported_version.value:
            told = _read(ApiVersionsResponse0, frame, self.address).api_keys
        else:
            full = _read(ApiVersionsResponse, frame, self.address)
            check(f"asking {self.address} for its versions", full.error_code)
            told = full.api_keys
        self._versions = {int(each.api_key): range(each.min_version, each.max_version + 1) for each in told}

    def _exchange(self, payload: RequestPayload) -> bytes:
        """Send a request; return the answer's frame, from its correlation id on."""
        self._correlation_id += 1
        header_type = payload.__header_schema__
        body = io.BytesIO()
        header = header_type(
            request_api_key=i16(payload.__api_key__),
            request_api_version=i16(payload.__version__),
            correlation_id=i32(self._correlation_id),
            client_id=CLIENT_ID,
        )
        entity_writer(header_type)(body, header)
        entity_writer(type(payload))(body, payload)
        content = body.getvalue()
        try:
            self._stream.sendall(struct.pack(">i", len(content)) + content)
            (length,) = struct.unpack(">i", self._receive(4))
            if not 4 <= length <= _ANSWER_BYTES_MAX:
                raise ClientError(f"{self.address} does not speak Kafka's protocol: a frame of {length} bytes")
            frame = self._receive(length)
        except TimeoutError as error:
            raise NoAnswer(f"the broker at {self.address} did not answer within {TIMEOUT_S:g} s") from error
        except OSError as error:
            raise NoAnswer(f"the connection to {self.address} broke: {error.strerror or error}") from error
        if struct.unpack_from(">i", frame)[0] != self._correlation_id:
            raise ClientError(f"{self.address} sent an answer that does not belong to the request")
        return frame

    def _receive(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._stream.recv(min(count, 1 << 20))
            if not part:
                hint = _HINT_AT_FIRST if self._correlation_id <= _FIRST_REQUESTS else ""
                raise NoAnswer(f"the broker at {self.address} closed the connection{hint}")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


@contextmanager
def connect(address: Address) -> Generator[Connection]:
    """A connection that knows the broker's versions. Raises ClientError."""
    try:
        stream = socket.create_connection((address.host, address.port), TIMEOUT_S)
    except OSError as error:
        raise NoAnswer(f"cannot reach a broker at {address}: {error.strerror or error}") from error
    properties = client_properties.current()
    with stream, properties.secured(stream, address) as secured:
        connection = Connection(address, secured)
        connection.negotiate()
        mechanism = properties.mechanism
        if mechanism is not None:
            connection.sign_in(mechanism, properties)
        yield connection


def _read(answer: type[Answer], frame: bytes, address: Address) -> Answer:
    try:
        _, offset = entity_reader(answer.__header_schema__)(frame, 0)
        content, _ = entity_reader(answer)(frame, offset)
    except (SerialError, ValueError, LookupError) as error:  # kio answers an unknown tagged field with KeyError
        raise ClientError(f"the answer of {address} could not be read as {answer.__name__}: {error}") from error
    return content
