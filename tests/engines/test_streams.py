"""Kafka Streams with `exactly_once_v2` and a state store, killed and resumed, the node too."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import Mode
from tests.engines import topics
from tests.engines.full import ONE_MODE_ON_CI
from tests.engines.jvm import STREAMS
from tests.engines.programs import Workers
from tests.processes import ALSO_ON_THREE, kill_some

PARTITIONS = 2
COUNT = 8000
KEYS = 50
TRANSACTIONAL_OFFSETS = "fairlog.transactional.offsets"


@pytest.fixture(autouse=True)
def _streams() -> None:
    STREAMS.require()


def words(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"word-{int(rng.expovariate(0.1)) % KEYS}" for _ in range(COUNT)]


def fill(address: str, keys: list[str]) -> None:
    """Each key goes to a partition of its own, as any producer with a partitioner would have it."""
    for partition in range(PARTITIONS):
        topics.fill_partition(
            address, "input", partition, [(key, "") for key in keys if int(key[5:]) % PARTITIONS == partition]
        )


def application(node: NodeProcess, directory: Path, *settings: str) -> list[str]:
    return STREAMS.command("CountWords", node.address, "input", "output", "count-words", str(directory), *settings)


def through(address: str) -> int:
    """How many records of the input are committed as read."""
    return sum(
        offset for (topic, _), offset in topics.group_offsets(address, "count-words").items() if topic == "input"
    )


def counts(address: str, mode: Mode) -> dict[str, list[int]]:
    """By key, the counts in the order in which they were written."""
    found: dict[str, list[int]] = {}
    for record in topics.committed(address, "output", PARTITIONS, mode):
        found.setdefault((record.key or b"").decode(), []).append(int(record.value or b""))
    return found


@ALSO_ON_THREE
@ONE_MODE_ON_CI
def test_counts_under_kills_are_those_of_the_input(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path
) -> None:
    """Each key is counted 1, 2, 3, …, without a gap and nothing twice, though Streams and the node are killed."""
    node = fresh_node()
    for name in ("input", "output"):
        topics.make(node.address, name, PARTITIONS)
    keys = words(seed=11)
    fill(node.address, keys)
    with Workers([application(node, tmp_path / "state")], tmp_path / "streams.log") as workers:
        for share, what in ((0.1, "streams"), (0.3, "node"), (0.5, "streams"), (0.7, "both")):
            workers.run_until(lambda share=share: through(node.address) >= share * COUNT, f"{share:.0%} of the input")
            if what == "node":
                kill_some(node, 1)
            if what == "both":
                node.kill()
            if what != "node":
                workers.kill(0)
            if what == "both":
                node.start()
        workers.run_until(lambda: through(node.address) == COUNT, "the whole input")
        found = counts(node.address, mode)
    assert found == {key: list(range(1, count + 1)) for key, count in Counter(keys).items()}


def test_clean_stop_leaves_nothing_to_be_restored(fresh_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    """The offsets in delivery reports advance the changelogs' checkpoints, so a second start finds the store whole."""
    node = fresh_node(FAIRLOG_TOPICS_TRANSACTIONS=Mode.MARKERS.value)
    assert restored_after_clean_stop(node, Mode.MARKERS, tmp_path) == 0


def test_clean_stop_with_lowest_offsets_leaves_nothing_to_be_restored(
    fresh_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    """In journal mode the changelogs' delivery reports have offsets if their topics are told to answer the lowest."""
    lowest = f"topic.{TRANSACTIONAL_OFFSETS}=lowest"
    assert restored_after_clean_stop(fresh_node(), Mode.JOURNAL, tmp_path, lowest) == 0


def restored_after_clean_stop(node: NodeProcess, mode: Mode, directory: Path, *settings: str) -> int:
    """The records that are restored when Streams starts after a clean stop; the counts have to be right."""
    for name in ("input", "output"):
        topics.make(node.address, name, PARTITIONS)
    keys = words(seed=12)
    command, log = application(node, directory / "state", *settings), directory / "streams.log"
    for round_number in range(2):
        fill(node.address, keys)
        already = restored(log)
        with Workers([command], log) as workers:
            target = (round_number + 1) * COUNT
            workers.run_until(lambda target=target: through(node.address) == target, "the whole input")
            workers.stop()
    truth = {key: list(range(1, 2 * count + 1)) for key, count in Counter(keys).items()}
    assert counts(node.address, mode) == truth
    return restored(log) - already


def restored(log: Path) -> int:
    """All records that the application says it has restored."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return sum(json.loads(line)["restored"] for line in lines if line.startswith('{"restored"'))
