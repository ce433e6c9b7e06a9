"""The tools that look into a data directory, on those of real nodes after a change of owner: one runs, one has stopped.

What each of them says in detail is tested without an engine (tests/cli/test_cluster_directory.py, tests/backup).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from peers.fairlog_cluster import FairlogCluster

from scripts.node_process import ROOT
from tests.cli.processes import FAIRLOG
from tests.on_kafka.test_cluster import PARTITIONS, all_write_on, make_topic, wait_until, writing

pytestmark = pytest.mark.slow


def fairlog(*arguments: object) -> tuple[int, str]:
    """Run a command; its exit code, and what it has printed."""
    command = [*FAIRLOG, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def has_topic(data_dir: Path, topic: str) -> bool:
    """Whether a node that runs has heard of it, and has begun a copy of its shard."""
    code, _ = fairlog("consume", topic, "--until-end", "--json", "--data-dir", data_dir)
    return code == 0


def values_in(data_dir: Path, topic: str) -> dict[int, list[str]]:
    """By partition, in order."""
    code, out = fairlog("consume", topic, "--until-end", "--json", "--data-dir", data_dir)
    assert code == 0, out
    found: dict[int, list[str]] = {}
    for line in out.splitlines():
        record = json.loads(line)
        found.setdefault(record["partition"], []).append(record["value"])
    return found


def test_directories_of_a_node_that_runs_and_of_one_that_has_stopped(cluster: FairlogCluster, tmp_path: Path) -> None:
    """All that was committed before is in both, in the order of its producers; nothing is in doubt for verify."""
    topic = f"orders-{cluster.name}"
    make_topic(cluster.bootstrap, topic)
    with writing(cluster, topic) as writers:
        all_write_on(writers)
        cluster.leave(1)  # its shards get owners that were replicas
        all_write_on(writers)
        cluster.spawn(1)
        all_write_on(writers)
        wait_until(lambda: cluster.is_in_sync(2))
        cluster.kill(2)
        all_write_on(writers)
        code, out = fairlog("backup", tmp_path / "backup", "--data-dir", cluster.data(3))
        assert code == 0, out
    committed = [writer.committed for writer in writers]
    wait_until(lambda: all(len(values) == sum(map(len, committed)) for values in whole(cluster.data(3), topic)))
    for partition in range(PARTITIONS):
        values = values_in(cluster.data(3), topic)[partition]
        for number, expected in enumerate(committed):
            assert [value for value in values if value.startswith(f"w{number}-")] == [v.decode() for v in expected]
    cluster.leave(3)
    for directory in (cluster.data(2), cluster.data(3), tmp_path / "backup"):  # killed, stopped, copied while it ran
        code, out = fairlog("verify", directory, "--all")
        assert code == 0, out
        assert "of 3 shards there are copies of 0, 1, 2" in out
    before = values_in(tmp_path / "backup", topic)
    after = values_in(cluster.data(3), topic)
    assert all(before[each] == after[each][: len(before[each])] for each in range(PARTITIONS))


def whole(data_dir: Path, topic: str) -> list[list[str]]:
    found = values_in(data_dir, topic)
    return [found.get(partition, []) for partition in range(PARTITIONS)]
