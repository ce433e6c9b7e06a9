"""Runs the audit: rows are read, brought together by log and by group journal, and checked there.

    batches, places of transactions ─▶ by log, in order              ─▶ checking.check_logs      ─┬▶ findings, counts
    windows, and what journals tell ─▶ by group journal of producers ─▶ checking.check_journals  ─┘

Findings are counted by their kind, and the first of them, by log and offset, are brought to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.storagelevel import StorageLevel

from fairlog.audit import checking
from fairlog.audit.checking import BATCH, FOUND, LOG, PLACE, check_journals, check_logs
from fairlog.audit.directory import TASK_BYTES, Audited, survey_directory
from fairlog.audit.reading import COLUMNS, DirectoryRows
from fairlog.verify.findings import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MISSING_INVARIANT = 5

_TASKS_PER_SHUFFLED = 8
"""A task that reads gives some thousand rows; a task behind a shuffle may well have more."""

_SHARES_OF_NO_JOURNAL = 64

_PLACES_KNOWN = "transactions whose places are known"

PROVED = (
    checking.DATA_LOGS,
    checking.BATCHES,
    checking.RECORDS,
    checking.BYTES,
    _PLACES_KNOWN,
    "transactional batches found in their places",
    "transactions found with their markers",
    checking.IN_ORDER,
)
"""What was looked at: names of counts."""

NOT_PROVED = (
    "transactional batches older than what is known of their producers",
    checking.PLACES_BEFORE,
    checking.UNTRUSTED,
)
"""What could not be looked at."""

_LOG_ROWS = f"""
select log, {LOG} as row, cast(0 as bigint) as at, cast(null as bigint) as key, cast(null as binary) as data,
       cast(null as string) as damage, cast(null as bigint) as producer, cast(null as int) as epoch,
       cast(null as bigint) as number, cast(null as bigint) as count, cast(null as boolean) as certain,
       cast(null as string) as told_by
from {{logs}}
union all
select log, {PLACE}, base, null, null, null, producer, epoch, number, count, certain, told_by from {{places}}
union all
select log, {BATCH}, at, key, data, damage, null, null, null, null, null, null from {{batches}}
"""
"""Columns of `checking.LogRow`, of logs of topics."""

_PLACES = """
select log, producer, epoch, number, base, count, certain, told_by from (
    select log, producer, epoch, number, base, count, certain, told_by from {told} where base is not null
    union all
    select log, producer, epoch, number, base, count, true, "the producer's window" from {windows}
    where damage is null
) join {logs} using (log) where count > 0
"""

_JOURNAL_ROWS = f"""
select coalesce(journal, cast(-1 - pmod(producer, {_SHARES_OF_NO_JOURNAL}) as int)) as journal,
       log, producer, epoch, number, apply_number, base, count, forgets
from {{windows}} left join (select producer, min(journal) as journal from {{told}} group by producer) using (producer)
where damage is null
union all
select journal, null, null, null, null, null, null, null, null from {{told}} where producer is null
"""
"""Columns of `checking.JournalRow`. Producers that no journal knows, as all of a backup, are dealt out by their ids."""

_DAMAGED_WINDOWS = f"""
select '{Kind.DAMAGED_TRANSACTIONS}' as kind, cast(null as int) as invariant, log, cast(null as bigint) as offset,
       damage as what, cast(null as bigint) as counted
from {{windows}} where damage is not null
"""


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
            found, places = _checked(spark, audited, kept, task_bytes=task_bytes)
            counted = found.where("kind is null").groupBy("what").agg({"counted": "sum"}).collect()
            counts = {row[0]: row[1] for row in counted}
            counts["transactions found with their markers"] = counts.get("markers", 0)
            counts[_PLACES_KNOWN] = places.select("producer", "epoch", "number").distinct().count()
            found = found.where("kind is not null")
            kinds: dict[str, int] = {
                row["kind"]: row["count"] for row in found.groupBy("kind").count().orderBy("kind").collect()
            }
            first = found.orderBy("log", "offset", "kind").limit(findings_max).collect() if kinds else []
    finally:
        for frame in kept:
            frame.unpersist()
    names = {log.log: log.shown for log in audited.logs}
    findings = [
        *(Finding(Kind.MISSING, _MISSING_INVARIANT, None, None, what) for what in audited.missing),
        *(Finding(row["kind"], row["invariant"], names.get(row["log"]), row["offset"], row["what"]) for row in first),
    ]
    if audited.missing:
        kinds[Kind.MISSING] = len(audited.missing)
    return Report(
        findings[:findings_max],
        kinds,
        proved={name: counts.get(name, 0) for name in PROVED},
        not_proved={name: counts[name] for name in NOT_PROVED if counts.get(name)},
        seconds=time.monotonic() - started,
    )


@contextmanager
def _settings(spark: SparkSession, audited: Audited) -> Generator[None]:
    """How many rows there will be is known beforehand, so Spark need not find out stage by stage."""
    shuffled = max(spark.sparkContext.defaultParallelism, len(audited.tasks) // _TASKS_PER_SHUFFLED)
    ours = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(shuffled),
    }
    before = {name: spark.conf.get(name) for name in ours}
    for name, value in ours.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, str(value))


def _checked(
    spark: SparkSession, audited: Audited, kept: list[DataFrame], *, task_bytes: int
) -> tuple[DataFrame, DataFrame]:
    """All that is found and counted, as rows of FOUND, and all places. What is used again is kept, and put into `kept`.

    A log's batches go past its rules in one task, one after the other; Spark sorts them, on its disks if need be.
    """
    spark.dataSource.register(DirectoryRows)
    options = {
        "directory": str(audited.directory),
        "transactions": ",".join(str(shard.transaction) for shard in audited.shards),
        "journals": "true" if audited.group_journals else "false",
        "taskBytes": str(task_bytes),
        "shares": str(min(len(audited.logs), spark.sparkContext.defaultParallelism)),
    }

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    rows = {name: spark.read.format(DirectoryRows.name()).options(rows=name, **options).load() for name in COLUMNS}
    told, windows = keep(rows["told"]), keep(rows["windows"])
    logs = {log.log: log for log in audited.logs}
    numbers: Any = [(log.log,) for log in audited.logs if log.is_topic]
    topics = spark.createDataFrame(numbers, "log int")  # pyright: ignore[reportUnknownMemberType]
    places = keep(spark.sql(_PLACES, told=told, windows=windows, logs=topics))
    log_rows = spark.sql(_LOG_ROWS, logs=topics, places=places, batches=rows["batches"])
    journal_rows = spark.sql(_JOURNAL_ROWS, windows=windows, told=told)
    by_log: Any = log_rows.repartition("log").sortWithinPartitions("log", "row", "at").rdd
    by_journal: Any = journal_rows.repartition("journal").sortWithinPartitions("journal").rdd
    rows_found: Any = by_log.mapPartitions(partial(check_logs, logs)).union(
        by_journal.mapPartitions(partial(check_journals, audited.group_journals, logs))
    )
    schema = ", ".join(f"`{name}` {kind}" for name, kind in FOUND.items())
    found = spark.createDataFrame(rows_found, schema, verifySchema=False)  # pyright: ignore[reportUnknownMemberType]
    return keep(found.unionAll(spark.sql(_DAMAGED_WINDOWS, windows=windows))), places
