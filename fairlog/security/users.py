"""Users, and what is kept of their passwords: SCRAM credentials (RFC 5802, RFC 7677). Pure.

Of a password only a salt, an iteration count and two keys are kept. They tell whether somebody knows the password, and
do not tell the password; but whoever has them may try passwords out as fast as a machine can, so they are secrets too:
no `repr`, error or log line has them. Their form in the store is in docs/formats/cluster-store.md.

Passwords are hashed as they are, in UTF-8. RFC 5802 would have them normalized (SASLprep); Kafka's clients do not, and
a client that does gets the same bytes for all of ASCII. Names are refused if normalizing would change them
(`fairlog.security.user_changes`), so there is one spelling of each.
"""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import cast

from fairlog.security.access_kind import AccessKind

ITERATIONS_MIN = 4096
"""RFC 7677's least, and what Kafka's tools take if nothing else is said."""

ITERATIONS_MAX = 16_384
"""Kafka's bound: a client has to do them all at each sign-in."""

SALT_BYTES = 32
"""Of the salts that are made here."""

SALT_BYTES_MIN = 12
SALT_BYTES_MAX = 255

NAME_CHARACTERS_MAX = 255

USERS_MAX = 20_000
"""All are in memory, in each process, and are looked through when they change."""

_UNICODE = unicodedata.ucd_3_2_0
"""SASLprep's (RFC 3454)."""


def is_short(name: str) -> bool:
    """Whether a name is as short as a user's may be, also when it is normalized. Takes less than 1 ms for 2 KiB.

    To be asked before SASLprep, which takes microseconds for each character of the normalized name: one character may
    become eighteen.
    """
    return max(len(name), len(_UNICODE.normalize("NFKC", name))) <= NAME_CHARACTERS_MAX


class ScramMechanism(Enum):
    """A mechanism that a credential is for. The value is its number in Kafka's protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def text(self) -> str:
        """Its name in SASL."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of its hash, as `hashlib` has it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The length of its keys."""
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


@dataclass(frozen=True, slots=True)
class Credential:
    """What is kept of a password for one mechanism."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    """The hash of the key by which a client proves that it knows the password."""
    server_key: bytes = field(repr=False)
    """By which the server proves to the client that it has the credential."""


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who can sign in."""

    credentials: Mapping[ScramMechanism, Credential]
    """At least one."""


def salted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """RFC 5802's SaltedPassword: the costly step. Takes milliseconds, in which other threads run."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> Credential:
    """The credential that keeps a password."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    return Credential(
        salt,
        iterations,
        hashlib.new(mechanism.digest, client_key).digest(),
        hmac.digest(salted_password, b"Server Key", mechanism.digest),
    )


def is_password_of(mechanism: ScramMechanism, credential: Credential, password: str) -> bool:
    """Whether it is the password. Takes milliseconds; the same for right and wrong ones."""
    salted_password = salted(mechanism, password, credential.salt, credential.iterations)
    tried = credential_of(mechanism, salted_password, credential.salt, credential.iterations)
    return hmac.compare_digest(tried.stored_key, credential.stored_key)


def _encode(user: User) -> object:
    return [
        [mechanism.value, kept.iterations, kept.salt, kept.stored_key, kept.server_key]
        for mechanism, kept in sorted(user.credentials.items(), key=lambda item: item[0].value)
    ]


def _decode(name: str, value: object) -> User:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    credentials = dict(map(_decode_row, rows))
    if not name or not rows or len(credentials) < len(rows):
        raise ValueError("a user has a name, and a credential for each of some mechanisms")
    return User(credentials)


def _decode_row(row: object) -> tuple[ScramMechanism, Credential]:
    match row:
        case [int(number), int(iterations), bytes(salt), bytes(stored_key), bytes(server_key)]:
            mechanism = next((each for each in ScramMechanism if each.value == number), None)
            if (
                mechanism is not None
                and ITERATIONS_MIN <= iterations <= ITERATIONS_MAX
                and SALT_BYTES_MIN <= len(salt) <= SALT_BYTES_MAX
                and len(stored_key) == len(server_key) == mechanism.key_bytes
            ):
                return mechanism, Credential(salt, iterations, stored_key, server_key)
        case _:
            pass
    raise ValueError("a credential is a mechanism, a number of iterations, a salt and two keys")


USERS: AccessKind[User] = AccessKind("user", _encode, _decode)
"""By name."""
