"""Which cut a reader with a limit is given: the search against a walk through all cuts, and the index against a model.

The model's data logs lie in the engine in memory (`tests.simulation.memory_lmdb`), which a kill and a power cut leave
as LMDB would be left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, inf, log2
from pathlib import Path
from random import Random
from unittest import mock
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from datalog import cuts
from datalog.cuts import (
    RECORDS_PER_CUT,
    SECONDS_PER_CUT,
    Cut,
    LogCuts,
    LookedUp,
    Unindexed,
    find_cut,
    search,
)
from datalog.interface import DataLogs, UnknownLog
from fairlog_types import LogId, Offset
from tests.datalog.behaviour import Interrupted, append, mark
from tests.simulation.memory_lmdb import MemoryEnvironment, State, open_memory_logs

NOWHERE = Path("/nowhere")
LOGS = [LogId.of_topic(UUID(int=number), 0) for number in range(4)]

# --- when a cut is kept -----------------------------------------------------------------------------


def test_cut_is_due_after_enough_records_or_time() -> None:
    """The first at once; then whichever comes first, counted from the last one kept."""
    unindexed = Unindexed(1)
    assert unindexed.is_due(1, 5.0)
    unindexed.begin_again(5.0)
    assert not unindexed.is_due(RECORDS_PER_CUT - 1, 5.0)
    assert unindexed.is_due(RECORDS_PER_CUT, 5.0)
    assert not unindexed.is_due(1, 5.0 + SECONDS_PER_CUT / 2)
    assert unindexed.is_due(1, 6.0)
    unindexed.add([LOGS[0]], RECORDS_PER_CUT - 1)
    assert unindexed.is_due(1, 5.0)
    assert unindexed.grown == {LOGS[0]}
    unindexed.begin_again(5.0)
    assert unindexed == Unindexed(3, since_s=5.0)


# --- the search -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """Ends of some logs at all cuts, as a table and as rows; of some, the first rows are not there any more."""

    ends: list[list[int]]
    """Per cut, from 1 on, the end of each log; the last is the state of now."""
    rows: list[dict[int, int]]
    starts: list[int]


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    logs = draw(st.integers(1, 4))
    growth = draw(st.lists(st.lists(st.integers(0, 5), min_size=logs, max_size=logs), min_size=1, max_size=12))
    ends: list[list[int]] = []
    rows: list[dict[int, int]] = [{0: 0} for _ in range(logs)]
    at = [0] * logs
    for number, step in enumerate(growth, 1):
        at = [end + more for end, more in zip(at, step, strict=True)]
        ends.append(at)
        for index, more in enumerate(step):
            if more and number < len(growth):
                rows[index][number] = at[index]
    for row in rows:
        for number in sorted(row)[: draw(st.integers(0, len(row)))]:
            del row[number]
    return Index(ends, rows, [draw(st.integers(0, end + 1)) for end in at])


def records(ends: Sequence[int], starts: Sequence[int]) -> int:
    return sum(max(0, end - start) for end, start in zip(ends, starts, strict=True))


def walk(index: Index, records_max: int) -> list[int]:
    """What the search should find: by looking at every cut that is known to every log that has to be read."""
    *past, now = index.ends
    behind = [log for log, start in enumerate(index.starts) if start < now[log]]
    known_from = 1
    for log in behind:
        if not index.rows[log]:
            known_from = len(past) + 1
        elif index.starts[log] < min(index.rows[log].items())[1]:
            known_from = max(known_from, min(index.rows[log]))
    candidates = [*past[known_from - 1 :], now]
    clamped = [[max(pair) for pair in zip(ends, index.starts, strict=True)] for ends in candidates]
    within = [ends for ends in clamped if 0 < records(ends, index.starts) <= records_max]
    beyond = [ends for ends in clamped if records(ends, index.starts) > records_max]
    return within[-1] if within else beyond[0] if beyond else clamped[-1]


def look_up(index: Index, records_max: int) -> tuple[list[int], int]:
    """What it finds, and how many rows it has looked up."""
    looked_up = 0

    def end_at(log: int, number: int) -> Offset:
        nonlocal looked_up
        looked_up += 1
        return Offset(index.rows[log][max(cut for cut in index.rows[log] if cut <= number)])

    logs: list[LogCuts] = []
    for start, end, rows in zip(index.starts, index.ends[-1], index.rows, strict=True):
        ordered = [Cut(number, Offset(end)) for number, end in sorted(rows.items())] or [None]
        logs.append(LogCuts(Offset(start), Offset(end), ordered[0], ordered[-1]))
    return [int(end) for end in find_cut(logs, records_max=records_max, end_at=end_at)], looked_up


@settings(max_examples=500)
@given(indexes(), st.integers(1, 40))
def test_search_finds_what_a_walk_through_all_cuts_finds(index: Index, records_max: int) -> None:
    """The newest cut within the limit, or the first that has anything; no older one than all logs know."""
    found, looked_up = look_up(index, records_max)
    assert found == walk(index, records_max)
    assert looked_up <= len(index.starts) * ceil(log2(len(index.ends) + 2))


@settings(max_examples=200)
@given(indexes(), st.integers(1, 10))
def test_reader_that_goes_from_cut_to_cut_comes_to_the_end(index: Index, records_max: int) -> None:
    """Each step has something, and the last one ends where the logs end."""
    now = index.ends[-1]
    while any(start < end for start, end in zip(index.starts, now, strict=True)):
        found, _ = look_up(index, records_max)
        assert records(found, index.starts) > 0
        index = replace(index, starts=found)
    assert index.starts == [max(pair) for pair in zip(now, index.starts, strict=True)]


def test_search_does_not_look_up_what_cannot_change() -> None:
    """Logs that have been idle since the start cost nothing, however many there are."""
    busy, idle = {number: number for number in range(1001)}, {0: 0, 1: 1}
    index = Index([[1000] + [1] * 500], [busy, *[idle] * 500], [0] + [1] * 500)
    found, looked_up = look_up(index, 10)
    assert found == [10] + [1] * 500
    assert looked_up <= 11


def search_over_shards(index: Index, usable: set[int], records_max: int) -> tuple[list[int], bool]:
    """Of the cuts only some can be used; a lookup of another one finds the newest that is older."""
    logs: list[LogCuts] = []
    for start, end, rows in zip(index.starts, index.ends[-1], index.rows, strict=True):
        ordered = [Cut(number, Offset(end)) for number, end in sorted(rows.items())] or [None]
        logs.append(LogCuts(Offset(start), Offset(end), ordered[0], ordered[-1]))
    searching = search(logs, records_max=records_max, newest=len(index.ends) - 1)
    try:
        lookup = next(searching)
        while True:
            number = max((cut for cut in usable if cut <= lookup.number), default=0)
            ends = [
                Offset(index.rows[log][max(older)])
                if (older := [cut for cut in index.rows[log] if cut <= number])
                else None
                for log in lookup.logs
            ]
            lookup = searching.send(LookedUp(number, ends))
    except StopIteration as stopped:
        return [int(end) for end in stopped.value.ends], stopped.value.is_now


@settings(max_examples=500)
@given(indexes(), st.data(), st.integers(1, 40))
def test_search_uses_no_cut_that_not_all_shards_know(index: Index, data: st.DataObject, records_max: int) -> None:
    """As if the others had never been taken: the newest within the limit of those that can be used."""
    *past, now = index.ends
    numbers = st.sets(st.integers(1, len(past))) if past else st.just(set[int]())
    usable = data.draw(numbers)
    found, is_now = search_over_shards(index, usable, records_max)
    behind = [log for log, start in enumerate(index.starts) if start < now[log]]
    known_from = 1
    for log in behind:
        if not index.rows[log]:
            known_from = len(past) + 1
        elif index.starts[log] < min(index.rows[log].items())[1]:
            known_from = max(known_from, min(index.rows[log]))
    candidates = [past[number - 1] for number in sorted(usable) if number >= known_from]
    clamped = [[max(pair) for pair in zip(ends, index.starts, strict=True)] for ends in (*candidates, now)]
    within = [ends for ends in clamped if 0 < records(ends, index.starts) <= records_max]
    beyond = [ends for ends in clamped if records(ends, index.starts) > records_max]
    assert found == (within[-1] if within else beyond[0] if beyond else clamped[-1])
    assert not is_now or found == clamped[-1]


# --- the index --------------------------------------------------------------------------------------

RECORDS = 8
"""Stands for `RECORDS_PER_CUT` here."""

Ends = Mapping[LogId, int]


@dataclass(frozen=True)
class Content:
    """What the data logs hold, by the model."""

    ends: Ends = field(default_factory=dict[LogId, int])
    log_starts: Ends = field(default_factory=dict[LogId, int])
    kept: tuple[Ends, ...] = ()
    """The cuts of the index, all."""
    common: tuple[tuple[int, Ends], ...] = ()
    """Of these the ones that were taken over all shards, with their numbers."""


@dataclass
class Memory:
    """What the model's process knows, and forgets with each start."""

    records: int = 0
    since_s: float = -inf


class CutsMachine(RuleBasedStateMachine):
    """Data logs beside a model that keeps every cut whole."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = mock.patch.object(cuts, "RECORDS_PER_CUT", RECORDS)
        self.patch.start()
        self.env = MemoryEnvironment()
        self.now = Content()
        self.memory = Memory()
        self.now_s = 0.0
        self.known: list[tuple[State, Content]] = [(self.env.state, self.now)]
        """What each state of the engine means. States are kept, lest another be given their identity."""
        self.logs: DataLogs = open_memory_logs(NOWHERE, self.env)
        self.noted: Ends = {}
        self.committed(self.now)

    def teardown(self) -> None:
        self.patch.stop()

    def committed(self, content: Content) -> None:
        self.now = content
        self.known.append((self.env.state, content))

    @rule(
        transactions=st.lists(
            st.dictionaries(st.sampled_from(LOGS), st.integers(1, 3), min_size=1, max_size=2), min_size=1, max_size=3
        ),
        passing_s=st.sampled_from([0.0, 0.01, SECONDS_PER_CUT]),
        keeps=st.booleans(),
        fails=st.sampled_from([False] * 5 + [True]),
    )
    def copy(self, transactions: list[dict[LogId, int]], passing_s: float, keeps: bool, fails: bool) -> None:
        """One chunk; new logs are made with it. Some fail at their end."""
        self.now_s += passing_s
        ends = dict(self.now.ends)
        added = 0
        with suppress(Interrupted), self.logs.write() as writer:
            for transaction in transactions:
                for log, count in transaction.items():
                    writer.create(log)
                    end = ends.get(log, 0)
                    append(writer, log, end, [1] * count)
                    ends[log] = end + count
                    added += count
            for log, end in ends.items():
                writer.put_mark(log, mark(end, end))
            if keeps:
                writer.put_cut(self.now_s)
            if fails:
                raise Interrupted
        if fails:
            return
        kept = self.now.kept
        memory = Memory(self.memory.records + added, self.memory.since_s)
        if keeps and (memory.records >= RECORDS or self.now_s - memory.since_s >= SECONDS_PER_CUT):
            kept, memory = (*kept, ends), Memory(0, self.now_s)
        self.memory = memory
        starts = {log: self.now.log_starts.get(log, 0) for log in ends}
        self.committed(replace(self.now, ends=ends, log_starts=starts, kept=kept))

    @rule()
    def note(self) -> None:
        """Where all logs end: a cut over all shards, if it is put."""
        self.noted = dict(self.now.ends)

    @rule(skipped=st.integers(0, 2))
    def put_noted(self, skipped: int) -> None:
        """The cut of before, though logs have grown, come and gone; other shards are ahead with their numbers."""
        number = self.logs.newest_cut + 1 + skipped
        ends = {log: end for log, end in self.noted.items() if log in self.now.ends}
        newest = self.now.kept[-1] if self.now.kept else {}
        if any(ends.get(log, 0) < end for log, end in newest.items()):
            return  # a newer one was kept meanwhile
        with self.logs.write() as writer:
            writer.put_common_cut(number, {log: Offset(end) for log, end in self.noted.items()})
        common = (*self.now.common, (number, ends))
        self.committed(replace(self.now, kept=(*self.now.kept, ends), common=common))
        assert self.logs.newest_cut == number

    @rule(log=st.sampled_from(LOGS), start=st.integers(0, 40), batches_max=st.sampled_from([None, 1, 3]))
    def delete(self, log: LogId, start: int, batches_max: int | None) -> None:
        end = self.now.ends.get(log)
        if end is None:
            return
        start = min(start, end)
        with self.logs.write() as writer:
            writer.delete_before(log, Offset(start), batches_max=batches_max)
        starts = {**self.now.log_starts, log: max(start, self.now.log_starts[log])}
        self.committed(replace(self.now, log_starts=starts))

    @rule()
    def drop(self) -> None:
        log = LOGS[0]  # the others live longer
        with self.logs.write() as writer:
            writer.drop(log)

        def without(ends: Ends) -> Ends:
            return {other: end for other, end in ends.items() if other != log}

        self.noted = without(self.noted)
        kept = tuple(without(ends) for ends in self.now.kept)
        common = tuple((number, without(ends)) for number, ends in self.now.common)
        self.committed(Content(without(self.now.ends), without(self.now.log_starts), kept, common))

    @rule(how=st.sampled_from(["stop", "kill", "power cut"]), seed=st.integers(0, 3))
    def start_again(self, how: str, seed: int) -> None:
        if how == "stop":
            self.logs.close()
        else:
            after = self.env.after_end if how == "kill" else self.env.after_power_cut
            self.env = after(Random(seed))
        (content,) = [content for state, content in self.known if state is self.env.state][-1:]
        self.logs = open_memory_logs(NOWHERE, self.env)
        self.noted = {}
        self.memory = Memory()
        self.committed(content)

    @rule(starts=st.dictionaries(st.sampled_from(LOGS), st.integers(0, 50)), records_max=st.integers(1, 60))
    def search(self, starts: dict[LogId, int], records_max: int) -> None:
        asked = {log: Offset(start) for log, start in starts.items()}
        if asked.keys() <= self.now.ends.keys():
            assert self.logs.cut_within(asked, records_max=records_max) == self.expected(starts, records_max)
        else:
            with pytest.raises(UnknownLog):
                self.logs.cut_within(asked, records_max=records_max)

    def expected(self, starts: Ends, records_max: int) -> Ends:
        from_ = {log: max(start, self.now.log_starts[log]) for log, start in starts.items()}
        candidates = [
            {log: max(start, ends.get(log, 0)) for log, start in from_.items()}
            for ends in (*self.now.kept, self.now.ends)
        ]
        sizes = [sum(ends[log] - start for log, start in from_.items()) for ends in candidates]
        fitting = [ends for ends, size in zip(candidates, sizes, strict=True) if 0 < size <= records_max]
        larger = [ends for ends, size in zip(candidates, sizes, strict=True) if size > records_max]
        return fitting[-1] if fitting else larger[0] if larger else candidates[-1]

    @invariant()
    def every_cut_that_was_kept_is_found(self) -> None:
        """By a reader of all logs from their starts who wants as many records as the cut has, whichever it is."""
        starts = dict.fromkeys(self.now.ends, Offset(0))
        for ends in (*self.now.kept[-6:], self.now.ends):
            size = sum(max(0, end - self.now.log_starts[log]) for log, end in ends.items())
            if size:
                assert self.logs.cut_within(starts, records_max=size) == self.expected(starts, size)

    @invariant()
    def every_common_cut_is_known(self) -> None:
        """By its number, and as the newest one before the next."""
        for number, ends in self.now.common[-6:]:
            found = self.logs.ends_at(number, list(self.now.ends), common=True)
            assert found.number == number
            for log, end in found.by_log.items():
                assert max(end, self.now.log_starts[log]) == max(ends.get(log, 0), self.now.log_starts[log])
        if self.now.common:
            oldest, newest = self.now.common[0][0], self.now.common[-1][0]
            known = self.logs.known_cuts({})
            assert (known.oldest_common, known.newest) == (oldest, newest)
            assert self.logs.ends_at(newest + 5, [], common=True).number == newest
            assert self.logs.ends_at(oldest - 1, [], common=True).number == 0


CutsMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestCutsAgainstModel = pytest.mark.slow(CutsMachine.TestCase)
