"""The application behind the admin listener of a node of several machines.

    /                  the console         /health     whether the node has what it serves clients with, for probes
    /api/cluster       the cluster as this node knows it: nodes, shards, their copies, the engine
    /api/shards/move   POST: ask that a node owns a shard
                                           /metrics    for Prometheus
    /api/users/…       POST: list, add, change and delete users
    /api/me, /api/sign-…                   who has signed in at the console; POST: to sign in, and out

docs/admin-http.md describes the documents, and who may ask for them (`gate`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import cast

import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from fairlog import trail
from fairlog.admin_http.accounts import Accounts
from fairlog.admin_http.answers import asset_routes, guarded_app
from fairlog.admin_http.assets import Asset
from fairlog.admin_http.callers import Callers, Need
from fairlog.admin_http.cluster_view import Look, Metrics, Move, MoveOutcome, Status
from fairlog.admin_http.gate import Gate, actor, body_of
from fairlog.admin_http.session_routes import session_routes
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.admin_http.users import user_routes
from fairlog.trail import Action

_STATUS = {
    MoveOutcome.ASKED: 200,
    MoveOutcome.UNKNOWN: 404,
    MoveOutcome.DOWN: 409,
    MoveOutcome.ENGINE_AWAY: 503,
    MoveOutcome.NOT_KNOWN: 503,
}


def make_cluster_app(
    look: Look,
    metrics: Metrics,
    move: Move,
    accounts: Callable[[], Accounts | None],
    *,
    token: str,
    asks: bool = False,
    statistics: AdminStatistics | None = None,
    host_names: tuple[str, ...],
    assets: Mapping[str, Asset],
) -> ASGIApp:
    """The ASGI application. `token` allows everything; `asks`: whether callers have to say who they are.

    `host_names` are answered to beside addresses.
    """

    async def health(_: Request) -> Response:
        status = look()
        if status is None:
            return JSONResponse({"status": "starting", "reason": "the node waits for the engine"}, 503)
        roles = status.own_roles
        reading = [shard for shard, role in roles.items() if role not in ("replica", "owner")]
        if reading:
            which = ", ".join(map(str, reading))
            return JSONResponse({"status": "catching up", "reason": f"copies of the shards {which} are not ready"}, 503)
        reason = None if status.engine_answers else "the engine does not answer: writes are refused, reads go on"
        return JSONResponse({"status": "serving", "reason": reason, "shards": roles})

    async def cluster(_: Request) -> Response:
        return JSONResponse(asdict(known()))  # type: ignore[call-overload]

    def known() -> Status:
        status = look()
        if status is None:
            raise _not_known()
        return status

    def known_accounts() -> Accounts:
        found = accounts()
        if found is None:
            raise _not_known()
        return found

    async def page(request: Request) -> Response:
        status, accept = look(), request.headers.get("accept", "")
        content, content_type = await trio.to_thread.run_sync(metrics, status, accept)
        return Response(content, media_type=content_type)

    async def move_shard(request: Request) -> Response:
        shard, node = _read_move_untrusted(body_of(request))
        known()
        answer = await move(shard, node)
        outcome = answer.outcome.value
        refused = None if answer.outcome is MoveOutcome.ASKED else outcome
        if answer.outcome is MoveOutcome.NOT_KNOWN:
            refused = trail.UNKNOWN
        trail.note(actor(request), Action.MOVE_SHARD, str(shard), refused, to=node)
        return JSONResponse({"outcome": outcome, "message": answer.message}, _STATUS[answer.outcome])

    gate = Gate(Callers(token, known_accounts, statistics or AdminStatistics(), asks=asks))
    routes = [
        gate.route("/health", health, Need.OPEN),
        gate.route("/api/cluster", cluster, Need.SEE),
        gate.route("/api/shards/move", move_shard, Need.OPERATE, method="POST", action=Action.MOVE_SHARD),
        gate.route("/metrics", page, Need.SEE),
        *user_routes(gate, known_accounts),
        *session_routes(gate),
        *asset_routes(gate, assets),
    ]
    return guarded_app(routes, {}, host_names)


def _not_known() -> HTTPException:
    return HTTPException(503, "the node does not know the cluster yet: it waits for the engine")


def _read_move_untrusted(content: bytes) -> tuple[int, int | None]:
    try:
        document = cast("object", json.loads(content))
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"shard": int(shard), "to": int() | None as node} if (
            not isinstance(shard, bool) and not isinstance(node, bool) and shard >= 0 and (node is None or node >= 0)
        ):
            return shard, node
        case _:
            raise HTTPException(400, 'the body must be {"shard": N, "to": M}; M is the number of a node, or null')
