"""The record batches in the bytes of a Fetch, taken apart. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from datalog.batch import BatchHeader, parse_stored_header
from tests.clients.raw_client import records_of


def batches_of(fetched: bytes) -> Iterator[tuple[BatchHeader, bytes, list[tuple[int, str]]]]:
    """Header, bytes and (offset, value) of each batch; of control batches no values."""
    start = 0
    while start + 12 <= len(fetched):
        (length,) = struct.unpack_from(">i", fetched, start + 8)
        data = bytes(fetched[start : start + 12 + length])
        header = parse_stored_header(data)
        values = [] if header.control else [(at, value.decode()) for at, value in records_of(data) if value is not None]
        yield header, data, values
        start += 12 + length
