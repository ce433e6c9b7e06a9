"""examples/two_phase_commit with a real PostgreSQL: whatever is killed after whichever step, rows and records agree."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from scripts import postgresql
from scripts.node_process import NodeProcess
from tests.cli.in_process import fairlog_command
from tests.clients.conftest import wait_until_led
from tests.clients.modes import MODE_CONFIG, Mode
from tests.clients.raw_client import RawClient, leader_id_of
from tests.clients.reading import Reader
from tests.engines import topics
from tests.examples import orders_program
from tests.examples.orders_program import EXAMPLE, PreparedProducer, Refused, open_orders, transactional_id
from tests.examples.postgresql_server import PostgresqlServer

pytestmark = pytest.mark.slow

ALLOWED = {"FAIRLOG_TRANSACTIONS_TWO_PHASE_COMMIT_ENABLE": "true", "FAIRLOG_LOG_FORMAT": "console"}
TOPICS = {mode.value: mode for mode in Mode}
WAIT_S = 120.0
TRANSACTION = 1
"""The kind of FindCoordinator's key."""

NOTHING, ABORTED, COMMITTED = "nothing was left open", "aborted", "committed"

LIVES = (
    (("take_over",), NOTHING),
    (("write_record",), ABORTED),
    (("write_row_and_note",), ABORTED),
    (("commit_row",), COMMITTED),
    (("commit_record",), NOTHING),
    (("write_record", "take_over"), ABORTED),
    (("write_record", "settle"), NOTHING),
    (("commit_row", "take_over"), COMMITTED),
    (("commit_row", "take_over", "settle"), NOTHING),
)
"""The step after which each instance in turn is interrupted, and what the one after them finds."""

DECIDED = ("commit_row", "commit_record")
"""With these the order is taken."""


@pytest.fixture
def database() -> Iterator[PostgresqlServer]:
    """PostgreSQL, with a schema for each topic."""
    programs = postgresql.find()
    if programs is None:
        pytest.skip(postgresql.MISSING)
    server = PostgresqlServer(programs)
    try:
        server.start()
        with psycopg.connect(server.url) as connection:
            for topic in TOPICS:
                connection.execute(f"CREATE SCHEMA {topic}")
        yield server
    finally:
        server.remove()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Starts the node, with a topic of each mode."""
    made: list[NodeProcess] = []

    def start(*, processes: int = 1, **environment: str) -> NodeProcess:
        node = NodeProcess(tmp_path / "node", ALLOWED | environment, processes=processes)
        made.append(node)
        node.start()
        for topic, mode in TOPICS.items():
            topics.make(node.address, topic, **{MODE_CONFIG: mode.value})
            wait_until_led(node.address, topic, 1)
        return node

    yield start
    for node in made:
        node.stop()


def interrupt_program(step: str, node: NodeProcess, database: PostgresqlServer) -> None:
    """The program itself is killed."""
    done = subprocess.run(
        [sys.executable, orders_program.__file__, step, node.address, database.url, *TOPICS],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout.decode()


def interrupt_node(step: str, node: NodeProcess, database: PostgresqlServer) -> None:
    """The node is killed and starts again; the program loses its connection, and ends."""
    instances = run_all_up_to(step, node, database)
    node.kill()
    node.start()
    close(instances)


def interrupt_database(step: str, node: NodeProcess, database: PostgresqlServer) -> None:
    """PostgreSQL crashes and starts again; the program loses its connection, and ends."""
    instances = run_all_up_to(step, node, database)
    database.crash()
    database.start()
    close(instances)


def run_all_up_to(step: str, node: NodeProcess, database: PostgresqlServer) -> list[orders_program.Orders]:
    instances = [open_orders(node.address, database.url, topic) for topic in TOPICS]
    for each in instances:
        orders_program.run_up_to(step, each)
    return instances


def close(instances: list[orders_program.Orders]) -> None:
    for each in instances:
        each.__exit__(None, None, None)


def rows(database: PostgresqlServer, topic: str) -> list[tuple[int, str]]:
    with psycopg.connect(database.url) as connection:
        return connection.execute(f"SELECT number, item FROM {topic}.orders ORDER BY number").fetchall()


def records(node: NodeProcess, topic: str) -> list[tuple[int, str]]:
    """What a consumer of committed records sees, in its order."""
    with Reader(node.address, topic, 1, isolation="read_committed") as reader:
        found = [json.loads(each.value or b"") for each in reader.read_to_end(timeout_s=WAIT_S)]
    return [(each["number"], each["item"]) for each in found]


@pytest.mark.parametrize("interrupt", [interrupt_program, interrupt_node, interrupt_database])
def test_interruption_after_any_step_leaves_rows_and_records_the_same(
    interrupt: Callable[[str, NodeProcess, PostgresqlServer], None],
    start_node: Callable[..., NodeProcess],
    database: PostgresqlServer,
) -> None:
    """The next instance ends what it finds as the database says; each order is there once, or not at all."""
    node = start_node()
    taken = 0
    for steps, outcome in LIVES:
        for step in steps:
            interrupt(step, node, database)
        for topic in TOPICS:
            with open_orders(node.address, database.url, topic) as instance:
                assert instance.recover().startswith(outcome), (steps, topic)
                instance.take("coffee")
        taken += 1 + any(step in DECIDED for step in steps)
    for topic in TOPICS:
        written = rows(database, topic)
        assert [number for number, _ in written] == list(range(1, taken + 1))
        assert records(node, topic) == written, topic


def test_program_run_twice_goes_on(start_node: Callable[..., NodeProcess], database: PostgresqlServer) -> None:
    """The command of the example's page, without anything in its way."""
    node = start_node()
    program = (sys.executable, EXAMPLE / "orders.py")
    for first in (1, 3):
        done = subprocess.run(
            [*program, "2", "--bootstrap", node.address, "--database", database.url, "--topic", "journal"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [NOTHING, f"took order {first}", f"took order {first + 1}"]
    assert records(node, "journal") == [(number, "tea") for number in range(1, 5)]


def test_next_instance_waits_for_one_that_lives(
    start_node: Callable[..., NodeProcess], database: PostgresqlServer
) -> None:
    """Else it would abort the record of an order, whose row the first one commits after that."""
    node = start_node()
    with open_orders(node.address, database.url, "journal") as first:
        first.recover()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            open_orders(node.address, database.url, "journal", lock_timeout="1ms")
        assert first.take("tea") == 1
    assert records(node, "journal") == [(1, "tea")]


def test_prepared_transactions_are_listed_until_they_are_ended(
    start_node: Callable[..., NodeProcess], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operator sees what the note names, also after a restart, and can end it."""
    node = start_node()
    command = fairlog_command(monkeypatch, capsys)

    def fairlog(*arguments: str) -> str:
        code, out, err = command(*arguments, "--bootstrap", node.address)
        assert code == 0, err
        return out

    producer = PreparedProducer(node.address, transactional_id("journal"))
    assert producer.take_over() is None
    producer.send("journal", b"{}")
    producer.close()
    for _ in range(2):
        (found,) = json.loads(fairlog("txn", "list", "--prepared", "--json"))
        assert found.pop("started_ms") > 0
        assert found == {
            "transactional_id": transactional_id("journal"),
            "producer_id": producer.epoch.producer_id,
            "producer_epoch": producer.epoch.epoch,
            "partitions": [{"topic": "journal", "partition": 0}],
        }
        node.kill()
        node.start()
    fairlog("txn", "abort", transactional_id("journal"))
    assert json.loads(fairlog("txn", "list", "--prepared", "--json")) == []
    assert records(node, "journal") == []


@pytest.mark.parametrize("topic", TOPICS)
def test_prepared_transaction_outlives_kills_of_its_coordinator_and_of_its_leader(
    start_node: Callable[..., NodeProcess], topic: str
) -> None:
    """They are two brokers. The next instance ends what the last one has left open, once, as it was asked to."""
    node = start_node(processes=3)
    leader = leader_id_of(node.address, topic) - 1
    with RawClient(node.addresses[leader]) as client:
        ids = (f"orders {number}" for number in itertools.count())
        name, coordinator = next(
            (each, at) for each in ids if (at := client.find_coordinator(TRANSACTION, each).node_id - 1) != leader
        )
    for value, commit in ((b'"kept"', True), (b'"given up"', False)):
        first = instance_at(node.addresses[coordinator], name)
        assert first.take_over() is None
        write(node.addresses[leader], name, first, topic, value)
        left = first.epoch
        first.close()
        node.kill_process(coordinator)
        second = instance_at(node.addresses[coordinator], name)
        assert second.take_over() == left
        node.kill_process(leader)
        second.end(commit=commit)
        second.close()
    with Reader(node.address, topic, 1, isolation="read_committed") as reader:
        assert [each.value for each in reader.read_to_end(timeout_s=WAIT_S)] == [b'"kept"']


def instance_at(address: str, name: str) -> PreparedProducer:
    """An instance that speaks to the broker with this address, as soon as it serves."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with RawClient(address) as client:
                client.api_versions()
            return PreparedProducer(address, name)
        except ConnectionError:
            assert time.monotonic() < deadline, f"{address} does not serve"
            time.sleep(0.02)


def write(address: str, name: str, instance: PreparedProducer, topic: str, value: bytes) -> None:
    """Write a record of that instance to the leader, as a client with a connection to each broker does."""
    writing = instance_at(address, name)
    writing._epoch = instance.epoch
    writing.send(topic, value)
    writing.close()


def test_node_that_does_not_allow_two_phases_refuses_the_producer(start_node: Callable[..., NodeProcess]) -> None:
    """The program ends at once, with Kafka's word for it."""
    node = start_node(FAIRLOG_TRANSACTIONS_TWO_PHASE_COMMIT_ENABLE="false")
    producer = PreparedProducer(node.address, "orders")
    with pytest.raises(Refused, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        producer.take_over()
    producer.close()
