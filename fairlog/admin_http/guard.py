"""The checks that every request passes first, and the headers that every answer carries.

By default a node listens on loopback, but any page can make a browser on the same machine send requests there. So:

- *DNS rebinding*: the Host header must name an IP address (a page that was loaded from one has that very origin),
  localhost, or a name that the settings allow. Anything else gets 421, and sees nothing.
- *Cross-site requests*: a browser would send a session's cookie by itself, though not for another site's page
  (SameSite=Strict). So a changing call needs JSON in the body, which other sites' pages cannot send without asking
  first, and, if the browser names the origin, our origin. Who may make it, `gate` says.
- *Injection*: the policy allows our own scripts and styles and nothing inline, and no text may become markup
  (`require-trusted-types-for`). The console makes text nodes only; this is the second line of defence.

Pure, except for the ASGI shell at the end.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def host_is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header cannot come from a page of somebody else's name.

    `names` are those that the settings allow, in lower case. The port does not matter.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if name is None:
        return False
    name = name.rstrip(".")
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def refusal_of_change(headers: Mapping[str, str], *, is_encrypted: bool) -> tuple[int, str] | None:
    """Why a call that changes something cannot be from our own page or from a program, as a status and a sentence; None
    if it can.

    `headers` has lower-case names. Without TLS here there may be a proxy that has it, so only the place of the origin
    counts.
    """
    origin = headers.get("origin")
    if origin is not None:
        scheme, place = _origin(origin)
        if place != headers.get("host", "").lower() or (is_encrypted and scheme != "https"):
            return 403, "the request comes from another site"
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return 403, "the request comes from another site"
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return 415, "the body must be application/json"
    return None


def _origin(origin: str) -> tuple[str, str]:
    """Scheme and HOST:PORT of an Origin header; empty if it has none, or is not one at all."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return "", ""
    return parts.scheme.lower(), parts.netloc.lower()


class Guard:
    """Stands in front of the application."""

    def __init__(self, app: Starlette, *, names: Collection[str]) -> None:
        self.app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        host = Headers(scope=scope).get("host", "")
        if host_is_ours(host, self._names):
            await self.app(scope, receive, send_guarded)
            return
        error = (
            f"the Host {host[:255]!r} is neither an IP address nor localhost nor in admin.hosts; "
            "this keeps other sites' pages out (DNS rebinding)"
        )
        await JSONResponse({"error": error}, 421)(scope, receive, send_guarded)
