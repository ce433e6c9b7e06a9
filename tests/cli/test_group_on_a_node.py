"""`fairlog consume --group` and `fairlog group …` as processes, against a real node with consumer groups."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from scripts.node_process import ROOT, NodeProcess
from tests.cli.processes import FAIRLOG

pytestmark = pytest.mark.slow

WAIT_S = 30

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> Iterator[NodeProcess]:
    """A node with the topic `orders`: two partitions with ten records each. Commands find it by FAIRLOG_BOOTSTRAP."""
    node = NodeProcess(tmp_path / "data", processes=processes)
    node.start()
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", node.addresses[-1])
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(timeout=WAIT_S)
    write(node, 10)
    yield node
    assert node.stop() == 0, node.log_tail()


def write(node: NodeProcess, count: int) -> None:
    """As many records to each partition, a second apart by their timestamps."""
    producer = Producer({"bootstrap.servers": node.address})
    for number in range(count):
        for partition in (0, 1):
            producer.produce("orders", f"{partition}-{number}", partition=partition, timestamp=1_000 * (number + 1))
    assert producer.flush(WAIT_S) == 0


def consume(*options: str) -> list[str]:
    """The values that `consume orders --group billing` shows."""
    command = [*FAIRLOG, "consume", "orders", "--group", "billing", "--json", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line)["value"] for line in done.stdout.splitlines()]


def lags(fairlog: Run) -> list[int | None]:
    code, out, _ = fairlog("group", "describe", "billing", "--json")
    assert code == 0
    return [each["lag"] for each in json.loads(out)["partitions"]]


def test_group_goes_on_where_it_was(node: NodeProcess, fairlog: Run) -> None:
    """What was shown is committed, no more and no less: the next command shows the rest, and then there is none."""
    first = consume("--from-beginning", "--count", "7")
    assert len(first) == 7
    described = json.loads(fairlog("group", "describe", "billing", "--json")[1])
    assert sum(each["committed"] for each in described["partitions"]) == 7
    rest = consume("--from-beginning", "--until-end")
    assert sorted(first + rest) == sorted(f"{partition}-{number}" for partition in (0, 1) for number in range(10))
    assert lags(fairlog) == [0, 0]
    assert consume("--until-end") == []
    write(node, 1)
    assert lags(fairlog) == [1, 1]
    assert sorted(consume("--until-end")) == ["0-0", "1-0"]
    assert json.loads(fairlog("group", "list", "--json")[1])[0]["group"] == "billing"


def test_group_with_a_member_shows_it_and_is_not_reset(node: NodeProcess, fairlog: Run) -> None:
    """A member is seen with its partitions; while it is there, a reset is refused; when it has left, it is done."""
    process = subprocess.Popen(
        [*FAIRLOG, "consume", "orders", "--group", "billing", "--from-beginning", "--json"],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ,
    )
    assert process.stdout is not None
    for _ in range(20):
        assert process.stdout.readline()
    found = json.loads(fairlog("group", "describe", "billing", "--json")[1])
    assert found["state"] == "Stable"
    (member,) = found["members"]
    assert [each["partition"] for each in member["partitions"]] == [0, 1]
    assert member["client_id"] == "fairlog-cli"
    code, _, err = fairlog("group", "reset", "billing", "--to-earliest", "--topic", "orders", "--execute")
    assert code == 1
    assert "stop them, then reset it" in err
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    process.stdout.close()
    assert lags(fairlog) == [0, 0]
    deadline = time.monotonic() + WAIT_S
    while fairlog("group", "reset", "billing", "--to-earliest", "--execute")[0]:
        assert time.monotonic() < deadline, "the member has left, and is still there"
    assert lags(fairlog) == [10, 10]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-earliest",), [10, 10]),
        (("--to-latest",), [0, 0]),
        (("--to-offset", "4"), [6, 6]),
        (("--to-timestamp", "1970-01-01T00:00:08Z"), [3, 3]),
    ],
)
def test_group_is_reset_to_where_it_is_told(
    node: NodeProcess, fairlog: Run, target: tuple[str, ...], expected: list[int]
) -> None:
    """Also a group that never was: it begins there."""
    assert fairlog("group", "reset", "billing", "--topic", "orders", *target)[0] == 0
    assert fairlog("group", "describe", "billing")[0] == 1
    assert fairlog("group", "reset", "billing", "--topic", "orders", *target, "--execute")[0] == 0
    assert lags(fairlog) == expected
