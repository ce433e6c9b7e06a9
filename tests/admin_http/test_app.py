"""Paths, documents and statuses of the admin listener."""

from __future__ import annotations

import json

import pytest
import trio

from fairlog.admin_http.request_body import BODY_BYTES_MAX
from fairlog.admin_http.view import AbortOutcome, Phase
from tests.admin_http.conftest import TOKEN, TXID, Ask, FakeNode, a_description, a_live

WITH_TOKEN = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
ABORT = "/api/transactions/abort"
BODY = json.dumps({"transactional_id": "billing-7", "transaction": str(TXID)}).encode()


@pytest.mark.parametrize(
    ("phase", "refusing", "status", "word"),
    [
        (Phase.RECOVERING, None, 503, "recovering"),
        (Phase.SERVING, None, 200, "serving"),
        (Phase.SERVING, "the disk is full", 503, "refusing writes"),
        (Phase.STOPPING, None, 503, "stopping"),
        (Phase.STOPPING, "the disk is full", 503, "stopping"),
    ],
)
async def test_health_says_how_the_node_is(
    ask: Ask, node: FakeNode, phase: Phase, refusing: str | None, status: int, word: str
) -> None:
    """200 only if clients can read and write; otherwise a reason."""
    node.phase, node.refusing_because = phase, refusing
    answer = await ask("/health")
    assert (answer.status, answer.document["status"]) == (status, word)
    assert (answer.document["reason"] is None) == (status == 200)
    if word == "refusing writes":
        assert answer.document["reason"] == refusing


@pytest.mark.parametrize("path", ["/api/cluster", "/api/topics", "/api/groups", "/api/sinks", "/api/transactions"])
async def test_document_before_the_node_has_recovered_is_a_503(ask: Ask, node: FakeNode, path: str) -> None:
    """And is there a moment later: a failure is not kept."""
    node.phase = Phase.RECOVERING
    answer = await ask(path)
    assert answer.status == 503
    assert "recovering" in answer.document["error"]
    node.phase = Phase.SERVING
    assert (await ask(path)).status == 200


async def test_cluster_document_has_the_node_and_its_health(ask: Ask) -> None:
    """One question tells the console all that stands in its head."""
    document = (await ask("/api/cluster")).document
    assert document["health"] == {"status": "serving", "reason": None}
    assert document["copy"] == {"backlog_bytes": 1024, "lag_ms": 500.0}
    assert (document["node_id"], document["uptime_ms"]) == (1, 12_500.0)


async def test_lag_that_another_process_knows_is_null_and_not_in_the_sum(ask: Ask, node: FakeNode) -> None:
    """A dashboard can tell it from a group that has read everything."""
    node.led_elsewhere = True
    (group,) = (await ask("/api/groups")).document["groups"]
    assert group["lag"] == 6
    assert [each["lag"] for each in group["partitions"]] == [6, 0, None]


async def test_topic_has_the_leaders_of_partitions_that_other_processes_lead(ask: Ask, node: FakeNode) -> None:
    """They are in no other figure."""
    node.led_elsewhere = True
    (topic,) = (await ask("/api/topics")).document["topics"]
    assert (topic["elsewhere"], topic["records"]) == ([{"partition": 1, "leader": 2}], 8)


async def test_groups_document_has_the_lag(ask: Ask) -> None:
    """Offsets are dense, so the lag is a number of records; a partition that is gone has none."""
    (group,) = (await ask("/api/groups")).document["groups"]
    assert (group["group"], group["members"], group["lag"]) == ("readers", 2, 6)
    assert [each["lag"] for each in group["partitions"]] == [6, 0]
    assert group["partitions"][1]["deleted"] is True


async def test_sinks_document_has_the_last_batch_and_what_is_open(ask: Ask) -> None:
    """`total` counts those, too, that are not shown."""
    assert (await ask("/api/sinks")).document == {
        "sinks": [
            {
                "sink": "totals",
                "query": "q",
                "run": None,
                "batch": 7,
                "records": 5,
                "placements": [{"topic": "orders", "partition": 3, "base_offset": 10, "count": 5}],
                "partitions_total": 1,
                "open_lanes": 2,
                "writing_ms": 1500.0,
                "used_ms": 1000,
            }
        ],
        "total": 2,
    }


async def test_groups_in_a_long_document_let_others_run(ask: Ask, node: FakeNode) -> None:
    """Ten thousand groups are no reason for a producer to wait until all of them are written."""
    node.group_names = [f"group-{number}" for number in range(1_000)]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        document = (await ask("/api/groups")).document
        nursery.cancel_scope.cancel()
    assert [group["group"] for group in document["groups"]] == node.group_names
    assert turns >= 1_000


async def test_transactions_document_has_steps_and_places(ask: Ask, node: FakeNode) -> None:
    """Live ones with how long ago, ended ones with how long after; a committed one with where its records are."""
    node.live = [a_live()]
    document = (await ask("/api/transactions")).document
    (live,), (ended,) = document["live"], document["ended"]
    assert (live["transaction"], live["state"], live["hung"]) == ("7.2.4", "BEGIN", True)
    assert live["steps"] == [{"step": "BEGIN", "ago_ms": 12_000.0}]
    assert live["partitions"] == [{"topic": "orders", "partition": 3, "records": 5, "pinned_bytes": 4096}]
    assert document["hung"] == 1
    assert [each["after_ms"] for each in ended["steps"]] == [0.0, 2.0, 4.0]
    assert ended["placements"] == [{"topic": "orders", "partition": 3, "base_offset": 10, "count": 5}]
    assert document["since_start"] == {"begun": 9, "committed": 8, "aborted": 1}


async def test_transactional_id_document_has_the_last_placements_first(ask: Ask, node: FakeNode) -> None:
    """At most so many partitions of each are listed, and their number is told."""
    node.transactional_ids = {"billing-7": a_description()}
    document = (await ask("/api/transactional-id?id=billing-7")).document
    assert [each["transaction"] for each in document["committed"]] == ["7.2.5", "7.2.4"]
    assert (len(document["committed"][1]["placements"]), document["committed"][1]["partitions_total"]) == (50, 100)
    assert document["committed"][1]["records"] == 500


@pytest.mark.parametrize(("query", "status"), [("", 400), ("?id=nobody", 404), ("?id=", 404)])
async def test_transactional_id_that_is_unknown_is_a_sentence(ask: Ask, query: str, status: int) -> None:
    """What is missing is said."""
    answer = await ask(f"/api/transactional-id{query}")
    assert answer.status == status
    assert answer.document["error"]


async def test_topics_document_goes_on_where_it_ended(ask: Ask, node: FakeNode) -> None:
    """Page by page, by name, and only what has the search in it."""
    node.topic_names = [f"t{number:03}" for number in range(150)]
    first = (await ask("/api/topics")).document
    assert (len(first["topics"]), first["total"], first["next_after"]) == (100, 150, "t099")
    assert (first["topics"][0]["records"], first["topics"][0]["transactions"]) == (8, "markers")
    (partition,) = first["topics"][0]["partitions"]
    assert (partition["last_stable_offset"], partition["open_transactions"]) == (7, 1)
    rest = (await ask("/api/topics?after=t099")).document
    assert (len(rest["topics"]), rest["next_after"]) == (50, None)
    some = (await ask("/api/topics?contains=t00")).document
    assert (len(some["topics"]), some["total"]) == (10, 10)


async def test_document_that_many_ask_for_is_made_once(ask: Ask, node: FakeNode, autojump_clock: object) -> None:
    """However many consoles are open, and however often they ask, the node looks at most so often."""
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(ask, "/api/transactions")
    assert node.asked == ["transactions"]
    await trio.sleep(0.4)
    await ask("/api/transactions")
    assert node.asked == ["transactions"]
    await trio.sleep(0.2)
    await ask("/api/transactions")
    assert node.asked == ["transactions"] * 2


async def test_abort_with_the_token_goes_to_the_node(ask: Ask, node: FakeNode) -> None:
    """With the id and the very transaction that was meant."""
    answer = await ask(ABORT, "POST", WITH_TOKEN, BODY)
    assert (answer.status, answer.document["outcome"]) == (200, "aborted")
    assert node.aborted == [("billing-7", TXID)]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (AbortOutcome.UNKNOWN, 404),
        (AbortOutcome.NOT_OPEN, 409),
        (AbortOutcome.COMMITTED, 409),
        (AbortOutcome.DECIDING, 409),
        (AbortOutcome.REFUSED, 503),
    ],
)
async def test_abort_that_changed_nothing_is_no_success(
    ask: Ask, node: FakeNode, outcome: AbortOutcome, status: int
) -> None:
    """Each outcome has its status and its sentence."""
    node.outcome = outcome
    answer = await ask(ABORT, "POST", WITH_TOKEN, BODY)
    assert (answer.status, answer.document["message"]) == (status, outcome.value)


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Bearer"])
async def test_abort_without_the_token_changes_nothing(ask: Ask, node: FakeNode, token: str) -> None:
    """And is not even read."""
    answer = await ask(ABORT, "POST", WITH_TOKEN | {"authorization": token}, BODY)
    assert answer.status in (401, 403)
    assert answer.document["error"]
    assert node.asked == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b"null", b"{}", b'{"transactional_id": "a"}', b"\xff\xfe", b"[" * 15_000,
     b'{"transactional_id":"a","transaction":"1.2"}',
     b'{"transactional_id":"a","transaction":"a.b.c"}', b'{"transactional_id":"a","transaction":null}'],
)  # fmt: skip
async def test_abort_with_a_body_that_is_none_is_a_sentence(ask: Ask, node: FakeNode, body: bytes) -> None:
    """Whatever the bytes are."""
    answer = await ask(ABORT, "POST", WITH_TOKEN, body)
    assert answer.status == 400
    assert "transactional_id" in answer.document["error"]
    assert node.aborted == []


async def test_abort_with_an_endless_body_is_cut_off(ask: Ask, autojump_clock: object) -> None:
    """In size and in time."""
    assert (await ask(ABORT, "POST", WITH_TOKEN, [b"x" * 4096] * (BODY_BYTES_MAX // 4096 + 2))).status == 413
    assert (await ask(ABORT, "POST", WITH_TOKEN, b"{", body_ends=False)).status == 408


@pytest.mark.parametrize(
    ("path", "method"), [(ABORT, "GET"), ("/health", "POST"), ("/", "PUT"), ("/metrics", "DELETE")]
)
async def test_method_that_is_not_served_is_a_405(ask: Ask, path: str, method: str) -> None:
    """Nothing changes by a GET, and nothing is read by a POST."""
    assert (await ask(path, method)).status == 405


async def test_path_that_is_not_there_is_a_404(ask: Ask) -> None:
    """A document, like every error."""
    assert (await ask("/etc/passwd")).document == {"error": "Not Found"}
    assert (await ask("/../node.py")).status == 404


async def test_fault_of_the_node_is_a_500_without_its_words(ask: Ask, node: FakeNode) -> None:
    """What went wrong stands in the log, not on a page; it is raised to the server, which writes it there."""
    node.failure = ZeroDivisionError("inside")
    with pytest.raises(ZeroDivisionError):
        await ask("/api/transactions")


async def test_console_that_a_browser_has_is_not_sent_again(ask: Ask) -> None:
    """It asks with the tag that it was given."""
    first = await ask("/")
    assert first.body == b"<!doctype html>"
    again = await ask("/", headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_metrics_are_what_the_node_says_in_the_format_asked_for(ask: Ask) -> None:
    """Scrapers ask for their format."""
    answer = await ask("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.body == b"# HELP accepting application/openmetrics-text\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
