"""Reading the logs of a watchlist, and waiting until they have enough: the long poll.

    take pending ──▶ compare with the readable ends ──┬─ behind ─▶ room in memory ─▶ one worker thread reads them all
        ▲                                             └─ at the end ─▶ watched                   │
        └──── something has moved ◀──── wait, unless that is enough ◀────────────────────────────┘

- A reader at the end of its logs costs no worker thread: positions are compared with the readable ends first, and
  one call in a thread reads all logs that are behind, in one read transaction. What is large is lent by the data logs,
  until it is sent; if it has to wait for more, it is copied. Who has waited gets what is new from memory, before it is
  in the data logs (`partition.newest`), and costs no thread either.
- The wait ends when there is enough (`ReadPlan.is_enough`), when its time is over, or when others need the memory that
  is held meanwhile. A reader of committed records is not woken by what it may not read yet.
- A position up to the end of what is placed in the journal is in range, and there is nothing there yet if it is after
  what can be read: after an answer the copy may be a millisecond away. Whoever would get nothing waits for it, for
  `COPY_S` even if it may not wait so long, until one of its logs has something. Whoever has something to read does not
  wait for the copy of the rest. The ends that are answered are those of all that is placed, too (invariant 13).
- Other tasks have their turns after each `STEP` logs: a client may ask for ten thousand.

Not here: what a request or an answer looks like, which logs are followed (`fairlog.reading.watchlist`), how much is
read (`fairlog.reading.plan`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import trio

from datalog.interface import Loan
from datalog.loans import copied
from fairlog.broker import Broker, Partitions, ReadDataLogs
from fairlog.reading.plan import LogRead, Problem, ReadPlan
from fairlog.reading.watchlist import WatchedLog, Watchlist
from fairlog_types import Offset
from partition.visibility import Visibility

WAIT_MS_MAX = 5 * 60 * 1000
"""However long the reader says, which may be 24 days. During a long poll nothing is sent on its connection; a client
whose machine is gone is noticed when the answer is sent to it, at the latest. Kafka's wait half a second by default."""

STEP = 256
"""Logs: a millisecond's work, or less, each time that they are gone over."""

COPY_S = 0.1
"""A reader waits at least so long for the copy of what was answered, and so finds what it wrote itself."""

W = TypeVar("W", bound=WatchedLog)
R = TypeVar("R", bound=LogRead)


class Room(Protocol):
    """What the answer may take of the node's memory."""

    async def take(self, wanted: int) -> int:
        """Room for up to `wanted` bytes more; the bytes granted. `keep` is to follow."""
        ...

    def keep(self, used: int) -> None:
        """The answer has become so long; what was taken beyond that is given back."""
        ...

    def borrow(self, loan: Loan) -> None:
        """The answer has batches of it, which the room ends when they are sent, or will never be sent."""
        ...

    @property
    def borrows(self) -> bool:
        """Whether the answer has batches of a loan."""
        ...

    def repay(self) -> None:
        """The answer has copies now: end all loans."""
        ...

    def waits(self, hurry: Callable[[], None]) -> None:
        """The answer is not to be sent yet. `hurry` is called if that takes long, and others have no room."""
        ...


def poll_deadline(wait_ms: int) -> float:
    """When a long poll ends, by trio's clock, that begins now and may last so long."""
    return trio.current_time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000


async def read(
    broker: Broker,
    logs: Watchlist[W],
    look_up: Callable[[W], R],
    *,
    plan: ReadPlan,
    room: Room,
    long_poll: Callable[[], AbstractContextManager[trio.CancelScope]],
) -> dict[W, R] | None:
    """Read what there is in the pending logs, or wait for it; a part for each that was looked at, in order of reading.

    `look_up` makes a log's part, which is full if it is not to be read. `long_poll` opens the scope in which the wait
    takes place, and cancels it when the wait is to end. Logs that were read to their end are watched from then on; full
    ones are neither watched nor pending.

    None: the turn ended meanwhile. Raises CorruptStorage, StorageFailure. Cancelled, or after an error: the list has
    lost track of what was pending, and whoever goes on with it makes all its logs pending again.
    """
    turn, partitions, copied_by_s = logs.turn, broker.readable, trio.current_time() + COPY_S
    reads: dict[W, R] = {}
    waited_out = False
    while True:
        looked_at: list[R] = []
        behind: list[tuple[W, R]] = []
        for at, followed in enumerate(logs.take(), 1):
            part = reads.get(followed)
            if part is None:
                part = reads[followed] = look_up(followed)
            elif part.full:
                continue
            looked_at.append(part)
            if not part.full and _is_behind(partitions, part):
                behind.append((followed, part))
            else:
                _watch(partitions, logs, followed, part)
            if at % STEP == 0:
                await trio.lowlevel.checkpoint()
                if not logs.is_current(turn):
                    return None
        if behind:
            await _read_parts(broker, [part for _, part in behind], plan, room)
            for at, (followed, part) in enumerate(behind, 1):
                if not logs.is_current(turn):
                    return None
                if not part.full:
                    _is_behind(partitions, part)
                _watch(partitions, logs, followed, part)
                if at % STEP == 0:
                    await trio.lowlevel.checkpoint()
        plan.note(looked_at)
        if not logs.is_current(turn):
            return None
        if plan.is_enough(logs.size) or (waited_out and plan.bytes_read):
            break
        if waited_out:
            if not await _await_copy(partitions, logs, turn, reads.values(), copied_by_s):
                break
        else:
            if room.borrows:
                await trio.to_thread.run_sync(_keep_copies, reads.values())
                room.repay()
                if not logs.is_current(turn):
                    return None
            waited_out = not logs.pending and await _wait(logs, room, long_poll)
        if not logs.is_current(turn):
            return None
    await _extend_to_placed(partitions, reads.values())
    return reads if logs.is_current(turn) else None


def _is_behind(partitions: Partitions, part: LogRead) -> bool:
    """Whether there is something to read, or the data logs are to say why not; brings the part's ends up to date."""
    log = part.log
    assert log is not None, "parts without a log are full"
    partition = partitions.get(log)
    if partition is None:
        part.fail(Problem.UNKNOWN_LOG)
        return False
    visibility = partition.visibility
    lag = part.lag(visibility.high_watermark, visibility.last_stable_offset, visibility.log_start)
    return lag > 0 or visibility.is_ahead(part.position) or (lag < 0 and not part.awaits(partition.placed_end))


def _watch(partitions: Partitions, logs: Watchlist[W], followed: W, part: LogRead) -> None:
    """Hear of what comes after this part, unless it is full: then it is looked at in the list's next turn."""
    if part.full:
        return
    assert part.log is not None, "parts without a log are full"
    partition = partitions.get(part.log)
    if partition is not None and partition.visibility.watch(
        followed, beyond=Offset(part.position), committed_only=part.committed_only
    ):
        followed.watched = partition.visibility
    else:
        logs.pending[followed] = None


async def _read_parts(broker: Broker, parts: Sequence[LogRead], plan: ReadPlan, room: Room) -> None:
    """Read the data logs if any of these parts is there. Those that are only ahead are read when none is."""
    wanted = plan.wanted(parts)
    plan.grant(await room.take(wanted), wanted=wanted)
    in_data_logs: list[LogRead] = []
    for at, part in enumerate(parts, 1):
        if _ahead(broker.readable, part) is None:
            in_data_logs.append(part)
        if at % STEP == 0:
            await trio.lowlevel.checkpoint()
    if in_data_logs:
        await _read_data_logs(broker.data_logs, in_data_logs, plan, room)
    else:
        for at, part in enumerate(parts, 1):
            visibility = _ahead(broker.readable, part)
            if visibility is not None:
                plan.take(part, visibility.newest(part.position, bytes_max=plan.left(part)))
            if at % STEP == 0:
                await trio.lowlevel.checkpoint()
    room.keep(plan.bytes_read)


def _ahead(partitions: Partitions, part: LogRead) -> Visibility | None:
    """Where the part is to be read ahead of the data log; None if it is not."""
    partition = None if part.log is None else partitions.get(part.log)
    return None if partition is None or not partition.visibility.is_ahead(part.position) else partition.visibility


async def _read_data_logs(data_logs: ReadDataLogs, parts: Sequence[LogRead], plan: ReadPlan, room: Room) -> None:
    requests, bytes_max = plan.requests(parts)
    loan = await trio.to_thread.run_sync(functools.partial(data_logs.lend, requests, bytes_max=bytes_max))
    if not loan.is_over:
        room.borrow(loan)
    for at, (part, answer) in enumerate(zip(parts, loan.answers, strict=True), 1):
        plan.take(part, answer)
        if at % STEP == 0:
            await trio.lowlevel.checkpoint()


def _keep_copies(parts: Iterable[LogRead]) -> None:
    for part in parts:
        part.batches = copied(part.batches)


async def _wait(
    logs: Watchlist[W], room: Room, long_poll: Callable[[], AbstractContextManager[trio.CancelScope]]
) -> bool:
    """Wait until something has moved, or the turn is over; whether it was the time that was over."""
    moved = trio.Event()
    logs.waiter = moved.set
    with long_poll() as waiting:
        room.waits(waiting.cancel)
        await moved.wait()
    return waiting.cancelled_caught


async def _await_copy(
    partitions: Partitions, logs: Watchlist[W], turn: int, parts: Iterable[LogRead], until_s: float
) -> bool:
    """A reader whose time is over, and who has nothing, waits for the copy of what was answered already, until then.

    One log's is enough. Whether to look again; False: the time is over, or nothing is on its way.
    """
    if trio.current_time() >= until_s or not await _is_on_its_way(partitions, parts):
        return False
    if logs.is_current(turn) and not logs.pending:
        moved = trio.Event()
        logs.waiter = moved.set
        with trio.move_on_at(until_s):
            await moved.wait()
    return True


async def _is_on_its_way(partitions: Partitions, parts: Iterable[LogRead]) -> bool:
    """Whether one of these will have records to read when its log is copied."""
    for at, part in enumerate(parts, 1):
        partition = None if part.log is None or part.full else partitions.get(part.log)
        if partition is not None and not partition.visibility.has_failed:
            placed = partition.placed_end
            if part.position < (placed.last_stable_offset if part.committed_only else placed.next_offset):
                return True
        if at % STEP == 0:
            await trio.lowlevel.checkpoint()
    return False


async def _extend_to_placed(partitions: Partitions, parts: Iterable[LogRead]) -> None:
    for at, part in enumerate(parts, 1):
        partition = None if part.log is None else partitions.get(part.log)
        if partition is not None:
            part.extend_to(partition.placed_end)
        if at % STEP == 0:
            await trio.lowlevel.checkpoint()
