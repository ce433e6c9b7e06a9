"""Nodes, topics and clients for the tests that run over real sockets."""

from __future__ import annotations

import gc
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import NodeProcess
from tests.clients.drivers import CLIENTS, ClientKind
from tests.clients.modes import MODE_CONFIG, Mode
from tests.clients.raw_client import NONE, RawClient
from tests.clients.reading import WAIT_S
from tests.fresh_nodes import fresh_nodes

# Transactions are looked at ten times a second, so that a time-out test lasts about as long as the time-out that its
# client asks for. Nothing else in these tests depends on it. Many records are of 1970, and would be gone with the first
# look for what is too old: which, by default, a node that lives for five minutes has in the middle of some test.
ENVIRONMENT = {
    "FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "100",
    "FAIRLOG_RETENTION_CHECK_INTERVAL_MS": "86400000",
    "FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS": "500",
    "FAIRLOG_LOG_FORMAT": "console",
}

_logs: list[Path] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    """kafka-python leaves sockets of closed clients to the garbage collector: here, and not in somebody else's test."""
    outcome = yield
    if nextitem is None or nextitem.path != item.path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    return outcome


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[NodeProcess]:
    """One node for all tests that neither stop it nor configure it."""
    yield from _node(tmp_path_factory.mktemp("node") / "data", processes)


@pytest.fixture
def mode() -> Mode:
    """How transactions reach the topics of a test, unless it says otherwise (`modes.BOTH_MODES`)."""
    return Mode.JOURNAL


@pytest.fixture
def fresh_node(tmp_path: Path, mode: Mode, processes: int) -> Iterator[Callable[..., NodeProcess]]:
    """A factory of nodes of one's own, started: `fresh_node(FAIRLOG_…="…")`. All are stopped at the end.

    Their topics are of the test's mode.
    """
    environment = ENVIRONMENT | {"FAIRLOG_TOPICS_TRANSACTIONS": mode.value}
    with fresh_nodes(
        tmp_path, environment, on_made=lambda node: _logs.append(node.log_path), processes=processes
    ) as make:
        yield make


def _node(data_dir: Path, processes: int) -> Iterator[NodeProcess]:
    node = NodeProcess(data_dir, dict(ENVIRONMENT), processes=processes)
    _logs.append(node.log_path)
    node.start()
    yield node
    assert node.running, f"the node died during the tests:\n{node.log_tail()}"
    assert node.stop() == 0, node.log_tail()


_numbers = itertools.count()


@pytest.fixture
def new_topic(node: NodeProcess, mode: Mode) -> Callable[..., str]:
    """Makes a topic of the shared node, of the test's mode unless told another, and answers its name."""

    def make(partitions: int = 1, *, mode: Mode = mode, **config: str) -> str:
        return make_topic(node.address, partitions, **{MODE_CONFIG: mode.value} | config)

    return make


def make_topic(address: str, partitions: int = 1, **config: str) -> str:
    """Make a topic with a name of its own, with a stock admin client."""
    name = f"topic-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": address})
    topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
    admin.create_topics([topic])[name].result(timeout=15)
    wait_until_led(address, name, partitions)
    return name


def wait_until_led(address: str, topic: str, partitions: int) -> None:
    """Until each broker leads its partitions of a new topic.

    Stock clients ask again until they do, but a raw client says everything once.
    """
    if "," not in address:
        return
    deadline = time.monotonic() + WAIT_S
    with RawClient(address) as client:
        for partition in range(partitions):
            while (code := client.list_offset(topic, partition, -1)[0]) != NONE:
                assert time.monotonic() < deadline, f"partition {partition} of {topic} still has error {code}"
                time.sleep(0.002)


@pytest.fixture
def new_id() -> Callable[[], str]:
    """A transactional id that no other test uses."""
    return lambda: f"txn-{next(_numbers)}"


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.name)
def client(request: pytest.FixtureRequest) -> ClientKind:
    """Each of the three stock clients in turn."""
    return request.param


_marks: dict[Path, int] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _marks.clear()
    _marks.update({path: path.stat().st_size for path in _logs if path.exists()})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what the nodes wrote into their logs while it ran."""
    report = yield
    if report.failed:
        for path in _logs:
            if path.exists():
                with path.open("rb") as file:
                    file.seek(_marks.get(path, 0))
                    text = file.read()[-20_000:].decode(errors="replace")
                report.sections.append((f"log of {path.stem}", text))
    return report
