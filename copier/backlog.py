"""What waits to be copied, in order, and who may go past a large group that is copied in stages. No I/O.

    added ─▶ [ queue ] ─▶ taken: the next chunk ─▶ done
                 │
                 ├─▶ large: it stands aside while it is staged
                 └─▶ held: what must not go past it

Groups leave in the order in which they came, but for one case. While a large group is staged, others go past it, if
they share no *key* with it, nor with one that is held. Keys are the logs that a group touches, the producers whose
transactions it ends, and the order that `add` was told; so any two groups that have one in common leave in the order in
which they came (invariants 2 and 6). Another large one is held, too: one at a time.

How much waits is told in bytes, for those who ask whether there is room: without the large one, for whoever goes
past it does not wait for it. And how much of that is in small groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from copier.plan import ITEM_WEIGHT_BYTES, Group, weight_bytes
from copier.staging import is_large
from fairlog_types import LogId, ProducerId
from partition.placed import PlacedMarker, PlacedTransaction

SMALL_BYTES = 64 * 2**10
"""A batch up to this is a small one."""

_SMALL_WEIGHT_BYTES = SMALL_BYTES + ITEM_WEIGHT_BYTES + 2**10
"""A group that weighs no more is a small one: no small batch weighs more, with the head and the header of its frame."""

Key = LogId | ProducerId | str
"""A log, a producer, or an order."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group, and what is known of it since it came."""

    number: int
    """From 1, in the order in which they came."""
    group: Group
    order: str | None
    weight_bytes: int
    since_s: float

    def keys(self) -> set[Key]:
        """With whom it must keep its order."""
        keys: set[Key] = {item.log for item in self.group}
        keys.update(item.producer_id for item in self.group if isinstance(item, PlacedTransaction | PlacedMarker))
        if self.order is not None:
            keys.add(self.order)
        return keys


class Backlog:
    """The groups that wait, and those that are on their way."""

    def __init__(self) -> None:
        self._queue: deque[Waiting] = deque()
        self._taken: list[Waiting] = []
        self._large: Waiting | None = None
        self._held: list[Waiting] = []
        self._held_keys: set[Key] = set()
        """Of the large one and of those that are held."""
        self.last_number = 0
        """Of the group that came last; 0 before the first."""
        self._bytes = 0
        self._small_bytes = 0

    def add(self, group: Group, order: str | None, now_s: float) -> None:
        """Put a group behind all others. `order`: groups that name the same one keep their order."""
        self.last_number += 1
        weight = weight_bytes(group)
        self._queue.append(Waiting(self.last_number, group, order, weight, now_s))
        self._count(weight)

    # Who is next

    @property
    def head(self) -> Group | None:
        """What must be durable before anything can be taken; None if nothing waits. No large group stands aside."""
        assert self._large is None, "who is next is not only for the queue to say"
        place = self._taken or self._queue
        return place[0].group if place else None

    def set_aside_if_large(self) -> Group | None:
        """If the head is a large group, let it stand aside until it `large_is_done`, and answer it."""
        if self._taken or not self._queue or not is_large(self._queue[0].group, self._queue[0].weight_bytes):
            return None
        self._large = self._queue.popleft()
        self._count(-self._large.weight_bytes)
        self._held_keys = self._large.keys()
        return self._large.group

    def take(self, is_durable: Callable[[Group], bool], *, bytes_max: int) -> list[Group]:
        """The next chunk: from the front, as far as it is durable; one group at least, then up to `bytes_max`.

        A group that is larger goes alone, for it must not be split (invariant 7). While a large one stands aside, what
        may go past it. What was taken is answered again until that `taken_is_done`.
        """
        if self._taken:
            return [each.group for each in self._taken]
        total_bytes = 0
        while self._queue:
            first = self._queue[0]
            if self._large is not None and self._must_wait(first):
                self._held.append(self._queue.popleft())
                self._held_keys |= first.keys()
                continue
            total_bytes += first.weight_bytes
            if is_large(first.group, first.weight_bytes) or (self._taken and total_bytes > bytes_max):
                break
            if not is_durable(first.group):
                break
            self._taken.append(self._queue.popleft())
        return [each.group for each in self._taken]

    def _must_wait(self, waiting: Waiting) -> bool:
        return is_large(waiting.group, waiting.weight_bytes) or not self._held_keys.isdisjoint(waiting.keys())

    # What is done

    def taken_is_done(self) -> None:
        """What was taken is copied."""
        for each in self._taken:
            self._count(-each.weight_bytes)
        self._taken.clear()

    def large_is_done(self) -> None:
        """The large group is copied: what was held comes first now."""
        self._large = None
        self._queue.extendleft(reversed(self._held))
        self._held.clear()
        self._held_keys.clear()

    @property
    def done_through(self) -> int:
        """All groups up to this number are copied; of those that came later, some may be, too."""
        return min((each.number for each in self._oldest()), default=self.last_number + 1) - 1

    def _oldest(self) -> Iterator[Waiting]:
        """The oldest one of each place."""
        if self._large is not None:
            yield self._large
        for place in (self._held, self._taken, self._queue):
            if place:
                yield place[0]

    # How much waits

    def _count(self, weight_bytes: int) -> None:
        """Of a group that has come; less than 0 of one that has left."""
        self._bytes += weight_bytes
        if abs(weight_bytes) <= _SMALL_WEIGHT_BYTES:
            self._small_bytes += weight_bytes

    @property
    def total_bytes(self) -> int:
        """All that waits."""
        return self._bytes + (0 if self._large is None else self._large.weight_bytes)

    @property
    def ahead_bytes(self) -> int:
        """What waits in front of a group that comes now: all but a large one that stands aside."""
        return self._bytes

    @property
    def small_bytes(self) -> int:
        """How much of that is in small groups."""
        return self._small_bytes

    @property
    def oldest_s(self) -> float | None:
        """When the oldest of all came; None if nothing waits."""
        return min((each.since_s for each in self._oldest()), default=None)

    @property
    def ahead_since_s(self) -> float | None:
        """When the oldest came of those that neither stand aside nor are held; None if there is none."""
        return min((place[0].since_s for place in (self._taken, self._queue) if place), default=None)
