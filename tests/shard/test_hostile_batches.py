"""Whatever batch header the edge lets through can be journaled, copied, read, and found again after a crash."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import crc32c
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datalog.batch import BadBatch, BatchHeader, check_produced_untrusted
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog_types import Offset
from partition.answers import Appended
from tests.shard.runs import A, open_run

_HEADER = struct.Struct(">qiibIhiqqqhii")


def _integers(bits: int) -> st.SearchStrategy[int]:
    """Signed integers of that width, the ends and what lies around zero first."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.sampled_from([low, low + 1, -2, -1, 0, 1, high - 1, high]) | st.integers(low, high)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A batch that is framed and signed rightly, and says anything in every field that a client may choose."""
    payload = draw(st.binary(max_size=40))
    count = draw(st.integers(1, 2**31 - 1) | st.sampled_from([1, 2**31 - 1]))
    producer_id, sequence = draw(_integers(64)), draw(st.just(0) | _integers(32))
    data = bytearray(
        _HEADER.pack(
            draw(_integers(64)),  # base offset
            _HEADER.size + len(payload) - 12,
            draw(_integers(32)),  # leader epoch
            2,
            0,
            draw(_integers(16)) & ~0x30,  # neither transactional nor control
            count - 1,
            draw(_integers(64)),  # first timestamp
            draw(_integers(64)),  # max timestamp
            producer_id,
            draw(_integers(16)),  # producer epoch
            sequence,
            count,
        )
        + payload
    )
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def _let_through(batches: Sequence[bytes]) -> list[tuple[bytes, BatchHeader]]:
    passed: list[tuple[bytes, BatchHeader]] = []
    for data in batches:
        try:
            passed.append((data, check_produced_untrusted(data, bytes_max=len(data))))
        except BadBatch:
            continue
    return passed


def _found(data_logs: LmdbDataLogs) -> list[bytes]:
    (answer,) = data_logs.read([ReadRequest(A, Offset(0), 1 << 30)], bytes_max=1 << 30)
    assert isinstance(answer, ReadResult)
    for timestamp_ms in (0, 1, 2**63 - 1):
        data_logs.offset_for_timestamp(A, timestamp_ms)
    data_logs.max_timestamp(A)
    return [data[21:] for data in answer.batches]


async def _store_and_find(directory: Path, batches: Sequence[tuple[bytes, BatchHeader]]) -> None:
    async with open_run(directory / "run", leader_epoch=1) as run:
        await run.start(A, copying=False)
        taken = [data[21:] for data, header in batches if isinstance(await run[A].append(data, header, None), Appended)]
        crashed = run.crash(directory / "crashed")
        run.nursery.start_soon(run.partitions.run)
        await run.partitions.drain()
        assert await trio.to_thread.run_sync(_found, run.data_logs) == taken
    async with open_run(crashed, leader_epoch=2) as run:
        await run.start(A)
        assert await trio.to_thread.run_sync(_found, run.data_logs) == taken


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(headers(), min_size=1, max_size=30))
def test_batch_that_the_edge_accepts_can_be_stored_and_read_back(batches: list[bytes]) -> None:
    """No header passes the edge and then stops the copier, the reader or a restart."""
    with TemporaryDirectory() as directory:
        trio.run(_store_and_find, Path(directory), _let_through(batches))
