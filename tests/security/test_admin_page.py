"""The admin listener of a real node with all its locks: TLS, sign-in, roles by ACLs, the trail, `fairlog --admin`."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from scripts.node_process import CONSOLE_PREFIX
from tests.cli.in_process import fairlog_command
from tests.security.certificates import name_of
from tests.security.conftest import Node

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}
WAIT_S = 30


class Page:
    """An HTTP client of one process's admin listener, which knows the test's CA."""

    def __init__(self, url: str, authority: Path) -> None:
        self.url = url
        self._context = ssl.create_default_context(cafile=str(authority))

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, body: object = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path.lstrip("/"), data, dict(headers or {}))
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S, context=self._context) as answer:
                return answer.status, _read(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, _read(error.read()), error.headers

    def sign_in(self, user: str, password: str) -> dict[str, str]:
        status, _, headers = self.ask("/api/sign-in", JSON, {"user": user, "password": password})
        assert status == 200
        return {"cookie": headers["set-cookie"].partition(";")[0]}

    def serial(self) -> str:
        """Of the certificate that it shows."""
        host, port = self.url.removeprefix("https://").rstrip("/").split(":")
        return ssl.get_server_certificate((host, int(port)))


def _read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode()


def secret_of(user: str) -> str:
    return f"the secret of {user}"


def basic(user: str) -> dict[str, str]:
    shown = base64.b64encode(f"{user}:{secret_of(user)}".encode()).decode()
    return {"authorization": f"Basic {shown}"}


def test_admin_page_is_locked_as_the_page_says(
    new_node: Callable[..., Node],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two processes: each asks who calls, and the first one has the metrics of both."""
    trail = tmp_path / "trail.jsonl"
    node = new_node(
        "127.0.0.1:0",
        processes=2,
        FAIRLOG_ADMIN_LISTEN="0.0.0.0:0",
        FAIRLOG_ADMIN_PROTOCOL="SASL_SSL",
        FAIRLOG_AUTHORIZER_ENABLE="true",
        FAIRLOG_AUTHORIZER_SUPER_USERS="User:root",
        FAIRLOG_TRAIL_FILE=str(trail),
    )
    output = node.process.data_dir.with_name("data.out").read_text(encoding="utf-8").splitlines()
    first, second = (
        Page(line.removeprefix(CONSOLE_PREFIX).replace("0.0.0.0", "127.0.0.1"), node.authority.certificate)
        for line in output
        if line.startswith(CONSOLE_PREFIX)
    )
    assert first.url.startswith("https://127.0.0.1:")

    def run(user: str | None, *arguments: object) -> tuple[int, str]:
        """A `fairlog` command, as a user of the page or as the node's own."""
        properties = tmp_path / f"{user}.properties"
        lines = {"security.protocol": "ssl", "ssl.ca.location": node.authority.certificate}
        if user is not None:
            lines |= {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": secret_of(user),
            }
        properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        code, out, error = fairlog_command(monkeypatch, capsys)("--client-properties", properties, *arguments)
        return code, out + error

    def add(user: str, by: str | None, *more: object) -> tuple[int, str]:
        file = tmp_path / f"{user}.password"
        file.write_text(secret_of(user), encoding="utf-8")
        return run(by, "user", "add", user, "--password-file", file, "--admin", first.url, *more)

    # The node's own user makes the first one, who makes the others from elsewhere.
    assert add("root", None, "--data-dir", node.process.data_dir) == (0, "user root was added\n")
    assert add("alice", "root") == (0, "user alice was added\n")
    assert add("bob", "root")[0] == 0
    code, said = add("mallory", "alice")
    assert code == 1
    assert "403: User:alice may not operate here: that needs ALTER on the cluster" in said
    code, said = run("nobody", "user", "list", "--admin", first.url)
    assert code == 1
    assert "401: the user or the password is wrong" in said
    without_tls = first.url.replace("https", "http")
    code, said = run(None, "user", "list", "--admin", without_tls, "--data-dir", node.process.data_dir)
    assert code == 1
    assert "https://HOST:PORT if it has TLS), or give the node's settings with --config" in said

    # With the node's settings at hand a command knows the node by the very certificate, whatever name that has.
    for name, value in {
        "ADMIN_LISTEN": first.url.removeprefix("https://").rstrip("/").replace("127.0.0.1", "127.0.0.2"),
        "ADMIN_PROTOCOL": "SASL_SSL",
        "TLS_CERTIFICATE": node.pair.certificate,
        "TLS_KEY": node.pair.key,
    }.items():
        monkeypatch.setenv(f"FAIRLOG_{name}", str(value))
    assert run(None, "user", "list", "--data-dir", node.process.data_dir)[0] == 0
    monkeypatch.setenv("FAIRLOG_TLS_CERTIFICATE", str(node.client.certificate))
    code, said = run(None, "user", "list", "--data-dir", node.process.data_dir)
    assert (code, "it does not show the certificate in" in said) == (1, True)

    for page in (first, second):
        assert page.ask("/health")[:2] == (200, {"status": "serving", "reason": None})
        assert page.ask("/api/cluster")[:2] == (401, {"error": "sign in first"})
        assert "Sign in" in page.ask("/signing_in.js")[1]
        assert page.ask("/api/cluster", basic("root"))[0] == 200
        assert page.ask("/api/cluster", basic("alice"))[0] == 403
    metrics = first.ask("/metrics", basic("root"))[1]
    assert 'fairlog_shard_up{shard="1"} 1.0' in metrics
    assert 'fairlog_sign_ins_total{mechanism="basic",outcome="signed in",shard="1"} 2.0' in metrics

    session = first.sign_in("alice", secret_of("alice"))
    assert session["cookie"].startswith("__Host-fairlog-")
    assert first.ask("/api/me", session)[1] == {
        "asks": True,
        "user": "alice",
        "may": {"see": False, "operate": False},
    }
    assert second.ask("/api/me", session)[1]["user"] is None

    # A session ends at once when its user does, also when another process is told to delete it.
    assert run("root", "user", "delete", "alice", "--admin", second.url) == (0, "user alice was deleted\n")
    until(lambda: first.ask("/api/me", session)[1]["user"] is None)

    replaced = node.authority.issue("replaced", name_of((NameOID.COMMON_NAME, "localhost")))
    shutil.copy(replaced.key, node.pair.key)
    shutil.copy(replaced.certificate, node.pair.certificate)
    new = node.pair.certificate.read_text(encoding="ascii").strip()
    for page in (first, second):
        until(lambda page=page: page.serial().strip() == new)
    assert 'fairlog_shard_up{shard="1"} 1.0' in first.ask("/metrics", basic("root"))[1]

    noted = [json.loads(line) for line in trail.read_text(encoding="utf-8").splitlines()]
    done = [(line["principal"], line["action"], line["on"], line["outcome"] == "done") for line in noted]
    assert done[0] == ("Token:admin", "alter user", "root", True)
    assert ("User:root", "alter user", "alice", True) in done
    assert ("User:alice", "alter user", "/api/users/change", False) in done
    assert ("User:root", "delete user", "alice", True) in done
    written = trail.read_text(encoding="utf-8") + node.log
    assert "the secret of" not in written
    assert session["cookie"].partition("=")[2] not in written


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("listen", "protocol", "warns"),
    [("0.0.0.0:0", "PLAINTEXT", True), ("0.0.0.0:0", "SSL", False), ("127.0.0.1:0", "PLAINTEXT", False)],
)
def test_open_admin_listener_is_said_once(
    new_node: Callable[..., Node], listen: str, protocol: str, warns: bool
) -> None:
    """By the first of two processes alone."""
    node = new_node("127.0.0.1:0", processes=2, FAIRLOG_ADMIN_LISTEN=listen, FAIRLOG_ADMIN_PROTOCOL=protocol)
    assert node.log.count("anyone who reaches the admin listener can see everything but records") == int(warns)
