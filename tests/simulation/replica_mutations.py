"""Planted bugs in what owners and replicas of a shard do with its stream (`--replicas`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import trio

import copier.plan
import shard.replica
import stream.fold
from coordinator.executor import Executor
from fairlog.cluster import reports
from fairlog.cluster.cluster_records import NodeNumber
from fairlog_types import Offset
from journal.streamed import StreamedJournals
from partition.partition import Partition
from partition.placed import Placed
from partition.records import Start
from shard.replica import Replica
from stream.engine import StoredEntry, StreamPosition, Unknown
from stream.entry import Entry, EntryKind, Owner, decode_entry_untrusted, decode_frames_untrusted
from stream.fold import Fold, Folded, Void
from stream.own_entries import OwnEntries
from stream.writer import StreamWriter
from tests.simulation.planting import Mutation, does_not_wait, patched


def _any_position_will_do(self: OwnEntries, sequence: int, _position: StreamPosition) -> None:
    if sequence > self._first:
        del self._encoded[: sequence - self._first]
        self._first = sequence


async def _takes_what_is_void(self: Replica, entry: StoredEntry) -> Folded:
    folded = await _REAL_TAKE(self, entry)
    decoded = decode_entry_untrusted(entry.data)
    if folded is Void.EPOCH and isinstance(decoded, Entry) and decoded.kind is EntryKind.FRAMES:
        frames = decode_frames_untrusted(decoded.body)
        if isinstance(frames, Sequence) and not decoded.continued:
            await self._take(frames)
    return folded


_REAL_TAKE = Replica.take


class _Anybody(Owner):
    """Equals each other owner."""

    def __eq__(self, _other: object) -> bool:
        return True

    __hash__ = Owner.__hash__


class _TheSameEachTime(Owner):
    """An owner whose attempts cannot be told apart."""

    def __new__(cls, node: str, _incarnation: bytes) -> Owner:  # type: ignore[misc]
        return Owner(node, bytes(16))


def _heartbeats_count_in_any_epoch(self: Fold, position: StreamPosition, entry: Entry) -> Folded:
    if entry.kind is EntryKind.HEARTBEAT and entry.epoch < self._state.epoch:
        self._moved(replace(self._state, position=position, sequence=self._state.sequence + 1))
        return stream.fold.Plain.HEARTBEAT
    return _REAL_ACCEPT(self, position, entry)


_REAL_ACCEPT = Fold._accept


def _a_later_fence_wins(self: Fold, position: StreamPosition, entry: Entry) -> Folded:
    if entry.kind is EntryKind.FENCE and entry.epoch == self._state.epoch:
        return self._fence(position, entry)
    return _REAL_ACCEPT(self, position, entry)


def _appends_again_as_the_next(self: StreamWriter, sequence: int, outcome: StreamPosition | Unknown) -> None:
    if isinstance(outcome, Unknown) and self.ended is None:
        for last, _, frames in self._under_way:
            if last == sequence:
                self._open[:0] = frames
                self.flush()
                return
    _REAL_LANDED(self, sequence, outcome)


_REAL_LANDED = StreamWriter._landed


def _copies_at_once(self: Replica, _end: StreamPosition) -> None:
    _REAL_RECOVER_BEFORE(self, StreamPosition(0))


_REAL_RECOVER_BEFORE = Replica.recover_before


def _each_by_itself(items: Iterable[Placed]) -> Iterator[tuple[Placed, ...]]:
    for item in items:
        yield (item,)


async def _hands_over_at_once(self: StreamWriter, successor: str | None) -> bool:
    self._open.clear()
    return await _REAL_HAND_OVER(self, successor)


_REAL_HAND_OVER = StreamWriter.hand_over


def _passes_over_fences(self: OwnEntries, position: StreamPosition, data: Any) -> None:
    entry = decode_entry_untrusted(data)
    if isinstance(entry, Entry) and entry.kind is EntryKind.FENCE and position == self._fold.next_position:
        self._fold._moved(replace(self._fold._state, position=position))
        self._go_on()
        return
    _REAL_READ(self, position, data)


_REAL_READ = OwnEntries.read


def _any_sequence_will_do(self: Fold, position: StreamPosition, entry: Entry) -> Folded:
    if (
        entry.kind is EntryKind.FRAMES
        and entry.epoch == self._state.epoch
        and entry.sequence > self._state.sequence + 1
    ):
        self._state = replace(self._state, sequence=entry.sequence - 1)
        return self._accepted(position, entry)
    return _REAL_ACCEPT(self, position, entry)


def _wakes_all(self: StreamWriter, ended: Any) -> None:
    if self.ended is None:
        for _, _, frames in self._under_way:
            self._accepted(frames)
    _REAL_END(self, ended)


_REAL_END = StreamWriter._end


async def _tells_no_journal(_self: Partition, _offset: Offset) -> bool:
    await trio.lowlevel.checkpoint()
    return True


async def _writes_a_start_and_goes_on(self: Partition, offset: Offset) -> bool:
    if offset > self.state.log_start:
        self.write(Start(offset))
    await trio.lowlevel.checkpoint()
    return True


def _without_its_start(log: Any, items: Any) -> Any:
    return replace(_REAL_PLAN_LOG(log, items), start=None)


_REAL_PLAN_LOG = copier.plan._plan_log


def _before_the_owners_mark(_owner: NodeNumber, mark: StreamPosition, *_others: object) -> StreamPosition:
    return mark


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "deletion-not-flushed",
        "records are deleted, and that is answered, before the START is on disk",
        patched(Partition, "_write_start", _writes_a_start_and_goes_on),
    ),
    Mutation(
        "start-passed",
        "the copied-through mark passes a START, and the log begins where it did",
        patched(copier.plan, "_plan_log", _without_its_start),
    ),
    Mutation(
        "deletion-here-only",
        "an owner deletes records from its own data log, and no journal says so",
        patched(Partition, "_write_start", _tells_no_journal),
    ),
    Mutation(
        "answered-before-the-position-was-compared",
        "an owner takes each entry that has landed for accepted",
        patched(OwnEntries, "landed", _any_position_will_do),
    ),
    Mutation(
        "void-entry-copied",
        "a replica takes the frames of deposed owners",
        patched(Replica, "take", _takes_what_is_void),
    ),
    Mutation(
        "told-before-it-is-accepted",
        "a coordinator answers, and discards, what the next owner will not know",
        patched(Executor, "_accepted", does_not_wait),
    ),
    Mutation(
        "any-fence-is-ones-own",
        "a replica takes another one's FENCE for its own",
        patched(shard.replica, "Owner", _Anybody),
    ),
    Mutation(
        "old-fence-is-ones-own",
        "a node that reads its FENCE of an earlier time goes on in that epoch",
        patched(shard.replica, "Owner", _TheSameEachTime),
    ),
    Mutation(
        "heartbeat-of-another-epoch-counts",
        "heartbeats of deposed owners are accepted",
        patched(Fold, "_accept", _heartbeats_count_in_any_epoch),
    ),
    Mutation(
        "later-fence-wins",
        "a second FENCE of the same epoch is accepted",
        patched(Fold, "_accept", _a_later_fence_wins),
    ),
    Mutation(
        "unknown-append-repeated",
        "an owner appends the frames of an entry again when its outcome is unknown",
        patched(StreamWriter, "_landed", _appends_again_as_the_next),
    ),
    Mutation(
        "unknown-append-answered",
        "an owner answers what is under way when it ends",
        patched(StreamWriter, "_end", _wakes_all),
    ),
    Mutation(
        "copied-before-the-end-was-read",
        "a replica that starts copies what its files hold before it has read on",
        patched(Replica, "recover_before", _copies_at_once),
    ),
    Mutation(
        "replica-shows-parts",
        "a replica makes the parts of a transaction visible one by one",
        patched(shard.replica, "placed_together", _each_by_itself),
    ),
    Mutation(
        "mark-before-sync",
        "the mark of a stream is written before the journals are on disk",
        patched(StreamedJournals, "sync_files", does_not_wait),
    ),
    Mutation(
        "handed-over-before-all-was-appended",
        "an owner hands over, and forgets what is not appended yet",
        patched(StreamWriter, "hand_over", _hands_over_at_once),
    ),
    Mutation(
        "fence-in-a-gap-passed-over",
        "an owner passes over the FENCE that deposes it",
        patched(OwnEntries, "read", _passes_over_fences),
    ),
    Mutation(
        "trimmed-too-far",
        "an owner trims the stream before its own mark, whatever the others have",
        patched(reports, "trim_to", _before_the_owners_mark),
    ),
    Mutation(
        "any-sequence-will-do",
        "an entry is accepted though one before it is missing",
        patched(Fold, "_accept", _any_sequence_will_do),
    ),
)
