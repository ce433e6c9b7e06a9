"""What one read takes: whole batches, within the limits, in order, and never nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datalog.interface import AbortedTransaction, LogMissing, OffsetOutOfRange, ReadAnswer, ReadRequest, ReadResult
from fairlog.reading.plan import READ_BYTES_MAX, LogRead, Problem, ReadPlan
from fairlog_types import LogId, Offset, ProducerId
from partition.answers import PlacedEnd
from tests.kafka.example_requests import build_batch

RECORDS = 2
"""Of each batch."""


def log_id(number: int) -> LogId:
    return LogId.of_topic(UUID(int=1), number)


def aborted_at(offset: int) -> AbortedTransaction:
    return AbortedTransaction(ProducerId(offset), Offset(offset), Offset(offset + 1), Offset(offset + 2))


@dataclass
class Stored:
    """One log of the data logs, and what its leader has told of it."""

    batches: list[bytes] = field(default_factory=list[bytes])
    open_from: int | None = None
    """Where the oldest open transaction begins, in batches."""
    told: int = 0
    """How many batches the leader has announced: the data logs may be ahead."""

    def append(self, size: int) -> None:
        batch = bytearray(build_batch(records=RECORDS, size=size))
        batch[:8] = self.end.to_bytes(8, "big")
        self.batches.append(bytes(batch))

    @property
    def end(self) -> Offset:
        return Offset(len(self.batches) * RECORDS)

    @property
    def stable(self) -> Offset:
        return self.end if self.open_from is None else min(self.end, Offset(self.open_from * RECORDS))

    def lag_of(self, read: LogRead) -> int:
        high_watermark = Offset(self.told * RECORDS)
        return read.lag(high_watermark, min(high_watermark, self.stable), Offset(0))


def read_stored(stored: dict[LogId, Stored], requests: Sequence[ReadRequest], bytes_max: int) -> list[ReadAnswer]:
    """As `DataLogs.read` promises it: at least one batch per call, otherwise up to the limits."""
    answers: list[ReadAnswer] = []
    left, any_found = bytes_max, False
    for request in requests:
        log = stored[request.log]
        end = log.stable if request.committed_only else log.end
        taken: list[bytes] = []
        limit = min(left, request.bytes_max)
        for batch in log.batches[request.offset // RECORDS : end // RECORDS]:
            if sum(map(len, taken)) + len(batch) > limit and (taken or any_found):
                break
            taken.append(batch)
        any_found = any_found or bool(taken)
        left -= sum(map(len, taken))
        aborted = (aborted_at(0), aborted_at(request.offset)) if taken and request.committed_only else ()
        answers.append(ReadResult(request.log, taken, log.end, Offset(0), log.stable, aborted))
    return answers


def one_round(plan: ReadPlan, reads: Sequence[LogRead], stored: dict[LogId, Stored], granted_most: int) -> None:
    """What the service does between two waits, without a broker."""
    looked_at = [read for read in reads if not read.full]
    behind = [read for read in looked_at if stored[read.log].lag_of(read) > 0]
    if behind:
        wanted = plan.wanted(behind)
        plan.grant(min(granted_most, wanted), wanted=wanted)
        requests, bytes_max = plan.requests(behind)
        for read, answer in zip(behind, read_stored(stored, requests, bytes_max), strict=True):
            plan.take(read, answer)
    plan.note(looked_at)


SIZES = st.integers(100, 400)
LIMITS = st.one_of(st.just(0), st.integers(1, 2_000))


@given(st.data())
def test_read_in_several_rounds_takes_whole_batches_in_order_within_its_limits(data: st.DataObject) -> None:
    """However logs grow, and whatever memory is granted: only the very first batch exceeds limits."""
    committed_only = data.draw(st.booleans())
    bytes_min, bytes_max = data.draw(LIMITS), data.draw(LIMITS)
    plan = ReadPlan(bytes_min=bytes_min, bytes_max=bytes_max)
    stored = {log_id(number): Stored() for number in range(data.draw(st.integers(1, 4)))}
    reads: list[LogRead] = []
    starts: list[int] = []
    limits: list[int] = []
    for log, content in stored.items():
        for size in data.draw(st.lists(SIZES, max_size=5)):
            content.append(size)
        content.open_from = data.draw(st.none() | st.integers(0, 8))
        content.told = data.draw(st.integers(0, len(content.batches)))
        starts.append(data.draw(st.integers(0, content.told * RECORDS)))
        limits.append(data.draw(LIMITS))
        reads.append(LogRead(log, starts[-1], limits[-1], committed_only))

    opener: LogRead | None = None
    """The part that has had the very first batch."""
    for _ in range(data.draw(st.integers(1, 4))):
        read_before = plan.bytes_read
        could_read = any(stored[read.log].lag_of(read) > 0 for read in reads if not read.full)
        granted = data.draw(LIMITS)
        one_round(plan, reads, stored, granted)

        taken = [batch for read in reads for batch in read.batches]
        assert plan.bytes_read == sum(map(len, taken))
        opening_bytes = 0
        if opener is None and taken:
            opener = next(read for read in reads if read.batches)
            opening_bytes = len(opener.batches[0])
        assert plan.bytes_read - read_before <= granted + opening_bytes
        assert plan.bytes_read <= bytes_max or len(taken) == 1
        assert taken or not could_read, "a reader that is behind gets something"
        for read, start, limit in zip(reads, starts, limits, strict=True):
            first, content = start // RECORDS, stored[read.log]
            assert read.batches == content.batches[first : first + len(read.batches)]
            assert read.position == ((first + len(read.batches)) * RECORDS if read.batches else start)
            assert sum(map(len, read.batches)) <= limit or (read is opener and len(read.batches) == 1)
            if read.batches:
                assert read.position <= (content.stable if committed_only else content.end)
            assert read.full or stored[read.log].lag_of(read) <= 0, "what is left unread is left to the next read"
            readable_end = content.stable if committed_only else content.end
            assert not read.full or read.bytes_left <= 0 or read.position < readable_end
            assert len(set(read.aborted)) == len(read.aborted)
            assert committed_only or not read.aborted
        all_full = all(read.full for read in reads)
        assert plan.is_enough(len(reads)) == (all_full or plan.bytes_read >= min(bytes_min, bytes_max))

        for content in stored.values():
            for size in data.draw(st.lists(SIZES, max_size=2)):
                content.append(size)
            if content.open_from is not None and data.draw(st.booleans()):
                content.open_from = None
            content.told = data.draw(st.integers(content.told, len(content.batches)))


@pytest.mark.parametrize(
    ("log_limit", "read_limit", "granted", "batches"),
    [
        (1_000, 1_000, 1_000, 3),
        (1_000, 250, 1_000, 2),
        (1_000, 150, 1_000, 1),
        (250, 1_000, 1_000, 2),
        (150, 1_000, 1_000, 1),
        (1_000, 1_000, 150, 2),
        (1_000, 1_000, 50, 1),
    ],
)
def test_limits_hold_for_all_rounds_together(log_limit: int, read_limit: int, granted: int, batches: int) -> None:
    """After a first batch of 100 bytes two more come: as many are taken as fit the log, the read, and the grant."""
    content = Stored(told=1)
    content.append(100)
    plan = ReadPlan(bytes_min=1_000, bytes_max=read_limit)
    read = LogRead(log_id(0), 0, log_limit, committed_only=False)
    one_round(plan, [read], {log_id(0): content}, 1_000)
    assert (len(read.batches), read.full) == (1, False)
    content.append(100)
    content.append(100)
    content.told = 3
    one_round(plan, [read], {log_id(0): content}, granted)
    assert (len(read.batches), plan.bytes_read, read.full) == (batches, batches * 100, batches < 3)


@pytest.mark.parametrize(("committed_only", "batches"), [(False, 3), (True, 1)])
def test_log_read_to_its_readable_end_is_not_full(committed_only: bool, batches: int) -> None:
    """A reader of committed records waits where an open transaction begins, whatever lies after it."""
    content = Stored(open_from=1, told=3)
    for _ in range(3):
        content.append(100)
    plan = ReadPlan(bytes_min=1_000, bytes_max=1_000)
    read = LogRead(log_id(0), 0, 1_000, committed_only)
    one_round(plan, [read], {log_id(0): content}, 1_000)
    assert (len(read.batches), read.full) == (batches, False)
    assert not plan.is_enough(1)


def part(position: int = 0, *, committed_only: bool = False, bytes_max: int = 1_000) -> LogRead:
    return LogRead(log_id(0), position, bytes_max, committed_only)


@pytest.mark.parametrize(("position", "all_records", "committed"), [(2, 4, 1), (3, 3, 0), (6, 0, -3), (7, -1, -4)])
def test_lag_is_counted_to_the_end_that_the_reader_may_read(position: int, all_records: int, committed: int) -> None:
    """The last stable offset for readers of committed records, the high watermark for all others."""
    for committed_only, lag in ((False, all_records), (True, committed)):
        read = part(position, committed_only=committed_only)
        assert read.lag(Offset(6), Offset(3), Offset(1)) == lag
        assert (read.high_watermark, read.last_stable, read.log_start) == (6, 3, 1)


def test_ends_never_go_back_within_a_read() -> None:
    """The data logs may know more than the leader has announced yet; the answer keeps it."""
    plan, read = ReadPlan(bytes_min=1, bytes_max=1_000), part(8)
    plan.take(read, ReadResult(log_id(0), [], Offset(8), Offset(0), Offset(8)))
    assert read.lag(Offset(6), Offset(6), Offset(0)) == -2
    assert (read.high_watermark, read.last_stable) == (8, 8)
    assert not read.full


@pytest.mark.parametrize(("position", "awaited"), [(7, True), (8, True), (9, False)])
def test_position_up_to_the_end_of_what_is_placed_is_waited_at(position: int, awaited: bool) -> None:
    """Its record is answered, and only its copy is missing; whatever is after that is out of range."""
    assert part(position).awaits(PlacedEnd(Offset(8), Offset(6))) == awaited


def test_ends_are_extended_to_what_is_placed_unless_the_log_has_a_problem() -> None:
    """Invariant 13; with an error the client is told the range that the error is about."""
    read, failed = part(), part()
    failed.fail(Problem.OUT_OF_RANGE)
    for each in (read, failed):
        each.high_watermark, each.last_stable = 4, 3
        each.extend_to(PlacedEnd(Offset(8), Offset(2)))
    assert (read.high_watermark, read.last_stable) == (8, 3)
    assert (failed.high_watermark, failed.last_stable) == (4, 3)


@pytest.mark.parametrize(
    ("answer", "problem", "ends"),
    [
        (LogMissing(log_id(0)), Problem.UNKNOWN_LOG, (-1, -1)),
        (OffsetOutOfRange(log_id(0), Offset(9), Offset(5)), Problem.OUT_OF_RANGE, (9, 5)),
    ],
)
def test_problem_of_one_log_ends_the_read(answer: ReadAnswer, problem: Problem, ends: tuple[int, int]) -> None:
    """Errors are answered at once, though other logs have nothing yet."""
    plan, read = ReadPlan(bytes_min=1, bytes_max=1_000), part()
    plan.take(read, answer)
    plan.note([read, part()])
    assert (read.problem, read.full, (read.high_watermark, read.log_start)) == (problem, True, ends)
    assert plan.is_enough(2)


@pytest.mark.parametrize(("asked", "wanted"), [(-1, 0), (0, 0), (10, 10), (1 << 40, READ_BYTES_MAX)])
def test_read_wants_no_more_than_any_read_may_have(asked: int, wanted: int) -> None:
    """Whatever number the client sends, also for a single log."""
    assert ReadPlan(bytes_min=1, bytes_max=asked).wanted([part(bytes_max=1 << 50)]) == wanted


def test_read_without_logs_is_enough() -> None:
    """There is nothing to wait for."""
    assert ReadPlan(bytes_min=1, bytes_max=1_000).is_enough(0)
