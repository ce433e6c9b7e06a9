"""Credentials of users that do not exist, so that nobody can tell them from those that do. Pure.

SCRAM sends a user's salt before anything is proved. Whoever asks with a name that no user has gets a salt too: always
the same one for a name, on every node and after a restart, for it is made of the name and a secret of the cluster. The
secret is made before the first user. Without it there are no users to be told apart, and any salt will do.

What can be told apart all the same: a user whose salt has another length, or that has another number of iterations,
than `fairlog user` gives, because another tool has set them.
"""

from __future__ import annotations

import hmac

from fairlog.security.access_kind import AccessKind
from fairlog.security.users import ITERATIONS_MIN, SALT_BYTES, Credential, ScramMechanism

SECRET_BYTES = 32

MADE_UP_SALTS = "made-up-salts"
"""The only name in the table."""


def _decode(name: str, value: object) -> bytes:
    if name != MADE_UP_SALTS or not isinstance(value, bytes) or len(value) != SECRET_BYTES:
        raise ValueError(f"the only secret is {MADE_UP_SALTS}, with {SECRET_BYTES} bytes")
    return value


SECRETS: AccessKind[bytes] = AccessKind("secret", lambda value: value, _decode)


def made_up(secret: bytes, mechanism: ScramMechanism, name: str) -> Credential:
    """A credential that nothing is the password of."""

    def derived(purpose: str, size: int) -> bytes:
        return hmac.digest(secret, f"{purpose}\0{mechanism.text}\0{name}".encode(), "sha512")[:size]

    return Credential(
        derived("salt", SALT_BYTES),
        ITERATIONS_MIN,
        derived("stored key", mechanism.key_bytes),
        derived("server key", mechanism.key_bytes),
    )
