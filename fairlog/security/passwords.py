"""Checks a name and a password that somebody has sent as they are: by PLAIN, or at the admin listener.

That takes a PBKDF2, of some milliseconds. It is computed in a thread, one at a time, while the event loop serves
others; whoever else shows a password waits.

A wrong password takes as long whoever is named: of each mechanism one credential is tried, made up where the user has
none, or there is no such user. So time does not tell who exists, nor what is kept of whom, unless another tool has
given a user more iterations than ours do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence

import trio

from fairlog.security.exchange import Refused, SignedIn, shown
from fairlog.security.made_up import SECRET_BYTES, made_up
from fairlog.security.users import Credential, ScramMechanism, User, is_password_of


class Passwords:
    """Those of the users that there are."""

    def __init__(self, users: Callable[[], Mapping[str, User]], secret: Callable[[], bytes | None]) -> None:
        """`users` and `secret` (`fairlog.security.made_up`) are asked each time."""
        self._users = users
        self._secret = secret
        self._no_secret = secrets.token_bytes(SECRET_BYTES)
        self._checking = trio.CapacityLimiter(1)

    def credential(self, mechanism: ScramMechanism, name: str) -> Credential | None:
        """What is kept of a user's password; None if there is no such user, or nothing for this mechanism."""
        user = self._users().get(name)
        return None if user is None else user.credentials.get(mechanism)

    def made_up(self, mechanism: ScramMechanism, name: str) -> Credential:
        """What a user who does not exist gets."""
        return made_up(self._secret() or self._no_secret, mechanism, name)

    async def check(self, name: str, password: str) -> SignedIn:
        """Who it is. Both are untrusted, and of a bounded length. Raises Refused."""
        user = self._users().get(name)
        first, second = ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256
        if user is not None and first not in user.credentials:
            first, second = second, first
        credential = None if user is None else user.credentials[first]
        tried = [(first, credential or self.made_up(first, name)), (second, self.made_up(second, name))]
        is_right = await trio.to_thread.run_sync(_is_one_of, tried, password, limiter=self._checking)
        if not is_right or credential is None:
            raise Refused("there is no such user" if credential is None else "wrong password", shown(name))
        return SignedIn(b"", name, lambda: self.credential(first, name) == credential)


def _is_one_of(tried: Sequence[tuple[ScramMechanism, Credential]], password: str) -> bool:
    """Whether it is the password of one of these; those after it are not tried."""
    return any(is_password_of(mechanism, credential, password) for mechanism, credential in tried)
