"""kcat, as people use it at a prompt: it lists, produces, consumes, and asks for offsets."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from scripts import kcat as program
from scripts.node_process import NodeProcess
from tests.clients.drivers import CONFLUENT
from tests.clients.modes import BOTH_MODES, Mode
from tests.clients.raw_client import NONE, RawClient, leader_id_of
from tests.clients.reading import WAIT_S, Reader, assert_topic_holds

pytestmark = pytest.mark.slow

Kcat = Callable[..., str]


@pytest.fixture
def kcat(node: NodeProcess) -> Kcat:
    """Runs it against the node: `kcat(*arguments, input=…)`; its standard output. It has to succeed."""
    path = program.find()
    if path is None:
        pytest.skip(program.MISSING)

    def run(*arguments: str, given: str = "") -> str:
        done = subprocess.run(
            [path, "-b", node.address, *arguments],
            input=given,
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_kcat_lists_brokers_and_topics(kcat: Kcat, node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """-L for people, and as JSON."""
    topic = new_topic(3)
    shown = kcat("-L", "-t", topic)
    leaders = [leader_id_of(node.address, topic, partition) for partition in range(3)]
    assert f"broker 1 at {node.addresses[0]} (controller)" in shown
    assert f'topic "{topic}" with 3 partitions:' in shown
    assert f"partition 2, leader {leaders[2]}, replicas: {leaders[2]}, isrs: {leaders[2]}" in shown
    listed = json.loads(kcat("-L", "-J"))
    brokers = sorted(listed["brokers"], key=lambda broker: broker["id"])
    assert brokers == [{"id": number, "name": address} for number, address in enumerate(node.addresses, start=1)]
    (described,) = (each for each in listed["topics"] if each["topic"] == topic)
    assert [(each["partition"], each["leader"]) for each in described["partitions"]] == list(enumerate(leaders))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_produces_keys_headers_and_nulls(
    kcat: Kcat, node: NodeProcess, new_topic: Callable[..., str], codec: str
) -> None:
    """-P: what it sends is what a consumer sees, in each compression."""
    topic = new_topic()
    arguments = ["-P", "-t", topic, "-p", "0", "-K", ":", "-Z", "-H", "from=kcat", "-H", "empty=", "-z", codec]
    kcat(*arguments, given="a:1\nb:" + 2_000 * "2" + "\na:\n")
    with Reader(node.address, topic, 1) as reader:
        seen = reader.wait_for(3)
    assert [(each.key, each.value) for each in seen] == [(b"a", b"1"), (b"b", 2_000 * b"2"), (b"a", None)]
    assert {each.headers for each in seen} == {(("from", b"kcat"), ("empty", b""))}


@BOTH_MODES
def test_kcat_produces_in_a_transaction(
    kcat: Kcat, node: NodeProcess, mode: Mode, new_topic: Callable[..., str]
) -> None:
    """-X transactional.id: all lines of its input commit together."""
    topic = new_topic()
    kcat("-P", "-t", topic, "-p", "0", "-X", f"transactional.id=kcat-{topic}", given="1\n2\n3\n")
    assert_topic_holds(node.address, topic, {0: [b"1", b"2", b"3"]}, mode=mode)


@BOTH_MODES
def test_kcat_consumes_from_any_offset_to_the_end(
    kcat: Kcat, node: NodeProcess, mode: Mode, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """-C from the beginning, an offset, the last few, and between two times, and -e ends at the end: behind a
    transaction, too."""
    topic = new_topic()
    with CONFLUENT.producer(node.address, new_id()) as producer:
        producer.begin()
        for number in range(10):
            producer.send(topic, 0, b"%d" % number, key=b"k", headers=[("h", b"v")], timestamp_ms=1_000 + number)
        producer.commit()
    assert_topic_holds(node.address, topic, {0: [b"%d" % number for number in range(10)]}, mode=mode)

    def consumed(*arguments: str) -> list[int]:
        return [int(each["payload"]) for each in lines(kcat("-C", "-t", topic, "-e", "-q", "-J", *arguments))]

    assert consumed() == list(range(10))
    assert consumed("-o", "7") == [7, 8, 9]
    assert consumed("-p", "0", "-o", "-2") == ([8, 9] if mode is Mode.JOURNAL else [9]), "the last offset is a marker's"
    assert consumed("-o", "3", "-c", "2") == [3, 4]
    assert consumed("-o", "s@1004", "-o", "e@1006") == [4, 5]
    (first, *_) = lines(kcat("-C", "-t", topic, "-c", "1", "-q", "-J"))
    assert (first["key"], first["offset"], first["ts"], first["headers"]) == ("k", 0, 1_000, ["h", "v"])


def test_kcat_consumes_in_a_group(
    kcat: Kcat, node: NodeProcess, new_topic: Callable[..., str], new_id: Callable[[], str]
) -> None:
    """-G: it joins, reads to the end, commits, and the next one of the group goes on there."""
    topic, group = new_topic(2), new_id()
    earliest = ["-X", "auto.offset.reset=earliest", "-e", "-q"]
    for values in (("1", "2", "3"), ("4", "5")):
        for partition in ("0", "1"):
            kcat("-P", "-t", topic, "-p", partition, given="\n".join(values))
        assert sorted(kcat("-G", group, *earliest, topic).split()) == sorted([*values, *values])
    with RawClient(node.address) as client:
        assert [client.committed_offset(group, topic, partition) for partition in range(2)] == [(NONE, 5), (NONE, 5)]


def test_kcat_asks_for_offsets_by_time(kcat: Kcat, node: NodeProcess, new_topic: Callable[..., str]) -> None:
    """-Q: the first record of that time or later; -1 the end, -2 the beginning."""
    topic = new_topic()
    with CONFLUENT.producer(node.address) as producer:
        for number in range(5):
            producer.send(topic, 0, b"v", timestamp_ms=1_000 + 10 * number)
        producer.flush()
    for asked, offset in ((1_000, 0), (1_015, 2), (1_040, 4), (-1, 5), (-2, 0)):
        assert kcat("-Q", "-t", f"{topic}:0:{asked}").split() == [topic, "[0]", "offset", str(offset)]
