"""A whole node through its admin listener: health in every phase, a hung transaction, its abort, metrics.

The node is a process, the clients speak Kafka's protocol, and what is asserted is what an operator sees.
"""

from __future__ import annotations

import http.client
import json
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from fairlog import node as fairlog_node
from fairlog.config_sources import load
from fairlog.topics import LocalTopics
from scripts.node_process import NodeProcess
from shard.partitions import Partitions
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import TOPIC, WAIT_S, Producer, produce, read, read_when, refusal, until, wait_for_the_copy

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]
TOKEN = "the-token-of-this-test"


def start(new_node: NewNode, **environment: str) -> NodeProcess:
    """A node with an admin listener on a port that it picks."""
    node = new_node(
        FAIRLOG_ADMIN_LISTEN="127.0.0.1:0", FAIRLOG_ADMIN_TOKEN=TOKEN, FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS="100",
        **environment,
    )  # fmt: skip
    node.start()
    return node


def call(node: NodeProcess, path: str, body: object = None, *, token: str = "") -> tuple[int, Any]:
    """Ask a node's admin listener; the status, and the document."""
    assert node.console is not None, "the node has no admin listener"
    return ask(node.console, path, body, token=token)


def ask(url: str, path: str, body: object = None, *, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=WAIT_S)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
            connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    is_document = (answer.getheader("content-type") or "").startswith("application/json")
    return answer.status, json.loads(content) if is_document else content.decode()


def metrics(node: NodeProcess) -> dict[tuple[str, tuple[str, ...]], float]:
    """All samples, by name and values of labels."""
    status, text = call(node, "/metrics")
    assert status == 200
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def live(node: NodeProcess) -> list[Any]:
    return call(node, "/api/transactions")[1]["live"]


def test_hung_transaction_is_seen_aborted_and_nobody_else_notices(new_node: NewNode) -> None:
    """The operator's whole task; a plain consumer sees the same before, meanwhile and after (invariant 8)."""
    node = start(new_node, FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    with RawClient(node.address) as client, RawClient(node.address) as other:
        produce(node, b"before")
        hanging = Producer(client, "hangs", partitions=2)
        assert hanging.begin() == {raw.NONE}
        assert hanging.send(b"lost") == {raw.NONE}
        Producer(other, "goes-on").commit(b"meanwhile")
        assert read_when(node, 2) == [b"before", b"meanwhile"]
        (shown,) = until(lambda: live(node))
        assert (shown["transactional_id"], shown["state"], shown["records"]) == ("hangs", "BEGIN", 2)
        assert [(each["topic"], each["partition"], each["records"]) for each in shown["partitions"]] == [
            (TOPIC, 0, 1), (TOPIC, 1, 1),
        ]  # fmt: skip
        assert shown["pinned_bytes"] > 0
        assert metrics(node)["fairlog_transactions", ("open",)] == 1
        assert metrics(node)["fairlog_journal_pinned_by_transaction_bytes", ("hangs",)] > 0

        meant = {"transactional_id": "hangs", "transaction": shown["transaction"]}
        for wrong in ("", "wrong", TOKEN + "x"):
            assert call(node, "/api/transactions/abort", meant, token=wrong)[0] in (401, 403)
        assert live(node)[0]["transaction"] == shown["transaction"]
        status, outcome = call(node, "/api/transactions/abort", meant, token=TOKEN)
        assert (status, outcome["outcome"]) == (200, "aborted")
        assert call(node, "/api/transactions/abort", meant, token=TOKEN)[0] == 409

        (ended,) = until(lambda: [it for it in call(node, "/api/transactions")[1]["ended"] if it["cause"]])
        assert (ended["transactional_id"], ended["cause"], ended["partitions_total"]) == ("hangs", "forced", 2)
        assert metrics(node)["fairlog_transactions_aborted_total", ("forced",)] == 1
        assert hanging.end(commit=True) in raw.FENCED
        assert read(node) == [b"before", b"meanwhile"]
        assert read(node, 1) == []


def test_hung_transaction_of_marker_mode_shows_who_waits_for_it(new_node: NewNode) -> None:
    """Mode, last stable offset and open transactions of a partition; abort frees the readers of committed records."""
    node = start(new_node, FAIRLOG_TOPICS_TRANSACTIONS="markers")
    with RawClient(node.address) as client:
        produce(node, b"before")
        hanging = Producer(client, "hangs")
        assert hanging.begin() == {raw.NONE}
        assert hanging.send(b"lost") == {raw.NONE}
        produce(node, b"behind")

        def topic() -> Any:
            (found,) = call(node, "/api/topics")[1]["topics"]
            return found

        def ends() -> tuple[int, int, int]:
            (partition,) = topic()["partitions"]
            return partition["last_stable_offset"], partition["high_watermark"], partition["open_transactions"]

        assert topic()["transactions"] == "markers"
        until(lambda: ends() == (1, 3, 1))
        (shown,) = until(lambda: live(node))
        assert (shown["records"], shown["pinned_bytes"]) == (1, 0), "what is copied pins no journal"
        samples = metrics(node)
        assert samples["fairlog_topics_of_mode", ("markers",)] == 1
        assert (samples["fairlog_unstable_partitions", ()], samples["fairlog_unstable_records", ()]) == (1, 2)
        assert samples["fairlog_partition_unstable_records", ("0", TOPIC)] == 2
        meant = {"transactional_id": "hangs", "transaction": shown["transaction"]}
        assert call(node, "/api/transactions/abort", meant, token=TOKEN)[0] == 200
        until(lambda: ends() == (4, 4, 0))
        assert metrics(node)["fairlog_unstable_records", ()] == 0


def test_abort_of_what_is_over_changes_nothing(new_node: NewNode) -> None:
    """Neither the next transaction of the same producer, nor one that was committed, nor one that nobody has."""
    node = start(new_node)
    produce(node, b"plain")
    with RawClient(node.address) as client:
        producer = Producer(client, "t")
        assert producer.begin() == {raw.NONE}
        (first,) = until(lambda: live(node))
        producer.end(commit=False)
        producer.begin()
        producer.send(b"next")
        meant = {"transactional_id": "t", "transaction": first["transaction"]}
        status, outcome = call(node, "/api/transactions/abort", meant, token=TOKEN)
        assert (status, outcome["outcome"]) == (409, "not_open")
        (second,) = until(lambda: [it for it in live(node) if it["transaction"] != first["transaction"]])
        assert producer.end(commit=True) == raw.NONE
        meant = {"transactional_id": "t", "transaction": second["transaction"]}
        status, outcome = call(node, "/api/transactions/abort", meant, token=TOKEN)
        assert (status, outcome["outcome"]) == (409, "committed")
        nobody = {"transactional_id": "nobody", "transaction": "1.2.3"}
        assert call(node, "/api/transactions/abort", nobody, token=TOKEN)[0] == 404
        assert read_when(node, 2) == [b"plain", b"next"]


def test_committed_transaction_is_found_with_its_records_also_after_a_restart(new_node: NewNode) -> None:
    """Where they are, in which steps it got there; the places outlive the run."""
    node = start(new_node, FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2")
    with RawClient(node.address) as client:
        produce(node, b"plain")
        Producer(client, "t", partitions=2).commit(b"a", b"b")
    (ended,) = until(lambda: call(node, "/api/transactions")[1]["ended"])
    assert [step["step"] for step in ended["steps"]] == ["BEGIN", "PREPARE_COMMIT", "DECIDED", "COPIED", "COMMITTED"]
    after = [step["after_ms"] for step in ended["steps"]]
    assert after == sorted(after)
    places = [
        {"topic": TOPIC, "partition": 0, "base_offset": 1, "count": 2},
        {"topic": TOPIC, "partition": 1, "base_offset": 0, "count": 2},
    ]
    assert ended["placements"] == places
    node.stop()
    node.start()
    assert call(node, "/api/transactions")[1]["ended"] == []
    found = call(node, "/api/transactional-id?id=t")[1]
    assert found["committed"][0]["placements"] == places


def test_metrics_count_what_clients_do(new_node: NewNode) -> None:
    """Produce, commits with their three durations, requests with errors, bytes."""
    node = start(new_node)
    with RawClient(node.address) as client:
        produce(node, b"one", b"two")
        Producer(client).commit(b"three")
        assert client.produce(TOPIC, 77, batch([b"x"]))[0] == raw.UNKNOWN_TOPIC_OR_PARTITION
        read_when(node, 3)
    samples = metrics(node)
    assert samples["fairlog_serving", ()] == 1
    assert samples["fairlog_produced_records_total", ()] == 3
    assert samples["fairlog_copied_records_total", ()] == 3
    assert samples["fairlog_transactions_committed_total", ()] == 1
    for phase in ("prepare", "flush", "apply"):
        assert samples["fairlog_commit_duration_seconds_count", (phase,)] == 1
        assert 0 < samples["fairlog_commit_duration_seconds_sum", (phase,)] < WAIT_S
    assert samples["fairlog_requests_total", ("EndTxn",)] == 1
    assert samples["fairlog_request_errors_total", ("Produce", "UNKNOWN_TOPIC_OR_PARTITION")] == 1
    assert samples["fairlog_copy_lag_bytes", ()] == 0
    assert samples["fairlog_datalog_used_bytes", ()] > 0
    assert samples["process_cpu_seconds_total", ()] > 0


def test_topics_are_shown_with_their_ends_and_sizes(new_node: NewNode) -> None:
    """What is in the data log, and what the journal still holds."""
    node = start(new_node, FAIRLOG_TOPICS_PARTITIONS_DEFAULT="3")
    produce(node, b"x" * 1000, b"y", partition=2)
    wait_for_the_copy(node.address, TOPIC, 3)
    (topic,) = call(node, "/api/topics")[1]["topics"]
    assert (topic["name"], len(topic["partitions"]), topic["records"]) == (TOPIC, 3, 2)
    assert topic["partitions"][2]["high_watermark"] == 2
    assert topic["partitions"][2]["size_bytes"] > 1000
    assert topic["partitions"][2]["journal_bytes"] > 1000
    cluster = call(node, "/api/cluster")[1]
    assert (cluster["topics"], cluster["partitions"], cluster["address"]) == (1, 3, node.address)


def test_health_of_a_disk_that_failed_is_bad_and_says_why(new_node: NewNode) -> None:
    """Reads go on, and so does the listener; a restart is what it takes."""
    node = start(new_node, FAIRLOG_FAILPOINT="journal.flush.before:fail:3")
    assert call(node, "/health") == (200, {"status": "serving", "reason": None})
    with RawClient(node.address) as client:
        for _ in range(5):
            client.produce(TOPIC, 0, batch([b"x"]))
    status, document = call(node, "/health")
    assert (status, document["status"]) == (503, "refusing writes")
    assert "journal" in document["reason"]
    assert metrics(node)["fairlog_writes_refused", ()] == 1
    assert metrics(node)["fairlog_journals_failed", ("local",)] == 1


async def test_health_follows_a_node_from_its_recovery_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener is up before there is anything to serve, and until the last file is closed."""
    recover, recovered, close, closing = LocalTopics.recover, trio.Event(), Partitions.close, trio.Event()

    async def recover_when_told(topics: LocalTopics) -> None:
        await recovered.wait()
        await recover(topics)

    async def close_when_told(leaders: Partitions) -> None:
        with trio.CancelScope(shield=True):
            await closing.wait()
            await close(leaders)

    monkeypatch.setattr(LocalTopics, "recover", recover_when_told)
    monkeypatch.setattr(Partitions, "close", close_when_told)
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/"
    flags = {"data_dir": tmp_path, "listen": "127.0.0.1:0", "admin.listen": urlsplit(url).netloc}
    settings = load(flags=flags, environment={})

    async def until_health_is(status: int, word: str) -> None:
        while True:
            try:
                answer = await trio.to_thread.run_sync(ask, url, "/health")
            except ConnectionError:
                await trio.sleep(0.01)
                continue
            assert answer[0] == (200 if answer[1]["status"] == "serving" else 503)
            if answer[1]["status"] == word:
                assert answer[0] == status
                return
            await trio.sleep(0.01)

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fairlog_node.serve, settings)
            await until_health_is(503, "recovering")
            assert (await trio.to_thread.run_sync(ask, url, "/api/transactions"))[0] == 503
            assert (await trio.to_thread.run_sync(ask, url, "/metrics"))[0] == 200
            recovered.set()
            await until_health_is(200, "serving")
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await until_health_is(503, "stopping")
                closing.set()


def test_admin_listener_whose_port_is_taken_is_one_sentence(new_node: NewNode) -> None:
    """It names the port and what to do; nothing was touched."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refusal(new_node(FAIRLOG_ADMIN_LISTEN=f"127.0.0.1:{port}"))
    assert sentence == (
        f"cannot listen on 127.0.0.1:{port} for the admin listener: Address already in use; "
        "choose another HOST:PORT, or off, with admin.listen (--admin)"
    )


def test_admin_token_is_made_in_the_data_directory(new_node: NewNode) -> None:
    """And lets in whoever can read it there."""
    node = new_node(FAIRLOG_ADMIN_LISTEN="127.0.0.1:0")
    node.start()
    file = node.data_dir / "admin-token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    produce(node, b"plain")
    with RawClient(node.address) as client:
        assert Producer(client, "t").begin() == {raw.NONE}
        (shown,) = until(lambda: live(node))
    meant = {"transactional_id": "t", "transaction": shown["transaction"]}
    assert call(node, "/api/transactions/abort", meant, token=file.read_text().strip())[0] == 200
    assert file.read_text().strip() not in node.log_tail(1000)
