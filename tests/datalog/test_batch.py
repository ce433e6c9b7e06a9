"""The record batch header: what a peer's bytes may do, and what patching leaves alone."""

from __future__ import annotations

import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from datalog.batch import (
    HEADER_BYTES,
    BadBatch,
    BadBatchReason,
    Compression,
    check_crc,
    check_produced_untrusted,
    max_timestamp_of,
    parse_batch_header_untrusted,
    patch,
)
from datalog.records import record_timestamps
from fairlog_types import LeaderEpoch, Offset
from tests.datalog.batches import batch

BYTES_MAX = 1000


def with_field(data: bytearray, at: int, layout: str, *values: int) -> bytearray:
    """A copy with one header field, or several in a row, replaced, and the CRC as it was."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, at, *values)
    return changed


def with_count(data: bytearray, count: int) -> bytearray:
    """A copy that claims to have so many records, with the last offset delta that belongs to it."""
    return with_field(with_field(data, 57, ">i", count), 23, ">i", count - 1)


def reason_of(data: bytes | bytearray) -> BadBatchReason:
    """Why these bytes are not taken from a producer."""
    with pytest.raises(BadBatch) as caught:
        check_produced_untrusted(data, bytes_max=BYTES_MAX)
    return caught.value.reason


def test_header_of_another_implementation_is_read_as_meant() -> None:
    """aiokafka's batch says the same to us as to itself."""
    builder = DefaultRecordBatchBuilder(2, 0, 1, 4711, 5, 99, 1 << 20)
    builder.append(0, 1000, b"k", b"v", [])
    builder.append(1, 3000, b"k", b"v", [])
    builder.append(2, 2000, None, b"v", [("h", b"x")])
    data = builder.build()
    header = parse_batch_header_untrusted(data)
    check_crc(header, data)
    assert (header.base_offset, header.last_offset, header.record_count, header.size_bytes) == (0, 2, 3, len(data))
    assert (header.first_timestamp, header.max_timestamp) == (1000, 3000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4711, 5, 99)
    assert (header.transactional, header.control, header.log_append_time) == (True, False, False)
    assert header.compression is Compression.NONE
    assert max_timestamp_of(data) == 3000


def test_produced_batch_of_the_largest_size_is_taken_as_it_is() -> None:
    """The topic's bound counts, to the byte; what is answered is the header."""
    data = batch(0, [2, 3])
    assert check_produced_untrusted(memoryview(data), bytes_max=len(data)) == parse_batch_header_untrusted(data)
    with pytest.raises(BadBatch) as caught:
        check_produced_untrusted(data, bytes_max=len(data) - 1)
    assert caught.value.reason is BadBatchReason.TOO_LARGE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", BadBatchReason.TOO_SHORT),
        (batch(0, [1])[: HEADER_BYTES - 1], BadBatchReason.TOO_SHORT),
        (batch(0, [1])[:-1], BadBatchReason.LENGTH_MISMATCH),
        (batch(0, [1]) + b"\0", BadBatchReason.MORE_THAN_ONE),
        (batch(0, [1]) + batch(0, [2]), BadBatchReason.MORE_THAN_ONE),
        (batch(0, [1], payload=bytes(BYTES_MAX)), BadBatchReason.TOO_LARGE),
        (with_field(batch(0, [1]), 8, ">i", HEADER_BYTES - 13), BadBatchReason.LENGTH_MISMATCH),
        (with_field(batch(0, [1]), 8, ">i", -1), BadBatchReason.LENGTH_MISMATCH),
        (with_field(batch(0, [1]), 16, ">b", 1), BadBatchReason.BAD_MAGIC),
        (with_field(batch(0, [1]), 17, ">I", 0), BadBatchReason.BAD_CRC),
        (with_field(batch(0, [1]), 57, ">i", 0), BadBatchReason.COUNT_MISMATCH),
        (with_count(batch(0, [1]), 2), BadBatchReason.COUNT_MISMATCH),
        (with_count(batch(0, [1]), 2**31 - 1), BadBatchReason.COUNT_MISMATCH),
        (with_field(batch(0, [1, 2]), 57, ">i", 3), BadBatchReason.COUNT_MISMATCH),
        (with_field(batch(0, [1, 2]), 23, ">i", 0), BadBatchReason.COUNT_MISMATCH),
        (batch(0, [1], attributes=5), BadBatchReason.BAD_COMPRESSION),
        (with_field(batch(0, [1]), 43, ">q", -5), BadBatchReason.BAD_PRODUCER),
        (with_field(batch(0, [1]), 43, ">qhi", -(2**63), 0, 0), BadBatchReason.BAD_PRODUCER),
        (with_field(batch(0, [1]), 43, ">qhi", 5, -1, 0), BadBatchReason.BAD_PRODUCER),
        (with_field(batch(0, [1]), 43, ">qhi", 5, 0, -1), BadBatchReason.BAD_PRODUCER),
        (batch(0, [1], attributes=0x20), BadBatchReason.CONTROL),
    ],
)
def test_produced_bad_batch_names_the_reason(data: bytes, reason: BadBatchReason) -> None:
    """Each way of being wrong has a name of its own, for the Kafka edge to answer by."""
    assert reason_of(data) is reason


def test_header_of_the_smallest_records_there_are_is_good() -> None:
    """Seven bytes a record are enough, as a tombstone without a key has them: the bound refuses no honest batch."""
    data = batch(0, [1, 1, 1], payload=b"".join(b"\x0c\0\0" + bytes([2 * delta]) + b"\x01\x01\0" for delta in range(3)))
    assert parse_batch_header_untrusted(data).record_count == 3
    assert [offset for offset, _ in record_timestamps(parse_batch_header_untrusted(data), bytes(data))] == [0, 1, 2]


def test_header_of_a_compressed_batch_is_believed_about_its_count() -> None:
    """What a codec holds is not looked at on the way in."""
    data = batch(0, [1] * 1000, attributes=Compression.GZIP.value, payload=b"\x1f")
    assert parse_batch_header_untrusted(data).record_count == 1000


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, -1), (-1, 0), (0, 0), (-7, 2**31 - 1)])
def test_header_without_producer_is_good_whatever_stands_beside_it(epoch: int, sequence: int) -> None:
    """Clients without idempotence do not agree on what epoch and sequence they send."""
    header = parse_batch_header_untrusted(with_field(batch(0, [1]), 43, ">qhi", -1, epoch, sequence))
    assert header.producer_id == -1


@given(st.integers(HEADER_BYTES, len(batch(0, [1, 2, 3])) - 1), st.integers(1, 255))
def test_produced_any_changed_byte_behind_the_crc_is_bad(at: int, change: int) -> None:
    """No damage inside the records passes."""
    data = batch(0, [1, 2, 3])
    data[at] ^= change
    assert reason_of(data) is BadBatchReason.BAD_CRC


@given(st.binary(max_size=200))
def test_produced_any_bytes_raise_nothing_but_bad_batch(data: bytes) -> None:
    """A peer's bytes cannot crash us."""
    reason_of(data)


@given(st.data())
def test_produced_any_damaged_header_raises_nothing_but_bad_batch(data: st.DataObject) -> None:
    """Nor can those that look almost right."""
    damaged = batch(0, [1, 2, 3])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, HEADER_BYTES - 1))] = data.draw(st.integers(0, 255))
    try:
        check_produced_untrusted(damaged, bytes_max=BYTES_MAX)
    except BadBatch:
        return


@given(st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_patch_changes_offset_and_epoch_and_nothing_signed(base_offset: int, leader_epoch: int) -> None:
    """After patching the CRC still holds, and every other field is as it was."""
    data = batch(0, [1, 2, 3])
    before = parse_batch_header_untrusted(data)
    patch(data, Offset(base_offset), LeaderEpoch(leader_epoch))
    after = parse_batch_header_untrusted(data)
    check_crc(after, data)
    assert after == before._replace(base_offset=Offset(base_offset), partition_leader_epoch=LeaderEpoch(leader_epoch))
