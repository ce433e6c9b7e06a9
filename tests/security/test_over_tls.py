"""Users and TLS together: SASL_SSL, as a node in production has it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent_admin

from tests.cli.in_process import fairlog_command
from tests.security.conftest import Node

pytestmark = pytest.mark.slow

PASSWORD = "a secret, of alice"


def test_clients_and_commands_sign_in_over_tls(
    new_node: Callable[..., Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """PLAIN is offered there, without a setting. The log has no password."""
    node = new_node("SASL_SSL://127.0.0.1:0", FAIRLOG_ADMIN_LISTEN="127.0.0.1:0")
    assert node.process.console is not None
    admin = node.process.console[len("http://") : -1]
    command = ["user", "add", "alice", "--password-file", "-", "--admin", admin]
    subprocess.run(
        [sys.executable, "-m", "fairlog.cli", *command, "--data-dir", str(node.process.data_dir)],
        input=f"{PASSWORD}\n",
        text=True,
        check=True,
        capture_output=True,
    )
    address = node.listeners[0]["SASL_SSL"]
    for mechanism in ("SCRAM-SHA-512", "PLAIN"):
        properties = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(node.authority.certificate),
        }
        client = confluent_admin.AdminClient({"bootstrap.servers": address, **properties})
        assert client.list_topics(timeout=15).brokers
        wrong = {"bootstrap.servers": address, **properties, "sasl.password": "wrong", "log_level": 0}
        with pytest.raises(confluent_kafka.KafkaException):
            confluent_admin.AdminClient(wrong).list_topics(timeout=2)
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
        fairlog = fairlog_command(monkeypatch, capsys)
        for command in (("topic", "list"), ("sink", "list")):
            code, _, error = fairlog("--client-properties", file, *command, "--bootstrap", address)
            assert code == 0, error
    assert PASSWORD not in node.log
