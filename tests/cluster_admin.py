"""The admin listener of a node of several machines over a model of a cluster: real HTTP, and neither node nor engine.

The cluster is what a test puts into `status`. A move is written down, and does at once what `moves_at_once` says.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import trio
from structlog.testing import capture_logs

from fairlog.admin_http import assets
from fairlog.admin_http.cluster_app import make_cluster_app
from fairlog.admin_http.cluster_view import MoveAnswer, MoveOutcome
from fairlog.admin_http.server import open_admin_server
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.cluster_node import metrics
from fairlog.cluster_node.status import ClusterStatus, CopyStatus, EngineStatus, NodeStatus, ShardStatus
from fairlog.security.tls import TlsListener
from fairlog.user_accounts import StoreAccounts

TOKEN = "the-token-of-these-tests"
WELL = EngineStatus(answers=True, since_s=90.0, said="", appends=1234, bytes=5_000_000, unknown=1)


def shard_status(number: int, owner: int | None, *, epoch: int = 1, wish: int | None = None) -> ShardStatus:
    """Of a shard of which the nodes 1, 2, 3 have copies, which are all in sync."""
    copies = [
        CopyStatus(node, "owner" if node == owner else "replica", True, 0 if node == owner else 10 * node, 0.5)
        for node in (1, 2, 3)
    ]
    return ShardStatus(number, owner, epoch, wish, copies)


def cluster_status() -> ClusterStatus:
    """Three nodes, each the owner of one of three shards; node 1 says so."""
    nodes = [NodeStatus(number, f"host-{number}.example", f"rack-{number}", True) for number in (1, 2, 3)]
    shards = [shard_status(number, number + 1, epoch=number + 1) for number in range(3)]
    return ClusterStatus("C" * 22, "orders", 1, "9.9", nodes, shards, WELL, 3)


class ClusterAdmin:
    """What is served."""

    def __init__(self, tls: TlsListener | None = None, accounts: StoreAccounts | None = None) -> None:
        """With `accounts` it asks who its callers are."""
        self._tls = tls
        self._accounts = accounts
        self.status: ClusterStatus | None = cluster_status()
        self.address = ""
        """HOST:PORT."""
        self.moves: list[tuple[int, int | None]] = []
        self.answer = MoveAnswer(MoveOutcome.ASKED, "it is to be so")
        self.moves_at_once = True
        self._up = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._ends = trio.Event()

    async def move(self, shard: int, node: int | None) -> MoveAnswer:
        await trio.lowlevel.checkpoint()
        self.moves.append((shard, node))
        if self.answer.outcome is MoveOutcome.ASKED and self.status is not None:
            owner = self.status.shards[shard].owner if node is None or not self.moves_at_once else node
            self.change_shard(shard_status(shard, owner, epoch=9, wish=node))
        return self.answer

    def change_shard(self, changed: ShardStatus) -> None:
        assert self.status is not None
        shards = [changed if shard.number == changed.number else shard for shard in self.status.shards]
        self.status = replace(self.status, shards=shards)

    @contextmanager
    def served(self) -> Iterator[None]:
        """In a thread of its own, at `address`. Its lines of log do not stand among those of whoever asks."""
        thread = threading.Thread(target=trio.run, args=(self._serve,))
        with capture_logs():
            thread.start()
            assert self._up.wait(60)
            try:
                yield
            finally:
                assert self._token is not None
                self._token.run_sync_soon(self._ends.set)
                thread.join()

    async def _serve(self) -> None:
        files = await trio.to_thread.run_sync(assets.load, assets.CLUSTER_PAGE)
        app = make_cluster_app(
            lambda: self.status,
            partial(metrics.exposition, AdminStatistics()),
            self.move,
            lambda: self._accounts,
            token=TOKEN,
            asks=self._accounts is not None,
            host_names=(),
            assets=files,
        )
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, open_admin_server(app, [listener], self._tls):
            host, port = listener.socket.getsockname()
            self.address, self._token = f"{host}:{port}", trio.lowlevel.current_trio_token()
            self._up.set()
            await self._ends.wait()
