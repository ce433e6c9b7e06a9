"""The output for a file: one `Line` for each item in it. Pure."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from fairlog_types import LogId, TxId

_TEXT_MAX = 100
"""Characters of a key or value that are shown to people; JSON has all."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing in a file."""

    what: str
    """Its kind, in words."""
    fields: Mapping[str, object] = field(default_factory=dict[str, object])
    damage: str | None = None
    """What is wrong with it, beginning with the byte of the file; None if all is well."""
    depth: int = 0
    """0 stands by itself, 1 belongs to the line before it of depth 0, and so on."""


def as_json(line: Line) -> str:
    """One JSON object, without a line feed. Bytes are text if they are UTF-8, else `{"base64": "…"}`."""
    document: dict[str, object] = {"what": line.what}
    document.update({name: _plain(value, _as_document) for name, value in line.fields.items()})
    if line.damage is not None:
        document["damage"] = line.damage
    return json.dumps(document, ensure_ascii=False)


def as_text(line: Line) -> str:
    """One line for people, without a line feed."""
    shown = [f"{name.replace('_', ' ')} {_shown(_plain(value, _as_word))}" for name, value in line.fields.items()]
    text = "    " * line.depth + ": ".join([line.what, *([", ".join(shown)] if shown else [])])
    return text if line.damage is None else f"{text}\n{'    ' * line.depth}DAMAGED at {line.damage}"


def _plain(value: object, of_bytes: Callable[[bytes], object]) -> object:
    """The value as JSON can hold it; identities as they are written everywhere."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case LogId() | TxId():
            return str(value)
        case Enum():
            return value.name.lower()
        case bytes() | bytearray():
            return of_bytes(bytes(value))
        case Mapping():
            entries = cast("Mapping[object, object]", value)
            return {str(_plain(name, of_bytes)): _plain(each, of_bytes) for name, each in entries.items()}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {each.name: _plain(getattr(value, each.name), of_bytes) for each in dataclasses.fields(value)}
        case _ if hasattr(value, "_asdict"):
            named = cast("dict[str, object]", value._asdict())  # type: ignore[attr-defined]
            return {name: _plain(each, of_bytes) for name, each in named.items()}
        case Sequence():
            return [_plain(each, of_bytes) for each in cast("Sequence[object]", value)]
        case _:
            return str(value)


def _as_document(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _as_word(data: bytes) -> str:
    """Text if it is some that a terminal takes as it is, else hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case str():
            return _shortened(value)
        case dict():
            entries = cast("dict[str, object]", value)
            return "{" + ", ".join(f"{name} {_shown(each)}" for name, each in entries.items()) + "}"
        case list():
            return "[" + ", ".join(_shown(each) for each in cast("list[object]", value)) + "]"
        case _:
            return str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text)} characters)"
