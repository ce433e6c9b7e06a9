"""What stands before each route: who calls must be allowed what the route needs.

    Gate.route(path, endpoint, Need.SEE) ──▶ AdminRoute: admit(…), then the endpoint

Every route is made here and says what it needs, so none can be without a check; the table in docs/admin-http.md has
them all, and a test holds the two together.

                       callers are not asked who they are     callers are asked (`admin.protocol`)
    OPEN               nothing                                nothing
    SEE                nothing                                DESCRIBE on the cluster, or the admin token
    OPERATE            the admin token                        ALTER on the cluster, or the admin token

What changes something must also come from our own page, or from no page at all, with JSON in its body (`guard`):
a browser sends a cookie, or a password that it has kept, by itself. Its body is read here, and then the user is checked
again: a body may take ten seconds, and a user who is deleted changes nothing any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fairlog import trail
from fairlog.admin_http.callers import OPERATIONS, STRANGER, Caller, Callers, Need, is_encrypted
from fairlog.admin_http.guard import refusal_of_change
from fairlog.admin_http.request_body import body
from fairlog.admin_http.request_log import host, peer
from fairlog.security.acls import CLUSTER_NAME, ResourceType
from fairlog.trail import Action, Actor

Endpoint = Callable[[Request], Awaitable[Response]]


class AdminRoute(Route):
    """A route with what it needs. `Gate.route` makes them."""

    def __init__(self, path: str, endpoint: Endpoint, need: Need, *, method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.need = need
        self.method = method


class Gate:
    """That of one listener."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers

    def route(
        self, path: str, endpoint: Endpoint, need: Need, *, method: str = "GET", action: Action | None = None
    ) -> AdminRoute:
        """A route that admits who may do what it needs; `action` is what refusals are called in the audit trail."""

        async def guarded(request: Request) -> Response:
            await self._admit(request, need, action)
            return await endpoint(request)

        return AdminRoute(path, guarded, need, method=method)

    def changing(self, path: str, endpoint: Endpoint) -> AdminRoute:
        """A route for everybody that changes something of the caller's own, and so must not be another site's."""

        async def guarded(request: Request) -> Response:
            self._refuse_foreign(request)
            return await endpoint(request)

        return AdminRoute(path, guarded, Need.OPEN, method="POST")

    async def _admit(self, request: Request, need: Need, action: Action | None) -> None:
        """Raises HTTPException, and writes lines into the log and the audit trail, if the call is refused."""
        request.state.caller = STRANGER
        if need is Need.OPEN or (need is Need.SEE and not self.callers.asks):
            return
        try:
            if need is Need.OPERATE:
                self._refuse_foreign(request)
            request.state.caller = await self.callers.caller(request)
            self._require(request, need)
            if need is Need.OPERATE:
                request.state.body = await body(request)
                self._require_still(request)
        except HTTPException as refusal:
            if action is not None:
                trail.note(actor(request), action, request.url.path, refusal.detail)
            raise

    def _refuse_foreign(self, request: Request) -> None:
        refusal = refusal_of_change(request.headers, is_encrypted=is_encrypted(request))
        if refusal is not None:
            self.callers.log.warn(request, "admin call refused", reason=refusal[1])
            raise HTTPException(*refusal)

    def _require(self, request: Request, need: Need) -> None:
        caller: Caller = request.state.caller
        if need in caller.may:
            return
        if caller is STRANGER:
            reason = "a token is needed: Authorization: Bearer <admin token>"
            self.callers.log.warn(request, "admin call refused", reason=reason)
            raise HTTPException(401, reason)
        operation = OPERATIONS[need].name
        resource = f"{ResourceType.CLUSTER.name}:{CLUSTER_NAME}"
        self.callers.log.note(
            request,
            "access denied",
            principal=caller.principal,
            host=host(request),
            operation=operation,
            resource=resource,
        )
        raise HTTPException(403, f"{caller.principal} may not {need.value} here: that needs {operation} on the cluster")

    def _require_still(self, request: Request) -> None:
        caller: Caller = request.state.caller
        if not caller.still_holds():
            reason = "the user is deleted, has another password, or has signed out"
            self.callers.log.warn(request, "admin call refused", reason=reason)
            raise HTTPException(401, reason)


def body_of(request: Request) -> bytes:
    """The body of a call that may operate."""
    content: bytes = request.state.body
    return content


def actor(request: Request) -> Actor:
    """Who has called, for the audit trail."""
    caller: Caller = request.state.caller
    return Actor(caller.principal, peer(request), "http")
