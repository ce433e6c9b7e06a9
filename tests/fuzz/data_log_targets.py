"""Readers of data logs: batches and what is in them, values, pages."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

import cbor2
import cramjam
import lz4.frame
from crc32c import crc32c

from datalog import decoding, layout
from datalog.batch import (
    HEADER_BYTES,
    BadBatch,
    Compression,
    check_produced_untrusted,
    parse_batch_header_untrusted,
    parse_stored_header,
)
from datalog.control_batch import decode_control_batch
from datalog.decoding import decode_records_untrusted
from datalog.decompress import UnreadableRecords, decompress
from datalog.keyed import open_batch, why_not_keyed_untrusted, without
from datalog.layout import DamagedValue
from datalog.lmdb_file import check_length
from datalog.lmdb_pages import DamagedPage, LmdbFile
from datalog.offset_entries import (
    GroupEntry,
    MalformedEntries,
    decode_offset_entries,
    decode_offset_entry,
    encode_offset_entries,
)
from datalog.records import DECOMPRESSED_BYTES_MAX, first_at_or_after
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog.inspection.cluster_stores import show_cluster_store
from fairlog.inspection.data_logs import show_data_logs
from fairlog.inspection.segments import Selection
from fairlog_types import CorruptStorage, Offset
from tests.datalog.batches import batch, keyed_batch, keyed_records
from tests.datalog.golden_data_log import (
    ENVIRONMENT,
    ENVIRONMENT_1,
    ENVIRONMENT_3,
    OFFSETS_LOG,
    TOPIC_LOG,
    marked_batches,
)
from tests.fuzz.journal_targets import _SCRATCH
from tests.fuzz.odd_cbor import with_odd_items
from tests.fuzz.target import MEMORY_BYTES_MAX, Target
from tests.kafka.example_requests import build_batch

_EVERYTHING = Selection(records=True)
_BATCH_BYTES = struct.Struct(">i")


def read_batches(data: bytes) -> None:
    """What a producer sends as records."""
    with suppress(BadBatch):
        check_produced_untrusted(data, bytes_max=len(data))


def read_mended_batch(data: bytes) -> None:
    """One batch with a right checksum and length, by everybody who looks into batches."""
    stored = mend_batch(data)
    if stored is None:
        return
    with suppress(BadBatch):
        parse_batch_header_untrusted(stored)
        why_not_keyed_untrusted(stored)
    with suppress(BadBatch, UnreadableRecords):
        opened = open_batch(stored)
        if opened.records:
            without(opened, opened.records[::2])
    with suppress(BadBatch):
        header = parse_stored_header(stored)
        first_at_or_after(stored, header.max_timestamp, Offset(max(0, header.base_offset)))
        with suppress(UnreadableRecords):
            found = decode_records_untrusted(header, stored)
            if header.compression is Compression.NONE:
                held = sum(len(record.key or b"") + len(record.value or b"") for record in found)
                assert held <= len(stored), "records of more bytes than their batch"


def mend_batch(data: bytes) -> bytes | None:
    """The bytes as a batch: its length, magic and checksum are right, whatever else it says."""
    if len(data) < HEADER_BYTES:
        return None
    stored = bytearray(data)
    _BATCH_BYTES.pack_into(stored, 8, len(stored) - 12)
    stored[16] = 2
    stored[17:21] = crc32c(bytes(stored[21:])).to_bytes(4, "big")
    return bytes(stored)


def read_control_batch(data: bytes) -> None:
    for marker in (data, mend_batch(data)):
        if marker is not None:
            with suppress(BadBatch):
                decode_control_batch(marker)


def decompress_records(data: bytes) -> None:
    """A codec, and what it is to make of the rest."""
    if data:
        with suppress(UnreadableRecords):
            decompress(Compression(data[0] % 5), memoryview(data)[1:], DECOMPRESSED_BYTES_MAX)


def read_offset_entries(data: bytes) -> None:
    """What is read goes on as an index does with it."""
    with suppress(MalformedEntries):
        entries = decode_offset_entries(data)
        assert decode_offset_entries(encode_offset_entries(entries)) == entries
        for entry in entries:
            hash(entry)
            if isinstance(entry, GroupEntry):
                layout.group_key(1, entry.group)
            else:
                layout.offset_key(1, entry.key)
    with suppress(MalformedEntries):
        hash(decode_offset_entry(data))


_VALUES: tuple[Callable[[bytes], object], ...] = (
    layout.decode_log_record,
    layout.decode_format,
    layout.decode_cleaning,
    lambda data: layout.decode_open(data[:12], data[12:]),
    lambda data: layout.decode_aborted(data[:12], data[12:]),
    lambda data: layout.decode_cut(data[:12], data[12:]),
    parse_log_untrusted,
)


def read_value(data: bytes) -> None:
    """A table, and a value of it."""
    if data:
        with suppress(DamagedValue):
            _VALUES[data[0] % len(_VALUES)](data[1:])


def _values() -> Iterator[bytes]:
    file = LmdbFile(memoryview(_unpacked(ENVIRONMENT)))
    logs = StoredLogs(file)
    tables = (layout.LOGS, None, layout.CLEANINGS, layout.OPEN, layout.ABORTED, layout.CUTS)
    for number, table in enumerate(tables):
        if table is not None:
            for item in logs.table(table):
                key = item.key if table in (layout.OPEN, layout.ABORTED, layout.CUTS) else b""
                yield bytes([number]) + key + item.value
    yield b"\x01" + layout.encode_format()
    yield b"\x06" + str(TOPIC_LOG).encode()
    yield b"\x06" + str(OFFSETS_LOG).encode()


_FILES = (ENVIRONMENT, ENVIRONMENT_1, ENVIRONMENT_3)
_EDIT = struct.Struct(">HHB")


@cache
def _unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def edited(data: bytes) -> bytes:
    """A golden file with edits: which file, then for each edit a page, a byte in it, a length, and so many bytes.

    A page beyond the last one cuts the file there.
    """
    file = bytearray(_unpacked(_FILES[data[0] % len(_FILES) if data else 0]))
    at = 1
    while at + _EDIT.size <= len(data):
        page, byte, size = _EDIT.unpack_from(data, at)
        at += _EDIT.size
        if page & 0x8000:
            del file[(page & 0x7FFF) % 32 * 4096 + byte % 4096 :]
            continue
        start = page % 32 * 4096 + byte % 4096
        put = data[at : at + size]
        file[start : start + len(put)] = put
        at += size
    return bytes(file)


def read_pages(data: bytes) -> None:
    """A damaged data log environment, as `fairlog inspect` and `fairlog verify` read it."""
    file = memoryview(edited(data))
    with suppress(DamagedPage):
        for line in show_data_logs(LmdbFile(file), _EVERYTHING):
            str(line)
    with suppress(DamagedPage):
        for line in show_cluster_store(LmdbFile(file)):
            str(line)
    with suppress(DamagedPage, DamagedValue):
        logs = StoredLogs(LmdbFile(file))
        for name in (*layout.TABLES, *logs.log_names()):
            list(logs.table(name))
        logs.file.check_free_list()


def read_length(data: bytes) -> None:
    """The same file, as it is looked at before LMDB opens it."""
    with NamedTemporaryFile(dir=_SCRATCH) as file:
        file.write(edited(data))
        file.flush()
        with suppress(CorruptStorage):
            check_length(Path(file.name))


def _edits() -> Iterator[bytes]:
    """Each number of the metas and of the pages' heads, as it is: to be changed by mutation."""
    for which, path in enumerate(_FILES):
        file = _unpacked(path)
        yield bytes([which])
        for page in range(min(32, len(file) // 4096)):
            edits = bytearray([which])
            for byte, size in ((0, 16), (16, 48)) if page > 1 else ((10, 30), (40, 48), (88, 48), (136, 16)):
                start = page * 4096 + byte
                edits += _EDIT.pack(page, byte, size) + file[start : start + size]
            yield bytes(edits)
            _, lower, upper = struct.unpack_from("=HHH", file, page * 4096 + 10)
            if page > 1 and 16 <= lower <= upper < 4096:
                start = page * 4096 + upper
                yield bytes([which]) + _EDIT.pack(page, upper, 48) + file[start : start + 48]
        yield bytes([which]) + _EDIT.pack(0x8000 | len(file) // 4096 - 1, 0, 0)


def _compressed() -> Iterator[tuple[int, bytes]]:
    """Codec and payload."""
    payload = keyed_records([(b"k%d" % at, b"value" * at) for at in range(9)], range(9))
    raw = bytes(cramjam.snappy.compress_raw(payload))
    yield 0, payload
    yield 1, gzip.compress(payload, mtime=0)
    yield 2, raw
    yield 2, b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + struct.pack(">i", len(raw)) + raw
    yield 3, lz4.frame.compress(payload)
    yield 4, bytes(cramjam.zstd.compress(payload))
    yield 1, gzip.compress(bytes(1 << 20), mtime=0)
    yield 4, bytes(cramjam.zstd.compress(bytes(1 << 20)))


def _batches() -> Iterator[bytes]:
    yield build_batch(records=3)
    yield bytes(batch(5, [1000, 1003, 999]))
    yield bytes(batch(0, [1000])) + bytes(batch(1, [1000]))
    pairs = [(b"k%d" % at, b"value" * at) for at in range(9)]
    for codec, payload in _compressed():
        yield bytes(keyed_batch(0, pairs, compress=lambda _, payload=payload: payload, attributes=codec))
    first, second, marker = marked_batches()
    yield first
    yield second
    yield marker


def _entries() -> Iterator[bytes]:
    file = LmdbFile(memoryview(_unpacked(ENVIRONMENT)))
    logs = StoredLogs(file)
    entries = [bytes(item.value) for item in logs.table(layout.OFFSETS)]
    groups = [GroupEntry("gone", bytes(item.value)) for item in logs.table(layout.GROUPS)]
    for entry in entries:
        yield entry
        yield from with_odd_items(entry)
        yield from with_odd_items(cbor2.dumps([cbor2.loads(entry)]))
    yield from with_odd_items(encode_offset_entries(groups))
    yield encode_offset_entries([*map(decode_offset_entry, entries), *groups, GroupEntry("gone", None)])


TARGETS = (
    Target("batches", "record batches of a producer", read_batches, _batches),
    Target(
        "batch-mended",
        "the records in a batch, checksum made right",
        read_mended_batch,
        _batches,
        # All of it, and a copy; the records themselves, of which there are a million at most.
        memory_bytes_max=2 * decoding.DECOMPRESSED_BYTES_MAX + MEMORY_BYTES_MAX,
    ),
    Target("control-batch", "a marker that ends a transaction", read_control_batch, _batches),
    Target(
        "decompress",
        "compressed records",
        decompress_records,
        lambda: [bytes([codec]) + payload for codec, payload in _compressed()],
    ),
    Target("offset-entries", "committed offsets", read_offset_entries, _entries),
    Target("data-log-value", "values of the data logs' tables, cuts among them", read_value, _values),
    Target("lmdb-pages", "a damaged LMDB file, shown and checked", read_pages, _edits),
    Target("lmdb-length", "a damaged LMDB file, before it is opened", read_length, _edits),
)
