"""Planted bugs in the journals, and in what a leader's state folds of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import trio

import journal.journal
import journal.segment_file
import partition.state
from coordinator.group_journal import GroupJournal
from fairlog_types import JournalPosition
from journal import failpoints
from journal.journal import Journal
from journal.segment_file import SegmentFile
from partition.producer_window import ACCEPT, DuplicateOf
from partition.state import PartitionState
from tests.simulation.planting import Mutation, patched


@contextmanager
def _flush_is_skipped() -> Iterator[None]:
    def sync(self: SegmentFile, _sync: object) -> JournalPosition:
        return self.end

    with mock.patch.object(SegmentFile, "sync", sync), mock.patch.object(Journal, "flush_file", return_value=None):
        yield


def _flush_covers_what_came_later(self: Journal, outcome: JournalPosition | OSError) -> None:
    _REAL_FLUSH_DONE(self, outcome if isinstance(outcome, OSError) else self.end)


def _failed_flush_passes(self: Journal, outcome: JournalPosition | OSError) -> None:
    _REAL_FLUSH_DONE(self, self.end if isinstance(outcome, OSError) else outcome)


_REAL_FLUSH_DONE = Journal.flush_done


def _frame_claims_too_much(**fields: Any) -> Any:
    return _REAL_ENCODE(**{**fields, "durable": fields["position"]})


_REAL_ENCODE = journal.journal.encode_frame


def _publish_without_its_directory(self: SegmentFile) -> None:
    journal.segment_file.os.rename(self.path, self._directory / journal.segment_file.segment_name(self.base))
    self.published = True
    failpoints.reach("journal.roll.after_publish")


def _publish_before_sealing(self: Journal) -> Callable[[], JournalPosition]:
    chain = self._under_flush = tuple(self._segments.writing)
    sync = self._flusher.sync

    def work() -> JournalPosition:
        active = chain[-1]
        through = active.sync(sync)
        for segment in chain:
            if not segment.published:
                segment.publish()
        for segment in chain[:-1]:
            segment.seal(sync)
        return through

    return work


async def _snapshot_is_not_synced(
    self: GroupJournal, as_of: JournalPosition, commit_number: int, records: Sequence[Any]
) -> None:
    async def nothing() -> None:
        await trio.lowlevel.checkpoint()

    await self._journal.roll()
    await self._journal.sync()
    with mock.patch.object(self._journal, "sync", nothing):
        await _REAL_WRITE_SNAPSHOT(self, as_of, commit_number, list(records))


_REAL_WRITE_SNAPSHOT = GroupJournal._write_snapshot


def _any_count_is_held(self: PartitionState, *_: object) -> str | None:
    return None


def _sequences_unchecked(*args: Any) -> Any:
    found = _REAL_CHECK_SEQUENCE(*args)
    return ACCEPT if isinstance(found, DuplicateOf) else found


_REAL_CHECK_SEQUENCE = partition.state.check_sequence


MUTATIONS = (
    Mutation("flush-skipped", "no flush reaches the disk", _flush_is_skipped),
    Mutation(
        "flush-covers-later-frames",
        "what was appended during a flush counts as flushed",
        patched(Journal, "flush_done", _flush_covers_what_came_later),
    ),
    Mutation(
        "failed-flush-passes", "a flush that has failed counts", patched(Journal, "flush_done", _failed_flush_passes)
    ),
    Mutation(
        "frame-claims-too-much",
        "a frame says that all before it was durable",
        patched(journal.journal, "encode_frame", _frame_claims_too_much),
    ),
    Mutation(
        "segment-name-not-synced",
        "a segment gets its name, and its directory is not synced",
        patched(SegmentFile, "publish", _publish_without_its_directory),
    ),
    Mutation(
        "publish-before-seal",
        "the next segment gets its name before the full one is sealed",
        patched(Journal, "flush_work", _publish_before_sealing),
    ),
    Mutation(
        "snapshot-not-synced",
        "a group journal's old segments go before its snapshot is on disk",
        patched(GroupJournal, "_write_snapshot", _snapshot_is_not_synced),
    ),
    Mutation(
        "count-unchecked", "*prepare* does not look what is held", patched(PartitionState, "holds", _any_count_is_held)
    ),
    Mutation(
        "duplicates-accepted",
        "a repeated batch is taken for a new one",
        patched(partition.state, "check_sequence", _sequences_unchecked),
    ),
    Mutation(
        "open-transaction-not-pinned",
        "the mark lets go of an open transaction's frames",
        patched(PartitionState, "pinned_from", lambda _self, end: end),
    ),
    Mutation(
        "fence-not-written",
        "a transaction of a new epoch begins in a log without its fence",
        patched(PartitionState, "needs_fence", lambda *_: False),
    ),
)
