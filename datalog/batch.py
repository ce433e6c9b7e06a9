"""Kafka's record batch, version 2, seen from outside: its header and its checks.

A batch is opaque to Fairlog, except for the 61 bytes of its header; the records after it are never decoded on the way
from Produce to Fetch. Base offset and leader epoch are outside the CRC, so the broker may patch them without touching
what the client has signed:

    base offset i64 | length i32 | leader epoch i32 | magic i8 | crc u32 | ─ covered by the crc ─▶
    attributes i16 | last offset delta i32 | first timestamp i64 | max timestamp i64 |
    producer id i64 | producer epoch i16 | base sequence i32 | record count i32 | records …

Pure: no I/O. Functions that end in `_untrusted` take a peer's bytes and raise `BadBatch`, nothing else.
`datalog.records` reads inside the records (single timestamps), off the hot path.

Source: https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple, cast

import crc32c as _crc32c

from fairlog_types import NO_PRODUCER_ID, LeaderEpoch, Offset, ProducerEpoch, ProducerId

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
assert _HEADER.size == HEADER_BYTES

LENGTH_STARTS_BEHIND = 12
"""`batch_length` does not count the base offset and itself."""

_RECORD_BYTES_MIN = 7
"""One byte each: length, attributes, timestamp delta, offset delta, key length, value length, count of headers."""

_CRC = struct.Struct(">I")
_CRC_AT = 17
_CRC_STARTS_AT = 21
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12
MAGIC = 2

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20


class Compression(Enum):
    """The codec, in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BadBatchReason(Enum):
    """What is wrong with a peer's batch; `fairlog.kafka` has one error code for each."""

    TOO_SHORT = "too short"
    """Fewer bytes than a header has, or none at all."""
    BAD_MAGIC = "bad magic"
    """Not version 2: the message formats 0 and 1 are not supported."""
    LENGTH_MISMATCH = "length mismatch"
    """The length field and the number of bytes disagree."""
    MORE_THAN_ONE = "more than one batch"
    """Bytes follow the batch, where one batch is expected."""
    TOO_LARGE = "too large"
    """More bytes than the topic accepts in one batch."""
    BAD_CRC = "bad CRC"
    COUNT_MISMATCH = "count mismatch"
    """No records, more than the bytes can hold, or a last offset delta that is not the count minus one: offsets would
    not be dense. A compressed batch's count is trusted: its content is not checked.
    """
    BAD_COMPRESSION = "unknown compression"
    BAD_PRODUCER = "impossible producer"
    """Neither a batch of a producer with an id nor one without: producer id, epoch and sequence contradict each other.
    """
    CONTROL = "control batch"
    """A client has sent a control batch; only brokers write these."""


class BadBatch(Exception):
    """A peer's bytes are not a batch that may be stored. `reason` says which rule they break."""

    def __init__(self, reason: BadBatchReason, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason


class BatchHeader(NamedTuple):
    """The 61 bytes before the records, as values. Timestamps are in milliseconds since 1970.

    A tuple and not a dataclass: it is made once for each batch produced, and `struct` fills it in one step.
    """

    base_offset: Offset
    batch_length: int
    """Bytes after this field: the whole batch has 12 more (`size_bytes`)."""
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp: int
    max_timestamp: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + LENGTH_STARTS_BEHIND

    @property
    def last_offset(self) -> Offset:
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & _COMPRESSION_MASK)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def log_append_time(self) -> bool:
        """Whether `max_timestamp` is the timestamp of every record (set by the broker, not the client)."""
        return bool(self.attributes & _LOG_APPEND_TIME)


def parse_batch_header_untrusted(buffer: Buffer) -> BatchHeader:
    """The header of the batch at the beginning of `buffer`; more bytes may follow the batch.

    Checks everything that the header and the buffer's length show. `check_crc` checks the CRC, and the caller decides
    whether control batches are allowed. Raises BadBatch.
    """
    header = parse_stored_header(buffer)
    if header.last_offset_delta + 1 != header.record_count:
        message = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        raise BadBatch(BadBatchReason.COUNT_MISMATCH, message)
    return header


def parse_stored_header(buffer: Buffer) -> BatchHeader:
    """The header of a batch in a data log, where compaction may have left fewer records than offsets.

    Everything else is checked as in `parse_batch_header_untrusted`. Raises BadBatch.
    """
    if len(buffer) < HEADER_BYTES:
        raise BadBatch(BadBatchReason.TOO_SHORT, f"{len(buffer)} bytes, a header has {HEADER_BYTES}")
    header = unpack_header(buffer)
    if header.magic != MAGIC:
        raise BadBatch(BadBatchReason.BAD_MAGIC, f"{header.magic}, want {MAGIC}")
    if not HEADER_BYTES <= header.size_bytes <= len(buffer):
        message = f"the header says {header.size_bytes} bytes, there are {len(buffer)}"
        raise BadBatch(BadBatchReason.LENGTH_MISMATCH, message)
    if not 1 <= header.record_count <= header.last_offset_delta + 1:
        message = f"{header.record_count} records, last offset delta {header.last_offset_delta}"
        raise BadBatch(BadBatchReason.COUNT_MISMATCH, message)
    if header.attributes & _COMPRESSION_MASK > Compression.ZSTD.value:
        codec = header.attributes & _COMPRESSION_MASK
        raise BadBatch(BadBatchReason.BAD_COMPRESSION, f"codec {codec}")
    body_bytes = header.size_bytes - HEADER_BYTES
    if not header.attributes & _COMPRESSION_MASK and header.record_count * _RECORD_BYTES_MIN > body_bytes:
        message = f"{header.record_count} records in {body_bytes} bytes, each has {_RECORD_BYTES_MIN} at least"
        raise BadBatch(BadBatchReason.COUNT_MISMATCH, message)
    _check_producer_untrusted(header)
    return header


def unpack_header(head: Buffer) -> BatchHeader:
    """The header of a batch that was checked before; `head` need not contain more than the header."""
    return BatchHeader._make(_HEADER.unpack_from(head))


def _check_producer_untrusted(header: BatchHeader) -> None:
    """Whether there is no producer id, whatever the other fields are; or one with an epoch and a sequence, none
    negative.

    Control batches have no sequence (`datalog.control_batch`).

    Without a producer id the others mean nothing, and clients disagree on them (Sarama: -1, -1, 0). A batch is
    journaled long before it is copied, under keys that cannot hold negative ids. A batch that is accepted here and
    cannot be stored would be found in the journal again at every start.
    """
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    smallest = min(producer[:2]) if header.control else min(producer)
    if header.producer_id != NO_PRODUCER_ID and smallest < 0:
        raise BadBatch(BadBatchReason.BAD_PRODUCER, "producer id {}, epoch {}, base sequence {}".format(*producer))


def claimed_crc(batch: Buffer) -> int:
    """The `crc` field of a batch; its first 21 bytes are enough."""
    return int.from_bytes(memoryview(batch)[_CRC_AT:_CRC_STARTS_AT], "big")


def crc_of(batch: Buffer) -> int:
    """The CRC-32C of the bytes that the batch's `crc` field covers: everything from the attributes to the end."""
    return _crc32c.crc32c(memoryview(batch)[_CRC_STARTS_AT:])


def check_crc(header: BatchHeader, batch: Buffer) -> None:
    """Compare the CRC of exactly one batch with its header's. Raises BadBatch(BAD_CRC)."""
    found = crc_of(batch)
    if found != header.crc:
        raise BadBatch(BadBatchReason.BAD_CRC, f"{found:#010x}, the header says {header.crc:#010x}")


def check_produced_untrusted(data: Buffer, *, bytes_max: int) -> BatchHeader:
    """The header of the one batch that a producer sends to a partition, with everything checked except the records.

    `bytes_max` is the size of the largest batch that the topic accepts. Raises BadBatch.
    """
    header = parse_batch_header_untrusted(data)
    if header.size_bytes != len(data):
        message = f"{len(data) - header.size_bytes} bytes follow the first, and a partition takes one"
        raise BadBatch(BadBatchReason.MORE_THAN_ONE, message)
    if len(data) > bytes_max:
        raise BadBatch(BadBatchReason.TOO_LARGE, f"{len(data)} bytes, the topic allows {bytes_max}")
    if header.control:
        raise BadBatch(BadBatchReason.CONTROL, "a client may not write control batches")
    check_crc(header, data)
    return header


def patch(data: bytearray, base_offset: Offset, leader_epoch: LeaderEpoch) -> None:
    """Set one batch's base offset and leader epoch, in place. The CRC covers neither."""
    _BASE_OFFSET.pack_into(data, 0, base_offset)
    _LEADER_EPOCH.pack_into(data, _LEADER_EPOCH_AT, leader_epoch)


def placed_at(batch: Buffer, base_offset: Offset, leader_epoch: LeaderEpoch) -> bytes:
    """A copy of one batch with these in its header, as `patch` sets them."""
    header = bytearray(batch[:HEADER_BYTES])
    patch(header, base_offset, leader_epoch)
    return b"".join((header, memoryview(batch)[HEADER_BYTES:]))


def stamped(batch: Buffer, timestamp_ms: int) -> bytearray:
    """A copy of one batch whose records all have the broker's timestamp (log append time), with a new CRC."""
    data = bytearray(batch)
    attributes = _ATTRIBUTES.unpack_from(data, _CRC_STARTS_AT)[0] | _LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(data, _CRC_STARTS_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, timestamp_ms)
    _CRC.pack_into(data, _CRC_AT, crc_of(data))
    return data


def leader_epoch_of(batch: Buffer) -> LeaderEpoch:
    """The leader epoch of a stored batch. Raises BadBatch if that is too short for a batch."""
    return LeaderEpoch(_header_field(_LEADER_EPOCH, batch, _LEADER_EPOCH_AT))


def base_offset_of(batch: Buffer) -> Offset:
    """The base offset of a stored batch. Raises BadBatch if that is too short for a batch."""
    return Offset(_header_field(_BASE_OFFSET, batch, 0))


def is_transactional(batch: Buffer) -> bool:
    """Whether a stored batch was produced inside a transaction, or ends one. Raises BadBatch if it is too short."""
    return bool(_header_field(_ATTRIBUTES, batch, _CRC_STARTS_AT) & _TRANSACTIONAL)


def max_timestamp_of(batch: Buffer) -> int:
    """The max timestamp (ms) of a stored batch: eight bytes, for scans of a data log. Raises BadBatch if too short."""
    return _header_field(_MAX_TIMESTAMP, batch, _MAX_TIMESTAMP_AT)


def _header_field(field: struct.Struct, batch: Buffer, at: int) -> int:
    try:
        return cast(int, field.unpack_from(batch, at)[0])
    except struct.error as error:
        message = f"{len(batch)} bytes, a header has {HEADER_BYTES}"
        raise BadBatch(BadBatchReason.TOO_SHORT, message) from error


def with_other_records(header: BatchHeader, records: Buffer, *, record_count: int, max_timestamp_ms: int) -> bytearray:
    """The batch of `header` with `records` (compressed as its attributes say) instead of its own records.

    Keeps offsets, base timestamp, producer and attributes; length, CRC, count and max timestamp are the new ones'.
    """
    changed = header._replace(
        batch_length=HEADER_BYTES + len(records) - LENGTH_STARTS_BEHIND,
        record_count=record_count,
        max_timestamp=max_timestamp_ms,
    )
    data = bytearray(_HEADER.pack(*changed))
    data += records
    _CRC.pack_into(data, _CRC_AT, crc_of(data))
    return data
