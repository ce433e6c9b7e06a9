"""What a node of several machines shows: health, the cluster as a document, metrics."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from uuid import UUID

import pytest
import structlog.testing
import trio
from starlette.types import ASGIApp

from fairlog import trail
from fairlog.admin_http.assets import Asset
from fairlog.admin_http.cluster_app import make_cluster_app
from fairlog.admin_http.cluster_view import MoveAnswer, MoveOutcome
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.cluster.cluster_memory import ClusterMemory
from fairlog.cluster.cluster_records import ClusterRecord, NodeNumber, NodeRecord, Ports, cluster_id_of, first_records
from fairlog.cluster.features import FEATURES
from fairlog.cluster.report_entry import Report, encode_report
from fairlog.cluster.reports import Reports
from fairlog.cluster_node import metrics
from fairlog.cluster_node.status import ClusterStatus, look
from fairlog.trail import Trail
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyReport, Role
from stream.engine import StoredEntry, StreamPosition
from stream.kafka_health import KafkaHealth
from tests.admin_http.conftest import TOKEN, asker

CLUSTER = ClusterRecord(cluster_id_of(UUID(int=3)), 16, bytes(32))
ONE, TWO = NodeNumber(1), NodeNumber(2)
SHARD = ShardNumber(0)
MOVE = "/api/shards/move"
WITH_TOKEN = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
HEALTH = KafkaHealth(answers=True, since=90.0, said="", appends=7, bytes=700, unknown=1)


def status_of(role: Role, *, health: KafkaHealth = HEALTH) -> ClusterStatus:
    """As node 2 sees it, whose copy has this role; node 1 owns the shard, and is 5 entries ahead."""
    memory = ClusterMemory(first_records(CLUSTER, shards=1, offsets_logs=4, group_separator=""), FEATURES)
    for node in (ONE, TWO):
        record = NodeRecord(bytes(16), f"h{node}", f"h{node}", {SHARD: Ports(1, 2)}, "a")
        memory.apply(memory.announced(node, record))
    memory.apply(memory.spread({SHARD: (ONE, TWO)}))
    memory.apply(memory.published(SHARD, ONE, LeaderEpoch(4), (ONE,)))
    memory.apply(memory.wished(SHARD, TWO))
    reports = Reports(CLUSTER.uuid, lambda: 100.0)
    owner = CopyReport(Role.OWNER, LeaderEpoch(4), StreamPosition(20), StreamPosition(18))
    reports.take(_said(ONE, owner) + _said(TWO, owner._replace(role=role, taken=StreamPosition(15))))
    return look("orders", TWO, memory, reports, health, 100.0, handshakes_failed=3)


def _said(node: NodeNumber, copy: CopyReport) -> list[StoredEntry]:
    report = Report(node, bytes(16), 1, {SHARD: copy})
    return [StoredEntry(StreamPosition(node), encode_report(CLUSTER.uuid, report))]


class Moves:
    """Writes down what is asked for, and answers what a test wants."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []
        self.answer = MoveAnswer(MoveOutcome.ASKED, "a sentence")

    async def move(self, shard: int, node: int | None) -> MoveAnswer:
        await trio.lowlevel.checkpoint()
        self.asked.append((shard, node))
        return self.answer


def app_of(status: ClusterStatus | None, moves: Moves | None = None) -> ASGIApp:
    files = {"/": Asset(b"<!doctype html>", "text/html", '"tag"')}
    move = (moves or Moves()).move
    return make_cluster_app(
        lambda: status,
        partial(metrics.exposition, AdminStatistics()),
        move,
        lambda: None,
        token=TOKEN,
        host_names=(),
        assets=files,
    )


async def asked(status: ClusterStatus | None, path: str) -> tuple[int, bytes]:
    answer = await asker(app_of(status))(path)
    return answer.status, answer.body


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (MoveOutcome.ASKED, 200),
        (MoveOutcome.UNKNOWN, 404),
        (MoveOutcome.DOWN, 409),
        (MoveOutcome.ENGINE_AWAY, 503),
        (MoveOutcome.NOT_KNOWN, 503),
    ],
)
async def test_move_is_asked_for_and_answered_with_a_sentence(
    outcome: MoveOutcome, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "_trail", Trail())  # no other test has spent lines of it
    moves = Moves()
    moves.answer = MoveAnswer(outcome, "a sentence")
    ask = asker(app_of(status_of(Role.REPLICA), moves))
    with structlog.testing.capture_logs() as lines:
        answer = await ask(MOVE, "POST", WITH_TOKEN, b'{"shard": 2, "to": 3}')
    assert (answer.status, answer.document) == (code, {"outcome": outcome.value, "message": "a sentence"})
    (line,) = (each for each in lines if each["event"] == "trail")
    assert (line["action"], line["on"], line["to"]) == ("move shard", "2", 3)
    told = {MoveOutcome.ASKED: "done", MoveOutcome.NOT_KNOWN: "unknown"}
    assert line["outcome"] == told.get(outcome, outcome.value)
    await ask(MOVE, "POST", WITH_TOKEN, b'{"shard": 2, "to": null}')
    assert moves.asked == [(2, 3), (2, None)]


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 415),
        ({"content-type": "application/json"}, 401),
        ({**WITH_TOKEN, "authorization": "Bearer wrong"}, 403),
        ({**WITH_TOKEN, "origin": "http://elsewhere.example"}, 403),
    ],
)
async def test_move_needs_what_every_change_needs(headers: dict[str, str], code: int) -> None:
    moves = Moves()
    ask = asker(app_of(status_of(Role.REPLICA), moves))
    assert (await ask(MOVE, "POST", headers, b'{"shard": 2, "to": 3}')).status == code
    assert (await ask(MOVE)).status == 405
    assert moves.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"shard": 2}',
        b'{"shard": -1, "to": 3}',
        b'{"shard": 2, "to": -1}',
        b'{"shard": true, "to": 3}',
        b'{"shard": 2, "to": false}',
        b'{"shard": 2, "to": "3"}',
        b'{"shard": 2.0, "to": 3}',
    ],
)
async def test_body_that_names_no_move_is_refused(body: bytes) -> None:
    moves = Moves()
    answer = await asker(app_of(status_of(Role.REPLICA), moves))(MOVE, "POST", WITH_TOKEN, body)
    assert answer.status == 400
    assert 'the body must be {"shard": N, "to": M}' in answer.document["error"]
    assert moves.asked == []


async def test_console_is_served_before_the_cluster_is_known() -> None:
    """A move is not, and says so."""
    moves = Moves()
    ask = asker(app_of(None, moves))
    assert (await ask("/")).status == 200
    assert (await ask(MOVE, "POST", WITH_TOKEN, b'{"shard": 2, "to": 3}')).status == 503
    assert moves.asked == []


@pytest.mark.parametrize(
    ("role", "code", "word"),
    [(Role.REPLICA, 200, "serving"), (Role.JOINING, 503, "catching up"), (Role.OPENING, 503, "catching up")],
)
async def test_health_says_whether_the_copies_are_ready(role: Role, code: int, word: str) -> None:
    found, body = await asked(status_of(role), "/health")
    assert (found, json.loads(body)["status"]) == (code, word)


async def test_node_whose_engine_is_away_serves_reads_and_says_so() -> None:
    """The probe stays green: another node could do no more."""
    for answers in (True, False):
        status, body = await asked(status_of(Role.REPLICA, health=replace(HEALTH, answers=answers)), "/health")
        document = json.loads(body)
        assert (status, document["status"]) == (200, "serving")
        assert (document["reason"] is None) == answers


async def test_node_that_waits_for_the_engine_says_so() -> None:
    assert [(await asked(None, path))[0] for path in ("/health", "/api/cluster", "/metrics")] == [503, 503, 200]


async def test_document_names_owner_copies_and_lag() -> None:
    document = json.loads((await asked(status_of(Role.REPLICA), "/api/cluster"))[1])
    assert [(node["number"], node["is_up"], node["rack"]) for node in document["nodes"]] == [
        (1, True, "a"),
        (2, True, "a"),
    ]
    (shard,) = document["shards"]
    assert (shard["owner"], shard["epoch"], shard["wish"]) == (1, 4, 2)
    copies = [(copy["node"], copy["role"], copy["in_sync"], copy["lag"]) for copy in shard["copies"]]
    assert copies == [(1, "owner", True, 0), (2, "replica", False, 5)]
    assert (document["engine"]["answers"], document["engine"]["since_s"]) == (True, 10.0)


async def test_metrics_have_what_an_alert_needs() -> None:
    away = replace(HEALTH, answers=False)
    page = (await asked(status_of(Role.REPLICA, health=away), "/metrics"))[1].decode()
    assert _sample(page, 'fairlog_copy_lag_entries{node="2",shard="0"}') == 5
    assert _sample(page, 'fairlog_shard_in_sync{shard="0"}') == 1
    assert _sample(page, 'fairlog_shard_copies{shard="0"}') == 2
    assert _sample(page, 'fairlog_shard_owners_total{shard="0"}') == 4
    assert _sample(page, "fairlog_engine_answers") == 0
    assert _sample(page, "fairlog_tls_handshakes_failed_total") == 3
    families = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")]
    assert sorted(set(families)) == sorted(families)  # a scraper refuses a page that has one twice


def _sample(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found is not None, f"{name} is not in\n{page}"
    return float(found[1])
