"""Rebuilds a log's time index when the batch with the largest timestamp is gone, or many batches are.

    headers of all batches, some thousand per read ──▶ the rule (`datalog.time_index`) ──▶ which entries there should be
      ──▶ some thousand changed per write ──▶ the last write adds the batches that arrived meanwhile, and the max

It can work in steps because an entry that was ever true stays true, whatever is appended or removed. So old and new
entries may coexist at any time, and a node that stops in between has an index that is merely larger or sparser than
necessary.

Everything is scanned, because the running max of the remaining batches cannot be known from less. A header costs about
a microsecond, and a read of one page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager

from datalog import time_index
from datalog.layout import LogRecord
from datalog.writer import LmdbWriter
from fairlog_types import LogId, Offset

HEADERS_PER_STEP = 10_000
ENTRIES_PER_STEP = 2_000

Headers = list[tuple[Offset, int, int]]
"""The key, max timestamp in ms and size of each batch."""


def reindexing(
    log: LogId,
    *,
    headers: Callable[[Offset, int], Headers],
    entries: Callable[[], Mapping[int, Offset]],
    write: Callable[[], AbstractContextManager[LmdbWriter]],
) -> Iterator[None]:
    """The steps of `DataLogs.reindexing`.

    `headers(offset, count)` reads headers of the log from an offset on, `entries()` its entries P → b.
    """
    scanned = LogRecord(number=0)
    wanted: dict[int, Offset] = {}
    through = Offset(-1)
    while True:
        found = headers(Offset(through + 1), HEADERS_PER_STEP)
        wanted.update(time_index.note_all(scanned, found))
        if found:
            through = found[-1][0]
        if len(found) < HEADERS_PER_STEP:
            break
        yield
    there = entries()
    # Entries after `through` are the copier's, written meanwhile.
    drop = [before for before, at in there.items() if at <= through and wanted.get(before) != at]
    put = [(before, at) for before, at in wanted.items() if there.get(before) != at]
    yield
    for start in range(0, max(len(drop), len(put)), ENTRIES_PER_STEP):
        step = slice(start, start + ENTRIES_PER_STEP)
        with write() as writer:
            # Dropped first: a P may be put with another b.
            writer.change_time_index(log, drop=drop[step], put=())
        with write() as writer:
            writer.change_time_index(log, drop=(), put=put[step])
        yield
    with write() as writer:
        writer.finish_time_index(log, through, scanned)
