"""A node that joins gets a copy of a shard over a connection, whatever happens to those who give it."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import structlog.testing
import trio
from crc32c import crc32c

from fairlog.cluster.interface import InnerAddress
from fairlog.edge.log_limiter import LINES_MAX
from fairlog.interbroker import getting_copies, giving_copies
from fairlog.interbroker.getting_copies import get_copy
from fairlog.interbroker.giving_copies import GivesCopies
from fairlog.interbroker.peers import Peers
from fairlog_types import LeaderEpoch, ShardNumber, StorageFailure
from shard.copy_parts import (
    CopyBegins,
    CopyEnds,
    FileBegins,
    FileBytes,
    FileEnds,
    Part,
    encode_part,
)
from shard.directory import shard_directory
from shard.giving import NothingToGive, Send
from shard.joining import Draft
from shard.progress import CopyProgress, CopyReport, Role
from shard.stream_mark import encode_mark
from stream.engine import StreamPosition
from stream.entry import Owner
from stream.fold import NOTHING_READ, FoldState

SHARD, CLUSTER, SECRET, STREAM = ShardNumber(3), "MkU3OEVBNTcwNTJENDM2Qg", bytes(range(32)), "c.shard-3"
MARK = FoldState(StreamPosition(70), LeaderEpoch(2), Owner("n", bytes(16)), 5, 6)
FILES = {
    "stream-mark": encode_mark(STREAM, MARK),
    f"journals/local/o-offsets-0/{0:020}.journal": bytes(range(256)) * 1500,
    f"journals/group/2/{0:020}.journal": b"",
    "datalog/data.mdb": bytes(range(200)) * 9000,
}
CHUNK = 100_000


def parts(files: dict[str, bytes] = FILES) -> list[Part]:
    found: list[Part] = [CopyBegins(MARK.position, sum(map(len, files.values())))]
    for name, data in files.items():
        found.append(FileBegins(name))
        found += [FileBytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)]
        found.append(FileEnds(len(data), crc32c(data)))
    return [*found, CopyEnds(len(files))]


class Giver:
    """Sends these parts; then raises, or stands still, if it is told to."""

    def __init__(self, *sent: Part, then: Exception | None = None, stands: bool = False) -> None:
        self._parts = sent
        self._then = then
        self._stands = stands
        self.sent = 0
        self.asked: list[str] = []

    async def give(self, stream: str, send: Send) -> None:
        self.asked.append(stream)
        for part in self._parts:
            await send(part)
            self.sent += 1
        if self._stands:
            await trio.sleep_forever()
        if self._then is not None:
            raise self._then


Serve = Callable[..., Awaitable[InnerAddress]]


@pytest.fixture
def serve(nursery: trio.Nursery) -> Serve:
    """A node with a copy, which listens for brokers: its address."""

    async def start(
        giver: GivesCopies | None, *, secret: bytes = SECRET, shard: ShardNumber = SHARD, cluster: str = CLUSTER
    ) -> InnerAddress:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        peers = Peers(shard, cluster, secret, lambda _shard: None, lambda _shard, _message: None, giver=giver)
        await nursery.start(peers.run, listeners, [])
        return InnerAddress(*listeners[0].socket.getsockname())

    return start


async def get(data_dir: Path, *addresses: InnerAddress, progress: CopyProgress | None = None, **more: object) -> None:
    with trio.fail_after(20):
        await get_copy(
            shard_directory(data_dir, SHARD),
            STREAM,
            lambda: addresses,
            cluster_id=CLUSTER,
            secret=SECRET,
            progress=progress or CopyProgress(),
            **more,  # type: ignore[arg-type]
        )


def files_in(data_dir: Path) -> dict[str, bytes]:
    shard = shard_directory(data_dir, SHARD)
    return {shard.name_in(path): path.read_bytes() for path in shard.path.rglob("*") if path.is_file()}


async def test_copy_comes_as_it_was_given_and_tells_how_far_it_is(tmp_path: Path, serve: Serve) -> None:
    """What is reported meanwhile keeps the stream from the mark on, as soon as that is known, and before."""
    giver, told, reported = Giver(*parts()), list[tuple[int, int]](), list[CopyReport | None]()
    progress = CopyProgress(lambda: reported.append(progress.report))
    address = await serve(giver)
    await get(tmp_path, address, progress=progress, told=lambda done, total: told.append((done, total)))
    assert files_in(tmp_path) == FILES
    assert giver.asked == [STREAM]
    total = sum(map(len, FILES.values()))
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert [(report.role, report.taken, report.synced) for report in reported if report] == [
        (Role.JOINING, NOTHING_READ, NOTHING_READ),
        (Role.JOINING, MARK.position, NOTHING_READ),
    ]


async def told_while_it_passes_over(
    tmp_path: Path, serve: Serve, *bad: tuple[str, int], progress: CopyProgress | None = None
) -> str:
    """Each bad giver is tried, and then a good one, whose copy it is; why the first one was passed over."""
    with structlog.testing.capture_logs() as lines:
        await get(tmp_path, *bad, await serve(Giver(*parts())), progress=progress)
    assert files_in(tmp_path) == FILES
    assert not list((tmp_path / "copies").iterdir())
    reasons = [line["reason"] for line in lines if line["event"] == "no copy of the shard"]
    assert len(reasons) == len(bad)
    return reasons[0]


@pytest.mark.parametrize("sent", [0, 1, 2, 5, len(parts()) - 1])
async def test_giver_that_dies_is_passed_over_and_the_copy_begins_anew(tmp_path: Path, serve: Serve, sent: int) -> None:
    """Also one that has sent all but the last part: nobody takes that for a whole copy."""
    dies = Giver(*parts()[:sent], then=trio.BrokenResourceError("dies"))
    reported: list[CopyReport | None] = []
    progress = CopyProgress(lambda: reported.append(progress.report))
    reason = await told_while_it_passes_over(tmp_path, serve, await serve(dies), progress=progress)
    assert "connection has ended" in reason
    taken = [report.taken for report in reported if report is not None]
    assert taken == ([-1, -1, 70] if sent == 0 else [-1, 70, -1, 70])


async def test_giver_that_cannot_give_says_why(tmp_path: Path, serve: Serve) -> None:
    """At once, or when its disk fails in the middle."""
    for giver in (
        Giver(then=NothingToGive("it is being opened")),
        Giver(*parts()[:4], then=StorageFailure("its disk fails: it is being opened")),
    ):
        assert "it is being opened" in await told_while_it_passes_over(tmp_path, serve, await serve(giver))


async def test_process_without_the_secret_of_another_shard_or_cluster_gets_and_gives_nothing(
    tmp_path: Path, serve: Serve
) -> None:
    strangers = [
        (Giver(*parts()), {"secret": bytes(32)}, "does not know the secret"),
        (Giver(*parts()), {"shard": ShardNumber(4)}, "it is shard 4, and not shard 3"),
        (Giver(*parts()), {"cluster": "another"}, "belongs to the cluster 'another'"),
        (None, {}, "connection has ended"),  # it is no giver at all
    ]
    for giver, how, why in strangers:
        assert why in await told_while_it_passes_over(tmp_path, serve, await serve(giver, **how))
        assert giver is None or giver.asked == []


async def test_address_where_nobody_listens_is_passed_over(tmp_path: Path, serve: Serve) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = InnerAddress(*listeners[0].socket.getsockname())
    await listeners[0].aclose()
    assert "connection has ended" in await told_while_it_passes_over(tmp_path, serve, address)


@pytest.mark.slow
async def test_part_that_is_changed_on_its_way_is_noticed(tmp_path: Path, serve: Serve, nursery: trio.Nursery) -> None:
    """By the seal of its frame, wherever it is changed."""
    honest = await serve(Giver(*parts()))
    sizes = []

    async def counted(stream: trio.SocketStream, change_at: int | None) -> None:
        there = await trio.open_tcp_stream(honest.host, honest.port)

        async def forth() -> None:
            with suppress(trio.BrokenResourceError):
                async for data in stream:
                    await there.send_all(data)

        at = 0
        async with there, stream, trio.open_nursery() as inner:
            inner.start_soon(forth)
            with suppress(trio.BrokenResourceError):
                async for data in there:
                    changed = bytearray(data)
                    if change_at is not None and at <= change_at < at + len(data):
                        changed[change_at - at] ^= 1
                    at += len(data)
                    await stream.send_all(changed)
            inner.cancel_scope.cancel()
        sizes.append(at)

    async def proxy(change_at: int | None) -> InnerAddress:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def handle(stream: trio.SocketStream) -> None:
            await counted(stream, change_at)

        nursery.start_soon(trio.serve_listeners, handle, listeners)
        return InnerAddress(*listeners[0].socket.getsockname())

    await get(tmp_path, await proxy(None))
    assert files_in(tmp_path) == FILES
    handshake = 6 + 104 + 32
    for change_at in (handshake + 4, handshake + 20, handshake + 60, sizes[0] // 2, sizes[0] - 1):
        reason = await told_while_it_passes_over(tmp_path, serve, await proxy(change_at))
        assert "not what was sent" in reason, change_at


async def test_copy_that_is_none_is_passed_over(tmp_path: Path, serve: Serve) -> None:
    """Sealed well, by a node with a damaged disk or another idea of what a copy is."""
    damaged = parts()
    damaged[2] = FileBytes(b"x" + FILES["stream-mark"][1:])
    assert "checksum" in await told_while_it_passes_over(tmp_path, serve, await serve(Giver(*damaged)))


async def test_giver_that_stands_still_is_given_up(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getting_copies, "SILENCE_S", 0.2)
    stands = await serve(Giver(*parts()[:3], stands=True))
    assert "has sent nothing" in await told_while_it_passes_over(tmp_path, serve, stands)


@pytest.mark.slow
async def test_giver_holds_no_more_than_the_connection_takes(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose disk is slow slows its own copy; one that takes nothing for long loses it."""
    files = FILES | {"datalog/data.mdb": bytes(50_000_000)}
    giver, go_on = Giver(*parts(files)), trio.Event()
    monkeypatch.setattr(giving_copies, "SILENCE_S", 0.5)
    real = Draft.take

    def slow(self: Draft, part: Part) -> None:
        if isinstance(part, FileBytes) and len(part.data) == CHUNK:
            trio.from_thread.run(go_on.wait)
        real(self, part)

    monkeypatch.setattr(Draft, "take", slow)
    address = await serve(giver)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, tmp_path, address)
        await trio.sleep(1.0)
        held = giver.sent
        assert held * CHUNK < 25_000_000
        go_on.set()
        await trio.sleep(0.1)
        while not files_in(tmp_path):  # noqa: ASYNC110
            await trio.sleep(0.05)
    assert len(giver.asked) >= 2
    assert files_in(tmp_path) == files


async def test_disk_that_is_full_is_waited_for(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getting_copies, "PAUSE_S", 0.05)
    real, refusals = Draft.take, itertools.count()

    def take(self: Draft, part: Part) -> None:
        if isinstance(part, FileBytes) and next(refusals) < 3:
            raise OSError(28, "No space left on device")
        real(self, part)

    monkeypatch.setattr(Draft, "take", take)
    with structlog.testing.capture_logs() as lines:
        await get(tmp_path, await serve(Giver(*parts())))
    reasons = [line["reason"] for line in lines if line["event"] == "no copy of the shard"]
    assert len(reasons) == 3
    assert "No space left" in reasons[0]
    assert files_in(tmp_path) == FILES


async def test_giver_that_comes_later_is_waited_for_with_few_lines(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getting_copies, "PAUSE_S", 0.001)
    found: list[InnerAddress] = []
    asked = 0

    def givers() -> list[InnerAddress]:
        nonlocal asked
        asked += 1
        return found if asked > 100 else []

    found.append(await serve(Giver(*parts())))
    with structlog.testing.capture_logs() as lines, trio.fail_after(20):
        await get_copy(
            shard_directory(tmp_path, SHARD),
            STREAM,
            givers,
            cluster_id=CLUSTER,
            secret=SECRET,
            progress=CopyProgress(),
        )
    reasons = [line["reason"] for line in lines if line["event"] == "no copy of the shard"]
    assert reasons == ["the stream was trimmed past what is here, and no other node with a copy is known"] * LINES_MAX
    assert files_in(tmp_path) == FILES


async def test_cancellation_leaves_what_was_there(tmp_path: Path, serve: Serve) -> None:
    shard = shard_directory(tmp_path, SHARD)
    shard.path.mkdir(parents=True)
    (shard.path / "stream-mark").write_bytes(b"old")
    address = await serve(Giver(*parts()[:6], stands=True))
    with trio.move_on_after(0.3):
        await get(tmp_path, address)
    assert files_in(tmp_path) == {"stream-mark": b"old"}
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("asks", [b"", b"\x07", encode_part(CopyEnds(0)), b"\x00\xff"])
async def test_node_that_asks_for_something_else_is_disconnected(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch, asks: bytes
) -> None:
    """The one that listens goes on."""
    address = await serve(Giver(*parts()))
    with monkeypatch.context() as patched, structlog.testing.capture_logs() as lines:
        patched.setattr(getting_copies, "encode_part", lambda _part: asks)
        with trio.move_on_after(0.5):
            await get(tmp_path, address)
    assert "malformed message of a shard or tool" in {line["event"] for line in lines}
    await get(tmp_path, address)
    assert files_in(tmp_path) == FILES
