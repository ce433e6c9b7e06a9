"""What is written to offsets logs: lists of offset entries, plain or in the producer's open transaction.

To a shard an offsets log is a log like any other. Here it is said what its records are: a plain commit is
decided at once and counts as one record of the log; one in a transaction is a batch of that transaction, without a
sequence, and counts as one in `seal` and `prepare`. Repeated, it is appended again: the last of two entries
for one partition counts.

Not here: who may commit (`unless` asks), what is read (`fairlog.groups.committed`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import trio

from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    LogId,
    Offset,
    ProducerEpoch,
    ProducerId,
    StorageFailure,
    TxId,
)
from partition import produce
from partition.answers import RefusedAppend
from partition.producer_window import NO_SEQUENCE, BatchRefusal, Refused
from partition.records import LocalRecord, PlainBatch, TransactionalBatch
from partition.state import PartitionState
from shard.ends import Coordinates
from shard.partitions import Partitions

R = TypeVar("R")


class OffsetsLogs:
    """The offsets logs of a shard. Implements `fairlog.groups.committed.OffsetsLogs`."""

    def __init__(self, partitions: Partitions, coordinator: Coordinates) -> None:
        self._partitions = partitions
        self._coordinator = coordinator

    async def append_offsets(
        self, log: LogId, payload: bytes, *, unless: Callable[[], R | None]
    ) -> Offset | RefusedAppend | R:
        """Write a list of offset entries to an offsets log, as one record; its flush is under way then.

        Answers how far the log has to be visible for it to be seen. `unless` is asked in the very step of the
        append, after all waiting: what it answers instead of None is the answer, and nothing is written.
        Cancelled: it was written or not.
        """
        outcome: Offset | R | None = None

        def decide(state: PartitionState) -> LocalRecord | None:
            nonlocal outcome
            outcome = unless()
            if outcome is not None:
                return None
            outcome = Offset(state.next_offset + 1)
            return PlainBatch(
                state.next_offset,
                1,
                self._partitions.now_ms(),
                NO_PRODUCER_ID,
                NO_PRODUCER_EPOCH,
                first_sequence=NO_SEQUENCE,
            )

        refused = await self._append(log, payload, decide)
        if refused is not None:
            return refused
        assert outcome is not None, "decided is either way"
        return outcome

    async def append_offsets_in_transaction(
        self,
        log: LogId,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        payload: bytes,
        *,
        unless: Callable[[], R | None],
    ) -> TxId | RefusedAppend | R:
        """The same inside the producer's open transaction, to which `log` was added: visible when that is committed.

        Answers the transaction, which is the one that is open now: if it has ended behind a wait, nothing is written.
        """
        came_in = self._open_transaction(producer_id, epoch)
        outcome: TxId | RefusedAppend | R | None = None

        def decide(state: PartitionState) -> LocalRecord | None:
            nonlocal outcome
            outcome = unless()
            if outcome is not None:
                return None
            txid = outcome = self._open_transaction(producer_id, epoch)
            if isinstance(txid, RefusedAppend):
                return None
            if txid != came_in:
                outcome = RefusedAppend.NOT_IN_TRANSACTION
                return None
            check = state.check_transactional(txid, NO_SEQUENCE, 1)
            if isinstance(check, Refused):
                fenced = check.reason is BatchRefusal.FENCED
                outcome = RefusedAppend.FENCED if fenced else RefusedAppend.NOT_IN_TRANSACTION
                return None
            return TransactionalBatch(txid, 1, self._partitions.now_ms(), first_sequence=NO_SEQUENCE)

        refused = await self._append(log, payload, decide)
        if refused is not None:
            return refused
        assert outcome is not None, "decided is either way"
        if isinstance(outcome, TxId) and not await self._accepted(log):
            return RefusedAppend.STORAGE
        return outcome

    async def _accepted(self, log: LogId) -> bool:
        """Whether the next owner has it as well: the transaction goes on there, and would be committed without it."""
        partition = self._partitions.get(log)
        try:
            if partition is not None:
                await partition.accepted()
        except StorageFailure:
            return False
        return True

    async def _append(
        self, log: LogId, payload: bytes, decide: Callable[[PartitionState], LocalRecord | None]
    ) -> RefusedAppend | None:
        partition = self._partitions.get(log)
        return RefusedAppend.UNKNOWN_LOG if partition is None else await partition.append_record(payload, decide)

    def _open_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> TxId | RefusedAppend:
        return produce.open_transaction(self._partitions.open_transaction_of(producer_id), epoch)

    async def pending(self, log: LogId) -> Mapping[TxId, Sequence[bytes]]:
        """The lists of offset entries that open transactions hold in `log`, in order, as they were appended.

        For the start, before anything is served; `log` is led here. Raises CorruptStorage, StorageFailure.
        """
        partition = self._partitions.get(log)
        assert partition is not None, log
        return await trio.to_thread.run_sync(partition.read_open)

    async def decided(self, log: LogId, txids: Collection[TxId]) -> bool:
        """Return once each of these that is, or may be, committed has been placed. False: the disk has failed.

        What is only open is not waited for.
        """
        partition = self._partitions.get(log)
        if partition is None:
            await trio.lowlevel.checkpoint()
            return True
        if self._coordinator.lacks_commits(log):
            return False
        not_placed = {*partition.in_doubt, *self._coordinator.not_placed(log)}
        return await partition.decided(not_placed.intersection(txids))

    async def visible(self, log: LogId, offset: Offset) -> None:
        """Return once the log is visible up to `offset`. Raises StorageFailure if it never will be."""
        partition = self._partitions.get(log)
        if partition is not None:
            await partition.visibility.reach(offset)
