"""Where the connections of a node sign in: which mechanisms there are, who the users are, and how much it may cost.

A message of SCRAM takes the event loop less than 1 ms. PLAIN takes a PBKDF2, of some milliseconds. It is computed in a
thread, one at a time, while the event loop serves others; whoever else signs in by PLAIN waits. It takes as long for a
user that does not exist.

Users are looked up when they sign in, and looked at again whenever the cluster's store changes (`look_again`): of one
that was deleted, or has another password, the connections are closed.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from fairlog.security.exchange import Challenge, Exchange, Refused, SignedIn, shown
from fairlog.security.listeners import Listener
from fairlog.security.made_up import SECRET_BYTES, made_up
from fairlog.security.mechanisms import OAUTHBEARER, PLAIN, offered
from fairlog.security.plain import parse_untrusted
from fairlog.security.scram import ScramExchange
from fairlog.security.sign_in import Report, SignIn
from fairlog.security.users import Credential, ScramMechanism, User, is_password_of

_SCRAM = {mechanism.text: mechanism for mechanism in ScramMechanism}
_NONCE_BYTES = 24


@dataclass(frozen=True, slots=True)
class SignInRules:
    """What the settings say."""

    mechanisms: tuple[str, ...]
    secrets_without_tls: bool
    max_reauth_ms: int
    """0: a session lasts for ever."""


class SignInDesk:
    """One per server. Implements `fairlog.security.sign_in.Desk`."""

    def __init__(
        self,
        rules: SignInRules,
        users: Callable[[], Mapping[str, User]],
        secret: Callable[[], bytes | None],
        counts: Counter[tuple[str, str]],
        token_exchange: Callable[[], Exchange] | None = None,
    ) -> None:
        """`users` and `secret` (`fairlog.security.made_up`) are asked at each sign-in. `counts` are by mechanism
        and outcome. `token_exchange` begins an exchange of OAUTHBEARER; None if the rules do not name that.
        """
        self._rules = rules
        self._users = users
        self._secret = secret
        self._token_exchange = token_exchange
        self._no_secret = secrets.token_bytes(SECRET_BYTES)
        self._checking = trio.CapacityLimiter(1)
        self._open: set[SignIn] = set()
        self.max_reauth_ms = rules.max_reauth_ms
        self._counts = counts

    def open(self, listener: Listener, report: Report) -> SignIn:
        """For a new connection; `close` it afterwards."""
        sign_in = SignIn(self, listener, report)
        self._open.add(sign_in)
        return sign_in

    def close(self, sign_in: SignIn) -> None:
        """The connection has ended."""
        self._open.discard(sign_in)
        sign_in.ended()

    def look_again(self) -> None:
        """The users may have changed."""
        for sign_in in list(self._open):
            sign_in.revoke_unless_it_holds()

    def offered(self, listener: Listener) -> Sequence[str]:
        """The names of the mechanisms of a listener."""
        return offered(
            self._rules.mechanisms,
            is_encrypted=listener.protocol.is_encrypted,
            secrets_without_tls=self._rules.secrets_without_tls,
        )

    def begin(self, mechanism: str) -> Exchange:
        """An exchange of a mechanism that is offered."""
        scram = _SCRAM.get(mechanism)
        if scram is not None:
            nonce = secrets.token_urlsafe(_NONCE_BYTES)
            return ScramExchange(scram, partial(self._credential, scram), partial(self._made_up, scram), nonce)
        if mechanism == OAUTHBEARER:
            assert self._token_exchange is not None, "the rules do not name it"
            return self._token_exchange()
        assert mechanism == PLAIN, mechanism
        return _PlainExchange(self._check)

    def count(self, mechanism: str, outcome: str) -> None:
        """One more of these."""
        self._counts[mechanism or "none", outcome] += 1

    def now_ms(self) -> int:
        """Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def _credential(self, mechanism: ScramMechanism, name: str) -> Credential | None:
        user = self._users().get(name)
        return None if user is None else user.credentials.get(mechanism)

    def _made_up(self, mechanism: ScramMechanism, name: str) -> Credential:
        return made_up(self._secret() or self._no_secret, mechanism, name)

    async def _check(self, message: bytes) -> SignedIn:
        """See `Exchange.answer`."""
        name, password = parse_untrusted(message)
        user = self._users().get(name)
        mechanism = ScramMechanism.SCRAM_SHA_512
        if user is not None and mechanism not in user.credentials:
            mechanism = ScramMechanism.SCRAM_SHA_256
        credential = None if user is None else user.credentials[mechanism]
        against = credential or self._made_up(mechanism, name)
        is_right = await trio.to_thread.run_sync(is_password_of, mechanism, against, password, limiter=self._checking)
        if not is_right or credential is None:
            raise Refused("there is no such user" if credential is None else "wrong password", shown(name))
        return SignedIn(b"", name, lambda: self._credential(mechanism, name) == credential)


class _PlainExchange:
    """Implements `Exchange`."""

    def __init__(self, check: Callable[[bytes], Awaitable[SignedIn]]) -> None:
        self._check = check

    async def answer(self, message: bytes) -> Challenge | SignedIn:
        return await self._check(message)
