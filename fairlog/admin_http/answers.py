"""Answers that both applications give: files of the console, and errors as documents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairlog.admin_http.assets import Asset


def serving(asset: Asset) -> Callable[[Request], Awaitable[Response]]:
    """What answers with a file, or with 304 to a browser that has it."""
    headers = {"cache-control": "no-cache", "etag": asset.entity_tag}

    async def serve(request: Request) -> Response:
        if asset.entity_tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.content_type, headers=headers)

    return serve


async def http_error(_: Request, error: HTTPException) -> Response:
    """`{"error": "<a sentence>"}`."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)
