"""Readers of what peers send: Kafka's protocol and the native one, both as frames and as whole connections.

The broker is the one in memory. Its clock is virtual, so a request that waits for a minute is over at once; one that
waits for ever is found.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from unittest import mock

import cbor2
import structlog
import trio
from trio.testing import MockClock, memory_stream_pair

from fairlog.edge.frame_budget import FrameBudget
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.malformed import Malformed
from fairlog.edge.protocols import Served
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import Client, Deferred, HangUp
from fairlog.kafka.connection import Connection
from fairlog.kafka.handlers import ALL
from fairlog.kafka.router import Router
from fairlog.kafka.wire import Reader
from fairlog.native.cbor import read_untrusted
from fairlog.native.messages import PREAMBLE, parse_request_untrusted
from fairlog.native.protocol import NativeProtocol
from fairlog.security.desk import SignInDesk, SignInRules
from fairlog.security.mechanisms import MECHANISMS
from fairlog.security.principal import ANONYMOUS
from fairlog_client_security import ClientSecurity
from pyspark_fairlog.native import Native, NativeError, Partitions
from tests.fuzz.odd_cbor import with_odd_items
from tests.fuzz.target import Target
from tests.kafka.asking import NOT_IN_KIO, REQUESTS, Asker
from tests.kafka.example_requests import example_fields
from tests.kafka.in_memory import Memory
from tests.native.golden_conversation import GOLDEN, new_memory
from tests.native.golden_conversation import REQUESTS as NATIVE_REQUESTS
from tests.native.talking import frame
from tests.security.signing_in import SASL_PLAIN

_FRAME_BYTES_MAX = 1 << 20
_PATIENCE_S = 3600
"""By the virtual clock: more than any request may wait, but for Fetch, whose wait ends with its connection."""

_BY_KEY = {api.key: api for api in ALL}


class Silent:
    """Takes log lines, and counts those that report a fault of ours."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def __call__(self, logger: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        if level in ("error", "exception", "critical"):
            self.faults.append(repr(event.get("exception") or event))
        raise structlog.DropEvent


def decode_request(data: bytes) -> None:
    """A request's header and body, without a handler."""
    reader = Reader(data)
    with suppress(Malformed):
        key, version = reader.int16(), reader.int16()
        api = _BY_KEY.get(key)
        if api is None or version not in api.served:
            return
        reader.int32()
        reader.legacy_nullable_string()
        reader.flexible = version >= api.flexible_from
        reader.end_of_fields()
        api.decode(reader, version)


def handle_request(data: bytes) -> None:
    """One request from its frame to its answer, which another codec has to be able to read."""
    memory = Memory()
    memory.topics.create_now("t")
    _run(_handle, memory, data)


def _run(run: Callable[..., Awaitable[None]], *arguments: object) -> None:
    """By a virtual clock, and without a word: what a node logs is no answer, but for a fault of its own."""
    silent = Silent()
    structlog.configure(processors=[silent])
    try:
        with mock.patch.object(trio.to_thread, "run_sync", _in_no_thread):
            trio.run(run, *arguments, clock=MockClock(autojump_threshold=0))
    finally:
        structlog.reset_defaults()
    assert not silent.faults, f"a fault of the node: {silent.faults}"


async def _in_no_thread(work: Callable[..., object], *arguments: object, **_: object) -> object:
    """A virtual clock does not wait for threads."""
    await trio.lowlevel.checkpoint()
    return work(*arguments)


async def _handle(memory: Memory, data: bytes) -> None:
    asker = Asker(memory)
    with trio.fail_after(_PATIENCE_S):
        try:
            client = Client(1, "fuzz:1")
            started = await asker.router.start(data, client)
            answer = started.answer
            if isinstance(answer, Deferred):
                client.end_long_polls()
                try:
                    answer = started.finished(await answer.finish())
                finally:
                    if started.answer.release is not None:
                        started.answer.release()
        except (Malformed, HangUp):
            return
    if answer is not None:
        key, version = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        if version in _BY_KEY[key].served and (key, version) not in NOT_IN_KIO:
            asker.read_answer(key, version, b"".join(answer))


def serve_kafka(data: bytes) -> None:
    """A connection's whole stream, which comes in pieces of a size that the first byte says."""
    memory = Memory()
    memory.topics.create_now("t")
    router = Router(memory.broker, ALL)
    _serve(
        data,
        lambda stream: Connection(
            stream,
            Client(1, "fuzz:1"),
            router,
            frame_bytes_max=_FRAME_BYTES_MAX,
            budget=FrameBudget(),
            answers=AnswerBudget(),
            openings=(b"FLG",),
        ),
        beside=memory.groups.run,
    )


def serve_kafka_to_strangers(data: bytes) -> None:
    """The same on a listener that asks who a client is. Nobody gets in: there is no user."""
    memory = Memory()
    router = Router(memory.broker, ALL)
    desk = SignInDesk(SignInRules(MECHANISMS, True, 0), dict, lambda: None, Counter())
    signing_in = desk.open(SASL_PLAIN, lambda _event, _fields: None)
    client = Client(1, "fuzz:1", listener=SASL_PLAIN, sign_in=signing_in)
    _serve(
        data,
        lambda stream: Connection(
            stream,
            client,
            router,
            frame_bytes_max=_FRAME_BYTES_MAX,
            budget=FrameBudget(),
            answers=AnswerBudget(),
            openings=(b"FLG",),
        ),
    )
    assert client.principal == ANONYMOUS


def serve_natively_to_strangers(data: bytes) -> None:
    protocol = NativeProtocol(new_memory().broker)
    desk = SignInDesk(SignInRules(MECHANISMS, True, 0), dict, lambda: None, Counter())
    signing_in = desk.open(SASL_PLAIN, lambda _event, _fields: None)
    _serve(
        data,
        lambda stream: protocol.connection(
            stream,
            b"FLG",
            ordinal=1,
            peer="fuzz:1",
            budget=FrameBudget(),
            lines=LogLimiter(trio.current_time),
            sign_in=signing_in,
        ),
    )
    assert signing_in.principal == ANONYMOUS


def serve_natively(data: bytes) -> None:
    protocol = NativeProtocol(new_memory().broker)
    _serve(
        data,
        lambda stream: protocol.connection(
            stream, b"FLG", ordinal=1, peer="fuzz:1", budget=FrameBudget(), lines=LogLimiter(trio.current_time)
        ),
    )


def _serve(
    data: bytes,
    connection: Callable[[trio.abc.Stream], Served],
    *,
    beside: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
) -> None:
    """`beside` runs as long as the connection: what time does to requests that wait."""
    _run(_converse, data, connection, beside)


async def _converse(
    data: bytes, connection: Callable[[trio.abc.Stream], Served], beside: Callable[[], Awaitable[None]]
) -> None:
    ours, theirs = memory_stream_pair()
    piece = (data[0] if data else 0) * 8 or len(data) or 1

    async def send() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for at in range(1, len(data), piece):
                await theirs.send_all(data[at : at + piece])
            await theirs.send_eof()

    async def receive() -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await theirs.receive_some():
                pass

    with trio.fail_after(_PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            nursery.start_soon(receive)
            nursery.start_soon(beside)
            await connection(ours).serve()
            nursery.cancel_scope.cancel()


def read_cbor(data: bytes) -> None:
    """A native request; what our reader takes, cbor2 reads alike."""
    with suppress(Malformed):
        parse_request_untrusted(data)
    try:
        item = read_untrusted(data)
    except Malformed:
        return
    assert repr(cbor2.loads(data)) == repr(item), f"cbor2 reads {cbor2.loads(data)!r}, and not {item!r}"


def answer_client(data: bytes) -> None:
    """What a node, or whoever listens there, answers to Spark's side."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        theirs.sendall(data[: 1 << 16])
        theirs.shutdown(socket.SHUT_WR)
        client = Native(ours, "fuzz:1", 10, ClientSecurity())
        batch = {"sink": "totals", "query": "q", "run": "r1", "batch": 0}
        with suppress(ConnectionError):
            client._greet()
            asked: list[Callable[[], object]] = [
                lambda: client.join(**batch, partition=0, attempt=0),
                lambda: client.commit(**batch, winners=[(0, 0, 5)]),
                client.topics,
                lambda: client.cut(Partitions((("totals", 0),)), limit=1000),
                client.sinks,
                lambda: client.forget("totals"),
            ]
            for ask in asked:
                with suppress(NativeError):
                    ask()


def requests_of_all() -> Iterator[bytes]:
    """A right request of every API in every version."""
    for api in ALL:
        for version in range(api.served.min, api.served.max + 1):
            request = REQUESTS[api.key][0](version=version, **example_fields(api.key))
            request.with_header(correlation_id=5, client_id="fuzz")
            yield bytes(request.encode(version=version, header=True))


def _streams() -> Iterator[bytes]:
    requests = list(requests_of_all())
    for start in range(len(requests)):
        yield b"\x00" + b"".join(map(frame, requests[start : start + 3]))
    yield b"\x01" + b"".join(map(frame, requests[:40]))
    yield b"\x00FLG1"


def _strangers_streams() -> Iterator[bytes]:
    def request(key: int, version: int, **fields: object) -> bytes:
        made = REQUESTS[key][0](version=version, **fields)
        made.with_header(correlation_id=5, client_id="fuzz")
        return frame(bytes(made.encode(version=version, header=True)))

    first, last = b"n,,n=alice,r=nonce", b"c=biws,r=nonce,p=" + b"A" * 43 + b"="
    asked = request(18, 3, **example_fields(18))
    for version in (0, 1, 2):
        exchange = [request(36, version, auth_bytes=sent) for sent in (first, last)]
        yield b"\x00" + asked + request(17, 1, mechanism="SCRAM-SHA-256") + b"".join(exchange)
    yield b"\x00" + request(17, 0, mechanism="SCRAM-SHA-512") + frame(first) + frame(last)
    yield b"\x00" + request(17, 1, mechanism="PLAIN") + request(36, 1, auth_bytes=b"\0alice\0secret")
    yield b"\x00" + request(17, 1, mechanism="GSSAPI")
    yield b"\x00" + request(36, 2, auth_bytes=first)
    yield b"\x00" + request(3, 1, topics=[])


def _strangers_native_streams() -> Iterator[bytes]:
    asked = [
        ("sign-in", {"mechanism": "SCRAM-SHA-256", "message": "n,,n=alice,r=nonce"}),
        ("sign-in", {"message": "c=biws,r=nonce,p=AAAA"}),
        ("sign-in", {"mechanism": "PLAIN", "message": "\0alice\0secret"}),
        ("topics", {}),
    ]
    requests = [frame(cbor2.dumps([number, *request])) for number, request in enumerate(asked)]
    yield b"\x00" + PREAMBLE[3:] + b"".join(requests)
    yield from (b"\x00" + PREAMBLE[3:] + request for request in requests)


def _native_requests() -> Iterator[bytes]:
    for number, (op, arguments) in enumerate(NATIVE_REQUESTS, start=1):
        request = cbor2.dumps([number, op, arguments])
        yield request
        yield from with_odd_items(request)
    yield b"\x81" * 5_000 + b"\x00"
    yield b"\x9a\x00\x03\x0d\x40" + bytes(200_000)


def _native_streams() -> Iterator[bytes]:
    """Behind what the listener has read of the opening."""
    version = PREAMBLE[3:]
    requests = [
        frame(cbor2.dumps([number, op, arguments])) for number, (op, arguments) in enumerate(NATIVE_REQUESTS, start=1)
    ]
    yield b"\x00" + version + b"".join(requests)
    yield b"\x01" + version + b"".join(requests)
    yield from (b"\x00" + version + request for request in requests)


def _native_answers() -> Iterator[bytes]:
    """The node's side of the golden conversation, its first answers; and right ones to what `answer_client` asks."""
    told = [line[2:] for line in GOLDEN.read_text().splitlines() if line.startswith("< ")]
    yield b"".join(map(bytes.fromhex, told))
    answers: list[object] = [
        {"transactional_id": "fairlog.lane.0.totals"},
        {"already": False, "placements": [["totals", 0, 0, 5]]},
        {"topics": [["totals", 1]]},
        {"partitions": [["totals", 0, 0, 5, 5]]},
        {"sinks": []},
        {},
    ]
    right = [cbor2.dumps([number, "ok", answer]) for number, answer in enumerate(answers, start=1)]
    yield PREAMBLE + b"".join(map(frame, right))
    for index, answer in enumerate(right):
        for odd in with_odd_items(answer):
            yield PREAMBLE + b"".join(map(frame, [*right[:index], odd, *right[index + 1 :]]))


TARGETS = (
    Target("kafka-decode", "requests of all APIs and versions", decode_request, requests_of_all),
    Target("kafka-request", "the same, handled and answered", handle_request, requests_of_all),
    Target("kafka-connection", "a connection's stream of frames", serve_kafka, _streams),
    Target("kafka-stranger", "the same of somebody who has to sign in", serve_kafka_to_strangers, _strangers_streams),
    Target("native-request", "a request of the native protocol", read_cbor, _native_requests),
    Target("native-connection", "a native connection's stream", serve_natively, _native_streams),
    Target(
        "native-stranger",
        "the same of somebody who has to sign in",
        serve_natively_to_strangers,
        _strangers_native_streams,
    ),
    Target("native-client", "what Spark's side is answered", answer_client, _native_answers),
)
