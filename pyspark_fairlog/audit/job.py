"""Runs the audit: rows are read once and kept by Spark, on disk where memory does not do, and every check goes over them.

Findings are counted by their kind, and the first of them, by log and offset, are brought to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.storagelevel import StorageLevel

from pyspark_fairlog.audit import checks
from pyspark_fairlog.audit.directory import TASK_BYTES, Audited, AuditedLog, survey_directory
from pyspark_fairlog.audit.reading import COLUMNS, DirectoryRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_SHUFFLED = 8
"""A task that reads gives some thousand rows; a task behind a shuffle may well have more."""


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
    session = _session(spark, len(audited.tasks))
    kept: list[DataFrame] = []
    try:
        frames = _rows(session, audited, kept, task_bytes=task_bytes)
        made = checks.checks(markers=any(log.markers for log in audited.logs))
        found = _kept(_union([session.sql(check.sql, **_used(check.sql, frames)) for check in made]), kept)
        kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().orderBy("kind").collect()}
        first = found.orderBy("log", "offset", "kind").limit(findings_max).collect() if kinds else []
        proved = _numbers(session, checks.PROVED, frames)
        not_proved = {name: count for name, count in _numbers(session, checks.NOT_PROVED, frames).items() if count}
    finally:
        for frame in kept:
            frame.unpersist()
    names = {log.log: log.shown for log in audited.logs}
    findings = [
        Finding(row["kind"], row["invariant"], names.get(row["log"]), row["offset"], row["what"]) for row in first
    ]
    return Report(findings, kinds, proved, not_proved, time.monotonic() - started)


def _session(spark: SparkSession, tasks: int) -> SparkSession:
    """Settings of our own: how many rows there will be is known beforehand, so Spark need not find out stage by stage."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    shuffled = max(spark.sparkContext.defaultParallelism, tasks // _TASKS_PER_SHUFFLED)
    session.conf.set("spark.sql.shuffle.partitions", str(shuffled))
    session.dataSource.register(DirectoryRows)
    return session


def _rows(session: SparkSession, audited: Audited, kept: list[DataFrame], *, task_bytes: int) -> dict[str, DataFrame]:
    """All that checks look at, by the names that they use. What is worth it is kept, and added to `kept`."""
    options = {
        "directory": str(audited.directory),
        "transaction": str(audited.transaction),
        "journals": "true" if audited.group_journals else "false",
        "taskBytes": str(task_bytes),
        "shares": str(min(len(audited.logs), session.sparkContext.defaultParallelism)),
    }
    frames = {"logs": _logs(session, audited.logs)}
    for name in COLUMNS:
        rows = session.read.format(DirectoryRows.name()).options(rows=name, **options).load()
        frames[name] = _kept(rows, kept)
    for view in checks.VIEWS:
        rows = session.sql(view.sql, **_used(view.sql, frames))
        frames[view.name] = _kept(rows, kept) if view.kept else rows
    return frames


def _kept(rows: DataFrame, kept: list[DataFrame]) -> DataFrame:
    """The rows, computed now: Spark plans what is made of them by how many there are."""
    kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
    kept[-1].count()
    return kept[-1]


def _logs(session: SparkSession, logs: Sequence[AuditedLog]) -> DataFrame:
    schema = (
        "log int, name string, shown string, is_topic boolean, log_start bigint, next_offset bigint, "
        "holes_before bigint, markers boolean, size_bytes bigint"
    )
    frame = session.createDataFrame([tuple(asdict(log).values()) for log in logs], schema)
    return functions.broadcast(frame.withColumn("whole_from", functions.greatest("log_start", "holes_before")))


def _numbers(
    session: SparkSession, queries: Sequence[tuple[str, str]], frames: Mapping[str, DataFrame]
) -> dict[str, int]:
    each = [session.sql(f"select ({sql}) as number", **_used(sql, frames)) for _, sql in queries]
    named = [
        rows.select(functions.lit(name).alias("name"), functions.col("number").cast("bigint"))
        for (name, _), rows in zip(queries, each, strict=True)
    ]
    found = {row["name"]: row["number"] for row in _union(named).collect()}
    return {name: found[name] for name, _ in queries}


def _union(each: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), each)


def _used(sql: str, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return {name: frame for name, frame in frames.items() if f"{{{name}}}" in sql}
