"""Readers of what stands beside a Spark query: in its checkpoint, and in a directory of its batches."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pyspark_fairlog.offset_log import OffsetLogRefused, parse_ends, parse_planned_ms, parse_query
from pyspark_fairlog.options import OptionRefused
from pyspark_fairlog.pipeline.parquet import OWNER, own
from pyspark_fairlog.pipeline.plan import PlanError
from pyspark_fairlog.positions import position_from, position_to
from tests.fuzz.target import Target

_GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_QUERY = "3f1c2b6e-9d0a-4a57-8a44-0d1f6f1f7b11"
_OFFSETS = b'v1\n{"batchWatermarkMs":0}\n{"orders": {"0": 42, "1": 40}}\n-\n{"orders": {"0": 41}}\n'
_ODD = (
    b"[" * 3000,
    b'{"a": ' * 3000 + b"1" + b"}" * 3000,
    b'{"orders": {"' + b"1" * 5000 + b'": 0}}',
    b"1" * 5000,
    b"\xff",
    b"NaN",
)
"""JSON that is deeper, or longer, than Python likes."""


def read_position(data: bytes) -> None:
    """As Spark hands it over: an object, which it has parsed itself."""
    with suppress(ValueError, RecursionError):
        stored = json.loads(data)
        if isinstance(stored, dict):
            _read_position(stored)


def _read_position(stored: dict[str, object]) -> None:
    try:
        position = position_from(stored)
    except OptionRefused:
        return
    except (ValueError, RecursionError) as error:
        raise AssertionError(f"a checkpoint's offsets are refused without a sentence: {error!r}") from error
    again = position_from(position_to(position))
    assert again.offsets == position.offsets, f"{position} reads otherwise when it is written again"


def read_offset_log(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (parse_ends, parse_query):
        with suppress(OffsetLogRefused):
            parse(text)
    parse_planned_ms(text)


def read_owner(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / OWNER).write_bytes(data)
        with suppress(PlanError):
            own(directory, _QUERY)


def _positions() -> Iterator[bytes]:
    yield (_GOLDEN / "stream-offsets-2.json").read_bytes()
    yield b'{"orders": {"0": 42, "1": 40}}'
    yield from _ODD


def _logs() -> Iterator[bytes]:
    yield _OFFSETS
    yield b'{"id":"' + _QUERY.encode() + b'"}'
    for odd in _ODD:
        yield odd
        yield _OFFSETS + odd


TARGETS = (
    Target("stream-offsets", "how far a Spark stream has come, in its checkpoint", read_position, _positions),
    Target("offset-log", "Spark's own log of how far each batch reads", read_offset_log, _logs),
    Target(
        "parquet-owner",
        "the note of whose batches are in a directory",
        read_owner,
        lambda: [(_GOLDEN / "parquet-batches-1.json").read_bytes(), *_ODD],
    ),
)
