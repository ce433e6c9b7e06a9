"""What time brings: transactions that took too long, ids that nobody uses, and journals that have grown.

How it works. Every `check_interval_ms` each id that has no turn is looked at (`expiry.due`), and gets one if it is
due. Then sinks let go of lanes that have ended so, or do nothing. Ages are taken from the clock of the event loop,
since the wall clock may jump. A group journal that has outgrown its own snapshot is replaced by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import structlog
import trio

from coordinator.executor import Executor
from coordinator.expiry import due
from coordinator.group_records import GroupRecord
from coordinator.id_entry import ms_since, open_ms_of
from coordinator.replay import snapshot_records
from coordinator.sinks.service import Sinks
from fairlog_types import StorageFailure
from journal.journal import NoFiles

SNAPSHOT_BYTES_MIN = 256 * 1024
"""A start reads each group journal record by record, some 10 µs for each of a hundred bytes: this much of 16 journals
costs it half a second."""

SNAPSHOT_BYTES_PER_ID = 256
"""About what an id takes in a snapshot: a journal is cut when it has outgrown its own snapshot."""

_YIELD_EVERY = 500
"""So many ids are looked at before the event loop gets its turn."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def keep_house(executor: Executor, sinks: Sinks) -> None:
    """Look at every id each `check_interval_ms`; until cancelled."""
    while True:
        await trio.sleep(executor.settings.check_interval_ms / 1000)
        for count, (transactional_id, entry) in enumerate(list(executor.table.entries.items())):
            if count % _YIELD_EVERY == 0:
                await trio.lowlevel.checkpoint()
            if entry.busy or executor.journals.is_refusing(entry):
                continue
            ages_ms = (open_ms_of(entry) or 0.0, ms_since(entry.used_s))
            event = due(entry.producer, *ages_ms, executor.settings, executor.now_ms())
            if event is not None and executor.table.entries.get(transactional_id) is entry:
                await executor.take_turn(entry, event)
        await sinks.look()
        await _take_snapshots(executor, sinks)


async def _take_snapshots(executor: Executor, sinks: Sinks) -> None:
    for index, journal in enumerate(executor.journals):
        if journal.bytes_since_snapshot <= SNAPSHOT_BYTES_MIN or executor.journals.failures[index] is not None:
            continue
        ids = sum(entry.journal == index for entry in executor.table.entries.values())
        if journal.bytes_since_snapshot > ids * SNAPSHOT_BYTES_PER_ID:
            try:
                await journal.snapshot(partial(_state, executor, sinks, index))
            except NoFiles as failure:
                _log.warning("snapshot put off", reason=str(failure))
            except (StorageFailure, OSError) as failure:
                executor.journals.refuse(index, failure)


def _state(executor: Executor, sinks: Sinks, index: int) -> Iterator[GroupRecord]:
    """Of all ids and sinks whose records are in that journal."""
    producers = (entry.producer for entry in executor.table.entries.values() if entry.journal == index)
    return snapshot_records(producers, sinks.states(index))
