"""Bytes of the metadata stream."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.metadata_entry import (
    Base,
    Change,
    Entry,
    NotAnEntry,
    Origin,
    Piece,
    Snapshot,
    decode_entry_untrusted,
    decode_records_untrusted,
    encode_change,
    encode_records,
    encode_snapshot,
)
from fairlog.cluster.metadata_fold import FoldState, SnapshotSearch, fold
from stream.engine import StoredEntry, StreamPosition
from tests.cluster.test_store_records import ORDERS

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "metadata-stream-1.txt"
CLUSTER = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
PROPOSER = bytes(range(0x20, 0x30))
FIRST = cluster_records.first_records(
    ClusterRecord(cluster_records.cluster_id_of(CLUSTER), 16, bytes(range(0x40, 0x60))),
    shards=2,
    offsets_logs=4,
    group_separator="::",
)
TOPIC = {records.topic_key(ORDERS.topic_id): records.encode_topic(records.TopicRecord(ORDERS, deleting=False))}

KEYS = st.binary(min_size=1, max_size=20).filter(lambda key: key[0] != 0)
CHANGES = st.dictionaries(KEYS, st.none() | st.binary(max_size=40), min_size=1, max_size=5)
BASES = st.none() | st.builds(Base, st.integers(0, 1 << 63), st.integers(0, (1 << 32) - 1))
ORIGINS = st.builds(Origin, st.binary(min_size=16, max_size=16), st.integers(0, 1 << 63))


def golden_entries() -> list[bytes]:
    """The foundation, a topic, a snapshot in two entries."""
    foundation = encode_change(None, CLUSTER, Origin(PROPOSER, 1), FIRST)
    topic = encode_change(Base(StreamPosition(0), crc_of(foundation)), CLUSTER, Origin(PROPOSER, 2), TOPIC)
    content = encode_records(sorted((FIRST | TOPIC).items()))
    base = Base(StreamPosition(1), crc_of(topic))
    pieces, last = encode_snapshot(base, CLUSTER, Origin(PROPOSER, 3), content, entry_bytes_max=320)
    return [foundation, topic, *pieces, last]


def crc_of(entry: bytes) -> int:
    return int.from_bytes(entry[4:8], "little")


def test_entries_written_are_those_of_the_golden_file() -> None:
    """The bytes of version 1 do not change, and the page shows them."""
    lines = [entry.hex() for entry in golden_entries()]
    assert lines == GOLDEN.read_text().splitlines()
    page = (Path(__file__).resolve().parents[2] / "docs" / "formats" / "metadata-stream.md").read_text()
    assert "".join(GOLDEN.read_text()) in page


def test_golden_entries_read_as_what_they_say() -> None:
    """Both ways to the content give the same: from the beginning, and from the snapshot."""
    entries = [
        StoredEntry(StreamPosition(at), bytes.fromhex(line)) for at, line in enumerate(GOLDEN.read_text().splitlines())
    ]
    batch = fold(FoldState(), entries, "metadata")
    assert batch.changes == FIRST | TOPIC
    found = SnapshotSearch(StreamPosition(2), "metadata").read(entries[2:])
    assert found is not None
    assert found.content == FIRST | TOPIC
    assert (found.state.cluster, found.state.accepted, found.state.next) == (CLUSTER, batch.state.accepted, 2)
    assert len(entries) == 4


@given(BASES, ORIGINS, CHANGES)
def test_change_reads_as_it_was_written(base: Base | None, origin: Origin, changes: dict[bytes, bytes | None]) -> None:
    """For every base, origin and content."""
    data = encode_change(base, CLUSTER, origin, changes)
    entry = decode_entry_untrusted(data)
    assert entry == Entry(base, CLUSTER, origin, crc_of(data), Change(changes))


@given(ORIGINS, st.dictionaries(KEYS, st.binary(max_size=100), max_size=20), st.integers(73, 400))
def test_snapshot_in_pieces_of_any_size_reads_as_it_was_written(
    origin: Origin, content: dict[bytes, bytes], entry_bytes_max: int
) -> None:
    """No entry is larger than may be; a snapshot of nothing is one, too."""
    base = Base(StreamPosition(7), 9)
    pieces, last = encode_snapshot(
        base, CLUSTER, origin, encode_records(sorted(content.items())), entry_bytes_max=entry_bytes_max
    )
    entries = [StoredEntry(StreamPosition(8 + at), data) for at, data in enumerate([*pieces, last])]
    assert all(len(entry.data) <= entry_bytes_max for entry in entries)
    found = SnapshotSearch(StreamPosition(8), "metadata").read(entries)
    assert found is not None
    assert (found.content, found.state.accepted) == (content, base)


@given(st.binary(max_size=200))
def test_foreign_bytes_are_no_entry(data: bytes) -> None:
    """Whatever somebody else writes never raises; neither do foreign bytes behind our magic and a right CRC."""
    if not data.startswith(b"FLGM"):
        assert decode_entry_untrusted(data) is NotAnEntry.FOREIGN
    assert isinstance(decode_entry_untrusted(b"FLGM" + data), NotAnEntry)
    sealed = b"FLGM" + crc32c(data).to_bytes(4, "little") + data
    assert isinstance(decode_entry_untrusted(sealed), NotAnEntry | Entry)
    decode_records_untrusted(data)


@pytest.mark.parametrize("at", range(4, len(golden_entries()[1])))
def test_any_changed_byte_is_damage(at: int) -> None:
    """One bit of each byte after the magic."""
    data = bytearray(golden_entries()[1])
    data[at] ^= 0x10
    assert decode_entry_untrusted(bytes(data)) is NotAnEntry.DAMAGED
    assert decode_entry_untrusted(golden_entries()[1][:at]) is NotAnEntry.DAMAGED


def resealed(data: bytes) -> bytes:
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


@pytest.mark.parametrize(("at", "value", "problem"), [(8, 2, "NEWER"), (9, 4, "NEWER"), (10, 1, "MALFORMED")])
def test_unknown_version_kind_or_bit_is_told_from_damage(at: int, value: int, problem: str) -> None:
    """What a newer program wrote must stop this one, for that one accepts it."""
    data = bytearray(golden_entries()[1])
    data[at] = value
    assert decode_entry_untrusted(resealed(bytes(data))) is NotAnEntry[problem]


@pytest.mark.parametrize(
    "body",
    [b"", b"\x80", b"\x01", b"\x81\x01", b"\x81\x82\x41a\x01", b"\x81\x82\x40\x41a", b"\x81\x82\x41\x00\x41a",
     b"\x82\x82\x41b\x41a\x82\x41a\x41a", b"\x82\x82\x41a\x41a\x82\x41a\x41a", b"\xff", b"\x9f" * 2000],
)  # fmt: skip
def test_change_that_is_none_is_malformed(body: bytes) -> None:
    """Not CBOR, empty, no pairs, a key that is empty or begins with 0, keys out of order or twice."""
    head = golden_entries()[1][:64]
    assert decode_entry_untrusted(resealed(head + body)) is NotAnEntry.MALFORMED


def test_piece_and_snapshot_that_are_too_short_are_malformed() -> None:
    """Each has at least its numbers."""
    _, _, piece, snapshot = golden_entries()
    assert decode_entry_untrusted(resealed(piece[:67])) is NotAnEntry.MALFORMED
    assert decode_entry_untrusted(resealed(snapshot[:71])) is NotAnEntry.MALFORMED
    assert isinstance(decode_entry_untrusted(piece), Entry)
    found = decode_entry_untrusted(snapshot)
    assert isinstance(found, Entry)
    assert isinstance(found.body, Snapshot)
    assert Piece(0, b"") != found.body


@pytest.mark.parametrize(
    "content",
    [
        b"\x01",
        b"\x01\x00\x05\x00\x00\x00ab",
        b"\x00\x00\x00\x00\x00\x00",
        b"\x01\x00\x00\x00\x00\x00b\x01\x00\x00\x00\x00\x00a",
        b"\x01\x00\x00\x00\x00\x00a\x01\x00\x00\x00\x00\x00a",
    ],
)
def test_snapshot_content_that_is_none_is_malformed(content: bytes) -> None:
    """Cut in its numbers, in its value, without a key, out of order, or with a key twice."""
    assert decode_records_untrusted(content) is NotAnEntry.MALFORMED
