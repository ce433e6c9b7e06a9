"""Batches looked into for their keys, and thinned out: what is left is byte for byte what it was."""

from __future__ import annotations

import gzip
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalog.batch import BadBatch, check_crc, parse_batch_header_untrusted, parse_stored_header
from datalog.decoding import decode_records_untrusted
from datalog.decompress import CodecMissing, UnreadableRecords
from datalog.keyed import RECORDS_TOLD_MAX, open_batch, why_not_keyed_untrusted, without
from datalog.records import RECORDS_MAX
from tests.datalog.batches import batch, keyed_batch

PAIRS = [(b"a", b"1"), (None, b"2"), (b"", None), (b"key" * 50, b"value" * 500)]
DELTAS = [0, 700, -20, 3]


def xerial(cramjam: Any, payload: bytes) -> bytes:
    """Snappy as Java's client frames it."""
    block = bytes(cramjam.snappy.compress_raw(payload))
    return b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2 + len(block).to_bytes(4, "big") + block


CODECS: dict[str, tuple[int, Callable[[Any, bytes], bytes]]] = {
    "none": (0, lambda _, payload: payload),
    "gzip": (1, lambda _, payload: gzip.compress(payload)),
    "snappy": (2, lambda cramjam, payload: bytes(cramjam.snappy.compress_raw(payload))),
    "snappy of Java": (2, xerial),
    "lz4": (3, lambda cramjam, payload: bytes(cramjam.lz4.compress(payload))),
    "zstd": (4, lambda cramjam, payload: bytes(cramjam.zstd.compress(payload))),
}


@pytest.mark.parametrize("name", CODECS)
def test_batch_thinned_out_reads_as_before_without_what_went(name: str) -> None:
    """Offsets, timestamps, keys, values, producer and codec are kept; CRC, count and max timestamp are new."""
    attributes, compress = CODECS[name]
    data = bytes(
        keyed_batch(
            40,
            PAIRS,
            timestamp_ms=1_000,
            timestamp_deltas=DELTAS,
            attributes=attributes | 0x10,
            compress=lambda payload: compress(cramjam, payload),
            producer=(7, 3, 11),
            leader_epoch=5,
        )
    )
    before = decode_records_untrusted(parse_stored_header(data), data)
    opened = open_batch(data)
    assert [record.key for record in opened.records] == [key for key, _ in PAIRS]
    assert [record.tombstone for record in opened.records] == [False, False, True, False]
    left = bytes(without(opened, [opened.records[0], opened.records[2]]))
    header = parse_stored_header(left)
    check_crc(header, left)
    old = opened.header
    same = ("base_offset", "partition_leader_epoch", "magic", "attributes", "last_offset_delta", "first_timestamp")
    for field in (*same, "producer_id", "producer_epoch", "base_sequence", "last_offset"):
        assert getattr(header, field) == getattr(old, field), field
    assert (header.record_count, header.max_timestamp, header.size_bytes) == (2, 1_000, len(left))
    assert decode_records_untrusted(header, left) == [before[0], before[2]]
    with pytest.raises(BadBatch, match="2 records, last offset delta 3"):
        parse_batch_header_untrusted(left)


def test_batch_thinned_out_twice_reads_as_if_once() -> None:
    """A batch that compaction has been through is as good as any."""
    opened = open_batch(bytes(keyed_batch(0, PAIRS, timestamp_deltas=DELTAS)))
    once = open_batch(bytes(without(opened, opened.records[1:])))
    twice = without(once, once.records[2:])
    assert twice == without(opened, opened.records[3:])


@given(st.lists(st.booleans(), min_size=4, max_size=4).filter(any))
def test_batch_thinned_out_keeps_the_chosen_records_bytes(chosen: list[bool]) -> None:
    """Every choice of records stays as it was, byte for byte."""
    opened = open_batch(bytes(keyed_batch(9, PAIRS, timestamp_ms=5, timestamp_deltas=DELTAS)))
    kept = [record for record, stays in zip(opened.records, chosen, strict=True) if stays]
    again = open_batch(bytes(without(opened, kept)))
    assert [again.data[record.start : record.end] for record in again.records] == [
        opened.data[record.start : record.end] for record in kept
    ]
    assert [record.offset for record in again.records] == [record.offset for record in kept]


def test_lz4_blocks_written_are_independent() -> None:
    """Java's client refuses frames whose blocks lean on each other; the fifth bit of the frame's flags says so."""
    payload = CODECS["lz4"][1]
    data = keyed_batch(0, [(b"k", b"v" * 300_000)] * 2, attributes=3, compress=lambda plain: payload(cramjam, plain))
    opened = open_batch(bytes(data))
    left = without(opened, opened.records[:1])
    assert left[61:65].hex() == "04224d18"
    assert left[65] & 0x20


def test_batch_of_a_missing_codec_is_unreadable_and_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package does not load, compaction keeps the records as they are, and producers may send them."""
    data = bytes(keyed_batch(0, PAIRS, attributes=4, compress=lambda plain: CODECS["zstd"][1](cramjam, plain)))

    def not_installed(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("datalog.decompress.import_module", not_installed)
    with pytest.raises(CodecMissing, match="zstd"):
        open_batch(data)
    assert why_not_keyed_untrusted(data) is None


def test_codecs_of_every_topic_are_in_the_default_install() -> None:
    """Any producer may compress as it likes, so compacting must not depend on an extra."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert any(each.startswith("cramjam") for each in project["project"]["dependencies"])


def test_batch_of_keyed_records_is_taken() -> None:
    """Also tombstones, an empty key, and the view of a request's bytes."""
    data = keyed_batch(0, [(b"k", b"v"), (b"", b"v"), (b"k", None)])
    assert why_not_keyed_untrusted(memoryview(data)) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (keyed_batch(0, [(b"k", b"v"), (None, b"v")]), "without a key"),
        (batch(0, [1], payload=b"\xff" * 40), "readable"),
        (batch(0, [1], payload=bytes(7)), "readable"),
        (batch(0, [1, 2], payload=keyed_batch(0, [(b"k", b"v")])[61:] * 2), "readable"),
        (batch(0, [1], payload=bytes(keyed_batch(0, [(b"k", b"v")])[61:]) + b"\0"), "follow the last record"),
        (batch(0, [0] * (RECORDS_MAX + 1)), "more than 100000"),
        (batch(0, [1], attributes=1, payload=b"no gzip"), "gzip"),
    ],
    ids=["no key", "nonsense", "zeros", "deltas repeat", "bytes behind", "too many", "bad gzip"],
)
def test_batch_that_compaction_could_not_judge_is_not_taken(data: bytearray, reason: str) -> None:
    """A compacted topic takes what can be compacted, and says why not."""
    problem = why_not_keyed_untrusted(data)
    assert problem is not None
    assert reason in problem.reason


def test_records_without_a_key_are_named() -> None:
    """By their place in the batch; of many only the first thousand."""
    few = why_not_keyed_untrusted(keyed_batch(0, [(None, b"v"), (b"k", b"v"), (None, None)]))
    assert few is not None
    assert few.records == (0, 2)
    many = why_not_keyed_untrusted(keyed_batch(0, [(None, b"v")] * 1_500))
    assert many is not None
    assert many.records == tuple(range(RECORDS_TOLD_MAX))


def test_batch_with_a_timestamp_beyond_64_bits_is_unreadable() -> None:
    """It could not be written back with a max timestamp of its own."""
    data = keyed_batch(0, [(b"k", b"v")] * 2, timestamp_ms=2**63 - 1, timestamp_deltas=[0, 0])
    body = keyed_batch(0, [(b"k", b"v")] * 2, timestamp_deltas=[0, 1])[61:]
    wrong = batch(0, [2**63 - 1] * 2, payload=bytes(body))
    open_batch(bytes(data))
    with pytest.raises(UnreadableRecords, match="no header can hold"):
        open_batch(bytes(wrong))


@given(st.binary(max_size=60), st.integers(1, 4))
def test_open_any_bytes_is_read_or_unreadable(payload: bytes, count: int) -> None:
    """Whatever a producer has put behind a good header: records, or UnreadableRecords."""
    data = bytes(batch(0, [0] * count, payload=payload + bytes(7 * count)))
    try:
        opened = open_batch(data)
    except UnreadableRecords:
        return
    assert len(opened.records) == count
