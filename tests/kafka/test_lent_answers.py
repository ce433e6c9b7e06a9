"""Answers whose batches are lent by the data logs, to clients that read them soon, late or never; with TLS and without.

The data logs in memory lend all batches, and a batch that is used after its loan is an error.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from datalog.environment import LmdbDataLogs
from fairlog.edge.frames import FrameReader
from fairlog_types import Offset
from tests.datalog.batches import batch as data_batch
from tests.datalog.behaviour import mark
from tests.kafka.example_requests import build_batch
from tests.kafka.serving import framed
from tests.security.test_tls_server import TLS, Site, until

BATCHES, BATCH_BYTES = 30, 900_000
"""More than the system holds for a client that does not read."""

EACH_WAY = pytest.mark.parametrize("name", ["PLAINTEXT", TLS])


@pytest.fixture
async def site(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[Site]:
    """With 27 MB in the topic `big`."""
    site = Site(tmp_path)
    await site.open(nursery)
    site.memory.topics.create_now("big")
    log = site.memory.log("big")
    batch = bytearray(build_batch(size=BATCH_BYTES))
    for _ in range(BATCHES):
        batch[:8] = site.memory.leaders.end(log).to_bytes(8, "big")
        site.memory.leaders.logs[log].append(bytes(batch))
    site.memory.leaders.release()
    yield site
    site.server.stop()
    for stream in site.streams:
        await trio.aclose_forcefully(stream)


def loans_last(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("fairlog.kafka.answer_budget.LOAN_S", seconds)


async def fetch_all(site: Site, name: str) -> trio.abc.Stream:
    """The connection on which all of the topic was asked for."""
    stream = await (site.connect() if name == TLS else site.plain(name))
    fetch = struct.pack(">hhih", 1, 4, 6, -1) + struct.pack(">iiiibi", -1, 0, 1, 1 << 30, 0, 1)
    fetch += struct.pack(">h3siiqi", 3, b"big", 1, 0, 0, 1 << 30)
    await stream.send_all(framed(fetch))
    return stream


async def answer_on(stream: trio.abc.Stream) -> bytes:
    with trio.fail_after(60):
        return bytes(await FrameReader(stream, frame_bytes_max=1 << 30).next_frame() or b"")


def lent(site: Site) -> Callable[[], bool]:
    return lambda: site.memory.data_logs.loans > 0


def repaid(site: Site) -> Callable[[], bool]:
    return lambda: site.memory.data_logs.loans == 0


@EACH_WAY
async def test_client_that_reads_gets_what_is_lent(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """And the loan ends when all is sent."""
    loans_last(monkeypatch, 1000.0)
    answer = await answer_on(await fetch_all(site, name))
    assert answer.endswith(b"".join(site.memory.leaders.logs[site.memory.log("big")]))
    assert site.memory.data_logs.loans_given > 0
    await until(repaid(site))


@EACH_WAY
async def test_client_that_reads_late_gets_copies(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing is lent to it for longer than a loan lasts."""
    loans_last(monkeypatch, 0.5)
    stream = await fetch_all(site, name)
    await until(lent(site))
    await until(repaid(site))
    answer = await answer_on(stream)
    assert answer.endswith(b"".join(site.memory.leaders.logs[site.memory.log("big")]))


@EACH_WAY
async def test_what_lmdb_lends_is_read_late_while_its_pages_are_written_over(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Begun in a thread, ended in the event loop; the client gets what was there when it asked."""
    loans_last(monkeypatch, 0.5)
    log, stored = site.memory.log("big"), site.memory.leaders.logs[site.memory.log("big")]
    data_logs = LmdbDataLogs.open(tmp_path / "lmdb", map_bytes=1 << 30, sync=False)

    def put(offset: int, batch: bytes) -> None:
        with data_logs.write() as writer:
            writer.append(log, Offset(offset), 1, 1000, bytearray(batch))
            writer.put_mark(log, mark(offset + 1, offset + 1))

    with data_logs.write() as writer:
        writer.create(log)
    for offset, batch in enumerate(stored):
        put(offset, batch)
    monkeypatch.setattr(site.memory.data_logs, "lend", data_logs.lend)
    stream = await fetch_all(site, name)
    await until(lambda: data_logs._loans)
    for round_ in range(60):
        offset = BATCHES + round_
        put(offset, data_batch(offset, [1000], value=b"\xff" * BATCH_BYTES))
        with data_logs.write() as writer:
            writer.delete_before(log, Offset(offset))
        await trio.sleep(0.02)
    await until(lambda: not data_logs._loans)
    answer = await answer_on(stream)
    assert answer.endswith(b"".join(stored))
    await trio.to_thread.run_sync(data_logs.close)


@EACH_WAY
async def test_loan_ends_with_the_connection(site: Site, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The client goes without reading."""
    loans_last(monkeypatch, 1000.0)
    stream = await fetch_all(site, name)
    await until(lent(site))
    await trio.sleep(0.2)
    assert lent(site)()
    await trio.aclose_forcefully(stream)
    await until(repaid(site))
