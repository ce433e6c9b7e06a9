"""How the commands' clients show who they are, and which passwords users may have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fairlog.cli import pipeline, user
from fairlog.cli.client_properties import ClientProperties, read
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address
from pyspark_fairlog.pipeline.plan import Pipeline
from tests.cli.in_process import fairlog_command

HERE = Address("127.0.0.1", 9092)
SCRAM = {"security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-256"}


def unreached(_: bytes) -> bytes:
    raise AssertionError("something is sent to the broker")


@pytest.mark.parametrize("password", ["a\u00a0b", "\ufb01", "a\u0308", "a\ufffe", "a\x07", "\u2168"])
def test_password_that_saslprep_changes_is_refused_in_a_sentence(tmp_path: Path, password: str) -> None:
    """Some clients, like ours, hash what SASLprep makes of it, and others the password as it is."""
    file = tmp_path / "password"
    file.write_text(f"{password}\n", encoding="utf-8")
    with pytest.raises(ClientError, match="SASLprep") as refusal:
        user._password("alice", str(file))
    assert password not in str(refusal.value)
    for values in ({"sasl.username": "alice", "sasl.password": password}, {"sasl.username": "\ue000"}):
        with pytest.raises(ClientError, match="SASLprep"):
            ClientProperties({**SCRAM, "sasl.password": "x", **values}).sign_in(unreached)


@pytest.mark.parametrize("password", ["a secret, of alice", "\u00fcber=,\u4e2d"])
def test_other_passwords_are_taken(tmp_path: Path, password: str) -> None:
    file = tmp_path / "password"
    file.write_text(f"{password}\n", encoding="utf-8")
    assert user._password("alice", str(file)) == password


def test_mark_at_the_beginning_of_a_file_is_not_a_name(tmp_path: Path) -> None:
    """Without it the first name would be another one, and the client would show nothing."""
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xef\xbb\xbfsecurity.protocol=ssl\n")
    assert read(file).values == {"security.protocol": "ssl"}


def test_lines_have_the_simple_forms_of_javas_properties(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("! a comment\n # another\n\nclient.id : a=b\nlinger.ms=5\n", encoding="utf-8")
    assert read(file).values == {"client.id": "a=b", "linger.ms": "5"}
    file.write_text("client.id me\n", encoding="utf-8")
    with pytest.raises(ClientError, match=r"line 1 of .* is not NAME=VALUE"):
        read(file)


def test_file_of_kafkas_own_tools_is_taken(tmp_path: Path) -> None:
    """It has the names of the Java clients."""
    file = tmp_path / "client.properties"
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={module} required username="alice" password="a=b";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=/ca.pem\n",
        encoding="utf-8",
    )
    assert read(file).values == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "a=b",
        "ssl.ca.location": "/ca.pem",
    }
    file.write_text("sasl.jaas.config=secret\n", encoding="utf-8")
    with pytest.raises(ClientError, match=r"sasl\.jaas\.config cannot be read") as refusal:
        read(file)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("line", ["sasl.username=alice", "ssl.ca.location=/ca.pem"])
def test_settings_without_a_protocol_are_refused_for_all_clients(tmp_path: Path, line: str) -> None:
    """confluent-kafka, which has no other check, would be nobody, without TLS."""
    file = tmp_path / "client.properties"
    file.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(ClientError, match=r"is set, and security\.protocol is not: it would not be used"):
        read(file)


@pytest.mark.parametrize("name", ["security.protocl", "security.providers", "ssl.cipher.suites"])
def test_names_that_are_not_understood_are_refused(name: str) -> None:
    with socket.socket() as stream, pytest.raises(ClientError, match=f"{name} is not understood"):
        ClientProperties({name: "ssl"}).secured(stream, HERE)


def test_pipeline_hands_the_settings_on_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those about security; its own are the options of the command."""
    planned: list[Pipeline] = []
    monkeypatch.setattr(pipeline, "_run", lambda plan, _conf: planned.append(plan))
    file = tmp_path / "client.properties"
    settings = {**SCRAM, "sasl.username": "alice", "sasl.password": "secret"}
    lines = [f"{name}={value}\n" for name, value in {**settings, "client.id": "me"}.items()]
    file.write_text("".join(lines), encoding="utf-8")
    step = ("--from", "orders", "--raw", "--sql", "SELECT * FROM orders", "--to", "totals")
    code, _, error = fairlog_command(monkeypatch, capsys)("--client-properties", file, "pipeline", *step)
    assert code == 0, error
    assert [each.client for each in planned] == [settings]
