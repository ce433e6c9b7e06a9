"""Finished transactions: made once by a broker that is ended in order, and copied by each that begins with them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import finished
from confluent_kafka import Consumer, Producer, TopicPartition
from peers import cache
from peers.catalogue import available
from peers.interface import Missing, Peer, Tuning


class FakePeer:
    """Writes into its data how often it was started, and says in `log` what was asked of it."""

    durable = True
    address = "127.0.0.1:1"

    def __init__(self, name: str, directory: Path, log: list[str]) -> None:
        self.name = name
        self.directory = directory
        self.data = directory / "data"
        self.storage = name.removesuffix("-fsync")
        self._log = log
        self._running = False

    def start(self) -> None:
        self._log.append(f"start {self.name}")
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.data / "starts").open("a") as file:
            file.write("x")
        self._running = True

    def stop(self) -> None:
        if self._running:
            self._log.append(f"stop {self.name}")
        self._running = False

    def kill(self) -> None:
        if self._running:
            self._log.append(f"kill {self.name}")
        self._running = False

    def create_topics(self, names: list[str], partitions: int) -> None:
        self._log.append(f"topic {names[0]}")


class FakeClient:
    """In place of a crowd in a process of its own."""

    log: list[str]
    breaks = False

    def __init__(self, target: str, **arguments: object) -> None:
        pass

    def call(self, method: str, count: int) -> None:
        if self.breaks:
            raise KeyboardInterrupt
        self.log.append(f"{method} {count}")

    def close(self) -> None:
        pass


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setattr(cache, "DIRECTORY", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of brokers and crowds, of which none is real."""
    said: list[str] = []
    monkeypatch.setattr(FakeClient, "log", said, raising=False)
    monkeypatch.setattr(finished, "ClientProcess", FakeClient)

    def fake(name: str, directory: Path, tuning: Tuning | None = None) -> Any:
        return Missing(name, "it is nowhere to be had") if name == "none" else FakePeer(name, directory, said)

    monkeypatch.setattr(finished, "available", fake)
    return said


@pytest.fixture
def peer_of(tmp_path: Path, log: list[str]) -> Callable[[str], Any]:
    """A fake peer of that name, in a directory of its own."""
    return lambda name: FakePeer(name, tmp_path / name, log)


@pytest.mark.usefixtures("place")
def test_finished_transactions_are_made_once_by_a_broker_that_is_ended_in_order(
    peer_of: Callable[[str], Any], log: list[str]
) -> None:
    """In pieces, as many as asked for; who comes later gets them without any making."""
    finished.begin_with(peer_of("journal"), finished.PIECE + 1)
    made = ["start journal", "topic finished", f"commit_many {finished.PIECE}", "commit_many 1", "stop journal"]
    assert log == [*made, "start journal"]
    log.clear()
    finished.begin_with(peer_of("journal"), finished.PIECE + 1)
    assert log == ["start journal"]


@pytest.mark.usefixtures("place")
def test_peer_begins_with_a_copy_in_place_of_its_own_data(peer_of: Callable[[str], Any], log: list[str]) -> None:
    """It is stopped for it and started again; nothing of its own is left, and what is kept stays as it was made."""
    peer = peer_of("journal")
    peer.start()
    (peer.data / "own").touch()
    finished.begin_with(peer, 1)
    assert log[:2] == ["start journal", "stop journal"]
    assert log[-1] == "start journal"
    assert {path.name: path.read_text() for path in peer.data.iterdir()} == {"starts": "xx"}
    kept = finished.kept(peer, 1)
    assert (kept / "starts").read_text() == "x"


@pytest.mark.usefixtures("place")
def test_kept_transactions_are_told_apart_by_whatever_matters(
    peer_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stores them, how many, by how many ids, in how many partitions."""
    peer = peer_of("journal")
    kept = {finished.kept(peer, 1), finished.kept(peer, 2), finished.kept(peer_of("markers"), 1)}
    for constant in ("WIDTH", "PARTITIONS"):
        with monkeypatch.context() as changed:
            changed.setattr(finished, constant, 7)
            kept.add(finished.kept(peer, 1))
    assert len(kept) == 5


@pytest.mark.usefixtures("place")
def test_kafka_with_and_without_flushes_share_what_the_quicker_one_makes(
    peer_of: Callable[[str], Any], log: list[str]
) -> None:
    """A million flushed batches would take hours, and come to the same."""
    assert finished.kept(peer_of("kafka-fsync"), 1) == finished.kept(peer_of("kafka"), 1)
    assert [line for line in log if line.startswith("start")] == ["start kafka"]


def test_making_that_is_interrupted_leaves_no_broker_and_keeps_nothing(
    place: Path, peer_of: Callable[[str], Any], log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one begins anew."""
    monkeypatch.setattr(FakeClient, "breaks", True)
    with pytest.raises(KeyboardInterrupt):
        finished.kept(peer_of("journal"), 5)
    monkeypatch.setattr(FakeClient, "breaks", False)
    assert log[-1] == "kill journal"
    assert all(path.suffix in {".lock", ".partial"} for path in place.iterdir())
    assert (finished.kept(peer_of("journal"), 5) / "starts").read_text() == "x"


@pytest.mark.usefixtures("place")
def test_transactions_that_brokers_are_about_to_forget_are_made_anew(
    peer_of: Callable[[str], Any], log: list[str]
) -> None:
    """Ids go after a week: what is measured with them must have them to its end."""
    directory = finished.kept(peer_of("kafka"), 1).parent
    for days, made in ((5, []), (6.5, ["start kafka"])):
        log.clear()
        then = time.time() - days * 86_400
        os.utime(directory, (then, then))
        finished.kept(peer_of("kafka"), 1)
        assert [line for line in log if line.startswith("start")] == made


@pytest.mark.usefixtures("place", "log")
def test_make_names_the_missing_peer_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Who can be had has its transactions, and the exit status says that one could not."""
    assert finished.make(["none", "journal"], 1) == 1
    assert finished.make(["journal"], 1) == 0
    output = capsys.readouterr().out
    assert "there is no none here: it is nowhere to be had" in output
    assert "journal begins with" in output


@pytest.fixture
def started(tmp_path: Path) -> Generator[Callable[[str], Peer]]:
    """Real peers by name, started, and ended after the test."""
    made: list[Peer] = []

    def start(name: str) -> Peer:
        peer = available(name, tmp_path / name)
        assert not isinstance(peer, Missing)
        made.append(peer)
        peer.start()
        return peer

    yield start
    for peer in made:
        peer.kill()


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", ["journal", "markers"])
def test_node_that_begins_with_a_copy_has_its_records_and_takes_more(started: Callable[[str], Peer], name: str) -> None:
    """The copy is a node's data as any other: all that was committed is read, and its ids commit again."""
    count = 45
    peer = started(name)
    address = peer.address
    finished.begin_with(peer, count)
    assert peer.address == address
    settings = {"bootstrap.servers": peer.address, "log_level": 0}
    producer = Producer({**settings, "transactional.id": f"{finished.TOPIC}-0"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(finished.TOPIC, b"more", partition=0)
    producer.commit_transaction(30)
    consumer = Consumer({**settings, "group.id": "count", "isolation.level": peer.transactional_isolation})
    try:
        consumer.assign([TopicPartition(finished.TOPIC, each, 0) for each in range(finished.PARTITIONS)])
        values = [message.value() for message in consumer.consume(count + 1, timeout=30)]
    finally:
        consumer.close()
    assert sorted(values) == [b"more", *[b"value"] * count]
