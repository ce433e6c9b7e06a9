"""A node that is killed at a failpoint of a sink commit: after the restart the replay ends with the batch, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_fairlog.native import Native, NativeError
from scripts.node_process import NodeProcess
from tests.clients.raw_client import RawClient
from tests.node.nodes import WAIT_S, Producer, produce, read, read_when

pytestmark = pytest.mark.slow

NewNode = Callable[..., NodeProcess]
LANES = 3
"""Each writes to both partitions. The first one loses."""


def write_and_commit(node: NodeProcess, batch: int, run: str) -> bool:
    """A batch as Spark writes it: tasks join and write, the driver commits. False if it is committed already."""
    with Native.connect(node.address) as driver:
        winners: list[tuple[int, int, int]] = []
        of = {"sink": "s", "query": "q", "run": run, "batch": batch}
        for attempt in range(LANES):
            partition = max(0, attempt - 1)
            name = driver.join(**of, partition=partition, attempt=attempt)
            if name is None:
                return False
            with RawClient(node.address) as client:
                producer = Producer(client, name, partitions=2)
                assert producer.begin() == {0}
                assert producer.send(b"batch %d, lane %d" % (batch, attempt)) == {0}
            if attempt:
                winners.append((partition, attempt, 2))
        driver.commit(**of, winners=winners)
        return True


def write_batches(node: NodeProcess, run: str, done: list[int]) -> None:
    """Two of them, the second when the first is visible; none that is done, as Spark notes what was committed."""
    for number in range(len(done), 2):
        write_and_commit(node, number, run)
        done.append(number)
        read_when(node, 1 + 2 * (number + 1))


def batch_of(number: int) -> list[bytes]:
    return [b"batch %d, lane %d" % (number, attempt) for attempt in range(1, LANES)]


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        ("group.sink_prepare_commit.appended", 2),
        ("coordinator.prepared", 1),
        ("coordinator.place.before", 2),
        ("coordinator.place.between_logs", 1),
        ("coordinator.place.between_logs", 7),
        ("coordinator.place.after", 1),
        ("copier.copy.before_commit", 3),
        ("group.sink_committed.appended", 1),
    ],
)
def test_kill_at_any_point_of_a_sink_commit_and_a_replay_give_the_batch_once(
    new_node: NewNode, point: str, nth: int
) -> None:
    """All its winners in both partitions, in their order, behind what was there; nothing of the loser."""
    node = new_node(FAIRLOG_TOPICS_PARTITIONS_DEFAULT="2", FAIRLOG_FAILPOINT=f"{point}:kill:{nth}")
    node.start()
    for partition in range(2):
        produce(node, b"before", partition=partition)
    done: list[int] = []
    with pytest.raises((ConnectionError, NativeError, OSError)):
        write_batches(node, "first", done)
    node.wait_end(WAIT_S)
    del node.environment["FAIRLOG_FAILPOINT"]
    node.start()
    write_batches(node, "second", done)
    assert write_and_commit(node, 1, "third") is False
    expected = [b"before", *batch_of(0), *batch_of(1)]
    for partition in range(2):
        assert read_when(node, len(expected), partition) == expected
        assert read(node, partition) == expected
