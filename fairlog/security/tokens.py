"""OAUTHBEARER (RFC 7628, KIP-768): a signed token says who the client is. Here it is read and checked. Pure.

    n,,^Aauth=Bearer <JWT>^A^A       the client's first message (^A is the byte 1)

A token is taken if and only if (1) its algorithm is one of ALGORITHMS: all of them are signatures by a private key, so
neither `none` nor an HMAC with a public key as its secret is; (2) the issuer's key set has its key, of the algorithm's
type, and the signature is right; (3) it is from the issuer, for the audience, has begun and not expired, give or take
the clocks' skew; (4) the principal's claim is a text of a possible length. PyJWT does (2) and (3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, cast

from fairlog.security.exchange import Refused
from fairlog.security.users import NAME_CHARACTERS_MAX

ALGORITHMS = {
    "RS256": "RSA", "RS384": "RSA", "RS512": "RSA", "PS256": "RSA", "PS384": "RSA", "PS512": "RSA",
    "ES256": "EC", "ES384": "EC", "ES512": "EC", "EdDSA": "OKP",
}  # fmt: skip
"""Those that are taken, and the type of key that each needs."""

MESSAGE_BYTES_MAX = 16 << 10
KEYS_MAX = 100
"""Of a key set."""

_KVSEP = "\x01"
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens are taken."""

    issuer: str
    audiences: tuple[str, ...]
    """One of these is among the token's."""
    principal_claim: str
    """Whose value is the user's name."""
    skew_s: int


class Sent(NamedTuple):
    """What a client has sent. The token has no repr: it is as good as a password for as long as it lasts."""

    token: str
    authorization_id: str

    def __repr__(self) -> str:
        return "Sent()"


class Key(NamedTuple):
    """A public key of the issuer."""

    kind: str
    """RSA, EC or OKP."""
    key: Any


class Claimed(NamedTuple):
    """Whom a token that was taken says its bearer is."""

    name: str
    expires_s: int
    """Unix time."""


def parse_untrusted(message: bytes) -> Sent:
    """Read the client's first message. Raises Refused, which does not quote it."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise Refused(f"an OAUTHBEARER message of {len(message)} bytes")
    try:
        header, *pairs = message.decode().split(_KVSEP)
    except UnicodeDecodeError:
        raise Refused("an OAUTHBEARER message is not UTF-8") from None
    fields = {name: content for name, _, content in (pair.partition("=") for pair in pairs[:-2])}
    value = fields.get("auth", "")
    match header.split(","):
        case ["n" | "y", authorization, ""] if pairs[-2:] == ["", ""] and value[: len(_BEARER)].lower() == _BEARER:
            if authorization and not authorization.startswith("a="):
                raise Refused("an OAUTHBEARER message with a bad authorization id")
            return Sent(value[len(_BEARER) :].strip(), authorization.removeprefix("a="))
        case _:
            raise Refused("an OAUTHBEARER message that is not one of RFC 7628, with a bearer token")


def key_id_untrusted(token: str) -> str | None:
    """Which key it says that it is signed with; None if it does not say. Raises Refused."""
    return _header(token)[1]


def claimed_untrusted(token: str, key: Key, rules: TokenRules, now_s: float) -> Claimed:
    """Check a token against the issuer's key. Raises Refused, which does not quote it."""
    import jwt

    algorithm, _ = _header(token)
    if ALGORITHMS[algorithm] != key.kind:
        raise Refused(f"a token whose algorithm ({algorithm}) is not that of its key ({key.kind})")
    try:
        claims = cast(
            "Mapping[str, object]",
            jwt.decode(  # pyright: ignore[reportUnknownMemberType]
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(rules.audiences),
                issuer=rules.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            ),
        )
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise Refused(f"a token that is not taken ({type(error).__name__})") from None
    return _in_time(claims, rules, now_s)


def read_key_set_untrusted(document: object) -> Mapping[str | None, Key]:
    """The keys of a JSON Web Key Set (RFC 7517), by their ids; a single key without one under None.

    Keys for something else than signatures, of other types, and secret ones are left out. Raises ValueError.
    """
    import jwt

    listed = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it is no key set: there is no list of keys")  # noqa: TRY004 (it is content that is wrong)
    found: dict[str | None, Key] = {}
    for entry in cast("list[object]", listed)[:KEYS_MAX]:
        if not isinstance(entry, dict):
            continue
        fields = cast("dict[str, Any]", entry)
        kind, key_id = fields.get("kty"), fields.get("kid")
        is_public = isinstance(kind, str) and kind in ALGORITHMS.values() and "d" not in fields
        if not is_public or fields.get("use", "sig") != "sig" or not _is_taken(fields.get("alg", "RS256")):
            continue
        try:
            key = jwt.PyJWK(fields).key
        except Exception:  # noqa: BLE001 (whatever PyJWT makes of such a key: the others are good)
            continue
        found[key_id if isinstance(key_id, str) else None] = Key(str(kind), key)
    if not found:
        raise ValueError("it has no key that signatures can be checked with")
    return found


def _header(token: str) -> tuple[str, str | None]:
    """Algorithm and key id."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise Refused("what was sent is not a token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not _is_taken(algorithm):
        raise Refused("a token whose algorithm is not among those that are taken")
    return algorithm, key_id if isinstance(key_id, str) else None


def _is_taken(algorithm: object) -> TypeGuard[str]:
    return isinstance(algorithm, str) and algorithm in ALGORITHMS


def _in_time(claims: Mapping[str, object], rules: TokenRules, now_s: float) -> Claimed:
    times = {name: claims[name] for name in ("exp", "nbf", "iat") if name in claims}
    if not all(type(value) in (int, float) and abs(cast("float", value)) < 2**53 for value in times.values()):
        raise Refused("a token with a time that is not a number")
    expires_s = int(cast("float", claims["exp"]))
    if now_s >= expires_s + rules.skew_s:
        raise Refused("a token that has expired")
    if any(cast("float", times.get(name, 0)) > now_s + rules.skew_s for name in ("nbf", "iat")):
        raise Refused("a token of the future")
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise Refused(f"a token without a name in the claim {rules.principal_claim}")
    return Claimed(name, expires_s)
