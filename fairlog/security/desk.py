"""Where the connections of a node sign in: which mechanisms there are, who the users are, and how much it may cost.

A message of SCRAM takes the event loop less than 1 ms. PLAIN takes a PBKDF2, in a thread
(`fairlog.security.passwords`).

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

from fairlog.security.exchange import Challenge, Exchange, SignedIn
from fairlog.security.listeners import Listener
from fairlog.security.mechanisms import OAUTHBEARER, PLAIN, offered
from fairlog.security.passwords import Passwords
from fairlog.security.plain import parse_untrusted
from fairlog.security.scram import ScramExchange
from fairlog.security.sign_in import Report, SignIn
from fairlog.security.users import ScramMechanism, User

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
        self._passwords = Passwords(users, secret)
        self._token_exchange = token_exchange
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
            return ScramExchange(
                scram, partial(self._passwords.credential, scram), partial(self._passwords.made_up, scram), nonce
            )
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

    async def _check(self, message: bytes) -> SignedIn:
        """See `Exchange.answer`."""
        name, password = parse_untrusted(message)
        return await self._passwords.check(name, password)


class _PlainExchange:
    """Implements `Exchange`."""

    def __init__(self, check: Callable[[bytes], Awaitable[SignedIn]]) -> None:
        self._check = check

    async def answer(self, message: bytes) -> Challenge | SignedIn:
        return await self._check(message)
