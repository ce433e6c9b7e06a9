"""The audit of real directories: what a node leaves is found whole, and of each planted fault just that is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator.group_records import GroupRecord
from fairlog.audit.job import audit
from fairlog.backup.making import make_backup
from fairlog.verify.findings import Kind
from scripts.node_process import ROOT
from tests.node.nodes import TOPIC
from tests.shards import split_in_two
from tests.spark.audited import (
    BATCHES,
    MARKER_BATCHES,
    MARKER_RECORDS,
    MARKERS,
    RECORDS,
    TRANSACTIONAL_BATCHES,
    TRANSACTIONS,
    append_to_journal,
    filled,
    planted,
)
from tests.spark.faults import FAULTS
from tests.spark.marker_faults import MARKER_FAULTS
from tests.spark.planted_faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PARTITIONS, MARKER_PARTITIONS = len(FAULTS), len(MARKER_FAULTS)

RANGE_BYTES = 6_000
"""A log is read in two ranges."""

Found = Mapping[str | None, Sequence[tuple[str, int | None]]]
"""Kinds and offsets, by log: each as often as it is told."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same node's directory as a kill leaves it, and as a good end does."""
    return filled(tmp_path_factory.mktemp("node"), partitions=PARTITIONS, marker_partitions=MARKER_PARTITIONS)


@pytest.fixture(scope="module")
def damaged(directories: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the stopped node's, with every fault in a partition of its own."""
    directory = Path(shutil.copytree(directories[1], tmp_path_factory.mktemp("planted") / "data"))
    told: list[GroupRecord] = []
    for topic, faults in ((MARKERS, MARKER_FAULTS), (TOPIC, FAULTS)):
        for partition, fault in enumerate(faults):
            told += fault.plant(planted(directory, topic), partition)
    append_to_journal(planted(directory), b"billing", told)
    return directory


@pytest.fixture(scope="module")
def found(spark: SparkSession, damaged: Path) -> Found:
    """What the audit finds of all faults."""
    report = audit(spark, damaged, has_journals=True, findings_max=1000, task_bytes=RANGE_BYTES)
    assert report.total == len(report.findings)
    found: dict[str | None, list[tuple[str, int | None]]] = defaultdict(list)
    for each in report.findings:
        found[each.log].append((each.kind, each.offset))
    return found


# --- what is whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_directory_of_a_node_is_found_whole(spark: SparkSession, directories: tuple[Path, Path], end: str) -> None:
    """Nothing is found, and everything was looked at: all transactions, in their order, in their places."""
    stopped = end == "stopped"
    report = audit(spark, directories[stopped], has_journals=True, findings_max=10)
    assert list(report.findings) == []
    assert report.kinds == {}
    assert report.not_proved == {}
    assert report.proved == {
        "data logs": PARTITIONS + MARKER_PARTITIONS,
        "batches": PARTITIONS * BATCHES + MARKER_PARTITIONS * (MARKER_BATCHES - (not stopped)),
        "records": PARTITIONS * RECORDS + MARKER_PARTITIONS * MARKER_RECORDS,
        "bytes": report.proved["bytes"],
        "transactions whose places are known": TRANSACTIONS + 1,
        "transactional batches found in their places": PARTITIONS * TRANSACTIONAL_BATCHES,
        "transactions found with their markers": MARKER_PARTITIONS * (3 + stopped),
        "transactions in their group's order": TRANSACTIONS + 1,
    }


def test_backup_is_found_whole(spark: SparkSession, directories: tuple[Path, Path], tmp_path: Path) -> None:
    """Without journals, places are what the producers' windows know, which have forgotten one of two batches."""
    make_backup(directories[1], tmp_path / "backup", now_ms=lambda: 1)
    report = audit(spark, tmp_path / "backup", has_journals=False, findings_max=10, task_bytes=RANGE_BYTES)
    assert list(report.findings) == []
    assert report.proved["transactional batches found in their places"] == PARTITIONS * (TRANSACTIONAL_BATCHES - 2)
    assert list(report.not_proved.values()) == [PARTITIONS * 2]


def test_directory_of_two_shards_is_found_whole(
    spark: SparkSession, directories: tuple[Path, Path], tmp_path: Path
) -> None:
    """As much is looked at as in one: transactions have places, and their group journal, in either."""
    directory = Path(shutil.copytree(directories[1], tmp_path / "data"))
    one = audit(spark, directory, has_journals=True, findings_max=10)
    split_in_two(directory)
    two = audit(spark, directory, has_journals=True, findings_max=10, task_bytes=RANGE_BYTES)
    assert list(two.findings) == []
    assert (two.proved, two.not_proved) == (one.proved, one.not_proved)


# --- what is planted --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "partition", "fault"),
    [
        pytest.param(topic, partition, fault, id=f"{topic}-{fault.name}")
        for topic, faults in ((TOPIC, FAULTS), (MARKERS, MARKER_FAULTS))
        for partition, fault in enumerate(faults)
    ],
)
def test_fault_is_found_and_nothing_else_is(found: Found, topic: str, partition: int, fault: Fault) -> None:
    """At its place and once, wherever a range begins or ends; and what is no fault accuses nobody."""
    log = f"{topic}-{partition}"
    if fault.in_log:
        assert Counter(found.get(log, ())) == Counter(fault.due)
    else:
        assert log not in found
        assert Counter(found[None]) == Counter(fault.due)


def test_every_kind_of_finding_is_planted() -> None:
    """A rule that nothing is planted for may be broken, and nobody would see it."""
    planted = {kind for fault in (*FAULTS, *MARKER_FAULTS) for kind, _ in fault.due}
    assert planted == set(Kind) - {Kind.MISSING}


# --- the command ------------------------------------------------------------------------------------


def test_command_shows_findings_and_counts_all(damaged: Path) -> None:
    """Exit code 1, and one JSON document: some findings, and how many there are."""
    done = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "audit", damaged, "--master=local[1]", "--count=1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert len(report["findings"]) == 1
    assert report["kinds"]["stranger in a transaction"] == 1
    assert report["total"] == sum(report["kinds"].values()) > 1
    assert not re.search("Traceback", done.stderr)
