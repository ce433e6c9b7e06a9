"""One entry of the stream of reports: what a node says of its copies of shards.

    magic u32 | CRC u32 | version u8 | 0 u8 × 3 | cluster 16 | body

The body is CBOR: `[node, incarnation, number, {shard: [role, epoch, taken, synced]}]`.

Format: docs/formats/reports-stream.md. Pure: no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast
from uuid import UUID

import cbor2
from crc32c import crc32c

from fairlog.cluster.cluster_records import NODES_MAX, SHARDS_MAX, NodeNumber
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyReport, Role
from stream.engine import StreamPosition
from stream.fold import NOTHING_READ

MAGIC = 0x52474C46
"""`FLGR` in the file's order of bytes."""
VERSION = 1

_HEADER = struct.Struct("<IIB3s16s")
_CRC_FROM = 8
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 28
INCARNATION_BYTES = 16


class NotAReport(Enum):
    """Why bytes are not a report; the value completes "the entry is not a report: …"."""

    FOREIGN = "it does not begin as one"
    DAMAGED = "its CRC is wrong, or it is too short"
    NEWER = "it has a version that this program does not know, so a newer one has written it"
    CLUSTER = "it is of another cluster"
    MALFORMED = "its content is not that of a report"


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says of all its copies."""

    node: NodeNumber
    incarnation: bytes
    """16 random bytes for each run of the process."""
    number: int
    """The process counts 1, 2, 3, …"""
    copies: Mapping[ShardNumber, CopyReport]
    """By shard; of a shard that is missing the node has no copy."""


def encode_report(cluster: UUID, report: Report) -> bytes:
    """The entry."""
    assert len(report.incarnation) == INCARNATION_BYTES
    copies = {shard: list(copy) for shard, copy in sorted(report.copies.items())}
    body = cbor2.dumps([report.node, report.incarnation, report.number, copies])
    header = _HEADER.pack(MAGIC, 0, VERSION, bytes(3), cluster.bytes)
    covered = header[_CRC_FROM:] + body
    return header[:4] + crc32c(covered).to_bytes(4, "little") + covered


def decode_report_untrusted(cluster: UUID, data: bytes) -> Report | NotAReport:
    """Decode an entry of this cluster's. Never raises."""
    if data[:4] != MAGIC.to_bytes(4, "little"):
        return NotAReport.FOREIGN
    if len(data) < HEADER_BYTES or crc32c(memoryview(data)[_CRC_FROM:]) != int.from_bytes(data[4:8], "little"):
        return NotAReport.DAMAGED
    _, _, version, zeros, named = _HEADER.unpack_from(data)
    if version != VERSION:
        return NotAReport.NEWER
    if named != cluster.bytes:
        return NotAReport.CLUSTER
    report = None if any(zeros) else _decode_body(data[HEADER_BYTES:])
    return NotAReport.MALFORMED if report is None else report


def _decode_body(body: bytes) -> Report | None:
    try:
        rows = cast("object", cbor2.loads(body))
    except (cbor2.CBORDecodeError, UnicodeDecodeError, ValueError, TypeError, RecursionError):
        return None
    match rows:
        case [int(node), bytes(incarnation), int(number), dict()] if (
            0 <= node <= NODES_MAX and len(incarnation) == INCARNATION_BYTES and number >= 1
        ):
            copies = _decode_copies(cast("list[dict[object, object]]", rows)[3])
            return None if copies is None else Report(NodeNumber(node), incarnation, number, copies)
        case _:
            return None


def _decode_copies(rows: dict[object, object]) -> dict[ShardNumber, CopyReport] | None:
    copies: dict[ShardNumber, CopyReport] = {}
    for key, row in rows.items():
        match key, row:
            case int(shard), [int(role), int(epoch), int(taken), int(synced)] if (
                0 <= shard < SHARDS_MAX and role in _ROLES and epoch >= 0 and min(taken, synced) >= NOTHING_READ
            ):
                copies[ShardNumber(shard)] = CopyReport(
                    Role(role), LeaderEpoch(epoch), StreamPosition(taken), StreamPosition(synced)
                )
            case _:
                return None
    return copies


_ROLES = frozenset(Role)
