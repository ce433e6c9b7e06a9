"""Who calls the admin listener, and what they may do there.

    Authorization: Bearer …    the admin token: allows everything; who has it is the node's own user
    Authorization: Basic …     a user's name and password, in each call: for scripts and scrapers
    Cookie: …                  the session of a user who has signed in at the page (`sessions`)

Users count only where the listener asks who its callers are (`admin.protocol`); there they may *see* and *operate* as
the cluster's ACLs say, or do both without an authorizer. A header decides alone, of whatever scheme it is; with one, no
cookie is looked at.

Passwords are checked as PLAIN's are (`fairlog.security.passwords`): in a thread, one at a time, and whoever shows a
wrong one is told so after FAILURE_DELAY_S, on a connection that is closed then. Each is counted, and a log line says
who it claimed to be, at most ten a minute for each address.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

import structlog
import trio
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fairlog.admin_http import admin_token
from fairlog.admin_http.accounts import Accounts
from fairlog.admin_http.credentials import read_basic_untrusted
from fairlog.admin_http.request_log import RequestLog, host
from fairlog.admin_http.sessions import End, Sessions
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.exchange import Refused, SignedIn
from fairlog.security.passwords import Passwords
from fairlog.security.plain import NameAndPassword, of_possible_lengths_untrusted
from fairlog.security.principal import USER, Principal
from fairlog.security.sign_in import FAILURE_DELAY_S

log = structlog.get_logger()

PAGE, BASIC = "page", "basic"
"""How users sign in, as they are counted."""

_ID_BYTES = 32
_REFUSED = "the user or the password is wrong"
_CHALLENGE = {"www-authenticate": 'Bearer realm="fairlog"'}
"""Never Basic: at that a browser would ask for the password itself, and then send it to us by itself."""


class Need(Enum):
    """What a route asks of its caller."""

    OPEN = "nothing"
    SEE = "see"
    OPERATE = "operate"


OPERATIONS = {Need.SEE: Operation.DESCRIBE, Need.OPERATE: Operation.ALTER}
"""On the cluster, by which ACLs allow it. ALTER allows DESCRIBE as well."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls."""

    principal: str
    """As the trail has it: `User:alice`, or `Token:admin`; empty for who has shown nothing."""
    may: frozenset[Need]
    still_holds: Callable[[], bool] = lambda: True
    """Whether what was shown is still there."""


OPERATOR = Caller("Token:admin", frozenset((Need.SEE, Need.OPERATE)))
"""Who has the admin token."""
_PROCESS = Caller("Token:process", frozenset((Need.SEE,)))
"""Another process of the node."""
STRANGER = Caller("", frozenset())
"""Who has shown nothing."""


class Callers:
    """Those of one listener."""

    def __init__(
        self,
        token: str,
        accounts: Callable[[], Accounts],
        statistics: AdminStatistics,
        *,
        asks: bool,
    ) -> None:
        """`accounts` may raise what the application answers. `asks`: whether callers have to say who they are."""
        self._token = token
        self._reading_key = admin_token.reading_key(token)
        self._accounts = accounts
        self._statistics = statistics
        self.asks = asks
        self._passwords = Passwords(lambda: accounts().users(), lambda: accounts().secret())
        self._sessions = Sessions(trio.current_time, partial(secrets.token_urlsafe, _ID_BYTES), self._ended)
        self.log = RequestLog()

    async def caller(self, request: Request) -> Caller:
        """Who calls. Raises HTTPException if that is not shown, or wrongly."""
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._with_token(request, shown.strip())
        if not self.asks:
            return STRANGER
        if scheme.lower() == "basic":
            signed_in = await self._checked(request, BASIC, partial(read_basic_untrusted, shown))
            return self._of_user(signed_in.name, request, signed_in.still_holds)
        user = None if scheme else self.user_of_session(request)
        if user is None:
            self.log.warn(request, "admin call refused", reason="not signed in")
            raise HTTPException(401, "sign in first", _CHALLENGE)
        return self._of_user(user, request, lambda: self.user_of_session(request) == user)

    def user_of_session(self, request: Request) -> str | None:
        """Whose session the cookie is of; None without one that is good."""
        session_id = request.cookies.get(cookie_name(request))
        return None if session_id is None else self._sessions.user_of_untrusted(session_id)

    def may(self, user: str, request: Request) -> frozenset[Need]:
        """What a user may do from where the request comes from."""
        rights = self._accounts().rights(Principal(USER, user), host(request))
        return frozenset(
            need
            for need, operation in OPERATIONS.items()
            if rights is None or rights.allows(operation, ResourceType.CLUSTER)
        )

    async def open_session(self, request: Request, name: str, password: str) -> str:
        """Sign in at the page; the id of the session. Both are untrusted. Raises HTTPException."""
        signed_in = await self._checked(request, PAGE, partial(of_possible_lengths_untrusted, name, password))
        self.close_session(request)
        return self._sessions.open(signed_in)

    def close_session(self, request: Request) -> None:
        """End the session that the request has a cookie of, if there is one."""
        session_id = request.cookies.get(cookie_name(request))
        if session_id is not None:
            self._sessions.close_untrusted(session_id)

    def _with_token(self, request: Request, shown: str) -> Caller:
        if admin_token.matches(self._token, shown):
            return OPERATOR
        if admin_token.matches(self._reading_key, shown):
            return _PROCESS
        reason = "this is not the node's admin token"
        self.log.warn(request, "admin call refused", reason=reason)
        raise HTTPException(403, reason)

    def _of_user(self, user: str, request: Request, still_holds: Callable[[], bool]) -> Caller:
        return Caller(str(Principal(USER, user)), self.may(user, request), still_holds)

    async def _checked(self, request: Request, mechanism: str, read: Callable[[], NameAndPassword]) -> SignedIn:
        try:
            signed_in = await self._passwords.check(*read())
        except Refused as refused:
            self._statistics.sign_ins[mechanism, "refused"] += 1
            self.log.warn(request, "sign-in refused", user=refused.name, mechanism=mechanism, reason=refused.reason)
        else:
            self._statistics.sign_ins[mechanism, "signed in"] += 1
            return signed_in
        await trio.sleep(FAILURE_DELAY_S)
        raise HTTPException(401, _REFUSED, {**_CHALLENGE, "connection": "close"})

    def _ended(self, user: str, end: End) -> None:
        self._statistics.sign_ins[PAGE, end.value] += 1
        if end is End.REVOKED:
            log.warning("session ended: the user is deleted, or has another password", user=user, listener="admin")


def cookie_name(request: Request) -> str:
    """What the session's cookie is called. Cookies do not know ports, so the name has it: on one host there may be
    several processes, and several nodes.

    With TLS the browser holds that the cookie is secure, and from this very host (`__Host-`).
    """
    _, port = request.scope["server"]
    return f"{'__Host-' if is_encrypted(request) else ''}fairlog-{port}"


def is_encrypted(request: Request) -> bool:
    """Whether the connection has TLS."""
    return request.scope["scheme"] == "https"
