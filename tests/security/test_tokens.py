"""Tokens: which are taken, where their keys come from, and what a client hears."""

from __future__ import annotations

import hmac
import http.client
import io
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from structlog.testing import capture_logs

from fairlog.config_sources import ConfigError, load
from fairlog.kafka.server import Server
from fairlog.security import key_set
from fairlog.security.exchange import Challenge, Refused, SignedIn
from fairlog.security.key_set import KeySet
from fairlog.security.token_exchange import TokenExchange
from fairlog.security.tokens import TokenRules, parse_untrusted, read_key_set_untrusted
from fairlog.security_settings import SaslSettings
from tests.security.signing_in import FAILED, NONE, Peer, listening

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())
RULES = TokenRules("https://issuer.example", ("fairlog", "other"), "sub", 30)
TAKEN = {"iss": RULES.issuer, "aud": "fairlog", "sub": "alice"}


def key_set_of(**keys: Any) -> bytes:
    rows = []
    for key_id, key in keys.items():
        algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
        rows.append({**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id})
    return json.dumps({"keys": rows}).encode()


def token(
    claims: dict[str, Any] | None = None, *, key: Any = EC, key_id: str | None = "ec", algorithm: str = "ES256"
) -> str:
    now_s = int(time.time())
    content = {**TAKEN, "iat": now_s, "exp": now_s + 300, **(claims or {})}
    content = {name: value for name, value in content.items() if value is not None}
    return jwt.encode(content, key, algorithm, headers={} if key_id is None else {"kid": key_id})


def message(content: str, authorization: str = "") -> bytes:
    return f"n,{authorization},\x01auth=Bearer {content}\x01\x01".encode()


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in a thread is read at once: the clock that jumps does not wait for threads."""

    async def run(read: Callable[[], bytes], **_: object) -> bytes:
        await trio.lowlevel.checkpoint()
        return read()

    monkeypatch.setattr(trio.to_thread, "run_sync", run)


@pytest.fixture
async def keys(nursery: trio.Nursery) -> KeySet:
    keys = KeySet("jwks", lambda _: key_set_of(ec=EC, rsa=RSA))
    nursery.start_soon(keys.run)
    return keys


async def outcome(keys: KeySet, sent: bytes) -> SignedIn | str:
    """What comes of a token: who signed in, or why not, as the log has it."""
    exchange = TokenExchange(keys, RULES)
    answer = await exchange.answer(sent)
    if isinstance(answer, SignedIn):
        return answer
    assert answer == Challenge(b'{"status":"invalid_token"}')
    with pytest.raises(Refused) as refused:
        await exchange.answer(b"\x01")
    return refused.value.reason


async def test_token_of_the_issuer_is_taken_until_it_expires(keys):
    signed_in = await outcome(keys, message(token()))
    assert signed_in.name == "alice"
    assert abs(signed_in.expires_ms - (time.time() + 300 + RULES.skew_s) * 1000) < 5000
    by_rsa = token({"aud": ["x", "other"]}, key=RSA, key_id="rsa", algorithm="PS512")
    assert (await outcome(keys, message(by_rsa, "a=alice"))).name == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": 1}, "a token that has expired"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"exp": "soon"}, "a time that is not a number"),
        ({"exp": True}, "a time that is not a number"),
        ({"nbf": 2**40}, "a token of the future"),
        ({"iat": 2**40}, "a token of the future"),
        ({"aud": "another"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"iss": "https://forger.example"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "without a name"),
        ({"sub": ""}, "without a name"),
        ({"sub": "x" * 256}, "without a name"),
    ],
)
async def test_token_that_claims_otherwise_is_refused(keys, claims, reason):
    assert reason in str(await outcome(keys, message(token(claims))))


async def test_clocks_may_differ_a_little(keys):
    now_s = int(time.time())
    assert isinstance(await outcome(keys, message(token({"exp": now_s - 10, "nbf": now_s + 10}))), SignedIn)
    assert await outcome(keys, message(token({"exp": now_s - 31}))) == "a token that has expired"


@pytest.mark.parametrize("sasl", [SaslSettings(mechanisms=("OAUTHBEARER",), secrets_without_tls=True)])
@pytest.mark.parametrize(("skew_s", "least_ms"), [(30, 10_000), (11, 1)])
async def test_session_of_a_token_that_expired_within_the_skew_ends_with_the_skew(
    memory, nursery, sasl, tmp_path, monkeypatch, skew_s, least_ms
):
    """A lifetime of 0 would be one for ever."""
    expired_s = int(time.time()) - 10
    (tmp_path / "jwks.json").write_bytes(key_set_of(ec=EC))
    memory.settings = load(
        environment={
            **SETTINGS,
            "FAIRLOG_OAUTH_JWKS": str(tmp_path / "jwks.json"),
            "FAIRLOG_OAUTH_CLOCK_SKEW_S": str(skew_s),
        }
    )
    if least_ms == 1:  # its last moment
        monkeypatch.setattr("fairlog.security.desk.SignInDesk.now_ms", lambda _: (expired_s + skew_s) * 1000)
        monkeypatch.setattr("fairlog.security.token_exchange.time.time", lambda: float(expired_s + skew_s - 1))
    server = Server(memory.broker)
    address = await listening(nursery, server)
    async with Peer(address) as peer:
        await peer.handshake("OAUTHBEARER")
        answer = await peer.authenticate(message(token({"exp": expired_s})))
        assert answer.error_code == NONE
        assert least_ms <= answer.session_lifetime_ms <= (skew_s - 10) * 1000
        if least_ms > 1:
            assert (await peer.metadata()).brokers
        else:
            assert answer.session_lifetime_ms == 1
            await trio.sleep(0.01)
            assert await peer.metadata() is None
    server.stop()


async def test_forged_tokens_are_refused(keys):
    """By another key; without a signature; with the public key as the secret of an HMAC; by another key's type."""
    public = EC.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert "InvalidSignatureError" in await outcome(keys, message(token(key=OTHER)))
    assert "not among those" in await outcome(keys, message(token(key=None, algorithm="none")))
    head, body, _ = token().split(".")
    as_hmac = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT","kid":"ec"}').decode() + f".{body}"
    signature = jwt.utils.base64url_encode(hmac.digest(public, as_hmac.encode(), "sha256")).decode()
    assert "not among those" in await outcome(keys, message(f"{as_hmac}.{signature}"))
    assert "is not that of its key" in await outcome(keys, message(token(key_id="rsa")))
    head, body, signature = token().split(".")
    changed = jwt.utils.base64url_encode(jwt.utils.base64url_decode(body).replace(b"alice", b"admin")).decode()
    assert "InvalidSignatureError" in await outcome(keys, message(f"{head}.{changed}.{signature}"))
    for none in ("", "x", "a.b.c", token()[:-20], "é.é.é"):
        assert isinstance(await outcome(keys, message(none)), str)
    for algorithm in (b"[]", b"{}", b"7", b"null", b'{"ES256": 1}'):
        odd = jwt.utils.base64url_encode(b'{"kid":"ec","alg":' + algorithm + b"}").decode()
        assert isinstance(await outcome(keys, message(f"{odd}.{body}.{signature}")), str)
    assert await outcome(keys, message(token(), "a=admin")) == "somebody else's authorization id"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"p=tls,,\x01auth=Bearer x\x01\x01",
        b"n,b=x,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer x",
        b"\xff,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 17_000 + b"\x01\x01",
    ],
)
def test_message_that_is_none_is_refused(sent):
    with pytest.raises(Refused):
        parse_untrusted(sent)


def test_key_set_has_public_keys_for_signatures_only():
    rows = json.loads(key_set_of(ec=EC, rsa=RSA))["keys"]
    secret = {"kty": "oct", "kid": "secret", "k": "AAAA"}
    private = {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(OTHER)), "kid": "private"}
    for_encryption = {**rows[1], "kid": "enc", "use": "enc"}
    broken = {"kty": "EC", "kid": "broken"}
    found = read_key_set_untrusted({"keys": [*rows, secret, private, for_encryption, broken, 7]})
    assert found.keys() == {"ec", "rsa"}
    for document in ({"keys": [secret]}, {"keys": {}}, {}, [], None):
        with pytest.raises(ValueError, match=r"it (has no key|is no key set)"):
            read_key_set_untrusted(document)


async def test_keys_are_kept_while_their_source_is_away(nursery, autojump_clock, in_place):
    """It is said once, and again when the source is back; a new key is found when it is asked for."""
    content: bytes | None = key_set_of(old=EC)
    reads = 0

    def read(_: str) -> bytes:
        nonlocal reads
        reads += 1
        if content is None:
            raise OSError("it is away")
        return content

    keys = KeySet("jwks", read)
    nursery.start_soon(keys.run)
    with capture_logs() as lines:
        assert await keys.key("old") is not None
        content = None
        await trio.sleep(2 * key_set.REFRESH_S)
        assert await keys.key("old") is not None
        assert await keys.key("new") is None
        content = key_set_of(old=EC, new=RSA)
        await trio.sleep(2 * key_set.LOOK_AGAIN_S)
        assert await keys.key("new") is not None
    assert [line["event"] for line in lines] == [
        "the keys that tokens are checked with cannot be read",
        "the keys that tokens are checked with are read again",
    ]


@pytest.mark.parametrize(
    "failure",
    [
        http.client.IncompleteRead(b"{"),
        http.client.BadStatusLine("x"),
        http.client.InvalidURL("a space"),
        http.client.LineTooLong("header line"),
    ],
)
async def test_answer_that_is_not_http_leaves_the_node_alone(nursery, autojump_clock, in_place, monkeypatch, failure):
    """The keys are looked for again."""
    answers = [failure, io.BytesIO(key_set_of(ec=EC))]

    def answer(*_: object, **__: object) -> io.BytesIO:
        if isinstance(answers[0], Exception):
            raise answers.pop(0)
        return answers[0]

    monkeypatch.setattr("urllib.request.OpenerDirector.open", answer)
    keys = KeySet("https://issuer.example/jwks")
    nursery.start_soon(keys.run)
    with capture_logs() as lines:
        await trio.sleep(2 * key_set.LOOK_AGAIN_S)
        assert await keys.key("ec") is not None
    assert type(failure).__name__ in lines[0]["reason"]


@pytest.mark.parametrize("algorithm", ["none", "HS256", "unheard of", [], {}, 7])
async def test_key_for_an_algorithm_that_is_not_taken_is_left_out(nursery, algorithm):
    """PyJWT raises NotImplementedError for a key whose algorithm is none."""
    rows = json.loads(key_set_of(ec=EC, other=OTHER))["keys"]
    keys = KeySet("jwks", lambda _: json.dumps({"keys": [{**rows[1], "alg": algorithm}, rows[0]]}).encode())
    nursery.start_soon(keys.run)
    assert await keys.key("ec") is not None
    assert await keys.key("other") is None


async def test_source_that_drips_is_given_up(nursery, monkeypatch):
    monkeypatch.setattr(key_set, "FETCH_ALL_S", 0.05)
    dripping = threading.Event()
    keys = KeySet("jwks", lambda _: bytes(dripping.wait(20)))
    nursery.start_soon(keys.run)
    with capture_logs() as lines, trio.fail_after(3):
        assert await keys.key("ec") is None
    dripping.set()
    assert lines[0]["reason"] == "it was not read in 0 s"


async def test_unknown_keys_are_looked_for_once_in_a_while(nursery, autojump_clock, in_place):
    """Whatever number of tokens name them."""
    reads = 0

    def read(_: str) -> bytes:
        nonlocal reads
        reads += 1
        return key_set_of(ec=EC)

    keys = KeySet("jwks", read)
    nursery.start_soon(keys.run)
    for number in range(1000):
        assert await keys.key(f"forged {number}") is None
    assert reads <= 2
    await trio.sleep(key_set.LOOK_AGAIN_S)
    for number in range(1000):
        assert await keys.key(f"forged {number}") is None
    assert reads <= 3


async def test_source_that_hangs_keeps_nobody_for_ever(nursery, autojump_clock, in_place):
    keys = KeySet("jwks", lambda _: key_set_of(ec=EC))  # never run: as if the first look did not end
    began_s = trio.current_time()
    assert await keys.key("ec") is None
    assert trio.current_time() - began_s == pytest.approx(key_set.WAIT_S)


def test_keys_come_from_files_and_https_alone(tmp_path: Path):
    (tmp_path / "jwks.json").write_bytes(key_set_of(ec=EC))
    assert key_set.read_source(str(tmp_path / "jwks.json")) == key_set_of(ec=EC)
    (tmp_path / "large").write_bytes(bytes(key_set.KEY_SET_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="more than"):
        key_set.read_source(str(tmp_path / "large"))
    for source in ("http://127.0.0.1:1/jwks", "file:///etc/passwd", "ftp://127.0.0.1/jwks"):
        with pytest.raises(ValueError, match="https only"):
            key_set.read_source(source)
    with pytest.raises(OSError, match="refused"):
        key_set.read_source("https://127.0.0.1:1/jwks")


SETTINGS = {
    "FAIRLOG_SASL_MECHANISMS": "OAUTHBEARER",
    "FAIRLOG_SASL_SECRETS_WITHOUT_TLS": "true",
    "FAIRLOG_OAUTH_JWKS": "jwks.json",
    "FAIRLOG_OAUTH_ISSUER": "https://issuer.example",
    "FAIRLOG_OAUTH_AUDIENCE": "fairlog",
}


@pytest.mark.parametrize("missing", [name for name in SETTINGS if name.startswith("FAIRLOG_OAUTH")])
def test_settings_must_say_which_tokens_are_taken(missing):
    assert load(environment=SETTINGS).sasl.mechanisms == ("OAUTHBEARER",)
    with pytest.raises(ConfigError, match="is not set"):
        load(environment={name: value for name, value in SETTINGS.items() if name != missing})
    for audience in (",", "fairlog,", "fairlog, ,other"):
        with pytest.raises(ConfigError, match=r"oauth\.audience .* has an empty name"):
            load(environment={**SETTINGS, "FAIRLOG_OAUTH_AUDIENCE": audience})
    with pytest.raises(ConfigError, match="neither a file nor an https URL"):
        load(environment={**SETTINGS, "FAIRLOG_OAUTH_JWKS": "http://issuer.example/jwks"})


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https://issuer.example/a key",
        "https://issuer.example/\u00e4",
        "https://issuer.example:port/",
        "https://[::1/",
        "https://me:secret@issuer.example/",
        "HTTPS+x://issuer.example/",
    ],
)
def test_url_of_keys_is_checked_at_the_start(url):
    with pytest.raises(ConfigError, match=r"oauth\.jwks") as refusal:
        load(environment={**SETTINGS, "FAIRLOG_OAUTH_JWKS": url})
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("sasl", [SaslSettings(mechanisms=("OAUTHBEARER",), secrets_without_tls=True)])
async def test_client_signs_in_with_a_token_and_its_session_ends_with_it(memory, nursery, sasl, tmp_path):
    """The lifetime that it is told is the token's; a refused one is answered as RFC 7628 has it, and then closed."""
    (tmp_path / "jwks.json").write_bytes(key_set_of(ec=EC))
    memory.settings = load(
        environment={
            **SETTINGS,
            "FAIRLOG_OAUTH_JWKS": str(tmp_path / "jwks.json"),
            "FAIRLOG_OAUTH_CLOCK_SKEW_S": "0",
        }
    )
    server = Server(memory.broker)
    address = await listening(nursery, server)
    with capture_logs() as lines:
        async with Peer(address) as peer:
            assert (await peer.handshake("OAUTHBEARER")).mechanisms == ["OAUTHBEARER"]
            content = token({"exp": int(time.time()) + 2})
            answer = await peer.authenticate(message(content))
            assert answer.error_code == NONE
            assert 0 < answer.session_lifetime_ms <= 2000
            assert (await peer.metadata()).brokers
            await trio.sleep(answer.session_lifetime_ms / 1000 + 0.1)
            assert await peer.metadata() is None
        async with Peer(address) as peer:
            await peer.handshake("OAUTHBEARER")
            assert (await peer.authenticate(message(content))).auth_bytes == b'{"status":"invalid_token"}'
            assert (await peer.authenticate(b"\x01")).error_code == FAILED
            assert await peer.is_closed()
    assert content not in str(lines)
    server.stop()
