"""LMDB's handles, typed and named.

A database's handle is opened once, in a write transaction, and serves all threads from that transaction's commit on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import lmdb

from datalog import layout

if TYPE_CHECKING:
    from lmdb import _Database as Database  # pyright: ignore[reportPrivateUsage]: py-lmdb has no public name for it

    Cursor = lmdb.Cursor[memoryview]

    Transaction = lmdb.Transaction[memoryview]
    """Returns views into LMDB's map, valid until the transaction ends (or, if it writes, until its next change)."""
else:
    Cursor = Database = Transaction = object


@dataclass(frozen=True, slots=True)
class Tables:
    """The databases that every environment has (`datalog.layout`)."""

    meta: Database
    logs: Database
    time_index: Database
    producers: Database
    offsets: Database
    transactions: Database
    cleanings: Database
    unfinished: Database
    aborted: Database
    cuts: Database
    groups: Database
    common_cuts: Database

    @classmethod
    def open(cls, env: lmdb.Environment, txn: Transaction) -> Tables:
        """Open all; create those that do not exist."""
        return cls(*(env.open_db(name, txn=txn) for name in layout.TABLES))
