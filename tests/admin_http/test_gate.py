"""Who may do what at the admin listener, and signing in there: at the page, by Basic, with the token."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing
from starlette.routing import BaseRoute

from fairlog import trail
from fairlog.admin_http import assets, sessions
from fairlog.admin_http.admin_token import reading_key
from fairlog.admin_http.app import make_app
from fairlog.admin_http.callers import Need
from fairlog.admin_http.cluster_app import make_cluster_app
from fairlog.admin_http.gate import AdminRoute
from fairlog.admin_http.guard import Guard
from fairlog.admin_http.request_body import BODY_BYTES_MAX
from fairlog.admin_http.server import open_admin_server
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.cluster_node import metrics
from fairlog.live_access import LiveAccess
from fairlog.security.acls import Operation, PatternType, Permission, ResourceType, acl_untrusted
from fairlog.security.principal import ANONYMOUS
from fairlog.security.sign_in import FAILURE_DELAY_S
from fairlog.security_settings import AuthorizerSettings
from fairlog.user_accounts import StoreAccounts
from tests.admin_http.conftest import TOKEN, TXID, Answer, FakeNode, asker
from tests.kafka.in_memory import MemoryCluster
from tests.security.signing_in import add_user, delete_user

ABORT = "/api/transactions/abort"
ABORT_BODY = json.dumps({"transactional_id": "billing-7", "transaction": str(TXID)}).encode()
PASSWORD = "secret of {}"
JSON = {"content-type": "application/json"}
ROW = re.compile(r"\| (GET|POST) \| `(/[^`]*)` \| (nothing|see|operate) \|")


class LockedNode(FakeNode):
    """A node whose users can be asked for."""

    cluster_store: MemoryCluster
    access: LiveAccess | None = None

    def accounts(self) -> StoreAccounts:
        return StoreAccounts(self.cluster_store, self.access)  # type: ignore[arg-type]


class Locked:
    """An admin listener that asks who its callers are: alice may operate, bob may see, carol may nothing."""

    def __init__(self, node: LockedNode) -> None:
        self.node = node
        self.statistics = AdminStatistics()
        self.app = make_app(
            node, token=TOKEN, asks=True, statistics=self.statistics, host_names=("broker.example",), assets={}
        )
        self.ask = asker(self.app)

    async def sign_in(self, name: str, password: str | None = None, **more: Any) -> Answer:
        document = {"user": name, "password": PASSWORD.format(name) if password is None else password}
        return await self.ask("/api/sign-in", "POST", JSON, json.dumps(document).encode(), **more)

    async def cookie_of(self, name: str) -> str:
        answer = await self.sign_in(name)
        assert answer.status == 200, answer
        return answer.headers["set-cookie"].partition(";")[0]

    async def abort(self, headers: Mapping[str, str]) -> Answer:
        return await self.ask(ABORT, "POST", {**JSON, **headers}, ABORT_BODY)


@pytest.fixture
async def locked(monkeypatch: pytest.MonkeyPatch) -> Locked:
    monkeypatch.setattr("fairlog.admin_http.callers.FAILURE_DELAY_S", 0.001)
    node = LockedNode()
    node.cluster_store = MemoryCluster()
    for name in ("alice", "bob", "carol", "root"):
        await add_user(node.cluster_store, name, PASSWORD.format(name))
    settings = AuthorizerSettings(enable=True, super_users=("User:root",))
    node.access = LiveAccess(settings, node.cluster_store)  # type: ignore[arg-type]
    acls = [cluster_acl("User:alice", Operation.ALTER), cluster_acl("User:bob", Operation.DESCRIBE)]
    await node.access.create(acls, ANONYMOUS)
    return Locked(node)


def cluster_acl(principal: str, operation: Operation, host: str = "*") -> Any:
    cluster = ResourceType.CLUSTER, "kafka-cluster", PatternType.LITERAL
    return acl_untrusted(*cluster, principal, host, operation, Permission.ALLOW)


def basic(name: str, password: str | None = None) -> dict[str, str]:
    shown = f"{name}:{PASSWORD.format(name) if password is None else password}"
    return {"authorization": f"Basic {base64.b64encode(shown.encode()).decode()}"}


# --- routes and what they need ------------------------------------------------------------------------


def routes_of(app: Any) -> list[BaseRoute]:
    assert isinstance(app, Guard)
    return app.app.routes


def apps() -> list[Any]:
    files = assets.load(assets.PAGE)
    node_app = make_app(FakeNode(), token=TOKEN, host_names=(), assets=files)
    page = partial(metrics.exposition, AdminStatistics())
    cluster_app = make_cluster_app(
        lambda: None,
        page,
        lambda _, __: None,
        lambda: None,
        token=TOKEN,
        host_names=(),
        assets=files,  # type: ignore
    )
    return [node_app, cluster_app]


def test_page_says_of_each_route_what_it_needs() -> None:
    """A route that is added without a row, or without a check, is found here."""
    text = (Path(__file__).parents[2] / "docs" / "admin-http.md").read_text(encoding="utf-8")
    told = {(method, path, need) for method, path, need in ROW.findall(text)}
    files = assets.load(assets.PAGE)
    found: set[tuple[str, str, str]] = set()
    for app in apps():
        for route in routes_of(app):
            assert isinstance(route, AdminRoute), f"{route} is without a check: make it with Gate.route"
            if route.path in files:
                assert (route.method, route.need) == ("GET", Need.OPEN)
            else:
                found.add((route.method, route.path, route.need.value))
    assert found == told


async def test_stranger_gets_what_needs_nothing_and_nothing_else(locked: Locked) -> None:
    """Each route, of each method; what is asked of the node is nothing."""
    for route in routes_of(locked.app):
        assert isinstance(route, AdminRoute)
        answer = await locked.ask(route.path, route.method, JSON, b"{}")
        if route.need is Need.OPEN:
            assert answer.status in (200, 400), route.path
        else:
            assert answer.status == 401, route.path
            assert answer.headers["www-authenticate"] == 'Bearer realm="fairlog"'
            assert answer.document == {"error": "sign in first"}
    assert locked.node.asked == []


async def test_health_tells_strangers_no_names_of_files(locked: Locked) -> None:
    """Whoever may see has them in /api/cluster."""
    locked.node.refusing_because = "/var/lib/fairlog/shards/0/journals/local/x: flushing failed"
    answer = await locked.ask("/health")
    assert (answer.status, answer.document["status"]) == (503, "refusing writes")
    assert "/var/lib" not in answer.document["reason"]
    shown = (await locked.ask("/api/cluster", headers=basic("bob"))).document["health"]["reason"]
    assert shown == locked.node.refusing_because


@pytest.mark.parametrize(
    ("name", "sees", "operates"), [("alice", 200, 200), ("bob", 200, 403), ("carol", 403, 403), ("root", 200, 200)]
)
async def test_user_may_do_what_acls_on_the_cluster_say(locked: Locked, name: str, sees: int, operates: int) -> None:
    """By a session as by Basic; super users may do everything."""
    session = {"cookie": await locked.cookie_of(name)}
    for headers in (session, basic(name)):
        for path in ("/metrics", "/api/cluster", "/api/topics", "/api/transactions"):
            assert (await locked.ask(path, headers=headers)).status == sees, path
        answer = await locked.abort(headers)
        assert answer.status == operates
        if operates == 403:
            assert answer.document["error"] == f"User:{name} may not operate here: that needs ALTER on the cluster"
    me = (await locked.ask("/api/me", headers=session)).document
    assert me == {"asks": True, "user": name, "may": {"see": sees == 200, "operate": operates == 200}}


async def test_acl_for_an_address_counts_there_only(locked: Locked) -> None:
    assert locked.node.access is not None
    await locked.node.access.create([cluster_acl("User:carol", Operation.DESCRIBE, "10.0.0.7")], ANONYMOUS)
    assert (await locked.ask("/metrics", headers=basic("carol"), client="::ffff:10.0.0.7")).status == 200
    assert (await locked.ask("/metrics", headers=basic("carol"), client="10.0.0.8")).status == 403


async def test_without_an_authorizer_every_user_may_do_both(locked: Locked) -> None:
    locked.node.access = None
    assert (await locked.abort(basic("carol"))).status == 200


async def test_token_may_everything_and_the_key_of_processes_may_see(locked: Locked) -> None:
    """The node's own user, and its processes."""
    token, key = ({"authorization": f"Bearer {each}"} for each in (TOKEN, reading_key(TOKEN)))
    assert (await locked.ask("/metrics", headers=token)).status == 200
    assert (await locked.abort(token)).status == 200
    assert (await locked.ask("/metrics", headers=key)).status == 200
    assert (await locked.abort(key)).status == 403
    assert (await locked.ask("/metrics", headers={"authorization": "Bearer wrong"})).status == 403


async def test_listener_that_does_not_ask_lets_nobody_sign_in(node: FakeNode) -> None:
    """And looks at no header of whoever only looks."""
    ask = asker(make_app(node, token=TOKEN, host_names=(), assets={}))
    assert (await ask("/api/cluster", headers={"authorization": "Bearer of a proxy"})).status == 200
    assert (await ask("/api/cluster", headers=basic("alice"))).status == 200
    me = await ask("/api/me", headers={"cookie": "fairlog-9644=x"})
    assert me.document == {"asks": False, "user": None, "may": {"see": True, "operate": False}}
    answer = await ask("/api/sign-in", "POST", JSON, b'{"user": "alice", "password": "x"}')
    assert (answer.status, "set-cookie" in answer.headers) == (404, False)


# --- sessions -----------------------------------------------------------------------------------------


async def test_cookie_is_for_our_own_page_only(locked: Locked) -> None:
    """No script reads it, no other site sends it, and with TLS it goes nowhere without."""
    plain = (await locked.sign_in("alice")).headers["set-cookie"]
    name, _, rest = plain.partition("=")
    assert name == "fairlog-9644"
    assert rest.partition(";")[2] == " HttpOnly; Path=/; SameSite=strict"
    assert len(rest.partition(";")[0]) >= 43
    secret = (await locked.sign_in("alice", scheme="https")).headers["set-cookie"]
    assert secret.startswith("__Host-fairlog-9644=")
    assert secret.endswith("; HttpOnly; Path=/; SameSite=strict; Secure")
    assert (await locked.sign_in("alice")).headers["cache-control"] == "no-store"


async def test_session_ends_when_its_user_signs_out(locked: Locked) -> None:
    """The id is good no more, whoever has kept it; others of the same user are."""
    first, second = await locked.cookie_of("alice"), await locked.cookie_of("alice")
    answer = await locked.ask("/api/sign-out", "POST", {**JSON, "cookie": first}, b"{}")
    assert answer.headers["set-cookie"].startswith('fairlog-9644=""; HttpOnly; Max-Age=0')
    assert (await locked.ask("/api/cluster", headers={"cookie": first})).status == 401
    assert (await locked.ask("/api/cluster", headers={"cookie": second})).status == 200


async def test_cookie_is_not_looked_at_with_a_header_of_whatever_scheme(locked: Locked) -> None:
    session = {"cookie": await locked.cookie_of("alice")}
    assert (await locked.ask("/api/cluster", headers=session)).status == 200
    for header in ("Negotiate abc", "Digest", basic("alice", "wrong")["authorization"]):
        assert (await locked.ask("/api/cluster", headers={**session, "authorization": header})).status == 401


async def test_signing_in_again_ends_the_session_before(locked: Locked) -> None:
    before = await locked.cookie_of("bob")
    document = json.dumps({"user": "alice", "password": PASSWORD.format("alice")}).encode()
    assert (await locked.ask("/api/sign-in", "POST", {**JSON, "cookie": before}, document)).status == 200
    assert (await locked.ask("/api/cluster", headers={"cookie": before})).status == 401


@pytest.mark.parametrize("how", ["delete", "password"])
async def test_session_ends_at_once_with_its_user_or_password(locked: Locked, how: str) -> None:
    """Counted and said once; Basic with the old password is refused like any other wrong one."""
    session, other = {"cookie": await locked.cookie_of("bob")}, {"cookie": await locked.cookie_of("alice")}
    with structlog.testing.capture_logs() as logged:
        if how == "delete":
            await delete_user(locked.node.cluster_store, "bob")
        else:
            await add_user(locked.node.cluster_store, "bob", "another")
        for _ in range(3):
            assert (await locked.ask("/api/cluster", headers=session)).status == 401
        assert (await locked.ask("/api/cluster", headers=basic("bob"))).status == 401
        assert (await locked.ask("/api/cluster", headers=other)).status == 200
    assert locked.statistics.sign_ins["page", "revoked"] == 1
    lines = [line for line in logged if line["event"].startswith("session ended")]
    assert [line["user"] for line in lines] == ["bob"]


async def test_session_ends_when_it_is_idle_and_at_the_latest_after_a_day(
    locked: Locked, autojump_clock: trio.testing.MockClock
) -> None:
    """Half a day in fact, however busy."""
    idle, busy = {"cookie": await locked.cookie_of("alice")}, {"cookie": await locked.cookie_of("bob")}
    step_s, steps, too_many = sessions.IDLE_S * 0.9, 0, 100
    while steps < too_many and (await locked.ask("/api/cluster", headers=busy)).status == 200:
        steps += 1
        await trio.sleep(step_s)
        if steps == 2:
            assert (await locked.ask("/api/cluster", headers=idle)).status == 401
    assert sessions.LIFE_S < steps * step_s < sessions.LIFE_S + sessions.IDLE_S
    assert locked.statistics.sign_ins["page", "expired"] == 2


@pytest.mark.parametrize(
    "cookie",
    [
        "fairlog-9644=",
        "fairlog-9644=short",
        "fairlog-9644=" + "A" * 43,
        "fairlog-9644=" + "x" * 10_000,
        "fairlog-9644=\xff\x00\xe9",
        "=; ;;=;",
        "fairlog-9645={good}",
        "__Host-fairlog-9644={good}",
    ],
)
async def test_cookie_that_is_none_of_this_listener_is_none_at_all(locked: Locked, cookie: str) -> None:
    """Broken ones, guesses, and those of another process or of another scheme."""
    good = (await locked.cookie_of("alice")).partition("=")[2]
    answer = await locked.ask("/api/cluster", headers={"cookie": cookie.replace("{good}", good)})
    assert (answer.status, answer.document) == (401, {"error": "sign in first"})


async def test_change_of_another_site_is_refused_although_the_session_is_good(locked: Locked) -> None:
    """Also signing in and out, which would make others be who they are not."""
    session = {"cookie": await locked.cookie_of("alice")}
    document = json.dumps({"user": "alice", "password": PASSWORD.format("alice")}).encode()
    for foreign, status in (
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
    ):
        headers = {**JSON, **session, **foreign}
        assert (await locked.ask(ABORT, "POST", headers, ABORT_BODY)).status == status
        assert (await locked.ask("/api/sign-in", "POST", headers, document)).status == status
        assert (await locked.ask("/api/sign-out", "POST", headers, b"{}")).status == status
    assert locked.node.aborted == []
    assert (await locked.abort(session)).status == 200


@pytest.mark.parametrize("how", ["session", "basic"])
async def test_user_who_is_deleted_within_a_request_changes_nothing(locked: Locked, how: str) -> None:
    """A body may come slowly: what was admitted before is looked at again."""
    shown = {"cookie": await locked.cookie_of("alice")} if how == "session" else basic("alice")
    head = {"Host": "localhost", "Content-Length": str(len(ABORT_BODY)), **JSON, **shown}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    if how == "session":  # its name has the listener's port
        lines = lines.replace("fairlog-9644", f"fairlog-{listener.socket.getsockname()[1]}")
    with trio.fail_after(10):
        async with (
            listener,
            open_admin_server(locked.app, [listener]),
            await trio.open_tcp_stream(*listener.socket.getsockname()[:2]) as stream,
        ):
            await stream.send_all(f"POST {ABORT} HTTP/1.1\r\n{lines}\r\n".encode() + ABORT_BODY[:5])
            await trio.testing.wait_all_tasks_blocked(0.1)
            await delete_user(locked.node.cluster_store, "alice")
            await stream.send_all(ABORT_BODY[5:])
            received = bytes(await stream.receive_some())
    assert received.startswith(b"HTTP/1.1 401")
    assert locked.node.aborted == []


# --- bad input ----------------------------------------------------------------------------------------


async def test_wrong_passwords_cost_time_and_one_line_each_ten(locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answer for unknown users; the connection is closed; nothing of the password is written down."""
    waited: list[float] = []

    async def note(seconds: float) -> None:
        waited.append(seconds)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr("fairlog.admin_http.callers.FAILURE_DELAY_S", FAILURE_DELAY_S)
    monkeypatch.setattr("fairlog.admin_http.callers.trio.sleep", note)
    with structlog.testing.capture_logs() as logged:
        for number in range(30):
            name = "alice" if number % 2 else "nobody"
            answer = await locked.sign_in(name, f"a guess {number}")
            assert (answer.status, answer.document) == (401, {"error": "the user or the password is wrong"})
            assert answer.headers["connection"] == "close"
            assert "set-cookie" not in answer.headers
    assert waited == [FAILURE_DELAY_S] * 30
    assert locked.statistics.sign_ins == {("page", "refused"): 30}
    assert [line["event"] for line in logged] == ["sign-in refused"] * 10
    assert {(line["user"], line["reason"]) for line in logged} == {
        ("alice", "wrong password"),
        ("nobody", "there is no such user"),
    }
    assert "a guess" not in str(logged)


async def test_many_wrong_passwords_keep_nobody_waiting_who_is_signed_in(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are hashed one at a time, in a thread."""
    session = {"cookie": await locked.cookie_of("alice")}
    guesses, under_way, most = 20, 0, 0
    go_on = threading.Event()

    def check_slowly(*_: object) -> bool:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        assert go_on.wait(20)
        under_way -= 1
        return False

    monkeypatch.setattr("fairlog.security.passwords.is_password_of", check_slowly)
    with trio.fail_after(20):
        async with trio.open_nursery() as guessing:
            for _ in range(guesses):
                guessing.start_soon(locked.sign_in, "alice", "a guess")
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(10):
                assert (await locked.ask("/api/cluster", headers=session)).status == 200
            go_on.set()
    assert (most, locked.statistics.sign_ins["page", "refused"]) == (1, guesses)


async def test_connection_that_has_shown_a_wrong_password_is_closed(locked: Locked) -> None:
    """So each guess costs a connection, and with TLS a handshake."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    request = (
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {basic('alice', 'a guess')['authorization']}\r\n\r\n"
    ).encode()
    with trio.fail_after(10):
        async with (
            listener,
            open_admin_server(locked.app, [listener]),
            await trio.open_tcp_stream(*listener.socket.getsockname()[:2]) as stream,
        ):
            await stream.send_all(request)
            received = b"".join([part async for part in stream])
    assert received.startswith(b"HTTP/1.1 401")
    assert b"the user or the password is wrong" in received


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"user": "alice"}',
        b'{"user": "alice", "password": 7}',
        b'{"user": null, "password": "x"}',
        b"[" * 10_000,
        b"\xff\xfe",
    ],
)
async def test_sign_in_that_is_none_is_refused(locked: Locked, body: bytes) -> None:
    assert (await locked.ask("/api/sign-in", "POST", JSON, body)).status == 400


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("", "x"),
        ("alice", ""),
        ("a" * 256, "x"),
        ("alice", "x" * 1025),
        ("\ud800", "x"),
        ("alice", "\udfff"),
        ("\0", "\0"),
    ],
)
async def test_name_or_password_that_can_be_none_is_a_wrong_one(locked: Locked, name: str, password: str) -> None:
    """Half characters are JSON, and no text."""
    assert (await locked.sign_in(name, password)).status == 401
    assert locked.statistics.sign_ins == {("page", "refused"): 1}


async def test_megabyte_is_not_read(locked: Locked) -> None:
    parts = [b"x" * BODY_BYTES_MAX] * 64
    assert (await locked.ask("/api/sign-in", "POST", JSON, parts)).status == 413


@pytest.mark.parametrize(
    "shown",
    ["", "%%%", "YWxpY2U=", base64.b64encode(b"al\xffice:x").decode(), "\xff", base64.b64encode(b":x").decode()],
)
async def test_broken_basic_header_is_a_wrong_password(locked: Locked, shown: str) -> None:
    """Not base64, no colon, not UTF-8, no name."""
    answer = await locked.ask("/metrics", headers={"authorization": f"Basic {shown}"})
    assert (answer.status, answer.document) == (401, {"error": "the user or the password is wrong"})
    assert locked.statistics.sign_ins == {("basic", "refused"): 1}


async def test_sessions_are_bounded(locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own go first, the one that was unused for longest; then anybody's."""
    monkeypatch.setattr(sessions, "OF_USER_MAX", 2)
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    bob = await locked.cookie_of("bob")
    first, second = await locked.cookie_of("alice"), await locked.cookie_of("alice")
    assert (await locked.ask("/api/cluster", headers={"cookie": first})).status == 200
    third = await locked.cookie_of("alice")
    found = [
        (await locked.ask("/api/cluster", headers={"cookie": each})).status for each in (bob, first, second, third)
    ]
    assert found == [200, 200, 401, 200]
    await locked.cookie_of("root")
    found = [(await locked.ask("/api/cluster", headers={"cookie": each})).status for each in (bob, first, third)]
    assert found == [401, 200, 200]


# --- what is written down ------------------------------------------------------------------------------


async def test_trail_names_the_user(locked: Locked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has done it, who was not allowed to, and that somebody has tried."""
    noted: list[tuple[str, str, str | None]] = []

    def note(actor: trail.Actor, action: trail.Action, on: str, refused: str | None = None, **_: object) -> None:
        noted.append((actor.principal, f"{action.value} {on}", refused))

    monkeypatch.setattr(trail, "note", note)
    await locked.abort({"cookie": await locked.cookie_of("alice")})
    await locked.abort(basic("bob"))
    await locked.abort({})
    await locked.abort({"authorization": f"Bearer {TOKEN}"})
    assert noted == [
        ("User:alice", "abort transaction billing-7", None),
        (
            "User:bob",
            f"abort transaction {ABORT}",
            "User:bob may not operate here: that needs ALTER on the cluster",
        ),
        ("", f"abort transaction {ABORT}", "sign in first"),
        ("Token:admin", "abort transaction billing-7", None),
    ]
