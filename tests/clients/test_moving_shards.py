"""Shards that move between processes, and one that is added, under the eyes of clients that stay."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from fairlog.supervisor.control import ask
from scripts.node_process import NodeProcess
from tests.clients.conftest import make_topic
from tests.clients.drivers import ClientKind
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.reading import Reader, assert_dense, assert_topic_holds
from tests.processes import ONLY_ON_THREE, SEVERAL

pytestmark = [
    pytest.mark.slow,
    ONLY_ON_THREE,
    # kafka-python's own: a socket of a closed client is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_S = 60
SEED = 15
PARTITIONS = 6


def shards_of(node: NodeProcess) -> Sequence[Mapping[str, Any]]:
    return ask(node.data_dir, {"ask": "list"})["shards"]


def move(node: NodeProcess, shard: int, process: int) -> None:
    assert ask(node.data_dir, {"ask": "move", "shard": shard, "process": process}) == {}
    moved = shards_of(node)[shard]
    assert (moved["process"], moved["state"]) == (process, "ready")


def wait_until_ready(node: NodeProcess) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not all(shard["state"] == "ready" for shard in shards_of(node)):
        assert time.monotonic() < deadline_s, shards_of(node)
        time.sleep(0.05)


@BOTH_MODES
def test_move_keeps_what_was_answered_and_what_was_open(
    fresh_node: Callable[..., NodeProcess], mode: Mode, client: ClientKind
) -> None:
    """The open transaction goes on, although each of its shards is in another process by now, the coordinator's too."""
    node = fresh_node()
    topic = make_topic(node.address, SEVERAL)
    with client.producer(node.address, "txn") as producer, client.producer(node.address) as plain:
        producer.begin()
        for partition in range(SEVERAL):
            producer.send(topic, partition, b"committed")
        producer.commit()
        producer.begin()
        for partition in range(SEVERAL):
            producer.send(topic, partition, b"first half")
        producer.flush()
        before = [shard["pid"] for shard in shards_of(node)]
        for shard in range(SEVERAL):
            move(node, shard, (shard + 1) % SEVERAL)
        assert all(shard["pid"] != pid for shard, pid in zip(shards_of(node), before, strict=True))
        for partition in range(SEVERAL):
            plain.send(topic, partition, b"plain")
        plain.flush()
        producer.send(topic, 0, b"second half")
        producer.flush()
        producer.commit()
    kept = [b"committed", b"plain", b"first half"] if mode is Mode.JOURNAL else [b"committed", b"first half", b"plain"]
    held = {0: [*kept, b"second half"]} | dict.fromkeys(range(1, SEVERAL), kept)
    assert_topic_holds(node.address, topic, held, mode=mode)


def test_all_shards_in_one_process_are_one_cluster_as_before(fresh_node: Callable[..., NodeProcess]) -> None:
    """So they are after a restart of the node; the two other processes are not needed, and are not there."""
    node = fresh_node()
    topic = make_topic(node.address, SEVERAL)
    move(node, 1, 0)
    move(node, 2, 0)
    assert len({shard["pid"] for shard in shards_of(node)}) == 1
    write(node, topic, 0)
    os.kill(shards_of(node)[0]["pid"], signal.SIGKILL)
    wait_until_ready(node)
    write(node, topic, 1)
    node.restart()
    assert len({shard["pid"] for shard in shards_of(node)}) == 1
    write(node, topic, 2)
    with Reader(node.address, topic, SEVERAL) as reader:
        assert_dense(reader.read_to_end())
        assert reader.by_partition() == {partition: [b"0", b"1", b"2"] for partition in range(SEVERAL)}


def write(node: NodeProcess, topic: str, number: int) -> None:
    """Commit one record to each partition."""
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": "writer", "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for partition in range(SEVERAL):
        producer.produce(topic, str(number), partition=partition)
    producer.commit_transaction(WAIT_S)


class Writer:
    """Commits its number to all partitions, again and again, one transaction after the other."""

    def __init__(self, address: str, topic: str, name: str) -> None:
        self.committed: list[int] = []
        """Those whose commit was answered."""
        self._topic = topic
        self._name = name
        settings = {"bootstrap.servers": address, "transactional.id": name, "log_level": 0}
        self._producer = Producer(settings | {"transaction.timeout.ms": 600_000})
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    @contextmanager
    def running(self) -> Generator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._producer.init_transactions(WAIT_S)
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._commit(number)
                self.committed.append(number)
        except Exception as failure:  # noqa: BLE001 - raised again in the test's own thread
            self._failure = failure

    def _commit(self, number: int) -> None:
        """Until it is done: what a client may have to abort, it writes again."""
        while True:
            self._producer.begin_transaction()
            try:
                for partition in range(PARTITIONS):
                    self._produce(partition, f"{self._name}.{number}")
                self._call(self._producer.commit_transaction)
            except KafkaException as exception:
                if not exception.args[0].txn_requires_abort():
                    raise
            else:
                return
            self._call(self._producer.abort_transaction)

    def _produce(self, partition: int, value: str) -> None:
        self._producer.produce(self._topic, value, partition=partition)

    def _call(self, end: Callable[[float], None]) -> None:
        while True:
            try:
                return end(WAIT_S)
            except KafkaException as exception:
                if not exception.args[0].retriable():
                    raise


def assert_has_each_once(node: NodeProcess, topic: str, writers: Sequence[Writer]) -> None:
    """In each partition: what each writer has committed, once, in its order, and without a hole in the offsets."""
    with Reader(node.address, topic, PARTITIONS) as reader:
        seen = reader.read_to_end(timeout_s=WAIT_S)
        assert_dense(seen)
        for partition, values in reader.by_partition().items():
            for number, writer in enumerate(writers):
                own = [value for value in values if value is not None and value.startswith(b"w%d." % number)]
                assert own == [b"w%d.%d" % (number, each) for each in writer.committed], partition


@pytest.mark.parametrize("killed", ["nobody", "source", "target"])
def test_shards_move_while_clients_write(fresh_node: Callable[..., NodeProcess], killed: str) -> None:
    """Also if the process that gives a shard away is killed, or the one that gets it: nothing twice or missing."""
    node, rng = fresh_node(), random.Random(SEED)
    topic = make_topic(node.address, PARTITIONS)
    writers = [Writer(node.address, topic, f"w{number}") for number in range(3)]
    with contextlib.ExitStack() as stack:
        for writer in writers:
            stack.enter_context(writer.running())
        for _ in range(8):
            shards = shards_of(node)
            shard = rng.randrange(SEVERAL)
            source = shards[shard]["process"]
            process = rng.choice([number for number in range(SEVERAL) if number != source])
            pids = {each["process"]: each["pid"] for each in shards}
            to_kill = pids.get({"source": source, "target": process}.get(killed, -1))
            ended = threading.Timer(rng.random() * 0.3, _kill, [to_kill])
            ended.start()
            answer = ask(node.data_dir, {"ask": "move", "shard": shard, "process": process})
            ended.join()
            if killed != "target":
                assert answer == {}
            wait_until_ready(node)
            assert shards_of(node)[shard]["process"] == process
        enough = [len(writer.committed) + 2 for writer in writers]
        deadline_s = time.monotonic() + WAIT_S
        while any(len(writer.committed) < count for writer, count in zip(writers, enough, strict=True)):
            assert time.monotonic() < deadline_s, [len(writer.committed) for writer in writers]
            time.sleep(0.05)
    assert_has_each_once(node, topic, writers)


def _kill(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):  # it gave its last shard away, and has ended
            os.kill(pid, signal.SIGKILL)
