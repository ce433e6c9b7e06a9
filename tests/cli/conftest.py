"""A broker of a few lines for the command line's tests: reads requests and writes answers with kio.

Real sockets and a thread, because the client under test is synchronous. It knows nothing by itself: a test
gives it one function per API that makes the answer from the request, and reads afterwards what was asked.
"""

from __future__ import annotations

import io
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponseBroker
from kio.schema.types import BrokerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32, i32Timedelta

from tests.cli.in_process import FairlogCommand, fairlog_command
from tests.three_processes import three as three

METADATA, API_VERSIONS = 3, 18

Answers = Mapping[int, Callable[[Any], Any]]
"""By API key: the answer to a request. Bytes are sent as they are, and the connection closed; a bytearray is the body
of an answer that kio cannot write, to be sent behind a header of version 1."""


class FakeBroker:
    """Serves on a port of its own until `stop`; all versions of what `answers` has, unless `served` says otherwise.

    Without an answer to Metadata of its own it is the only broker, with node id 5.
    """

    def __init__(self, answers: Answers, served: Mapping[int, tuple[int, int]]) -> None:
        self.requests: list[Any] = []
        self._answers = {METADATA: lambda _request: metadata_of(self), **answers}
        self._served = {**dict.fromkeys(self._answers, (0, 99)), **served}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self.address = f"{self.host}:{self.port}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                stream, _ = self._listener.accept()
            except OSError:
                return
            with stream:
                self._serve(stream)

    def _serve(self, stream: socket.socket) -> None:
        with stream.makefile("rb") as incoming:
            while prefix := incoming.read(4):
                frame = incoming.read(struct.unpack(">i", prefix)[0]) if len(prefix) == 4 else b""
                if len(frame) < 8:  # whoever had this port before is still looked for, by something else than a client
                    return
                key, version, correlation_id = struct.unpack_from(">hhi", frame)
                request_type = load_request_schema(key, version)
                _, offset = entity_reader(request_type.__header_schema__)(frame, 0)
                request, _ = entity_reader(request_type)(frame, offset)
                self.requests.append(request)
                answer = self._answers.get(key, self._versions)(request)
                if isinstance(answer, bytes):
                    stream.sendall(answer)
                    return
                if isinstance(answer, bytearray):
                    stream.sendall(struct.pack(">iiB", len(answer) + 5, correlation_id, 0) + answer)
                    continue
                out = io.BytesIO()
                header_type = type(answer).__header_schema__
                entity_writer(header_type)(out, header_type(correlation_id=i32(correlation_id)))
                entity_writer(type(answer))(out, answer)
                stream.sendall(struct.pack(">i", len(out.getvalue())) + out.getvalue())

    def _versions(self, _request: object) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=i16(key), min_version=i16(first), max_version=i16(last))
                for key, (first, last) in self._served.items()
            ),
            throttle_time=i32Timedelta.parse(timedelta(0)),
        )


def metadata_of(*brokers: FakeBroker) -> MetadataResponse:
    """These brokers, with node ids from 5."""
    return MetadataResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        brokers=tuple(
            MetadataResponseBroker(node_id=BrokerId(5 + number), host=each.host, port=i32(each.port))
            for number, each in enumerate(brokers)
        ),
        topics=(),
    )


@pytest.fixture
def fake_broker() -> Iterator[Callable[..., FakeBroker]]:
    """Starts a broker with these answers."""
    running: list[FakeBroker] = []

    def start(answers: Answers, served: Mapping[int, tuple[int, int]] | None = None) -> FakeBroker:
        running.append(FakeBroker(answers, served or {}))
        return running[-1]

    yield start
    for broker in running:
        broker.stop()


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process: exit code, stdout, stderr."""
    return fairlog_command(monkeypatch, capsys)
