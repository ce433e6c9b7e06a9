"""Log lines about calls, at most ten a minute of an event and an address (`fairlog/edge/log_limiter.py`)."""

from __future__ import annotations

import structlog
import trio
from starlette.requests import Request

from fairlog.edge.log_limiter import LogLimiter

log = structlog.get_logger()


class RequestLog:
    """Those of one listener."""

    def __init__(self) -> None:
        self._lines = LogLimiter(trio.current_time)

    def warn(self, request: Request, event: str, **fields: object) -> None:
        """An event that an operator should look at."""
        more = self._lines.admit(host(request), event)
        if more is not None:
            log.warning(event, **fields, path=request.url.path, peer=peer(request), **more)

    def note(self, request: Request, event: str, **fields: object) -> None:
        """Any other event."""
        more = self._lines.admit(host(request), event)
        if more is not None:
            log.info(event, **fields, path=request.url.path, **more)


def peer(request: Request) -> str:
    """Whom to name: address and port."""
    return "" if request.client is None else f"{request.client.host}:{request.client.port}"


def host(request: Request) -> str:
    """The address."""
    return "" if request.client is None else request.client.host
