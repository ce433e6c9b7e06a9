"""Record batches made by hand, so that tests know every byte and need no client."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import crc32c


def varint(value: int) -> bytes:
    """Zigzag, seven bits a byte."""
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def records(timestamps_ms: Sequence[int], value: bytes = b"v") -> bytes:
    """The records of a batch, one per timestamp, without keys and headers."""
    out = bytearray()
    for index, timestamp_ms in enumerate(timestamps_ms):
        body = b"\0" + varint(timestamp_ms - timestamps_ms[0]) + varint(index) + varint(-1)
        body += varint(len(value)) + value + varint(0)
        out += varint(len(body)) + body
    return bytes(out)


def batch(
    base_offset: int,
    timestamps_ms: Sequence[int],
    *,
    value: bytes = b"v",
    attributes: int = 0,
    payload: bytes | None = None,
    max_timestamp_ms: int | None = None,
    leader_epoch: int = 0,
) -> bytearray:
    """A whole batch with one record per timestamp; `payload` replaces the records (compressed ones, or garbage)."""
    body = records(timestamps_ms, value) if payload is None else payload
    largest = max(timestamps_ms) if max_timestamp_ms is None else max_timestamp_ms
    covered = struct.pack(
        ">hiqqqhii", attributes, len(timestamps_ms) - 1, timestamps_ms[0], largest, -1, -1, -1, len(timestamps_ms)
    )
    covered += body
    return bytearray(
        struct.pack(">qiibI", base_offset, len(covered) + 9, leader_epoch, 2, crc32c.crc32c(covered)) + covered
    )


def keyed_records(pairs: Sequence[tuple[bytes | None, bytes | None]], timestamp_deltas: Sequence[int]) -> bytes:
    """Records with these keys and values; None stands for none."""
    out = bytearray()
    for index, ((key, value), delta) in enumerate(zip(pairs, timestamp_deltas, strict=True)):
        body = b"\0" + varint(delta) + varint(index)
        for field in (key, value):
            body += varint(-1) if field is None else varint(len(field)) + field
        body += varint(0)
        out += varint(len(body)) + body
    return bytes(out)


def keyed_batch(
    base_offset: int,
    pairs: Sequence[tuple[bytes | None, bytes | None]],
    *,
    timestamp_ms: int = 0,
    timestamp_deltas: Sequence[int] | None = None,
    compress: Callable[[bytes], bytes] = lambda payload: payload,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
) -> bytearray:
    """A whole batch with these (key, value) pairs. `attributes` has to name the codec that `compress` applies.

    `timestamp_deltas` are counted from `timestamp_ms`; `producer` is id, epoch and base sequence.
    """
    deltas = [0] * len(pairs) if timestamp_deltas is None else timestamp_deltas
    last_delta, largest = len(pairs) - 1, timestamp_ms + max(deltas)
    covered = struct.pack(">hiqqqhii", attributes, last_delta, timestamp_ms, largest, *producer, len(pairs))
    covered += compress(keyed_records(pairs, deltas))
    head = struct.pack(">qiibI", base_offset, len(covered) + 9, leader_epoch, 2, crc32c.crc32c(covered))
    return bytearray(head + covered)
