"""Compacts one log, in steps that are short enough to fit between two of the copier's.

    look ──▶ due? ──▶ note keys ──▶ sweep: read units ─▶ judge ─▶ write ─▶ … ──▶ mark how far ──▶ time index
                         ▲                                                            │
                         └────────────── more keys than the buffer holds ─────────────┘

Reading, unpacking and judging happen outside of write blocks. Each step puts its new batches in place in one block, of
some megabytes at most. This is safe because nothing else changes an existing batch; retention may delete it meanwhile,
and then it is not put back (`DataLogWriter.replace`).

A transaction's batches in the log change in one block, so a reader finds them all as before or all as after, never a
mixture. Of a transaction that is too large for this (`REWRITTEN_BYTES_MAX`) only whole batches are removed.

In a log with markers all this ends at the last stable offset: undecided records are not removed and replace nothing.
Batches of aborted transactions are removed, and their keys do not count; control batches stay, and so does the list of
aborted transactions. Each batch is changed by itself there, because a transaction's batches are not adjacent.

A crash anywhere loses nothing: each block leaves a log in which every key has its latest record, and the progress is
written last. The next cleaning repeats the part that was not marked. Batches that cannot be read (a codec that is not
installed, malformed records) are kept as they are, and so are the tombstones after them.

Not here: the rules (`cleaning`), what goes over single records (`judging`), and the schedule and its reports (`task`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from datalog.aborted import AbortedRanges
from datalog.batch import BadBatch, BatchHeader, check_crc, parse_stored_header
from datalog.interface import (
    Bounds,
    Cleaned,
    Cleaning,
    DataLogs,
    LogMissing,
    OffsetOutOfRange,
    ReadRequest,
    ReadResult,
    Unit,
    UnknownLog,
)
from fairlog.retention.cleaning import (
    News,
    Rules,
    history_after,
    is_young,
    matured,
    why_due,
)
from fairlog.retention.judging import Judge, Verdict
from fairlog_types import CorruptStorage, LogId, Offset
from journal.failpoints import reach

READ_BYTES = 1 << 20
"""Read at once, in one read transaction."""

BATCHES_PER_LOOK = 256
"""How many headers one look at a log's units takes in."""

QUESTION_RECORDS_MAX = 100_000
"""Asked about at once. Compressed, a megabyte may have far more."""

STEP_BYTES_MAX = 2 << 20
STEP_BATCHES_MAX = 256
"""Of one write block: it takes 2 to 4 ms, of which the most is the wait for the disk."""

FORGOTTEN_CUTS_MAX = 2_000
"""In one write block: some milliseconds."""

REWRITTEN_BYTES_MAX = 64 << 20
"""Of one transaction in one log: held in memory until it is written. Of a larger one only whole batches go."""

Steps = Generator[None, None, None]

_FIRST = Offset(0)

_ROOM_BYTES = 1 << 20
_ROOM_BYTES_PER_BATCH = 16 << 10
"""A changed batch changes the page that it hangs on, and those above; all are written anew."""


@dataclass(slots=True)
class Report:
    """What a cleaning has done. Bytes are of batches as stored."""

    reason: str | None = None
    """Why it was due; None if it was not, and nothing was done."""
    end: Offset = _FIRST
    """E: what is new begins here."""
    passes: int = 0
    keys: int = 0
    read_bytes: int = 0
    removed_records: int = 0
    removed_bytes: int = 0
    unreadable: str | None = None
    """Why the first of the batches that were kept as they are could not be read."""
    stuck_at: Offset | None = None
    """Here begins a transaction that has more keys than the buffer holds; the log is not cleaned any further."""


class LogCleaner:
    """One cleaning of one log: go through `steps`, then read `report`."""

    def __init__(
        self,
        data_logs: DataLogs,
        log: LogId,
        rules: Rules,
        *,
        seen: Offset,
        keys_max: int,
        salt: bytes,
        now_ms: Callable[[], int],
        judge: Judge,
    ) -> None:
        """`seen` is the `Report.end` of the last cleaning, 0 if there was none in this run of the node."""
        self.report = Report()
        self._data_logs = data_logs
        self._log = log
        self._rules = rules
        self._seen = seen
        self._keys_max = keys_max
        self._salt = salt
        self._now_ms = now_ms
        self._judge = judge
        self._doubt_from: Offset | None = None
        """The first unit of which something superseded may be left."""

    def steps(self) -> Iterator[None]:
        """Clean the log, if it is due: a step for each `next`, which blocks for some milliseconds.

        Any step raises StorageFailure (NoRoom if the disk is full: then nothing was tried), CorruptStorage, or
        JudgeFailed; what the steps before it have done stands. A log that is dropped meanwhile ends the steps.
        """
        try:
            yield from self._clean()
        except UnknownLog:
            return
        except BadBatch as error:
            raise CorruptStorage(f"data log {self._log}: a batch is not what was written: {error}") from error

    def _clean(self) -> Steps:
        cleaned, bounds = self._data_logs.cleaned(self._log), self._data_logs.bounds(self._log)
        news = yield from self._news(cleaned, bounds)
        self.report.end = news.end
        self.report.reason = why_due(self._rules, cleaned, news, seen=self._seen, now_ms=self._now_ms())
        if self.report.reason is None:
            return
        # The last unit is never touched: the log's end hangs on its last batch, and its batches go together. Before an
        # open transaction it is the same for readers who have to wait there: they must be able to come to that end.
        last = self._data_logs.units(self._log, Offset(bounds.last_stable_offset - 1), batches_max=1)
        sweep_end = min([news.end, *(unit.base_offset for unit in last)])
        at = Offset(max(bounds.log_start, min(cleaned.through, _or_end(cleaned.doubt_from, news.end))))
        while True:
            self._judge.begin(self._salt, self._keys_max)
            noted = yield from self._note(at, news.end)
            if noted == at < news.end:
                self.report.stuck_at = at
                return
            at = noted
            ripe = matured(cleaned.history, self._rules, now_ms=self._now_ms())
            sweep = _Sweep(
                end=Offset(max(cleaned.through, min(at, sweep_end))),
                tombstones_before=Offset(0) if ripe is None else ripe.before,
                counted_before=cleaned.history[-1].before if cleaned.history else Offset(0),
            )
            yield from self._sweep(sweep)
            self.report.passes += 1
            self.report.keys += self._judge.keys()
            cleaned = self._mark(cleaned, sweep, complete=at == news.end)
            yield
            yield from self._forget_cuts()
            if at == news.end:
                break
        if self.report.removed_bytes or self._data_logs.time_index_is_behind(self._log):
            yield from self._data_logs.reindexing(self._log)

    def _news(self, cleaned: Cleaned, bounds: Bounds) -> Generator[None, None, News]:
        """How far the log may be cleaned, and how much is new there."""
        start, end = Offset(max(cleaned.through, bounds.log_start)), bounds.last_stable_offset
        oldest_ms: int | None = None
        size_bytes = 0
        for unit in self._units(start, end):
            if unit is None:
                yield
                continue
            if is_young(self._rules, unit.max_timestamp_ms, now_ms=self._now_ms()):
                return News(unit.base_offset, size_bytes, oldest_ms)
            oldest_ms = unit.max_timestamp_ms if oldest_ms is None else oldest_ms
            size_bytes += unit.size_bytes
            if self._rules.lag_min_ms == 0 and end == bounds.next_offset:
                return News(end, bounds.size_bytes - cleaned.clean_bytes, oldest_ms)
        return News(end, size_bytes, oldest_ms)

    def _note(self, start: Offset, end: Offset) -> Generator[None, None, Offset]:
        """Note the keys of whole units from `start` on, as far as there is memory for them; answer how far."""
        batches = _Stream(self._data_logs, self._log, start, end, self._are_noted)
        noted = start
        for unit in self._units(start, end):
            if unit is None:
                yield
                continue
            for found, is_noted in batches.through(unit.last_offset):
                self.report.read_bytes += len(found.batch)
                if not is_noted:
                    return noted
                if batches.has_read():
                    yield
            noted = Offset(unit.last_offset + 1)
        return end

    def _are_noted(self, found: Sequence[_Found]) -> list[bool]:
        """Note the keys of these batches; answer of each whether there was memory for them."""
        noted = iter(self._judge.note([each.batch for each in found if each.is_judged]))
        return [next(noted) if each.is_judged else True for each in found]

    def _sweep(self, sweep: _Sweep) -> Steps:
        """Take out of the log, from its start to the sweep's end, what need not stay."""
        bounds = self._data_logs.bounds(self._log)
        start = bounds.log_start
        batches = _Stream(self._data_logs, self._log, start, bounds.next_offset, partial(self._verdicts, sweep))
        for unit in self._units(start, sweep.end):
            if unit is None:
                yield
                continue
            left = 0
            for found, verdict in batches.through(unit.last_offset):
                self.report.read_bytes += len(found.batch)
                left += self._change(sweep, unit, found, verdict)
                if batches.has_read():
                    yield
            if unit.batches > 1 >= left:
                sweep.unbound.append(unit.last_offset)
            if len(sweep.changes) >= STEP_BATCHES_MAX or sweep.changed_bytes >= STEP_BYTES_MAX:
                self._write(sweep)
                yield
        self._write(sweep)

    def _verdicts(self, sweep: _Sweep, found: Sequence[_Found]) -> list[Verdict | None]:
        """What stays of these batches; None for one that is not judged by its records."""
        verdicts = iter(
            self._judge.judge(
                [each.batch for each in found if each.is_judged],
                tombstones_before=sweep.tombstones_before,
                counted_before=sweep.counted_before,
            )
        )
        return [next(verdicts) if each.is_judged else None for each in found]

    def _change(self, sweep: _Sweep, unit: Unit, found: _Found, verdict: Verdict | None) -> bool:
        """Note what is to be changed of the batch; answer whether anything of it stays."""
        batch, records = found.batch, found.header.record_count
        changed: bytes | None = batch
        removed = 0
        if found.aborted:
            changed, removed = None, records
        elif verdict is not None:
            changed, removed = self._left_of(sweep, unit, found, verdict)
        sweep.kept_bytes += 0 if changed is None else len(changed)
        if removed:
            sweep.changes.append((found.header.last_offset, changed))
            sweep.changed_bytes += 0 if changed is None else len(changed)
            self.report.removed_records += removed
            self.report.removed_bytes += len(batch) - (0 if changed is None else len(changed))
        return changed is not None

    def _left_of(self, sweep: _Sweep, unit: Unit, found: _Found, verdict: Verdict) -> tuple[bytes | None, int]:
        """What stays of a batch of committed records, None if nothing, and how many of them go."""
        if verdict.unreadable is not None:
            return found.batch, self._leave(unit, f"offset {found.header.base_offset}: {verdict.unreadable}")
        changed: bytes | None = found.batch
        removed = found.header.record_count - verdict.left
        if not verdict.left:
            changed = None
        elif removed and unit.size_bytes <= REWRITTEN_BYTES_MAX:
            changed = verdict.changed
        elif removed:
            removed = self._leave(unit, None)
        if self._doubt_from is None:
            # Those that a later cleaning may remove, which are none of those behind a doubt.
            sweep.tombstones += verdict.tombstones
        return changed, removed

    def _leave(self, unit: Unit, unreadable: str | None) -> int:
        """Leave a batch as it is, though something of it may be superseded: none of its records is removed."""
        if self._doubt_from is None or unit.base_offset < self._doubt_from:
            self._doubt_from = unit.base_offset
        self.report.unreadable = self.report.unreadable or unreadable
        return 0

    def _write(self, sweep: _Sweep) -> None:
        """Put the changes in place, in one write block."""
        if not sweep.changes:
            return
        room_bytes = sweep.changed_bytes + _ROOM_BYTES + len(sweep.changes) * _ROOM_BYTES_PER_BATCH
        with self._data_logs.write(room_bytes=room_bytes) as writer:
            for last_offset, data in sweep.changes:
                writer.replace(self._log, last_offset, data)
            for last_offset in sweep.unbound:
                writer.unbind(self._log, last_offset)
            reach("retention.clean.before_commit")
        reach("retention.clean.after_commit")
        sweep.written()

    def _mark(self, cleaned: Cleaned, sweep: _Sweep, *, complete: bool) -> Cleaned:
        """Keep that the log is clean to the sweep's end. A pass that is not the last one dispels no doubt."""
        doubts = [self._doubt_from, None if complete else cleaned.doubt_from]
        doubt_from = min((doubt for doubt in doubts if doubt is not None), default=None)
        done = Cleaning(Offset(min(sweep.end, _or_end(doubt_from, sweep.end))), self._now_ms(), sweep.tombstones)
        history = history_after(cleaned.history, self._rules, done, tombstones_before=sweep.tombstones_before)
        marked = Cleaned(sweep.end, sweep.kept_bytes, doubt_from, history)
        reach("retention.clean.before_mark")
        with self._data_logs.write(room_bytes=_ROOM_BYTES) as writer:
            writer.put_cleaned(self._log, marked)
        return marked

    def _forget_cuts(self) -> Steps:
        """Forget the cuts in what is clean, or the index of a log that never begins later would grow for ever."""
        more = True
        while more:
            with self._data_logs.write(room_bytes=_ROOM_BYTES) as writer:
                more = writer.forget_cleaned_cuts(self._log, rows_max=FORGOTTEN_CUTS_MAX) == FORGOTTEN_CUTS_MAX
            yield

    def _units(self, start: Offset, end: Offset) -> Iterator[Unit | None]:
        """The log's units from the one with `start` on that begin before `end`; None where a step may end."""
        while start < end:
            units = self._data_logs.units(self._log, start, batches_max=BATCHES_PER_LOOK)
            for unit in units:
                if unit.base_offset >= end:
                    return
                yield unit
            if not units:
                return
            start = Offset(units[-1].last_offset + 1)
            yield None


@dataclass(slots=True)
class _Sweep:
    """One pass over the log from its start, and what of it is not written yet."""

    end: Offset
    tombstones_before: Offset
    """Those before this offset may go."""
    counted_before: Offset
    """Tombstones before this offset were counted by earlier cleanings."""
    tombstones: int = 0
    kept_bytes: int = 0
    changes: list[tuple[Offset, bytes | None]] = field(default_factory=list[tuple[Offset, bytes | None]])
    """The key of a batch, and what takes its place."""
    changed_bytes: int = 0
    unbound: list[Offset] = field(default_factory=list[Offset])

    def written(self) -> None:
        self.changes, self.changed_bytes, self.unbound = [], 0, []


class _Found(NamedTuple):
    """A batch of the log. A tuple: there is one for each batch that is read."""

    batch: bytes
    header: BatchHeader
    aborted: bool
    """It is part of a transaction that was aborted."""

    @property
    def is_judged(self) -> bool:
        """Whether its records have keys that count."""
        return not (self.aborted or self.header.control)


_Said = TypeVar("_Said")


class _Stream(Generic[_Said]):
    """The decided batches of a log in order, some read ahead. Where retention takes some away, it goes on behind them.

    What is read ahead is asked about in few questions, and given with the answers: a question for each batch would cost
    more than its answer. CRCs are checked before that: what compaction writes anew gets a new one, which must not vouch
    for what a disk has changed.
    """

    def __init__(
        self,
        data_logs: DataLogs,
        log: LogId,
        start: Offset,
        end: Offset,
        ask: Callable[[Sequence[_Found]], list[_Said]],
    ) -> None:
        """`ask` has an answer for each of the batches that it is given, which lie before `end`."""
        self._data_logs = data_logs
        self._log = log
        self._at = start
        self._end = end
        self._ask = ask
        self._ahead: deque[tuple[_Found, _Said]] = deque()
        self._has_read = False

    def has_read(self) -> bool:
        """Whether it has read since this was asked last: a step may end then."""
        has_read, self._has_read = self._has_read, False
        return has_read

    def through(self, last_offset: Offset) -> Iterator[tuple[_Found, _Said]]:
        """Those that end at or before `last_offset` and were not given yet."""
        while self._ahead or self._read():
            ends_at = self._ahead[0][0].header.last_offset
            if ends_at > last_offset:
                return
            yield self._ahead.popleft()
            if ends_at == last_offset:
                return

    def _read(self) -> bool:
        request = ReadRequest(self._log, self._at, READ_BYTES, committed_only=True)
        (answer,) = self._data_logs.read([request], bytes_max=READ_BYTES)
        if isinstance(answer, OffsetOutOfRange) and answer.log_start_offset > self._at:
            self._at = answer.log_start_offset
            return self._read()
        if isinstance(answer, LogMissing):
            raise UnknownLog(self._log)
        if not isinstance(answer, ReadResult):
            return False
        aborted = AbortedRanges(answer.aborted)
        ahead: list[_Found] = []
        for batch in answer.batches:
            header = parse_stored_header(batch)
            found = _Found(bytes(batch), header, aborted.contain(header))
            if found.header.last_offset >= self._end:
                break
            try:
                check_crc(found.header, found.batch)
            except BadBatch:
                if ahead:
                    break  # it is told of when what lies before it has been given
                raise
            ahead.append(found)
        if not ahead:
            return False
        for some in _in_questions(ahead):
            self._ahead.extend(zip(some, self._ask(some), strict=True))
        self._at = Offset(ahead[-1].header.last_offset + 1)
        self._has_read = True
        return True


def _in_questions(batches: Sequence[_Found]) -> Iterator[Sequence[_Found]]:
    """The batches in parts that are judged in short time: of at most so many records, or of one batch."""
    start = records = 0
    for at, found in enumerate(batches):
        if at > start and records + found.header.record_count > QUESTION_RECORDS_MAX:
            yield batches[start:at]
            start, records = at, 0
        records += found.header.record_count
    yield batches[start:]


def _or_end(offset: Offset | None, end: Offset) -> Offset:
    return end if offset is None else offset
