"""franz-go, a client in Go: transactions over restarts, consume-transform-produce, groups; all with kills."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, Mode
from tests.engines import franz, topics
from tests.engines.full import ONE_MODE_ON_CI
from tests.engines.programs import Conversation, Workers
from tests.processes import kill_some


@pytest.fixture(autouse=True)
def _franz() -> None:
    franz.require()


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[Callable[[str, str], Conversation]]:
    """A factory of producers: `producer(address, transactional_id)`."""
    made: list[Conversation] = []

    def make(address: str, transactional_id: str) -> Conversation:
        made.append(Conversation(franz.command("produce", address, transactional_id), tmp_path / "producer.log"))
        return made[-1]

    yield make
    for each in made:
        each.kill()


@BOTH_MODES
def test_franz_transactions_commit_and_abort(
    fresh_node: Callable[..., NodeProcess], mode: Mode, producer: Callable[[str, str], Conversation]
) -> None:
    """What was committed is there, what was aborted is not; a second producer fences the first."""
    node = fresh_node()
    topic = topics.make(node.address, "topic", 2)
    first = producer(node.address, "id")
    for number in range(6):
        first.ask("begin")
        for partition in range(2):
            first.ask("send", topic, partition, f"{'kept' if number % 2 else 'dropped'}-{number}")
        first.ask("flush")
        first.ask("commit" if number % 2 else "abort")
    first.ask("begin")
    first.ask("send", topic, 0, "of the fenced")
    first.ask("flush")
    second = producer(node.address, "id")
    second.ask("begin")
    second.ask("send", topic, 0, "of the second")
    second.ask("flush")
    second.ask("commit")
    first.refused("commit")
    kept = [f"kept-{number}" for number in (1, 3, 5)]
    assert topics.committed_values(node.address, topic, 2, mode) == [[*kept, "of the second"], kept]


@ONE_MODE_ON_CI
def test_franz_transform_under_kills_gives_each_result_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path
) -> None:
    """Two GroupTransactSessions of one group, of which one is SIGKILLed now and then, and the node too."""
    node = fresh_node()
    partitions, total = 4, 20_000
    for name in ("input", "output"):
        topics.make(node.address, name, partitions)
    topics.fill(node.address, "input", partitions, ((str(n), f"value-{n}") for n in range(total)))
    ids = ["worker-0", "worker-1"]
    commands = [franz.command("transform", node.address, "input", "output", "group", each) for each in ids]
    rng = random.Random(5)

    def through() -> int:
        return sum(topics.group_offsets(node.address, "group").values())

    with Workers(commands, tmp_path / "workers.log") as workers:
        for number, share in enumerate((0.05, 0.2, 0.4, 0.6, 0.8)):
            workers.run_until(lambda share=share: through() >= share * total, f"{share:.0%} of the input")
            if number % 2:
                kill_some(node, number)
            else:
                workers.kill(rng.randrange(2))
        workers.run_until(lambda: through() == total, "the whole input")
    if mode is Mode.MARKERS:
        for each in ids:
            topics.take_over(node.address, each)
    seen = topics.committed(node.address, "output", partitions, mode)
    found = [((each.key or b"").decode(), (each.value or b"").decode()) for each in seen]
    assert not topics.differs(found, [(str(n), f"VALUE-{n}") for n in range(total)])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_franz_group_under_kills_reads_every_record(
    fresh_node: Callable[..., NodeProcess], tmp_path: Path, protocol: str
) -> None:
    """Two members of a group of either protocol, one of which is killed, and the node: all is read, and committed."""
    node = fresh_node()
    partitions, total = 4, 8000
    topics.make(node.address, "input", partitions)
    commands = [franz.command("count", node.address, "input", "group", protocol)] * 2
    log = tmp_path / "members.log"

    def through() -> int:
        return sum(topics.group_offsets(node.address, "group").values())

    with Workers(commands, log) as members:
        members.run_until(lambda: topics.group_type(node.address, "group") == protocol, f"a {protocol} group")
        for share in range(1, 5):
            numbers = range((share - 1) * total // 4, share * total // 4)
            topics.fill(node.address, "input", partitions, ((str(n), str(n)) for n in numbers))
            if share == 2:
                members.kill(0)
            if share == 3:
                kill_some(node, share)
            members.run_until(lambda share=share: through() == share * total // 4, f"{share} quarters")
    lines = log.read_text("utf-8").splitlines()
    # A line that was being written when its member was killed is half a line; its records were read again.
    read = [json.loads(line) for line in lines if line.startswith('{"') and line.endswith("}")]
    assert {each["value"] for each in read} == {str(n) for n in range(total)}
    assert {(each["partition"], each["offset"]) for each in read} == {
        (partition, offset) for partition in range(partitions) for offset in range(total // partitions)
    }
