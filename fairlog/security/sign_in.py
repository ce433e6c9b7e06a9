"""One connection's signing in: what may come when, how long it lasts, and what ends it.

    WAITING ──choose──▶ CHOSEN ──authenticate …──▶ SIGNED_IN ──choose──▶ CHOSEN (again) ──▶ …
       └────────────────── anything that is refused ──▶ OVER

Kafka's rules (KIP-43, KIP-152, KIP-368), for every protocol of the listener. A client that has signed in may do so
again on the same connection, by the same mechanism, as the same user, once a second at most. Its session lasts until it
expires (`sasl.max_reauth_ms`, or its token's end), and what it asks later closes the connection.

Beyond Kafka: a session also ends when the credential that it was opened with is taken away or changed. Kafka lets it
go on until the next re-authentication, which may never come. Here the connection is cancelled (`SignIn.revoke`).
Whoever changes their own user is answered first.

A refusal is told after FAILURE_DELAY_S, as in Kafka, so that whoever tries out passwords gets nowhere fast; the
connection is closed then. Whoever has not signed in after TIME_S is disconnected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import trio

from fairlog.security.exchange import Challenge, Exchange, Refused, SignedIn
from fairlog.security.listeners import Listener
from fairlog.security.principal import ANONYMOUS, USER, Principal

FAILURE_DELAY_S = 0.1
"""Kafka's connection.failed.authentication.delay.ms."""

TIME_S = 30.0
"""For signing in, after the TLS handshake if any: what Kafka's clients have patience for (`request.timeout.ms`)."""

AGAIN_S = 1.0
"""Between two times that a connection signs in again. Kafka's bound."""

ANSWER_S = 10.0
"""For the answer to whoever has ended their own session."""

FRAME_BYTES_MAX = 512 << 10
"""Of whoever has not signed in. Kafka's sasl.server.max.receive.size."""


class _State(Enum):
    WAITING = "waiting"
    CHOSEN = "chosen"
    SIGNED_IN = "signed in"
    OVER = "over"


class Choice(Enum):
    """What comes of choosing a mechanism."""

    TAKEN = "taken"
    NOT_OFFERED = "not offered"
    """The connection is to be closed."""
    OUT_OF_ORDER = "out of order"
    """The connection is to be closed, unless it has signed in."""


class Rejected(Exception):
    """The client is not let in: answer with the sentence, then close. Everything is logged and counted already."""


class OutOfOrder(Exception):
    """A message that does not belong here: answer so, then close."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a message of the exchange."""

    message: bytes
    is_complete: bool
    lifetime_ms: int = 0
    """How long the session lasts; 0: for ever."""


class Desk(Protocol):
    """Where connections sign in; `fairlog.security.desk` has the real one."""

    max_reauth_ms: int

    def offered(self, listener: Listener) -> Sequence[str]: ...

    def begin(self, mechanism: str) -> Exchange: ...

    def count(self, mechanism: str, outcome: str) -> None: ...

    def now_ms(self) -> int: ...


Report = Callable[[str, Mapping[str, object]], None]
"""Writes a log line of an event, unless there were too many: event, fields."""


class SignIn:
    """Of one connection."""

    def __init__(self, desk: Desk, listener: Listener, report: Report) -> None:
        self._desk = desk
        self._listener = listener
        self._report = report
        self._state = _State.WAITING
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._session: SignedIn | None = None
        self._session_mechanism = ""
        self._expires_s: float | None = None
        self._chosen_s = 0.0
        self._is_revoked = False
        self._is_changing_users = False
        self._has_another_mechanism = False
        self.principal: Principal = ANONYMOUS
        self.scope = trio.CancelScope()
        """The connection's life. It ends when nobody signs in in time, or the session is revoked."""

    @property
    def offered(self) -> Sequence[str]:
        """The names of the mechanisms."""
        return self._desk.offered(self._listener)

    @property
    def has_signed_in(self) -> bool:
        """Whether the client has shown who it is, maybe a while ago."""
        return self._session is not None

    @property
    def is_choosing(self) -> bool:
        """Whether a mechanism may be chosen now."""
        return self._state in (_State.WAITING, _State.SIGNED_IN)

    @property
    def is_over(self) -> bool:
        """Whether the connection is to be closed."""
        return self._state is _State.OVER

    def begin(self) -> None:
        """The connection is there: from now on it has TIME_S."""
        self.scope.deadline = trio.current_time() + TIME_S

    def ended(self) -> None:
        """The connection is gone. Says so if that was for the time."""
        if self.scope.cancelled_caught and not self.has_signed_in:
            self._refuse("time out", f"not signed in after {TIME_S:.0f} s", "")

    def refusal(self) -> str | None:
        """Why no other request is carried out now; None if it is. The connection is to be closed."""
        session = self._session
        if session is None:
            return "a request of a client that has not signed in"
        if self._state is not _State.SIGNED_IN:
            return "a request while the client signs in again"
        if self._expires_s is not None and trio.current_time() >= self._expires_s:
            self._desk.count(self._mechanism, "expired")
            return "the session has expired, and the client has not signed in again"
        if not session.still_holds():
            self.revoke()
            return "the user is deleted, or has another password"
        return None

    def choose(self, mechanism: str) -> Choice:
        """The client names the mechanism by which it signs in, or signs in again."""
        now_s = trio.current_time()
        if self._state is _State.SIGNED_IN and now_s < self._chosen_s + AGAIN_S:
            return Choice.OUT_OF_ORDER
        if not self.is_choosing:
            self._state = _State.OVER
            self._refuse("out of order", "a mechanism is chosen twice", "")
            return Choice.OUT_OF_ORDER
        if mechanism not in self.offered:
            self._state = _State.OVER
            self._refuse("unsupported mechanism", "a mechanism that is not offered", "")
            return Choice.NOT_OFFERED
        self._has_another_mechanism = self.has_signed_in and mechanism != self._session_mechanism
        self._mechanism, self._exchange = mechanism, self._desk.begin(mechanism)
        self._state, self._chosen_s = _State.CHOSEN, now_s
        return Choice.TAKEN

    async def authenticate(self, message: bytes) -> Answered:
        """The next message of the exchange, untrusted. Raises Rejected, after a delay; OutOfOrder."""
        exchange = self._exchange
        if self._state is not _State.CHOSEN or exchange is None:
            self._state = _State.OVER
            self._refuse("out of order", "a message of an exchange that has not begun", "")
            raise OutOfOrder
        try:
            self._require_same_mechanism()
            match await exchange.answer(message):
                case Challenge(answer):
                    return Answered(answer, is_complete=False)
                case SignedIn() as session:
                    return self._signed_in(session)
        except Refused as error:
            refused = error
        self._state, self._exchange = _State.OVER, None
        self._refuse("refused", refused.reason, refused.name)
        await trio.sleep(FAILURE_DELAY_S)
        again = "re-authentication" if self.has_signed_in else "authentication"
        raise Rejected(
            f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
        )

    def revoke_unless_it_holds(self) -> None:
        """Close the connection if what it was opened with is not there any more."""
        if self._session is not None and not self._session.still_holds():
            self.revoke()

    def changes_users(self) -> None:
        """The client changes users, maybe its own: until `answered` its session may end, but not the connection."""
        self._is_changing_users = True

    def answered(self) -> None:
        """What the client has asked for is answered."""
        self._is_changing_users = False

    def revoke(self) -> None:
        """End the session and close the connection, whatever it does; after its answer if it changes users."""
        if not self._is_revoked:
            self._is_revoked = True
            self._desk.count(self._session_mechanism, "revoked")
            fields = {"user": self.principal.name, "action": "connection closed"}
            self._report("session ended: the user is deleted, or has another password", fields)
        if not self._is_changing_users:
            self.scope.cancel()
        elif self._state is not _State.OVER:
            self._state = _State.OVER
            self.scope.deadline = trio.current_time() + ANSWER_S

    def _require_same_mechanism(self) -> None:
        if self._has_another_mechanism:
            raise Refused(f"signed in by {self._session_mechanism} before", self.principal.name)

    def _signed_in(self, session: SignedIn) -> Answered:
        principal = Principal(USER, session.name)
        if self._session is not None and principal != self.principal:
            raise Refused("another user signs in on the connection", session.name)
        lifetimes = [self._desk.max_reauth_ms] if self._desk.max_reauth_ms else []
        if session.expires_ms is not None:
            lifetimes.append(max(1, session.expires_ms - self._desk.now_ms()))  # 0 is for ever
        lifetime_ms = min(lifetimes, default=0)
        self._expires_s = trio.current_time() + lifetime_ms / 1000 if lifetimes else None
        self._session, self._session_mechanism, self.principal = session, self._mechanism, principal
        self._state, self._exchange = _State.SIGNED_IN, None
        self.scope.deadline = float("inf")
        self._desk.count(self._mechanism, "signed in")
        return Answered(session.message, is_complete=True, lifetime_ms=lifetime_ms)

    def _refuse(self, outcome: str, reason: str, name: str) -> None:
        self._desk.count(self._mechanism, outcome)
        fields = {"user": name, "mechanism": self._mechanism, "reason": reason, "action": "connection closed"}
        self._report("sign-in refused", fields)
