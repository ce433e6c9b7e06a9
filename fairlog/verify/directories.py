"""Do topics, data logs, journals and tables belong together? Pure: names and numbers in, violations out.

A topic that is being deleted may have any part of itself left. After a crash a topic that has just been made may lack
parts of itself, and partitions that were being added may have logs without being in the cluster store. All this is
mended by the next start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from datalog.layout import LogRecord
from datalog.stored import parse_log_untrusted
from fairlog.cluster.interface import Topic
from fairlog.verify.findings import Violation
from fairlog_types import LogId, LogKind, ShardNumber
from shard.placement import Placement


@dataclass(frozen=True, slots=True)
class ShardInventory:
    """What the parts of one shard say there is."""

    number: ShardNumber
    name: str
    records: Mapping[LogId, LogRecord]
    """The data logs' own list."""
    databases: Mapping[bytes, int]
    """Databases that are none of the tables, and how many entries each has."""
    local_journals: Mapping[str, str]
    """Names of directories, and how a person is told of each."""
    group_journals: Mapping[str, str]
    """The same."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the parts of a data directory say there is."""

    served: Sequence[Topic]
    deleting: Sequence[Topic]
    shards: Sequence[ShardInventory]
    placement: Placement
    """Over the shards that there should be."""
    started: Collection[ShardNumber]
    """Those of them that have something to lose."""
    group_journal_count: int
    group_journals_begun: bool
    """None may be missing."""
    ended_well: bool
    """The node was stopped in good order: nothing is left half done."""
    has_journals: bool
    """False for a backup."""
    knows_all_topics: bool = True
    """Logs of topics that are not named are nobody's. False of what a node of several machines has: it hears of the
    metadata and of the shards' streams at different times."""


def check_inventory(found: Inventory) -> Iterator[Violation]:
    served = {log for topic in found.served for log in topic.logs()}
    leaving = {log for topic in found.deleting for log in topic.logs()}
    if not found.ended_well:
        leaving |= _being_added(found)
    for shard in found.shards:
        if shard.number >= found.placement.shards:
            yield Violation(shard.name, f"is none of the {found.placement.shards} shards of the cluster store")
        yield from _check_data_logs(found, shard, served | leaving)
        yield from _check_databases(shard)
        if found.has_journals:
            yield from _check_journals(found, shard, served, leaving)
    yield from _check_together(found)


def missing_logs(served: Iterable[Topic], there: Collection[LogId]) -> list[LogId]:
    """Logs of topics that a node which was stopped in good order serves, and that are not there."""
    return sorted({log for topic in served for log in topic.logs()} - set(there))


def missing_group_journals(count: int, there: Collection[str]) -> list[str]:
    """Names of group journals that are not there: none may be gone after they were begun."""
    return sorted(_group_journal_names(count) - set(there))


def _group_journal_names(count: int) -> set[str]:
    return {str(number) for number in range(count)}


def _check_together(found: Inventory) -> Iterator[Violation]:
    """What all shards have must be what there is, each once."""
    for number in sorted(set(found.started) - {shard.number for shard in found.shards}):
        yield Violation(f"shard {number}", "is missing, though it was started")
    logs: dict[LogId, str] = {}
    group_journals: dict[str, str] = {}
    for shard in found.shards:
        for log in shard.records:
            if (other := logs.setdefault(log, shard.name)) != shard.name:
                yield Violation(f"data log {log}", f"is in {other} and in {shard.name}")
        for name, where in shard.group_journals.items():
            if (other := group_journals.setdefault(name, where)) != where:
                yield Violation(where, f"has the number of {other}")
    if found.ended_well:
        for log in missing_logs(found.served, logs):
            yield Violation(f"data log {log}", "is missing, though its topic is served")
    if found.has_journals and found.group_journals_begun:
        for name in missing_group_journals(found.group_journal_count, group_journals):
            yield Violation(f"group journal {name}", "is missing: what its transactions were answered is lost", 5)


def _check_data_logs(found: Inventory, shard: ShardInventory, known: set[LogId]) -> Iterator[Violation]:
    numbers: dict[int, LogId] = {}
    for log, record in shard.records.items():
        where = f"data log {log}"
        if log.kind == LogKind.TOPIC.value and log not in known and found.has_journals and found.knows_all_topics:
            yield Violation(where, "belongs to no topic of the cluster store")
        if (other := numbers.setdefault(record.number, log)) != log:
            yield Violation(where, f"has the number {record.number}, which is {other}'s")


def _check_databases(shard: ShardInventory) -> Iterator[Violation]:
    for name, entries in sorted(shard.databases.items()):
        log = parse_log_untrusted(name)
        if log is None:
            yield Violation(f"the data logs of {shard.name}", f"have a database {name!r}, which is no log")
        elif log not in shard.records and entries:
            yield Violation(f"data log {log}", f"has {entries} batches, and no record")
    for log in sorted(shard.records):
        if log.kind == LogKind.TOPIC.value and str(log).encode() not in shard.databases:
            yield Violation(f"data log {log}", "has no database for its batches")


def _check_journals(
    found: Inventory, shard: ShardInventory, served: set[LogId], leaving: set[LogId]
) -> Iterator[Violation]:
    for name, where in sorted(shard.local_journals.items()):
        log = parse_log_untrusted(name.encode())
        if log is None:
            yield Violation(where, "is the journal of no log")
        elif log.kind == LogKind.TOPIC.value and log not in served | leaving:
            if found.knows_all_topics:
                yield Violation(where, "is a journal of no topic of the cluster store")
        elif log not in shard.records and log not in leaving:
            yield Violation(where, "is a journal without a data log")
    count = found.group_journal_count
    own = {str(number) for number in found.placement.group_journals(shard.number, count)}
    for name in sorted(set(shard.group_journals) - own):
        what = f"is none of the {count} group journals"
        if name in _group_journal_names(count):
            what = f"is not the place of group journal {name}, which belongs to another shard"
        yield Violation(shard.group_journals[name], what)


def _being_added(found: Inventory) -> set[LogId]:
    """Logs of partitions that a topic does not have, and that were never written to."""
    topics = {topic.topic_id.hex for topic in (*found.served, *found.deleting)}
    added: set[LogId] = set()
    for shard in found.shards:
        journals = {log for name in shard.local_journals if (log := parse_log_untrusted(name.encode())) is not None}
        added |= {
            log
            for log in journals | shard.records.keys()
            if log.topic in topics and (log not in shard.records or shard.records[log].next_offset == 0)
        }
    return added
