"""The memory that all unsent answers together may take.

A client that fetches and does not read holds an answer of up to 55 MiB for as long as it likes. So each Fetch takes
the size that it may read from one budget, keeps the size that it has read, and returns that when the answer has been
sent. Other large answers are counted as they are made, and so are requests that wait to be answered, beyond a few of
each connection. As long as there is memory left, a client may take its time.

When the budget is used up, answers are short (`SHORT_ANSWER_BYTES` of records, and clients ask more often), and clients
that do not read theirs are disconnected (`fairlog.edge.memory_budget`): they do not delay the clients that read. Short
answers overdraw the budget by `RESERVE_BYTES` at most. After that a Fetch waits, for the seconds that it takes to
disconnect the others.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from fairlog.edge.memory_budget import BYTES_PER_S, PRESSED_S, MemoryBudget

ANSWERS_BYTES_MAX = 512 << 20
"""Of one node."""

RESERVE_BYTES = 128 << 20
"""What short answers may take beyond that; and the last of each is one batch longer, if its batches are large."""

SHORT_ANSWER_BYTES = 128 << 10
"""What each Fetch may read, whatever others hold."""

BATCH_BYTES = 1 << 20
"""What a short answer is counted for until it is read: its first batch comes whole, and may be as large as a producer's
requests are by default. Else a thousand of them, granted at once, would read a gigabyte."""

SMALL_ANSWER_BYTES = 4 << 10
"""Up to so much an answer that is no Fetch's is not counted: of 16 such for each of a thousand connections, 64 MiB."""


class AnswerBudget(MemoryBudget):
    """So many bytes for all answers."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX, *, reserve_bytes: int = RESERVE_BYTES) -> None:
        super().__init__(bytes_max)
        self._reserve_bytes = reserve_bytes
        self.being_read = 0
        """Of what is taken: by answers that are still being read. Most will not need so much of it."""

    @property
    def spent(self) -> bool:
        """Whether answers that are made, and not sent yet, take all of it."""
        return self.free + self.being_read <= 0

    @property
    def exhausted(self) -> bool:
        """Whether the reserve is spent, too."""
        return self.free <= -self._reserve_bytes

    async def settled(self) -> None:
        """Return once the reserve is not spent. Who has made a large answer waits here before the next."""
        await self.take(lambda: not self.exhausted)


class AnswerRoom:
    """One answer's part of the budget."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._held = 0
        self._being_read = 0
        self._sent_from_s = 0.0
        self._cut: Callable[[], None] | None = None

    @property
    def is_being_sent(self) -> bool:
        return self._cut is not None

    async def take(self, wanted: int) -> int:
        """Room for up to `wanted` bytes more; the bytes granted. `keep` is to follow.

        Waits if the reserve is spent, too; but not with something in hand: that is to be sent then.
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
        """The answer has become so long; what was taken beyond that is given back.

        Answers that nothing was taken for come with this, too. They are never held up, so it is from here that others
        hear of it when there was no room.
        """
        self._hold(used)
        if self._budget.free + self._budget.being_read < 0:
            self._budget.hurry()

    def waits(self, hurry: Callable[[], None]) -> None:
        """The answer is not to be sent yet. `hurry` is called if that takes long, and others have no room."""
        if self._held:
            self._budget.turn(self, trio.current_time() + PRESSED_S, hurry)

    def sending(self, cut: Callable[[], None]) -> None:
        """It is the client's turn to read. `cut` is called if it does not, and others have no room."""
        self._sent_from_s = trio.current_time()
        self._cut = cut
        self.sent(0)

    def sent(self, size: int) -> None:
        """The client, or the system for it, has taken so many bytes of it by now."""
        if self._cut is not None and self._held:
            self._budget.turn(self, self._sent_from_s + PRESSED_S + size / BYTES_PER_S, self._cut)

    def release(self) -> None:
        """The answer is sent, or never will be."""
        self._budget.turn_over(self)
        self._cut = None
        self._hold(0)

    def _hold(self, held: int) -> None:
        self._budget.being_read -= self._being_read
        self._being_read = 0
        more, self._held = held - self._held, held
        if more > 0:
            self._budget.free -= more
        elif more < 0:
            self._budget.give_back(-more)
