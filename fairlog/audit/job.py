"""Runs the audit: rows are read once and kept by Spark, on disk where memory is short, and every check goes over them.

Findings are counted by their kind, and the first of them, by log and offset, are brought to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions
from pyspark.storagelevel import StorageLevel

from fairlog.audit import checks
from fairlog.audit.directory import TASK_BYTES, Audited, AuditedLog, survey_directory
from fairlog.audit.reading import COLUMNS, DirectoryRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_SHUFFLED = 8
"""A task that reads gives some thousand rows; a task behind a shuffle may well have more."""
_INTERPRETED_BYTES = 1 << 30
"""Of batches: to compile the queries takes longer than to interpret them for the rows of so few."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    kind: str
    invariant: int | None
    """Its number in docs/invariants.md; None for what a page of docs/formats promises."""
    log: str | None
    """None for what lies in no log."""
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit has found."""

    findings: Sequence[Finding]
    """The first ones, by log and offset."""
    kinds: Mapping[str, int]
    """How many there are of each kind, all counted."""
    proved: Mapping[str, int]
    """What was looked at."""
    not_proved: Mapping[str, int]
    """What could not be looked at."""
    seconds: float

    @property
    def total(self) -> int:
        return sum(self.kinds.values())


def audit(
    spark: SparkSession, directory: Path, *, has_journals: bool, findings_max: int, task_bytes: int = TASK_BYTES
) -> Report:
    """Audit a directory that nobody writes meanwhile: a stopped node's, or a backup (which has no journals).

    At most `findings_max` findings are told one by one. Raises NotAuditable; what Spark raises if a task fails.
    """
    started = time.monotonic()
    audited = survey_directory(directory, has_journals=has_journals, task_bytes=task_bytes)
    kept: list[DataFrame] = []
    try:
        with _settings(spark, audited):
            frames = _rows(spark, audited, kept, task_bytes=task_bytes)
            found = _findings(spark, frames, markers=any(log.markers for log in audited.logs)).localCheckpoint()
            kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().orderBy("kind").collect()}
            first = found.orderBy("log", "offset", "kind").limit(findings_max).collect() if kinds else []
            numbers = _numbers(spark, frames)
    finally:
        for frame in kept:
            frame.unpersist()
    names = {log.log: log.shown for log in audited.logs}
    findings = [
        *(Finding(checks.MISSING, checks.MISSING_INVARIANT, None, None, what) for what in audited.missing),
        *(Finding(row["kind"], row["invariant"], names.get(row["log"]), row["offset"], row["what"]) for row in first),
    ]
    if audited.missing:
        kinds[checks.MISSING] = len(audited.missing)
    return Report(
        findings[:findings_max],
        kinds,
        proved={query.name: numbers[query.name] for query in checks.PROVED},
        not_proved={query.name: numbers[query.name] for query in checks.NOT_PROVED if numbers[query.name]},
        seconds=time.monotonic() - started,
    )


@contextmanager
def _settings(spark: SparkSession, audited: Audited) -> Generator[None]:
    """How many rows there will be is known beforehand, so Spark need not find out stage by stage."""
    shuffled = max(spark.sparkContext.defaultParallelism, len(audited.tasks) // _TASKS_PER_SHUFFLED)
    compiled = sum(log.size_bytes for log in audited.logs) > _INTERPRETED_BYTES
    ours = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(shuffled),
        "spark.sql.codegen.wholeStage": "true" if compiled else "false",
        "spark.sql.codegen.factoryMode": "FALLBACK" if compiled else "NO_CODEGEN",
    }
    before = {name: spark.conf.get(name) for name in ours}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def _rows(spark: SparkSession, audited: Audited, kept: list[DataFrame], *, task_bytes: int) -> dict[str, DataFrame]:
    """All that checks look at, by the names that they use. What is worth it is kept, and added to `kept`."""
    spark.dataSource.register(DirectoryRows)
    options = {
        "directory": str(audited.directory),
        "transaction": str(audited.transaction),
        "journals": "true" if audited.group_journals else "false",
        "taskBytes": str(task_bytes),
        "shares": str(min(len(audited.logs), spark.sparkContext.defaultParallelism)),
    }
    frames = {"logs": _logs(spark, audited.logs)}
    for name in COLUMNS:
        rows = spark.read.format(DirectoryRows.name()).options(rows=name, **options).load()
        frames[name] = _kept(rows, kept)
    for view in checks.VIEWS:
        rows = _query(spark, view.sql, frames)
        frames[view.name] = _computed(rows) if view.kept else rows
    return frames


def _kept(rows: DataFrame, kept: list[DataFrame]) -> DataFrame:
    """The rows, computed now: Spark plans what is made of them by how many there are."""
    kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
    kept[-1].count()
    return kept[-1]


def _computed(rows: DataFrame) -> DataFrame:
    """As `_kept`, and without the plan that they come of.

    Views are made of views, and checks of these: with all that is below them the plans would be so large that to make
    them takes longer than to run them. The rows cannot be computed again where an executor is lost: then the job fails.
    """
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    kept.count()  # before the plan is cut, so that Spark knows how many there are
    computed = kept.localCheckpoint()
    kept.unpersist()
    return computed


def _logs(spark: SparkSession, logs: Sequence[AuditedLog]) -> DataFrame:
    schema = (
        "log int, name string, shown string, is_topic boolean, log_start bigint, next_offset bigint, "
        "holes_before bigint, markers boolean, size_bytes bigint"
    )
    rows: Any = [tuple(asdict(log).values()) for log in logs]
    frame = spark.createDataFrame(rows, schema)  # pyright: ignore[reportUnknownMemberType]
    return functions.broadcast(frame.withColumn("whole_from", functions.greatest("log_start", "holes_before")))


def _findings(spark: SparkSession, frames: Mapping[str, DataFrame], *, markers: bool) -> DataFrame:
    sql = " union all ".join(check.sql for check in checks.checks(markers=markers))
    return _query(spark, sql, frames)


def _numbers(spark: SparkSession, frames: Mapping[str, DataFrame]) -> dict[str, int]:
    queries = (*checks.PROVED, *checks.NOT_PROVED)
    sql = " union all ".join(f"select {at} as at, number from ({query.sql})" for at, query in enumerate(queries))
    found = {row["at"]: row["number"] for row in _query(spark, sql, frames).collect()}
    return {query.name: found[at] for at, query in enumerate(queries)}


def _query(spark: SparkSession, sql: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    used: dict[str, Any] = {name: frame for name, frame in frames.items() if f"{{{name}}}" in sql}
    return spark.sql(sql, **used)
