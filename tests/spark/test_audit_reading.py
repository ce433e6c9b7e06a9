"""How an audit divides its work: every batch is read once, whatever the ranges; without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from datalog.snapshot import mapped_lmdb
from pyspark_fairlog.audit.directory import AuditedLog, divided, survey_directory
from pyspark_fairlog.audit.reading import BATCHES, read_ranges
from tests.spark.audited import PARTITIONS, RECORDS, TOPICS, fill
from tests.verify.conftest import kill_and_stop
from tests.verify.planting import Planted

pytestmark = pytest.mark.slow

PART = list(BATCHES).index("part")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node's directory."""
    return kill_and_stop(tmp_path_factory.mktemp("node"), fill, **TOPICS)[1]


def rows_of(directory: Path, task_bytes: int) -> list[tuple[object, ...]]:
    audited = survey_directory(directory, has_journals=True, task_bytes=task_bytes)
    found: list[tuple[object, ...]] = []
    for ranges in audited.tasks:
        file = mapped_lmdb(directory / "datalog" / "data.mdb", transaction=audited.transaction)
        assert file is not None
        found += [(*row[:PART], *row[PART + 1 :]) for row in read_ranges(file, ranges)]
    return found


@pytest.mark.parametrize("holes", [(), (3,), (1, 2, 3), (RECORDS - 1,), tuple(range(5, 12))])
def test_rows_are_the_same_whatever_the_ranges(filled: Path, tmp_path: Path, holes: tuple[int, ...]) -> None:
    """Also where whole ranges hold nothing, or the batch that an edge falls into is gone."""
    planted = Planted(Path(shutil.copytree(filled, tmp_path / "data")))
    planted.put_batches(dict.fromkeys(holes))
    whole = rows_of(planted.directory, 1 << 30)
    assert len(whole) == PARTITIONS * (RECORDS - 1) - len(holes)
    for task_bytes in (1, 100, 200, 333, 700):
        assert rows_of(planted.directory, task_bytes) == whole, task_bytes


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
    return AuditedLog(number, f"t-{number:032x}-0", f"t-{number}", True, 0, records, 0, False, size_bytes)
