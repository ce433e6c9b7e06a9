"""franz-go over a restart in a transaction: a program that goes on after what it was told, and one that aborts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, Mode
from tests.engines import franz, topics
from tests.engines.full import FULL
from tests.engines.programs import Conversation
from tests.processes import kill_some

PARTITIONS = 3


@pytest.fixture(autouse=True)
def _franz() -> None:
    franz.require()


@BOTH_MODES
@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=FULL)])
def test_franz_producer_that_ignores_a_failed_promise_commits_no_half_of_a_transaction(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path, how: str
) -> None:
    """A restart between two records; the program goes on and commits. All that was answered is there, or nothing is.

    franz-go fails a record's promise, and nothing else, for an error in AddPartitionsToTxn.
    """
    node = fresh_node()
    topic = topics.make(node.address, "topic", PARTITIONS)
    expected: list[list[str]] = [[], [], []]
    for restarted_after in (0, 1, 2, None):
        with Conversation(franz.command("produce", node.address, "id"), tmp_path / "producer.log") as writer:
            written = transaction_with_restart(node, writer, topic, restarted_after, how)
        for partition, value in written or []:
            expected[partition].append(value)
    assert expected[0], "no transaction was committed, not even the one without a restart"
    assert topics.committed_values(node.address, topic, PARTITIONS, mode) == expected


@BOTH_MODES
def test_franz_producer_recovers_from_a_restart_by_aborting(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path
) -> None:
    """Whatever a restart did to its transaction, the same producer aborts it at the most, and commits the next one."""
    node = fresh_node()
    topic = topics.make(node.address, "topic", PARTITIONS)
    expected: list[list[str]] = [[], [], []]
    with Conversation(franz.command("produce", node.address, "id"), tmp_path / "producer.log") as writer:
        for restarted_after in (0, None, 1, None, 2, None):
            written = transaction_with_restart(node, writer, topic, restarted_after, "kill")
            assert written is not None or restarted_after is not None, "no restart, and no commit"
            for partition, value in written or []:
                expected[partition].append(value)
    assert topics.committed_values(node.address, topic, PARTITIONS, mode) == expected


def transaction_with_restart(
    node: NodeProcess, writer: Conversation, topic: str, restarted_after: int | None, how: str
) -> list[tuple[int, str]] | None:
    """Write to three partitions and commit, with a restart after one. What was answered; None if it was aborted."""
    writer.ask("begin")
    answered: list[tuple[int, str]] = []
    for partition in range(PARTITIONS):
        value = f"{restarted_after}-{partition}"
        writer.ask("send", topic, partition, value)
        [promised] = writer.ask("flush")["promised"]
        if not isinstance(promised, str):
            answered.append((partition, value))
        if partition == restarted_after:
            kill_some(node, partition) if how == "kill" else node.restart()
    writer.tell("commit")
    if "error" in writer.answer():
        writer.tell("abort")
        writer.answer()  # if it is refused as well, so will be the next transaction
        return None
    return answered
