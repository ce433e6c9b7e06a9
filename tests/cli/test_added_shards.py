"""A node of one shard that grows: what was there stays where it is, and what comes is spread over all shards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from journal.failpoints import FAILPOINTS
from scripts.node_process import READY_PREFIX, ROOT
from tests.cli.in_process import FairlogCommand
from tests.cli.processes import FAIRLOG

pytestmark = pytest.mark.slow

WAIT_S = 60
PARTITIONS = 4
GROUP = "readers"


@contextmanager
def served(data: Path, *options: str, killed_at: str | None = None) -> Generator[str]:
    """A node on any free ports, stopped in good order at the end; where its first broker is.

    With `killed_at` the block has to lead its supervisor to that point, which kills it.
    """
    log = data.with_name(f"{data.name}.log")
    command = [*FAIRLOG, "serve", "--data-dir", str(data), "--listen", "127.0.0.1:0", "--admin", "off", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLOG_")}
    if killed_at is not None:
        environment["FAIRLOG_FAILPOINT"] = f"{killed_at}:kill:1"
    with log.open("ab") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY_PREFIX), log.read_text()[-4000:]
        yield line.removeprefix(READY_PREFIX).strip()
        if killed_at is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == (0 if killed_at is None else -signal.SIGKILL), log.read_text()[-4000:]
    finally:
        process.kill()
        process.communicate()


def make_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(WAIT_S)


def leaders(address: str, topic: str) -> set[int]:
    admin = AdminClient({"bootstrap.servers": address})
    partitions = admin.list_topics(topic, WAIT_S).topics[topic].partitions
    return {each.leader for each in partitions.values()}


def writer(address: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": "writer", "log_level": 0})
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, value: str, *topics: str) -> None:
    """To each partition, in the transaction that is open."""
    for topic in topics:
        for partition in range(PARTITIONS):
            producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0


def read(address: str, topic: str) -> Sequence[Sequence[str]]:
    """All values of each partition, up to its end."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "any", "enable.auto.commit": False})
    with contextlib.closing(consumer):
        places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
        missing = sum(consumer.get_watermark_offsets(place, WAIT_S)[1] for place in places)
        consumer.assign(places)
        values: list[list[str]] = [[] for _ in places]
        while missing:
            message = consumer.poll(WAIT_S)
            assert message is not None
            assert message.error() is None
            values[message.partition()].append(message.value().decode())
            missing -= 1
        return values


def offsets_of(address: str, topic: str) -> Mapping[int, int]:
    """Where the group stands."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    with contextlib.closing(consumer):
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        return {place.partition: place.offset for place in consumer.committed(places, WAIT_S)}


def commit_offsets(address: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP, "enable.auto.commit": False})
    with contextlib.closing(consumer):
        places = [TopicPartition(topic, partition, offset) for partition in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)


def test_node_of_one_process_grows_while_a_client_has_a_transaction_open(
    tmp_path: Path, fairlog: FairlogCommand
) -> None:
    """Its directory, its topics and its groups stay as they are; transactions go over both shards; backups do, too."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    with served(data) as address:
        make_topic(address, "before")
        producer = writer(address)
        producer.begin_transaction()
        write(producer, "0", "before")
        producer.commit_transaction(WAIT_S)
        commit_offsets(address, "before", 1)
        status, _, errors = fairlog("shard", "add", "--data-dir", str(data))
        assert status == 1
        assert "restart it with two processes or more" in errors
    with served(data, "--processes", "2") as address:
        producer = writer(address)
        producer.begin_transaction()
        write(producer, "1", "before")
        assert fairlog("shard", "add", "--data-dir", str(data)) == (
            0,
            "shard 1 was added: broker 2, served by process 1\n",
            "",
        )
        make_topic(address, "later")
        assert (leaders(address, "before"), leaders(address, "later")) == ({1}, {1, 2})
        write(producer, "1", "later")
        producer.commit_transaction(WAIT_S)
        assert read(address, "before") == [["0", "1"]] * PARTITIONS
        assert read(address, "later") == [["1"]] * PARTITIONS
        assert set(offsets_of(address, "before").values()) == {1}
        commit_offsets(address, "later", 1)
        assert fairlog("backup", str(backup), "--data-dir", str(data))[0] == 0
    (added,) = (line for line in data.with_name("data.log").read_text().splitlines() if '"add shard"' in line)
    assert '"on": "1", "outcome": "done"' in added
    assert fairlog("verify", str(data))[0] == 0
    assert fairlog("verify", str(backup))[0] == 0
    refused = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "serve", "--data-dir", str(data), "--processes", "1", "--admin", "off"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert "is served by process 1, but processes is 1: start the node with --processes 2, or give" in refused.stderr
    status, _, errors = fairlog("shard", "move", "1", "--to", "0", "--data-dir", str(backup))
    assert (status, "is a backup: start a node in it first" in errors) == (1, True)
    assert fairlog("shard", "move", "1", "--to", "0", "--data-dir", str(data))[0] == 0
    for directory, processes in ((data, "1"), (backup, "2")):
        with served(directory, "--processes", processes) as address:
            assert read(address, "before") == [["0", "1"]] * PARTITIONS
            assert read(address, "later") == [["1"]] * PARTITIONS
            assert set(offsets_of(address, "later").values()) == {1}
            producer = writer(address)
            producer.begin_transaction()
            write(producer, "2", "before", "later")
            producer.commit_transaction(WAIT_S)
            assert read(address, "later") == [["1", "2"]] * PARTITIONS
        assert fairlog("verify", str(directory))[0] == 0


POINTS = [name for name in FAILPOINTS if name.startswith("shards.")]
CHANGES = [
    *(("add", shards, point) for shards in (1, 2) for point in POINTS),
    *(("move", 2, point) for point in POINTS if point.startswith("shards.allot.")),
]


@pytest.mark.parametrize(("change", "shards", "point"), CHANGES)
def test_change_whose_supervisor_is_killed_is_made_or_not(
    tmp_path: Path, fairlog: FairlogCommand, change: str, shards: int, point: str
) -> None:
    """At every named point. Nothing is lost, the node starts, and the change can be made after all."""
    data = tmp_path / "data"
    command = ["add", "--to", "0"] if change == "add" else ["move", "1", "--to", "0"]
    with served(data, "--processes", str(shards)) as address:
        make_topic(address, "before")
        producer = writer(address)
        producer.begin_transaction()
        write(producer, "0", "before")
        producer.commit_transaction(WAIT_S)
    with served(data, "--processes", "2", killed_at=point):
        status, _, errors = fairlog("shard", *command, "--data-dir", str(data))
        assert status == 1
        assert "may be made or not" in errors
    with served(data, "--processes", "2") as address:
        before, made = [*range(shards)], [*range(shards), 0] if change == "add" else [0, 0]
        processes = processes_of(fairlog, data)
        assert processes in (before, made)
        if processes == before:
            assert fairlog("shard", *command, "--data-dir", str(data))[0] == 0
            assert processes_of(fairlog, data) == made
        make_topic(address, "later")
        assert leaders(address, "later") == {*range(1, len(made) + 1)}
        producer = writer(address)
        producer.begin_transaction()
        write(producer, "1", "before", "later")
        producer.commit_transaction(WAIT_S)
        assert read(address, "before") == [["0", "1"]] * PARTITIONS
        assert read(address, "later") == [["1"]] * PARTITIONS
    assert fairlog("verify", str(data))[0] == 0


def processes_of(fairlog: FairlogCommand, data: Path) -> Sequence[int]:
    """The process of each shard."""
    status, out, errors = fairlog("shard", "list", "--json", "--data-dir", str(data))
    assert status == 0, errors
    return [row["process"] for row in json.loads(out)]
