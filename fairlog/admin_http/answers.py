"""What both applications have: files of the console, errors as documents, and the guard in front."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairlog.admin_http.assets import Asset
from fairlog.admin_http.callers import Need
from fairlog.admin_http.gate import AdminRoute, Gate
from fairlog.admin_http.guard import Guard


def guarded_app(
    routes: Sequence[AdminRoute], handlers: Mapping[type[Exception], Any], host_names: Sequence[str]
) -> Guard:
    """The application. `handlers` answer exceptions; `host_names` are answered to beside addresses."""
    of_exceptions = cast("Mapping[Any, Any]", {HTTPException: _http_error, **handlers})
    return Guard(Starlette(routes=list(routes), exception_handlers=of_exceptions), names=host_names)


def asset_routes(gate: Gate, assets: Mapping[str, Asset]) -> Sequence[AdminRoute]:
    """The files, by path. There is nothing in them that is not in the repository, so they are for everybody."""
    return [gate.route(path, _serving(asset), Need.OPEN) for path, asset in assets.items()]


def _serving(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    """What answers with a file, or with 304 to a browser that has it."""
    headers = {"cache-control": "no-cache", "etag": asset.entity_tag}

    async def serve(request: Request) -> Response:
        if asset.entity_tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.content_type, headers=headers)

    return serve


async def _http_error(_: Request, error: HTTPException) -> Response:
    """`{"error": "<a sentence>"}`."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
