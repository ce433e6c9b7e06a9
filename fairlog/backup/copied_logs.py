"""The data logs as they were copied into a backup, read from the copies: what the manifest says about each log, and the
cut with which the fences of sinks are compared (`fences.Cut`).

A copy still has the logs of a topic that is being deleted, perhaps for longer than the copier writes to them: a batch
may be visible in all other logs and not in these. So a topic's logs are ignored if the cluster store, which was copied
after them, does not serve the topic.

Each log is in one shard, and each shard's copy gives its logs numbers of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from uuid import UUID

from datalog import layout
from datalog.layout import LogRecord
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs, parse_log_untrusted
from fairlog.backup.manifest import CopiedLog
from fairlog.cluster.interface import Topic
from fairlog_types import CorruptStorage, LogId, LogKind, Offset, Placement, TxId
from partition.producer_window import ProducerWindow


class CopiedLogs:
    """The data logs of the copies, one for each shard, which no process writes. A `fences.Cut`."""

    def __init__(self, paths: Iterable[Path], served: Iterable[Topic]) -> None:
        """`paths` are the copies' `data.mdb`, `served` the topics by the names that were copied after them.

        Raises CorruptStorage, DamagedPage, DamagedValue, as all that follows.
        """
        shards = [_CopiedShard(path) for path in paths]
        self._of = {log: shard for shard in shards for log in shard.records}
        self._names = {topic.topic_id: topic.name for topic in served}

    def listed(self) -> dict[str, CopiedLog]:
        """What the manifest says of them."""
        records = {log: shard.records[log] for log, shard in self._of.items()}
        return {
            str(log): CopiedLog(self._topic(log), record.log_start, record.next_offset, record.size_bytes)
            for log, record in records.items()
        }

    def next_offset(self, log: LogId) -> Offset | None:
        """See `Cut.next_offset`; None of a log that is being deleted, too."""
        shard = self._of.get(log)
        deleted = log.kind == LogKind.TOPIC.value and self._topic(log) is None
        return None if shard is None or deleted else shard.records[log].next_offset

    def is_open(self, log: LogId, txid: TxId) -> bool:
        """See `Cut.is_open`."""
        shard = self._of.get(log)
        return shard is not None and shard.open_transactions.get(shard.key(log, txid)) == txid

    def placed(self, log: LogId, txid: TxId) -> Placement | None:
        """See `Cut.placed`."""
        shard = self._of.get(log)
        window = None if shard is None else shard.windows.get(shard.key(log, txid))
        found = None if window is None else ProducerWindow.decode(bytes(window)).find_applied(txid)
        return None if found is None else Placement(log, found.base_offset, found.record_count)

    def _topic(self, log: LogId) -> str | None:
        """The name of the log's topic, if that is served."""
        return self._names.get(UUID(hex=log.topic)) if log.kind == LogKind.TOPIC.value else None


class _CopiedShard:
    """The data logs of one shard."""

    def __init__(self, path: Path) -> None:
        file = mapped_lmdb(path)
        if file is None:
            raise CorruptStorage(f"{path} is empty")
        self._stored = StoredLogs(file)
        self.records: dict[LogId, LogRecord] = {}
        for item in self._stored.table(layout.LOGS):
            log = parse_log_untrusted(item.key)
            if log is None:
                raise CorruptStorage(f"{path} has a log {item.key!r}, which is not the name of a log")
            self.records[log] = layout.decode_log_record(item.value)

    def key(self, log: LogId, txid: TxId) -> bytes:
        """The key of the producer in the log, in the tables below."""
        return layout.producer_key(self.records[log].number, txid.producer_id)

    @cached_property
    def open_transactions(self) -> Mapping[bytes, TxId]:
        """The transactions that are open in logs of marker mode, by log number and producer."""
        table = self._stored.table(layout.OPEN)
        return {item.key: layout.decode_open(item.key, item.value).txid for item in table}

    @cached_property
    def windows(self) -> Mapping[bytes, memoryview]:
        """The producers' windows, by log number and producer; read only if a batch was on its way."""
        return {item.key: item.value for item in self._stored.table(layout.PRODUCERS)}
