"""The audit of real directories: what a node leaves is found whole, and each thing that is planted is found."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from datalog import layout
from datalog.batch import parse_batch_header_untrusted
from fairlog.backup.making import make_backup
from fairlog_types import LeaderEpoch, LogId, Offset, Placement
from journal.group_records import (
    CommittedPart,
    CommittedRecord,
    Expectation,
    GroupCommittedRecord,
    GroupPrepareCommitRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    PreparedPart,
)
from pyspark_fairlog.audit.checks import checks
from pyspark_fairlog.audit.job import Report, audit
from scripts.node_process import ROOT
from tests.spark.audited import PARTITIONS, RECORDS, TOPICS, append_to_journal, fill, put_raw_window, put_window, txid
from tests.verify.conftest import kill_and_stop
from tests.verify.planting import Planted, flip, with_header
from tests.verify.test_planted_damage import append_a_copy, producer_of
from tests.verify.test_planted_markers import fill as fill_with_markers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TINY_TASK_BYTES = 700
"""A log is read in several ranges, of a few batches each."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same node's directory as a kill leaves it, and as a good end does."""
    return kill_and_stop(tmp_path_factory.mktemp("node"), fill, **TOPICS)


@pytest.fixture(scope="module")
def with_markers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A directory with a topic of marker mode, likewise."""
    return kill_and_stop(tmp_path_factory.mktemp("markers"), fill_with_markers, FAIRLOG_TOPICS_TRANSACTIONS="markers")


@pytest.fixture
def planted(filled: tuple[Path, Path], tmp_path: Path) -> Planted:
    return Planted(Path(shutil.copytree(filled[1], tmp_path / "data")))


def audited(
    spark: SparkSession, directory: Path, *, has_journals: bool = True, task_bytes: int = TINY_TASK_BYTES
) -> Report:
    return audit(spark, directory, has_journals=has_journals, findings_max=1000, task_bytes=task_bytes)


def found_in(report: Report) -> set[tuple[str, str | None, int | None]]:
    return {(found.kind, found.log, found.offset) for found in report.findings}


# --- what is whole ----------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_directory_of_a_node_is_found_whole(spark: SparkSession, filled: tuple[Path, Path], end: str) -> None:
    """Nothing is found, and everything was looked at: all transactions, in their order, in their places."""
    report = audited(spark, filled[end == "stopped"])
    assert list(report.findings) == []
    assert report.kinds == {}
    assert report.not_proved == {}
    assert report.proved == {
        "data logs": PARTITIONS,
        "batches": PARTITIONS * (RECORDS - 1),
        "records": PARTITIONS * RECORDS,
        "bytes": report.proved["bytes"],
        "transactions whose places are known": 8,
        "transactional batches found in their places": PARTITIONS * 11,
        "transactions found with their markers": 0,
        "transactions in their group's order": 8,
    }


def test_backup_is_found_whole(spark: SparkSession, filled: tuple[Path, Path], tmp_path: Path) -> None:
    """Without journals, places are what the producers' windows know."""
    make_backup(filled[1], tmp_path / "backup", now_ms=lambda: 1)
    report = audited(spark, tmp_path / "backup", has_journals=False)
    assert list(report.findings) == []
    assert report.proved["transactional batches found in their places"] == PARTITIONS * 11


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_directory_with_markers_is_found_whole(spark: SparkSession, with_markers: tuple[Path, Path], end: str) -> None:
    """Open and aborted transactions stand in the logs, and gaps in the sequences come of no loss."""
    report = audited(spark, with_markers[end == "stopped"])
    assert list(report.findings) == []
    assert report.proved["transactions found with their markers"] == (8 if end == "stopped" else 6)


# --- what is planted --------------------------------------------------------------------------------


def plant_in_batches(planted: Planted) -> set[tuple[str, str | None, int | None]]:
    """Damage to batches, in a partition for each; what is found of it."""
    flip(planted.data_logs, planted.byte_of(b"one of 1", 0))
    planted.put_batches({3: None}, 1)
    for partition, key in ((2, 3), (3, 2), (4, 7)):
        append_copy(planted, partition, key)
    change(planted, 5, 8, attributes=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    change(planted, 6, 8, producer_id=12345)
    change(planted, 7, 2, attributes=0x30)
    change(planted, 7, 4, base_offset=5)
    change(planted, 7, 13, base_offset=11, last_offset_delta=2)
    planted.change_record(lambda record: setattr(record, "next_offset", record.next_offset + 1), 7)
    put_raw_window(planted, 77_777, b"no window", 7)
    return {
        ("damaged batch", "t-0", 7),
        ("torn transaction", "t-0", 7),
        ("hole", "t-1", 3),
        ("sequence", "t-2", RECORDS),
        ("batch twice", "t-3", RECORDS),
        ("transaction of nobody", "t-4", RECORDS),
        ("sequence", "t-4", RECORDS),
        ("torn transaction", "t-5", 7),
        ("torn transaction", "t-6", 7),
        ("stranger in a transaction", "t-6", 8),
        ("control batch", "t-7", 2),
        ("wrong key", "t-7", 4),
        ("hole", "t-7", 4),
        ("offset twice", "t-7", 11),
        ("wrong end", "t-7", RECORDS + 1),
        ("damaged transactions", "t-7", None),
    }


def plant_in_transactions(planted: Planted) -> set[tuple[str, str | None, int | None]]:
    """What group journals and windows say of transactions, and is not so."""
    log = planted.log
    append_to_journal(
        planted,
        b"billing",
        [
            CommittedRecord(txid(5000, 0), "planted", (Placement(log(0), Offset(4), 1),), 0),
            CommittedRecord(txid(5000, 1), "planted", (Placement(log(0), Offset(3), 1),), 0),
            PrepareCommitRecord(txid(5000, 2), "planted", {log(1): expected(3)}, 0),
            CommittedRecord(txid(5000, 2), "planted", (Placement(log(1), Offset(3), 1),), 0),
            PrepareCommitRecord(txid(5001), "half", {log(1): expected(1), log(2): expected(1)}, 0),
            PrepareCommitRecord(txid(5006), "more", {log(3): expected(2)}, 0),
            PrepareAbortRecord(txid(5002), "aborted", (log(3),), 0),
            lanes_prepared(log(4)),
            lanes_committed(log(4)),
        ],
    )
    put_window(planted, txid(5001), 4, 1)
    put_window(planted, txid(5006), 2, 3)
    put_window(planted, txid(5002), 4, 3)
    put_window(planted, txid(5005), 1000, 7)
    billing = producer_of(planted, "billing")
    *rest, last = planted.window(billing, 5).applied
    planted.change_window(billing, 5, applied=(*rest, last._replace(apply_number=999)))
    *rest, last = planted.window(billing, 6).applied
    planted.change_window(billing, 6, applied=(*rest, last._replace(base_offset=last.base_offset - 1)))
    return {
        ("wrong order", "t-0", 3),
        ("torn transaction", "t-0", 3),
        ("records lost or added", "t-1", 3),
        ("half a transaction", "t-1", 4),
        ("records lost or added", "t-3", 2),
        ("never committed", "t-3", 4),
        ("lanes apart", "t-4", 9),
        ("places overlap", "t-4", 5),
        ("apply numbers differ", "t-5", 9),
        ("contradicting places", "t-6", 8),
        ("place behind the end", "t-7", 1000),
    }


def plant_in_markers(planted: Planted) -> set[tuple[str, str | None, int | None]]:
    """By offset: 0 plain, 1 long, 2 committed by 3, 4 aborted by 5, 6 long, aborted by 7, 8 hanging, 9 plain.

    So it is in partition 0; partition 1 has the same without what is plain.
    """
    change(planted, 0, 1, producer_epoch=7)
    planted.put_batches({3: None}, 0)
    append_copy(planted, 0, 2)
    batches = dict(planted.batches(1))
    committed, marker, aborted = (batches[layout.batch_key(key)] for key in (1, 2, 3))
    end = planted.record(1).next_offset
    planted.put_batches(
        {
            2: with_header(aborted, base_offset=2),
            3: with_header(marker, base_offset=3),
            end: with_header(committed, base_offset=end, base_sequence=50),
            end + 1: with_header(marker, base_offset=end + 1),
        },
        1,
    )
    planted.change_record(lambda record: setattr(record, "next_offset", record.next_offset + 2), 1)
    return {
        ("hole", "t-0", 3),
        ("transaction without its marker", "t-0", 2),
        ("older epoch", "t-0", 1),
        ("torn transaction", "t-1", 1),
        ("transaction of nobody", "t-1", end),
    }


def test_damage_to_batches_is_found(spark: SparkSession, planted: Planted) -> None:
    """Each kind, at its place; also where a range begins or ends between the batches in question."""
    due = plant_in_batches(planted)
    report = audited(spark, planted.directory)
    assert due <= found_in(report), due - found_in(report)


def test_what_is_told_of_transactions_and_is_not_so_is_found(spark: SparkSession, planted: Planted) -> None:
    """The journals and windows are held against the batches, and against each other."""
    due = plant_in_transactions(planted)
    report = audited(spark, planted.directory)
    assert due <= found_in(report), due - found_in(report)


def test_damage_to_markers_is_found(spark: SparkSession, with_markers: tuple[Path, Path], tmp_path: Path) -> None:
    """A transaction is whole when the marker that ends it, and all its records, are there."""
    planted = Planted(Path(shutil.copytree(with_markers[0], tmp_path / "data")))
    due = plant_in_markers(planted)
    report = audited(spark, planted.directory)
    assert due <= found_in(report), due - found_in(report)


def test_every_rule_is_planted(filled: tuple[Path, Path], with_markers: tuple[Path, Path], tmp_path: Path) -> None:
    """A rule that nothing is planted for may be broken, and nobody would see it."""
    planted: set[str] = set()
    for number, (source, plant) in enumerate(
        ((filled[1], plant_in_batches), (filled[1], plant_in_transactions), (with_markers[0], plant_in_markers))
    ):
        copy = Planted(Path(shutil.copytree(source, tmp_path / str(number))))
        planted |= {kind for kind, _, _ in plant(copy)}
    assert planted == {rule.kind for check in checks(markers=True) for rule in check.rules}


def test_unfit_page_is_found_and_the_rest_is_audited(spark: SparkSession, planted: Planted) -> None:
    """What cannot be read is a finding; other logs are looked at all the same."""
    at = planted.byte_of(b"two of 2", 0) // 4096 * 4096
    for byte in range(at, at + 8):
        flip(planted.data_logs, byte)
    report = audited(spark, planted.directory, task_bytes=1 << 20)
    assert {kind for kind, log, _ in found_in(report) if log == "t-0"} >= {"damaged batch", "wrong end"}
    assert report.proved["batches"] >= (PARTITIONS - 1) * (RECORDS - 1)


# --- the command ------------------------------------------------------------------------------------


def test_command_shows_findings_and_counts_all(planted: Planted) -> None:
    """Exit code 1, and one JSON document: some findings, and how many there are."""
    append_copy(planted, 2, 3)
    planted.put_batches({3: None}, 1)
    done = subprocess.run(
        [sys.executable, "-m", "fairlog.cli", "audit", planted.directory, "--master=local[1]", "--count=1", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert len(report["findings"]) == 1
    assert report["kinds"]["hole"] == 1
    assert report["total"] == sum(report["kinds"].values()) >= 2
    assert not re.search("Traceback", done.stderr)


def expected(records: int) -> Expectation:
    return Expectation(LeaderEpoch(1), records)


def lanes_prepared(log: LogId) -> GroupPrepareCommitRecord:
    parts = tuple(PreparedPart(slot, txid(5003 + slot), {log: expected(1)}) for slot in range(2))
    return GroupPrepareCommitRecord("planted", "query", 0, parts, 0)


def lanes_committed(log: LogId) -> GroupCommittedRecord:
    places = ((Placement(log, Offset(5), 1),), (Placement(log, Offset(9), 1),))
    return GroupCommittedRecord(
        "planted", 0, tuple(CommittedPart(slot, txid(5003 + slot), places[slot]) for slot in range(2)), 0
    )


def change(planted: Planted, partition: int, key: int, **fields: object) -> None:
    """Other fields in the header of the batch that ends with the offset `key`."""
    data = dict(planted.batches(partition))[layout.batch_key(key)]
    planted.put_batches({key: with_header(data, **fields)}, partition)


def append_copy(planted: Planted, partition: int, key: int) -> None:
    """The batch of one record that ends with `key` once more, behind the last one."""
    data = dict(planted.batches(partition))[layout.batch_key(key)]
    assert parse_batch_header_untrusted(data).record_count == 1
    if partition == 0:
        append_a_copy(planted, data)
        return
    end = planted.record(partition).next_offset
    planted.put_batches({end: with_header(data, base_offset=end)}, partition)
    planted.change_record(lambda record: setattr(record, "next_offset", record.next_offset + 1), partition)
