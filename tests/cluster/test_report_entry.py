"""Bytes of the stream of reports."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import cbor2
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster.cluster_records import NODES_MAX, NodeNumber
from fairlog.cluster.report_entry import NotAReport, Report, decode_report_untrusted, encode_report
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyReport, Role
from stream.engine import StreamPosition
from stream.fold import NOTHING_READ

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "reports-stream-1.txt"
PAGE = ROOT / "docs" / "formats" / "reports-stream.md"

CLUSTER = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
OWNER = CopyReport(Role.OWNER, LeaderEpoch(7), StreamPosition(1234567), StreamPosition(1234000))
REPLICA = CopyReport(Role.REPLICA, LeaderEpoch(2), StreamPosition(41), NOTHING_READ)
REPORTS = [
    Report(NodeNumber(2), bytes(range(0x20, 0x30)), 300, {ShardNumber(0): OWNER, ShardNumber(3): REPLICA}),
    Report(NodeNumber(3), bytes(range(0x30, 0x40)), 1, {}),
]

POSITIONS = st.integers(-1, 1 << 62).map(StreamPosition)
COPIES = st.builds(CopyReport, st.sampled_from(Role), st.integers(0, 1 << 31).map(LeaderEpoch), POSITIONS, POSITIONS)
ANY_REPORT = st.builds(
    Report,
    st.integers(0, NODES_MAX).map(NodeNumber),
    st.binary(min_size=16, max_size=16),
    st.integers(1, 1 << 62),
    st.dictionaries(st.integers(0, 999).map(ShardNumber), COPIES, max_size=5),
)


def test_reports_written_are_those_of_the_golden_file() -> None:
    """The bytes of version 1 do not change, and the page shows them."""
    lines = [encode_report(CLUSTER, report).hex() for report in REPORTS]
    assert lines == GOLDEN.read_text().splitlines()
    assert GOLDEN.read_text() in PAGE.read_text()


def test_golden_reports_read_as_what_they_say() -> None:
    lines = GOLDEN.read_text().splitlines()
    assert [decode_report_untrusted(CLUSTER, bytes.fromhex(line)) for line in lines] == REPORTS


@given(ANY_REPORT)
def test_report_written_is_read(report: Report) -> None:
    assert decode_report_untrusted(CLUSTER, encode_report(CLUSTER, report)) == report


@given(st.binary(max_size=100) | st.binary(max_size=60).map(lambda body: b"FLGR" + body))
def test_any_bytes_are_a_report_or_not(data: bytes) -> None:
    """Nothing raises."""
    assert isinstance(decode_report_untrusted(CLUSTER, data), NotAReport)


def test_report_with_any_bit_flipped_is_none() -> None:
    data = encode_report(CLUSTER, REPORTS[0])
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode_report_untrusted(CLUSTER, bytes(flipped)), NotAReport), bit
    for size in range(len(data)):
        assert isinstance(decode_report_untrusted(CLUSTER, data[:size]), NotAReport), size


def resealed(data: bytes) -> bytes:
    """With the CRC of what it is now."""
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


def test_why_an_entry_is_no_report_is_told() -> None:
    data = encode_report(CLUSTER, REPORTS[0])
    assert decode_report_untrusted(CLUSTER, b"FLGM" + data[4:]) is NotAReport.FOREIGN
    assert decode_report_untrusted(CLUSTER, data[:-1]) is NotAReport.DAMAGED
    assert decode_report_untrusted(CLUSTER, resealed(data[:8] + b"\2" + data[9:])) is NotAReport.NEWER
    assert decode_report_untrusted(CLUSTER, resealed(data[:9] + b"\1" + data[10:])) is NotAReport.MALFORMED
    assert decode_report_untrusted(UUID(int=1), data) is NotAReport.CLUSTER


@pytest.mark.parametrize(
    "body",
    [
        "text",
        [2, bytes(16), 1],
        [-1, bytes(16), 1, {}],
        [NODES_MAX + 1, bytes(16), 1, {}],
        [2, bytes(15), 1, {}],
        [2, bytes(16), 0, {}],
        [2, bytes(16), 1, {-1: [1, 0, 0, 0]}],
        [2, bytes(16), 1, {1000: [1, 0, 0, 0]}],
        [2, bytes(16), 1, {0: [5, 0, 0, 0]}],
        [2, bytes(16), 1, {0: [1, -1, 0, 0]}],
        [2, bytes(16), 1, {0: [1, 0, -2, 0]}],
        [2, bytes(16), 1, {0: [1, 0, 0, -2]}],
        [2, bytes(16), 1, {0: [1, 0, 0]}],
        [2, bytes(16), 1, {"0": [1, 0, 0, 0]}],
    ],
)
def test_content_that_no_node_writes_is_malformed(body: object) -> None:
    head = encode_report(CLUSTER, REPORTS[1])[:28]
    assert decode_report_untrusted(CLUSTER, resealed(head + cbor2.dumps(body))) is NotAReport.MALFORMED
