"""The application behind the admin listener of a node of several machines.

    /                  the console         /health     whether the node has what it serves clients with, for probes
    /api/cluster       the cluster as this node knows it: nodes, shards, their copies, the engine
    /api/shards/move   POST: ask that a node owns a shard; needs the admin token
                                           /metrics    for Prometheus
    /api/users/…       POST: list, add, change and delete users; needs the admin token

docs/admin-http.md describes the documents.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fairlog import trail
from fairlog.admin_http.answers import http_error, serving
from fairlog.admin_http.assets import Asset
from fairlog.admin_http.changing import ChangingCalls, body, operator
from fairlog.admin_http.cluster_view import Look, Metrics, Move, MoveOutcome, Status
from fairlog.admin_http.guard import Guard
from fairlog.admin_http.users import Accounts, user_routes
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
    host_names: tuple[str, ...],
    assets: Mapping[str, Asset],
) -> ASGIApp:
    """The ASGI application. `token` is what changing calls need; `host_names` are answered to beside addresses."""
    changing = ChangingCalls(token)

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
        changing.admit(request, Action.MOVE_SHARD)
        shard, node = _read_move_untrusted(await body(request))
        known()
        answer = await move(shard, node)
        outcome = answer.outcome.value
        refused = None if answer.outcome is MoveOutcome.ASKED else outcome
        if answer.outcome is MoveOutcome.NOT_KNOWN:
            refused = trail.UNKNOWN
        trail.note(operator(request), Action.MOVE_SHARD, str(shard), refused, to=node)
        return JSONResponse({"outcome": outcome, "message": answer.message}, _STATUS[answer.outcome])

    routes = [
        Route("/health", health),
        Route("/api/cluster", cluster),
        Route("/api/shards/move", move_shard, methods=["POST"]),
        Route("/metrics", page),
        *user_routes(changing, known_accounts),
        *(Route(path, serving(asset)) for path, asset in assets.items()),
    ]
    handlers = cast("Mapping[Any, Any]", {HTTPException: http_error})
    return Guard(Starlette(routes=routes, exception_handlers=handlers), names=host_names)


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
