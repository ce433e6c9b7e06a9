"""Reading as a service: any protocol brings logs and limits, and gets what is there, or waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import trio

from datalog.interface import Loan
from fairlog.reading import service
from fairlog.reading.plan import LogRead, Problem, ReadPlan
from fairlog.reading.watchlist import WatchedLog, Watchlist
from fairlog_types import LogId, Offset, StorageFailure
from tests.kafka.example_requests import build_batch
from tests.kafka.in_memory import Memory

BATCH_BYTES = 100


class Followed(WatchedLog):
    def __init__(self, watchlist: Watchlist[Followed], log: LogId, position: int) -> None:
        super().__init__(watchlist)
        self.log, self.position = log, position


class FreeRoom:
    """Memory without others who need it: grants all, or up to `most`; notes what it is told."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.most = most
        self.kept: list[int] = []
        self.hurry: Callable[[], None] | None = None
        self.loans: list[Loan] = []

    async def take(self, wanted: int) -> int:
        await trio.lowlevel.checkpoint()
        return min(wanted, self.most)

    def keep(self, used: int) -> None:
        self.kept.append(used)

    def borrow(self, loan: Loan) -> None:
        self.loans.append(loan)

    @property
    def borrows(self) -> bool:
        return not all(loan.is_over for loan in self.loans)

    def repay(self) -> None:
        for loan in self.loans:
            loan.end()

    def waits(self, hurry: Callable[[], None]) -> None:
        self.hurry = hurry


class Reader:
    """Follows partitions of the topic t, each from an offset, as a protocol would that is not Kafka's."""

    def __init__(self, memory: Memory, offsets: dict[int, int], *, committed_only: bool = False) -> None:
        self.memory = memory
        self.room = FreeRoom()
        self.refused: set[int] = set()
        self.watchlist = Watchlist[Followed](committed_only=committed_only)
        self.followed = [Followed(self.watchlist, memory.log("t", index), offset) for index, offset in offsets.items()]
        for each in self.followed:
            self.watchlist.add(each)

    async def read(
        self, *, bytes_min: int = 1, bytes_max: int = 10_000, wait_ms: int = 1_000
    ) -> dict[int, LogRead] | None:
        """Each partition's part of one read; None if the turn was over."""
        deadline = service.poll_deadline(wait_ms)
        parts = await service.read(
            self.memory.broker,
            self.watchlist,
            self._look_up,
            plan=ReadPlan(bytes_min=bytes_min, bytes_max=bytes_max),
            room=self.room,
            long_poll=partial(trio.CancelScope, deadline=deadline),
        )
        return None if parts is None else {followed.log.partition: part for followed, part in parts.items()}

    def _look_up(self, followed: Followed) -> LogRead:
        part = LogRead(followed.log, followed.position, 10_000, self.watchlist.committed_only)
        if followed.log.partition in self.refused:
            part.fail(Problem.REFUSED)
        return part


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    memory.topics.create_now("t", partitions=4)
    return memory


@pytest.fixture
def clock(autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch) -> trio.abc.Clock:
    """A clock that jumps when all wait. It knows of no thread, so the data logs are read in the event loop."""

    async def run_sync(do: Callable[..., object], *arguments: object) -> object:
        await trio.lowlevel.checkpoint()
        return do(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return autojump_clock


@pytest.fixture
def fill(memory: Memory) -> Callable[..., None]:
    """Puts batches of two records into a partition."""

    def fill(partition: int, batches: int = 1) -> None:
        log = memory.log("t", partition)
        for _ in range(batches):
            data = bytearray(build_batch(records=2, size=BATCH_BYTES))
            data[:8] = memory.leaders.end(log).to_bytes(8, "big")
            memory.leaders.logs[log].append(bytes(data))
        memory.leaders.release()

    return fill


async def test_logs_are_read_in_one_call_and_only_those_that_are_behind(
    memory: Memory, fill: Callable[..., None]
) -> None:
    """Those at their end are watched from then on, and so are those that were read to it; nothing else is left over."""
    fill(0, 2)
    fill(1)
    fill(2)
    reader = Reader(memory, {0: 2, 1: 2, 2: 0})
    parts = await reader.read()
    assert {index: sum(map(len, part.batches)) for index, part in parts.items()} == {0: 100, 1: 0, 2: 100}
    assert memory.data_logs.reads == 1
    assert reader.room.kept == [200]
    assert set(memory.leaders.watchers) == set(reader.followed)
    assert reader.watchlist.pending == {}


async def test_log_with_more_than_fits_is_neither_watched_nor_pending(
    memory: Memory, fill: Callable[..., None]
) -> None:
    """Whoever reads it knows that it is full, and where to go on."""
    fill(0, 3)
    reader = Reader(memory, {0: 0})
    part = (await reader.read(bytes_max=250))[0]
    assert (part.position, len(part.batches), part.full) == (4, 2, True)
    assert (memory.leaders.watchers, reader.watchlist.pending) == ({}, {})


async def test_memory_that_is_short_makes_the_read_short(memory: Memory, fill: Callable[..., None]) -> None:
    """It gets what was granted, in whole batches."""
    fill(0, 3)
    reader = Reader(memory, {0: 0})
    reader.room.most = 150
    assert len((await reader.read())[0].batches) == 1


async def test_read_at_the_end_waits_for_enough(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """Each time that a log moves it is read on, until there is enough."""
    reader = Reader(memory, {0: 0, 1: 0})

    @nursery.start_soon
    async def append_later() -> None:
        for index in (0, 1, 0):
            await trio.sleep(0.1)
            fill(index)

    before = trio.current_time()
    parts = await reader.read(bytes_min=250)
    assert trio.current_time() - before == pytest.approx(0.3)
    assert [len(parts[index].batches) for index in (0, 1)] == [2, 1]
    assert reader.room.kept == [100, 200, 300]


async def test_records_that_come_while_the_thread_reads_are_read_without_a_wait(
    memory: Memory, fill: Callable[..., None], monkeypatch: pytest.MonkeyPatch, clock: trio.abc.Clock
) -> None:
    """It is too late to watch the log for them: it is looked at again."""
    fill(0)
    lend = memory.data_logs.lend

    def read_and_append(*arguments: object, **more: object) -> object:
        loan = lend(*arguments, **more)
        if memory.data_logs.reads == 1:
            fill(0)
        return loan

    monkeypatch.setattr(memory.data_logs, "lend", read_and_append)
    before = trio.current_time()
    assert len((await Reader(memory, {0: 0}).read(bytes_min=150))[0].batches) == 2
    assert trio.current_time() == before


async def test_records_that_wait_for_more_are_copied(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """A loan lasts as long as it takes to send what is lent, and not until there is enough."""
    fill(0)
    reader = Reader(memory, {0: 0})
    lent: list[int] = []

    @nursery.start_soon
    async def move_later() -> None:
        await trio.sleep(0.1)
        lent.append(memory.data_logs.loans)
        fill(0)

    part = (await reader.read(bytes_min=150))[0]
    assert lent == [0]
    assert [type(batch) for batch in part.batches] == [bytes, memoryview]
    assert b"".join(part.batches) == b"".join(memory.leaders.logs[memory.log("t", 0)])
    reader.room.repay()
    assert memory.data_logs.loans == 0


@pytest.mark.parametrize(("copied_s", "found", "waited_s"), [(0.05, 1, 0.05), (3600, 0, 0.1), (None, 0, 0)])
async def test_reader_that_does_not_wait_waits_a_moment_for_what_was_answered(
    memory: Memory,
    fill: Callable[..., None],
    nursery: trio.Nursery,
    clock: trio.abc.Clock,
    copied_s: float | None,
    found: int,
    waited_s: float,
) -> None:
    """Its copy is under way. If nothing was answered, it gets nothing at once."""
    if copied_s is not None:
        fill(0)
        memory.leaders.held = True
        memory.leaders.visible_before_hold[memory.log("t", 0)] = Offset(0)

        @nursery.start_soon
        async def copy() -> None:
            await trio.sleep(copied_s)
            memory.leaders.release()

    before = trio.current_time()
    parts = await Reader(memory, {0: 0, 1: 0}).read(wait_ms=0)
    assert trio.current_time() - before == pytest.approx(waited_s)
    assert (len(parts[0].batches), len(parts[1].batches)) == (found, 0)


@pytest.mark.parametrize("committed_only", [False, True])
async def test_reader_that_does_not_wait_goes_on_with_the_first_log_that_has_something(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock, committed_only: bool
) -> None:
    """Whatever comes first in its list, and though the log has moved before without coming so far."""
    logs = [memory.log("t", index) for index in range(3)]
    for index in range(3):
        fill(index, 2)
    memory.leaders.held = True
    memory.leaders.visible_before_hold |= dict.fromkeys(logs, Offset(0))

    @nursery.start_soon
    async def copy() -> None:
        for offset in (2, 4):
            await trio.sleep(0.02)
            memory.leaders.copy_through(logs[1], Offset(offset))

    before = trio.current_time()
    parts = await Reader(memory, {0: 0, 1: 2, 2: 0}, committed_only=committed_only).read(wait_ms=0)
    assert trio.current_time() - before == pytest.approx(0.04)
    assert [len(parts[index].batches) for index in range(3)] == [0, 1, 0]


async def test_reader_that_does_not_wait_takes_what_is_ahead_of_the_data_log(
    memory: Memory, nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """Of a log that was answered, and whose copy takes long."""
    log = memory.log("t", 0)
    memory.leaders.logs[log].append(build_batch(records=2, size=BATCH_BYTES))
    memory.leaders.copy_through(log, Offset(0))

    @nursery.start_soon
    async def flush() -> None:
        await trio.sleep(0.02)
        memory.leaders.read_ahead(log)

    before = trio.current_time()
    part = (await Reader(memory, {0: 0}).read(wait_ms=0))[0]
    assert trio.current_time() - before == pytest.approx(0.02)
    assert len(part.batches) == 1


async def test_reader_that_does_not_wait_is_not_kept_by_what_nothing_will_come_of(
    memory: Memory, fill: Callable[..., None], clock: trio.abc.Clock
) -> None:
    """What is in an open transaction is no answer to a reader of committed records; a failed copier copies nothing."""
    log = memory.log("t", 0)
    fill(0)
    memory.leaders.copy_through(log, Offset(0))
    memory.leaders.undecided[log] = Offset(0)
    before = trio.current_time()
    assert not (await Reader(memory, {0: 0}, committed_only=True).read(wait_ms=0))[0].batches
    memory.leaders.failure = StorageFailure("the disk is full")
    assert not (await Reader(memory, {0: 0}).read(wait_ms=0))[0].batches
    assert trio.current_time() == before


async def test_turn_that_ends_while_its_copy_is_awaited_gets_nothing(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """At once, as in a long poll."""
    fill(0)
    memory.leaders.copy_through(memory.log("t", 0), Offset(0))
    reader = Reader(memory, {0: 0})

    @nursery.start_soon
    async def end_later() -> None:
        await trio.sleep(0.02)
        reader.watchlist.end_turn()

    before = trio.current_time()
    assert await reader.read(wait_ms=0) is None
    assert trio.current_time() - before == pytest.approx(0.02)


async def test_full_log_that_moves_is_not_counted_twice(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """It may be watched since an earlier turn; the read goes on waiting for the other log."""
    fill(0, 3)
    reader = Reader(memory, {0: 0, 1: 0})

    @nursery.start_soon
    async def move_later() -> None:
        await trio.sleep(0.1)
        reader.followed[0].moved(stable=True)

    before = trio.current_time()
    parts = await reader.read(bytes_min=240, bytes_max=250)
    assert trio.current_time() - before == pytest.approx(1)
    assert (len(parts[0].batches), parts[0].full, parts[1].full) == (2, True, False)


@pytest.mark.parametrize(("wait_ms", "waited_s"), [(-1, 0), (0, 0), (700, 0.7), (24 * 86_400_000, 300)])
async def test_wait_ends_in_time_with_what_there_is(
    memory: Memory, fill: Callable[..., None], clock: trio.abc.Clock, wait_ms: int, waited_s: float
) -> None:
    """Its own time, or the longest that any may wait."""
    fill(0)
    before = trio.current_time()
    parts = await Reader(memory, {0: 0, 1: 0}).read(bytes_min=500, wait_ms=wait_ms)
    assert trio.current_time() - before == pytest.approx(waited_s)
    assert [len(parts[index].batches) for index in (0, 1)] == [1, 0]


async def test_wait_ends_when_others_need_the_memory(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """Whoever holds some for nothing is told so, and answers."""
    fill(0)
    reader = Reader(memory, {0: 0})

    @nursery.start_soon
    async def hurry_later() -> None:
        await trio.sleep(0.2)
        reader.room.hurry()

    before = trio.current_time()
    assert len((await reader.read(bytes_min=500))[0].batches) == 1
    assert trio.current_time() - before == pytest.approx(0.2)


async def test_refused_log_is_not_read_and_ends_the_wait(memory: Memory, fill: Callable[..., None]) -> None:
    """Why it is refused, only the protocol knows; errors do not wait."""
    fill(0)
    reader = Reader(memory, {0: 0, 1: 0})
    reader.refused = {0}
    parts = await reader.read()
    assert (parts[0].problem, parts[0].batches, parts[1].problem) == (Problem.REFUSED, [], None)
    assert memory.data_logs.reads == 0


async def test_log_that_is_not_led_here_is_a_problem_at_once(memory: Memory) -> None:
    """It was dropped between the look-up and the read, or while the reader waited."""
    reader = Reader(memory, {0: 0})
    del memory.leaders.logs[memory.log("t", 0)]
    assert (await reader.read())[0].problem is Problem.UNKNOWN_LOG
    assert memory.data_logs.reads == 0


async def test_ends_that_are_answered_are_those_of_all_that_is_placed(
    memory: Memory, fill: Callable[..., None]
) -> None:
    """What is copied is read at once, and not taken for all there is (invariant 13)."""
    fill(0, 2)
    memory.leaders.copy_through(memory.log("t", 0), Offset(2))
    part = (await Reader(memory, {0: 0}).read())[0]
    assert (part.position, part.high_watermark, part.last_stable) == (2, 4, 4)


async def test_turn_that_ends_while_its_read_waits_gets_nothing(
    memory: Memory, nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    """At once: a later turn has taken over, and what is pending is left to that one."""
    reader = Reader(memory, {0: 0})

    @nursery.start_soon
    async def end_later() -> None:
        await trio.sleep(0.1)
        reader.watchlist.end_turn()
        reader.followed[0].moved(stable=True)

    before = trio.current_time()
    assert await reader.read() is None
    assert trio.current_time() - before == pytest.approx(0.1)
    assert reader.watchlist.take() == reader.followed


async def test_turn_that_ends_while_its_thread_reads_touches_the_list_no_more(
    memory: Memory, fill: Callable[..., None], nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets nothing, and watches nothing: what is pending belongs to the later turn."""
    fill(0)
    reader = Reader(memory, {0: 0})
    reads, goes_on = trio.Event(), threading.Event()
    lend = memory.data_logs.lend

    def slow(*arguments: object, **more: object) -> object:
        trio.from_thread.run_sync(reads.set)
        goes_on.wait()
        return lend(*arguments, **more)

    monkeypatch.setattr(memory.data_logs, "lend", slow)
    found: list[object] = []

    @nursery.start_soon
    async def first() -> None:
        found.append(await reader.read())

    await reads.wait()
    reader.watchlist.end_turn()
    goes_on.set()
    while not found:  # noqa: ASYNC110 (a thread, which no event of the loop tells of)
        await trio.lowlevel.checkpoint()
    assert found == [None]
    assert (memory.leaders.watchers, reader.watchlist.pending) == ({}, {})


# --- ahead of the data logs -------------------------------------------------------------------------


@pytest.fixture
def fill_ahead(memory: Memory) -> Callable[..., None]:
    """Puts batches of two records into a partition that can be read there, and are not in its data log yet."""

    def fill_ahead(partition: int, batches: int = 1) -> None:
        log = memory.log("t", partition)
        memory.leaders.copy_through(log, memory.leaders.get(log).visibility.high_watermark)
        for _ in range(batches):
            data = bytearray(build_batch(records=2, size=BATCH_BYTES))
            data[:8] = memory.leaders.end(log).to_bytes(8, "big")
            memory.leaders.logs[log].append(bytes(data))
        memory.leaders.read_ahead(log)

    return fill_ahead


async def test_what_is_ahead_is_read_without_the_data_logs(memory: Memory, fill, fill_ahead) -> None:
    """From the batch with the reader's offset on, within the limits; then the reader waits for what comes after it."""
    fill(0)
    fill_ahead(0, 3)
    reader = Reader(memory, {0: 5})
    part = (await reader.read())[0]
    assert [int.from_bytes(batch[:8], "big") for batch in part.batches] == [4, 6]
    assert (part.position, part.high_watermark, part.last_stable, part.full) == (8, 8, 8, False)
    assert memory.data_logs.reads == 0
    assert reader.room.kept == [200]
    assert set(memory.leaders.watchers) == set(reader.followed)


async def test_limits_hold_for_what_is_ahead(memory: Memory, fill_ahead) -> None:
    """The first batch of all goes, however large; a log with more than fits is full."""
    fill_ahead(0, 2)
    fill_ahead(1, 2)
    parts = await Reader(memory, {0: 0, 1: 0}).read(bytes_max=150)
    assert [(len(part.batches), part.full) for part in parts.values()] == [(1, True), (0, True)]
    part = (await Reader(memory, {0: 0}).read(bytes_max=50))[0]
    assert (len(part.batches), part.position) == (1, 2)


async def test_data_logs_come_first(memory: Memory, fill, fill_ahead) -> None:
    """Who is behind reads there, and ahead if that was not enough; the logs that are only ahead wait for it."""
    fill(0)
    fill_ahead(0)
    fill_ahead(1)
    reader = Reader(memory, {0: 0, 1: 0})
    parts = await reader.read()
    assert {index: len(part.batches) for index, part in parts.items()} == {0: 1, 1: 0}
    assert set(reader.watchlist.pending) == set(reader.followed)
    parts = await Reader(memory, {0: 0, 1: 0}).read(bytes_min=300)
    assert {index: len(part.batches) for index, part in parts.items()} == {0: 2, 1: 1}
    assert memory.data_logs.reads == 2


async def test_reader_who_waits_is_woken_by_what_is_ahead(
    memory: Memory, fill_ahead, nursery: trio.Nursery, clock: trio.abc.Clock
) -> None:
    @nursery.start_soon
    async def append_later() -> None:
        await trio.sleep(0.1)
        fill_ahead(0)

    began = trio.current_time()
    part = (await Reader(memory, {0: 0}).read(wait_ms=10_000))[0]
    assert len(part.batches) == 1
    assert trio.current_time() - began == pytest.approx(0.1)
    assert memory.data_logs.reads == 0


@pytest.mark.parametrize("leaves_more", [False, True])
async def test_what_is_copied_while_memory_is_short_is_read_in_the_data_logs(
    memory: Memory, fill_ahead, leaves_more: bool
) -> None:
    """It is not ahead any more when the room is there, nor maybe some of what the same reader waits for."""
    fill_ahead(0)
    fill_ahead(1)
    reader = Reader(memory, {0: 0, 1: 0})

    async def take(wanted: int) -> int:
        if leaves_more:
            memory.leaders.copy_through(memory.log("t", 0), Offset(2))
        else:
            memory.leaders.release()
        await trio.lowlevel.checkpoint()
        return wanted

    reader.room.take = take  # type: ignore[method-assign]
    parts = await reader.read(bytes_min=200)
    assert [len(part.batches) for part in parts.values()] == [1, 1]
    assert memory.data_logs.reads == 1
