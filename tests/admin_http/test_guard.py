"""What keeps other sites' pages out of the admin listener."""

from __future__ import annotations

import pytest

from fairlog.admin_http.admin_token import reading_key
from fairlog.admin_http.guard import HEADERS, host_is_ours, refusal_of_change
from tests.admin_http.conftest import TOKEN, Ask, FakeNode

GOOD = {
    "host": "127.0.0.1:9644",
    "content-type": "application/json",
    "origin": "http://127.0.0.1:9644",
    "sec-fetch-site": "same-origin",
}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:9644", "[::1]:9644", "10.1.2.3", "localhost", "localhost:80", "LOCALHOST", "localhost.",
     "broker.example", "Broker.Example:9644"],
)  # fmt: skip
def test_host_that_no_other_site_can_have_is_ours(host: str) -> None:
    """Addresses, localhost, and the names of the settings, with any port."""
    assert host_is_ours(host, {"broker.example"})


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "broker.example.evil", "xbroker.example",
     "[::1", "evil.example@127.0.0.1.nip.io", "0x7f000001.example", "127.0.0.1 evil.example"],
)  # fmt: skip
def test_host_that_another_site_may_have_is_not_ours(host: str) -> None:
    """Whatever a name server may point to us."""
    assert not host_is_ours(host, {"broker.example"})


def test_change_by_our_own_page_or_by_a_tool_may_go_on() -> None:
    """A browser says where it comes from; curl says nothing."""
    assert refusal_of_change(GOOD, is_encrypted=False) is None
    tool = {name: GOOD[name] for name in ("host", "content-type")}
    assert refusal_of_change(tool, is_encrypted=False) is None


def test_page_without_tls_is_another_site_where_there_is_tls() -> None:
    """Whoever is on the line can make it; without TLS here there may be a proxy that has it."""
    assert refusal_of_change(GOOD, is_encrypted=True) == (403, "the request comes from another site")
    secret = GOOD | {"origin": "https://127.0.0.1:9644"}
    assert refusal_of_change(secret, is_encrypted=True) is None
    assert refusal_of_change(secret, is_encrypted=False) is None


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8080"}, 403),
        ({"origin": "http://[::1"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": ""}, 415),
    ],
)
def test_change_that_another_site_may_have_sent_is_refused(changed: dict[str, str], status: int) -> None:
    """JSON, and, from a browser, our own origin: each of them is needed."""
    refusal = refusal_of_change(GOOD | changed, is_encrypted=False)
    assert refusal is not None
    assert refusal[0] == status


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Basic dXNlcjpwYXNz", 401),
        (TOKEN, 401),
        ("Bearer ", 403),
        ("Bearer wrong", 403),
        (f"Bearer {TOKEN}x", 403),
        ("Bearer \xff", 403),
        (f"Bearer {reading_key(TOKEN)}", 403),
    ],
)
async def test_change_without_the_token_is_refused(ask: Ask, node: FakeNode, authorization: str, status: int) -> None:
    """What the other processes of the node have lets see only."""
    headers = GOOD | {"authorization": authorization}
    assert (await ask("/api/transactions/abort", "POST", headers, b"{}")).status == status
    assert node.asked == []


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/api/transactions", "/api/transactions/abort", "/none"])
async def test_request_for_another_host_sees_nothing(ask: Ask, node: FakeNode, path: str) -> None:
    """DNS rebinding: a page of another site gets one sentence, whatever it asks for."""
    answer = await ask(path, headers={"host": "evil.example"})
    assert answer.status == 421
    assert "admin.hosts" in answer.document["error"]
    assert node.asked == []


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/api/cluster", "/none", "/api/transactions/abort"])
async def test_answer_carries_the_policy_and_never_a_cookie(ask: Ask, path: str) -> None:
    """No inline script, no frame, no guessing of types, also on errors."""
    answer = await ask(path)
    assert HEADERS.items() <= answer.headers.items()
    assert "'unsafe-inline'" not in answer.headers["content-security-policy"]
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cache-control"] == ("no-cache" if path == "/" else "no-store")
