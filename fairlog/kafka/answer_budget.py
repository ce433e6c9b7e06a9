"""What the records of all Fetch answers that are not yet sent may take of the node's memory.

A client that fetches and does not read holds an answer of up to 55 MiB for as long as it likes. So each Fetch takes
what it may read from one budget, keeps what it has read, and gives that back when the answer has been sent. Nobody
waits: a client that does not read must not hold up those who do. When the budget is spent, answers are merely short,
`SHORT_ANSWER_BYTES` of records, and the clients ask more often.
"""

from __future__ import annotations

ANSWERS_BYTES_MAX = 512 << 20
"""Of one node, plus a short answer for each connection."""

SHORT_ANSWER_BYTES = 1 << 20
"""What each Fetch may read, whatever others hold."""


class AnswerBudget:
    """So many bytes, taken and given back. Belongs to one event loop."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX) -> None:
        self.free = bytes_max
        """Bytes that nobody has taken; negative while short answers exceed the budget."""


class AnswerRoom:
    """One answer's part of the budget."""

    def __init__(self, budget: AnswerBudget) -> None:
        self._budget = budget
        self._held = 0

    def take(self, wanted: int) -> int:
        """Room for up to `wanted` bytes more; the bytes granted. `keep` is to follow."""
        granted = min(wanted, max(self._budget.free, SHORT_ANSWER_BYTES - self._held, 0))
        self._hold(self._held + granted)
        return granted

    def keep(self, used: int) -> None:
        """The answer has become so long; what was taken beyond that is given back."""
        self._hold(used)

    def release(self) -> None:
        """The answer is sent, or never will be."""
        self._hold(0)

    def _hold(self, held: int) -> None:
        self._budget.free -= held - self._held
        self._held = held
