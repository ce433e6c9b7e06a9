"""Planted bugs in the metadata of several machines: `test_metadata_mutations` sees each of them caught."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio

from fairlog.cluster import metadata_fold
from fairlog.cluster.local_copy import COPY_KEY, LocalCopy, _encode
from fairlog.cluster.metadata_fold import FoldState, Outcome, Proposal, SnapshotSearch
from fairlog.cluster.metadata_log import MetadataLog
from fairlog.cluster.metadata_snapshots import SnapshotWriter
from fairlog.cluster.opening import put
from stream.engine import StreamPosition, Unknown
from tests.simulation.planting import Mutation, patched


def _tells_at_once(self: Proposal, result: StreamPosition | Unknown) -> None:
    if isinstance(result, Unknown):
        self.outcome = Outcome.VOID  # the change is decided anew: it may well be made twice, or be refused for itself


async def _gives_up_soon(self: MetadataLog, proposal: Proposal) -> None:
    with trio.move_on_after(0.1):
        await _REAL_UNTIL_SETTLED(self, proposal)
    if proposal.outcome is None:
        proposal.outcome = Outcome.VOID


_REAL_UNTIL_SETTLED = MetadataLog._until_settled


async def _does_not_decide_again(self: MetadataLog, changes: Any, deadline: float) -> bool:
    while not await _REAL_PROPOSE(self, changes, deadline):
        pass
    return True


_REAL_PROPOSE = MetadataLog._propose


async def _answers_when_appended(self: MetadataLog, proposal: Proposal) -> None:
    """Without reading whether it was accepted."""
    await _REAL_UNTIL_SETTLED(self, proposal)
    proposal.outcome = Outcome.ACCEPTED


def _position_first(self: LocalCopy, changes: Any, state: FoldState) -> None:
    with self._environment.begin(write=True) as transaction:
        put(transaction, {COPY_KEY: _encode(self._stream, state)})
    with self._environment.begin(write=True) as transaction:
        put(transaction, changes)


def _trims_up_to_the_end(self: FoldState) -> StreamPosition | None:
    return None if self.accepted is None else self.accepted.position


def _trims_up_to_the_newest_snapshot_itself(self: FoldState) -> StreamPosition | None:
    """To where it lies, and not to what it is based on."""
    return self.next if self.snapshots else None


async def _takes_the_base_later(self: SnapshotWriter, _state: FoldState, memory: Any) -> StreamPosition | None:
    earlier = SimpleNamespace(raw=dict(memory.raw))
    await trio.sleep(0.5)
    return await _REAL_WRITE(self, self._state, earlier)  # type: ignore[arg-type]


_REAL_WRITE = SnapshotWriter._write


async def _does_not_wait_for_pieces(self: SnapshotWriter, data: bytes) -> StreamPosition | None:
    appended = await _REAL_APPEND(self, data)
    return StreamPosition(0) if appended is None else appended


_REAL_APPEND = SnapshotWriter._append


def _begins_at_any_snapshot(self: SnapshotSearch, start: StreamPosition, stream: str) -> None:
    _REAL_SEARCH(self, start, stream)
    self._start = StreamPosition(0)


_REAL_SEARCH = SnapshotSearch.__init__


def _skips_to_the_accepted_one(state: FoldState, entry: Any) -> bool:
    return entry.base is None or state.accepted is None or entry.base.position <= state.accepted.position


MUTATIONS = (
    Mutation(
        "base-not-compared",
        "a change counts on whatever it was decided",
        patched(metadata_fold, "_counts", _skips_to_the_accepted_one),
    ),
    Mutation(
        "retried-before-it-was-read",
        "an append of unknown outcome is decided anew at once",
        patched(Proposal, "hear_appended", _tells_at_once),
    ),
    Mutation(
        "given-up-is-refused",
        "a proposal that was not read in time counts as void",
        patched(MetadataLog, "_until_settled", _gives_up_soon),
    ),
    Mutation(
        "not-decided-again",
        "a void change is appended again on the new base, as it was decided on the old one",
        patched(MetadataLog, "_propose", _does_not_decide_again),
    ),
    Mutation(
        "answered-without-acceptance",
        "a void change is answered as made",
        patched(MetadataLog, "_until_settled", _answers_when_appended),
    ),
    Mutation(
        "position-apart-from-content",
        "the local copy's position is committed before its content",
        patched(LocalCopy, "_write_in_thread", _position_first),
    ),
    Mutation(
        "trimmed-up-to-the-end",
        "the stream is trimmed up to the last accepted entry, whatever snapshots there are",
        patched(FoldState, "trim_to", property(_trims_up_to_the_end)),
    ),
    Mutation(
        "trimmed-up-to-the-snapshot",
        "the stream is trimmed up to where a snapshot lies, not to its base",
        patched(FoldState, "trim_to", property(_trims_up_to_the_newest_snapshot_itself)),
    ),
    Mutation(
        "snapshot-of-an-earlier-content",
        "a snapshot has a later base than its content",
        patched(SnapshotWriter, "_write", _takes_the_base_later),
    ),
    Mutation(
        "snapshot-without-its-pieces",
        "a snapshot is ended although a piece may be missing",
        patched(SnapshotWriter, "_append", _does_not_wait_for_pieces),
    ),
    Mutation(
        "begins-at-any-snapshot",
        "a node begins at a snapshot, though the stream begins long after its base",
        patched(SnapshotSearch, "__init__", _begins_at_any_snapshot),
    ),
)
