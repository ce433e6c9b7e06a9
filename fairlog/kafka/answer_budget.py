"""The memory that all unsent answers together may take.

A client that fetches and does not read holds an answer of up to 55 MiB for as long as it likes. So each Fetch takes
the size that it may read from one budget, keeps the size that it has read, and returns that when the answer has been
sent. Other large answers are counted as they are made, and so are requests that wait to be answered, beyond a few of
each connection. As long as there is memory left, a client may take its time.

When the budget is used up, answers are short (`SHORT_ANSWER_BYTES` of records, and clients ask more often), and clients
that do not read theirs are disconnected (`fairlog.edge.memory_budget`): they do not delay the clients that read. Short
answers overdraw the budget by `RESERVE_BYTES` at most. After that a Fetch waits, for the seconds that it takes to
disconnect the others.

Batches that are lent by the data logs count as well: they are copied if the client does not take them soon.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import trio

from datalog.interface import Loan
from datalog.loans import LOAN_S
from fairlog.edge.memory_budget import BYTES_PER_S, PRESSED_S, MemoryBudget

ANSWERS_BYTES_MAX = 512 << 20
"""The budget of one node."""

RESERVE_BYTES = 128 << 20
"""What short answers may take beyond the budget. The last of them may be one batch longer, if its batches are large."""

SHORT_ANSWER_BYTES = 128 << 10
"""What each Fetch may read, however much others hold."""

BATCH_BYTES = 1 << 20
"""What a short answer counts until it is read: its first batch is always whole, and may be as large as a producer's
requests are by default. Otherwise a thousand of them, granted at once, would read a gigabyte.
"""

SMALL_ANSWER_BYTES = 4 << 10
"""Answers other than Fetch's are not counted up to this size: 16 for each of a thousand connections take 64 MiB."""


class AnswerBudget(MemoryBudget):
    """The number of bytes for all answers together."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        super().__init__(bytes_max)
        self._reserve_bytes = reserve_bytes
        self.being_read = 0
        """The part of the taken bytes that belongs to answers still being read. Most will not need this much."""

    @property
    def spent(self) -> bool:
        """Whether answers that are complete but not sent yet take the whole budget."""
        return self.free + self.being_read <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the reserve is used up as well."""
        return self.free <= -self._reserve_bytes

    async def settled(self) -> None:
        """Return once the reserve is not used up. A client that got a large answer waits here before the next one."""
        await self.take(lambda: not self.exhausted)


class AnswerRoom:
    """One answer's part of the budget."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._held = 0
        self._being_read = 0
        self._sent_from_s = 0.0
        self._cut: Callable[[], None] | None = None
        self._loans: list[Loan] = []
        self.repay_by_s = math.inf
        """By trio's clock: when what is lent and not sent yet is to be copied."""

    @property
    def is_being_sent(self) -> bool:
        return self._cut is not None

    async def take(self, wanted: int) -> int:
        """Take up to `wanted` more bytes; returns the number granted. `keep` must follow.

        Waits if the reserve is used up as well, unless the answer already holds something, which is then sent.
        """
        budget = self._budget
        budget.turn_over(self)
        granted = 0

        def attempt() -> bool:
            nonlocal granted
            if budget.exhausted and not self._held:
                return False
            granted = min(wanted, max(budget.free, SHORT_ANSWER_BYTES - self._held, 0))
            counted = max(granted, min(wanted, BATCH_BYTES))
            self._hold(self._held + counted)
            self._being_read = counted
            budget.being_read += counted
            return True

        if wanted > budget.free + budget.being_read:
            budget.hurry()
        if self._held:
            attempt()
        else:
            await budget.take(attempt)
        return granted

    def keep(self, used: int) -> None:
        """The answer has this length; bytes taken beyond it are returned.

        Also called for answers for which nothing was taken. They are never delayed, so if there was no room, this is
        where others learn of it.
        """
        self._hold(used)
        if self._budget.free + self._budget.being_read < 0:
            self._budget.hurry()

    def borrow(self, loan: Loan) -> None:
        """The answer has batches of it, until they are sent, or copied (`repay`)."""
        self._loans.append(loan)
        self.repay_by_s = min(self.repay_by_s, trio.current_time() + LOAN_S)

    @property
    def borrows(self) -> bool:
        """Whether there is something to be repaid."""
        return bool(self._loans)

    def repay(self) -> None:
        """Nothing that is lent is used any more."""
        for loan in self._loans:
            loan.end()
        self._loans.clear()
        self.repay_by_s = math.inf

    def waits(self, hurry: Callable[[], None]) -> None:
        """The answer is not sent yet. `hurry` is called if this takes long and others have no room."""
        if self._held:
            self._budget.turn(self, trio.current_time() + PRESSED_S, hurry)

    def sending(self, cut: Callable[[], None]) -> None:
        """It is the client's turn to read. `cut` is called if it does not read and others have no room."""
        self._sent_from_s = trio.current_time()
        self._cut = cut
        self.sent(0)

    def sent(self, size: int) -> None:
        """The number of bytes of the answer that the client, or the system for it, has taken so far."""
        if self._cut is not None and self._held:
            self._budget.turn(self, self._sent_from_s + PRESSED_S + size / BYTES_PER_S, self._cut)

    def release(self) -> None:
        """The answer is sent, or will never be sent."""
        self._budget.turn_over(self)
        self._cut = None
        self._hold(0)
        self.repay()

    def _hold(self, held: int) -> None:
        self._budget.being_read -= self._being_read
        self._being_read = 0
        more, self._held = held - self._held, held
        if more > 0:
            self._budget.free -= more
        elif more < 0:
            self._budget.give_back(-more)
