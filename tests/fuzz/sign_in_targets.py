"""Readers of what strangers send before anybody knows who they are: SASL's messages, tokens, key sets, calls of the
admin listener; and of users.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

import cbor2
import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from fairlog.admin_http.credentials import BadSignIn, read_basic_untrusted, read_sign_in_untrusted
from fairlog.security.desk import SignInDesk, SignInRules
from fairlog.security.exchange import Challenge, Exchange, Refused, SignedIn
from fairlog.security.mechanisms import MECHANISMS
from fairlog.security.plain import of_possible_lengths_untrusted, parse_untrusted
from fairlog.security.tokens import (
    Key,
    TokenRules,
    claimed_untrusted,
    key_id_untrusted,
    read_key_set_untrusted,
)
from fairlog.security.tokens import parse_untrusted as parse_token_untrusted
from fairlog.security.users import USERS, Credential, ScramMechanism, User, credential_of, salted
from tests.fuzz.target import Target

_SALT = bytes(32)
_MECHANISM = ScramMechanism.SCRAM_SHA_256
_ALICE = User({_MECHANISM: credential_of(_MECHANISM, salted(_MECHANISM, "secret", _SALT, 4096), _SALT, 4096)})
_KEY = ec.generate_private_key(ec.SECP256R1())
_RULES = TokenRules("issuer", ("fairlog",), "sub", 30)
_NOW_S = time.time()


def _at_once(answer: Awaitable[Challenge | SignedIn]) -> Challenge | SignedIn:
    """SCRAM does not wait."""
    steps = answer.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("an exchange of SCRAM waits")


def _exchange() -> Exchange:
    desk = SignInDesk(SignInRules(MECHANISMS, True, 0), lambda: {"alice": _ALICE}, lambda: bytes(32), Counter())
    return desk.begin(_MECHANISM.text)


def exchange_scram(data: bytes) -> None:
    """Two messages, on a line each; in the second one `?` stands for the nonce that the first was answered."""
    first, _, last = data.partition(b"\n")
    exchange = _exchange()
    with suppress(Refused):
        answer = _at_once(exchange.answer(first))
        assert isinstance(answer, Challenge)
        nonce = answer.message.partition(b",")[0].removeprefix(b"r=")
        answer = _at_once(exchange.answer(last.replace(b"?", nonce)))
        raise AssertionError("somebody has signed in without the password")


def read_plain(data: bytes) -> None:
    with suppress(Refused):
        parse_untrusted(data)


def read_basic(data: bytes) -> None:
    """A header's value, as the HTTP server hands it on."""
    with suppress(Refused):
        read_basic_untrusted(data.decode("latin-1"))


def read_sign_in(data: bytes) -> None:
    with suppress(BadSignIn, Refused):
        of_possible_lengths_untrusted(*read_sign_in_untrusted(data))


def read_token(data: bytes) -> None:
    """A message with a token. The fuzzer has no key, so none but the seed's own is taken."""
    with suppress(Refused):
        sent = parse_token_untrusted(data)
        key_id_untrusted(sent.token)
        assert claimed_untrusted(sent.token, Key("EC", _KEY.public_key()), _RULES, _NOW_S).name == "alice"


def read_key_set(data: bytes) -> None:
    with suppress(ValueError, RecursionError):
        read_key_set_untrusted(json.loads(data))


def read_user(data: bytes) -> None:
    """A user's record, as the store would have it; what is read is written the same."""
    with suppress(ValueError, cbor2.CBORDecodeError, RecursionError):
        user = USERS.decode("alice", cbor2.loads(data))
        assert USERS.decode("alice", USERS.encode(user)) == user


def _token() -> str:
    claims: dict[str, Any] = {"iss": "issuer", "aud": "fairlog", "sub": "alice", "exp": int(_NOW_S) + 10**6}
    return jwt.encode(claims, _KEY, "ES256", headers={"kid": "k"})


def _key_set() -> bytes:
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(_KEY.public_key()))
    return json.dumps({"keys": [{**key, "kid": "k"}]}).encode()


def _user() -> object:
    return USERS.encode(User({_MECHANISM: Credential(_SALT, 4096, bytes(32), bytes(32))}))


TARGETS = (
    Target(
        "scram",
        "the two messages of a SCRAM exchange",
        exchange_scram,
        lambda: [b"n,,n=alice,r=nonce\nc=biws,r=?,p=" + b"A" * 43 + b"=", b"y,,n=b=2Cb,r=nonce,x=1\nc=eSws,r=?,p=AA=="],
    ),
    Target("sasl-plain", "a PLAIN message", read_plain, lambda: [b"\0alice\0secret", b"alice\0alice\0secret"]),
    Target(
        "basic-header",
        "a Basic header of the admin listener",
        read_basic,
        lambda: [b"YWxpY2U6c2VjcmV0", b" YWxpY2U6c2VjOnJldA== "],
    ),
    Target(
        "sign-in-body",
        "the body of a sign-in at the console",
        read_sign_in,
        lambda: [b'{"user": "alice", "password": "secret"}', b'{"user": "\\ud800", "password": "s"}'],
    ),
    Target(
        "token",
        "a message with a token",
        read_token,
        lambda: [
            f"n,,\x01auth=Bearer {_token()}\x01\x01".encode(),
            b"n,a=alice,\x01auth=Bearer a.b.c\x01host=h\x01\x01",
            b"n,,\x01auth=Bearer " + jwt.utils.base64url_encode(b'{"alg":[]}') + b".e30.AA\x01\x01",
        ],
    ),
    Target(
        "key-set",
        "an issuer's key set",
        read_key_set,
        lambda: [_key_set()],
    ),
    Target("user", "a user's record", read_user, lambda: [cbor2.dumps(_user())]),
)
