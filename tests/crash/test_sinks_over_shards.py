"""SIGKILL of one of three processes at the named points that a sink's batch over their shards passes there."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from pyspark_fairlog.native import Committed
from pyspark_fairlog.persistence import persistently
from scripts.node_process import NodeProcess
from tests.clients.raw_client import GROUP, RawClient
from tests.crash import armed
from tests.native.test_sinks_over_processes import (
    PARTITIONS,
    PROCESSES,
    commit,
    commit_or_write_again,
    committed,
    sink_at,
    values,
    write,
)

pytestmark = pytest.mark.slow

COORDINATOR, PARTICIPANT = 0, 1
POINTS = (
    ("participant.offsets_written", PARTICIPANT),
    ("group.sink_prepare_commit.appended", COORDINATOR),
    ("participant.prepare.flushed", PARTICIPANT),
    ("group.sink_committed.appended", COORDINATOR),
    ("participant.applied", PARTICIPANT),
)
"""But SINK_ABORTED: `tests/coordinator/test_sink_commit_crashes.py` stops a coordinator there."""
TOPIC = "out"
WAIT_S = 60.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    environment = dict(armed.environment(tmp_path / "order"))
    node = NodeProcess(tmp_path / "data", environment, program=armed.PROGRAM, processes=PROCESSES)
    node.start()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
    yield node
    node.kill()


def group_at(node: NodeProcess, number: int) -> str:
    """A group that the process coordinates."""
    with RawClient(node.addresses[0]) as client:
        return next(
            name
            for name in map(str, itertools.count())
            if client.find_coordinator(GROUP, name).port == int(node.addresses[number].rpartition(":")[2])
        )


def process(node: NodeProcess, number: int) -> int:
    """Its id, once it is there."""
    deadline = time.monotonic() + WAIT_S
    while True:
        for pid in node.pids:
            if armed.number_of(pid) == number:
                return pid
        assert time.monotonic() < deadline, node.log_tail()
        time.sleep(0.01)


def test_kill_of_one_process_leaves_a_batch_over_shards_whole(node: NodeProcess, tmp_path: Path) -> None:
    """In all partitions once, with its offsets, whichever process dies; and it is answered alike when asked again."""
    sink, group = sink_at(COORDINATOR), group_at(node, PARTICIPANT)
    for batch, (point, number) in enumerate(POINTS):
        persistently(lambda native, batch=batch: write(native, node, TOPIC, sink, batch, 0), node.address)
        pid = process(node, number)
        armed.arm(pid, f"{point}:kill:1", tmp_path / "order")
        done = commit_or_write_again(node, TOPIC, sink, batch, group)
        deadline = time.monotonic() + WAIT_S
        while pid in node.pids:
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                pytest.fail(f"the batch does not pass {point} in process {number}")
            time.sleep(0.01)
        again = persistently(lambda native, batch=batch: commit(native, sink, batch, 1), node.address, work_s=WAIT_S)
        assert again == Committed(True, done.placements), point
    process(node, COORDINATOR)
    process(node, PARTICIPANT)
    last = len(POINTS) - 1
    assert values(node, TOPIC) == {f"{batch}-0": PARTITIONS for batch in range(len(POINTS))}
    assert committed(node, group, TOPIC) == {0: last, 5: 100 + last}
    assert node.stop() == 0, node.log_tail()
    ends = [line for line in node.log_path.read_text().splitlines() if "a process ended" in line]
    assert len(ends) == len(POINTS)
    assert all("SIGKILL" in end for end in ends)
