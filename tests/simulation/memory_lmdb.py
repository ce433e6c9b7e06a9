"""An LMDB environment in memory, behind the interface that `datalog` uses of `lmdb`, and what a crash leaves of it.

The data logs run on it as they do on LMDB: their own writer and reader, their own tables. So what is doubled is the
engine alone: sorted tables, one writer, readers that see the last commit as of when they began.

Fault model, as `metasync=False` promises it: a power cut leaves a whole state, never a torn one. It is that of the last
commit, or of the one before if nothing was synced since. A commit that was under way may be there or not.

A commit writes its pages, syncs the file, and writes the page that points to them, which the next sync takes along.
Each of the three may fail (EIO), and so may a sync by itself:

    the pages       nothing has happened
    the sync        the last commit's pointer may be lost: it is in the cache, clean, so a process that is started on
                    the same machine finds it, and no sync writes it any more. What is written next goes to the other
                    of LMDB's two pointers
    the pointer     it may be there or not, and LMDB lets this process do nothing any more, not even read
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import lmdb

from datalog.environment import LmdbDataLogs


class Table:
    """Sorted keys with their values. Never changed once its transaction is committed."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes] | None = None, values: dict[bytes, bytes] | None = None) -> None:
        self.keys = keys if keys is not None else []
        self.values = values if values is not None else {}


State = dict[bytes, Table]


class MemoryEnvironment:
    """What `LmdbDataLogs` needs of `lmdb.Environment`."""

    def __init__(
        self,
        state: State | None = None,
        *,
        at_commit: Callable[[], None] = lambda: None,
        fails: Callable[[str], bool] = lambda _part: False,
    ) -> None:
        """`at_commit` is called before and after each commit and sync: it may raise. `fails` is asked at each part."""
        self.state: State = state if state is not None else {}
        self._before: State = self.state
        """The state that a power cut may go back to."""
        self._stranded = False
        """The pointer to `state` may be lost, and no sync writes it."""
        self._perhaps: State | None = None
        """The state of a commit whose pointer failed."""
        self._at_commit = at_commit
        self._fails = fails
        self.has_failed = False
        self._commits = 0

    def begin(self, *, write: bool = False, buffers: bool = True) -> MemoryTransaction:
        assert buffers
        if self._perhaps is not None:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC: Update of meta page failed or environment had fatal error")
        return MemoryTransaction(self, write=write)

    def open_db(self, name: bytes, *, txn: MemoryTransaction, create: bool = True) -> bytes:
        assert create or name in txn.state
        if name not in txn.state:
            txn.state[name] = Table()
        return name

    def commit(self, state: State) -> None:
        """The file first, which waits for what the last commit has left in memory; then the page that points to it."""
        self._at_commit()
        self._try("pages")
        self._sync()
        try:
            self._try("pointer")
        except lmdb.Error:
            self._perhaps = state
            raise
        self.state, self._stranded = state, False
        self._commits += 1
        self._at_commit()

    def sync(self, force: bool) -> None:
        assert force
        self._at_commit()
        self._sync()

    def _sync(self) -> None:
        try:
            self._try("sync")
        except lmdb.Error:
            self._stranded = self._before is not self.state
            raise
        if not self._stranded:
            self._before = self.state

    def _try(self, part: str) -> None:
        if self._fails(part):
            self.has_failed = True
            raise lmdb.Error(f"mdb_txn_commit: Input/output error ({part})")

    def survivors(self) -> list[State]:
        """The states that a power cut may leave."""
        states = [self.state] if self._before is self.state else [self.state, self._before]
        return states if self._perhaps is None else [*states, self._perhaps]

    def after_power_cut(self, rng: Random) -> MemoryEnvironment:
        return MemoryEnvironment(rng.choice(self.survivors()), at_commit=self._at_commit, fails=self._fails)

    def after_end(self, rng: Random) -> MemoryEnvironment:
        """The process is gone. The file's pages are in the system's memory; what a power cut may undo, it still may."""
        env = MemoryEnvironment(self.state, at_commit=self._at_commit, fails=self._fails)
        env._before, env._stranded = self._before, self._stranded
        if self._perhaps is not None and rng.random() < 0.5:
            env.state, env._stranded = self._perhaps, False
        return env

    def reader_check(self) -> int:
        return 0

    def info(self) -> dict[str, int]:
        return {"last_pgno": 0, "map_size": 1 << 30, "last_txnid": self._commits}

    def stat(self) -> dict[str, int]:
        return {"psize": 4096}

    def close(self) -> None:
        pass


class MemoryTransaction:
    """What is used of `lmdb.Transaction`."""

    def __init__(self, env: MemoryEnvironment, *, write: bool) -> None:
        self._env = env
        self._own: set[bytes] = set()
        """The tables that are this transaction's, to be changed."""
        self.state: State = dict(env.state) if write else env.state
        self._write = write

    def __enter__(self) -> MemoryTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._write:
            self.commit()

    def commit(self) -> None:
        if self.state != self._env.state:  # LMDB writes nothing for one that has changed nothing
            self._env.commit(self.state)

    def abort(self) -> None:
        self.state = {}

    def get(self, key: bytes, *, db: bytes) -> bytes | None:
        return self.state[db].values.get(bytes(key))

    def put(self, key: bytes, value: Any, *, db: bytes, append: bool = False) -> bool:
        table = self._changing(db)
        key = bytes(key)
        if append and table.keys and table.keys[-1] >= key:
            return False
        if key not in table.values:
            if append:
                table.keys.append(key)
            else:
                insort(table.keys, key)
        table.values[key] = bytes(value)
        return True

    def delete(self, key: bytes, *, db: bytes) -> bool:
        key = bytes(key)
        if key not in self.state[db].values:
            return False
        table = self._changing(db)
        del table.keys[bisect_left(table.keys, key)], table.values[key]
        return True

    def drop(self, db: bytes, *, delete: bool) -> None:
        self.state[db] = Table()
        self._own.add(db)
        if delete:
            del self.state[db]

    def cursor(self, db: bytes | None = None) -> MemoryCursor:
        return MemoryCursor(self, db)

    def table(self, db: bytes | None) -> Table:
        if db is None:
            return Table(sorted(self.state), dict.fromkeys(self.state, b""))
        return self.state[db]

    def _changing(self, db: bytes) -> Table:
        table = self.state[db]
        if db not in self._own:
            assert self._write
            table = self.state[db] = Table(list(table.keys), dict(table.values))
            self._own.add(db)
        return table


class MemoryCursor:
    """What is used of `lmdb.Cursor`. It stands at a key, or nowhere."""

    def __init__(self, txn: MemoryTransaction, db: bytes | None) -> None:
        self._txn = txn
        self._db = db
        self._key: bytes | None = None

    def __enter__(self) -> MemoryCursor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        found = self.first()
        while found:
            yield self.key(), self.value()
            found = self.next()

    def _at(self, index: int) -> bool:
        keys = self._txn.table(self._db).keys
        self._key = keys[index] if 0 <= index < len(keys) else None
        return self._key is not None

    def first(self) -> bool:
        return self._at(0)

    def last(self) -> bool:
        return self._at(len(self._txn.table(self._db).keys) - 1)

    def set_range(self, key: bytes) -> bool:
        return self._at(bisect_left(self._txn.table(self._db).keys, bytes(key)))

    def next(self) -> bool:
        if self._key is None:
            return self.first()
        return self._at(bisect_right(self._txn.table(self._db).keys, self._key))

    def prev(self) -> bool:
        if self._key is None:
            return self.last()
        return self._at(bisect_left(self._txn.table(self._db).keys, self._key) - 1)

    def key(self) -> bytes:
        return self._key or b""

    def value(self) -> bytes:
        return b"" if self._key is None else self._txn.table(self._db).values[self._key]

    def item(self) -> tuple[bytes, bytes]:
        return self.key(), self.value()

    def delete(self) -> bool:
        """Delete what it stands at, and stand at the next."""
        assert self._key is not None
        assert self._db is not None
        key = self._key
        self._txn.delete(key, db=self._db)
        self.set_range(key)
        return True


def open_memory_logs(directory: Path, env: MemoryEnvironment) -> LmdbDataLogs:
    """The data logs over an environment in memory; `directory` is for messages."""
    engine: Any = env
    return LmdbDataLogs.over(directory, engine)
