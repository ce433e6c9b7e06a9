"""Timestamps inside batches, plain and compressed."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from datalog import decompress, records
from datalog.batch import Compression, parse_batch_header_untrusted
from datalog.interface import TimestampOffset
from datalog.records import UnreadableRecords, first_at_or_after, record_timestamps
from fairlog_types import Offset
from tests.datalog import batches
from tests.datalog.batches import batch

TIMESTAMPS = [1000, 4000, 2000, 5000]


def timestamps_of(data: bytes | bytearray) -> list[tuple[int, int]]:
    return list(record_timestamps(parse_batch_header_untrusted(data), bytes(data)))


def compressed(codec: Compression, payload: bytes, timestamps_ms: list[int] = TIMESTAMPS) -> bytes:
    return bytes(batch(100, timestamps_ms, attributes=codec.value, payload=payload))


def found(offset: int, timestamp_ms: int) -> TimestampOffset:
    return TimestampOffset(Offset(offset), timestamp_ms)


@given(st.lists(st.integers(-(2**62), 2**62 - 1), min_size=1, max_size=20))
def test_record_timestamps_of_plain_batch_are_exact(timestamps_ms: list[int]) -> None:
    """Any timestamps, in any order, come back with their offsets; a batch can hold distances below 2^63."""
    assert timestamps_of(batch(100, timestamps_ms)) == [(100 + i, t) for i, t in enumerate(timestamps_ms)]


@pytest.mark.parametrize("codec", [0, 1])
def test_record_timestamps_of_another_implementation_are_exact(codec: int) -> None:
    """aiokafka's records, with keys and headers, plain and in gzip."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for index, timestamp in enumerate(TIMESTAMPS):
        builder.append(index, timestamp, b"key", b"value" * 100, [("header", b"x")])
    data = bytes(builder.build())
    assert parse_batch_header_untrusted(data).compression.value == codec
    assert timestamps_of(data) == list(enumerate(TIMESTAMPS))


def test_record_timestamps_of_gzip_batch_are_exact() -> None:
    """Gzip needs the standard library only."""
    data = compressed(Compression.GZIP, gzip.compress(batches.records(TIMESTAMPS)))
    assert timestamps_of(data) == [(100 + i, t) for i, t in enumerate(TIMESTAMPS)]


def xerial(cramjam: Any, payload: bytes) -> bytes:
    """Java's framing: two blocks."""
    blocks = [bytes(cramjam.snappy.compress_raw(part)) for part in (payload[:10], payload[10:])]
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


COMPRESS: dict[str, tuple[Compression, Callable[[Any, bytes], bytes]]] = {
    "snappy": (Compression.SNAPPY, lambda cramjam, payload: bytes(cramjam.snappy.compress_raw(payload))),
    "xerial": (Compression.SNAPPY, xerial),
    "lz4": (Compression.LZ4, lambda cramjam, payload: bytes(cramjam.lz4.compress(payload))),
    "zstd": (Compression.ZSTD, lambda cramjam, payload: bytes(cramjam.zstd.compress(payload))),
}


@pytest.mark.parametrize("name", COMPRESS)
def test_record_timestamps_with_cramjam_are_exact(name: str) -> None:
    """The codecs that are not in the standard library are exact too."""
    codec, compress = COMPRESS[name]
    data = compressed(codec, compress(cramjam, batches.records(TIMESTAMPS)))
    assert timestamps_of(data) == [(100 + i, t) for i, t in enumerate(TIMESTAMPS)]


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_search_without_codec_answers_for_the_whole_batch(codec: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cramjam does not load, the batch's first offset stands for the record: a consumer misses nothing."""

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(decompress, "import_module", missing)
    data = compressed(codec, b"whatever it is")
    assert first_at_or_after(data, 4500, Offset(0)) == found(100, 5000)
    assert first_at_or_after(data, 4500, Offset(102)) == found(102, 5000)


@pytest.mark.parametrize("codec", list(Compression))
@settings(max_examples=20)
@given(payload=st.binary(min_size=28, max_size=60))  # fewer cannot be four records, as the header says
def test_search_garbage_behind_good_header_answers_for_the_whole_batch(codec: Compression, payload: bytes) -> None:
    """A client that lies about its records gets an answer that is not too late, and crashes nothing."""
    answer = first_at_or_after(compressed(codec, payload), 4500, Offset(0))
    assert answer is not None
    assert 100 <= answer.offset <= 103


@pytest.mark.parametrize("name", COMPRESS)
def test_record_timestamps_of_large_compressed_batch_are_exact(name: str) -> None:
    """Records that swell beyond the first guess of the room they need are still found."""
    codec, compress = COMPRESS[name]
    data = compressed(codec, compress(cramjam, batches.records(TIMESTAMPS, b"0" * 500_000)))
    assert [timestamp for _, timestamp in timestamps_of(data)] == TIMESTAMPS


def test_search_swelling_batch_answers_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is decompressed for a search is bounded."""
    monkeypatch.setattr(records, "DECOMPRESSED_BYTES_MAX", 20)
    data = compressed(Compression.GZIP, gzip.compress(batches.records(TIMESTAMPS, b"0" * 1_000_000)))
    with pytest.raises(UnreadableRecords):
        timestamps_of(data)
    assert first_at_or_after(data, 4500, Offset(0)) == found(100, 5000)


def test_search_batch_of_too_many_records_answers_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes of gzip may hold millions of records: they are not even unpacked."""
    monkeypatch.setattr(records, "RECORDS_MAX", len(TIMESTAMPS))
    data = compressed(Compression.GZIP, gzip.compress(batches.records(TIMESTAMPS)))
    assert first_at_or_after(data, 4500, Offset(0)) == found(103, 5000)
    monkeypatch.setattr(records, "RECORDS_MAX", len(TIMESTAMPS) - 1)
    monkeypatch.setattr(records, "decompress", None)
    assert first_at_or_after(data, 4500, Offset(0)) == found(100, 5000)


def test_search_takes_the_first_record_that_is_late_enough() -> None:
    """Timestamps inside a batch need not grow."""
    data = bytes(batch(100, TIMESTAMPS))
    assert first_at_or_after(data, 1500, Offset(0)) == found(101, 4000)
    assert first_at_or_after(data, 1500, Offset(102)) == found(102, 2000)
    assert first_at_or_after(data, 5000, Offset(0)) == found(103, 5000)


def test_search_match_before_the_log_start_alone_finds_none() -> None:
    """A record that was cut off is no answer, and the batch as a whole is none either: go on behind it."""
    assert first_at_or_after(bytes(batch(100, [9000, 1000])), 5000, Offset(101)) is None


def test_search_timestamp_beyond_64_bits_answers_for_the_whole_batch() -> None:
    """A delta that leads out of what an answer can hold makes the records unreadable, not the reader fail."""
    last = 2**63 - 1
    payload = batches.records([0, 1, 2])
    data = bytearray(batch(7, [0, 1, 2], payload=payload, max_timestamp_ms=last))
    struct.pack_into(">q", data, 27, last)  # first timestamp; the deltas stay 0, 1, 2
    assert first_at_or_after(bytes(data), last, Offset(8)) == found(8, last)
    with pytest.raises(UnreadableRecords, match="a timestamp of"):
        list(record_timestamps(parse_batch_header_untrusted(data), bytes(data)))


def test_search_log_append_time_gives_the_batch_start() -> None:
    """With LogAppendTime every record has the batch's max timestamp, whatever the deltas say."""
    data = bytes(batch(100, TIMESTAMPS, attributes=0x08, max_timestamp_ms=7000))
    assert first_at_or_after(data, 3000, Offset(0)) == found(100, 7000)
    assert first_at_or_after(data, 6000, Offset(103)) == found(103, 7000)
