"""Committed offsets on real leaders, journals and data logs; the coordinator and the members are doubles.

Fault model: that of `tests/shard/runs.py`. The doubles say what a test has put into them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from uuid import UUID

from coordinator.answers import Description
from coordinator.messages import Expected
from fairlog.cluster.interface import Topic
from fairlog.groups.committed import CommittedOffsets, OffsetsSettings, OffsetsStorage
from fairlog.groups.interface import GroupDescription, GroupRefusal
from fairlog.groups.offset_index import Partition
from fairlog.groups.offset_producers import OffsetProducers, OtherCoordinators
from fairlog.groups.offset_values import CommitRefusal, CommitUnderWay, NewOffset, Sender, TransactionalProducer
from fairlog.groups.states import GroupState
from fairlog_types import LogId, ProducerEpoch, ProducerId, TxId
from shard.offsets import OffsetsLogs
from tests.shard.runs import A, Run

TOPIC = Topic("t", UUID(int=1), 3, {}, 0)
"""Its logs are A, B and C of `tests.shard.runs`."""
OTHER = Topic("u", UUID(int=2), 1, {}, 0)
ALL_LOGS = [LogId.of_offsets(number) for number in range(4)]
HOUR_MS = 3_600_000


@dataclass
class Members:
    """A `Membership`: nobody is a member unless a test says so."""

    refusal: GroupRefusal | None = None
    on_ask: Callable[[], None] | None = None
    consuming: dict[str, frozenset[str] | None] = field(default_factory=dict)
    """Groups with members, and what they consume."""
    empty_since: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def may_commit(
        self, group: str, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
    ) -> GroupRefusal | None:
        self.asked.append((group, member_id, instance_id, generation, transactional))
        return self.refusal

    def is_empty(self, group: str) -> bool:
        if self.on_ask is not None:
            self.on_ask()
        return group not in self.consuming

    def empty_since_ms(self, group: str) -> int | None:
        return self.empty_since.get(group)

    def subscribed(self, group: str) -> frozenset[str] | None:
        return self.consuming.get(group, frozenset())

    def known(self) -> Collection[str]:
        return list(self.consuming)

    def describe(self, group: str) -> GroupDescription | None:
        if group not in self.consuming:
            return None
        return GroupDescription(group, GroupState.STABLE, "consumer", "range", ())


@dataclass
class Ids:
    """What the coordinator knows of transactional ids: each is its producer id in words, in epoch 0 at first."""

    epochs: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    lacking: set[LogId] = field(default_factory=set)
    waiting: dict[LogId, Collection[TxId]] = field(default_factory=dict)
    """By log what is committed, and waits for its place."""

    def describe(self, transactional_id: str) -> Description | None:
        producer_id = int(transactional_id)
        if producer_id in self.gone:
            return None
        epoch = ProducerEpoch(self.epochs.get(producer_id, 0))
        state = self.states.get(producer_id, "OPEN")
        return Description(transactional_id, ProducerId(producer_id), epoch, 1000, state, None, None, (), (), ())

    def producer_id_of(self, transactional_id: str) -> ProducerId | None:
        producer_id = ProducerId(int(transactional_id))
        return None if producer_id in self.gone else producer_id

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        return None if producer_id in self.gone else ProducerEpoch(self.epochs.get(producer_id, 0))

    def lacks_commits(self, log: LogId) -> bool:
        return log in self.lacking

    def not_placed(self, log: LogId) -> Collection[TxId]:
        return self.waiting.get(log, ())


@dataclass
class Topics:
    by_id: dict[UUID, Topic] = field(default_factory=lambda: {topic.topic_id: topic for topic in (TOPIC, OTHER)})

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.by_id.get(topic_id)


def new(offset: int, partition: int = 0, *, topic: Topic = TOPIC, metadata: str = "", epoch: int = -1) -> NewOffset:
    return NewOffset((topic.topic_id.hex, partition), offset, epoch, metadata)


def producer(txid: TxId, connection: int = 1) -> TransactionalProducer:
    return TransactionalProducer(str(txid.producer_id), txid.producer_id, txid.epoch, connection)


Decision = tuple[TxId, Mapping[LogId, Expected]]
"""A transaction, and what PREPARE_COMMIT says of it."""


@dataclass
class Desk:
    """Committed offsets over one run of the leaders."""

    run: Run
    storage: OffsetsStorage
    offsets: CommittedOffsets
    members: Members
    ids: Ids
    topics: Topics
    producers: OffsetProducers

    async def commit(self, group: str, *offsets: NewOffset, sender: Sender = Sender()) -> CommitRefusal | None:  # noqa: B008
        """A whole plain commit, waited for."""
        outcome = await self.offsets.commit(group, sender, offsets)
        if isinstance(outcome, CommitUnderWay):
            assert await self.offsets.settled(outcome)
            return None
        return outcome

    async def begin(self, txid: TxId, *groups: str) -> None:
        """The transaction writes to A, and to the logs of these groups."""
        await self.run.begin(txid, A, *{self.offsets.log_of(group) for group in groups})

    async def commit_in(
        self,
        txid: TxId,
        group: str,
        *offsets: NewOffset,
        connection: int = 1,
        sender: Sender = Sender(),  # noqa: B008
    ) -> CommitRefusal | None:
        return await self.offsets.commit_in_transaction(group, sender, producer(txid, connection), offsets)

    async def end(self, txid: TxId, *groups: str, commit: bool = True) -> None:
        """Commit and wait until all is visible, or abort."""
        logs = (A, *{self.offsets.log_of(group) for group in groups})
        if not commit:
            self.run.discard(txid, *logs)
            return
        await self.run.prepare(txid, *logs)
        self.run.place(txid, *logs)
        await self.run.applied(txid)

    async def fetched(
        self, group: str, partitions: Collection[Partition] | None = None, *, stable: bool = False
    ) -> Mapping[Partition, int | str | None] | None:
        """By (topic's id, partition): the offset, None, or "pending"; of all partitions by default."""
        asked = None if partitions is None else list(partitions)
        answer = await self.offsets.fetch(group, asked, require_stable=stable)
        if answer is None:
            return None
        return {
            partition: "pending" if it.pending else None if it.value is None else it.value.offset
            for partition, it in answer.items()
        }

    async def of_t(self, group: str = "g", *, stable: bool = False) -> int | str | None:
        """The group's offset in the first partition of `t`."""
        first = new(0).partition
        answer = await self.fetched(group, [first], stable=stable)
        assert answer is not None
        return answer[first]


@asynccontextmanager
async def open_desk_over(
    run: Run,
    *,
    prepared: Decision | None = None,
    refused: Decision | None = None,
    own_logs: Sequence[LogId] = ALL_LOGS,
    others: OtherCoordinators | None = None,
    **settings: int,
) -> AsyncGenerator[Desk, None]:
    """`prepared` and `refused` are what the coordinator says again of the last run, and how it turns out.

    `own_logs` are those that are led here, if there are `others`; `settings` those that are not as usual.
    """
    members, ids, topics = Members(), Ids(), Topics()
    producers = OffsetProducers(ids, others, now_ms=run.clock)
    storage = OffsetsStorage(len(ALL_LOGS), own_logs, OffsetsLogs(run.partitions, ids), run.data_logs)
    offsets = CommittedOffsets(
        storage,
        run.offset_index,
        members,
        producers,
        topics,
        replace(OffsetsSettings(commit_bytes_max=65_536, retention_ms=HOUR_MS, check_interval_ms=10), **settings),
        now_ms=run.clock,
    )
    await run.lead((A, *offsets.logs()))
    for txid, expected in filter(None, (prepared, refused)):
        answer = await run.prepare_again(expected, txid)
        assert bool(answer.refused) == (refused is not None), answer
        if refused is None:
            run.place(txid, *expected)
        else:
            run.discard(txid, *expected)
    await run.serve()
    await offsets.load()
    yield Desk(run, storage, offsets, members, ids, topics, producers)
