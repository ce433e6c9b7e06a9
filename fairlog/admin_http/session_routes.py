"""Signing in at the console, and out.

    GET  /api/me          who the session's user is, and what they may do
    POST /api/sign-in     begin a session: {"user": "…", "password": "…"}
    POST /api/sign-out    end it

The session is a cookie that the page's scripts cannot read (HttpOnly), that no other site's page makes a browser send
(SameSite=Strict), and that goes by TLS only, where there is TLS (Secure).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairlog.admin_http.callers import Callers, Need, cookie_name, is_encrypted
from fairlog.admin_http.credentials import BadSignIn, read_sign_in_untrusted
from fairlog.admin_http.gate import AdminRoute, Gate
from fairlog.admin_http.request_body import body


def session_routes(gate: Gate) -> Sequence[AdminRoute]:
    callers = gate.callers

    async def me(request: Request) -> Response:
        if not callers.asks:
            return JSONResponse(_document(None, (Need.SEE,), asks=False))
        user = callers.user_of_session(request)
        return JSONResponse(_document(user, () if user is None else callers.may(user, request)))

    async def sign_in(request: Request) -> Response:
        _require_asking(callers)
        try:
            name, password = read_sign_in_untrusted(await body(request))
        except BadSignIn as bad:
            raise HTTPException(400, str(bad)) from None
        session_id = await callers.open_session(request, name, password)
        answer = JSONResponse(_document(name, callers.may(name, request)))
        _set_cookie(answer, request, session_id)
        return answer

    async def sign_out(request: Request) -> Response:
        _require_asking(callers)
        callers.close_session(request)
        answer = JSONResponse(_document(None, ()))
        _set_cookie(answer, request, "", max_age=0)
        return answer

    return [
        gate.route("/api/me", me, Need.OPEN),
        gate.changing("/api/sign-in", sign_in),
        gate.changing("/api/sign-out", sign_out),
    ]


def _require_asking(callers: Callers) -> None:
    if not callers.asks:
        raise HTTPException(404, "nobody signs in here: see admin.protocol")


def _document(user: str | None, may: Collection[Need], *, asks: bool = True) -> dict[str, object]:
    return {"asks": asks, "user": user, "may": {"see": Need.SEE in may, "operate": Need.OPERATE in may}}


def _set_cookie(answer: Response, request: Request, value: str, max_age: int | None = None) -> None:
    answer.set_cookie(
        cookie_name(request),
        value,
        max_age=max_age,
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_encrypted(request),
    )
