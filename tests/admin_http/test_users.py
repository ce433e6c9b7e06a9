"""The users, for whoever has the admin token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

import pytest

from fairlog.admin_http.cluster_app import make_cluster_app
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.admin_http.users import change_document
from fairlog.cluster_node import metrics
from fairlog.security.made_up import made_up
from fairlog.security.users import USERS, ScramMechanism
from fairlog.user_accounts import StoreAccounts
from fairlog_types import StorageFailure
from tests.admin_http.conftest import TOKEN, Ask, asker
from tests.kafka.in_memory import MemoryCluster

CHANGE, LIST = "/api/users/change", "/api/users/list"
WITH_TOKEN = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
CREDENTIALS = {mechanism: made_up(bytes(32), mechanism, "x") for mechanism in ScramMechanism}


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def ask(cluster: MemoryCluster) -> Ask:
    async def no_move(_shard: int, _node: int | None) -> None:
        raise AssertionError

    accounts = StoreAccounts(cluster)  # type: ignore[arg-type]
    app = make_cluster_app(
        lambda: None,
        partial(metrics.exposition, AdminStatistics()),
        no_move,
        lambda: accounts,
        token=TOKEN,
        host_names=(),
        assets={},
    )
    return asker(app)


async def change(ask: Ask, document: Mapping[str, object]) -> tuple[int, object]:
    answer = await ask(CHANGE, "POST", WITH_TOKEN, json.dumps(document).encode())
    return answer.status, answer.document


async def test_users_are_added_changed_listed_and_deleted(ask: Ask, cluster: MemoryCluster) -> None:
    assert await change(ask, change_document("add", "alice", CREDENTIALS)) == (200, {"user": "alice"})
    assert (await change(ask, change_document("add", "alice", CREDENTIALS)))[0] == 409
    assert (await change(ask, change_document("password", "bob", CREDENTIALS)))[0] == 404
    assert cluster.access(USERS)["alice"].credentials == CREDENTIALS
    other = {ScramMechanism.SCRAM_SHA_256: made_up(bytes(32), ScramMechanism.SCRAM_SHA_256, "y")}
    assert (await change(ask, change_document("password", "alice", other)))[0] == 200
    listed = await ask(LIST, "POST", WITH_TOKEN, b"{}")
    mechanisms = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    assert listed.document == {"users": [{"name": "alice", "mechanisms": mechanisms}]}
    assert (await change(ask, change_document("delete", "alice", {})))[0] == 200
    assert (await change(ask, change_document("delete", "alice", {})))[0] == 404
    assert cluster.access(USERS) == {}


@pytest.mark.parametrize("path", [CHANGE, LIST])
async def test_users_are_for_whoever_has_the_token(ask: Ask, cluster: MemoryCluster, path: str) -> None:
    body = json.dumps(change_document("add", "alice", CREDENTIALS)).encode()
    for headers, status in (
        ({}, 415),
        ({"content-type": "application/json"}, 401),
        ({**WITH_TOKEN, "authorization": "Bearer wrong"}, 403),
        ({**WITH_TOKEN, "origin": "http://elsewhere.example"}, 403),
    ):
        assert (await ask(path, "POST", headers, body)).status == status
    assert (await ask(path)).status == 405
    assert cluster.access(USERS) == {}


ROW = ["SCRAM-SHA-256", 4096, "c2FsdHNhbHRzYWx0", "AAAA", "AAAA"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        json.dumps({"action": "add", "name": "alice"}).encode(),
        json.dumps({"action": "rename", "name": "alice", "credentials": [ROW]}).encode(),
        json.dumps({"action": "add", "name": "alice", "credentials": []}).encode(),
        json.dumps({"action": "delete", "name": "alice", "credentials": [ROW]}).encode(),
        json.dumps({"action": "add", "name": 7, "credentials": [ROW]}).encode(),
        json.dumps({"action": "add", "name": "alice", "credentials": [ROW[:4]]}).encode(),
        json.dumps({"action": "add", "name": "alice", "credentials": [["MD5", *ROW[1:]]]}).encode(),
        json.dumps({"action": "add", "name": "alice", "credentials": [[*ROW[:2], "é", "AAAA", "AAAA"]]}).encode(),
        json.dumps({"action": "add", "name": "alice", "credentials": [ROW]}).encode(),
        b"[" * 10_000,
    ],
)
async def test_bad_change_is_refused(ask: Ask, cluster: MemoryCluster, body: bytes) -> None:
    answer = await ask(CHANGE, "POST", WITH_TOKEN, body)
    assert answer.status == 400
    assert "AAAA" not in str(answer.document)
    assert cluster.access(USERS) == {}


async def test_disk_that_refuses_is_told(ask: Ask, cluster: MemoryCluster) -> None:
    cluster.failure = StorageFailure("the disk is full")
    assert await change(ask, change_document("add", "alice", CREDENTIALS)) == (503, {"error": "the disk is full"})
