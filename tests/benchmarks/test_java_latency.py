"""The Java client of `txn-latency`: what it is told and what it answers, whom it measures, and what version 2 saves."""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from benchmarks import java_latency, txn_latency
from benchmarks.client import ClientFailed, ClientProcess
from benchmarks.java_latency import SLICES, VERSIONS, Load, Ran, in_turns, measure, ran
from benchmarks.scenario import Bench, NotMeasured
from node_process import NodeProcess
from peers import kafka_artifacts, topics
from peers.interface import Peer
from peers.java_programs import JavaProgram
from prometheus_client.parser import text_string_to_metric_families

from tests.engines.jvm import CLIENTS_4

LOAD = Load("topic", 10, 2, 5, warm_up_s=0.1, seconds=0.7, paced_s=1.0, pause_s=0.008)
TRANSACTIONS = 7


def peer_named(name: str, *, durable: bool = True) -> Peer:
    cpu = iter(range(100))
    return cast("Peer", SimpleNamespace(name=name, durable=durable, cpu_s=lambda: float(next(cpu))))


class FakeClient:
    """Each version takes as many ms as its number says; paced, the first takes far longer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def call(self, method: str, **arguments: Any) -> Any:
        version = arguments["version"]
        if method == "open":
            self.calls.append(("open", version))
            return None
        self.calls.append(("run", version, arguments["seconds"], arguments["pause_s"]))
        totals = [float(version)] * 4
        if arguments["pause_s"]:
            totals[0] = 1000.0
        return {"totals": totals, "commits": [0.5] * 4, "requests": 4 * (5 - version)}


class FakeBench:
    """Hands out one client, and has seen this peer before or not."""

    quick = False

    def __init__(self, *, first: bool = False) -> None:
        self.handed_out = FakeClient()
        self._first = first

    def client(self, *_: object, **__: object) -> ClientProcess:
        return cast("ClientProcess", self.handed_out)

    def first_time(self, *_: object) -> bool:
        return self._first


@pytest.fixture
def jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that a Java client takes is there."""
    monkeypatch.setattr(JavaProgram, "tools_missing", lambda _: None)
    monkeypatch.setattr(JavaProgram, "obtain", lambda _: Path("jars"))
    monkeypatch.setattr(JavaProgram, "command", lambda *_, **__: ["java"])


def test_answer_of_the_program_is_read_as_milliseconds_and_requests() -> None:
    """One entry for each transaction; a figure without decimals is a figure."""
    answer = {"totals": [3.5, 4], "commits": [3.0, 3.75], "requests": 6}
    assert ran(answer) == Ran([3.5, 4.0], [3.0, 3.75], 6)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"totals": [], "commits": [], "requests": 0},
        {"totals": [1.0], "commits": [], "requests": 3},
        {"totals": [1.0], "commits": [1.0]},
        {"opened": 2},
    ],
)
def test_answer_of_the_program_that_is_no_measurement_is_refused(answer: dict[str, object]) -> None:
    """Half an answer makes no figure."""
    with pytest.raises(ValueError, match="the Java program answered"):
        ran(answer)


def test_versions_take_turns_at_being_first() -> None:
    """What drifts on the machine hits both alike."""
    assert [in_turns(number) for number in range(3)] == [(1, 2) * SLICES, (2, 1) * SLICES, (1, 2) * SLICES]


def test_command_runs_the_class_on_our_classes_and_the_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The virtual machine's options stand before the class, its arguments after it."""
    monkeypatch.setattr("java.find", lambda: "/a/java")
    monkeypatch.setattr(JavaProgram, "at_hand", lambda _: tmp_path / "jars")
    monkeypatch.setattr(JavaProgram, "classes", lambda _: tmp_path / "classes")
    command = java_latency.PROGRAM.command("TransactionLatency", "HOST:9092", options=("-Xmx512m",))
    assert command[0] == "/a/java"
    path = f"{tmp_path}/classes:{tmp_path}/jars/*"
    assert command[2:] == ["-Xmx512m", "-cp", path, "TransactionLatency", "HOST:9092"]


@pytest.mark.usefixtures("jars")
def test_round_measures_both_versions_by_the_same_load() -> None:
    """Of the paced ones the first is left out; requests and CPU time are by transaction."""
    bench = FakeBench()
    measured = measure(cast("Bench", bench), peer_named("journal"), LOAD, 1)
    assert bench.handed_out.calls == [
        *[("run", version, LOAD.warm_up_s, 0.0) for version in VERSIONS],
        *[("run", version, LOAD.seconds / SLICES, 0.0) for version in (2, 1) * SLICES],
        *[("run", version, LOAD.paced_s / SLICES, LOAD.pause_s) for version in (2, 1) * SLICES],
    ]
    for version in VERSIONS:
        assert measured[f"Java transaction, version {version}"].value == version
        assert measured[f"Java transaction, paced, version {version}"].p99 == version
        assert measured[f"Java commit alone, version {version}"].value == 0.5
        assert measured[f"Java requests, version {version}"].value == 5 - version
        assert measured[f"Java broker CPU, version {version}"].value == 250.0
    for metric in ("transaction", "transaction, p99", "transaction, paced", "transaction, paced, p99"):
        assert measured[f"Java {metric}, version 2 ÷ version 1"].value == 2.0


@pytest.mark.usefixtures("jars")
def test_first_round_warms_up_both_versions() -> None:
    """A virtual machine compiles what runs often: that is no figure."""
    bench = FakeBench(first=True)
    measure(cast("Bench", bench), peer_named("kafka"), LOAD, 0)
    calls = [
        call for version in VERSIONS for call in (("open", version), ("run", version, java_latency.WARM_UP_S, 0.0))
    ]
    assert bench.handed_out.calls[:4] == calls


@pytest.mark.usefixtures("jars")
@pytest.mark.parametrize(("name", "durable"), [("mock", False), ("markers", True)])
def test_peer_that_says_nothing_new_is_not_measured_in_java(name: str, durable: bool) -> None:
    """The mock has no levels, and marker mode has the same requests as journal mode."""
    with pytest.raises(NotMeasured):
        measure(cast("Bench", FakeBench()), peer_named(name, durable=durable), LOAD, 0)


@pytest.mark.usefixtures("jars")
def test_without_jars_or_compiler_the_java_client_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report has the reason, and the run goes on."""

    def unavailable(_: JavaProgram) -> Path:
        raise kafka_artifacts.Unavailable("no jars today")

    monkeypatch.setattr(JavaProgram, "obtain", unavailable)
    with pytest.raises(NotMeasured, match="no jars today"):
        measure(cast("Bench", FakeBench()), peer_named("journal"), LOAD, 0)
    monkeypatch.setattr(JavaProgram, "tools_missing", lambda _: "no compiler today")
    with pytest.raises(NotMeasured, match="no compiler today"):
        measure(cast("Bench", FakeBench()), peer_named("journal"), LOAD, 0)


def test_java_case_makes_the_transactions_of_the_paced_case() -> None:
    """The two clients are compared by the same transaction."""
    java = dict(txn_latency.JAVA.parameters)
    assert java.pop("client") == "java"
    assert java == txn_latency.PACED.parameters
    for quick in (True, False):
        assert txn_latency.SCENARIO.cases(quick)[-1] == txn_latency.JAVA


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that counts its requests for whoever asks."""
    found = NodeProcess(tmp_path / "node", {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0"})
    found.start()
    yield found
    found.stop()


@pytest.fixture
def java_client(node: NodeProcess) -> Iterator[ClientProcess]:
    """The program, compiled and connected to the node."""
    CLIENTS_4.require()
    command = java_latency.PROGRAM.command("TransactionLatency", options=java_latency.OPTIONS)
    client = ClientProcess("benchmarks.java_latency:JavaTransactor", address=node.address, command=command)
    yield client
    client.close()


def requests(node: NodeProcess) -> Counter[str]:
    """How many requests of each API the node has had."""
    assert node.console is not None
    connection = http.client.HTTPConnection(urlsplit(node.console).netloc, timeout=60)
    connection.request("GET", "/metrics")
    families = text_string_to_metric_families(connection.getresponse().read().decode())
    connection.close()
    samples = [sample for family in families for sample in family.samples if sample.name == "fairlog_requests_total"]
    return Counter({sample.labels["api"]: int(sample.value) for sample in samples})


@pytest.mark.slow
def test_version_2_saves_the_requests_that_add_partitions(node: NodeProcess, java_client: ClientProcess) -> None:
    """The node has AddPartitionsToTxn for each transaction of version 1, and none of version 2, by the same client."""
    topics.create(node.address, ["topic"], 2, {})
    for version in VERSIONS:
        java_client.call("open", version=version)
    for version in (*VERSIONS, *VERSIONS):
        before = requests(node)
        answer = java_client.call(
            "run",
            version=version,
            topic="topic",
            records=10,
            partitions=2,
            transactions_min=TRANSACTIONS,
            seconds=0.0,
            pause_s=0.0,
        )
        had = requests(node) - before
        assert had["EndTxn"] == len(ran(answer).totals) == TRANSACTIONS
        assert had["Produce"] >= TRANSACTIONS
        assert had["AddPartitionsToTxn"] >= TRANSACTIONS if version == 1 else had["AddPartitionsToTxn"] == 0
        assert ran(answer).requests >= had["EndTxn"] + had["Produce"] + had["AddPartitionsToTxn"]


@pytest.mark.slow
def test_program_that_ends_is_a_failure_of_its_client() -> None:
    """Nobody waits for an answer that cannot come."""
    command = ["sh", "-c", "read line; exit 3"]
    client = ClientProcess("benchmarks.java_latency:JavaTransactor", address="localhost:1", command=command)
    with pytest.raises(ClientFailed, match="the Java program has ended with status 3"):
        client.call("open", version=2)
    client.close()
