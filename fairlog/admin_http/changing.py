"""Calls that change something: who may make them, and their bodies. `guard` has the rules; here a refusal is logged."""

from __future__ import annotations

from contextlib import aclosing

import structlog
import trio
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from fairlog import trail
from fairlog.admin_http.guard import refusal_of_change
from fairlog.edge.log_limiter import LogLimiter
from fairlog.trail import Action, Actor

log = structlog.get_logger()

BODY_BYTES_MAX = 16 * 1024
"""A transactional id has at most 1 KiB."""

BODY_PATIENCE_S = 10


class ChangingCalls:
    """Those of one listener."""

    def __init__(self, token: str) -> None:
        """`token` is what they need."""
        self._token = token
        self._lines = LogLimiter(trio.current_time)

    def admit(self, request: Request, action: Action | None) -> None:
        """Raises HTTPException, and writes lines into the log and the audit trail, if the call is refused.

        None for a call that changes nothing, which is only logged.
        """
        refusal = refusal_of_change(request.headers, self._token)
        if refusal is not None:
            event = "admin call refused"
            more = self._lines.admit("" if request.client is None else request.client.host, event)
            if more is not None:
                log.warning(event, path=request.url.path, reason=refusal[1], peer=peer(request), **more)
            if action is not None:
                trail.note(Actor("", peer(request), "http"), action, request.url.path, refusal[1])
            raise HTTPException(*refusal)


def peer(request: Request) -> str:
    """Whom to name in the log."""
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"


def operator(request: Request) -> Actor:
    """Who has the admin token, for the audit trail."""
    return Actor("Token:admin", peer(request), "http")


async def body(request: Request) -> bytes:
    """The whole body. Raises HTTPException if it is too long, too slow, or does not end."""
    content = bytearray()
    with trio.move_on_after(BODY_PATIENCE_S) as patience:
        try:
            async with aclosing(request.stream()) as stream:
                async for part in stream:
                    content += part
                    if len(content) > BODY_BYTES_MAX:
                        raise HTTPException(413, f"a body of at most {BODY_BYTES_MAX} bytes is taken")
        except ClientDisconnect:
            raise HTTPException(400, "the connection ended within the body") from None
    if patience.cancelled_caught:
        raise HTTPException(408, f"the body was not here after {BODY_PATIENCE_S} s")
    return bytes(content)
