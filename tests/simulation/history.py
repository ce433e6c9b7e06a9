"""What the clients did and were answered, what readers have seen, and whether the two agree (docs/invariants.md).

A batch is known by its bytes from the CRC on, which nobody changes on the way; so a batch that is read back is one that
was sent, or a violation. `view` takes in what one reader found in one cut over all logs. What was once seen stays
seen: the first reader to come so far writes it down, and everybody who comes later, also after any crash, has to
find the same. Each batch is judged when it is seen first:

    1   it is plain, or of a transaction that its producer asked to be committed
    2   it begins where the one before it ends
    3   a transaction's batches stand together and in their order
    5   it is there once; it was not refused as being without effect; no other commit of its sink's batch is there
    6   it does not lie behind a later batch of its sink
    9   its transaction was not asked to be committed behind the back of a newer instance

and each cut: a transaction is in all its logs, or in none (7). `settled` is asked of a view behind a recovery: all
that was answered is there (5), and the transactions of one id stand in one order everywhere (6). `fences` is asked of
a start that has lost nothing: each log knows the epochs in which transactions have begun there (9).

Records are deleted by clients. They ask only for what was seen, so what is not there any more counts as seen; a log
begins no later than somebody has asked for, and behind a recovery no earlier than somebody was answered (5). What is
behind its start is all there, as before.

In a log of marker mode (`found`) offsets have gaps, others' batches stand between those of a transaction, and what is
committed may be *behind* a transaction that is open: there, but not for readers yet. For 5 and 7 it is there. For 6 the
markers count; each has one place for ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from datalog.batch import parse_stored_header
from fairlog_types import LogId, Offset, Placement
from tests.simulation.deadlines import Deadlines
from tests.simulation.found import Found
from tests.simulation.world import World

_BODY_FROM = 17
"""The CRC begins here; base offset, length and leader epoch, before it, are the node's to write."""


@dataclass(eq=False, slots=True)
class Batch:
    """One batch that a client has sent."""

    name: str
    log: LogId
    body: bytes
    records: int
    transaction: Transaction | None
    acknowledged: bool = False
    refused: bool = False
    """Said to be without effect, and never sent in a way of which nothing is known."""
    offset: Offset | None = None
    """As answered."""

    @property
    def sender(self) -> str:
        """Of a sink's batch there are several."""
        return self.name.rpartition(".")[0]


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction, as its client sees it."""

    name: str
    transactional_id: str
    producer: tuple[int, int]
    """Producer id and epoch."""
    batches: dict[LogId, list[Batch]] = field(default_factory=dict)
    asked: bool = False
    """EndTxn(commit) was sent."""
    committed: bool = False
    """It was answered: done."""
    without_effect: bool = False
    """The only such request was answered: no effect."""
    doomed: bool = False
    """It was sent after a newer instance had been granted a newer epoch."""
    batch: int | None = None
    """Of a sink commit: which batch of its sink, whose name stands for the transactional id."""
    began_after_s: float | None = None
    """When its first request came to a node, by the run's clock."""
    began_in: int | None = None
    """The start of the node that answered its first request."""
    asked_in: int | None = None
    """The start of the node that was first asked to commit it."""

    def __str__(self) -> str:
        return self.name


class CommittedBatch(NamedTuple):
    """A batch of a sink of which somebody was told that it is committed."""

    placements: tuple[Placement, ...] = ()
    """Where it is, if that was said."""
    is_visible: bool = False
    """It was said by who waits until it can be read; else it may be decided, and no more."""


class Answered(NamedTuple):
    """What was answered as done, at some moment."""

    transactions: Sequence[Transaction]
    plain: Sequence[Batch]
    batches: Mapping[tuple[str, int], CommittedBatch]
    """By sink and number."""
    starts: Mapping[LogId, Offset]
    """Where a log begins, or later."""


class History:
    """All clients' and readers' memory."""

    def __init__(
        self, world: World, logs: Sequence[LogId], *, markers: Collection[LogId] = (), group_separator: str = ""
    ) -> None:
        """Of `logs`, those in `markers` are of marker mode."""
        self._world = world
        self.logs = logs
        self.markers = markers
        self._group_separator = group_separator
        self.deadlines = Deadlines(world)
        self._sent: dict[bytes, Batch] = {}
        self.seen: dict[LogId, list[Batch]] = {log: [] for log in logs}
        self._ends: dict[LogId, list[int]] = {log: [] for log in logs}
        """The offset behind each batch of `seen`."""
        self._place: dict[Batch, int] = {}
        """Of each batch that was seen, its index in its log."""
        self._behind: dict[LogId, dict[Batch, Offset]] = {log: {} for log in logs}
        """What the last view of each log has found behind an open transaction, and at which offset."""
        self._marked: dict[Batch, Offset] = {}
        """In marker mode: where the marker of a committed batch stands."""
        self.transactions: list[Transaction] = []
        self.plain: list[Batch] = []
        self._epochs: dict[int, int] = {}
        """The newest epoch that anybody was told of, by producer id."""
        self.batches: dict[tuple[str, int], list[Transaction]] = {}
        """By sink and number: every commit of it that was asked for. At most one of them may be seen."""
        self._committed_batches: dict[tuple[str, int], CommittedBatch] = {}
        self._last_batch: dict[tuple[LogId, str], int] = {}
        """The last batch of each sink that was seen in each log."""
        self._asked_starts = dict.fromkeys(logs, Offset(0))
        """The latest offset before which somebody has asked to delete what is in a log."""
        self._answered_starts: dict[LogId, Offset] = {}
        self._log_starts: dict[LogId, Offset] = {}
        """Where each log began when it was viewed last."""
        self.begun: dict[tuple[LogId, int], int] = {}
        """The newest epoch in which a producer has begun a transaction in a log, since the system was last started."""

    # --- what clients say ---

    def sends(self, batch: Batch) -> None:
        self._sent[batch.body] = batch
        if batch.transaction is None:
            self.plain.append(batch)

    def granted(self, producer_id: int, epoch: int) -> None:
        self._epochs[producer_id] = max(epoch, self._epochs.get(producer_id, epoch))

    def asks_commit(self, transaction: Transaction) -> None:
        producer_id, epoch = transaction.producer
        if not transaction.asked:
            transaction.asked = True
            transaction.doomed = epoch < self._epochs.get(producer_id, epoch)

    def has_begun(self, log: LogId, producer_id: int, epoch: int) -> None:
        """A node has said so: from here on the log takes nothing of an older epoch."""
        self.begun[log, producer_id] = max(epoch, self.begun.get((log, producer_id), epoch))

    def batch_is_committed(
        self, sink: str, batch: int, placements: tuple[Placement, ...], *, is_visible: bool = True
    ) -> None:
        """Somebody was told so, and where, unless the sink has gone on since: there it stays, whatever happens."""
        known, was_visible = self._committed_batches.get((sink, batch), CommittedBatch())
        if known and placements and known != placements:
            self._violate(5, f"batch {batch} of {sink} was answered to be at {known}, and now at {placements}")
        self._committed_batches[sink, batch] = CommittedBatch(known or placements, was_visible or is_visible)

    def seen_end(self, log: LogId) -> Offset:
        """The offset behind all that anybody has read of a log."""
        return self.end(log, len(self.seen[log]))

    def asks_to_delete(self, log: LogId, before: Offset) -> None:
        assert before <= self.seen_end(log), "only what was seen"
        self._asked_starts[log] = max(self._asked_starts[log], before)

    def is_deleted(self, log: LogId, before: Offset, start: Offset) -> None:
        """It was answered that the log begins at `start`: for ever, or later."""
        if not before <= start <= self._asked_starts[log]:
            self._violate(5, f"{log_name(log)} was to begin at {before}, and is said to begin at {start}")
        self._answered_starts[log] = max(start, self._answered_starts.get(log, start))

    # --- what readers find ---

    def view(self, who: str, starts: Mapping[LogId, int], found: Mapping[LogId, Found]) -> dict[LogId, int]:
        """One cut, read in each log from the batch with the index `starts`; answers how far each log is read now."""
        ends: dict[LogId, int] = {}
        touched: dict[Transaction, None] = {}
        for log, part in found.items():
            self._log_starts[log] = part.log_start
            if part.log_start > self._asked_starts[log]:
                what = f"begins at {part.log_start}, and nobody has asked to delete before more than"
                self._violate(5, f"{who}: {log_name(log)} {what} {self._asked_starts[log]}")
                return dict(starts)
            index = bisect_right(self._ends[log], part.read_from, lo=starts[log])
            for data in part.batches:
                batch = self._seen_at(who, log, index, data)
                if batch is None:
                    return dict(starts)
                if batch.transaction is not None:
                    touched[batch.transaction] = None
                index += 1
            ends[log] = index
            self._behind[log] = self._seen_behind(who, log, part.behind)
            touched.update((batch.transaction, None) for batch in self._behind[log] if batch.transaction is not None)
            for data, marker in part.markers.items():
                self._is_marked(who, self._sent.get(data[_BODY_FROM:]), marker)
        for transaction in touched:
            for log, batches in transaction.batches.items():
                for batch in batches if log in ends else ():
                    place = self._place.get(batch)
                    if (place is None or place >= ends[log]) and batch not in self._behind[log]:
                        self._violate(
                            7, f"{who} sees a part of {transaction.name}, but not {batch.name} in {log_name(log)}"
                        )
                        return ends
        return ends

    def has(self, batch: Batch) -> bool:
        """Whether anybody has read it."""
        return batch in self._place

    def is_committed(self, batch: Batch) -> bool:
        """Whether it was read, or was found behind an open transaction when its log was viewed last."""
        return batch in self._place or batch in self._behind[batch.log]

    def nothing_is_behind(self, when: str) -> None:
        """Nothing is open: readers of committed records get all that is committed."""
        for log, behind in self._behind.items():
            for batch in behind:
                self._violate(8, f"{when}: {batch.name} is committed in {log_name(log)}, and readers stop before it")

    def end_of(self, batch: Batch) -> Offset | None:
        """The offset behind it; None if nobody has read it."""
        place = self._place.get(batch)
        return None if place is None else Offset(self._ends[batch.log][place])

    def is_between_batches(self, log: LogId, offset: Offset) -> bool:
        """Whether some batch that was read ends there, or the log begins; in marker mode, whether none is split."""
        if log in self.markers:
            inside = zip(self._ends[log], self.seen[log], strict=True)
            return not any(end - batch.records < offset < end for end, batch in inside)
        return offset == 0 or offset in self._ends[log]

    def end(self, log: LogId, index: int) -> Offset:
        """The offset behind so many batches."""
        return Offset(self._ends[log][index - 1] if index else 0)

    def _seen_at(self, who: str, log: LogId, index: int, data: bytes) -> Batch | None:
        batch = self._sent.get(data[_BODY_FROM:])
        row = self.seen[log]
        if batch is None:
            header = parse_stored_header(data)
            self._violate(1, f"{who} reads what nobody has sent, in {log_name(log)} at {header.base_offset}: {header}")
            return None
        if index < len(row):
            if row[index] is not batch:
                self._violate(
                    5, f"{who} reads {batch.name} in {log_name(log)}, where {row[index].name} was read before"
                )
                return None
            return batch
        header = parse_stored_header(data)
        expected = self._ends[log][-1] if row else 0
        has_gap = header.base_offset > expected and log in self.markers
        if (header.base_offset != expected and not has_gap) or header.record_count != batch.records:
            self._violate(2, f"{batch.name} is at {header.base_offset} of {log_name(log)}, which goes on at {expected}")
            return None
        row.append(batch)
        self._ends[log].append(header.base_offset + header.record_count)
        if not self._may_be_seen(who, batch, row, Offset(header.base_offset)):
            return None
        self._place[batch] = index
        return batch

    def _seen_behind(self, who: str, log: LogId, stored: Sequence[bytes]) -> dict[Batch, Offset]:
        found: dict[Batch, Offset] = {}
        for data in stored:
            batch, offset = self._sent.get(data[_BODY_FROM:]), parse_stored_header(data).base_offset
            if batch is None:
                self._violate(1, f"{who} finds what nobody has sent, in {log_name(log)} at {offset}")
                continue
            # Somebody may have read it already: this answer may be an older one, and late.
            is_elsewhere = batch in self._place and self._offset_of(batch) != offset
            if is_elsewhere or batch in found or batch.log != log:
                self._violate(5, f"{who} finds {batch.name} in {log_name(log)} at {offset} for the second time")
            elif self._may_be_committed(who, batch, offset):
                found[batch] = offset
                self._world.count("batches found behind an open transaction")
        return found

    def _is_marked(self, who: str, batch: Batch | None, marker: Offset) -> None:
        if batch is None:
            return  # a violation already
        known = self._marked.setdefault(batch, marker)
        if known != marker:
            where = f"at {marker} of {log_name(batch.log)}, and stood at {known} before"
            self._violate(5, f"{who} finds the marker that has committed {batch.name} {where}")

    def _may_be_committed(self, who: str, batch: Batch, offset: Offset) -> bool:
        where = f"{batch.name} in {log_name(batch.log)} at {offset}"
        transaction = batch.transaction
        if batch.refused:
            self._violate(5, f"{who} reads {where}, which was refused as without effect")
        elif batch.offset is not None and batch.offset != offset:
            self._violate(5, f"{who} reads {where}, which was answered to be at {batch.offset}")
        elif transaction is not None and not transaction.asked:
            self._violate(1, f"{who} reads {where}, whose transaction nobody has committed")
        elif transaction is not None and transaction.without_effect:
            self._violate(5, f"{who} reads {where}, whose commit was answered to be without effect")
        elif transaction is not None and transaction.doomed:
            self._violate(9, f"{who} reads {where}, of an older epoch than was granted when its commit was sent")
        else:
            return True
        return False

    def _may_be_seen(self, who: str, batch: Batch, row: Sequence[Batch], offset: Offset) -> bool:
        where = f"{batch.name} in {log_name(batch.log)} at {offset}"
        transaction = batch.transaction
        has_markers = batch.log in self.markers
        if batch in self._place or row[-1].log != batch.log:
            self._violate(5, f"{who} reads {where} twice")
        elif not self._may_be_committed(who, batch, offset):
            pass
        elif transaction is not None and not self._is_next(batch, transaction, row):
            self._violate(3, f"{who} reads {where}, not behind what stands before it in {transaction.name}")
        elif len(row) > 1 and not has_markers and self._is_torn(row[-2], batch):
            self._violate(3, f"{who} reads {where} before all of {row[-2].transaction} is there")
        elif (
            transaction is not None
            and transaction.batch is not None
            and not has_markers
            and not self._is_next_batch(batch, transaction)
        ):
            self._violate(6, f"{who} reads {where} behind a later batch of its sink")
        elif transaction is not None and self._is_again(transaction):
            self._violate(5, f"{who} reads {where}, and another commit of that batch was seen before")
        else:
            return True
        return False

    def _is_next(self, batch: Batch, transaction: Transaction, row: Sequence[Batch]) -> bool:
        batches = transaction.batches[batch.log]
        if batch.log in self.markers:
            batches = [it for it in batches if it.sender == batch.sender]
            at = batches.index(batch)
            return at == 0 or batches[at - 1] in self._place
        at = batches.index(batch)
        return at == 0 or (len(row) > 1 and row[-2] is batches[at - 1])

    @staticmethod
    def _is_torn(before: Batch, batch: Batch) -> bool:
        transaction = before.transaction
        return (
            transaction is not None
            and transaction is not batch.transaction
            and transaction.batches[before.log][-1] is not before
        )

    def _is_next_batch(self, batch: Batch, transaction: Transaction) -> bool:
        key, number = (batch.log, transaction.transactional_id), transaction.batch
        assert number is not None
        before = self._last_batch.get(key, number)
        self._last_batch[key] = number
        return before <= number

    def _is_again(self, transaction: Transaction) -> bool:
        if transaction.batch is None:
            return False
        others = self.batches[transaction.transactional_id, transaction.batch]
        return any(other is not transaction and self._is_seen(other) for other in others)

    def _is_seen(self, transaction: Transaction) -> bool:
        """Whether any of it was; as a cut has all of it or nothing, all of it then."""
        return any(batch in self._place for batches in transaction.batches.values() for batch in batches)

    # --- what has to be there ---

    def answered(self) -> Answered:
        """What was answered as done so far."""
        transactions = [it for it in self.transactions if it.committed]
        plain = [batch for batch in self.plain if batch.acknowledged]
        return Answered(transactions, plain, dict(self._committed_batches), dict(self._answered_starts))

    def settled(self, when: str, ends: Mapping[LogId, int], answered: Answered | None = None) -> None:
        """Behind a recovery, with a view from the beginning: all that was answered, and all that was seen, is there.

        Of the logs that are in the view. `answered` is what was answered when that start began, if others serve beside.
        """
        answered = answered or self.answered()
        for log, start in answered.starts.items():
            if log in ends and self._log_starts[log] < start:
                begins = f"begins at {self._log_starts[log]}, and was answered to begin at {start}"
                self._violate(5, f"{when}: {log_name(log)} {begins}")
                return
        for log, row in self.seen.items():
            if log in ends and ends[log] < len(row):
                self._violate(
                    5, f"{when}: {row[ends[log]].name} is gone from {log_name(log)}, where it was read before"
                )
                return
        for transaction in answered.transactions:
            for batches in transaction.batches.values():
                for batch in batches:
                    if batch.log in ends and not self.is_committed(batch):
                        what = f"{batch.name} of {transaction.name}, whose commit was answered"
                        self._violate(5, f"{when}: {what}, is missing from {log_name(batch.log)}")
                        return
        for batch in answered.plain:
            if batch.log in ends and not self.is_committed(batch):
                self._violate(5, f"{when}: {batch.name}, which was answered, is missing from {log_name(batch.log)}")
                return
        self._check_batches(when, ends, answered)
        self._check_order(when)

    def fences(self, when: str, logs: Sequence[LogId], known: Mapping[LogId, Mapping[int, int]] | None) -> None:
        """Behind a recovery: which producers each of these logs knows, by what epoch; None if it has lost what it held.

        Nobody waits until a fence is on disk: what its transaction writes, and its end, stand behind it in the journal.
        """
        if known is None:
            self.begun = {key: epoch for key, epoch in self.begun.items() if key[0] not in logs}
            return
        for (log, producer_id), epoch in self.begun.items():
            if log not in known:
                continue
            found = known[log].get(producer_id, -1)
            if found < epoch:
                where = f"{log_name(log)}, where it has begun a transaction in epoch {epoch}"
                self._violate(9, f"{when}: producer {producer_id} is known by epoch {found} in {where}")
                return

    def _check_batches(self, when: str, logs: Collection[LogId], answered: Answered) -> None:
        """What was said to be committed is in these logs, as one of the commits asked for, and where it was said."""
        for (sink, number), (placements, _) in answered.batches.items():
            name = f"batch {number} of {sink}, which was answered to be committed"
            asked = [it for it in self.batches.get((sink, number), ()) if it.asked and not it.without_effect]
            seen = [it for it in asked if self._is_seen_in(logs, it)]
            if not seen:
                self._violate(5, f"{when}: {name}, is nowhere")
                return
            said = self._as_told(placements, logs)
            found = [self._places_of(it, logs) for it in seen]
            if placements and said not in found:
                self._violate(5, f"{when}: {name} at {said}, is at {max(found, key=len)}")
                return

    def _is_seen_in(self, logs: Collection[LogId], transaction: Transaction) -> bool:
        """Whether all that it has in these logs was."""
        return all(self.is_committed(batch) for log, row in transaction.batches.items() if log in logs for batch in row)

    def _places_of(self, transaction: Transaction, logs: Collection[LogId]) -> tuple[Placement, ...]:
        places: list[Placement] = []
        for log, batches in sorted(transaction.batches.items()):
            if log not in logs:
                continue
            count = sum(batch.records for batch in batches)
            places.append(Placement(log, min(map(self._offset_of, batches)), count))
        return tuple(places)

    def _as_told(self, placements: Sequence[Placement], logs: Collection[LogId]) -> tuple[Placement, ...]:
        """In these logs. In marker mode, where a lane's records are mixed with others, all that is in a log is one."""
        found: list[Placement] = []
        for place in placements:
            if found and found[-1].log == place.log and place.log in self.markers:
                count = found[-1].count + place.count
                found[-1] = Placement(place.log, min(found[-1].base_offset, place.base_offset), count)
            elif place.log in logs:
                found.append(place)
        return tuple(found)

    def _offset_of(self, batch: Batch) -> Offset:
        place = self._place.get(batch)
        return self._behind[batch.log][batch] if place is None else Offset(self._ends[batch.log][place] - batch.records)

    def _check_order(self, when: str) -> None:
        """Invariant 6: what stands before what, of the transactions of one group, is the same in every log."""
        before: dict[tuple[Transaction, Transaction], None] = {}
        for log, row in self.seen.items():
            last: dict[str, list[Transaction]] = {}
            for batch in sorted(self._marked_in(log), key=self._marked.__getitem__) if log in self.markers else row:
                transaction = batch.transaction
                if transaction is not None:
                    order = last.setdefault(self._group_of(transaction), [])
                    if not order or order[-1] is not transaction:
                        order.append(transaction)
            for order in last.values():
                pairs = ((first, second) for at, first in enumerate(order) for second in order[at + 1 : at + 6])
                before.update(dict.fromkeys(pairs))
        for first, second in before:
            if (second, first) in before:
                self._violate(6, f"{when}: {first.name} and {second.name} stand in one order here, in another there")
                return

    def _marked_in(self, log: LogId) -> Iterable[Batch]:
        return (batch for batch in (*self.seen[log], *self._behind[log]) if batch in self._marked)

    def _group_of(self, transaction: Transaction) -> str:
        name = transaction.transactional_id
        return name.partition(self._group_separator)[0] if self._group_separator else name

    def _violate(self, invariant: int, what: str) -> None:
        self._world.violate(invariant, what)


def log_name(log: LogId) -> str:
    """A letter for each partition."""
    return "abcdefgh"[log.partition]
