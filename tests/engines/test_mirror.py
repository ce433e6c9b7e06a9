"""MirrorMaker 2 between two nodes, both ways and exactly once, while it and a node are killed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, Mode
from tests.engines import topics
from tests.engines.full import FULL
from tests.engines.jvm import PLATFORM
from tests.engines.programs import Workers

pytestmark = FULL  # a MirrorMaker's start takes ten seconds of processor time

PARTITIONS = 2
COUNT = 4000
ONE_REPLICA = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
)


@pytest.fixture(autouse=True)
def _platform() -> None:
    PLATFORM.require()


def mirror_maker(directory: Path, west: str, east: str) -> list[str]:
    """The command of a MirrorMaker that carries topics both ways, with what groups have read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = dict.fromkeys(ONE_REPLICA, "1") | {
        "clusters": "west, east",
        "west.bootstrap.servers": west,
        "east.bootstrap.servers": east,
        "west->east.enabled": "true",
        "east->west.enabled": "true",
        "west->east.topics": "forth",
        "east->west.topics": "back",
        "groups": "readers",
        "west.exactly.once.source.support": "enabled",
        "east.exactly.once.source.support": "enabled",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{port}",
        "offset.lag.max": "0",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
        "session.timeout.ms": "6000",
        "heartbeat.interval.ms": "1000",
        "scheduled.rebalance.max.delay.ms": "0",
        "producer.request.timeout.ms": "10000",
        "producer.delivery.timeout.ms": "30000",
    }
    path = directory / "mirror.properties"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()), "utf-8")
    return PLATFORM.command("org.apache.kafka.connect.mirror.MirrorMaker", str(path))


def records(address: str, topic: str, mode: Mode) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition, in order."""
    seen = topics.committed(address, topic, PARTITIONS, mode)
    return [[(each.key, each.value) for each in seen if each.partition == p] for p in range(PARTITIONS)]


def count(address: str, topic: str) -> int:
    """How far a topic goes that may not be there yet."""
    return len(topics.read(address, topic, PARTITIONS)) if topics.exists(address, topic) else 0


def fill(address: str, topic: str, first: int, end: int) -> None:
    topics.fill(address, topic, PARTITIONS, ((f"key-{n}", f"{topic}-{n}") for n in range(first, end)))


@BOTH_MODES
def test_mirror_both_ways_under_kills_carries_each_record_once(
    fresh_node: Callable[..., NodeProcess], mode: Mode, tmp_path: Path
) -> None:
    """The mirrored topics hold the same records in the same order."""
    west, east = fresh_node(), fresh_node()
    topics.make(west.address, "forth", PARTITIONS)
    topics.make(east.address, "back", PARTITIONS)
    command = mirror_maker(tmp_path, west.address, east.address)

    def arrived() -> int:
        return min(count(east.address, "west.forth"), count(west.address, "east.back"))

    with Workers([command], tmp_path / "mirror.log") as workers:
        for step in range(4):
            first, end = step * COUNT // 4, (step + 1) * COUNT // 4
            fill(west.address, "forth", first, end)
            fill(east.address, "back", first, end)
            if step == 1:
                east.kill()
                east.start()
            if step == 2:
                workers.kill(0)
            workers.run_until(lambda end=end: arrived() >= end, f"{end} records both ways")
        assert records(east.address, "west.forth", mode) == records(west.address, "forth", mode)
        assert records(west.address, "east.back", mode) == records(east.address, "back", mode)


def carry_group(west: NodeProcess, east: NodeProcess, directory: Path, **config: str) -> None:
    """What a group has read here it has read there: its offsets come to be those after the last mirrored records."""
    topics.make(west.address, "forth", PARTITIONS, **config)
    command = mirror_maker(directory, west.address, east.address)
    with Workers([command], directory / "mirror.log") as workers:
        fill(west.address, "forth", 0, 1000)
        workers.run_until(lambda: count(east.address, "west.forth") >= 1000, "all records")
        reader = Consumer({"bootstrap.servers": west.address, "group.id": "readers"})
        reader.commit(offsets=[TopicPartition("forth", p, 500) for p in range(PARTITIONS)], asynchronous=False)
        reader.close()
        # After the last record, and not at the high watermark: a marker may stand in between.
        seen = topics.read(east.address, "west.forth", PARTITIONS)
        truth = {("west.forth", p): max(each.offset for each in seen if each.partition == p) + 1 for p in (0, 1)}
        workers.run_until(
            lambda: topics.group_offsets(east.address, "readers") == truth, f"the group's offsets {truth} there"
        )


def test_mirror_syncs_groups_in_marker_mode(fresh_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    """Offsets are translated by those in delivery reports, which marker mode has."""
    west, east = (fresh_node(FAIRLOG_TOPICS_TRANSACTIONS=Mode.MARKERS.value) for _ in range(2))
    carry_group(west, east, tmp_path)


def test_mirror_syncs_groups_with_lowest_offsets(fresh_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    """In journal mode as well, if delivery reports have the lowest offset; the mirrored topic has the config, too."""
    carry_group(fresh_node(), fresh_node(), tmp_path, **{"fairlog.transactional.offsets": "lowest"})
