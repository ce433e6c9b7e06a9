"""The command line against a node of three processes: it is told of one broker, and sees all of them."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from confluent_kafka import Producer

from fairlog.cli import native_client
from pyspark_fairlog.native import Native
from scripts.node_process import ROOT
from tests.cli.in_process import FairlogCommand
from tests.cli.processes import FAIRLOG
from tests.node.nodes import until
from tests.three_processes import FIRST_NODE_ID, PROCESSES, ThreeProcesses

pytestmark = pytest.mark.slow

WAIT_S = 60
IDS = [f"billing-{number}" for number in range(6)]
"""So many that each process coordinates some of them."""


@pytest.fixture(autouse=True)
def bootstrap(three: ThreeProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of the brokers, which the commands find by FAIRLOG_BOOTSTRAP."""
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", three.addresses[-1])


def run(*arguments: str, stdin: str = "") -> str:
    """What a command as a process of its own prints."""
    command = [*FAIRLOG, *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=WAIT_S, input=stdin
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def fill(topic: str, partitions: int) -> None:
    """Two records in each partition."""
    lines = [json.dumps({"partition": partition, "value": "order"}) for partition in range(partitions)]
    run("produce", topic, "--json", stdin="\n".join([*lines, *lines]))


def test_topic_is_made_read_changed_and_deleted(fairlog: FairlogCommand) -> None:
    """Its partitions are led by all brokers, and the commands ask each leader for what it has."""
    topic = "orders"
    assert fairlog("topic", "create", topic, "--partitions", "6")[0] == 0
    partitions = json.loads(fairlog("topic", "describe", topic, "--json")[1])["partitions"]
    assert {each["leader"] for each in partitions} == set(range(FIRST_NODE_ID, FIRST_NODE_ID + PROCESSES))
    fill(topic, 6)
    run("produce", topic, "--transaction", stdin="three\n" * 20)
    assert len(run("consume", topic, "--until-end", "--json").splitlines()) == 32
    for partition in range(6):
        assert fairlog("topic", "trim", topic, str(partition), "1")[0] == 0
    partitions = json.loads(fairlog("topic", "describe", topic, "--json")[1])["partitions"]
    assert [each["start"] for each in partitions] == [1] * 6
    assert sum(each["end"] for each in partitions) == 32
    assert fairlog("topic", "config", topic, "--config", "retention.ms=9")[0] == 0
    assert fairlog("topic", "partitions", topic, "7")[0] == 0
    listed = json.loads(fairlog("topic", "list", "--json")[1])
    assert {"topic": topic, "partitions": 7, "transactions": "journal"} in listed
    assert fairlog("topic", "delete", topic)[0] == 0


def test_groups_of_all_brokers_are_listed_described_and_reset(fairlog: FairlogCommand) -> None:
    """A group's coordinator has its offsets, and the partitions' leaders their ends."""
    topic, groups = "read", [f"group-{number}" for number in range(4)]
    assert fairlog("topic", "create", topic, "--partitions", "3")[0] == 0
    fill(topic, 3)
    for group in groups:
        assert fairlog("group", "reset", group, "--topic", topic, "--to-earliest", "--execute")[0] == 0
    assert len(run("consume", topic, "--group", groups[0], "--until-end", "--json").splitlines()) == 6
    listed = [each["group"] for each in json.loads(fairlog("group", "list", "--json")[1])]
    assert set(groups) <= set(listed)
    lags = [
        [each["lag"] for each in json.loads(fairlog("group", "describe", group, "--json")[1])["partitions"]]
        for group in groups
    ]
    assert lags == [[0, 0, 0], [2, 2, 2], [2, 2, 2], [2, 2, 2]]


def test_transactions_of_all_brokers_are_listed_described_and_aborted(
    three: ThreeProcesses, fairlog: FairlogCommand
) -> None:
    """Each id is asked of its own coordinator."""
    topic = "paid"
    assert fairlog("topic", "create", topic, "--partitions", "3")[0] == 0
    settings = {"bootstrap.servers": ",".join(three.addresses), "log_level": 0}
    producers = [Producer({**settings, "transactional.id": each}) for each in IDS]
    for producer in producers:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, b"order", partition=partition)
        assert producer.flush(WAIT_S) == 0
    listed = json.loads(fairlog("txn", "list", "--state", "Ongoing", "--json")[1])
    assert [each["transactional_id"] for each in listed] == IDS
    for each in IDS:
        described = json.loads(fairlog("txn", "describe", each, "--json")[1])
        assert described["partitions"] == [{"topic": topic, "partition": number} for number in range(3)]
    for each in IDS[1:]:
        assert "aborted the open transaction" in fairlog("txn", "abort", each)[1]
    producers[0].commit_transaction(WAIT_S)
    (shown,) = until(lambda: json.loads(fairlog("txn", "show", IDS[0], "--json")[1]))
    assert sorted(part["partition"] for part in shown["records"]) == [0, 1, 2]
    assert json.loads(fairlog("txn", "list", "--state", "Ongoing", "--json")[1]) == []


def test_sinks_of_all_brokers_are_listed_described_and_forgotten(
    three: ThreeProcesses, fairlog: FairlogCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the broker that has it, whichever is asked. One that does not answer is named, and the rest is shown."""
    sinks = [f"sink-{number}" for number in range(6)]
    with Native.connect(three.addresses[0], timeout_s=WAIT_S) as native:
        for sink in sinks:
            native.join(sink=sink, query="q", run="r", batch=0, partition=0, attempt=0)
            native.commit(sink=sink, query="q", run="r", batch=0, winners=[])
    listed = json.loads(fairlog("sink", "list", "--json")[1])
    assert [each["sink"] for each in listed] == sinks
    for sink in sinks:
        assert json.loads(fairlog("sink", "describe", sink, "--json")[1])["batch"] == 0
    monkeypatch.setattr(native_client, "TIMEOUT_S", 1.0)
    with three.frozen(0):
        code, out, err = fairlog("sink", "list")
    shown = [line.split()[0] for line in out.splitlines()[1:]]
    assert (code, set(shown) < set(sinks), f"broker {FIRST_NODE_ID} does not answer" in err) == (1, True, True)
    monkeypatch.undo()
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", three.addresses[-1])
    for sink in sinks:
        assert fairlog("sink", "forget", sink)[0] == 0
    assert fairlog("sink", "list") == (0, "there are no sinks\n", "")
    assert fairlog("sink", "forget", "totals") == (1, "", "fairlog: there is no sink 'totals'\n")
