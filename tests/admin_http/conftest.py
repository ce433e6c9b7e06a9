"""A node in a few lines, and a client of the application that needs no socket.

Fault model of the double: it answers at once with what a test has put into it, or raises what is in `failure`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from starlette.types import ASGIApp

from coordinator.answers import CommittedTransaction, Description
from coordinator.statistics import Step
from fairlog.admin_http.app import make_app
from fairlog.admin_http.assets import Asset
from fairlog.admin_http.view import (
    AbortOutcome,
    BrokerView,
    ClusterView,
    EndedTransaction,
    GroupPartition,
    GroupView,
    LiveTransaction,
    NotServing,
    Part,
    PartitionView,
    Phase,
    Place,
    Sinks,
    SinkView,
    TopicPage,
    TopicView,
    Transactions,
)
from fairlog_types import LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId
from tests.three_processes import three as three

TOKEN = "a-token-of-the-tests"
TXID = TxId(ProducerId(7), ProducerEpoch(2), 4)
HEAVY_LOG = LogId("t", "ab" * 16, 3)


@dataclass
class FakeNode:
    """`fairlog.admin_http.view.Node`."""

    phase: Phase = Phase.SERVING
    refusing_because: str | None = None
    failure: Exception | None = None
    shards: int = 1
    led_elsewhere: bool = False
    """Whether another process leads a partition of each topic."""
    outcome: AbortOutcome = AbortOutcome.ABORTED
    aborted: list[tuple[str, TxId]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    topic_names: list[str] = field(default_factory=lambda: ["orders"])
    group_names: list[str] = field(default_factory=lambda: ["readers"])
    transactional_ids: dict[str, Description] = field(default_factory=dict)
    live: list[LiveTransaction] = field(default_factory=list)

    def accounts(self) -> Any:
        raise NotServing

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.phase is Phase.RECOVERING:
            raise NotServing
        if self.failure is not None:
            raise self.failure

    async def cluster(self) -> ClusterView:
        await trio.lowlevel.checkpoint()
        self._ask("cluster")
        return ClusterView("c" * 22, 1, "9.9", 3, "h:1", 12.5, 2, 7, 4, 1024, 0.5, 4096, 1 << 30, 0, self.shards)

    async def brokers(self) -> Sequence[BrokerView]:
        await trio.lowlevel.checkpoint()
        self._ask("brokers")
        return [BrokerView(1 + shard, shard, f"h:{1 + shard}", 7) for shard in range(self.shards)]

    async def topics(self, *, after: str, contains: str, count_max: int, partitions_max: int) -> TopicPage:
        await trio.lowlevel.checkpoint()
        self._ask(f"topics after {after!r} with {contains!r}")
        fitting = [name for name in self.topic_names if contains in name]
        page = [name for name in fitting if name > after][:count_max]
        elsewhere = ((1, 2),) if self.led_elsewhere else ()
        led = (PartitionView(0, 2, 10, 7, 1, 800, 64),)
        views = tuple(TopicView(name, "ab" * 16, "markers", led, elsewhere) for name in page)
        return TopicPage(views, len(fitting), page[-1] if page and page[-1] != fitting[-1] else None)

    async def groups(self) -> Sequence[GroupView]:
        await trio.lowlevel.checkpoint()
        self._ask("groups")
        orders, gone = Place("orders", 0), Place("ab" * 16, 1, deleted=True)
        partitions = GroupPartition(orders, 4, 10), GroupPartition(gone, 4, None)
        if self.led_elsewhere:
            partitions += (GroupPartition(Place("orders", 1), 4, None, elsewhere=True),)
        return [GroupView(name, "Stable", 2, partitions) for name in self.group_names]

    def transactions(self) -> Transactions:
        self._ask("transactions")
        return Transactions(len(self.live), 0, 0, 9, 8, 1, 11, tuple(self.live), (an_ended(),))

    def sinks(self) -> Sinks:
        self._ask("sinks")
        return Sinks(2, (A_SINK,))

    def transactional_id(self, transactional_id: str) -> Description | None:
        self._ask("transactional id")
        return self.transactional_ids.get(transactional_id)

    def place_of(self, log: LogId) -> Place:
        return Place("orders", log.partition)

    async def abort(self, transactional_id: str, txid: TxId) -> AbortOutcome:
        await trio.lowlevel.checkpoint()
        self._ask("abort")
        self.aborted.append((transactional_id, txid))
        return self.outcome

    async def metrics(self, accept: str, shards_up: Mapping[int, bool]) -> tuple[bytes, str]:
        await trio.lowlevel.checkpoint()
        self._ask("metrics")
        page = "".join(f'fairlog_shard_up{{shard="{shard}"}} {int(up)}\n' for shard, up in shards_up.items())
        return f"# HELP accepting {accept}\n{page}".encode(), "text/plain; version=0.0.4; charset=utf-8"


A_SINK = SinkView(
    sink="totals",
    query="q",
    run=None,
    batch=7,
    records=5,
    placed=((Place("orders", 3), Placement(HEAVY_LOG, Offset(10), 5)),),
    parts_total=1,
    open_lanes=2,
    writing_s=1.5,
    used_ms=1_000,
)


def a_live(transactional_id: str = "billing-7", *, hung: bool = True) -> LiveTransaction:
    return LiveTransaction(
        transactional_id=transactional_id,
        txid=TXID,
        steps=((Step.BEGIN, 12.0),),
        began_ms=1_000,
        timeout_ms=60_000,
        silent_s=11.5,
        hung=hung,
        records=5,
        pinned_bytes=4_096,
        parts=(Part(Place("orders", 3), 5, 4_096),),
        parts_total=1,
    )


def an_ended() -> EndedTransaction:
    return EndedTransaction(
        transactional_id="billing-6",
        txid=TXID,
        began_ms=1_000,
        ended_ms=1_004,
        cause=None,
        steps=((Step.BEGIN, 0.0), (Step.PREPARE_COMMIT, 0.002), (Step.COMMITTED, 0.004)),
        records=5,
        placed=((Place("orders", 3), Placement(HEAVY_LOG, Offset(10), 5)),),
        touched=(),
        parts_total=1,
    )


def a_description() -> Description:
    placements = tuple(Placement(HEAVY_LOG, Offset(base), 5) for base in range(0, 500, 5))
    committed = (CommittedTransaction(TXID, placements), CommittedTransaction(TXID._replace(number=5), ()))
    return Description("billing-7", TXID.producer_id, TXID.epoch, 60_000, "EMPTY", None, None, (), (), committed)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


Ask = Callable[..., Any]


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def ask(node: FakeNode) -> Ask:
    """`await ask(path, method, headers, body)` of an application over `node`."""
    assets = {"/": Asset(b"<!doctype html>", "text/html; charset=utf-8", '"tag"')}
    return asker(make_app(node, token=TOKEN, host_names=("broker.example",), assets=assets))


def asker(app: ASGIApp) -> Ask:
    """The same of any application."""

    async def one(
        path: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes | list[bytes] = b"",
        *,
        body_ends: bool = True,
        scheme: str = "http",
        client: str = "127.0.0.1",
    ) -> Answer:
        path, _, query = path.partition("?")
        parts = body if isinstance(body, list) else [body]
        incoming = [
            {"type": "http.request", "body": part, "more_body": number < len(parts) or not body_ends}
            for number, part in enumerate(parts, start=1)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            if not incoming:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            return incoming.pop(0)

        async def send(message: Any) -> None:
            await trio.lowlevel.checkpoint()
            sent.append(message)

        named = {"host": "127.0.0.1:9644"} | {name.lower(): value for name, value in (headers or {}).items()}
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "root_path": "", "scheme": scheme,
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
            "client": (client, 4711), "server": ("127.0.0.1", 9644),
        }  # fmt: skip
        await app(scope, receive, send)
        start = next(message for message in sent if message["type"] == "http.response.start")
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, content)

    return one
