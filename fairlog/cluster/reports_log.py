"""Says to the other nodes how this one's copies are, and hears how theirs are: the stream of reports.

    copies of this node ─ every few seconds, and when a role changes ─▶ ┌────────┐
                                                                        │ stream │ ─▶ read ─▶ `Reports`
                                        other nodes ───────────────────▶└────────┘

One report is under way at a time, so an engine that is away has no queue of old ones to take. What became of one is not
asked: the next one says more.

A node that stops says so by what it leaves out: first the copies that only follow, so that no owner hands a shard over
to it, and at the end all. Otherwise its last report would count as fresh for ten seconds.

The stream is read from its end on. What was there before says little about now, and would count as fresh; every node
that is alive says it again within seconds. So a node that begins, or that could not read for a while, knows nobody for
a moment. If the engine is away, nobody is heard, and all become old.

A stream that somebody deletes is not read any more until the node is restarted: then no copy but the owners' counts as
in sync, and nothing is trimmed. A line in the log says so, again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from uuid import UUID

import structlog
import trio

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.report_entry import Report, encode_report
from fairlog.cluster.reports import Reports
from fairlog.edge.log_limiter import LogLimiter
from fairlog_types import ShardNumber
from shard.progress import CopyProgress, CopyReport, Role
from stream.engine import EngineAway, EntryGone, StoredEntry, Stream, StreamCutOff, StreamPosition, Unknown

log = structlog.get_logger()

STREAM = "reports"
"""Its name in the engine."""

REPORT_EVERY_S = 2.0
RETRY_S = 1.0
"""Between two tries to read, while the engine is away."""
KEPT_S = 60.0
"""What `trim` leaves of the stream."""
LAST_S = 1.0
"""So long the last report of a node may take."""
_POSITIONS_EVERY_S = 1.0
_OWNS = (Role.OPENING, Role.OWNER)


class ReportsLog:
    """The reports, as one node makes and knows them, while `run` runs."""

    def __init__(
        self,
        stream: Stream,
        cluster: UUID,
        node: NodeNumber,
        incarnation: bytes,
        copies: Mapping[ShardNumber, CopyProgress],
        *,
        every_s: float = REPORT_EVERY_S,
    ) -> None:
        """`copies` are this node's, and may change; `incarnation` is 16 random bytes of this run of the process."""
        self.reports = Reports(cluster, trio.current_time)
        self._stream = stream
        self._cluster = cluster
        self._node = node
        self._incarnation = incarnation
        self._copies = copies
        self._every_s = every_s
        self._number = 0
        self._stops = False
        self._due = trio.Event()
        self._last: trio.Event | None = None
        """Set when the last report was said, once one is to be the last."""
        self._read: deque[tuple[float, StreamPosition]] = deque()
        """When which entry was read, about once in a second. The first one is the newest that is old enough to go."""
        self._lines = LogLimiter(trio.current_time)

    def report_now(self) -> None:
        """Something important has changed: do not wait for the next time."""
        self._due.set()

    def stop(self) -> None:
        """This node stops: say nothing any more of copies that are not owned, for nobody should count on them."""
        self._stops = True
        self.report_now()

    async def say_last(self) -> None:
        """Say how the copies are once more, for the last time, and wait until that is said, while `run` runs.

        Not for long, for the engine may be away.
        """
        self._last = trio.Event()
        self.report_now()
        with trio.move_on_after(LAST_S):
            await self._last.wait()

    async def run(self) -> None:
        """Report and read, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            while True:
                try:
                    await self._follow()
                except EngineAway as away:
                    self._warn("reports cannot be read", reason=str(away))
                except EntryGone as gone:
                    self._warn("reports were trimmed before they were read", reason=str(gone))
                except StreamCutOff as cut_off:
                    self._warn("the stream of reports is lost until this node is restarted", reason=str(cut_off))
                await trio.sleep(RETRY_S)

    async def trim(self) -> None:
        """Let go of the reports that this node has read a minute ago, if any. The engine may be away."""
        if self._read and self._read[0][0] <= trio.current_time() - KEPT_S:
            try:
                await self._stream.trim(self._read[0][1])
            except EngineAway as away:
                self._warn("reports are not trimmed", reason=str(away))

    async def _report(self) -> None:
        while True:
            self._due = trio.Event()
            last = self._last
            outcome = await self._append(self._next_report())
            if isinstance(outcome, Unknown):
                self._warn("it is not known whether a report was appended", reason=outcome.reason)
            if last is not None:
                last.set()
                return
            with trio.move_on_after(self._every_s):
                await self._due.wait()

    def _next_report(self) -> bytes:
        self._number += 1
        copies: dict[ShardNumber, CopyReport] = {}
        for shard, progress in self._copies.items():
            report = progress.report
            if report is not None and (report.role in _OWNS or not self._stops):
                copies[shard] = report
        return encode_report(self._cluster, Report(self._node, self._incarnation, self._number, copies))

    async def _append(self, data: bytes) -> StreamPosition | Unknown:
        outcomes: list[StreamPosition | Unknown] = []
        answered = trio.Event()

        def done(outcome: StreamPosition | Unknown) -> None:
            outcomes.append(outcome)
            answered.set()

        self._stream.append(data, done)
        await answered.wait()
        return outcomes[0]

    async def _follow(self) -> None:
        """Read from the end on. Raises EngineAway, EntryGone, StreamCutOff."""
        async with self._stream.open_reader(await self._stream.end()) as reader:
            while True:
                entries = await reader.next()
                self._note_read(entries[-1])
                for position, why in self.reports.take(entries):
                    self._warn("entry of the stream of reports ignored", position=position, reason=why.value)

    def _note_read(self, last: StoredEntry) -> None:
        now_s = trio.current_time()
        if not self._read or now_s >= self._read[-1][0] + _POSITIONS_EVERY_S:
            self._read.append((now_s, last.position))
        while len(self._read) > 1 and self._read[1][0] <= now_s - KEPT_S:
            self._read.popleft()

    def _warn(self, event: str, **fields: object) -> None:
        more = self._lines.admit(self._stream.name, event)
        if more is not None:
            log.warning(event, stream=self._stream.name, **fields, **more)
