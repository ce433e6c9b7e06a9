"""The Java producer and consumer, newest of the 4 and of the 3 series, with the node killed in between.

What they did is judged by what the topics hold for other readers, and Java's own consumer has to see the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, Mode
from tests.engines import topics
from tests.engines.full import FULL
from tests.engines.jvm import CLIENTS_3, CLIENTS_4, Engine
from tests.engines.programs import Conversation, Workers, run_json
from tests.pairs import EVERY_PAIR
from tests.processes import ALSO_ON_THREE, kill_some

PRODUCER = {
    "linger.ms": "5",
    "delivery.timeout.ms": "60000",
    "request.timeout.ms": "10000",
    "reconnect.backoff.max.ms": "200",
}

MakeProducer = Callable[..., Conversation]


@pytest.fixture(params=[CLIENTS_4, CLIENTS_3], ids=str)
def clients(request: pytest.FixtureRequest) -> Engine:
    """The jars of each series."""
    request.param.require()
    return request.param


@pytest.fixture
def producer(clients: Engine, tmp_path: Path) -> Iterator[MakeProducer]:
    """A factory of producers: `producer(address, "transactional.id"="…")`."""
    made: list[Conversation] = []

    def make(address: str, transactional_id: str | None = None, **settings: str) -> Conversation:
        chosen = PRODUCER | {"bootstrap.servers": address} | settings
        if transactional_id is not None:
            chosen["transactional.id"] = transactional_id
        command = clients.command("ProducerDriver", *(f"{name}={value}" for name, value in chosen.items()))
        made.append(Conversation(command, tmp_path / "producer.log"))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def java_reads(clients: Engine, address: str, topic: str, partitions: int, isolation: str) -> list[tuple[int, str]]:
    """What Java's consumer sees: partitions and values, in the order of offsets."""
    lines = run_json(clients.command("ConsumerDriver", address, topic, str(partitions), isolation))
    lines.sort(key=lambda line: (line["partition"], line["offset"]))
    return [(line["partition"], line["value"]) for line in lines]


def test_idempotent_producer_over_kills_of_the_node_writes_each_record_once_in_order(
    fresh_node: Callable[..., NodeProcess], clients: Engine, producer: MakeProducer
) -> None:
    """3,000 records under way while the node is killed three times: none is lost, twice, or out of place."""
    node = fresh_node()
    topic = topics.make(node.address, "plain", 2)
    writer = producer(node.address)
    count, killed_at = 3000, (500, 1300, 2100)
    for number in range(count):
        writer.tell("send", topic, number % 2, number, number)
        if number in killed_at:
            kill_some(node, killed_at.index(number))
    for _ in range(count):
        assert "error" not in writer.answer()
    offsets = writer.ask("flush")["offsets"]
    truth = [(partition, str(number)) for partition in range(2) for number in range(partition, count, 2)]
    seen = topics.committed(node.address, topic, 2, Mode.JOURNAL)
    found = sorted((record.partition, record.offset, (record.value or b"").decode()) for record in seen)
    assert [(partition, value) for partition, _offset, value in found] == truth
    assert offsets == [number // 2 for number in range(count)]
    assert java_reads(clients, node.address, topic, 2, "read_uncommitted") == truth


@EVERY_PAIR
@ALSO_ON_THREE
@BOTH_MODES
def test_transactions_commit_abort_and_fence(
    fresh_node: Callable[..., NodeProcess], mode: Mode, clients: Engine, producer: MakeProducer
) -> None:
    """What was committed is there with its offsets; what was aborted, and what a fenced producer wrote, is not."""
    node = fresh_node()
    topic = topics.make(node.address, "transactional", 2)
    first = producer(node.address, "id")
    first.ask("init")
    for number in range(6):
        first.ask("begin")
        for partition in range(2):
            first.ask("send", topic, partition, "k", f"{'kept' if number % 2 else 'dropped'}-{number}")
        first.ask("offsets", "group", topic, 0, 100 + number)
        first.ask("commit" if number % 2 else "abort")
    assert topics.group_offsets(node.address, "group") == {(topic, 0): 105}

    first.ask("begin")
    first.ask("send", topic, 0, "k", "of the fenced")
    first.ask("flush")
    second = producer(node.address, "id")
    second.ask("init")
    answer = first.refused("commit")
    assert answer["fenced"], answer
    second.ask("begin")
    second.ask("send", topic, 1, "k", "of the second")
    second.ask("commit")

    kept = [f"kept-{number}" for number in (1, 3, 5)]
    truth = [(0, value) for value in kept] + [(1, value) for value in [*kept, "of the second"]]
    seen = topics.committed(node.address, topic, 2, mode)
    assert sorted((record.partition, (record.value or b"").decode()) for record in seen) == truth
    assert java_reads(clients, node.address, topic, 2, "read_committed") == truth
    if mode is Mode.JOURNAL:
        assert java_reads(clients, node.address, topic, 2, "read_uncommitted") == truth


@BOTH_MODES
@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=FULL)])
def test_transactions_over_restarts_are_whole_or_absent(
    fresh_node: Callable[..., NodeProcess], mode: Mode, producer: MakeProducer, how: str
) -> None:
    """Restarts at every place of a transaction; the producer aborts when told to, and goes on: no new instance."""
    node = fresh_node()
    topic = topics.make(node.address, "restarts", 2)
    writer = producer(node.address, "id")
    writer.ask("init")
    truth: list[str] = []
    for number, place in enumerate(("before", "sending", "sent", "half", "none")):

        def restart(here: str, place: str = place, number: int = number) -> None:
            if here == place:
                kill_some(node, number) if how == "kill" else node.restart()

        writer.ask("begin")
        restart("before")
        answers: list[dict[str, object]] = []
        for partition, here in enumerate(("sending", "half")):
            writer.tell("send", topic, partition, "k", place)
            answers.append(writer.answer())
            restart(here)
        writer.tell("flush")
        answers.append(writer.answer())
        restart("sent")
        writer.tell("commit")
        answers.append(writer.answer())
        if "error" not in answers[-1]:
            assert not any("error" in answer for answer in answers), answers
            truth.append(place)
            continue
        assert not answers[-1]["fenced"], answers
        writer.ask("abort")
    assert "none" in truth
    assert topics.committed_values(node.address, topic, 2, mode) == [truth, truth]


@pytest.mark.parametrize(
    ("clients", "mode", "protocol"),
    [
        (CLIENTS_4, Mode.JOURNAL, "consumer"),
        (CLIENTS_3, Mode.MARKERS, "classic"),
        pytest.param(CLIENTS_4, Mode.MARKERS, "consumer", marks=FULL),
        pytest.param(CLIENTS_4, Mode.JOURNAL, "classic", marks=FULL),
        pytest.param(CLIENTS_3, Mode.JOURNAL, "classic", marks=FULL),
    ],
    ids=lambda value: value.value if isinstance(value, Mode) else str(value),
    indirect=["clients"],
)
def test_consume_transform_produce_under_kills_gives_each_result_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, protocol: str, clients: Engine, tmp_path: Path
) -> None:
    """Two workers of one group, of either protocol, of which one is SIGKILLed now and then, and the node too."""
    node = fresh_node()
    partitions, count = 4, 6000
    for name in ("input", "output"):
        topics.make(node.address, name, partitions)
    topics.fill(node.address, "input", partitions, ((str(n), f"value-{n}") for n in range(count)))
    commands = [
        clients.command("Transform", node.address, "input", "output", "group", f"worker-{slot}", protocol)
        for slot in range(2)
    ]
    rng = random.Random(7)

    def through() -> int:
        return sum(topics.group_offsets(node.address, "group").values())

    with Workers(commands, tmp_path / "workers.log") as workers:
        workers.run_until(lambda: topics.group_type(node.address, "group") == protocol, f"a {protocol} group")
        for number, share in enumerate((0.1, 0.3, 0.5, 0.7)):
            workers.run_until(lambda share=share: through() >= share * count, f"{share:.0%} of the input")
            workers.kill(rng.randrange(2))
            if number % 2:
                kill_some(node, number)
        workers.run_until(lambda: through() == count, "the whole input")
    end_what_is_open(node, mode, ["worker-0", "worker-1"])
    seen = topics.committed(node.address, "output", partitions, mode)
    found = [((each.key or b"").decode(), (each.value or b"").decode()) for each in seen]
    assert not topics.differs(found, [(str(n), f"VALUE-{n}") for n in range(count)])


def end_what_is_open(node: NodeProcess, mode: Mode, transactional_ids: list[str]) -> None:
    """In marker mode, what the last kill left open hides all that was committed after it until the id is taken over."""
    if mode is Mode.MARKERS:
        for each in transactional_ids:
            topics.take_over(node.address, each)
