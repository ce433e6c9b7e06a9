"""The application behind the admin listener: paths, methods and documents.

    /                        the console               /health    the node's state, for probes
    /api/cluster             the node as a whole       /metrics   for Prometheus
    /api/brokers             the node's brokers, and how they are
    /api/topics              topics, page by page
    /api/groups              consumer groups with lag
    /api/sinks               sinks, their last batches and open lanes
    /api/transactions        live ones, and the last that ended
    /api/transactional-id    one id, and where its last transactions are
    /api/transactions/abort  POST: abort one
    /api/users/…             POST: list, add, change and delete users
    /api/me, /api/sign-…     who has signed in at the console; POST: to sign in, and out

Expensive documents are made at a limited rate (`cached`), however many clients ask; documents that are asked for by
name cost what a page of them costs. An error is a document, too: `{"error": "<a sentence>"}`. docs/admin-http.md
describes them all, and who may ask for them (`gate`).

Of several shards each answers for itself, with two exceptions: `/api/brokers` asks the others how they are, and the
first one's `/metrics` has the pages of all (`shards`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from fairlog import trail
from fairlog.admin_http import admin_token, documents, metrics_pages
from fairlog.admin_http.answers import asset_routes, guarded_app
from fairlog.admin_http.assets import Asset
from fairlog.admin_http.cached import Cached
from fairlog.admin_http.callers import Callers, Need
from fairlog.admin_http.documents import Document
from fairlog.admin_http.gate import AdminRoute, Gate, actor, body_of
from fairlog.admin_http.health import health
from fairlog.admin_http.session_routes import session_routes
from fairlog.admin_http.shards import Shards
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.admin_http.users import user_routes
from fairlog.admin_http.view import AbortOutcome, Node, NotServing
from fairlog.trail import Action
from fairlog_types import TxId

FRESH_S = 0.5
"""The console asks once a second."""

TOPICS_MAX = 100
PARTITIONS_MAX = 1000
"""In one page of topics, about: a page has at least one topic."""

_STATUS = {
    AbortOutcome.ABORTED: 200,
    AbortOutcome.UNKNOWN: 404,
    AbortOutcome.NOT_OPEN: 409,
    AbortOutcome.COMMITTED: 409,
    AbortOutcome.DECIDING: 409,
    AbortOutcome.REFUSED: 503,
}


def make_app(
    node: Node,
    *,
    token: str,
    asks: bool = False,
    statistics: AdminStatistics | None = None,
    host_names: tuple[str, ...],
    assets: Mapping[str, Asset],
    shards: Shards | None = None,
) -> ASGIApp:
    """The ASGI application. `token` allows everything; `asks`: whether callers have to say who they are.

    `host_names` are answered to beside addresses. `shards` are the listeners of all shards, if there are several.
    """
    gate = Gate(Callers(token, node.accounts, statistics or AdminStatistics(), asks=asks))
    api = _Api(node, admin_token.reading_key(token), shards, asks=asks)
    handlers = {NotServing: _not_serving, Exception: _fault}
    return guarded_app([*_routes(gate, api, node), *asset_routes(gate, assets)], handlers, host_names)


def _routes(gate: Gate, api: _Api, node: Node) -> Sequence[AdminRoute]:
    return [
        gate.route("/health", api.health, Need.OPEN),
        gate.route("/metrics", api.metrics, Need.SEE),
        gate.route("/api/cluster", api.cluster, Need.SEE),
        gate.route("/api/brokers", api.brokers, Need.SEE),
        gate.route("/api/topics", api.topics, Need.SEE),
        gate.route("/api/groups", api.groups, Need.SEE),
        gate.route("/api/sinks", api.sinks, Need.SEE),
        gate.route("/api/transactions", api.transactions, Need.SEE),
        gate.route("/api/transactional-id", api.transactional_id, Need.SEE),
        gate.route("/api/transactions/abort", api.abort, Need.OPERATE, method="POST", action=Action.ABORT_TRANSACTION),
        *user_routes(gate, node.accounts),
        *session_routes(gate),
    ]


class _Api:
    def __init__(self, node: Node, reading_key: str, shards: Shards | None, *, asks: bool) -> None:
        """`reading_key` is what the other processes let see their metrics by. `asks`: as of `make_app`."""
        self._node = node
        self._asks = asks
        self._reading_key = reading_key
        self._shards = shards
        self._asking_shards = trio.Lock()
        self._brokers = Cached(self._make_brokers, fresh_s=FRESH_S)
        self._cluster = Cached(self._make_cluster, fresh_s=FRESH_S)
        self._groups = Cached(self._make_groups, fresh_s=FRESH_S)
        self._sinks = Cached(self._make_sinks, fresh_s=FRESH_S)
        self._transactions = Cached(self._make_transactions, fresh_s=FRESH_S)
        self._first_topics = Cached(self._make_first_topics, fresh_s=FRESH_S)
        self._looking_up = trio.Lock()

    async def health(self, _: Request) -> Response:
        status, document = health(self._node, to_strangers=self._asks)
        return JSONResponse(document, status)

    async def metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        if self._shards is not None and self._shards.is_first:
            async with self._asking_shards:
                return await self._metrics_of_all(self._shards, accept)
        async with self._looking_up:
            content, content_type = await self._node.metrics(accept, {})
        return Response(content, media_type=content_type)

    async def _metrics_of_all(self, shards: Shards, accept: str) -> Response:
        others = await shards.metrics(accept, self._reading_key)
        up = {shards.own: True, **{shard: found is not None for shard, found in others.items()}}
        async with self._looking_up:
            content, content_type = await self._node.metrics(accept, up)
        pages = [others[shard] for shard in sorted(others)]
        merged = await trio.to_thread.run_sync(
            lambda: metrics_pages.merged([metrics_pages.read(content), *filter(None, pages)])
        )
        return Response(merged, media_type=content_type)

    async def cluster(self, _: Request) -> Response:
        return _json(await self._cluster.get())

    async def brokers(self, _: Request) -> Response:
        return _json(await self._brokers.get())

    async def topics(self, request: Request) -> Response:
        after, contains = request.query_params.get("after", ""), request.query_params.get("contains", "")
        if not after and not contains:
            return _json(await self._first_topics.get())
        async with self._looking_up:
            return _json(await self._make_topics(after, contains))

    async def groups(self, _: Request) -> Response:
        return _json(await self._groups.get())

    async def sinks(self, _: Request) -> Response:
        return _json(await self._sinks.get())

    async def transactions(self, _: Request) -> Response:
        return _json(await self._transactions.get())

    async def transactional_id(self, request: Request) -> Response:
        transactional_id = request.query_params.get("id")
        if transactional_id is None:
            raise HTTPException(400, "which one? /api/transactional-id?id=…")
        found = self._node.transactional_id(transactional_id)
        if found is None:
            raise HTTPException(404, AbortOutcome.UNKNOWN.value)
        return JSONResponse(documents.transactional_id(found, self._node.place_of))

    async def abort(self, request: Request) -> Response:
        transactional_id, txid = _read_abort_untrusted(body_of(request))
        outcome = await self._node.abort(transactional_id, txid)
        refused = None if outcome is AbortOutcome.ABORTED else outcome.name
        trail.note(actor(request), Action.ABORT_TRANSACTION, transactional_id, refused, txid=str(txid))
        document = {"outcome": outcome.name.lower(), "message": outcome.value}
        return JSONResponse(document, _STATUS[outcome])

    async def _make_cluster(self) -> bytes:
        return _encode(documents.cluster(await self._node.cluster(), health(self._node)[1]))

    async def _make_brokers(self) -> bytes:
        views = await self._node.brokers()
        own = health(self._node)[1]["status"]
        if self._shards is None:
            return _encode(documents.brokers(views, {each.shard: own for each in views}, {}))
        statuses = {**await self._shards.health(), self._shards.own: own}
        ports = {shard: address.port for shard, address in enumerate(self._shards.listeners)}
        return _encode(documents.brokers(views, statuses, ports))

    async def _make_groups(self) -> bytes:
        # One by one: all in one step would hold up every producer for as long as it takes.
        encoded: list[bytes] = []
        for group in await self._node.groups():
            encoded.append(_encode(documents.group(group)))
            await trio.lowlevel.checkpoint()
        return b'{"groups":[' + b",".join(encoded) + b"]}"

    async def _make_sinks(self) -> bytes:
        await trio.lowlevel.checkpoint()
        sinks = self._node.sinks()
        return _encode({"sinks": [documents.sink(each) for each in sinks.shown], "total": sinks.total})

    async def _make_transactions(self) -> bytes:
        await trio.lowlevel.checkpoint()
        return _encode(documents.transactions(self._node.transactions()))

    async def _make_first_topics(self) -> bytes:
        return await self._make_topics("", "")

    async def _make_topics(self, after: str, contains: str) -> bytes:
        page = await self._node.topics(
            after=after, contains=contains, count_max=TOPICS_MAX, partitions_max=PARTITIONS_MAX
        )
        return _encode(documents.topics(page))


def _read_abort_untrusted(body: bytes) -> tuple[str, TxId]:
    try:
        document = json.loads(body)
        transactional_id = str(document["transactional_id"])
        return transactional_id, documents.read_txid(str(document["transaction"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        sentence = 'the body must be {"transactional_id": "…", "transaction": "…"}, as /api/transactions has them'
        raise HTTPException(400, sentence) from None


def _encode(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _json(encoded: bytes) -> Response:
    return Response(encoded, media_type="application/json")


async def _not_serving(_: Request, __: NotServing) -> Response:
    return JSONResponse({"error": "the node is recovering; /health says when it serves"}, 503)


async def _fault(_: Request, __: Exception) -> Response:
    # It is raised again behind this answer, logged by the server, and goes no further.
    return JSONResponse({"error": "a fault of the node; its log says more"}, 500)
