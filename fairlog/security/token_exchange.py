"""An exchange of OAUTHBEARER: a token comes, and is taken or not.

As RFC 7628 has it, and Kafka, a token that is not taken is answered with a JSON document; the client sends a byte, and
hears then that it is refused.
"""

from __future__ import annotations

import time

from fairlog.security.exchange import Challenge, Refused, SignedIn, shown
from fairlog.security.key_set import KeySet
from fairlog.security.tokens import Claimed, TokenRules, claimed_untrusted, key_id_untrusted, parse_untrusted

_INVALID = b'{"status":"invalid_token"}'


class TokenExchange:
    """Implements `fairlog.security.exchange.Exchange`."""

    def __init__(self, keys: KeySet, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules
        self._refused: Refused | None = None

    async def answer(self, message: bytes) -> Challenge | SignedIn:
        """See `Exchange.answer`. Waits for the issuer's keys, if need be."""
        if self._refused is not None:
            raise self._refused
        token, authorization_id = parse_untrusted(message)
        try:
            claimed = await self._claimed(token)
            if authorization_id not in ("", claimed.name):
                self._refused = Refused("somebody else's authorization id", shown(claimed.name))
        except Refused as refused:
            self._refused = refused
        else:
            if self._refused is None:
                return SignedIn(b"", claimed.name, lambda: True, self._expires_ms(claimed))
        return Challenge(_INVALID)

    def _expires_ms(self, claimed: Claimed) -> int:
        """Until when the token would be taken: so it has time left, whatever the issuer's clock says."""
        return (claimed.expires_s + self._rules.skew_s) * 1000

    async def _claimed(self, token: str) -> Claimed:
        key = await self._keys.key(key_id_untrusted(token))
        if key is None:
            raise Refused("a token whose key the issuer does not have, or is not reached to ask for")
        return claimed_untrusted(token, key, self._rules, time.time())
