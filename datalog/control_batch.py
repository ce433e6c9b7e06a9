"""Control batches: the markers that end a transaction in a log of marker mode, as defined by KIP-98.

A marker is a batch of one record, which takes an offset like any other. Clients never return it; it shows them where
the producer's aborted batches end. The broker that ends a transaction writes one into each of its logs:

    batch header: attributes 0x30 (transactional, control) | base sequence -1 | count 1 | the producer's id and epoch
    record:       key = version i16 (0) | type i16 (0 abort, 1 commit)
                  value = version i16 (0) | coordinator epoch i32

Other types of control records (Raft's, in Kafka's metadata log) do not occur in topics.

Pure: no I/O.

Source: KIP-98, "Control Messages"; https://kafka.apache.org/documentation/#controlbatch
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from datalog.batch import (
    HEADER_BYTES,
    MAGIC,
    BadBatch,
    BadBatchReason,
    BatchHeader,
    Buffer,
    parse_stored_header,
    with_other_records,
)
from fairlog_types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

CONTROL_BATCH_BYTES = 78

_ATTRIBUTES = 0x30
_NO_SEQUENCE = -1
_VERSION = 0
_ABORT, _COMMIT = 0, 1

_RECORD = struct.Struct(">5b hh b hi b")
"""Length, attributes, timestamp delta, offset delta, key length (all varints of one byte); key; value length; value;
count of headers."""
_KEY_BYTES, _VALUE_BYTES = 4, 6
assert HEADER_BYTES + _RECORD.size == CONTROL_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """How a transaction ended."""

    committed: bool
    coordinator_epoch: int
    """The epoch of the coordinator that ended it: an older one's markers are refused."""


def encode_control_batch(
    offset: Offset,
    leader_epoch: LeaderEpoch,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    *,
    committed: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
) -> bytes:
    """The batch, ready to be stored at `offset`."""
    record = _RECORD.pack(
        _zigzag(_RECORD.size - 1),
        0,
        0,
        0,
        _zigzag(_KEY_BYTES),
        _VERSION,
        _COMMIT if committed else _ABORT,
        _zigzag(_VALUE_BYTES),
        _VERSION,
        coordinator_epoch,
        0,
    )
    header = BatchHeader(
        base_offset=offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=_ATTRIBUTES,
        last_offset_delta=0,
        first_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=_NO_SEQUENCE,
        record_count=1,
    )
    return bytes(with_other_records(header, record, record_count=1, max_timestamp_ms=timestamp_ms))


def decode_control_batch(batch: Buffer) -> ControlRecord:
    """The content of the marker. Raises BadBatch if the batch is not a marker, or has an unknown version."""
    header = parse_stored_header(batch)
    if not header.control or header.size_bytes != CONTROL_BATCH_BYTES:
        raise BadBatch(BadBatchReason.CONTROL, f"no marker of a transaction: {header}")
    fields = _RECORD.unpack_from(batch, HEADER_BYTES)
    key_version, kind, value_version, coordinator_epoch = fields[5], fields[6], fields[8], fields[9]
    if (key_version, value_version) != (_VERSION, _VERSION) or kind not in (_ABORT, _COMMIT):
        message = f"versions {key_version} and {value_version}, type {kind}: no end of a transaction that is known"
        raise BadBatch(BadBatchReason.CONTROL, message)
    return ControlRecord(kind == _COMMIT, coordinator_epoch)


def _zigzag(length: int) -> int:
    """As a varint of one byte."""
    return length << 1
