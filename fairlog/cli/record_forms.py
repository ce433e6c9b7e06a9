"""A record on the command line: as one line of JSON, which loses nothing, and as text for people.

JSON lines are what `consume --json` prints and `produce --json` takes:

    {"topic": "orders", "partition": 0, "offset": 12, "timestamp_ms": 1763640000000,
     "key": "k", "value": "text", "headers": [["trace", "7f"]]}

Keys, values and headers' values are bytes in Kafka. Bytes that are UTF-8 stand as text, others as
{"base64": "…"}, and none at all as null: each of the three reads back as what it was.

For people, bytes that are not UTF-8 are shown as Python writes them, b'\\xff\\x00', and what could move a terminal's
cursor or change its colours is escaped: a record's producer does not own the reader's screen.

Pure: no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, cast

Headers = tuple[tuple[str, bytes | None], ...]

_SHOWN_CHARACTERS_MAX = 1_000
"""Of a key or value shown to people; JSON has all of it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LINE_FIELDS = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")


class ReadRecord(NamedTuple):
    """A record and where it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    """-1 if its producer set none."""
    key: bytes | None
    value: bytes | None
    headers: Headers


class NewRecord(NamedTuple):
    """A record to be produced."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    partition: int | None = None
    """None lets the client choose by the key."""
    timestamp_ms: int | None = None
    """None for the time of producing."""


class MalformedLine(ValueError):
    """A line is not a record. The message says why, without naming the line."""


def to_json_line(record: ReadRecord) -> str:
    """One line, without its end."""
    return json.dumps(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _to_json(record.key),
            "value": _to_json(record.value),
            "headers": [[name, _to_json(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
        separators=(", ", ": "),
    )


def from_json_line(line: bytes) -> NewRecord:
    """Read a line of `to_json_line`; all fields but "value" may be left out.

    "topic" and "offset" say where the record was read, and are not used. A field of any other name is refused, for it
    is a misspelt one. Raises MalformedLine.
    """
    try:
        document = cast(object, json.loads(line))
    except ValueError as error:
        raise MalformedLine(f"it is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedLine("it is not a JSON object")
    fields = cast("Mapping[str, object]", document)
    unknown = sorted(fields.keys() - set(_LINE_FIELDS))
    if unknown:
        raise MalformedLine(f"it has the unknown field {unknown[0]!r}; a record has {', '.join(_LINE_FIELDS)}")
    if "value" not in fields:
        raise MalformedLine("it has no field 'value' (null is a tombstone)")
    timestamp_ms = _number(fields, "timestamp_ms")
    return NewRecord(
        key=_from_json(fields.get("key"), "key"),
        value=_from_json(fields["value"], "value"),
        headers=_headers(fields.get("headers", [])),
        partition=_number(fields, "partition"),
        timestamp_ms=None if timestamp_ms == -1 else timestamp_ms,
    )


def from_text_line(line: bytes, key_separator: bytes | None) -> NewRecord:
    """A line as a value, or as key, separator and value. Raises MalformedLine if the separator is missing."""
    if key_separator is None:
        return NewRecord(None, line)
    key, separator, value = line.partition(key_separator)
    if not separator:
        raise MalformedLine(f"it does not contain the key separator {shown(key_separator)}")
    return NewRecord(key, value)


def shown(content: bytes | None) -> str:
    """A key, a value or a header's value for people: one line, at most some hundred characters."""
    if content is None:
        return "-"
    if not content:
        return '""'
    try:
        text = content.decode()
    except UnicodeDecodeError:
        cut = content[:_SHOWN_CHARACTERS_MAX]
        return repr(cut) + _rest(len(content) - len(cut), "bytes")
    cut = text[:_SHOWN_CHARACTERS_MAX]
    return shown_text(cut) + _rest(len(text) - len(cut), "characters")


def shown_text(text: str) -> str:
    """Text with everything escaped that is not to be printed as it is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def shown_time(timestamp_ms: int) -> str:
    """A timestamp for people, in UTC; the bare number if no calendar has it."""
    if timestamp_ms == -1:
        return "-"
    try:
        return f"{_EPOCH + timedelta(milliseconds=timestamp_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    except OverflowError:
        return f"{timestamp_ms} ms"


def _rest(count: int, unit: str) -> str:
    return f" … and {count:,} {unit} more" if count else ""


def _to_json(content: bytes | None) -> object:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}


def _from_json(content: object, name: str) -> bytes | None:
    match content:
        case None:
            return None
        case str():
            return _encode(content, name)
        case {"base64": str(text)} if len(cast("Mapping[str, object]", content)) == 1:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise MalformedLine(f"its {name} is not base64: {error}") from error
        case _:
            raise MalformedLine(f'its {name} is not a text, null or {{"base64": "…"}}')


def _headers(content: object) -> Headers:
    if not isinstance(content, list):
        raise MalformedLine("its headers are not a list of [name, value]")
    headers: list[tuple[str, bytes | None]] = []
    for each in cast("Sequence[object]", content):
        pair = cast("Sequence[object]", each) if isinstance(each, list) else [each]
        name = pair[0] if len(pair) == 2 else None
        if not isinstance(name, str):
            raise MalformedLine("its headers are not a list of [name, value]")
        _encode(name, "headers")
        headers.append((name, _from_json(pair[1], f"header {name!r}")))
    return tuple(headers)


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise MalformedLine(f"its {name} contains half of a surrogate pair, which is not a character") from error


def _number(fields: Mapping[str, object], name: str) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 1 << 63:
        raise MalformedLine(f"its {name} is not a whole number of at least -1")
    if name == "partition" and not 0 <= value < 1 << 31:
        raise MalformedLine("its partition is not a whole number of at least 0")
    return value
