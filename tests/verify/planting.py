"""Damage, planted in the files of a stopped node: what a bug, a disk or a person could have done.

The data logs are changed through LMDB, so that the file itself stays whole, and only what is in it is wrong.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lmdb

from datalog import batch as batch_module
from datalog import layout
from datalog.batch import crc_of, parse_batch_header_untrusted
from datalog.layout import LogRecord
from datalog.snapshot import mapped_lmdb
from datalog.stored import StoredLogs
from fairlog_types import LogId
from journal.read_only import open_read_only
from journal.reading import FrameAt
from journal.segment import JournalKind
from partition.producer_window import ProducerWindow
from tests.shards import shard_in


def with_header(data: bytes, **fields: Any) -> bytes:
    """The batch with other fields in its header, and the checksum that fits."""
    header = parse_batch_header_untrusted(data)._replace(**fields)
    changed = bytearray(batch_module._HEADER.pack(*header) + data[batch_module.HEADER_BYTES :])
    changed[17:21] = crc_of(changed).to_bytes(4, "big")
    return bytes(changed)


@dataclass(frozen=True)
class Planted:
    """One data directory, and in it the partitions of one topic."""

    directory: Path
    topic: str = ""
    """The topic's id, in hex; may be left out if there is no other topic."""

    @property
    def data_logs(self) -> Path:
        return shard_in(self.directory).data_logs_file

    def log(self, partition: int = 0) -> LogId:
        """The partition's log."""
        names = [path.name for path in shard_in(self.directory).local_journals.iterdir()]
        (found,) = [
            log
            for log in map(LogId.parse, names)
            if (log.kind, log.partition) == ("t", partition) and self.topic in ("", log.topic)
        ]
        return found

    def segment(self, partition: int = 0) -> Path:
        """The partition's journal has one segment."""
        (found,) = shard_in(self.directory).local_journal(self.log(partition)).glob("*.journal")
        return found

    def group_segment(self, transactional_id: bytes) -> Path:
        """The group journal's segment that knows the id."""
        paths = shard_in(self.directory).group_journals.rglob("*.journal")
        (found,) = [path for path in paths if transactional_id in path.read_bytes()]
        return found

    def byte_of(self, value: bytes, partition: int = 0) -> int:
        """Where in the data logs' file the record with that value lies; free pages may hold older copies of it."""
        file = mapped_lmdb(self.data_logs)
        assert file is not None
        logs = StoredLogs(file)
        (found,) = [
            batch.at + bytes(batch.data).index(value)
            for batch in logs.batches(self.log(partition))
            if value in bytes(batch.data)
        ]
        return found

    def frames(self, partition: int = 0) -> list[FrameAt]:
        """Of the partition's journal."""
        journal = open_read_only(self.segment(partition).parent, kind=JournalKind.LOCAL)
        return list(journal.frames(journal.start))

    @contextmanager
    def writing(self) -> Generator[tuple[Any, Callable[[bytes], Any]]]:
        """A write transaction of the data logs, and how its databases are opened."""
        with lmdb.open(str(self.data_logs.parent), map_size=1 << 28, max_dbs=256) as env:
            handles = {name: env.open_db(name, create=False) for name in self._names(env)}
            with env.begin(write=True) as txn:
                yield txn, handles.__getitem__

    @staticmethod
    def _names(env: lmdb.Environment) -> list[bytes]:
        with env.begin() as txn:
            return [bytes(key) for key, _ in txn.cursor()]

    def batches(self, partition: int = 0) -> list[tuple[bytes, bytes]]:
        """Keys and values of the partition's log."""
        with self.writing() as (txn, database):
            return [
                (bytes(key), bytes(value)) for key, value in txn.cursor(db=database(str(self.log(partition)).encode()))
            ]

    def undo_the_last_commit(self) -> None:
        """The data logs as they were before their last write transaction: whose meta page a power cut may take."""
        with self.data_logs.open("r+b") as file:
            page_bytes = mmap.PAGESIZE
            pages = [bytearray(file.read(page_bytes)) for _ in range(2)]
            # Behind the page's head: the meta page (datalog/lmdb_file.py). The transaction's number is its last field.
            transactions = [int.from_bytes(page[144:152], sys.byteorder) for page in pages]
            assert abs(transactions[0] - transactions[1]) == 1, transactions
            older, newer = sorted(range(2), key=transactions.__getitem__)
            file.seek(newer * page_bytes + 16)
            file.write(pages[older][16:])

    def put_batches(self, batches: dict[int, bytes | None], partition: int = 0) -> None:
        """Put batches under these last offsets; None deletes."""
        with self.writing() as (txn, database):
            log = database(str(self.log(partition)).encode())
            for key, value in batches.items():
                if value is None:
                    assert txn.delete(layout.batch_key(key), db=log)
                else:
                    txn.put(layout.batch_key(key), value, db=log)

    def change_record(self, change: Callable[[LogRecord], None], partition: int = 0) -> None:
        """Change the log record of the partition."""
        with self.writing() as (txn, database):
            name = str(self.log(partition)).encode()
            record = layout.decode_log_record(txn.get(name, db=database(layout.LOGS)))
            change(record)
            txn.put(name, layout.encode_log_record(record), db=database(layout.LOGS))

    def record(self, partition: int = 0) -> LogRecord:
        found: list[LogRecord] = []
        self.change_record(found.append, partition)
        return found[0]

    def change_window(self, producer_id: int, partition: int = 0, **fields: Any) -> None:
        """Change a producer's window."""
        number = self.record(partition).number
        with self.writing() as (txn, database):
            key = number.to_bytes(4, "big") + producer_id.to_bytes(8, "big")
            window = ProducerWindow.decode(txn.get(key, db=database(layout.PRODUCERS)))
            txn.put(key, replace(window, **fields).encode(), db=database(layout.PRODUCERS))

    def window(self, producer_id: int, partition: int = 0) -> ProducerWindow:
        number = self.record(partition).number
        with self.writing() as (txn, database):
            key = number.to_bytes(4, "big") + producer_id.to_bytes(8, "big")
            return ProducerWindow.decode(txn.get(key, db=database(layout.PRODUCERS)))


def flip(path: Path, byte: int) -> None:
    """Turn one bit of a file."""
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)
