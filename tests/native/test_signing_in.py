"""The native protocol on a listener that asks who its clients are."""

from __future__ import annotations

from dataclasses import replace

import cbor2
import pytest
import trio
from scramp import ScramClient

from fairlog.kafka.server import Server
from fairlog.listening import Door
from fairlog.native.protocol import OPS, NativeProtocol
from fairlog.security import sign_in
from fairlog.security_settings import SaslSettings
from tests.native.talking import Talker, frame
from tests.security.signing_in import add_user, delete_user, listening

PASSWORD = "secret of alice"


@pytest.fixture
async def server(memory, nursery):
    memory.settings = replace(memory.settings, sasl=SaslSettings(secrets_without_tls=True))
    await add_user(memory.cluster, "alice", PASSWORD)
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    server.address = await listening(nursery, server)
    yield server
    server.stop()


async def ask(talker: Talker, op: str, **arguments: object) -> list[object]:
    await talker.stream.send_all(frame(cbor2.dumps([1, op, arguments])))
    return await talker.answer()


async def sign_in_by_scram(talker: Talker, password: str = PASSWORD) -> list[object]:
    client = ScramClient(["SCRAM-SHA-256"], "alice", password)
    first = await ask(talker, "sign-in", mechanism="SCRAM-SHA-256", message=client.get_client_first())
    assert first[1] == "ok"
    assert first[2]["complete"] is False
    client.set_server_first(first[2]["message"])
    last = await ask(talker, "sign-in", message=client.get_client_final())
    if last[1] == "ok":
        client.set_server_final(last[2]["message"])
    return last


async def test_client_signs_in_and_is_served(talker, memory):
    assert (await sign_in_by_scram(talker))[2]["complete"] is True
    assert (await ask(talker, "topics"))[1] == "ok"
    await delete_user(memory.cluster, "alice")
    assert await talker.is_closed()


async def test_client_signs_in_by_plain(talker):
    answer = await ask(talker, "sign-in", mechanism="PLAIN", message=f"\0alice\0{PASSWORD}")
    assert answer == [1, "ok", {"message": "", "complete": True, "lifetime_ms": 0}]
    assert (await ask(talker, "topics"))[1] == "ok"


@pytest.mark.parametrize("op", OPS)
async def test_no_op_is_carried_out_before(talker, op):
    assert (await ask(talker, op))[1] == "not-signed-in"
    assert await talker.is_closed()


async def test_wrong_password_is_refused_and_closes(talker):
    assert (await sign_in_by_scram(talker, "wrong"))[1] == "sign-in-failed"
    assert await talker.is_closed()


async def test_unknown_mechanism_and_what_is_out_of_order_are_refused(connect):
    for arguments, kind in (
        ({"mechanism": "GSSAPI", "message": ""}, "unknown-mechanism"),
        ({"message": "n,,n=alice,r=nonce"}, "out-of-order"),
    ):
        talker = Talker(await connect())
        await talker.greet()
        assert (await ask(talker, "sign-in", **arguments))[1] == kind
        assert await talker.is_closed()


async def test_large_frame_is_refused_before(talker):
    await talker.stream.send_all((1 << 20).to_bytes(4, "big"))
    assert await talker.is_closed()


async def test_whoever_does_not_sign_in_is_disconnected(connect, monkeypatch):
    monkeypatch.setattr(sign_in, "TIME_S", 0.2)
    talker = Talker(await connect())
    await talker.greet()
    assert await talker.is_closed()


async def test_listener_that_does_not_ask_says_so(memory, nursery):
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    (door,) = await nursery.start(
        server.serve, [Door(each) for each in await trio.open_tcp_listeners(0, host="127.0.0.1")]
    )
    async with await trio.open_tcp_stream(*door.socket.socket.getsockname()[:2]) as stream:
        talker = Talker(stream)
        await talker.greet()
        assert (await ask(talker, "sign-in", mechanism="PLAIN", message="x"))[1] == "not-asked"
        assert (await ask(talker, "topics"))[1] == "ok"
    server.stop()
