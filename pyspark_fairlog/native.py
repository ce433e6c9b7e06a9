"""The native protocol's client: what Spark's driver and executors ask of a node besides Kafka's protocol.

    join, commit, abort    a sink's batches, committed as one              (driver and executors)
    cut, topics            ends of partitions that split no transaction    (driver)
    sinks, forget          what the node remembers of sinks                (driver)

How it works. One connection, one request at a time, blocking: write a frame, read a frame. The frames are CBOR, as
docs/formats/native-protocol.md says. A refusal of the node is a `NativeError`, and the connection goes on. A
`ConnectionError` means that nothing is known of the request, and the connection is of no more use: connect anew and ask
again. Asking again is always safe: a batch is committed once, however often it is asked for.

A node of several processes, and a cluster of several nodes, has several brokers. A sink is at one of them, and brokers
that own no shard take no cuts. Who is asked in vain answers with the right one's address ("not-coordinator"): the
request is sent on, and so are later ones about the same, over a connection that is kept beside the first. If that
breaks, so does the whole `Native`.

A broker that is cut off from the others hangs up, and knows of no other one. So whoever connects anew after a
connection has broken begins at the next address of the list: the process remembers which one that is.

Every connection, also one to a broker that was named by another, is what `ClientSecurity` says: over TLS, and signed in
before the first request. Where the node says that a session ends, the client signs in again before it does (KIP-368).

It stands on the standard library and cbor2 alone, and on scramp to sign in by SCRAM, so that executors need nothing of
the node. The command line has a client of its own (`fairlog/cli/native_client.py`), because the node's package must not
need this one, which is Spark's.

What it does not do: several requests under way, a thread-safe connection.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias, TypeVar, cast

import cbor2

from fairlog_client_security import ClientSecurity, SecurityRefused

PREAMBLE = b"FLG1"
"""Sent first, by both sides. Its last byte is the protocol's version."""

FRAME_BYTES_MAX = 16 << 20
"""Of a frame behind its length. The node refuses larger ones, and sends none."""

PORT_DEFAULT = 9092
"""As in Kafka's clients."""

NOT_THERE = ("unknown-topic", "unknown-partition")
"""Refusals of what is named and not there."""

NOT_NOW = ("not-copied", "not-coordinator")
"""Refusals to tell ends for the moment: what was answered before the question cannot be read yet, or a shard is between
two owners, and brokers name one another.
"""

LIST_TRIES = 5
"""So often topics are listed anew that are deleted between the list and the cut."""

REDIRECTED_MAX = 3
"""So often a request is sent on to the broker that is named as the right one."""

AGAIN_MIN_S = 1.05
"""The node takes a client that signs in again a second after the last time at the soonest."""

AGAIN_AT = 0.8
"""So much of a session is over when the client signs in again, as in Kafka's clients at the latest."""

_LENGTH = struct.Struct(">I")

T = TypeVar("T")

_begins: dict[str, int] = {}
"""By list of nodes: the number of the address to begin at, where a connection broke."""


class NativeError(Exception):
    """The node has refused a request, or cannot tell whether it had an effect (`kind` is "effect-unknown").

    Also if the two do not come to know each other (`kind` is "sign-in-failed", or "not-secured" if it is the client who
    refuses): to try again would not help.
    """

    def __init__(self, kind: str, sentence: str, address: tuple[str, int] | None = None) -> None:
        super().__init__(kind, sentence)
        self.address = address
        """Of the broker that has to be asked instead ("not-coordinator")."""
        self.kind = kind
        """Which refusal: "another-query", "old-run", "unknown-topic", …; all are listed in the protocol's page."""
        self.sentence = sentence
        """What has happened, where, and what to do, for people."""

    def __str__(self) -> str:
        return f"{self.sentence} ({self.kind})"


class NoAnswerYet(ConnectionError):
    """The node has greeted, and has not answered a request in time. It may be at work on it, and go on with that."""


@dataclass(frozen=True, slots=True)
class Topics:
    """All partitions of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """All partitions of the topics whose whole name matches this regular expression of Python's `re`."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Partitions:
    """These (topic, partition)s."""

    partitions: tuple[tuple[str, int], ...]


Selection: TypeAlias = Topics | TopicPattern | Partitions


@dataclass(frozen=True, slots=True)
class CutPartition:
    """A partition at a cut. Offsets: all but `end` and `high` are inclusive."""

    topic: str
    partition: int
    first: int
    """The first offset that can be read."""
    end: int
    """Where the cut is: the records below it are of whole transactions, together with those of the other partitions."""
    high: int
    """What could be read at that moment, without any limit: `high - end` is how far the cut is behind."""
    topic_id: str | None = None
    """Which topic of that name it is: one that is deleted and made anew has another id. None: the node does not say."""


@dataclass(frozen=True, slots=True)
class _Sink:
    name: str


_Subject: TypeAlias = _Sink | None
"""What a request is about."""
_CUTS: _Subject = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a batch's records are: so many, from `base_offset` on, without holes."""

    topic: str
    partition: int
    base_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A batch that is committed."""

    already: bool
    """It was so before it was asked for."""
    placements: tuple[Placement, ...]
    """Sorted, without those in topics that are gone; () also if they are too many for an answer."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """How far a consumer group is, to be committed together with a batch: (topic, partition, next offset)s."""

    group: str
    partitions: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class SinkDescription:
    """What the node remembers of a sink."""

    sink: str
    query: str
    run: str | None
    """The current one; None if none has joined since the node was started."""
    batch: int | None
    """The last one that is committed; None before the first."""
    placements: tuple[Placement, ...]
    """Of that batch."""
    open_lanes: tuple[str, ...]
    """Of the batch that is being written."""
    used_ms: int
    """When the sink was last used, in ms since 1970."""


class Native:
    """A connection to one node; a context manager that closes it. Use `connect`."""

    def __init__(self, stream: socket.socket, address: str, timeout_s: float, security: ClientSecurity) -> None:
        self._stream = stream
        self._address = address
        self._security = security
        self._sign_in_again_s: float | None = None
        """By the monotonic clock."""
        self._next: tuple[str, int] | None = None
        """The list of nodes that it is of, and the number of the address behind its own."""
        self.answer_s = timeout_s
        """So long each answer is waited for; it may be changed between requests."""
        self._id = 0
        self._broken = False
        self._elsewhere: dict[_Subject, tuple[str, int]] = {}
        """Where to ask about what is not here."""
        self._others: dict[tuple[str, int], Native] = {}

    @classmethod
    def connect(cls, bootstrap: str, *, timeout_s: float = 10, security: ClientSecurity = ClientSecurity()) -> Native:
        """Connect to the first node of `bootstrap` ("host:port[,host:port]") that answers, and sign in.

        It begins behind the address whose connection broke last, if one did, and goes round.
        `timeout_s` is for connecting, and for each answer later. Raises ConnectionError with a sentence that says of
        each address what is wrong; NativeError, at once, if one does not let the client in, or is none that the client
        trusts; and ValueError if `bootstrap` is not a list of addresses.
        """
        failures: list[str] = []
        addresses = list(enumerate(_addresses(bootstrap)))
        begin = _begins.get(bootstrap, 0)
        for number, (host, port) in addresses[begin:] + addresses[:begin]:
            address = _text_of(host, port)
            try:
                stream = socket.create_connection((host, port), timeout_s)
            except OSError as error:
                failures.append(f"cannot reach {address}: {error.strerror or error}")
                continue
            except UnicodeError:
                failures.append(f"cannot reach {address}: that is no name of a host")
                continue
            native = cls(stream, address, timeout_s, security)
            native._next = bootstrap, (number + 1) % len(addresses)
            try:
                native._secure(host)
                native._greet()
                native._sign_in()
            except ConnectionError as error:
                native.close()
                failures.append(str(error))
            except BaseException:
                native.close()
                raise
            else:
                return native
        raise ConnectionError("; ".join(failures))

    def close(self) -> None:
        """Close the connection. Lanes that were joined stay joined."""
        self._broken = True
        self._stream.close()
        for other in self._others.values():
            other.close()

    @property
    def is_idle(self) -> bool:
        """Whether a request may be sent: it is open, and the node has neither closed it nor said anything unasked."""
        return self._is_idle() and all(other.is_idle for other in self._others.values())

    def _is_idle(self) -> bool:
        if self._broken:
            return False
        try:
            self._stream.setblocking(False)
            self._stream.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        self._broken = True  # a byte of what it has said, if it has, is lost
        return False

    def __enter__(self) -> Native:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- a sink's batches -----------------------------------------------------------------------

    def join(self, *, sink: str, query: str, run: str, batch: int, partition: int, attempt: int) -> str | None:
        """The transactional id under which this task attempt writes for the batch; None: that is committed already.

        It is for one ordinary transactional producer, which begins a transaction, writes, flushes, and leaves the
        commit to the group. Raises NativeError, ConnectionError.
        """
        answer = self._ask_about(
            _Sink(sink),
            "join",
            {"sink": sink, "query": query, "run": run, "batch": batch, "partition": partition, "attempt": attempt},
        )
        return None if answer.get("committed") is True else _get(answer, "transactional_id", str)

    def commit(
        self,
        *,
        sink: str,
        query: str,
        run: str,
        batch: int,
        winners: Sequence[tuple[int, int, int]],
        offsets: Offsets | None = None,
        planned_ms: int | None = None,
    ) -> Committed:
        """Commit the batch: what the `winners` (partition, attempt, records) have written, and nothing else of it.

        `offsets` of a consumer group go into the same commit. `planned_ms` is when the batch was planned, in ms since
        1970: a batch that is committed, and was planned at another time, is refused ("set-back"). When this returns,
        the batch survives any crash. Raises NativeError (without effect, but for the kind "effect-unknown") and
        ConnectionError (effect unknown); asked again, a batch that was committed is answered as such. The answer comes
        when the records can be read: for a large batch it may come later than `answer_s`, and the commit goes on.
        """
        asked: dict[str, object] = {
            "sink": sink,
            "query": query,
            "run": run,
            "batch": batch,
            "winners": [list(winner) for winner in winners],
        }
        if offsets is not None:
            asked["offsets"] = {"group": offsets.group, "partitions": [list(each) for each in offsets.partitions]}
        if planned_ms is not None:
            asked["planned_ms"] = planned_ms
        answer = self._ask_about(_Sink(sink), "commit", asked)
        return Committed(_get(answer, "already", bool), _placements(answer))

    def abort(self, *, sink: str, query: str, run: str, batch: int) -> None:
        """Discard what was written for the batch, which can be joined again. Raises NativeError, ConnectionError."""
        self._ask_about(_Sink(sink), "abort", {"sink": sink, "query": query, "run": run, "batch": batch})

    # --- cuts -----------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """The node's topics with the count of their partitions, without internal ones.

        Raises NativeError, ConnectionError.
        """
        rows = _rows(self._ask("topics", {}), "topics", (str, int))
        return {cast(str, name): cast(int, partitions) for name, partitions in rows}

    def cut(
        self,
        selection: Selection,
        *,
        starts: Iterable[tuple[str, int, int]] | None = None,
        limit: int | None = None,
    ) -> list[CutPartition]:
        """A cut through the selected partitions: what a transaction wrote to them lies below it all, or not at all.

        Without `limit` it is what can be read now. With it, it is a cut with at most `limit` records between `starts`
        (topic, partition, offset; the log's start where there is none) and its ends, or the first one beyond the
        starts if that has more. Sorted by topic and partition. Raises NativeError ("unknown-topic",
        "unknown-partition") and ConnectionError; ValueError for a pattern that is none.
        """
        asked: dict[str, object] = {}
        if starts is not None:
            asked["starts"] = [list(each) for each in starts]
        if limit is not None:
            asked["limit"] = limit
        match selection:
            case Topics(names):
                return self._cut(asked | {"topics": list(names)})
            case Partitions(partitions):
                return self._cut(asked | {"partitions": [list(each) for each in partitions]})
            case TopicPattern(pattern):
                return self._cut_matching(_compiled(pattern), asked)

    def _cut_matching(self, pattern: re.Pattern[str], asked: dict[str, object]) -> list[CutPartition]:
        for tries_left in reversed(range(LIST_TRIES)):
            names = [name for name in self.topics() if pattern.fullmatch(name)]
            try:
                return self._cut(asked | {"topics": names})
            except NativeError as error:
                if error.kind != "unknown-topic" or tries_left == 0:
                    raise
        raise AssertionError("the last try returns or raises")

    def _cut(self, asked: dict[str, object]) -> list[CutPartition]:
        answer = self._ask_about(_CUTS, "cut", asked)
        rows = _rows(answer, "partitions", (str, int, int, int, int))
        ids = cast("dict[str, object]", _get(answer, "topic_ids", dict) if "topic_ids" in answer else {})
        return sorted(
            (_cut_partition(cast("tuple[str, int, int, int, int]", row), ids) for row in rows),
            key=lambda it: (it.topic, it.partition),
        )

    # --- sinks ----------------------------------------------------------------------------------

    def sinks(self) -> list[SinkDescription]:
        """All sinks that this broker has, by name. Raises NativeError, ConnectionError."""
        found: list[SinkDescription] = []
        for item in cast("list[object]", _get(self._ask("sinks", {}), "sinks", list)):
            if not isinstance(item, dict):
                raise ConnectionError(f"a sink in the node's answer is {_shown(item)}")
            each = cast("dict[str, object]", item)
            run, batch = each.get("run"), each.get("batch")
            found.append(
                SinkDescription(
                    _get(each, "sink", str),
                    _get(each, "query", str),
                    None if run is None else _get(each, "run", str),
                    None if batch is None else _get(each, "batch", int),
                    _placements(each),
                    tuple(cast("list[str]", _get(each, "open_lanes", list))),
                    _get(each, "used_ms", int),
                )
            )
        return found

    def forget(self, sink: str) -> None:
        """Let the node forget a sink: a batch of it that is replayed later is written again.

        Raises NativeError, ConnectionError.
        """
        self._ask_about(_Sink(sink), "forget", {"sink": sink})

    # --- the right broker -------------------------------------------------------------------------

    def _ask_about(self, subject: _Subject, op: str, arguments: dict[str, object]) -> dict[str, object]:
        """Ask the broker that has it, wherever that is. Raises NativeError, ConnectionError."""
        for redirections_left in reversed(range(REDIRECTED_MAX + 1)):
            try:
                return self._at_broker_of(subject)._ask(op, arguments)
            except NativeError as error:
                if error.address is None or not redirections_left:
                    raise
                self._elsewhere[subject] = error.address
            except ConnectionError:
                self._break()  # another broker may have it by the time it is asked again
                raise
        raise AssertionError("the last try returns or raises")

    def _at_broker_of(self, subject: _Subject) -> Native:
        """Raises ConnectionError."""
        address = self._elsewhere.get(subject)
        if address is None:
            return self
        if address not in self._others:
            host, port = address
            self._others[address] = Native.connect(
                _text_of(host, port), timeout_s=self.answer_s, security=self._security
            )
        other = self._others[address]
        other.answer_s = self.answer_s
        return other

    # --- who is who -------------------------------------------------------------------------------

    def _secure(self, host: str) -> None:
        try:
            self._stream = self._security.secured(self._stream, host)
        except SecurityRefused as refused:
            raise NativeError("not-secured", f"{self._address}: {refused}") from refused
        except OSError as error:
            raise ConnectionError(
                f"no TLS with {self._address}: {error.strerror or error}; does it listen with TLS, and take the "
                "client's certificate?"
            ) from error

    def _sign_in(self) -> None:
        """Show who the client is, if it is to. Raises NativeError, after which the connection is closed, and
        ConnectionError.
        """
        mechanism = self._security.mechanism
        if mechanism is None:
            return
        named = {"mechanism": mechanism}
        answer: dict[str, object] = {}

        def exchange(message: bytes) -> bytes:
            nonlocal answer
            answer = self._exchange_checked("sign-in", {"message": message.decode(), **named})
            named.clear()
            return _get(answer, "message", str).encode()

        try:
            self._security.sign_in(exchange)
        except SecurityRefused as refused:
            self.close()
            raise NativeError("not-secured", f"{self._address}: {refused}") from refused
        except NativeError as refusal:
            self.close()
            raise NativeError(refusal.kind, f"{self._address} does not let the client in: {refusal.sentence}") from None
        lifetime_s = _get(answer, "lifetime_ms", int) / 1000
        self._sign_in_again_s = time.monotonic() + max(AGAIN_MIN_S, AGAIN_AT * lifetime_s) if lifetime_s > 0 else None

    # --- frames ---------------------------------------------------------------------------------

    def _greet(self) -> None:
        try:
            self._stream.sendall(PREAMBLE)
            answer = self._receive(len(PREAMBLE), time.monotonic() + self.answer_s)
        except OSError as error:
            raise ConnectionError(
                f"{self._address} does not answer as a Fairlog node does: {error.strerror or error}; is it one, "
                f"new enough for the native protocol, and is kafka.security.protocol {self._security.protocol} there?"
            ) from error
        if answer != PREAMBLE:
            raise ConnectionError(
                f"{self._address} answers {answer!r} and not {PREAMBLE!r}: it is no Fairlog node, or speaks another "
                "version of the native protocol"
            )

    def _ask(self, op: str, arguments: dict[str, object]) -> dict[str, object]:
        """Send a request, wait for its answer. Raises NativeError, ConnectionError."""
        again_s = self._sign_in_again_s
        if again_s is not None and time.monotonic() >= again_s and not self._broken:
            self._sign_in()
        return self._exchange_checked(op, arguments)

    def _exchange_checked(self, op: str, arguments: dict[str, object]) -> dict[str, object]:
        if self._broken:
            raise ConnectionError(f"the connection to {self._address} is closed; connect anew")
        self._id += 1
        body = cbor2.dumps([self._id, op, arguments])
        if len(body) > FRAME_BYTES_MAX:
            raise NativeError(
                "bad-request", f"a request {op} of {len(body)} bytes; at most {FRAME_BYTES_MAX} are taken"
            )
        try:
            answer = self._exchange(body)
        except TimeoutError as error:
            self._break()
            raise NoAnswerYet(f"{op} at {self._address}: {error}") from error
        except OSError as error:
            self._break()
            raise ConnectionError(f"{op} at {self._address}: {error.strerror or error}") from error
        except BaseException:
            self.close()  # a request is half sent, or its answer half read
            raise
        try:
            return self._checked(answer)
        except ConnectionError:
            self.close()
            raise

    def _break(self) -> None:
        """Close the connection, and have whoever connects anew begin at the next address."""
        self.close()
        if self._next is not None:
            bootstrap, number = self._next
            _begins[bootstrap] = number

    def _exchange(self, body: bytes) -> bytes:
        deadline = time.monotonic() + self.answer_s
        self._stream.settimeout(self.answer_s)
        self._stream.sendall(_LENGTH.pack(len(body)) + body)
        (length,) = _LENGTH.unpack(self._receive(_LENGTH.size, deadline))
        if length > FRAME_BYTES_MAX:
            raise ConnectionError(f"a frame of {length} bytes is announced; this is not the native protocol")
        return self._receive(length, deadline)

    def _receive(self, count: int, deadline: float) -> bytes:
        parts: list[bytes] = []
        while count:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no answer within {self.answer_s:g} s")
            self._stream.settimeout(left_s)
            try:
                part = self._stream.recv(min(count, 1 << 20))
            except TimeoutError:
                raise TimeoutError(f"no answer within {self.answer_s:g} s") from None
            if not part:
                raise ConnectionError("the node has closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _checked(self, body: bytes) -> dict[str, object]:
        """The result in an answer. Raises NativeError for a refusal, ConnectionError if it does not belong here."""
        try:
            answer: object = cbor2.loads(body)
        except (cbor2.CBORDecodeError, ValueError) as error:
            raise ConnectionError(f"{self._address} sends no CBOR: {error}") from error
        match answer:
            case [self._id, "ok", dict()]:
                return cast("dict[str, object]", cast("list[object]", answer)[2])
            case [self._id | None, str(kind), str(sentence)]:
                raise NativeError(kind, sentence)
            case [self._id, str(kind), str(sentence), {"host": str(host), "port": int(port)}]:
                raise NativeError(kind, sentence, (host, port))
            case _:
                raise ConnectionError(
                    f"{self._address} has answered another request than the one asked: {_shown(answer)}"
                )


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    """The (host, port)s of "host:port[,host:port]"; a port that is left out is Kafka's. Raises ValueError."""
    found: list[tuple[str, int]] = []
    for text in (part.strip() for part in bootstrap.split(",")):
        matched = re.fullmatch(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]+))(?::(?P<port>[0-9]{1,5}))?", text)
        if matched is None or int(matched["port"] or 0) > 65535:
            raise ValueError(f"{text!r} in {bootstrap!r} is no address; write HOST:PORT[,HOST:PORT]")
        found.append((matched["v6"] or matched["host"], int(matched["port"] or PORT_DEFAULT)))
    return found


def _text_of(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error


def _shown(value: object) -> str:
    """How a value of an answer begins."""
    try:
        return f"{value!r:.200}"
    except ValueError:
        return "a number of thousands of digits"  # which Python does not print


def _get(result: dict[str, object], field: str, kind: type[T]) -> T:
    value = result.get(field)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConnectionError(f"the field {field!r} of the node's answer is {_shown(value)}, and no {kind.__name__}")
    return value


def _rows(result: dict[str, object], field: str, kinds: tuple[type, ...]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for row in cast("list[object]", _get(result, field, list)):
        cells = tuple(cast("list[object]", row)) if isinstance(row, list) else ()
        shown = cast("object", row)
        if len(cells) != len(kinds) or not all(map(isinstance, cells, kinds)):
            raise ConnectionError(f"a row of {field!r} in the node's answer is {_shown(shown)}")
        rows.append(cells)
    return rows


def _cut_partition(row: tuple[str, int, int, int, int], ids: dict[str, object]) -> CutPartition:
    return CutPartition(*row, topic_id=_get(ids, row[0], str) if row[0] in ids else None)


def _placements(result: dict[str, object]) -> tuple[Placement, ...]:
    rows = _rows(result, "placements", (str, int, int, int))
    return tuple(Placement(*cast("tuple[str, int, int, int]", row)) for row in rows)
