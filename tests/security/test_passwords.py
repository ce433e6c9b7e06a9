"""Passwords that are sent as they are: who gets in, and that time does not tell who exists."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from fairlog.security.exchange import Refused
from fairlog.security.passwords import Passwords
from fairlog.security.users import ScramMechanism, User
from tests.security.signing_in import credentials_of

PASSWORD = "a secret, of all"
_BOTH = credentials_of(PASSWORD)
USERS = {
    "both": User(_BOTH),
    "512": User({ScramMechanism.SCRAM_SHA_512: _BOTH[ScramMechanism.SCRAM_SHA_512]}),
    "256": User({ScramMechanism.SCRAM_SHA_256: _BOTH[ScramMechanism.SCRAM_SHA_256]}),
}


@pytest.fixture
def passwords() -> Passwords:
    return Passwords(lambda: USERS, lambda: None)


async def test_wrong_password_costs_the_same_whoever_is_named(
    passwords: Passwords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a user who has a credential of one mechanism alone, as Kafka's tools make."""
    spent: list[tuple[str, int]] = []
    pbkdf2 = hashlib.pbkdf2_hmac

    def noting(digest: str, password: bytes, salt: bytes, iterations: int, *more: Any) -> bytes:
        spent.append((digest, iterations))
        return pbkdf2(digest, password, salt, iterations, *more)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", noting)
    for name in (*USERS, "nobody"):
        spent.clear()
        with pytest.raises(Refused):
            await passwords.check(name, "another one")
        assert sorted(spent) == [("sha256", 4096), ("sha512", 4096)]


@pytest.mark.parametrize("name", USERS)
async def test_right_password_is_taken_by_whichever_credential_there_is(passwords: Passwords, name: str) -> None:
    signed_in = await passwords.check(name, PASSWORD)
    assert (signed_in.name, signed_in.still_holds()) == (name, True)
