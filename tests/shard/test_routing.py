"""What a coordinator's participants are asked over several shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import trio
import trio.testing

from coordinator.messages import Begin, Begun
from fairlog_types import LeaderEpoch, LogId, ShardNumber
from shard.holding import Commits
from shard.links import Asked
from shard.routing import RoutedParticipants
from tests.shard.runs import transaction

TOPIC = UUID(int=7)
FAST, SLOW = ShardNumber(1), ShardNumber(2)
LOGS = {shard: LogId.of_topic(TOPIC, shard) for shard in (FAST, SLOW)}
T = transaction(7)


class Said:
    """In place of `Links`: what was asked of which shard, in which epoch the shards are, and answers by hand."""

    def __init__(self) -> None:
        self.epochs = {FAST: 4, SLOW: 1}
        self.asked: list[tuple[ShardNumber, Begin, Asked]] = []

    def epoch_of(self, shard: ShardNumber) -> int | None:
        return self.epochs[shard]

    def ask(self, shard: ShardNumber, body: Begin) -> Asked:
        asked = Asked()
        self.asked.append((shard, body, asked))
        return asked

    def answer(self, shard: ShardNumber) -> None:
        """As the present owner of that shard, which has begun all logs."""
        for asked_shard, body, asked in self.asked:
            if asked_shard == shard and not asked.is_answered:
                asked.set(Begun(dict.fromkeys(body.logs, LeaderEpoch(self.epochs[shard])), {}), self.epochs[shard])


async def test_shard_whose_owner_changes_while_another_is_awaited_begins_again(nursery: trio.Nursery) -> None:
    """Its new owner knows nothing of what the last one has begun, and nobody has told it: nothing was written down."""
    said: Any = Said()
    shard_of = {log: shard for shard, log in LOGS.items()}
    routed = RoutedParticipants(said, said, shard_of.get, Commits())
    begun: list[Begun] = []

    async def begin() -> None:
        begun.append(await routed.begin(Begin(T, tuple(LOGS.values()))))

    nursery.start_soon(begin)
    await trio.testing.wait_all_tasks_blocked()
    said.answer(FAST)
    await trio.testing.wait_all_tasks_blocked()
    said.epochs[FAST] = 5
    said.answer(SLOW)
    await trio.testing.wait_all_tasks_blocked()
    assert begun == []
    assert [(shard, body.logs) for shard, body, _ in said.asked[2:]] == [(FAST, (LOGS[FAST],))]
    said.answer(FAST)
    await trio.testing.wait_all_tasks_blocked()
    assert [each.leader_epochs for each in begun] == [{LOGS[FAST]: LeaderEpoch(5), LOGS[SLOW]: LeaderEpoch(1)}]


class Own:
    """In place of the own shard's part: who waits there."""

    awaited = False

    def are_awaited(self, logs: Iterable[LogId]) -> bool:
        return self.awaited and bool(list(logs))


def test_logs_of_other_shards_are_awaited_and_the_own_ones_if_a_reader_waits() -> None:
    """A commit over shards is placed before it is answered: the other shard's requests ask nothing of this one."""
    own: Any = Own()
    said: Any = Said()
    routed = RoutedParticipants(own, said, lambda log: None if log.partition == 0 else FAST, Commits())
    here, there = LogId.of_topic(TOPIC, 0), LogId.of_topic(TOPIC, 1)
    assert [routed.are_awaited(logs) for logs in ((), (here,), (there,), (here, there))] == [False, False, True, True]
    own.awaited = True
    assert [routed.are_awaited(logs) for logs in ((), (here,))] == [False, True]
