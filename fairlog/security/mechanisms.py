"""The SASL mechanisms, by name. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", PLAIN, OAUTHBEARER)
"""All that there are, in the order in which they are offered."""

_SECRET = (PLAIN, OAUTHBEARER)
"""Those by which a client sends a password or a token as it is."""


def offered(chosen: Collection[str], *, is_encrypted: bool, secrets_without_tls: bool) -> Sequence[str]:
    """Those of a listener, of the ones that the settings name. Secrets are not sent where others can read them."""
    may_send_secrets = is_encrypted or secrets_without_tls
    return [name for name in MECHANISMS if name in chosen and (may_send_secrets or name not in _SECRET)]
