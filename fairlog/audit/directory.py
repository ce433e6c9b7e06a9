"""Which logs a directory has, what is asked of each, and how reading them is divided. On the driver.

A log is divided by offsets, evenly, into ranges of about `TASK_BYTES`; small logs share a task. Where a range's edges
lie does not matter: each batch is read once.

Logs are numbered here, over all shards, because a data logs' file numbers its own only. Each of these files is read as
of one state, which is named by its LMDB transaction: executors refuse another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datalog import layout
from datalog.layout import DamagedValue, LogRecord
from datalog.lmdb_file import check_length
from datalog.lmdb_pages import DamagedPage
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog import data_directory
from fairlog.cluster.content import StoreContent
from fairlog.cluster.interface import Topic
from fairlog.data_directory import names_in
from fairlog.topic_configs import mode_of
from fairlog.verify.directories import missing_group_journals, missing_logs
from fairlog.verify.group_journals import shard_of_group_journal
from fairlog_types import CorruptStorage, LogId, LogKind
from shard.directory import ShardDirectory, shard_directories

TASK_BYTES = 64 << 20
"""Of batches: a second's work or less, and some thousand rows."""

_LOGS_PER_TASK = 256
"""Empty logs cost something, too."""


class NotAuditable(Exception):
    """The directory cannot be audited at all. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class AuditedLog:
    """One log, by the number that its rows carry."""

    log: int
    shard: int
    """Where in `Audited.shards` its shard is."""
    number: int
    """In the shard's data logs."""
    name: str
    """Of the directory's database: `str(LogId)`."""
    shown: str
    """As a person knows it."""
    is_topic: bool
    """Offsets logs have no batches; transactions take places in them all the same."""
    log_start: int
    next_offset: int
    holes_before: int
    """Before this offset compaction may have left holes."""
    markers: bool
    """Transactions end with control batches."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Range:
    """Keys of one log, from `start` up to, and without, `end`; the last range of a log ends with the log."""

    log: int
    shard: int
    name: str
    start: int
    end: int | None
    log_end: int
    """The log's next offset. What stands there and behind it was staged by a copy that did not come to its end: no part
    of the log, and for `fairlog verify` to look at."""


@dataclass(frozen=True, slots=True)
class AuditedShard:
    """One shard, and the state of its data logs' file that is read."""

    directory: ShardDirectory
    transaction: int


@dataclass(frozen=True, slots=True)
class Audited:
    """What there is to be read."""

    directory: Path
    shards: Sequence[AuditedShard]
    logs: Sequence[AuditedLog]
    tasks: Sequence[Sequence[Range]]
    group_journals: Sequence[ShardDirectory]
    """By number, the shard that has it; empty for a backup, which has none."""
    missing: Sequence[str]
    """What the cluster store says there is, and is not there: a sentence for each."""


def survey_directory(directory: Path, *, has_journals: bool, task_bytes: int = TASK_BYTES) -> Audited:
    """Read the names and bounds of all logs, and divide them. Nobody may write the directory meanwhile.

    Raises NotAuditable if the cluster store or the list of logs cannot be read.
    """
    try:
        check_length(directory / data_directory.CLUSTER_STORE)
        store = data_directory.read_cluster_store(directory)
        found = [_read_shard(shard) for shard in shard_directories(directory.resolve())]
    except (CorruptStorage, DamagedPage, DamagedValue) as error:
        raise NotAuditable(f"{error}; fairlog verify {directory} says more") from error
    if not found:
        raise NotAuditable(f"{directory} has no shard")
    logs = _logs(store, [records for _, records in found])
    shards = [shard.directory for shard, _ in found]
    numbers = range(store.node.group_journal_count) if has_journals else ()
    return Audited(
        directory.resolve(),
        [shard for shard, _ in found],
        logs,
        divided(logs, task_bytes=task_bytes),
        [shard_of_group_journal(shards, number) for number in numbers],
        [*_missing_logs(directory, store, logs), *(_missing_journals(shards, store) if has_journals else ())],
    )


def _read_shard(directory: ShardDirectory) -> tuple[AuditedShard, dict[bytes, LogRecord]]:
    """The records of its logs, by name. Raises NotAuditable, CorruptStorage, DamagedPage, DamagedValue."""
    path = directory.data_logs_file
    check_length(path)
    file = mapped_lmdb(path)
    if file is None:
        raise NotAuditable(f"{path} is empty")
    stored = StoredLogs(file)
    if stored.version not in layout.READ_VERSIONS:
        raise NotAuditable(f"{path} has format {stored.version}, and this program reads {layout.READ_VERSIONS}")
    records = {bytes(item.key): layout.decode_log_record(item.value) for item in stored.table(layout.LOGS)}
    return AuditedShard(directory, file.meta.transaction), records


def divided(logs: Iterable[AuditedLog], *, task_bytes: int) -> list[list[Range]]:
    """The ranges of all logs that have batches, put together into tasks of about that many bytes, each of one shard."""
    tasks: list[list[Range]] = []
    room = 0
    for log in logs:
        if not log.is_topic:
            continue
        parts = max(1, min(-(-log.size_bytes // task_bytes), log.next_offset - log.log_start))
        edges = [log.log_start + (log.next_offset - log.log_start) * part // parts for part in range(1, parts)]
        for start, end in zip([0, *edges], [*edges, None], strict=True):
            if room <= 0 or len(tasks[-1]) >= _LOGS_PER_TASK or tasks[-1][0].shard != log.shard:
                tasks.append([])
                room = task_bytes
            tasks[-1].append(Range(log.log, log.shard, log.name, start, end, log.next_offset))
            room -= log.size_bytes // parts
    return tasks


def _logs(store: StoreContent, shards: Sequence[Mapping[bytes, LogRecord]]) -> list[AuditedLog]:
    """By shard, and there by name; numbered by shard, and there as the data logs number them."""
    topics = {topic.topic_id.hex: topic for topic in (*store.served, *store.deleting)}
    order = sorted((shard, record.number) for shard, records in enumerate(shards) for record in records.values())
    numbers = {each: log for log, each in enumerate(order)}
    if len(numbers) < len(order):
        raise NotAuditable("two of the data logs have the same number")
    found: list[AuditedLog] = []
    of_shards = ((shard, *each) for shard, records in enumerate(shards) for each in sorted(records.items()))
    for shard, name, record in of_shards:
        log = parse_log_untrusted(name)
        if log is None:
            raise NotAuditable(f"the data logs have a log {name!r}, which is no name of one")
        topic = topics.get(log.topic)
        found.append(
            AuditedLog(
                log=numbers[shard, record.number],
                shard=shard,
                number=record.number,
                name=str(log),
                shown=_shown(log, topic),
                is_topic=log.kind == LogKind.TOPIC.value,
                log_start=record.log_start,
                next_offset=record.next_offset,
                holes_before=record.holes_before,
                markers=topic is not None and mode_of(topic).has_markers,
                size_bytes=record.size_bytes,
            )
        )
    if len({log.name for log in found}) < len(found):
        raise NotAuditable("two of the shards have the same data log")
    return found


def _missing_logs(directory: Path, store: StoreContent, logs: Iterable[AuditedLog]) -> Iterator[str]:
    """Data logs of topics that are served. After a crash a topic that has just been made may lack some."""
    if data_directory.last_run_ended(directory) != "closed":
        return
    topics = {topic.topic_id.hex: topic for topic in store.served}
    for log in missing_logs(store.served, {LogId.parse(log.name) for log in logs}):
        yield f"the data log of {_shown(log, topics[log.topic])} is missing, though its topic is served"


def _missing_journals(shards: Iterable[ShardDirectory], store: StoreContent) -> Iterator[str]:
    """Group journals, of which none may be gone once they were begun."""
    journals = [(shard.group_journals, name) for shard in shards for name in names_in(shard.group_journals)]
    there = [name for root, name in journals if names_in(root / name)]
    for name in missing_group_journals(store.node.group_journal_count, there) if store.group_journals_begun else ():
        yield f"group journal {name} is missing, or empty: what its transactions were answered is lost"


def _shown(log: LogId, topic: Topic | None) -> str:
    return str(log) if topic is None else f"{topic.name}-{log.partition}"
