"""A participant's coordinator says what is undecided while it adds a log, and does not speak of that log."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from coordinator.messages import Begin, Undecided
from fairlog_types import LeaderEpoch, ShardNumber
from partition.answers import Appended
from partition.partition import Partition
from tests.shard.runs import A, B, transaction

T0 = transaction(7)
COORDINATOR = ShardNumber(1)


@pytest.mark.parametrize("waits", [False, True])
async def test_log_that_is_added_meanwhile_goes_on_and_is_ended(
    open_run, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Regression: the participant took the transaction for applied, because the other log holds nothing of it.

    Then it took no more batches. When the coordinator died before it had said that it had aborted it, nobody ended it.
    The log may have begun before that was heard, or still wait for room in its journal.
    """
    async with open_run() as run:
        await run.start(A, B)
        run.participant.begins(COORDINATOR, T0)
        there_is_room, real = trio.Event(), Partition.wait_for_room

        async def wait_for_room(partition: Partition, payload_bytes: int) -> bool:
            await there_is_room.wait()
            return await real(partition, payload_bytes)

        monkeypatch.setattr(Partition, "wait_for_room", wait_for_room)
        if not waits:
            there_is_room.set()
        nursery.start_soon(run.participant.begin_for, COORDINATOR, Begin(T0, (B,)))
        await trio.testing.wait_all_tasks_blocked(0.05)
        run.participant.said_all(COORDINATOR, {T0: Undecided({A: LeaderEpoch(1)}, is_closed=False)})
        there_is_room.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert isinstance(await run.write(T0, B, b"v"), Appended)

        run.participant.coordinator_restarted(COORDINATOR)
        run.participant.said_all(COORDINATOR, {})
        assert run[B].state.open_transactions == {}
