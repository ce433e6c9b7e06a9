"""What a handler is, and what passes between a handler and the connection that it serves.

    frame ──▶ router: header, version ──▶ Api.decode ──▶ Api.handle ──▶ Answer | Deferred | None ──▶ connection

`handle` is awaited before the connection starts its next request. A wait for something else (a flush, new data, a
time-out) goes into a `Deferred`, which the connection's writer finishes. As in Kafka, the next request is started when
this one is answered, so it sees all its effects (invariant 13). Only requests of an API with `overlaps` are started
while others of the same API wait for their answers, and so share a flush.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from fairlog.broker import Broker
from fairlog.edge.log_limiter import LogLimiter
from fairlog.kafka.answer_budget import AnswerBudget, AnswerRoom
from fairlog.kafka.fetch_sessions import FetchSessionCache
from fairlog.kafka.wire import Buffer, Reader, Writer
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.authorizer import Rights
from fairlog.security.listeners import PLAIN, Listener
from fairlog.security.principal import ANONYMOUS, Principal
from fairlog.security.sign_in import SignIn

R = TypeVar("R")

Answer = list[Buffer]
"""The body of an answer, without its header, as buffers to be sent one after the other."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """An answer that is not complete yet. `finish` bounds its own waiting, and can be cancelled at any time."""

    finish: Callable[[], Awaitable[Answer]]
    release: Callable[[], None] | None = None
    """Called once, when the answer has been sent or will never be sent, even if `finish` was not called."""
    room: AnswerRoom | None = None
    """The answer's part of the budget for all answers; released at the same time."""
    keeps_request: bool = False
    """Whether `finish` needs the whole request, so that it stays in memory until then."""


Reply = Answer | Deferred | None
"""None: the client wants no answer (Produce with acks=0)."""


class HangUp(Exception):
    """The connection must be closed without an answer, as the protocol demands. The message is logged."""


CLIENT_NAME_MAX = 255
"""The number of characters kept of a client's name: it appears in log lines, and is kept as long as the connection."""


@dataclass(slots=True)
class Client:
    """The peer at the other end of a connection, as it describes itself. Of this only `principal` is verified."""

    connection: int
    """The connection's ordinal: grows with each connection that the node accepts."""
    peer: str
    """Address and port, for log lines."""
    client_id: str = ""
    software_name: str = ""
    """From ApiVersions v3+, as `librdkafka` or `apache-kafka-java`; empty if the client did not say."""
    software_version: str = ""
    listener: Listener = PLAIN
    """Where it came in: it is told the addresses of brokers' listeners of this name."""
    principal: Principal = ANONYMOUS
    """Who the peer has shown to be."""
    rights: Rights | None = None
    """What it may do, as of its last request; None if everyone may do everything."""
    sign_in: SignIn | None = None
    """How it shows that; None on a listener that does not ask."""
    sends_bare_tokens: bool = False
    """Whether its next frame is a SASL message without a header: after SaslHandshake v0."""
    lines: LogLimiter = field(default_factory=functools.partial(LogLimiter, trio.current_time))
    """Shared by all clients of the server. For log lines that a client can cause at will."""
    muted_until: float = 0.0
    """By the event loop's clock: no request is started before (KIP-219), unless quotas have changed since"""
    muted_under: int = 0
    """this count of their changes."""
    _polling: trio.CancelScope | None = None
    _polls_ended: bool = False

    @property
    def host(self) -> str:
        """The peer's address without its port."""
        return self.peer.rpartition(":")[0]

    @property
    def shown_host(self) -> str:
        """The same, written as Kafka does where it shows it: with a leading slash."""
        return f"/{self.host}"

    def admit_line(self, event: str) -> Mapping[str, int] | None:
        """None if no log line of this event should be written now; otherwise what it says about suppressed ones."""
        return self.lines.admit(self.host, event)

    @contextmanager
    def long_poll(self, deadline: float) -> Generator[trio.CancelScope, None, None]:
        """A wait for new data: ends at `deadline` (by the event loop's clock), or when the connection must end.

        One at a time, as answers are finished one at a time.
        """
        assert self._polling is None, "answers are finished one after the other"
        with trio.CancelScope(deadline=deadline) as self._polling:
            if self._polls_ended:
                self._polling.cancel()
            try:
                yield self._polling
            finally:
                self._polling = None

    def end_long_poll(self) -> None:
        """The wait in progress, if any, ends, and its answer has what is available."""
        if self._polling is not None:
            self._polling.cancel()

    def end_long_polls(self) -> None:
        """The wait in progress, and all later ones, end at once; their answers have what is available."""
        self._polls_ended = True
        self.end_long_poll()


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of an API that are served, both ends included."""

    min: int
    max: int

    def __contains__(self, version: int) -> bool:
        return self.min <= version <= self.max


class EncodedAnswers:
    """Encoded answers that are the same for every client, until the cluster's generation changes.

    A thousand clients that each ask for the same topics cost one encoding, which takes tens of milliseconds for ten
    thousand partitions. A very large answer, or one to a long request, is not kept. When the store is full, the next
    answer empties it.
    """

    ANSWER_BYTES_MAX = 4 << 20
    BYTES_MAX = 16 << 20
    KEY_ITEM_BYTES = 512
    """The approximate size of one requested item in a key, besides its name, which is in the answer as well."""

    __slots__ = ("_answers", "_bytes", "_generation", "one_at_a_time")

    def __init__(self) -> None:
        self.one_at_a_time = trio.Lock()
        """Caches the answers that take long to encode."""
        self._generation = -1
        self._bytes = 0
        self._answers: dict[object, Answer] = {}

    def get(self, key: object, generation: int) -> Answer | None:
        return self._answers.get(key) if generation == self._generation else None

    def put(self, key: object, generation: int, answer: Answer, *, key_items: int) -> None:
        """Keep the answer to `key`, which names `key_items` things, if it is small."""
        size = sum(map(len, answer)) + self.KEY_ITEM_BYTES * (1 + key_items)
        if size > self.ANSWER_BYTES_MAX:
            return
        if generation != self._generation or self._bytes + size > self.BYTES_MAX:
            self._answers.clear()
            self._bytes = 0
            self._generation = generation
        if key not in self._answers:
            self._answers[key] = answer
            self._bytes += size


@dataclass(frozen=True, slots=True)
class Context:
    """The context of one request."""

    broker: Broker
    client: Client
    version: int
    """The requested version of the API; always one that is served."""
    flexible: bool
    served: Mapping[int, Versions]
    """All API keys that are served and advertised."""
    encoded: EncodedAnswers = field(default_factory=EncodedAnswers)
    answers: AnswerBudget = field(default_factory=AnswerBudget)
    sessions: FetchSessionCache = field(default_factory=functools.partial(FetchSessionCache, 0))
    errors: dict[int, int] = field(default_factory=dict[int, int])
    """Counts the error codes in answers."""
    request_bytes: int = 0
    """Of the whole request, with its header."""

    def writer(self) -> Writer:
        """A writer for this request's answer."""
        return Writer(flexible=self.flexible, errors=self.errors)


@dataclass(frozen=True, slots=True)
class Check:
    """An operation on a resource that a client must be allowed. `fairlog.kafka.checks` has all of them, and asks."""

    operation: Operation
    of: ResourceType
    code: int
    """Kafka's error code for a client that may not."""


@dataclass(frozen=True, slots=True)
class Api(Generic[R]):
    """One of Kafka's APIs, as a handler module serves it."""

    key: int
    name: str
    served: Versions
    flexible_from: int
    """The first version with compact lengths and tagged fields."""
    decode: Callable[[Reader, int], R]
    """Reads the request's body in the given version. Raises only Malformed."""
    handle: Callable[[Context, R], Awaitable[Reply]]
    checks: tuple[Check, ...]
    """All that `handle` asks of what the client may do; docs/authorization.md says of what, and what it answers."""
    overlaps: bool = False
    """Whether consecutive requests of this API on a connection may wait for their answers at the same time.

    Only if `handle` has all their effects, in their order, and `finish` only waits.
    """
    answer_header_tagged: bool = True
    """Whether answers of flexible versions carry tagged fields in their header: all but ApiVersions'."""
    advertised: bool = True
    """Whether ApiVersions lists it. Clients do not use what is not listed."""
