"""Signing in on Kafka's protocol: who gets in, who does not, and what that costs the others."""

from __future__ import annotations

import base64
import struct
import threading
import time
from dataclasses import replace

import pytest
import trio
from structlog.testing import capture_logs

from fairlog.kafka.handlers import ALL
from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.protocol import NativeProtocol
from fairlog.security import sign_in
from fairlog.security.mechanisms import MECHANISMS
from fairlog.security.user_changes import is_name
from fairlog.security_settings import SaslSettings
from tests.kafka.serving import framed
from tests.security.signing_in import (
    FAILED,
    ILLEGAL_STATE,
    NONE,
    SHA_256,
    SHA_512,
    UNSUPPORTED_MECHANISM,
    Peer,
    add_user,
    delete_user,
    listening,
)

PASSWORD = "secret of alice"


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_user_signs_in_by_scram_in_every_version(connect, server, mechanism, version):
    async with connect() as peer:
        assert await peer.versions()
        assert (await peer.scram("alice", PASSWORD, mechanism, version)).error_code == NONE
        assert (await peer.metadata()).brokers
    assert server.statistics.sign_ins[mechanism, "signed in"] == 1


async def test_user_signs_in_by_plain(connect):
    async with connect() as peer:
        assert (await peer.plain("alice", PASSWORD, "alice")).error_code == NONE
        assert (await peer.metadata()).brokers


async def test_user_signs_in_without_headers_after_the_first_version_of_the_handshake(connect):
    """As kafka-python up to 2.0 does."""
    async with connect() as peer:
        assert (await peer.handshake("PLAIN", version=0)).error_code == NONE
        await peer.send(f"\0alice\0{PASSWORD}".encode())
        assert await peer.receive() == b""
        assert (await peer.metadata()).brokers
    async with connect() as peer:
        assert (await peer.handshake("PLAIN", version=0)).error_code == NONE
        await peer.send(b"\0alice\0wrong")
        assert await peer.is_closed()


@pytest.mark.parametrize("key", [api.key for api in ALL if api.key not in (17, 18, 36)])
async def test_nothing_else_is_served_before(connect, memory, key):
    """Every API, in its first version: not even its body is read, so it may be anything."""
    api = next(api for api in ALL if api.key == key)
    async with connect() as peer:
        await peer.send(struct.pack(">hhih", key, api.served.min, 5, -1))
        assert await peer.is_closed()
    async with connect() as peer:
        assert (await peer.handshake(SHA_256)).error_code == NONE
        await peer.send(struct.pack(">hhih", key, api.served.min, 5, -1))
        assert await peer.is_closed()


@pytest.mark.parametrize(("name", "password"), [("alice", "a wrong guess"), ("nobody", PASSWORD), ("alice", "")])
async def test_wrong_password_and_unknown_user_are_told_the_same(connect, server, name, password):
    """The same sentence after the same delay; one log line that has the name, and no secret."""
    with capture_logs() as lines:
        async with connect() as peer:
            began_s = trio.current_time()
            by_scram = await peer.scram(name, password or "x")
            assert trio.current_time() - began_s >= sign_in.FAILURE_DELAY_S
            assert await peer.is_closed()
        async with connect() as peer:
            by_plain = await peer.plain(name, password)
            assert await peer.is_closed()
    for answer, mechanism in ((by_scram, SHA_256), (by_plain, "PLAIN")):
        assert (answer.error_code, answer.auth_bytes) == (FAILED, b"")
        assert answer.error_message == (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        assert server.statistics.sign_ins[mechanism, "refused"] == 1
    refused = [line for line in lines if line["event"] == "sign-in refused"]
    assert [line["user"] for line in refused] == [name, name]
    assert PASSWORD not in str(lines)
    assert password == "" or password not in str(lines)


async def test_unknown_user_has_a_salt_of_its_own_that_stays(connect, memory):
    """Of the form that known users' have, and with their iterations; on another connection the same again."""
    firsts = []
    for name in ("alice", "nobody", "nobody", "another"):
        async with connect() as peer:
            await peer.handshake(SHA_256)
            answer = await peer.authenticate(f"n,,n={name},r=nonce".encode())
            fields = dict(part.split("=", 1) for part in answer.auth_bytes.decode().split(","))
            firsts.append((fields["s"], fields["i"], len(fields["r"])))
    alice, nobody, again, another = firsts
    assert nobody == again
    assert len({alice[0], nobody[0], another[0]}) == 3
    assert {len(base64.b64decode(each[0])) for each in firsts} == {32}
    assert {each[1:] for each in firsts} == {alice[1:]}


async def test_mechanism_that_is_not_offered_is_refused_with_those_that_are(connect):
    async with connect() as peer:
        answer = await peer.handshake("GSSAPI")
        assert answer.error_code == UNSUPPORTED_MECHANISM
        assert answer.mechanisms == [SHA_256, SHA_512, "PLAIN"]
        assert await peer.is_closed()


@pytest.mark.parametrize("sasl", [SaslSettings(mechanisms=MECHANISMS)])
@pytest.mark.parametrize("secret", ["PLAIN", "OAUTHBEARER"])
async def test_secrets_are_not_sent_where_the_line_can_be_read(connect, sasl, secret):
    async with connect() as peer:
        answer = await peer.handshake(secret)
        assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED_MECHANISM, [SHA_256, SHA_512])


async def test_what_comes_out_of_order_is_refused(connect):
    async with connect() as peer:
        assert (await peer.authenticate(b"n,,n=alice,r=nonce")).error_code == ILLEGAL_STATE
        assert await peer.is_closed()
    async with connect() as peer:
        assert (await peer.handshake(SHA_256)).error_code == NONE
        assert (await peer.handshake(SHA_256)).error_code == ILLEGAL_STATE
        assert await peer.is_closed()
    async with connect() as peer:
        assert (await peer.handshake(SHA_256)).error_code == NONE
        assert await peer.versions() is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"y,,n=,r=nonce",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,a=bob,n=alice,r=nonce",
        b"n,,n=al=ice,r=nonce",
        b"n,,m=ext,n=alice,r=nonce",
        b"n,,n=alice,r=",
        b"n,,n=" + b"a" * 4000 + b",r=nonce",
        b"\0" * 3000,
    ],
)
async def test_message_that_is_none_is_refused_like_a_wrong_password(connect, message):
    async with connect() as peer:
        await peer.handshake(SHA_256)
        assert (await peer.authenticate(message)).error_code == FAILED
        assert await peer.is_closed()


@pytest.mark.parametrize("name", ["\ufdfa" * 600, "\ufdfa" * 15, "a" * 256, "=2C" * 256])
async def test_long_name_is_refused_before_it_is_normalized(connect, monkeypatch, name):
    """SASLprep of 2 KiB took 24 ms; U+FDFA becomes 18 characters."""
    normalized = []
    monkeypatch.setattr("scramp.core.saslprep", lambda source: normalized.append(source) or source)
    async with connect() as peer:
        await peer.handshake(SHA_256)
        assert (await peer.authenticate(f"n,,n={name},r=nonce".encode())).error_code == FAILED
    assert not is_name(name)
    assert normalized == []
    async with connect() as peer:
        await peer.handshake(SHA_256)
        assert (await peer.authenticate(b"n,,n=" + b"=2C" * 255 + b",r=nonce")).error_code == NONE
    assert normalized == ["," * 255]


@pytest.mark.parametrize(
    ("field", "value"), [("r", "another"), ("c", "eSws"), ("p", "AAAA"), ("p", base64.b64encode(bytes(32)).decode())]
)
async def test_last_message_with_another_nonce_binding_or_proof_is_refused(connect, field, value):
    async with connect() as peer:
        await peer.handshake(SHA_256)
        first = await peer.authenticate(b"n,,n=alice,r=nonce")
        both = dict(part.split("=", 1) for part in first.auth_bytes.decode().split(","))["r"]
        fields = {"c": "biws", "r": both, "p": base64.b64encode(bytes(32)).decode(), field: value}
        last = await peer.authenticate(",".join(f"{name}={text}" for name, text in fields.items()).encode())
        assert last.error_code == FAILED


@pytest.mark.parametrize("message", [b"", b"\0", b"alice\0x", b"\0alice\0", b"\0\0x", b"bob\0alice\0x", b"\0a\0b\0c"])
async def test_plain_message_that_is_none_is_refused(connect, message):
    async with connect() as peer:
        await peer.handshake("PLAIN")
        assert (await peer.authenticate(message)).error_code == FAILED


async def test_frame_of_a_megabyte_is_refused_by_its_length(connect):
    """Nothing of it is kept; after signing in, frames may be as large as requests are."""
    async with connect() as peer:
        await peer.stream.send_all(struct.pack(">i", 1 << 20))
        assert await peer.is_closed()
    async with connect() as peer:
        await peer.scram("alice", PASSWORD)
        await peer.stream.send_all(framed(struct.pack(">hhihi", 3, 1, 5, -1, 0) + bytes(1 << 20)))
        assert await peer.receive() is not None


async def test_whoever_does_not_sign_in_is_disconnected_in_time(connect, server, monkeypatch):
    """Also one that sends a byte now and then, or asks for versions all the time."""
    monkeypatch.setattr(sign_in, "TIME_S", 0.3)
    with capture_logs() as lines:
        async with connect() as silent, connect() as asking:
            with trio.fail_after(5):
                while await asking.versions() is not None:
                    pass
            assert await silent.is_closed()
    assert server.statistics.sign_ins["none", "time out"] == 2
    assert [line["reason"] for line in lines if line["event"] == "sign-in refused"] == ["not signed in after 0 s"] * 2


async def test_whoever_has_signed_in_may_be_idle(connect, monkeypatch):
    monkeypatch.setattr(sign_in, "TIME_S", 2)
    async with connect() as peer:
        await peer.scram("alice", PASSWORD)
        await trio.sleep(2.2)
        assert (await peer.metadata()).brokers


async def test_user_who_is_deleted_is_disconnected_at_once(connect, memory, server):
    """Kafka waits until the client signs in again. Whoever else is connected stays."""
    await add_user(memory.cluster, "bob", "secret of bob")
    with capture_logs() as lines:
        async with connect() as alice, connect() as bob:
            await alice.scram("alice", PASSWORD)
            await bob.plain("bob", "secret of bob")
            await delete_user(memory.cluster, "alice")
            assert await alice.is_closed()
            assert (await bob.metadata()).brokers
            await add_user(memory.cluster, "bob", "another")
            assert await bob.is_closed()
    assert [line["user"] for line in lines if line["event"].startswith("session ended")] == ["alice", "bob"]
    async with connect() as alice:
        assert (await alice.scram("alice", PASSWORD)).error_code == FAILED


@pytest.mark.parametrize("sasl", [SaslSettings(max_reauth_ms=6000, secrets_without_tls=True)])
async def test_session_ends_unless_the_client_signs_in_again(connect, server, sasl):
    """KIP-368: the lifetime is told, signing in again makes it anew, and what comes later closes the connection."""
    async with connect() as again, connect() as late:
        assert (await late.scram("alice", PASSWORD)).session_lifetime_ms == 6000
        late_ends_s = trio.current_time() + 6
        await again.scram("alice", PASSWORD)
        assert (await again.handshake(SHA_256)).error_code == ILLEGAL_STATE  # not within a second
        assert (await again.metadata()).brokers
        await trio.sleep(2)
        assert (await again.scram("alice", PASSWORD)).session_lifetime_ms == 6000
        assert (await late.metadata()).brokers
        await trio.sleep_until(late_ends_s + 0.1)
        assert await late.metadata() is None
        assert (await again.metadata()).brokers
    assert server.statistics.sign_ins[SHA_256, "expired"] == 1


async def test_client_signs_in_again_as_itself_and_by_the_same_mechanism(connect, memory, monkeypatch):
    monkeypatch.setattr(sign_in, "AGAIN_S", 0)
    await add_user(memory.cluster, "bob", "secret of bob")
    async with connect() as peer:
        await peer.scram("alice", PASSWORD)
        assert (await peer.scram("bob", "secret of bob")).error_code == FAILED
        assert await peer.is_closed()
    async with connect() as peer:
        await peer.scram("alice", PASSWORD)
        assert (await peer.handshake("PLAIN")).error_code == NONE
        assert (await peer.authenticate(f"\0alice\0{PASSWORD}".encode())).error_code == FAILED
        assert await peer.is_closed()
    async with connect() as peer:
        await peer.scram("alice", PASSWORD)
        assert (await peer.handshake(SHA_256)).error_code == NONE
        assert await peer.metadata() is None  # in the middle of it


async def test_many_wrong_passwords_do_not_keep_others_waiting(connect, server, monkeypatch):
    """Passwords are hashed one at a time, in a thread: whoever is signed in is answered meanwhile."""
    guesses, hash_s = 60, 0.05
    under_way = most = 0
    threads: set[int] = set()

    def check_slowly(*_: object) -> bool:
        nonlocal under_way, most
        threads.add(threading.get_ident())
        under_way += 1
        most = max(most, under_way)
        time.sleep(hash_s)
        under_way -= 1
        return False

    async with connect() as alice:
        await alice.scram("alice", PASSWORD)
        monkeypatch.setattr("fairlog.security.passwords.is_password_of", check_slowly)

        async def guess() -> None:
            async with connect() as peer:
                assert (await peer.plain("alice", "a guess")).error_code == FAILED

        async with trio.open_nursery() as guessing:
            for _ in range(guesses):
                guessing.start_soon(guess)
            longest_s = 0.0
            while server.statistics.sign_ins["PLAIN", "refused"] < guesses:
                asked_s = trio.current_time()
                assert (await alice.metadata()).brokers
                longest_s = max(longest_s, trio.current_time() - asked_s)
                await trio.sleep(0.01)
    assert threading.get_ident() not in threads
    assert most == 1
    assert longest_s < guesses * hash_s / 3


async def test_listener_that_does_not_ask_says_so(memory, nursery):
    """And goes on: as in Kafka."""
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    (door,) = await nursery.start(
        server.serve, [Door(each) for each in await trio.open_tcp_listeners(0, host="127.0.0.1")]
    )
    async with Peer(door.socket.socket.getsockname()[:2]) as peer:
        answer = await peer.handshake(SHA_256)
        assert (answer.error_code, answer.mechanisms) == (ILLEGAL_STATE, [])
        assert (await peer.authenticate(b"n,,n=alice,r=nonce")).error_code == ILLEGAL_STATE
        assert (await peer.metadata()).brokers
    server.stop()


async def test_connections_that_sign_in_count_as_others_do(memory, nursery):
    memory.settings = replace(memory.settings, requests=replace(memory.settings.requests, connections_max=1))
    server = Server(memory.broker)
    address = await listening(nursery, server)
    async with Peer(address) as peer:
        assert await peer.versions()
        async with Peer(address) as other:
            assert await other.is_closed()
    server.stop()
