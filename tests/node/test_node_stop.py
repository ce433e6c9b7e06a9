"""SIGTERM: what is in flight is finished, within the grace, and nothing that was answered is lost."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from fairlog import node as fairlog_node
from fairlog.config import Settings
from fairlog.config_sources import load
from fairlog.config_values import Address
from scripts.node_process import NodeProcess
from shard.partitions import Partitions
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch, produce_request
from tests.node.nodes import TOPIC, WAIT_S, Producer, assert_holds_answered, produce, read

NewNode = Callable[..., NodeProcess]
LONG_POLL_MS = 120_000
LONG_GRACE = {"FAIRLOG_STOP_GRACE_MS": "90000"}
PATIENCE_S = 30.0
"""What waits for nothing has ended by then, on the slowest machine; with the long grace, what waits for it has not."""


@contextlib.contextmanager
def long_poll(node: NodeProcess):
    """A connection with a Fetch in flight that waits for what will not come."""
    with RawClient(node.address) as client:
        client.send(raw.fetch_request(TOPIC, 0, 1, wait_ms=LONG_POLL_MS))
        let_arrive(node)
        yield client


def let_arrive(node: NodeProcess) -> None:
    """Return when what was sent before is under way: others' requests, sent behind it, were answered many times."""
    with RawClient(node.address) as other:
        for _ in range(20):
            other.api_versions()


@pytest.mark.slow
def test_stop_finishes_what_is_in_flight_and_exits_with_zero(new_node: NewNode) -> None:
    """A request that was taken is answered, a long poll at once; then the connection is closed."""
    node = new_node(**LONG_GRACE)
    node.start()
    produce(node, b"v")
    with long_poll(node) as client:
        began = time.monotonic()
        node.terminate()
        row = client.receive_fetch()
        assert (row.error_code, row.high_watermark) == (raw.NONE, 1)
        assert client.is_closed_by_peer()
        assert node.wait_end(PATIENCE_S) == 0
        assert time.monotonic() - began < PATIENCE_S
    assert (node.data_dir / "last-run").read_text().split()[1] == "closed"


@pytest.mark.slow
def test_stop_does_not_outlast_the_grace(new_node: NewNode) -> None:
    """A request is cut off when the last quarter of stop_grace_ms begins, and the exit is a good one all the same."""
    node = new_node(FAIRLOG_STOP_GRACE_MS="8000")
    node.start()
    produce(node, *[bytes(1_000_000)] * 32)
    with RawClient(node.address) as client:
        # One answer of 32 MB that nobody reads: more than the sockets' buffers hold.
        client.send(raw.fetch_request(TOPIC, 0, 0, bytes_max=1 << 26))
        let_arrive(node)
        began = time.monotonic()
        node.terminate()
        assert node.wait_end(PATIENCE_S) == 0, "it waits for a client that does not read"
        assert time.monotonic() - began >= 6, "the client had three quarters of the grace to read"
    # How late it was is for the node's own clock to say, since a busy machine may be slow to tell us of the end: after
    # the grace the node says that files are left open.
    assert "stopped without closing" not in node.log_tail()
    assert (node.data_dir / "last-run").read_text().split()[1] == "closed"


@pytest.mark.slow
def test_stop_under_load_loses_nothing_that_was_answered(new_node: NewNode) -> None:
    """Pipelined batches are answered in order up to some point; a restart has these, and at most the taken rest."""
    node = new_node()
    node.start()
    produce(node, b"first")
    values = [b"%d" % number for number in range(400)]
    answered = [b"first"]
    with RawClient(node.address) as client:
        for index, value in enumerate(values):
            try:
                client.send(produce_request(TOPIC, 0, batch([value])))
            except ConnectionError:
                break
            if index == 200:
                node.terminate()
        with contextlib.suppress(ConnectionError):
            for value in values:
                assert client.receive_produce()[0] == raw.NONE
                answered.append(value)
    assert node.wait_end(WAIT_S) == 0
    assert len(answered) < len(values), "the node has answered everything before it heard of the end"
    node.start()
    assert_holds_answered(read(node), answered, perhaps=values[len(answered) - 1 :])


@pytest.mark.slow
def test_stop_with_an_open_transaction_does_not_wait_for_it(new_node: NewNode) -> None:
    """Invariant 8 at the end of a run: nobody waits for a transaction that hangs; the next run aborts it."""
    node = new_node(**LONG_GRACE)
    node.start()
    with RawClient(node.address) as client:
        produce(node, b"plain")
        producer = Producer(client)
        producer.begin()
        producer.send(b"open")
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < PATIENCE_S
    node.start()
    assert read(node) == [b"plain"]


def small_node(tmp_path: Path, **environment: str) -> Settings:
    """Settings of a node that is to be served in this process; its directory is there, and empty."""
    settings = load(
        flags={
            "data_dir": tmp_path / "data",
            "listen": "127.0.0.1:0",
            "admin.listen": "off",
            "journal.group_journals": 1,
        },
        environment=environment,
    )
    settings.data_dir.mkdir()
    return settings


async def test_stop_bounds_the_closing_by_the_same_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals that do not get closed are left as a kill leaves them, and the run is not noted as a clean one."""
    settings = small_node(tmp_path, FAIRLOG_STOP_GRACE_MS="200")

    async def never_done(_leaders: Partitions) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Partitions, "close", never_done)
    with trio.fail_after(WAIT_S):
        with trio.CancelScope() as scope:
            await fairlog_node.serve(settings, task_status=CancelAtStarted(scope))  # type: ignore[arg-type]
        assert scope.cancelled_caught
    assert (settings.data_dir / "last-run").read_text().split()[1] == "open"


class CancelAtStarted:
    """A task status that cancels the node in the very moment in which it reports to be ready."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def started(self, value: Address) -> None:
        self._scope.cancel()


async def test_stop_in_the_moment_of_readiness_is_heard(tmp_path: Path) -> None:
    """No moment of a start is deaf to the cancellation, and each leaves a directory that starts again."""
    settings = small_node(tmp_path)
    with trio.fail_after(WAIT_S):
        with trio.CancelScope() as scope:
            await fairlog_node.serve(settings, task_status=CancelAtStarted(scope))  # type: ignore[arg-type]
        assert scope.cancelled_caught


@pytest.mark.slow
async def test_stop_at_any_step_of_a_start_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at each of its waits: a start that is given up leaves a directory that starts again."""
    settings = small_node(tmp_path)
    run_sync = trio.to_thread.run_sync
    hops_left = 0

    async def counted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal hops_left
        hops_left -= 1
        if hops_left == 0:
            scope.cancel()
        return await run_sync(*arguments, **keywords)

    monkeypatch.setattr(trio.to_thread, "run_sync", counted)
    for hops in range(1, 100):
        hops_left = hops
        with trio.fail_after(WAIT_S), trio.CancelScope() as scope:
            await fairlog_node.serve(settings, task_status=CancelAtStarted(scope))  # type: ignore[arg-type]
        assert scope.cancelled_caught
        if hops_left > 0:
            break
    assert hops > 5
