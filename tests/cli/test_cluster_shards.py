"""`fairlog shard` and `fairlog cluster` about a cluster of several machines, over a model of what its nodes say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.x509.oid import NameOID

from fairlog.admin_http.cluster_view import MoveAnswer, MoveOutcome
from fairlog.cli import admin_client, cluster_shards
from fairlog.cli.errors import ClientError
from fairlog.cluster_node.status import CopyStatus, ShardStatus
from fairlog.data_directory import METADATA_COPY
from fairlog.live_access import LiveAccess
from fairlog.security.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType, acl_untrusted
from fairlog.security.client_auth import ClientAuth
from fairlog.security.principal import ANONYMOUS
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import TlsFiles, TlsListeners
from fairlog.security_settings import AuthorizerSettings
from fairlog.user_accounts import StoreAccounts
from tests.cli.in_process import FairlogCommand
from tests.cluster_admin import TOKEN, WELL, ClusterAdmin, cluster_status, shard_status
from tests.kafka.in_memory import MemoryCluster
from tests.security.certificates import Authority, name_of
from tests.security.signing_in import add_user


@pytest.fixture
def admin() -> Iterator[ClusterAdmin]:
    admin = ClusterAdmin()
    with admin.served():
        yield admin


@pytest.fixture
def data(tmp_path: Path, admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data directory of a node of the cluster, on whose machine the commands run."""
    (tmp_path / "metadata").mkdir()
    (tmp_path / METADATA_COPY).touch()
    (tmp_path / "admin-token").write_text(TOKEN + "\n")
    monkeypatch.setenv("FAIRLOG_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("FAIRLOG_ADMIN_LISTEN", admin.address)
    return tmp_path


@pytest.mark.usefixtures("data")
def test_shards_are_listed_with_their_owners_and_copies(fairlog: FairlogCommand, admin: ClusterAdmin) -> None:
    """On a node's machine without a word of where; from elsewhere with --admin."""
    admin.change_shard(replace(shard_status(1, 2, wish=2), copies=[CopyStatus(2, "owner", True, 0, 0.1)]))
    status, out, errors = fairlog("shard", "list")
    assert (status, errors) == (0, "")
    rows = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[0] == ["shard", "owner", "epoch", "copies", "in sync", "moved to"]
    assert cells[1] == ["0", "1", "1", "1, 2, 3", "1, 2, 3", "-"]
    assert cells[2] == ["1", "2", "1", "2", "2", "2"]
    status, out, _ = fairlog("shard", "list", "--json", "--admin", admin.address, "--data-dir", "/nowhere")
    assert [shard["owner"] for shard in json.loads(out)] == [1, 2, 3]


@pytest.mark.usefixtures("data")
def test_shard_moves_and_the_wish_is_taken_back(fairlog: FairlogCommand, admin: ClusterAdmin) -> None:
    assert fairlog("shard", "move", 0, "--to", 3) == (0, "shard 0 is served by node 3\n", "")
    admin.answer = MoveAnswer(MoveOutcome.ASKED, "it is spread again")
    assert fairlog("shard", "move", 0, "--to", "auto") == (0, "it is spread again\n", "")
    assert admin.moves == [(0, 3), (0, None)]


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("outcome", [outcome for outcome in MoveOutcome if outcome is not MoveOutcome.ASKED])
def test_move_that_is_refused_says_why(fairlog: FairlogCommand, admin: ClusterAdmin, outcome: MoveOutcome) -> None:
    """In the node's sentence."""
    admin.answer = MoveAnswer(outcome, "the sentence of the node")
    status, out, errors = fairlog("shard", "move", 0, "--to", 3)
    assert (status, out) == (1, "")
    assert "the sentence of the node" in errors


def of_shard(copies: list[CopyStatus], owner: int = 1) -> ShardStatus:
    return ShardStatus(0, owner, 1, 3, copies)


OWNER = CopyStatus(1, "owner", True, 0, 0.1)


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("shard", "words"),
    [
        (of_shard([OWNER]), "node 3 has no copy of it yet"),
        (of_shard([OWNER, CopyStatus(3, "joining", False, 9, 0.1)]), "node 3's copy of it is not in sync yet"),
        (of_shard([OWNER, CopyStatus(3, "replica", True, 0, 0.1)]), "node 1 has yet to hand it over"),
    ],
)
def test_move_that_is_not_done_in_time_says_what_is_missing(
    fairlog: FairlogCommand, admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch, shard: ShardStatus, words: str
) -> None:
    """The wish stands."""
    monkeypatch.setattr(cluster_shards, "WAIT_S", 0.0)
    admin.moves_at_once = False
    monkeypatch.setattr(ClusterAdmin, "change_shard", lambda _, __: None)
    assert admin.status is not None
    admin.status = replace(admin.status, shards=[shard])
    status, out, errors = fairlog("shard", "move", 0, "--to", 3)
    assert (status, out) == (1, "")
    assert f"shard 0 is not node 3's after 0 s: {words}. It moves as soon as it can" in errors


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("what", "words"), [("engine", "the engine does not answer: gone"), ("node", "node 3 is down")]
)
def test_move_says_what_is_away(
    fairlog: FairlogCommand, admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch, what: str, words: str
) -> None:
    monkeypatch.setattr(cluster_shards, "WAIT_S", 0.0)
    admin.moves_at_once = False
    status = cluster_status()
    if what == "engine":
        status = replace(status, engine=replace(WELL, answers=False, said="gone"))
    else:
        status = replace(status, nodes=[replace(node, is_up=node.number != 3) for node in status.nodes])
    admin.status = status
    assert words in fairlog("shard", "move", 0, "--to", 3)[2]


def test_move_needs_the_token_of_the_node(
    fairlog: FairlogCommand, admin: ClusterAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the data directory, or from the environment."""
    ask = ("shard", "move", 0, "--to", 3, "--admin", admin.address, "--data-dir", tmp_path)
    status, _, errors = fairlog(*ask)
    assert status == 1
    assert "admin-token cannot be read: No such file or directory; name the node's data directory" in errors
    monkeypatch.setenv("FAIRLOG_ADMIN_TOKEN", "another-token-than-the-node's")
    status, _, errors = fairlog(*ask)
    assert status == 1
    assert "answered 403: this is not the node's admin token" in errors
    assert admin.moves == []
    monkeypatch.setenv("FAIRLOG_ADMIN_TOKEN", TOKEN)
    assert fairlog(*ask)[0] == 0
    assert admin.moves == [(0, 3)]


def test_move_that_somebody_else_has_changed_ends_at_once(
    fairlog: FairlogCommand, admin: ClusterAdmin, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClusterAdmin, "change_shard", lambda _, __: None)
    monkeypatch.setattr(cluster_shards, "WAIT_S", 1e9)
    assert admin.status is not None
    admin.status = replace(admin.status, shards=[replace(of_shard([OWNER]), wish=2)])
    status, _, errors = fairlog("shard", "move", 0, "--to", 3, "--data-dir", data)
    assert status == 1
    assert "shard 0 does not go to node 3: somebody has moved it elsewhere since" in errors


@pytest.mark.usefixtures("data")
def test_token_of_a_directory_that_was_not_named_goes_to_no_other_node(
    fairlog: FairlogCommand, admin: ClusterAdmin
) -> None:
    """The one at --admin may be anybody."""
    status, _, errors = fairlog("shard", "move", 0, "--to", 3, "--admin", admin.address)
    assert status == 1
    assert "name its data directory with --data-dir, or set FAIRLOG_ADMIN_TOKEN" in errors
    assert admin.moves == []


@pytest.mark.usefixtures("data")
def test_change_of_users_sends_no_token_of_another_node(fairlog: FairlogCommand) -> None:
    """Nobody has said that the token in this machine's data directory is that of the node at --admin."""
    other = Recorder()
    with other.served():
        status, _, errors = fairlog("user", "delete", "alice", "--admin", other.address)
    assert (status, other.heard) == (1, [])
    assert "a change of users needs the admin token of the node that is asked: name its data directory" in errors


def test_token_goes_to_nobody_but_the_node_that_is_named(
    fairlog: FairlogCommand, admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to a proxy of the environment nor to where somebody redirects."""
    other = Recorder()
    with other.served():
        monkeypatch.setenv("http_proxy", f"http://{other.address}")
        for variable in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("FAIRLOG_ADMIN_TOKEN", TOKEN)
        assert fairlog("shard", "move", 0, "--to", 3, "--admin", admin.address)[0] == 0
        assert other.heard == []
        redirecting = Recorder(other.address)
        with redirecting.served():
            status, _, errors = fairlog("shard", "list", "--admin", redirecting.address)
            assert (status, "answered 302: Found" in errors) == (1, True), errors
            with pytest.raises(ClientError, match="answered 302: Found"):
                admin_client.post(admin_client.at(redirecting.address), "/api/shards/move", {}, TOKEN)
        assert (redirecting.heard, other.heard) == ([None, f"Bearer {TOKEN}"], [])


@pytest.mark.parametrize("command", [("cluster",), ("shard", "list")])
def test_node_of_one_machine_is_pointed_to_its_own_command(fairlog: FairlogCommand, command: tuple[str, ...]) -> None:
    node = Recorder()
    with node.served():
        status, _, errors = fairlog(*command, "--admin", node.address)
    assert status == 1
    assert f"the node at {node.address} is not one of several machines: see fairlog shard list" in errors


class Recorder:
    """An HTTP server that is no node of a cluster: it answers {}, or redirects, and notes the tokens that it gets."""

    def __init__(
        self, redirect_to: str | None = None, *, status: int = 200, body: bytes | None = None, missing: int = 0
    ) -> None:
        """`missing` bytes are announced and never come."""
        self.heard: list[str | None] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.heard.append(self.headers.get("Authorization"))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(status if redirect_to is None else 302)
                if body is not None:
                    self.send_header("Content-Length", str(len(body) + missing))
                if redirect_to is not None:
                    self.send_header("Location", f"http://{redirect_to}/")
                self.end_headers()
                self.wfile.write(b"{}" if body is None else body)

            do_POST = do_GET  # noqa: N815 - as the base class asks for it

            def log_message(self, *_: object) -> None:
                """Not among what a command says."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"

    @contextmanager
    def served(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def test_number_of_shards_of_a_cluster_is_fixed(fairlog: FairlogCommand, data: Path) -> None:
    status, _, errors = fairlog("shard", "add")
    assert status == 1
    assert f"{data} is that of a node of several machines: how many shards their cluster has was fixed" in errors


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("to", ["x", "-1", "1.5", "AUTO", ""])
def test_node_that_is_no_number_is_a_wrong_command_line(fairlog: FairlogCommand, to: str) -> None:
    assert fairlog("shard", "move", 0, f"--to={to}")[0] == 2


def test_node_that_knows_no_cluster_yet_says_so(fairlog: FairlogCommand, admin: ClusterAdmin) -> None:
    admin.status = None
    for command in (("shard", "list"), ("cluster",)):
        status, _, errors = fairlog(*command, "--admin", admin.address)
        assert status == 1
        assert "answered 503: the node does not know the cluster yet" in errors


def test_nobody_at_the_address_is_said(fairlog: FairlogCommand) -> None:
    status, _, errors = fairlog("shard", "list", "--admin", "127.0.0.1:1")
    assert status == 1
    assert "cannot ask http://127.0.0.1:1/api/cluster" in errors


def test_cluster_is_shown(fairlog: FairlogCommand, admin: ClusterAdmin) -> None:
    status, out, _ = fairlog("cluster", "--admin", admin.address)
    assert status == 0
    assert out.startswith("cluster orders (CCCCCCCCCCCCCCCCCCCCCC), seen by node 1; the engine answers\n")
    assert ["2", "3", "3", "owner", "yes", "0"] in [line.split() for line in out.splitlines()]


@pytest.mark.usefixtures("data")
def test_token_is_shown_to_look_where_the_own_settings_say_that_the_node_asks(
    fairlog: FairlogCommand, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also without TLS; by the environment, or by the node's file. A listener that is named may be anybody's."""
    asking = ClusterAdmin(accounts=trio.run(_accounts))
    with asking.served():
        monkeypatch.setenv("FAIRLOG_ADMIN_LISTEN", asking.address)
        for command in (("cluster",), ("shard", "list")):
            assert "401: sign in first" in fairlog(*command)[2]
        config = tmp_path / "fairlog.toml"
        text = '[admin]\nprotocol = "SASL_PLAINTEXT"\n[sasl]\nsecrets_without_tls = true\n'
        config.write_text(text, encoding="utf-8")
        for command in (("cluster",), ("shard", "list"), ("shard", "move", 0, "--to", 3)):
            assert fairlog(*command, "--config", config)[0] == 0
        named = ("--admin", asking.address, "--config", config)
        assert "401: sign in first" in fairlog("shard", "list", *named)[2]
        (tmp_path / "admin-token").unlink()
        status, _, errors = fairlog("cluster", "--config", config)
        assert (status, "a look at the shards needs the admin token" in errors) == (1, True), errors


# --- where callers are asked who they are ---------------------------------------------------------------


@dataclass
class Locked:
    """A cluster's admin listener with TLS, where alice may operate and bob may see."""

    admin: ClusterAdmin
    directory: Path
    authority: Authority

    @property
    def url(self) -> str:
        return f"https://{self.admin.address}"

    def properties(self, user: str | None, password: str | None = None) -> Path:
        """A file for --client-properties."""
        lines = {"security.protocol": "ssl", "ssl.ca.location": self.authority.certificate}
        if user is not None:
            shown = password or f"secret of {user}"
            lines |= {
                "security.protocol": "sasl_ssl",
                "sasl.mechanism": "PLAIN",
                "sasl.username": user,
                "sasl.password": shown,
            }
        file = self.directory / f"{user}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        return file


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Locked]:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
    listeners = TlsListeners.load(TlsFiles(pair.certificate, pair.key), {"admin": ClientAuth.NONE}, PrincipalRules())
    admin = ClusterAdmin(listeners.by_name["admin"], trio.run(_accounts))
    with admin.served():
        yield Locked(admin, tmp_path, authority)


async def _accounts() -> StoreAccounts:
    cluster: Any = MemoryCluster()
    access = LiveAccess(AuthorizerSettings(enable=True, super_users=("User:alice",)), cluster)
    for name in ("alice", "bob"):
        await add_user(cluster, name, f"secret of {name}")
    may_see = acl_untrusted(
        ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:bob", "*", Operation.DESCRIBE, Permission.ALLOW
    )
    await access.create([may_see], ANONYMOUS)
    return StoreAccounts(cluster, access)


def test_user_of_the_client_properties_sees_and_moves(fairlog: FairlogCommand, locked: Locked) -> None:
    """By TLS alone; what is not allowed is said in the node's sentence."""
    to_node = ("--admin", locked.url)
    status, _, errors = fairlog("--client-properties", locked.properties(None), "cluster", *to_node)
    assert (status, "401: sign in first" in errors) == (1, True)
    as_bob = ("--client-properties", locked.properties("bob"))
    assert fairlog(*as_bob, "cluster", *to_node)[0] == 0
    assert fairlog(*as_bob, "shard", "list", *to_node)[0] == 0
    status, _, errors = fairlog(*as_bob, "shard", "move", 0, "--to", 3, *to_node)
    assert (status, "403: User:bob may not operate here" in errors) == (1, True)
    as_alice = ("--client-properties", locked.properties("alice"))
    assert fairlog(*as_alice, "shard", "move", 0, "--to", 3, *to_node) == (0, "shard 0 is served by node 3\n", "")
    assert locked.admin.moves == [(0, 3)]


def test_token_does_where_callers_are_asked(
    fairlog: FairlogCommand, locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the user of the client properties, who may not exist yet."""
    monkeypatch.setenv("FAIRLOG_ADMIN_TOKEN", TOKEN)
    as_nobody = ("--client-properties", locked.properties("nobody"))
    assert fairlog(*as_nobody, "shard", "list", "--admin", locked.url)[0] == 0
    assert fairlog(*as_nobody, "shard", "move", 1, "--to", 3, "--admin", locked.url)[0] == 0


@pytest.mark.parametrize("days", [10, -1])
def test_own_certificate_is_known_whatever_it_says(
    fairlog: FairlogCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    """Names, dates and uses do not matter, and another one gets nothing: by it a node's own commands are not locked
    out when its certificate has expired.
    """
    authority = Authority(tmp_path / "ca")
    name = name_of((NameOID.COMMON_NAME, "elsewhere"))
    pair = authority.issue("node", name, host="elsewhere", days=days)
    other = authority.issue("other", name, host="elsewhere")
    listeners = TlsListeners.load(TlsFiles(pair.certificate, pair.key), {"admin": ClientAuth.NONE}, PrincipalRules())
    admin = ClusterAdmin(listeners.by_name["admin"], trio.run(_accounts))
    (tmp_path / "admin-token").write_text(TOKEN + "\n")
    with admin.served():
        for setting, value in {
            "DATA_DIR": tmp_path,
            "ADMIN_LISTEN": admin.address,
            "ADMIN_PROTOCOL": "SASL_SSL",
            "TLS_CERTIFICATE": pair.certificate,
            "TLS_KEY": pair.key,
        }.items():
            monkeypatch.setenv(f"FAIRLOG_{setting}", str(value))
        assert fairlog("cluster")[0] == 0
        with monkeypatch.context() as patch:
            patch.setenv("FAIRLOG_TLS_CERTIFICATE", str(other.certificate))
            status, _, errors = fairlog("cluster")
    assert (status, f"it does not show the certificate in {other.certificate}" in errors) == (1, True), errors


@pytest.mark.parametrize("command", [("cluster",), ("user", "list")])
@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize(("body", "missing"), [(b"[" * 100_000, 0), (b"{", 1)])
def test_broken_listener_is_an_error_and_no_traceback(
    fairlog: FairlogCommand,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    status: int,
    body: bytes,
    missing: int,
) -> None:
    """Deep brackets, and an answer that ends before it is over."""
    monkeypatch.setenv("FAIRLOG_ADMIN_TOKEN", TOKEN)
    broken = Recorder(status=status, body=body, missing=missing)
    with broken.served():
        code, _, errors = fairlog(*command, "--admin", broken.address)
    assert code == 1
    assert f"http://{broken.address}" in errors


def test_token_of_an_issuer_is_no_user_here(fairlog: FairlogCommand, locked: Locked) -> None:
    """The sentence says so, and names the option."""
    file = locked.properties("alice")
    lines = file.read_text().replace("PLAIN", "OAUTHBEARER").splitlines()
    url = f"sasl.oauthbearer.token.endpoint.url=file://{locked.directory}/token"
    file.write_text("\n".join([*(line for line in lines if not line.startswith("sasl.user")), url]))
    status, _, errors = fairlog("--client-properties", file, "shard", "move", 0, "--to", 3, "--admin", locked.url)
    assert status == 1
    assert "401: sign in first" in errors
    status, _, errors = fairlog("--client-properties", file, "user", "list", "--admin", locked.url)
    assert status == 1
    assert "in --client-properties (an admin listener takes no token of an issuer)" in errors


def test_password_goes_to_nobody_without_the_certificate(fairlog: FairlogCommand, locked: Locked) -> None:
    """Another CA, or no TLS: nothing is shown."""
    other = Authority(locked.directory / "other")
    file = locked.properties("alice")
    file.write_text(file.read_text().replace(str(locked.authority.certificate), str(other.certificate)))
    status, _, errors = fairlog("--client-properties", file, "cluster", "--admin", locked.url)
    assert (status, "CERTIFICATE_VERIFY_FAILED" in errors, "secret of" in errors) == (1, True, False)
    status, _, errors = fairlog(
        "--client-properties", locked.properties("alice"), "cluster", "--admin", locked.admin.address
    )
    assert (status, "https://HOST:PORT if it has TLS" in errors) == (1, True)
    without_tls = ClusterAdmin(accounts=trio.run(_accounts))
    with without_tls.served():
        status, _, errors = fairlog(
            "--client-properties", locked.properties("alice"), "cluster", "--admin", without_tls.address
        )
    assert (status, "401: sign in first" in errors) == (1, True)
    status, _, errors = fairlog("cluster", "--admin", "ftp://localhost:1")
    assert (status, "ftp://localhost:1 is no admin listener" in errors) == (1, True)
