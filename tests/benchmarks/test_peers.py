"""The peers: what can be had is started and asked, and what cannot is named with its reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from peers import cache, kafka_artifacts, topics
from peers.catalogue import available
from peers.interface import NAMES, Missing, Peer, Tuning
from peers.kafka import Kafka
from peers.kafka_artifacts import Artifacts

FREE = ("journal", "markers", "mock")
"""What runs wherever the project does."""

MVN = """#!/bin/sh
for argument; do case "$argument" in -DoutputDirectory=*) directory="${argument#-DoutputDirectory=}";; esac; done
mkdir -p "$directory" && touch "$directory/kafka.jar"
"""
MVN_WITHOUT_NETWORK = """#!/bin/sh
echo "[INFO] scanning"
echo "[ERROR] Could not resolve dependencies: no route to host"
exit 1
"""


@pytest.fixture
def peer_of(tmp_path: Path) -> Generator[Callable[[str], Peer]]:
    """Peers by name, ended after the test."""
    made: list[Peer] = []

    def make(name: str) -> Peer:
        peer = available(name, tmp_path / name)
        assert not isinstance(peer, Missing)
        made.append(peer)
        return peer

    yield make
    for peer in made:
        peer.kill()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets which of `java` and `mvn` there are, and an empty cache."""
    directory = tmp_path / "programs"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}/bin{os.pathsep}/nonexistent")
    monkeypatch.setattr(cache, "DIRECTORY", tmp_path / "cache")
    real = kafka_artifacts.shutil.which
    # /bin is there for the scripts' own sake, and may hold the real ones.
    monkeypatch.setattr(kafka_artifacts.shutil, "which", lambda name: real(name, path=str(directory)))

    def have(**texts: str) -> None:
        for name, text in texts.items():
            path = directory / name
            path.write_text(text)
            path.chmod(0o755)

    return have


def test_catalogue_with_a_name_that_nobody_has_refuses(tmp_path: Path) -> None:
    """A misspelt peer is a mistake, and no missing one."""
    with pytest.raises(ValueError, match="markers"):
        available("kafak", tmp_path)


def test_kafka_without_java_is_missing_with_the_reason(programs: Callable[..., None], tmp_path: Path) -> None:
    """The report can say why there is no Kafka."""
    programs()
    found = available("kafka", tmp_path)
    assert isinstance(found, Missing)
    assert "java" in found.reason


def test_kafka_without_maven_is_missing_with_the_reason(programs: Callable[..., None], tmp_path: Path) -> None:
    """Java alone is not enough where the jars are not there yet."""
    programs(java="")
    found = available("kafka-fsync", tmp_path)
    assert isinstance(found, Missing)
    assert (found.name, "mvn" in found.reason) == ("kafka-fsync", True)


def test_kafka_that_maven_cannot_resolve_is_missing_with_mavens_words(
    programs: Callable[..., None], tmp_path: Path
) -> None:
    """What Maven says is the reason; and nothing half-had is taken for Kafka the next time."""
    programs(java="", mvn=MVN_WITHOUT_NETWORK)
    found = available("kafka", tmp_path)
    assert isinstance(found, Missing)
    assert "no route to host" in found.reason
    assert isinstance(available("kafka", tmp_path), Missing)


def test_kafka_is_had_from_maven_once(programs: Callable[..., None], tmp_path: Path) -> None:
    """The jars stay, and Maven is not needed again."""
    programs(java="", mvn=MVN)
    assert not isinstance(available("kafka", tmp_path), Missing)
    programs(mvn=MVN_WITHOUT_NETWORK)
    assert not isinstance(available("kafka", tmp_path), Missing)


def test_connector_is_at_hand_when_it_has_been_had(programs: Callable[..., None]) -> None:
    """Tests use it then; they have nothing from Maven by themselves."""
    programs(java="", mvn=MVN)
    assert kafka_artifacts.connector_at_hand() is None
    jars = kafka_artifacts.obtain_connector().jars
    assert kafka_artifacts.connector_at_hand() == jars
    assert [path.name for path in jars.iterdir()] == ["kafka.jar"]


def test_kafka_settings_tell_one_durability_from_the_other(tmp_path: Path) -> None:
    """Only kafka-fsync flushes every batch, and both say the heap; what a scenario tunes is said, too."""
    artifacts = Artifacts("java", tmp_path, "4")
    default, flushing = (
        Kafka(name, tmp_path, artifacts, Tuning(retention_check_ms=500)) for name in ("kafka", "kafka-fsync")
    )
    more = dict(flushing.settings.items() - default.settings.items())
    assert more == {"log.flush.interval.messages": "1"}
    assert "-Xmx1g" in default.settings["JVM"]
    assert default.settings["log.retention.check.interval.ms"] == "500"


def test_kafka_over_data_of_another_node_does_not_format_it(tmp_path: Path) -> None:
    """Data that was put there is taken as it is; an empty directory is formatted first."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "$@" >>calls\n')
    java.chmod(0o755)
    artifacts = Artifacts(str(java), tmp_path, "4")
    for name, has_data in (("empty", False), ("given", True)):
        kafka = Kafka("kafka", tmp_path / name, artifacts, Tuning())
        if has_data:
            kafka.data.mkdir(parents=True)
            (kafka.data / "meta.properties").touch()
        kafka.spawn()
        kafka.kill()
        calls = kafka.directory / "calls"
        assert (calls.exists() and "StorageTool format" in calls.read_text()) is not has_data


def test_peers_of_one_storage_are_those_that_differ_in_flushes_only(tmp_path: Path) -> None:
    """Kafka writes the same with and without flushes; the two modes of Fairlog do not. What stores nothing says so."""
    flushing, default = (
        Kafka(name, tmp_path, Artifacts("", tmp_path, "4"), Tuning()) for name in ("kafka-fsync", "kafka")
    )
    journal, markers, mock = (available(name, tmp_path) for name in FREE)
    assert not isinstance(journal, Missing)
    assert not isinstance(markers, Missing)
    assert not isinstance(mock, Missing)
    assert flushing.storage == default.storage
    assert len({default.storage, journal.storage, markers.storage, mock.storage}) == 4
    assert bool(mock.storage) is mock.durable


@pytest.mark.slow
@pytest.mark.parametrize("name", FREE)
def test_peer_commits_a_transaction_to_its_topic(peer_of: Callable[[str], Peer], name: str) -> None:
    """A peer that has started is one: topics with the partitions asked for, and transactions."""
    peer = peer_of(name)
    peer.start()
    peer.create_topics(["one", "two"], partitions=3)
    producer = Producer({"bootstrap.servers": peer.address, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("two", b"value", partition=2)
    producer.commit_transaction(30)
    assert topics.answers(peer.address)
    assert peer.memory_bytes() > 1_000_000
    assert peer.cpu_s() >= 0
    assert (peer.disk_bytes() > 0) is peer.durable
    peer.stop()
    assert not peer.running


@pytest.mark.slow
def test_peer_that_was_killed_comes_back_at_its_address(peer_of: Callable[[str], Peer]) -> None:
    """Clients outlive the broker: it has the same port again."""
    peer = peer_of("journal")
    peer.start()
    address = peer.address
    peer.kill()
    assert not topics.answers(address, timeout_s=0.2)
    peer.start()
    assert peer.address == address
    assert topics.answers(address)


def test_every_name_has_a_peer_or_a_reason(programs: Callable[..., None], tmp_path: Path) -> None:
    """The catalogue knows every name that may be asked for."""
    programs()
    for name in NAMES:
        found = available(name, tmp_path / name)
        assert found.name == name
