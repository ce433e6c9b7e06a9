"""Names, keys and fixed values of the data log environment: the codec of docs/formats/data-log.md.

    fairlog.meta         b"format" → magic, version; b"numbers" → the next log number
    fairlog.logs         str(LogId) → LogRecord: the log's bounds and its copied-through mark
    fairlog.time         (log number, running max timestamp) → offset: see `datalog.time_index`
    fairlog.transactions (log number, key of its last batch) → base offset, of transactions of several batches
    fairlog.cleanings    (log number, offset) → time, tombstones: how long compaction has been through to there
    fairlog.producers    (log number, producer id) → state, opaque here
    fairlog.open         (log number, producer id) → the transaction that it has open in a log of the marker mode
    fairlog.aborted      (log number, offset of its marker) → an aborted transaction of such a log
    fairlog.cuts         (log number, cut number) → where the log ended at that cut: see `datalog.cuts`
    fairlog.commoncuts   cut number → the newest cut before it: which cuts were taken over all shards
    fairlog.offsets      (log number, digests of group and topic, partition) → CBOR
    fairlog.groups       (log number, digest of the group) → who is in the group, opaque here
    <str(LogId)>         a topic's log: last offset of the batch → the batch; after the log's end, staged batches

Integers in keys are big-endian and never negative (timestamps are biased), so that LMDB's order of bytes is the order
of the numbers. A log's number replaces its name in composite keys; it is never assigned twice.

Pure: no I/O.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from datalog.cuts import Cut
from datalog.interface import AbortedTransaction, OpenInLog
from datalog.offset_entries import DIGEST_BYTES, OffsetKey, name_digest
from fairlog_types import JournalPosition, Offset, ProducerId, TxId

MAGIC = b"FAIRDLOG"
VERSION = 7
READ_VERSIONS = (1, 2, 3, 4, 5, 6, 7)
"""An older version becomes this one when a node opens it for writing."""

META = b"fairlog.meta"
LOGS = b"fairlog.logs"
TIME_INDEX = b"fairlog.time"
PRODUCERS = b"fairlog.producers"
OFFSETS = b"fairlog.offsets"
TRANSACTIONS = b"fairlog.transactions"
CLEANINGS = b"fairlog.cleanings"
OPEN = b"fairlog.open"
ABORTED = b"fairlog.aborted"
CUTS = b"fairlog.cuts"
GROUPS = b"fairlog.groups"
COMMON_CUTS = b"fairlog.commoncuts"
OF_LOGS = (LOGS, TIME_INDEX, PRODUCERS, OFFSETS, TRANSACTIONS, CLEANINGS, OPEN, ABORTED, CUTS, GROUPS)
"""The log itself, and tables whose keys begin with the number of a log."""
TABLES = (META, *OF_LOGS, COMMON_CUTS)

FORMAT_KEY = b"format"
NUMBERS_KEY = b"numbers"

NO_DOUBT = Offset(-1)
NONE_OPEN = Offset(-1)

NO_TIMESTAMP = -(1 << 63)
"""The running max timestamp of a log without batches: less than any other."""

_FORMAT = struct.Struct(">8sI")
_NUMBER = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_PRODUCER_KEY = struct.Struct(">IQ")
_TIME_KEY = struct.Struct(">IQ")
_TIMESTAMP_BIAS = 1 << 63
_OFFSET_KEY = struct.Struct(f">I{DIGEST_BYTES}s{DIGEST_BYTES}sI")
_GROUP_KEY = struct.Struct(f">I{DIGEST_BYTES}s")
BATCH_KEY_BYTES, PRODUCER_KEY_BYTES, TIME_KEY_BYTES = _OFFSET.size, _PRODUCER_KEY.size, _TIME_KEY.size
LOG_NUMBER_BYTES = _NUMBER.size
"""The beginning of every composite key."""
_LOG_RECORD_1 = struct.Struct(">IIqqqqqqqq")
assert _LOG_RECORD_1.size == 72
_LOG_RECORD_2 = struct.Struct(">IIqqqqqqqqqqqq")
assert _LOG_RECORD_2.size == 104
_LOG_RECORD = struct.Struct(">IIqqqqqqqqqqqqqq")
assert _LOG_RECORD.size == 120
_LOG_RECORDS = {layout.size: layout for layout in (_LOG_RECORD_1, _LOG_RECORD_2, _LOG_RECORD)}
_INDEX_BEHIND = 1
_END_KEY = struct.Struct(">IQ")
_CLEANING = struct.Struct(">QQ")
_OPEN = struct.Struct(">hQiQQ")
_ABORTED = struct.Struct(">QQQ")
_CUT_KEY = struct.Struct(">IQ")
_FIRST_OFFSET = Offset(0)
_FIRST_POSITION = JournalPosition(0)


class DamagedValue(ValueError):
    """A value in the environment is not what this module encodes."""


@dataclass(slots=True)
class LogRecord:
    """What is known about one log, besides its batches. A writer changes it in memory until its block ends."""

    number: int
    """u32: replaces the log's name in composite keys."""
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
    """Bytes appended since the newest entry of the time index."""
    cleaned_through: Offset = _FIRST_OFFSET
    """Before it, compaction has left one record per key."""
    clean_bytes: int = 0
    """Of the batches before it."""
    holes_before: Offset = _FIRST_OFFSET
    """From here on offsets are dense."""
    doubt_from: Offset = NO_DOUBT
    """The first batch in which compaction may have had to leave superseded records."""
    first_open: Offset = NONE_OPEN
    """Where the oldest open transaction of a log of marker mode begins."""
    aborted_before: Offset = _FIRST_OFFSET
    """From here on there is no record of an aborted transaction: it is one after the newest abort marker."""
    index_behind: bool = False
    """The batch with the max was removed: the running max is only an upper bound, and the time index has stopped there.
    """

    @property
    def last_stable_offset(self) -> Offset:
        """Everything before it is decided. A transaction may have begun before records that DeleteRecords has removed
        since.
        """
        return self.next_offset if self.first_open == NONE_OPEN else max(self.first_open, self.log_start)

    def forget_timestamps(self) -> None:
        """There are no batches left."""
        self.max_timestamp_ms, self.max_timestamp_at, self.unindexed_bytes = NO_TIMESTAMP, _FIRST_OFFSET, 0
        self.index_behind = False


def encode_log_record(record: LogRecord) -> bytes:
    return _LOG_RECORD.pack(
        record.number,
        _INDEX_BEHIND if record.index_behind else 0,
        record.log_start,
        record.next_offset,
        record.copied_through,
        record.replay_from,
        record.max_timestamp_ms,
        record.max_timestamp_at,
        record.size_bytes,
        record.unindexed_bytes,
        record.cleaned_through,
        record.clean_bytes,
        record.holes_before,
        record.doubt_from,
        record.first_open,
        record.aborted_before,
    )


def decode_log_record(data: bytes | memoryview) -> LogRecord:
    """Also reads a record of an older version. Raises DamagedValue if it is not a record."""
    number, flags, *fields = _unpacked(_LOG_RECORDS.get(len(data), _LOG_RECORD), data, "a log record")
    record = LogRecord(number, *fields, index_behind=bool(flags & _INDEX_BEHIND))
    if min(record.log_start, record.next_offset, record.max_timestamp_at) < 0:  # keys are made of these
        raise DamagedValue(
            f"a log record with the offsets {record.log_start}, {record.next_offset} and {record.max_timestamp_at}, "
            "of which none can be negative"
        )
    return record


def encode_format(version: int = VERSION) -> bytes:
    return _FORMAT.pack(MAGIC, version)


def decode_format(data: bytes | memoryview) -> int:
    """The version. Raises DamagedValue if the magic is another's."""
    magic, version = _unpacked(_FORMAT, data, "a format record")
    if magic != MAGIC:
        raise DamagedValue(f"its magic is {magic!r}, not {MAGIC!r}")
    return version


def encode_number(number: int) -> bytes:
    """A log number, as a value and as the prefix of all composite keys of that log."""
    return _NUMBER.pack(number)


def decode_number(data: bytes | memoryview) -> int:
    """Raises DamagedValue."""
    return _unpacked(_NUMBER, data, "a log's number")[0]


def batch_key(last_offset: int) -> bytes:
    """The key of the batch that ends with `last_offset`; as a lower bound, finds the batch that contains it."""
    return _OFFSET.pack(last_offset)


def decode_batch_key(key: bytes | memoryview) -> Offset:
    """The last offset of a batch, or the offset that an entry names. Raises DamagedValue."""
    return Offset(_unpacked(_OFFSET, key, "an offset")[0])


def time_key(number: int, timestamp_ms: int) -> bytes:
    return _TIME_KEY.pack(number, timestamp_ms + _TIMESTAMP_BIAS)


def decode_time_key(key: bytes | memoryview) -> int:
    """The timestamp in ms. Raises DamagedValue."""
    return _unpacked(_TIME_KEY, key, "a key of the time index")[1] - _TIMESTAMP_BIAS


def end_key(number: int, offset: int) -> bytes:
    """The key of a transaction, by its last offset, or of a cleaning, by the offset before which it cleaned.

    The last offset of an aborted transaction is that of its marker.
    """
    return _END_KEY.pack(number, offset)


def decode_end_key(key: bytes | memoryview) -> Offset:
    """Raises DamagedValue."""
    return Offset(_unpacked(_END_KEY, key, "a key that names an offset")[1])


def encode_cleaning(ended_ms: int, tombstones: int) -> bytes:
    return _CLEANING.pack(ended_ms, tombstones)


def decode_cleaning(data: bytes | memoryview) -> tuple[int, int]:
    """The time at which it ended, in ms, and the number of tombstones that it kept. Raises DamagedValue."""
    ended_ms, tombstones = _unpacked(_CLEANING, data, "a cleaning")
    return ended_ms, tombstones


def encode_open(transaction: OpenInLog) -> bytes:
    return _OPEN.pack(
        transaction.txid.epoch,
        transaction.txid.number,
        transaction.leader_epoch,
        transaction.first_offset,
        transaction.records,
    )


def decode_open(key: bytes | memoryview, data: bytes | memoryview) -> OpenInLog:
    """Raises DamagedValue."""
    producer_id = decode_producer_key(key)
    epoch, number, leader_epoch, first_offset, records = _unpacked(_OPEN, data, "an open transaction")
    return OpenInLog(TxId(producer_id, epoch, number), leader_epoch, first_offset, records)


def encode_aborted(aborted: AbortedTransaction) -> bytes:
    return _ABORTED.pack(aborted.producer_id, aborted.first_offset, aborted.last_stable_offset)


def decode_aborted(key: bytes | memoryview, data: bytes | memoryview) -> AbortedTransaction:
    """Raises DamagedValue."""
    marker = decode_end_key(key)
    producer_id, first_offset, last_stable_offset = _unpacked(_ABORTED, data, "an aborted transaction")
    return AbortedTransaction(producer_id, first_offset, marker, last_stable_offset)


def cut_key(number: int, cut: int) -> bytes:
    """The key of the row with the end of the log with that number at a cut; the cut's number is a u64."""
    return _CUT_KEY.pack(number, cut)


def encode_cut(end: int) -> bytes:
    return _OFFSET.pack(end)


def decode_cut(key: bytes | memoryview, data: bytes | memoryview) -> Cut:
    """Raises DamagedValue."""
    _, cut = _unpacked(_CUT_KEY, key, "a key of the cut index")
    return Cut(cut, Offset(_unpacked(_OFFSET, data, "a row of the cut index")[0]))


def encode_cut_number(cut: int) -> bytes:
    """A cut's number, as a key and as a value of the table of common cuts: a u64."""
    return _OFFSET.pack(cut)


def decode_cut_number(data: bytes | memoryview) -> int:
    """Raises DamagedValue."""
    return _unpacked(_OFFSET, data, "the number of a cut")[0]


def producer_key(number: int, producer_id: ProducerId) -> bytes:
    return _PRODUCER_KEY.pack(number, producer_id)


def decode_producer_key(key: bytes | memoryview) -> ProducerId:
    """Raises DamagedValue."""
    return ProducerId(_unpacked(_PRODUCER_KEY, key, "a producer's key")[1])


def offset_key(number: int, key: OffsetKey) -> bytes:
    return _OFFSET_KEY.pack(number, name_digest(key.group), name_digest(key.topic), key.partition)


def offset_group_prefix(number: int, group: str) -> bytes:
    """The prefix of the keys of all of a group's offsets."""
    return group_key(number, group)


def group_key(number: int, group: str) -> bytes:
    return _GROUP_KEY.pack(number, name_digest(group))


def decode_group_key(key: bytes | memoryview) -> bytes:
    """The group's `name_digest`. Raises DamagedValue."""
    return _unpacked(_GROUP_KEY, key, "the key of a group")[1]


def _unpacked(fixed: struct.Struct, data: bytes | memoryview, what: str) -> tuple[Any, ...]:
    """The fields of a key or a value. Raises DamagedValue if it has another length."""
    try:
        return fixed.unpack(data)
    except struct.error as error:
        raise DamagedValue(f"{what} has {fixed.size} bytes, this one {len(data)}") from error
