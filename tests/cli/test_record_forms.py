"""Records as lines of JSON, which lose nothing, and as text, which harms no terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cli.record_forms import (
    MalformedLine,
    NewRecord,
    ReadRecord,
    from_json_line,
    from_text_line,
    shown,
    shown_text,
    shown_time,
    to_json_line,
)

CONTENT = st.none() | st.binary(max_size=50) | st.text(max_size=20).map(str.encode)
HEADERS = st.lists(st.tuples(st.text(max_size=8), CONTENT), max_size=3).map(tuple)
RECORDS = st.builds(
    ReadRecord, st.text(), st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-1, 2**62), CONTENT, CONTENT,
    HEADERS,
)  # fmt: skip


@given(RECORDS)
def test_json_line_reads_back_as_what_it_was(record: ReadRecord) -> None:
    """Whatever bytes a record has, a line of JSON holds them all: UTF-8, other bytes, empty ones, none."""
    line = to_json_line(record)
    assert "\n" not in line
    assert from_json_line(line.encode()) == NewRecord(
        record.key,
        record.value,
        record.headers,
        record.partition,
        None if record.timestamp_ms == -1 else record.timestamp_ms,
    )


def test_json_line_shows_text_as_text() -> None:
    """The form that other programs are to rely on."""
    record = ReadRecord(
        "orders", 0, 12, 1_763_640_000_000, "schlüssel".encode(), b"\xff\x00", (("trace", b"7f"), ("n", None))
    )
    assert to_json_line(record) == (
        '{"topic": "orders", "partition": 0, "offset": 12, "timestamp_ms": 1763640000000, "key": "schlüssel", '
        '"value": {"base64": "/wA="}, "headers": [["trace", "7f"], ["n", null]]}'
    )


def test_json_line_with_a_value_alone_is_enough() -> None:
    """What a person types by hand; null is a tombstone."""
    assert from_json_line(b'{"value": "v"}') == NewRecord(None, b"v")
    assert from_json_line(b'{"key": "k", "value": null}') == NewRecord(b"k", None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it is not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "no field 'value'"),
        ('{"value": 1}', "is not a text, null or"),
        ('{"value": {"base64": "="}}', "is not base64"),
        ('{"value": {"base64": "", "more": 1}}', "is not a text, null or"),
        ('{"value": "v", "vlaue": "w"}', "unknown field 'vlaue'"),
        ('{"value": "v", "partition": -1}', "its partition is not a whole number of at least 0"),
        ('{"value": "v", "partition": true}', "its partition is not a whole number"),
        ('{"value": "v", "timestamp_ms": "now"}', "its timestamp_ms is not a whole number"),
        ('{"value": "v", "headers": {"a": "b"}}', "not a list of [name, value]"),
        ('{"value": "v", "headers": [["a"]]}', "not a list of [name, value]"),
        ('{"value": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_json_line_that_is_no_record_is_refused(line: str, reason: str) -> None:
    """Nothing is guessed, and nothing is passed over: a misspelt field is a lost value otherwise."""
    with pytest.raises(MalformedLine) as refused:
        from_json_line(line.encode())
    assert reason in str(refused.value)


@given(st.binary() | st.text().map(str.encode))
def test_json_line_of_anything_is_a_record_or_refused(line: bytes) -> None:
    """No input raises anything else."""
    try:
        from_json_line(line)
    except MalformedLine:
        return
    assert "value" in json.loads(line)


def test_text_line_is_split_at_the_first_separator() -> None:
    """A value may hold the separator; a line without one is refused rather than guessed at."""
    assert from_text_line(b"a:b:c", None) == NewRecord(None, b"a:b:c")
    assert from_text_line(b"a:b:c", b":") == NewRecord(b"a", b"b:c")
    assert from_text_line(b":", b":") == NewRecord(b"", b"")
    with pytest.raises(MalformedLine, match="it does not contain the key separator :"):
        from_text_line(b"abc", b":")


@given(st.none() | st.binary(max_size=4000) | st.text(max_size=4000).map(str.encode))
def test_shown_content_is_one_printable_line(content: bytes | None) -> None:
    """No record can move the reader's cursor, clear the screen or change its colours."""
    assert shown(content).isprintable()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "-"),
        (b"", '""'),
        ("größe".encode(), "größe"),
        (b"a\x1b[2Jb\n", r"a\x1b[2Jb\n"),
        (b"\xff\x00a", r"b'\xff\x00a'"),
        (b"x" * 1002, "x" * 1000 + " … and 2 characters more"),
        (b"\xff" * 1001, repr(b"\xff" * 1000) + " … and 1 bytes more"),
    ],
)
def test_shown_content_tells_what_it_is(content: bytes | None, text: str) -> None:
    """None, empty, text, text with control characters, other bytes, long ones."""
    assert shown(content) == text


def test_shown_text_keeps_what_is_printable() -> None:
    """Only what is not is escaped."""
    assert shown_text("tab\there “quoted” 😀") == r"tab\there “quoted” 😀"


@given(st.integers(-(2**63), 2**63 - 1))
def test_shown_time_is_there_for_any_timestamp(timestamp_ms: int) -> None:
    """Producers may set any number; a year 300,000 is shown as the number that it is."""
    assert shown_time(timestamp_ms)


def test_shown_time_is_exact_to_the_millisecond() -> None:
    """In UTC; -1 is no time."""
    assert shown_time(1_763_640_000_007) == "2025-11-20 12:00:00.007"
    assert shown_time(-1) == "-"
    assert shown_time(2**62) == f"{2**62} ms"
