"""Spark's client of the native protocol where clients sign in: it does so, again before its session ends, and says why
not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pytest
import trio

from fairlog.security_settings import SaslSettings
from fairlog_client_security import ClientSecurity
from pyspark_fairlog import native as client
from pyspark_fairlog.connections import borrowed, close_all
from pyspark_fairlog.native import Native, NativeError
from pyspark_fairlog.persistence import persistently

T = TypeVar("T")
PASSWORD = "secret of alice"


def shown(mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> ClientSecurity:
    return ClientSecurity.of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }
    )


async def with_address(server, work: Callable[[str], T]) -> T:
    host, port = server.address
    return await trio.to_thread.run_sync(work, f"{host}:{port}")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_client_signs_in_before_it_asks(server, mechanism):
    def work(address: str) -> None:
        with Native.connect(address, security=shown(mechanism)) as native:
            assert native.topics() == {}
            assert native.is_idle

    await with_address(server, work)


async def test_client_that_is_not_let_in_says_so_at_once(server):
    """Waiting for a node would not help, so nobody who asks again and again does so."""

    def work(address: str) -> None:
        with pytest.raises(NativeError, match=r"does not let the client in: .*invalid credentials") as refused:
            persistently(lambda native: native.topics(), address, shown(password="wrong"))
        assert refused.value.kind == "sign-in-failed"
        with pytest.raises(NativeError) as refused, Native.connect(address) as native:
            native.topics()
        assert refused.value.kind == "not-signed-in"

    await with_address(server, work)


@pytest.mark.parametrize("sasl", [SaslSettings(max_reauth_ms=5600, secrets_without_tls=True)])
async def test_client_signs_in_again_before_its_session_ends(server, sasl, monkeypatch):
    """Also where the connection was kept meanwhile: nothing is asked after the end."""

    def work(address: str) -> None:
        with Native.connect(address, security=shown()) as native:
            for _ in range(4):
                assert native.topics() == {}
                time.sleep(2)
            assert native.topics() == {}

    await with_address(server, work)
    assert server.statistics.sign_ins["SCRAM-SHA-256", "signed in"] == 2
    monkeypatch.setattr(client, "AGAIN_AT", 100)

    def late(address: str) -> None:
        with Native.connect(address, security=shown()) as native:
            time.sleep(5.7)
            with pytest.raises(NativeError, match="session has expired"):
                native.topics()

    await with_address(server, late)


async def test_connection_whose_second_sign_in_is_refused_is_closed(server, tmp_path):
    """Nobody asks by it any more, whose session ends soon."""
    without_token = ClientSecurity.of(
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{tmp_path}/none",
        }
    )

    def work(address: str) -> None:
        for security in (without_token, shown(password="wrong")):
            with Native.connect(address, security=shown()) as native:
                native._security, native._sign_in_again_s = security, 0
                with pytest.raises(NativeError):
                    native.topics()
                assert not native.is_idle
                with pytest.raises(ConnectionError, match="is closed; connect anew"):
                    native.topics()

    await with_address(server, work)


async def test_kept_connection_is_for_who_is_shown_on_it(server, monkeypatch):
    """Another user of the same process connects."""

    def work(address: str) -> None:
        for security in (shown(), shown(), shown("PLAIN")):
            with borrowed(address, security) as native:
                assert native.topics() == {}
        with pytest.raises(NativeError), borrowed(address, shown(password="wrong")):
            pass
        close_all()

    await with_address(server, work)
    assert server.statistics.sign_ins["SCRAM-SHA-256", "signed in"] == 1
    assert server.statistics.sign_ins["PLAIN", "signed in"] == 1
