"""Planted bugs in the leaders, and in how they take part in transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import trio

import shard.participant
from coordinator.messages import Applied
from fairlog_types import JournalPosition, LeaderEpoch, TxId
from partition import produce
from partition.answers import Appended
from partition.state import PartitionState
from shard.participant import LocalApplication, LocalPreparation, Participant
from shard.partitions import Partitions
from tests.simulation.planting import Mutation, does_not_wait, patched


async def _visible_at_once(self: LocalApplication) -> list[Applied]:
    await trio.lowlevel.checkpoint()
    return [Applied(places) for places in self._placements]


def _starts_no_flush(self: LocalPreparation) -> None:
    self._flushing.clear()


def _starts_all_flushes_but_one(self: LocalPreparation) -> None:
    if self._flushing:
        del self._flushing[next(iter(self._flushing))]
    _REAL_START(self)


_REAL_START = LocalPreparation.start


def _kept_at_once(record: Any, **_: object) -> Appended:
    return _REAL_APPENDED(record, through=JournalPosition(0))


_REAL_APPENDED = produce.appended


def _any_epoch_may_write(opened: TxId | None, epoch: Any) -> Any:
    return opened or _REAL_OPEN_TRANSACTION(opened, epoch)


_REAL_OPEN_TRANSACTION = produce.open_transaction


def _submits_one_by_one(self: Participant, messages: Any, application: LocalApplication) -> None:
    real = self._partitions.place

    def place(group: Any, **more: Any) -> None:
        for item in group:
            real((item,), **more)

    with mock.patch.object(self._partitions, "place", place):
        _REAL_PLACE(self, messages, application)


def _places_lane_by_lane(self: Participant, messages: Any, application: LocalApplication) -> None:
    for message in messages:
        _REAL_PLACE(self, (message,), application)


def _places_in_all_logs_but_one(self: Participant, messages: Any, application: LocalApplication) -> None:
    _REAL_PLACE(self, [replace(message, logs=message.logs[:-1]) for message in messages], application)


def _places_all_lanes_but_one(self: Participant, messages: Any, application: LocalApplication) -> None:
    placed = max(1, len(messages) - 1)
    _REAL_PLACE(self, messages[:placed], application)
    for message in messages[placed:]:
        application.note(message.txid, message.logs)


_REAL_PLACE = Participant._place


def _resume_without_its_batches(self: PartitionState, txid: TxId) -> LeaderEpoch | str:
    transaction = self.open_transactions.get(txid)
    if transaction is not None:
        transaction.batches.clear()
        transaction.records = 0
    return _REAL_RESUME(self, txid)


@contextmanager
def _first_log_is_forgotten() -> Iterator[None]:
    async def resume(self: Participant, message: Any) -> Any:
        leader = self._partitions.get(next(iter(message.logs)))
        if leader is not None:
            with mock.patch.object(PartitionState, "resume", _resume_without_its_batches):
                leader.state.resume(message.txid)
        return await _REAL_RESUME_ALL(self, message)

    with mock.patch.object(Participant, "resume", resume):
        yield


def _resume_with_half_its_batches(self: PartitionState, txid: TxId) -> LeaderEpoch | str:
    transaction = self.open_transactions.get(txid)
    if transaction is not None and transaction.batches:
        del transaction.batches[(len(transaction.batches) + 1) // 2 :]
        transaction.records = sum(batch.record_count for batch in transaction.batches)
    return _REAL_RESUME(self, txid)


_REAL_RESUME = PartitionState.resume
_REAL_RESUME_ALL = Participant.resume


def _as_said(said: Sequence[Any]) -> list[int]:
    return list(range(len(said)))


MUTATIONS = (
    Mutation(
        "placed-again-as-said",
        "a restart places in the order in which it is said, whatever survived",
        patched(shard.participant, "place_order", _as_said),
    ),
    Mutation(
        "skip-flush-of-one-participant",
        "*prepare* answers without flushing one of its journals",
        patched(LocalPreparation, "start", _starts_all_flushes_but_one),
    ),
    Mutation(
        "leave-one-log-undecided",
        "a commit is placed in all logs but the last",
        patched(Participant, "_place", _places_in_all_logs_but_one),
    ),
    Mutation(
        "prepare-without-flush",
        "*prepare* flushes nothing",
        patched(LocalPreparation, "start", _starts_no_flush),
    ),
    Mutation(
        "committed-before-copy",
        "COMMITTED is written before the copy",
        patched(LocalApplication, "visible", _visible_at_once),
    ),
    Mutation(
        "plain-answered-before-its-flush",
        "a batch that has its offset is answered before it is on disk",
        patched(produce, "appended", _kept_at_once),
    ),
    Mutation(
        "zombie-writes",
        "a batch of an older epoch goes into the newer one's transaction",
        patched(produce, "open_transaction", _any_epoch_may_write),
    ),
    Mutation(
        "parts-apart",
        "the parts of a transaction go to the copier one by one",
        patched(Participant, "_place", _submits_one_by_one),
    ),
    Mutation(
        "lanes-apart",
        "the lanes of a batch are placed one by one",
        patched(Participant, "_place", _places_lane_by_lane),
    ),
    Mutation(
        "one-lane-not-placed",
        "a batch is placed without its last lane",
        patched(Participant, "_place", _places_all_lanes_but_one),
    ),
    Mutation(
        "batch-forgotten-at-the-start",
        "a start forgets what a transaction that goes on has written to the first of its logs",
        _first_log_is_forgotten,
    ),
    Mutation(
        "count-of-half-a-journal",
        "what a transaction that goes on holds is counted over the first half of its batches",
        patched(PartitionState, "resume", _resume_with_half_its_batches),
    ),
    Mutation(
        "recovery-not-copied",
        "a start serves before what it has found is copied",
        patched(Partitions, "drain", does_not_wait),
    ),
)
