"""A stopped node's directory with a bit of everything in it, and copies of it to plant damage in."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.node_process import NodeProcess
from tests.cli.in_process import FairlogCommand, fairlog_command
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import TOPIC, Producer, produce, read_when, wait_for_the_copy
from tests.verify.planting import Planted


def fill(node: NodeProcess) -> None:
    """Two partitions: plain records, idempotent ones, three transactions, one aborted, and one that hangs."""
    produce(node, b"first", b"second")
    with RawClient(node.address) as client:
        for sequence in range(4):
            data = batch([b"idempotent"], producer_id=900, epoch=0, sequence=sequence, timestamp_ms=10 + sequence)
            assert client.produce(TOPIC, 0, data)[0] == raw.NONE
        producer = Producer(client, "billing", partitions=2)
        for number in range(3):
            producer.commit(b"one of %d" % number, b"two of %d" % number)
        producer.begin()
        producer.send(b"aborted")
        assert producer.end(commit=False) == raw.NONE
        read_when(node, 12)
        read_when(node, 6, partition=1)
        hanging = Producer(client, "hanging", partitions=2)
        hanging.begin()
        hanging.send(b"hanging")
    produce(node, b"behind what hangs")


@pytest.fixture(scope="session")
def killed_and_stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same node's directory as a kill leaves it, and as a good end does."""
    return kill_and_stop(tmp_path_factory.mktemp("node"), fill)


def kill_and_stop(base: Path, fill: Callable[[NodeProcess], None], **environment: str) -> tuple[Path, Path]:
    """A node's directory once it is filled and killed, and once it was started again and stopped."""
    node = NodeProcess(
        base / "data",
        {"FAIRLOG_JOURNAL_GROUP_JOURNALS": "2", "FAIRLOG_TOPICS_PARTITIONS_DEFAULT": "2"} | environment,
    )
    node.start()
    fill(node)
    wait_for_the_copy(node.address, TOPIC, partitions=2)
    node.kill()
    shutil.copytree(base / "data", base / "killed")
    node.start()
    assert node.stop() == 0, node.log_tail()
    return base / "killed", base / "data"


@pytest.fixture
def planted(killed_and_stopped: tuple[Path, Path], tmp_path: Path) -> Planted:
    """A copy of the stopped node's directory, to be damaged."""
    return Planted(Path(shutil.copytree(killed_and_stopped[1], tmp_path / "data")))


@pytest.fixture
def fairlog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> FairlogCommand:
    """Runs the command line in this process: exit code, stdout, stderr."""
    return fairlog_command(monkeypatch, capsys)
