"""Names, keys and fixed values of the data log environment: the codec of docs/formats/data-log.md.

    fairlog.meta        b"format" → magic, version; b"numbers" → the next log number
    fairlog.logs        str(LogId) → LogRecord: the log's bounds and its copied-through mark
    fairlog.time        (log number, running max timestamp) → offset: see `datalog.time_index`
    fairlog.producers   (log number, producer id) → state, opaque here
    fairlog.offsets     (log number, digests of group and topic, partition) → CBOR
    <str(LogId)>        a topic's log: last offset of the batch → the batch

Integers in keys are big-endian and never negative (timestamps are biased), so that LMDB's order of bytes
is the order of the numbers. A log's number stands for its name in composite keys; it is never given twice.

Pure: no I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b

from datalog.offset_entries import OffsetKey
from fairlog_types import JournalPosition, Offset, ProducerId

MAGIC = b"FAIRDLOG"
VERSION = 1

META = b"fairlog.meta"
LOGS = b"fairlog.logs"
TIME_INDEX = b"fairlog.time"
PRODUCERS = b"fairlog.producers"
OFFSETS = b"fairlog.offsets"
TABLES = (META, LOGS, TIME_INDEX, PRODUCERS, OFFSETS)

FORMAT_KEY = b"format"
NUMBERS_KEY = b"numbers"

NO_TIMESTAMP = -(1 << 63)
"""The running max timestamp of a log without batches: less than any."""

_FORMAT = struct.Struct(">8sI")
_NUMBER = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_PRODUCER_KEY = struct.Struct(">IQ")
_TIME_KEY = struct.Struct(">IQ")
_TIMESTAMP_BIAS = 1 << 63
_OFFSET_KEY = struct.Struct(">I16s16sI")
_GROUP_PREFIX = struct.Struct(">I16s")
_LOG_RECORD = struct.Struct(">IIqqqqqqqq")
assert _LOG_RECORD.size == 72
BATCH_KEY_BYTES, PRODUCER_KEY_BYTES, TIME_KEY_BYTES = _OFFSET.size, _PRODUCER_KEY.size, _TIME_KEY.size
_DIGEST_BYTES = 16
_FIRST_OFFSET = Offset(0)
_FIRST_POSITION = JournalPosition(0)


class DamagedValue(ValueError):
    """A value in the environment is not what this module encodes."""


@dataclass(slots=True)
class LogRecord:
    """What is known of one log, beside its batches. Changed by a writer, in memory, until its block ends."""

    number: int
    """u32: stands for the log in composite keys."""
    log_start: Offset = _FIRST_OFFSET
    next_offset: Offset = _FIRST_OFFSET
    copied_through: JournalPosition = _FIRST_POSITION
    replay_from: JournalPosition = _FIRST_POSITION
    max_timestamp_ms: int = NO_TIMESTAMP
    """The running max: the largest timestamp of the batches kept."""
    max_timestamp_at: Offset = _FIRST_OFFSET
    """The key (last offset) of the first batch that has it."""
    size_bytes: int = 0
    """Of all batches kept."""
    unindexed_bytes: int = 0
    """Appended since the newest entry of the time index."""


def encode_log_record(record: LogRecord) -> bytes:
    return _LOG_RECORD.pack(
        record.number,
        0,
        record.log_start,
        record.next_offset,
        record.copied_through,
        record.replay_from,
        record.max_timestamp_ms,
        record.max_timestamp_at,
        record.size_bytes,
        record.unindexed_bytes,
    )


def decode_log_record(data: bytes | memoryview) -> LogRecord:
    """Raises DamagedValue if it is none."""
    try:
        number, _, *fields = _LOG_RECORD.unpack(data)
    except struct.error as error:
        raise DamagedValue(f"a log record has {_LOG_RECORD.size} bytes, this one {len(data)}") from error
    return LogRecord(number, *fields)


def encode_format(version: int = VERSION) -> bytes:
    return _FORMAT.pack(MAGIC, version)


def decode_format(data: bytes | memoryview) -> int:
    """The version. Raises DamagedValue if the magic is another's."""
    try:
        magic, version = _FORMAT.unpack(data)
    except struct.error as error:
        raise DamagedValue(f"a format record has {_FORMAT.size} bytes, this one {len(data)}") from error
    if magic != MAGIC:
        raise DamagedValue(f"its magic is {magic!r}, not {MAGIC!r}")
    return version


def encode_number(number: int) -> bytes:
    """A log number: as a value, and as the prefix of all composite keys of that log."""
    return _NUMBER.pack(number)


def decode_number(data: bytes | memoryview) -> int:
    return _NUMBER.unpack(data)[0]


def batch_key(last_offset: int) -> bytes:
    """The key of the batch that ends with `last_offset`; as a lower bound, finds the batch that contains it."""
    return _OFFSET.pack(last_offset)


def decode_batch_key(key: bytes | memoryview) -> Offset:
    return Offset(_OFFSET.unpack(key)[0])


def time_key(number: int, timestamp_ms: int) -> bytes:
    return _TIME_KEY.pack(number, timestamp_ms + _TIMESTAMP_BIAS)


def producer_key(number: int, producer_id: ProducerId) -> bytes:
    return _PRODUCER_KEY.pack(number, producer_id)


def decode_producer_key(key: bytes | memoryview) -> ProducerId:
    return ProducerId(_PRODUCER_KEY.unpack(key)[1])


def offset_key(number: int, key: OffsetKey) -> bytes:
    """Digests, because a group's and a topic's names may be longer than an LMDB key (511 bytes)."""
    return _OFFSET_KEY.pack(number, _digest(key.group), _digest(key.topic), key.partition)


def offset_group_prefix(number: int, group: str) -> bytes:
    """What the keys of all of a group's offsets begin with."""
    return _GROUP_PREFIX.pack(number, _digest(group))


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
