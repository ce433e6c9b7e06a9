"""The data log environment as stored in its file (docs/formats/data-log.md), read without LMDB.

For tools that look for damage and name its byte. Nothing is trusted here: the input may be anything, and the caller
gets either its content or `DamagedPage`. Nodes and readers of data use `datalog.environment`.

Pure: the file is a buffer, as in `lmdb_pages`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from datalog import layout
from datalog.lmdb_pages import DamagedPage, Item, LmdbFile, Tree
from fairlog_types import LogId, LogKind


class StoredBatch(NamedTuple):
    """A value of a topic's log: a record batch, if it is not damaged."""

    key: bytes
    data: memoryview
    at: int
    """The byte of the file where it begins."""


class StoredLogs:
    """The databases of one state of the environment. Each can be read once."""

    def __init__(self, file: LmdbFile) -> None:
        """Read the names of all databases. Raises DamagedPage; DamagedValue if this is not a data log environment."""
        self.file = file
        self.trees: Mapping[bytes, Tree] = {}
        strangers: list[Item] = []
        trees: dict[bytes, Tree] = {}
        for item in file.items(file.meta.main):
            if item.tree is None:
                strangers.append(item)
            else:
                trees[item.key] = item.tree
        self.trees = trees
        meta = {item.key: bytes(item.value) for item in self.table(layout.META)}
        if layout.FORMAT_KEY not in meta or strangers:
            raise layout.DamagedValue("it is an LMDB file, but holds no data logs")
        self.version = layout.decode_format(meta[layout.FORMAT_KEY])
        numbers = meta.get(layout.NUMBERS_KEY)
        self.numbers = 0 if numbers is None else int.from_bytes(numbers, "big")
        """The number that the next log gets."""

    def table(self, name: bytes, *, start: bytes = b"") -> Iterator[Item]:
        """The items of one of `layout.TABLES`, from the key `start` on; none if there is no such database."""
        tree = self.trees.get(name)
        return iter(()) if tree is None else self.file.items(tree, start=start)

    def batches(self, log: LogId, *, start: int = 0) -> Iterator[StoredBatch]:
        """A topic's log from the batch that contains the offset `start`."""
        tree = self.trees.get(str(log).encode())
        if tree is None:
            return
        for item in self.file.items(tree, start=layout.batch_key(start) if start else b""):
            yield StoredBatch(item.key, item.value, item.at)

    def log_names(self) -> set[bytes]:
        """The databases that are not tables: batches of logs."""
        return self.trees.keys() - set(layout.TABLES)


def parse_log_untrusted(name: bytes) -> LogId | None:
    """The log with that name; None if there is none."""
    try:
        log = LogId.parse(name.decode("ascii"))
    except ValueError:
        return None
    if str(log).encode() != name or log.partition < 0:
        return None
    topic_id = log.topic
    is_topic = len(topic_id) == 32 and all(digit in "0123456789abcdef" for digit in topic_id)
    return log if is_topic == (log.kind == LogKind.TOPIC.value) else None


__all__ = ["DamagedPage", "Item", "StoredBatch", "StoredLogs", "parse_log_untrusted"]
