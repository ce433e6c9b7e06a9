"""Markers are what Kafka's clients take for markers, and what says something else is not taken for one."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from hypothesis import given
from hypothesis import strategies as st

from datalog.batch import BadBatch, BadBatchReason, check_crc, check_produced_untrusted, parse_batch_header_untrusted
from datalog.control_batch import CONTROL_BATCH_BYTES, ControlRecord, decode_control_batch, encode_control_batch
from fairlog_types import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from tests.datalog.batches import batch


def marker(*, committed: bool = True, coordinator_epoch: int = 5) -> bytes:
    return encode_control_batch(
        Offset(7),
        LeaderEpoch(3),
        ProducerId(4000),
        ProducerEpoch(2),
        committed=committed,
        coordinator_epoch=coordinator_epoch,
        timestamp_ms=1_700_000_000_000,
    )


def test_control_batch_has_the_bytes_that_kafka_writes() -> None:
    """Header and record, byte for byte, as Kafka's MemoryRecords.withEndTransactionMarker lays them out."""
    data = marker(committed=False)
    assert len(data) == CONTROL_BATCH_BYTES
    assert data[:17].hex() == "0000000000000007000000420000000302"
    assert data[21:61].hex() == ("0030000000000000018bcfe568000000018bcfe568000000000000000fa00002ffffffff00000001")
    assert data[61:].hex() == "2000000008000000000c00000000000500"
    check_crc(parse_batch_header_untrusted(data), data)


@given(st.booleans(), st.integers(-1, 2**31 - 1))
def test_control_batch_decoded_says_what_was_encoded(committed: bool, coordinator_epoch: int) -> None:
    """Outcome and coordinator epoch survive the way to the disk and back."""
    found = decode_control_batch(marker(committed=committed, coordinator_epoch=coordinator_epoch))
    assert found == ControlRecord(committed, coordinator_epoch)


@pytest.mark.parametrize("committed", [True, False])
def test_control_batch_is_understood_by_a_client(committed: bool) -> None:
    """aiokafka's reader sees a control record of the right kind, with a valid CRC."""
    found = AiokafkaBatch(marker(committed=committed))
    assert found.validate_crc()
    assert found.is_control_batch
    assert found.is_transactional
    (record,) = found
    assert record.offset == 7
    assert record.key == (b"\0\0\0\1" if committed else b"\0\0\0\0")


def test_control_batch_of_a_client_is_refused() -> None:
    """Only the node writes markers, be they ever so well made."""
    with pytest.raises(BadBatch) as caught:
        check_produced_untrusted(marker(), bytes_max=1000)
    assert caught.value.reason is BadBatchReason.CONTROL


@pytest.mark.parametrize(
    "data",
    [
        bytes(batch(0, [1])),
        bytes(batch(0, [1], attributes=0x30)),
        marker()[:66] + b"\0\1" + marker()[68:],
        marker()[:68] + b"\0\2" + marker()[70:],
        marker()[:71] + b"\0\1" + marker()[73:],
    ],
    ids=["no control batch", "another length", "key version", "type", "value version"],
)
def test_control_batch_of_another_kind_is_not_guessed_at(data: bytes) -> None:
    """What is not a marker of the known version raises BadBatch."""
    with pytest.raises(BadBatch):
        decode_control_batch(data)
