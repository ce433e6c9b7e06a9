"""Requests and answers as values: the envelope, arguments by name and type, results and refusals.

There are two kinds of errors in a request. A bad envelope is `Malformed`, and the connection is closed. A valid
envelope with a wrong argument is `Refused`, with a sentence that names the argument, and the connection stays open.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import cbor2

from fairlog.edge.malformed import Malformed
from fairlog.native.cbor import Item, read_untrusted

PREAMBLE = b"FLG1"
"""Both sides send it first. Its last byte is the version; as the length of a Kafka frame it is 1.1 GB."""

FRAME_BYTES_MAX = 16 << 20
"""The maximum size of requests and answers, after the length."""

TEXT_CHARACTERS_MAX = 249
"""The maximum length of a name, as for topics: a sink's name of this length fits into its transactional ids."""

NUMBER_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1

_SHOWN_CHARACTERS = 60
"""The characters of a wrong value that a refusal shows."""

Result: TypeAlias = Mapping[str, object]


class Refused(Exception):
    """The request is not carried out, or its effect is unknown: `kind` for programs, `sentence` for people."""

    def __init__(self, kind: str, sentence: str, more: Result | None = None) -> None:
        super().__init__(kind, sentence)
        self.kind = kind
        self.sentence = sentence
        self.more = more
        """What programs need besides the kind."""


class HangUp(Exception):
    """The connection is closed without an answer, so that the client asks another broker. The message is logged."""


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    op: str
    arguments: Mapping[str, Item]


def parse_request_untrusted(frame: bytes | bytearray | memoryview) -> Request:
    """The request in a frame. Raises Malformed."""
    item = read_untrusted(frame)
    match item:
        case [int(request_id), str(op), dict(arguments)] if not isinstance(request_id, bool):
            if not 0 <= request_id <= NUMBER_MAX:
                raise Malformed(f"the request id {request_id} is not between 0 and {NUMBER_MAX}")
            return Request(request_id, op, cast("dict[str, Item]", arguments))
        case _:
            raise Malformed(f"a request is [id, op, {{arguments}}], not {_shown(item)}")


def encode_result(request: Request, result: Result) -> bytes:
    """The answer of a successful request. Raises Refused if it does not fit into a frame."""
    body = cbor2.dumps([request.id, "ok", result])
    if len(body) > FRAME_BYTES_MAX:
        raise Refused(
            "too-large", f"the answer to {request.op} has {len(body)} bytes; at most {FRAME_BYTES_MAX} are sent"
        )
    return body


def encode_refusal(request_id: int | None, kind: str, sentence: str, more: Result | None = None) -> bytes:
    """The answer of a refused request; without an id if the request could not be read."""
    return cbor2.dumps([request_id, kind, sentence] if more is None else [request_id, kind, sentence, more])


class Arguments:
    """A request's arguments, taken one by one; every method may raise Refused, with the kind `bad-request`.

    `inside` names the argument whose fields these are, for error messages.
    """

    __slots__ = ("_inside", "_left", "_op")

    def __init__(self, op: str, values: Mapping[str, Item], inside: str = "") -> None:
        self._op = op
        self._left = dict(values)
        self._inside = inside

    def has(self, name: str) -> bool:
        """Whether the request has this argument, and it was not taken yet."""
        return name in self._left

    def text(self, name: str) -> str:
        return _text(self._take(name), self._named(name))

    def long_text(self, name: str, *, most: int) -> str:
        """A text that may be empty, and is never shown: it may be a secret."""
        value = self._take(name)
        if not isinstance(value, str) or len(value) > most:
            raise Refused("bad-request", f"{self._named(name)} is not a text of at most {most} characters")
        return value

    def texts(self, name: str) -> list[str]:
        return [_text(each, f"{self._named(name)}[{at}]") for at, each in enumerate(self._array(name))]

    def number(self, name: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
        return _number(self._take(name), self._named(name), least, most)

    def fields(self, name: str) -> Arguments:
        """A map, whose fields are taken in the same way."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise Refused("bad-request", f"{self._named(name)} is {_shown(value)}, not a map")
        return Arguments(self._op, value, f"{self._inside}{name}.")

    def partitions(self, name: str) -> list[tuple[str, int]]:
        """[[topic, partition]…]"""
        return [(topic, partition) for topic, (partition,) in self._of_topics(name, (PARTITION_MAX,))]

    def offsets(self, name: str) -> list[tuple[str, int, int]]:
        """[[topic, partition, offset]…]"""
        rows = self._of_topics(name, (PARTITION_MAX, NUMBER_MAX))
        return [(topic, partition, offset) for topic, (partition, offset) in rows]

    def numbers(self, name: str, most: tuple[int, ...]) -> list[tuple[int, ...]]:
        """An array of rows, each with this many numbers, none above its maximum."""
        return [tuple(_numbers(row, at, most)) for row, at in self._rows(name, len(most))]

    def end(self) -> None:
        """No argument may be left: otherwise a client would believe that it had an effect."""
        if self._left:
            name = next(iter(self._left))
            raise Refused("bad-request", f"{self._op} has no argument {self._inside}{name[:_SHOWN_CHARACTERS]}")

    def _of_topics(self, name: str, most: tuple[int, ...]) -> list[tuple[str, list[int]]]:
        return [
            (_text(row[0], f"{at}[0]"), _numbers(row[1:], at, most, first=1))
            for row, at in self._rows(name, 1 + len(most))
        ]

    def _rows(self, name: str, width: int) -> Iterable[tuple[list[Item], str]]:
        for number, row in enumerate(self._array(name)):
            at = f"{self._named(name)}[{number}]"
            if not isinstance(row, list) or len(row) != width:
                raise Refused("bad-request", f"{at} is {_shown(row)}, not an array of {width}")
            yield row, at

    def _array(self, name: str) -> list[Item]:
        value = self._take(name)
        if not isinstance(value, list):
            raise Refused("bad-request", f"{self._named(name)} is {_shown(value)}, not an array")
        return value

    def _take(self, name: str) -> Item:
        if name not in self._left:
            raise Refused("bad-request", f"{self._named(name)} is missing")
        return self._left.pop(name)

    def _named(self, name: str) -> str:
        return f"{self._op}: {self._inside}{name}"


def _text(value: Item, named: str) -> str:
    if not isinstance(value, str):
        raise Refused("bad-request", f"{named} is {_shown(value)}, not a text")
    if not 0 < len(value) <= TEXT_CHARACTERS_MAX:
        raise Refused("bad-request", f"{named} has {len(value)} characters; it must have 1 to {TEXT_CHARACTERS_MAX}")
    return value


def _number(value: Item, named: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused("bad-request", f"{named} is {_shown(value)}, not an integer")
    if not least <= value <= most:
        raise Refused("bad-request", f"{named} is {value}, not between {least} and {most}")
    return value


def _numbers(row: list[Item], at: str, most: tuple[int, ...], first: int = 0) -> list[int]:
    return [
        _number(each, f"{at}[{place}]", 0, limit)
        for place, (each, limit) in enumerate(zip(row, most, strict=True), start=first)
    ]


def _shown(value: Item) -> str:
    """A value for an error message: only its beginning, however large it is."""
    match value:
        case list():
            return f"an array of {len(value)}"
        case dict():
            return f"a map of {len(value)}"
        case str():
            more = "…" if len(value) > _SHOWN_CHARACTERS else ""
            return f"{value[:_SHOWN_CHARACTERS]!r}{more}"
        case True | False:
            return "true" if value else "false"
        case None:
            return "null"
        case int():
            return str(value)
