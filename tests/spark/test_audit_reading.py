"""How an audit divides its work: every batch is read once, whatever the ranges; without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coordinator.group_records import CommittedRecord, Expectation, PrepareCommitRecord
from datalog import layout
from datalog.environment import LmdbDataLogs
from datalog.snapshot import mapped_lmdb
from fairlog.audit.checking import check_journal
from fairlog.audit.directory import AuditedLog, divided, survey_directory
from fairlog.audit.reading import COLUMNS, _Reader, _told_rows, read_ranges, read_told, read_windows
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.verify.findings import Kind, Summary
from fairlog.verify.transactions import read_history
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
)
from partition.producer_window import AppliedTransaction, ProducerWindow
from shard.directory import shard_directory
from tests.datalog.batches import batch
from tests.shards import shard_in, split_in_two
from tests.spark.audited import BATCHES, RECORDS, filled, planted, txid
from tests.verify.planting import Planted, flip

pytestmark = pytest.mark.slow

PARTITIONS = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node's directory."""
    return filled(tmp_path_factory.mktemp("node"), partitions=PARTITIONS, marker_partitions=0)[1]


def rows_of(directory: Path, task_bytes: int) -> list[tuple[object, ...]]:
    audited = survey_directory(directory, has_journals=True, task_bytes=task_bytes)
    found: list[tuple[object, ...]] = []
    (shard,) = audited.shards
    for ranges in audited.tasks:
        file = mapped_lmdb(shard.directory.data_logs_file, transaction=shard.transaction)
        assert file is not None
        found += read_ranges(file, ranges)
    return found


@pytest.mark.parametrize("holes", [(), (3,), (1, 2, 3), (RECORDS - 1,), (*range(5, 12),)])
def test_rows_are_the_same_whatever_the_ranges(directory: Path, tmp_path: Path, holes: tuple[int, ...]) -> None:
    """Also where whole ranges hold nothing, or the batch that an edge falls into is gone."""
    planted = Planted(Path(shutil.copytree(directory, tmp_path / "data")))
    planted.put_batches(dict.fromkeys(holes))
    whole = rows_of(planted.directory, 1 << 30)
    assert len(whole) == PARTITIONS * BATCHES - len(holes)
    for task_bytes in (1, 100, 333, 700, 5000):
        assert rows_of(planted.directory, task_bytes) == whole, task_bytes


def read_by_tasks(directory: Path, rows: str) -> list[str]:
    """The rows of all tasks, with names for the logs' numbers, whichever shard they are from, sorted."""
    audited = survey_directory(directory, has_journals=True)
    states = [shard.transaction for shard in audited.shards]
    names = {log.log: log.name for log in audited.logs} | {None: None}
    column = list(COLUMNS[rows]).index("log")
    reader = _Reader(directory, states, rows, has_journals=True, task_bytes=1000, shares=2)
    found: list[str] = []
    tasks = reader.partitions()
    assert rows != "batches" or len(tasks) == len(survey_directory(directory, has_journals=True, task_bytes=1000).tasks)
    for task in tasks:
        for arrow in reader.read(task):
            read = zip(*(each.to_pylist() for each in arrow.columns), strict=True)
            found += [str((*row[:column], names[row[column]], *row[column + 1 :])) for row in read]
    return sorted(each.replace("in shards/1", "in shards/0") for each in found)


@pytest.mark.parametrize("rows", COLUMNS)
def test_tasks_of_two_shards_read_what_those_of_one_read(directory: Path, tmp_path: Path, rows: str) -> None:
    """Each row once, from the shard that has it, under a number that no log of the other has."""
    copy = Path(shutil.copytree(directory, tmp_path / "data"))
    one = read_by_tasks(copy, rows)
    split_in_two(copy)
    assert read_by_tasks(copy, rows) == one
    assert len(one) > PARTITIONS
    tasks = survey_directory(copy, has_journals=True, task_bytes=1 << 30).tasks
    assert [{each.shard for each in task} for task in tasks] == [{0}, {1}]


async def test_logs_of_two_shards_with_the_same_number_are_told_apart(tmp_path: Path) -> None:
    """Each shard numbers its own logs: the rows of both are told by numbers that the audit gives."""
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=1)
    logs = list((await store.create_topic("t", partitions=2, configs={}, now_ms=0)).logs())
    store.close()
    for log in logs:
        environment = LmdbDataLogs.open(
            shard_directory(tmp_path, ShardNumber(log.partition)).data_logs, map_bytes=1 << 24
        )
        with environment.write() as writer:
            writer.create(log)
            for offset in range(2 + log.partition):
                writer.append(log, Offset(offset), 1, 5, batch(offset, [5]))
            applied = AppliedTransaction(ProducerEpoch(0), 0, ApplyNumber(1), Offset(log.partition), 1)
            window = ProducerWindow(ProducerEpoch(0), (), (applied,), 0, JournalPosition(0))
            writer.put_producer(log, ProducerId(7), window.encode())
        environment.close()
    audited = survey_directory(tmp_path, has_journals=False)
    assert {(log.name, log.number) for log in audited.logs} == {(str(log), 0) for log in logs}
    assert len(read_by_tasks(tmp_path, "batches")) == 2 + 3
    for log in logs:
        assert sum(str(log) in row for row in read_by_tasks(tmp_path, "batches")) == 2 + log.partition
        (window_row,) = (row for row in read_by_tasks(tmp_path, "windows") if str(log) in row)
        assert window_row == str((str(log), 7, 0, 0, 1, log.partition, 1, False, None))


def test_group_journal_that_cannot_be_read_is_a_finding(directory: Path, tmp_path: Path) -> None:
    """What it says is a finding; no other journal is less told for it."""
    planted = Planted(Path(shutil.copytree(directory, tmp_path / "data")))
    segment = planted.group_segment(b"billing")
    flip(segment, 0)
    number = int(segment.parent.name)
    ((told, *nothing),) = read_told(shard_in(planted.directory), number, {})
    assert told == number
    assert set(nothing) == {None}
    (found,) = check_journal([shard_in(planted.directory)] * PARTITIONS, number, (), {}, Summary())
    assert found.kind is Kind.DAMAGED_TRANSACTIONS
    assert found.what.startswith(f"shards/0/journals/group/{number}: ")


def test_place_of_a_producer_with_something_prepared_is_not_certain(directory: Path) -> None:
    """What is prepared may be copied, and told by nobody: then the producer's later places are not all known."""
    log = planted(directory).log()
    one, other = txid(1), txid(2)
    records = [
        CommittedRecord(each, str(each), (Placement(log, Offset(base), 1),), 0)
        for base, each in enumerate((one, other))
    ]
    prepared = PrepareCommitRecord(txid(2, 1), "2", {log: Expectation(LeaderEpoch(1), 1)}, 0, 1)
    history = read_history("journals/group/0", [*records, prepared])
    rows = [row for row in _told_rows(0, history, {str(log): 7}) if row[4] is not None]
    assert [row[1:8] for row in rows] == [(*one, 7, 0, 1, True), (*other, 7, 1, 1, False)]
    assert list(_told_rows(0, history, {})) == [(0, 1, *[None] * 7), (0, 2, *[None] * 7)]


def test_window_that_a_deleted_log_has_left_is_passed_by(directory: Path) -> None:
    """Its log is not among those that are audited; the others' rows have the numbers of the audit."""
    (shard,) = survey_directory(directory, has_journals=True).shards
    file = mapped_lmdb(shard.directory.data_logs_file, transaction=shard.transaction)
    assert file is not None
    first, gone = sorted({row[0] for row in read_windows(file, {number: number for number in range(100)})})
    assert {row[0] for row in read_windows(file, {first: 70, gone + 1: 71})} == {70}


def test_window_under_a_damaged_key_is_a_row_that_says_so(directory: Path, tmp_path: Path) -> None:
    """Keys, as values, may be anything: the audit goes on, and tells of it."""
    planted = Planted(Path(shutil.copytree(directory, tmp_path / "data")))
    with planted.writing() as (txn, database):
        producers = database(layout.PRODUCERS)
        key, value = next((bytes(key), bytes(value)) for key, value in txn.cursor(db=producers))
        txn.delete(key, db=producers)
        txn.put(key[:7], value, db=producers)
    (shard,) = survey_directory(planted.directory, has_journals=True).shards
    file = mapped_lmdb(shard.directory.data_logs_file, transaction=shard.transaction)
    assert file is not None
    (row,) = read_windows(file, {layout.decode_number(key[: layout.LOG_NUMBER_BYTES]): 0})
    assert "a producer's key has 12 bytes, this one 7" in str(row[-1])


@pytest.mark.parametrize("ended", ["closed", "open"])
def test_what_is_gone_as_a_whole_is_missed(directory: Path, tmp_path: Path, ended: str) -> None:
    """No row tells of it. A topic that a crash has met while it was made may lack a log."""
    planted = Planted(Path(shutil.copytree(directory, tmp_path / "data")))
    assert survey_directory(planted.directory, has_journals=True).missing == []
    with planted.writing() as (txn, database):
        txn.delete(str(planted.log(1)).encode(), db=database(layout.LOGS))
    shutil.rmtree(shard_in(planted.directory).group_journal(1))
    last_run = planted.directory / "last-run"
    last_run.write_text(last_run.read_text().replace("closed", ended))
    log, journal = "the data log of t-1 is missing", "group journal 1 is missing"
    found = survey_directory(planted.directory, has_journals=True).missing
    assert [each.partition(",")[0] for each in found] == ([log, journal] if ended == "closed" else [journal])
    assert not survey_directory(planted.directory, has_journals=False).missing[1:]


def test_small_logs_share_tasks_and_large_ones_are_divided() -> None:
    """About as many bytes for each task, and no log is left out."""
    logs = [log_of(number, 10) for number in range(100)] + [log_of(100, 1000)] + [log_of(101, 10)]
    tasks = divided(logs, task_bytes=100)
    assert [len(task) for task in tasks[:10]] == [10] * 10
    assert {each.log for task in tasks for each in task} == set(range(102))
    assert sum(each.log == 100 for task in tasks for each in task) == 10


def test_empty_log_is_one_range() -> None:
    """Its batches are looked for all the same: there may be some that should not be there."""
    ((only,),) = divided([log_of(7, 0, records=0)], task_bytes=100)
    assert (only.start, only.end) == (0, None)


def log_of(number: int, size_bytes: int, *, records: int = 1000) -> AuditedLog:
    return AuditedLog(number, 0, number, f"t-{number:032x}-0", f"t-{number}", True, 0, records, 0, False, size_bytes)
