"""Consumer groups as the admin listener and the metrics see them: members from one source, offsets from another.

    offsets logs, in the data logs ──▶ committed, per partition ──┐
    high watermarks, of this process and of others ───────────────┼──▶ GroupView
    membership ──▶ state, members ────────────────────────────────┘

Offsets are read from the data logs' table itself: it has what OffsetFetch answers, and reading it needs no other state.
This is a scan, so it runs in a worker thread, and frequent requests get the last answer (`fairlog.admin_http.cached`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Sized
from enum import Enum
from typing import Protocol
from uuid import UUID

import trio

from datalog.interface import DataLogs
from datalog.offset_entries import CommittedOffset, OffsetKey
from fairlog.admin_http.view import GroupPartition, GroupView, Place
from fairlog_types import LogId, LogKind, Offset
from partition.partition import Partition

_PARTITIONS_PER_STEP = 1000
"""So many offsets are looked at before others get a turn."""


class Described(Protocol):
    """What is looked at of a group's description."""

    @property
    def state(self) -> Enum:
        """Its value is Kafka's word for it."""
        ...

    @property
    def members(self) -> Sized: ...


class Members(Protocol):
    """What is looked at of membership; see `fairlog.groups`."""

    def known(self) -> Collection[str]: ...

    def describe(self, group: str) -> Described | None: ...


class GroupReader:
    """Reads all groups: `await reader()`."""

    def __init__(
        self,
        data_logs: DataLogs,
        led: Mapping[LogId, Partition],
        place_of: Callable[[LogId], Place],
        members: Members,
        led_elsewhere: Callable[[LogId], bool],
        high_watermarks_elsewhere: Callable[[Collection[LogId]], Awaitable[Mapping[LogId, Offset]]],
    ) -> None:
        """`led` are the logs that this process leads: a live view. `led_elsewhere`: another one leads the log.

        `high_watermarks_elsewhere` asks the processes that lead these logs; it leaves out what is not answered.
        """
        self._data_logs = data_logs
        self._led = led
        self._place_of = place_of
        self._members = members
        self._led_elsewhere = led_elsewhere
        self._high_watermarks_elsewhere = high_watermarks_elsewhere

    async def __call__(self) -> Sequence[GroupView]:
        """All groups that have members or committed offsets, by name. Raises StorageFailure."""
        logs = [log for log in self._led if log.kind == LogKind.OFFSETS.value]
        table = await trio.to_thread.run_sync(self._read, logs)
        rows: list[tuple[LogId, OffsetKey, CommittedOffset]] = []
        elsewhere: set[LogId] = set()
        for count, (key, committed) in enumerate(table, start=1):
            if count % _PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            log = LogId.of_topic(UUID(key.topic), key.partition)
            rows.append((log, key, committed))
            if log not in self._led and self._led_elsewhere(log):
                elsewhere.add(log)
        del table
        ends = await self._high_watermarks_elsewhere(elsewhere)
        found: defaultdict[str, list[GroupPartition]] = defaultdict(list)
        for count, (log, key, committed) in enumerate(rows, start=1):
            if count % _PARTITIONS_PER_STEP == 0:
                await trio.lowlevel.checkpoint()
            found[key.group].append(self._partition(log, committed, ends.get(log), elsewhere=log in elsewhere))
        views: list[GroupView] = []
        for group in sorted({*found, *self._members.known()}):
            views.append(self._view(group, found.get(group, [])))
            await trio.lowlevel.checkpoint()
        return views

    def _read(self, logs: Sequence[LogId]) -> list[tuple[OffsetKey, CommittedOffset]]:
        return [entry for log in logs for entry in self._data_logs.offsets(log)]

    def _partition(
        self, log: LogId, committed: CommittedOffset, end_elsewhere: Offset | None, *, elsewhere: bool
    ) -> GroupPartition:
        led = self._led.get(log)
        end = end_elsewhere if led is None else led.visibility.high_watermark
        return GroupPartition(self._place_of(log), committed.offset, end, elsewhere=elsewhere)

    def _view(self, group: str, partitions: Sequence[GroupPartition]) -> GroupView:
        described = self._members.describe(group)
        state, members = ("Empty", 0) if described is None else (str(described.state.value), len(described.members))
        ordered = sorted(partitions, key=lambda it: (it.place.topic, it.place.partition))
        return GroupView(group, state, members, tuple(ordered))
