"""What raw requests have to keep: no part of what was answered is committed without the rest. No I/O.

The rule, for each epoch of a producer. An *item* is a batch, or an offset that a group commits:

    EndTxn(commit) succeeded   every item that was answered since the client last ended a transaction, or was granted
                               the epoch, is visible, and stays so
    EndTxn(abort) succeeded,   no item since then is ever visible
    or InitProducerId

An InitProducerId that has kept the open transaction ends nothing: its epoch goes on with what was written in the one
before. An item whose answer was lost may be in or out. An EndTxn whose answer was lost may have been carried out or
not: then the items before it are visible or not, but all of them. What the broker has aborted follows from this: as
long as the client has not ended the transaction itself, no commit may succeed that leaves out what was answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fairlog_types import ProducerEpoch, ProducerId


class BrokenRule(AssertionError):
    """Something is visible that must not be, or the other way round."""


@dataclass(eq=False, slots=True)
class Item:
    """A batch, or a committed offset (`log` is None). `number` is its value, and never used twice."""

    number: int
    log: int | None
    data: bytes = b""
    sequence: int = -1
    must_be_seen: bool = False
    may_be_seen: bool = False
    """It may be, or may become, visible: a commit was asked for that may be, or was, carried out."""

    def __str__(self) -> str:
        return f"{'offset' if self.log is None else 'batch'} {self.number}"


@dataclass(eq=False, slots=True)
class Part:
    """What was sent between two EndTxns of an epoch; `lost_end` is the latter if its answer was lost."""

    answered: dict[Item, None] = field(default_factory=dict)
    unanswered: dict[Item, None] = field(default_factory=dict)
    lost_end: bool | None = None
    """True: a commit."""


class EpochLedger:
    """What a client knows of its requests in one epoch, since it last ended a transaction."""

    def __init__(self, together: list[Sequence[Item]]) -> None:
        self.parts = [Part()]
        self.together = together
        """Answered items that are visible all or not at all."""
        self.next: dict[int, int] = {}
        """The sequence that is due, by log."""
        self.last: dict[int, Item] = {}
        """The last batch that was sent, by log."""
        self.added: set[int] = set()
        """Logs that were added since the client last ended a transaction."""
        self.ended: dict[int, int] = {}
        """A sequence of a transaction that has ended, by log."""
        self.ended_items: set[Item] = set()

    def answers(self, item: Item, *, again: bool = False) -> None:
        """The item is in; `again`: it was, says the answer. Then nothing new is said of one whose transaction ended."""
        part = next((it for it in self.parts if item in it.unanswered or item in it.answered), None)
        if part is None or not again:
            if item.must_be_seen or (again and item in self.ended_items):
                return
            for each in self.parts:
                each.unanswered.pop(item, None)
                each.answered.pop(item, None)
            part = self.parts[-1]
        part.unanswered.pop(item, None)
        part.answered[item] = None

    def loses(self, item: Item) -> None:
        if not item.must_be_seen and all(item not in (*part.answered, *part.unanswered) for part in self.parts):
            self.parts[-1].unanswered[item] = None

    def loses_end(self, commit: bool) -> None:
        self.parts[-1].lost_end = commit
        self.parts.append(Part())
        if commit:
            for item in self._items():
                item.may_be_seen = True

    def ends(self, commit: bool) -> None:
        """The client was answered: done. What was asked for before, and not answered, may have been as well."""
        asked = commit, not commit  # whether there is a commit, an abort, among all ends from a part on
        for part in reversed(self.parts):
            if part.lost_end is not None:
                asked = asked[0] or part.lost_end, asked[1] or not part.lost_end
            commits, aborts = asked
            for item in (*part.answered, *part.unanswered):
                item.may_be_seen = commits
                item.must_be_seen = item.must_be_seen or (commits and not aborts and item in part.answered)
            if commits and aborts and part.answered:
                self.together.append(tuple(part.answered))
        self.ended.update({item.log: item.sequence for item in self._items() if item.log is not None})
        self.ended_items.update(self._items())
        self.added.clear()
        self.parts = [Part()]

    def has_sent(self, log: int, sequence: int) -> bool:
        """Whether a batch of the open transaction has that sequence."""
        return any(item.log == log and item.sequence == sequence for item in self._items())

    def _items(self) -> Sequence[Item]:
        return [item for part in self.parts for item in (*part.answered, *part.unanswered)]


class Ledgers:
    """What all clients know of all epochs, and whether what is visible agrees with it."""

    def __init__(self) -> None:
        self._by_epoch: dict[tuple[ProducerId, ProducerEpoch], EpochLedger] = {}
        self._together: list[Sequence[Item]] = []
        self._items: list[Item] = []
        self._seen: set[int] = set()

    def of(self, producer_id: ProducerId, epoch: ProducerEpoch) -> EpochLedger:
        return self._by_epoch.setdefault((producer_id, epoch), EpochLedger(self._together))

    def goes_on(self, kept: EpochLedger, producer_id: ProducerId, epoch: ProducerEpoch) -> None:
        """This epoch ends what was written in that of `kept`."""
        self._by_epoch[producer_id, epoch] = kept

    def new(self, item: Item) -> Item:
        """The item is about to be sent for the first time."""
        self._items.append(item)
        return item

    def judge(self, seen: set[int]) -> None:
        """Hold the numbers of all that is visible now against the rule. Raises BrokenRule."""
        for item in self._items:
            if item.number in seen and not item.may_be_seen:
                raise BrokenRule(f"{item} is visible, and nobody has committed it")
            if item.number not in seen and item.must_be_seen:
                raise BrokenRule(f"{item} was answered, and so was its commit, and it is not there")
            if item.number not in seen and item.number in self._seen:
                raise BrokenRule(f"{item} was visible, and is not there any more")
        for items in self._together:
            if len({item.number in seen for item in items}) > 1:
                raise BrokenRule(f"of {', '.join(map(str, items))} a part is visible")
        self._seen = seen
