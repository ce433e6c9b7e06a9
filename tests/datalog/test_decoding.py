"""Whole records out of batches: other implementations' batches, every codec, and nonsense."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from datalog import decoding
from datalog.batch import parse_batch_header_untrusted
from datalog.decoding import Record, decode_records_untrusted
from datalog.decompress import UnreadableRecords
from fairlog_types import Offset
from tests.datalog import batches
from tests.datalog.batches import batch

RecordFields = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]

CONTENT = st.none() | st.binary(max_size=300)
FIELDS = st.tuples(
    st.integers(0, 2**60), CONTENT, CONTENT, st.lists(st.tuples(st.text(max_size=8), CONTENT), max_size=4)
)


def built(codec: int, fields: list[RecordFields]) -> bytes:
    """A batch as aiokafka makes it, from offset 0."""
    builder: Any = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for index, (timestamp_ms, key, value, headers) in enumerate(fields):
        builder.append(index, timestamp_ms, key, value, headers)
    return bytes(builder.build())


def decoded(data: bytes | bytearray) -> list[Record]:
    return decode_records_untrusted(parse_batch_header_untrusted(data), data)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@given(fields=st.lists(FIELDS, min_size=1, max_size=8))
def test_records_of_another_implementation_are_what_was_put_in(codec: int, fields: list[RecordFields]) -> None:
    """Keys, values, headers and timestamps, none and empty among them, come back from aiokafka's batches."""
    assert decoded(built(codec, fields)) == [
        Record(Offset(index), timestamp_ms, key, value, tuple(headers))
        for index, (timestamp_ms, key, value, headers) in enumerate(fields)
    ]


def test_records_with_the_brokers_time_have_that_time() -> None:
    """Where the broker sets timestamps, the batch has one for all."""
    data = batch(7, [10, 20], attributes=0x08, max_timestamp_ms=99)
    assert [(record.offset, record.timestamp_ms) for record in decoded(data)] == [(7, 99), (8, 99)]


def test_records_of_a_control_batch_are_none() -> None:
    """What brokers write for themselves is not shown to readers."""
    assert decoded(batch(0, [1], attributes=0x30)) == []


@given(st.binary(max_size=60))
def test_records_that_are_nonsense_are_refused_by_name(payload: bytes) -> None:
    """A header may be sound and its records anything: that is one named error, never another, and never a hang."""
    data = batch(0, [1, 2], payload=payload)
    data[-len(payload) or len(data) :] = payload
    header = parse_batch_header_untrusted(bytes(data)) if len(payload) >= 14 else None
    if header is None:
        return
    try:
        found = decode_records_untrusted(header, data)
    except UnreadableRecords:
        return
    assert all(0 <= record.offset <= 1 for record in found)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@given(data=st.data())
def test_records_of_a_damaged_batch_are_refused_by_name(codec: int, data: st.DataObject) -> None:
    """One wrong byte behind the header: another record perhaps, or the named error."""
    whole = bytearray(built(codec, [(1, b"key", b"value" * 40, [("header", b"x")])] * 3))
    whole[data.draw(st.integers(61, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with patch.object(decoding, "DECOMPRESSED_BYTES_MAX", 1 << 20), contextlib.suppress(UnreadableRecords):
        decoded(whole)


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_records_cut_short_are_refused(cut: int) -> None:
    """Fewer records than the header counts."""
    with pytest.raises(UnreadableRecords):
        decoded(batch(0, [1, 2, 3], payload=batches.records([1, 2, 3], b"v" * 20)[:-cut]))


def test_records_that_swell_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one batch may cost a reader in memory is bounded."""
    data = built(1, [(1, None, b"0" * 100_000, [])])
    assert len(decoded(data)) == 1
    monkeypatch.setattr(decoding, "DECOMPRESSED_BYTES_MAX", 99_999)
    with pytest.raises(UnreadableRecords, match="more than 99999 bytes"):
        decoded(data)
