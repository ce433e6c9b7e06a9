"""The logs that this node leads, and the one way in which any of them changes.

    a record ─▶ journal.append ─▶ fold ─▶ what is placed ─▶ copier ─▶ high watermark, last stable offset ─▶ readers

A leader is a journal with its `PartitionState`, the fold over that journal. The state decides (pure), the journal gets
a frame, the state folds the frame, and what the fold says is placed goes to the copier; all of that in one step of the
event loop. A restart replays the frames through the same fold, so live and recovered leaders agree. Until the node has
recovered, what is placed is kept back, for it goes behind what recovery finds (`finish_recovery`).

A storage failure is final for the run: from then on every write is refused, reads go on (invariant 12).

Used by `fairlog.leaders` and `fairlog.participants`, which say what is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
import trio

from copier.copier import Copier
from copier.visibility import LogForgotten
from datalog.interface import DataLogs, Mark
from fairlog.led_logs import LedLog, Opened
from fairlog_types import LeaderEpoch, LogId, Offset, StorageFailure
from journal.journal import Journal, NoFiles
from partition.answers import Buffer
from partition.placed import Placed
from partition.record_codec import encode_local
from partition.records import LocalRecord

logger = structlog.get_logger("fairlog.led_writer")

REFUSED_SAID_EVERY_S = 60
"""A process without file descriptors may refuse thousands of writes in a second."""


class LedWriter:
    """All logs that are led, with the copier behind them. Used on the event loop."""

    def __init__(
        self,
        data_logs: DataLogs,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: Callable[[], int],
        backlog_bytes_max: int,
    ) -> None:
        """With more than `backlog_bytes_max` written and not copied yet, `leader_with_place` waits."""
        self.led: dict[LogId, LedLog] = {}
        self.leader_epoch = leader_epoch
        self.now_ms = now_ms
        self.failure: StorageFailure | None = None
        """Why no more writes are taken."""
        self.copier = Copier(
            data_logs,
            self.journal_of,
            on_copied=self._on_copied,
            on_failure=self.fail,
            backlog_bytes_max=backlog_bytes_max,
        )
        self._marks: dict[LogId, Mark] = {}
        """Of all logs, as the data logs had them at the start; handed on with what is recovered."""
        self._recovered: dict[LogId, list[Placed]] | None = {}
        """What is placed and not yet copied, by log, until `finish_recovery` hands it to the copier."""
        self._refused_without_files = 0
        """For want of file descriptors, since the log last said so."""
        self._refused_said_s = -math.inf

    # --- which logs there are -----------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        return self._recovered is not None

    def adopt(self, opened: Opened) -> None:
        """Lead a log that has been opened."""
        log = opened.led.state.log
        assert self._recovered is not None or not opened.placed, "a log with a past is led at the start only"
        if self._recovered is not None:
            self._marks[log] = opened.mark
            self._recovered[log] = opened.placed
        self.led[log] = opened.led

    def finish_recovery(self) -> None:
        """Hand what is placed so far to the copier, in one order."""
        assert self._recovered is not None
        recovered, self._recovered = self._recovered, None
        self.copier.recover(recovered, self._marks)
        self._marks = {}

    def forget(self, log: LogId) -> Journal | None:
        """Stop leading a log that is being deleted; answers its journal, to be closed."""
        leader = self.led.pop(log, None)
        if leader is None:
            return None
        leader.wake()
        self.copier.forget(log)
        return leader.journal

    def journal_of(self, log: LogId) -> Journal:
        return self.led[log].journal

    async def visible(self, log: LogId, offset: Offset) -> None:
        """Return once the high watermark is at least `offset`, or the log is gone.

        Raises StorageFailure if copying has stopped for good.
        """
        with suppress(LogForgotten):
            await self.copier.copied(log, offset)

    def _on_copied(self, high_watermarks: Mapping[LogId, Offset], last_stable: Mapping[LogId, Offset]) -> None:
        for log, high_watermark in high_watermarks.items():
            leader = self.led.get(log)
            if leader is not None:
                leader.advance(high_watermark, last_stable[log])

    # --- room, which may have to be waited for ------------------------------------------------

    async def leader_with_place(self, log: LogId, payload_bytes: int) -> LedLog | None:
        """`leader_with_room`, once the copier's backlog has room as well."""
        if self.copier.is_behind(payload_bytes):
            await self.copier.room(payload_bytes)
        return await self.leader_with_room(log, payload_bytes)

    async def leader_with_room(self, log: LogId, payload_bytes: int) -> LedLog | None:
        """The leader of `log`, in a step in which its journal has room for a frame with so many bytes.

        None if the log is not led, or was dropped meanwhile. Raises StorageFailure.
        """
        leader = self.led.get(log)
        # Again after each wait: somebody else, who waited for the same room, may have taken it.
        while leader is not None and self.failure is None and not leader.journal.has_room(payload_bytes):
            try:
                await leader.journal.make_room(payload_bytes)
            except NoFiles as refusal:
                self._say_refused(refusal)
                raise  # this write is refused; the next may find a file descriptor free again
            except StorageFailure as failure:
                if self.led.get(log) is leader:  # else it was the deletion that closed the journal
                    self.fail(failure)
            leader = self.led.get(log)
        if leader is not None:
            self.raise_if_failed()
        return leader

    def _say_refused(self, refusal: NoFiles) -> None:
        self._refused_without_files += 1
        now_s = trio.current_time()
        if now_s - self._refused_said_s >= REFUSED_SAID_EVERY_S:
            logger.warning(
                "refused for want of file descriptors", refused=self._refused_without_files, reason=str(refusal)
            )
            self._refused_without_files, self._refused_said_s = 0, now_s

    # --- writing, in one step -----------------------------------------------------------------

    def write(self, leader: LedLog, record: LocalRecord, payload: Buffer = b"") -> None:
        """Append a record that the state has decided on, fold it, and let the copier have what it places.

        Raises StorageFailure.
        """
        item = self.fold(leader, record, payload)
        if item is not None:
            self.submit((item,))

    def fold(self, leader: LedLog, record: LocalRecord, payload: Buffer = b"") -> Placed | None:
        """Append a record and fold it; what it places is for the caller to `submit`. Raises StorageFailure."""
        # After a failure the copier must get nothing more: it might pass a decision that was not handed to it.
        self.raise_if_failed()
        kind, header = encode_local(record)
        try:
            position = leader.journal.append(kind, header, (payload,) if payload else ())
        except StorageFailure as failure:
            self.fail(failure)
            raise
        return leader.state.fold(
            record, position, leader.journal.end, leader_epoch=self.leader_epoch, now_ms=self.now_ms()
        )

    def submit(self, group: tuple[Placed, ...], *, order: str | None = None) -> None:
        """Let these items become visible together, behind all that was submitted before (but see `Copier.submit`)."""
        if self._recovered is None:
            self.copier.submit(group, order=order)
            return
        for item in group:
            self._recovered.setdefault(item.log, []).append(item)

    # --- when the disk fails ------------------------------------------------------------------

    def raise_if_failed(self) -> None:
        if self.failure is not None:
            raise self.failure

    def fail(self, failure: StorageFailure) -> None:
        """Refuse writes from now on, and let nobody wait for what will not come."""
        if self.failure is not None:
            return
        self.failure = failure
        logger.error("writes are refused until this node is restarted", reason=str(failure))
        for leader in self.led.values():
            leader.wake()
