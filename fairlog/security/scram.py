"""SCRAM-SHA-256 and SCRAM-SHA-512, the server's side (RFC 5802, RFC 7677). Pure.

    client first   n,,n=alice,r=…            who, and the client's nonce
    server first   r=…,s=…,i=…               both nonces, the user's salt and iterations
    client final   c=biws,r=…,p=…            the proof that the client knows the password
    server final   v=…                       the proof that the server has its credential

The messages are read and checked by scramp. It compares nonces, the channel binding that was named (there is none to be
had: a client that insists is refused, one that only could is not) and the proof, in constant time. The costly part is
the client's: a proof is checked with two HMACs.

scramp normalizes the name (SASLprep), at microseconds for each character; so one that is too long to be a user's is
refused before that.

A user that does not exist, or has no credential for the mechanism, gets as far as one with a wrong password
(`fairlog.security.made_up`). As in Kafka, a client signs in as itself only (no authorization id).
"""

from __future__ import annotations

from collections.abc import Callable

from fairlog.security.exchange import Challenge, Refused, SignedIn, shown
from fairlog.security.scram_messages import BadMessage, ServerSide
from fairlog.security.users import NAME_CHARACTERS_MAX, Credential, ScramMechanism, is_short

MESSAGE_BYTES_MAX = 2048
"""Three times what the longest name and a client's nonce take."""

_NO_CREDENTIAL = "there is no such user, or none with this mechanism"

CredentialOf = Callable[[str], Credential | None]
"""The credential of a user's name; None if there is none."""


class ScramExchange:
    """One exchange. Implements `fairlog.security.exchange.Exchange`."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential_of: CredentialOf,
        made_up: Callable[[str], Credential],
        nonce: str,
    ) -> None:
        """`made_up` is what a user without a credential gets; `nonce` has never been used, and cannot be guessed."""
        self._credential_of = credential_of
        self._made_up = made_up
        self._name = ""
        self._credential: Credential | None = None
        self._has_begun = False
        self._server = ServerSide(mechanism.text, self._look_up, nonce)

    async def answer(self, message: bytes) -> Challenge | SignedIn:
        """See `Exchange.answer`. It does not wait."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise Refused(f"a SCRAM message of {len(message)} bytes", shown(self._name))
        try:
            text = message.decode()
            if not self._has_begun:
                self._has_begun = True
                _require_short_names(text)
                return Challenge(self._server.first(text).encode())
            last = self._server.last(text).encode()
        except UnicodeDecodeError:
            raise Refused("a SCRAM message is not UTF-8", shown(self._name)) from None
        except BadMessage as bad:
            raise Refused(self._reason(bad.word), shown(self._name)) from None
        if self._credential is None:
            raise Refused(_NO_CREDENTIAL, shown(self._name))
        name, credential = self._name, self._credential
        return SignedIn(last, name, lambda: self._credential_of(name) == credential)

    def _look_up(self, name: str) -> tuple[bytes, bytes, bytes, int]:
        self._name = name
        self._credential = self._credential_of(name)
        found = self._credential or self._made_up(name)
        return found.salt, found.stored_key, found.server_key, found.iterations

    def _reason(self, word: str) -> str:
        if word != "invalid-proof":
            return f"a SCRAM message that is not one ({word})"
        return _NO_CREDENTIAL if self._credential is None else "wrong password"


def _require_short_names(first: str) -> None:
    """Of all that may be the name in a client's first message. Raises Refused."""
    for part in first.split(","):
        if part.startswith("n="):
            name = part[2:].replace("=2C", ",").replace("=3D", "=")
            if not is_short(name):
                raise Refused(f"a name of more than {NAME_CHARACTERS_MAX} characters", shown(name))
