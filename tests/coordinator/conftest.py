"""A coordinator between doubles: group journals and participants in memory, with scripted trouble.

Fault model of the doubles. A flush takes `flush_s` and may fail, after which the journal is closed;
without `waits_for_disk` nobody waits for one but who asks for `sync`. A
process that is killed keeps everything that was appended; a machine that loses power keeps what was flushed.
Participants may refuse or fail to prepare, fail to place or to discard, take `prepare_s` and `apply_s`, and
copy nothing while `copying` is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import trio

from coordinator.group_records import GroupRecord, PrepareCommitRecord, SinkPrepareCommitRecord
from coordinator.id_table import IdTable
from coordinator.messages import (
    Applied,
    ApplyCommit,
    Begin,
    Begun,
    DiscardTransaction,
    Expected,
    Prepare,
    Prepared,
    Resume,
    Resumed,
)
from coordinator.service import Coordinator
from coordinator.settings import CoordinatorSettings
from fairlog_types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    JournalPosition,
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    StorageFailure,
    TxId,
)
from journal.journal import NoFiles
from tests.journals_on_files import disk, flusher, open_journal

__all__ = ["disk", "flusher", "open_journal"]

LEADER_EPOCH = LeaderEpoch(3)
DECISIONS_RESERVE = 3
"""Records that a group journal takes without asking, beyond the room that it tells of."""


class MemoryGroupJournal:
    """A `GroupJournal` whose positions count records."""

    def __init__(self) -> None:
        self.records: list[GroupRecord] = []
        self.durable = 0
        self.failed: StorageFailure | None = None
        self.may_have_another_owner = False
        self.flush_s = 0.0
        self.flush_fails = False
        self.waits_for_disk = True
        self.flushes = 0
        self.room = 1_000_000
        self.disk_is_full = False
        self.files_are_out = False
        self.snapshots = 0
        self.snapshot_commit_number = 0
        self.bytes_since_snapshot = 0
        self._flushes: list[tuple[int, float]] = []

    @property
    def next_commit_number(self) -> int:
        commits = (it for it in self.records if isinstance(it, PrepareCommitRecord | SinkPrepareCommitRecord))
        return max((self.snapshot_commit_number, *(it.commit_number for it in commits))) + 1

    def replay(self) -> Iterator[GroupRecord]:
        yield from list(self.records)

    def has_room(self, record: GroupRecord) -> bool:
        return self.room > 0

    async def make_room(self, record: GroupRecord) -> None:
        await trio.lowlevel.checkpoint()
        if self.disk_is_full:
            raise StorageFailure("disk full")
        if self.files_are_out:
            raise NoFiles("too many open files")
        self.room = 10

    def append(self, record: GroupRecord) -> JournalPosition:
        if self.failed is not None:
            raise self.failed
        assert self.room > -DECISIONS_RESERVE
        self.room -= 1
        self.records.append(record)
        self.bytes_since_snapshot += 100
        return JournalPosition(len(self.records))

    def start_flush(self) -> None:
        self.flushes += 1
        self._flushes.append((len(self.records), trio.current_time() + self.flush_s))

    async def flush(self, through: JournalPosition) -> None:
        if self.waits_for_disk:
            await self.to_disk(through)

    async def to_disk(self, through: JournalPosition) -> None:
        if self.durable >= through and self.failed is None:
            await trio.lowlevel.checkpoint()
            return
        if not any(end >= through for end, _ in self._flushes):
            self.start_flush()
        end, done_s = next(it for it in self._flushes if it[0] >= through)
        await trio.sleep(max(0.0, done_s - trio.current_time()))
        if self.flush_fails:
            self.failed = StorageFailure("fdatasync failed")
        if self.failed is not None:
            raise self.failed
        self.durable = max(self.durable, end)

    async def snapshot(self, state: Callable[[], Iterable[GroupRecord]]) -> None:
        await trio.lowlevel.checkpoint()
        self.snapshot_commit_number = self.next_commit_number - 1
        self.records = list(state())
        await trio.lowlevel.checkpoint()
        self.durable = len(self.records)
        self._flushes = []
        self.snapshots += 1
        self.bytes_since_snapshot = 0

    def reopened(self, *, power_lost: bool) -> MemoryGroupJournal:
        """The journal as a restart finds it."""
        after = MemoryGroupJournal()
        after.snapshot_commit_number = self.snapshot_commit_number
        after.records = self.records[: self.durable] if power_lost else list(self.records)
        after.durable = min(self.durable, len(after.records))
        after.waits_for_disk = self.waits_for_disk
        return after


@dataclass
class MemoryPreparation:
    """A `Preparation`: what is refused shows at its end."""

    participants: MemoryParticipants
    messages: Sequence[Prepare]
    expected: Mapping[TxId, Mapping[LogId, Expected]]

    async def outcome(self) -> Prepared:
        participants = self.participants
        await trio.sleep(participants.prepare_s)
        if participants.prepare_fails:
            raise StorageFailure("a local journal failed")
        refused: dict[LogId, str] = {}
        for message in self.messages:
            refused |= participants.refused(message, message.expected or self.expected[message.txid])
        return Prepared(refused)


@dataclass
class MemoryApplication:
    """An `Application`."""

    participants: MemoryParticipants
    placements: Sequence[tuple[Placement, ...]]

    async def visible(self) -> Sequence[Applied]:
        participants = self.participants
        if participants.copying is not None:
            await participants.copying.wait()
        await trio.sleep(participants.apply_s)
        if participants.apply_fails:
            raise StorageFailure("the data log is full")
        return [
            Applied(tuple(place for place in places if place.log in participants.logs)) for places in self.placements
        ]


@dataclass
class MemoryParticipants:
    """Leaders of `logs`, all on one node; every method is a `Participants`'."""

    logs: set[LogId]
    held: dict[TxId, dict[LogId, int]] = field(default_factory=dict)
    """Records of each open transaction."""
    sealed: set[TxId] = field(default_factory=set)
    placings: list[TxId] = field(default_factory=list)
    together: list[tuple[TxId, ...]] = field(default_factory=list)
    """What each `apply` was given."""
    discarded: list[TxId] = field(default_factory=list)
    prepared: list[Prepare] = field(default_factory=list)
    """With the counts, whoever told them."""
    prepared_together: list[int] = field(default_factory=list)
    """How many transactions each time."""
    refusing: dict[LogId, str] = field(default_factory=dict)
    prepare_fails: bool = False
    place_fails: bool = False
    discard_fails: bool = False
    apply_fails: bool = False
    prepare_s: float = 0.0
    begin_s: float = 0.0
    apply_s: float = 0.0
    awaited: set[LogId] = field(default_factory=set)
    """Others wait for what is placed in these."""
    copying: trio.Event | None = None
    """If set to an event: nothing becomes visible before it is set."""

    async def begin(self, message: Begin) -> Begun:
        await trio.sleep(self.begin_s)
        known = [log for log in message.logs if log in self.logs]
        for log in known:
            self.held.setdefault(message.txid, {}).setdefault(log, 0)
        refused = {log: "no such log" for log in message.logs if log not in self.logs}
        return Begun(dict.fromkeys(known, LEADER_EPOCH), refused)

    async def resume(self, message: Resume) -> Resumed:
        await trio.lowlevel.checkpoint()
        self.sealed.discard(message.txid)  # a restart has forgotten that
        held = self.held.get(message.txid, {})
        named = [log for log in message.logs if log in self.logs]
        unnamed = [log for log in held if held[log] and log not in named]
        lost = {log: "no epoch is known" for log in named if log not in held}
        return Resumed({log: LEADER_EPOCH for log in (*named, *unnamed) if log not in lost}, lost)

    def produce(self, txid: TxId, log: LogId, records: int) -> bool:
        """What a Produce does; False if the transaction is not open there."""
        if txid in self.sealed or log not in self.held.get(txid, {}):
            return False
        self.held[txid][log] += records
        return True

    async def admit(self) -> None:
        pass

    def prepare(self, messages: Sequence[Prepare]) -> MemoryPreparation:
        expected: dict[TxId, dict[LogId, Expected]] = {}
        for message in messages:
            self.sealed.add(message.txid)
            held = self.held.get(message.txid, {})
            found = {log: Expected(LEADER_EPOCH, held.get(log, 0)) for log in message.logs if log in self.logs}
            expected[message.txid] = found
            self.prepared.append(replace(message, expected=found if message.expected is None else message.expected))
        self.prepared_together.append(len(messages))
        return MemoryPreparation(self, messages, expected)

    def refused(self, message: Prepare, counts: Mapping[LogId, Expected]) -> dict[LogId, str]:
        if message.txid in self.placings:
            return {}
        held = self.held.get(message.txid, {})
        lost = {
            log: f"holds {held.get(log, 0)} of {expected.records} records"
            for log, expected in counts.items()
            if log in self.logs and held.get(log, 0) != expected.records
        }
        return lost | {log: why for log, why in self.refusing.items() if log in counts}

    def are_awaited(self, logs: Iterable[LogId]) -> bool:
        return not self.awaited.isdisjoint(logs)

    def apply(self, messages: Sequence[ApplyCommit]) -> MemoryApplication:
        if messages:
            self.together.append(tuple(message.txid for message in messages))
        if self.place_fails:
            raise StorageFailure("a local journal is closed")
        for message in messages:
            if message.txid not in self.placings:
                self.placings.append(message.txid)
        return MemoryApplication(self, [self._placed(message) for message in messages])

    def _placed(self, message: ApplyCommit) -> tuple[Placement, ...]:
        held = self.held.get(message.txid, {})
        counts = {log: held.get(log, 0) for log in message.logs if log in self.logs}
        return tuple(Placement(log, self._offset(log, message.txid), count) for log, count in counts.items() if count)

    def _offset(self, log: LogId, txid: TxId) -> Offset:
        """Behind all that was placed in the log before."""
        before = self.placings[: self.placings.index(txid)]
        return Offset(sum(self.held.get(it, {}).get(log, 0) for it in before))

    def discard(self, message: DiscardTransaction) -> None:
        if self.discard_fails:
            raise StorageFailure("a local journal is closed")
        self.discarded.append(message.txid)
        held = self.held.get(message.txid, {})
        for log in message.logs:
            held.pop(log, None)


class CountingIds:
    """Blocks of producer ids from 1000 on."""

    def __init__(self) -> None:
        self.next = 1000
        self.fetches = 0
        self.fails = False

    async def allot_producer_ids(self, count: int) -> range:
        await trio.lowlevel.checkpoint()
        if self.fails:
            raise StorageFailure("the cluster store is closed")
        self.fetches += 1
        self.next += count
        return range(self.next - count, self.next)


class World:
    """A coordinator, its doubles and shorthand for requests; `t` is the transactional id unless told."""

    def __init__(self, journals: list[MemoryGroupJournal], participants: MemoryParticipants, ids: CountingIds) -> None:
        self.journals = journals
        self.participants = participants
        self.ids = ids
        self.settings = CoordinatorSettings()
        self.clock_step_ms = 0
        """What somebody has set the wall clock forward or back by."""
        self.life = trio.CancelScope()
        self.start()

    def start(self) -> None:
        self.coordinator = Coordinator(
            table=IdTable(len(self.journals), self.settings.group_separator),
            journals=self.journals,  # type: ignore[arg-type]
            participants=self.participants,
            producer_ids=self.ids,
            settings=self.settings,
            now_ms=lambda: int(trio.current_time() * 1000) + self.clock_step_ms,
        )

    @property
    def journal(self) -> MemoryGroupJournal:
        (journal,) = self.journals
        return journal

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The coordinator's background work, until it crashes."""
        with self.life:
            await self.coordinator.run(task_status)

    def restarted(self, *, power_lost: bool = False) -> World:
        """The world after a crash; recovery has not run yet. What crashed does nothing more."""
        self.life.cancel()
        return self.imaged(power_lost=power_lost)

    def imaged(self, *, power_lost: bool = False) -> World:
        """The world as a crash in this moment would leave it; this one goes on."""
        # A copy: a request that was in flight may still come back to its coordinator, but it changes nothing any more.
        participants = replace(
            self.participants,
            held={txid: dict(records) for txid, records in self.participants.held.items()},
            sealed=set(self.participants.sealed),
            placings=list(self.participants.placings),
            together=list(self.participants.together),
            discarded=list(self.participants.discarded),
            prepared=list(self.participants.prepared),
            prepared_together=list(self.participants.prepared_together),
        )
        after = World([it.reopened(power_lost=power_lost) for it in self.journals], participants, self.ids)
        after.participants.copying = None
        return after

    async def init(self, connection: int = 1, timeout_ms: int = 60_000, name: str = "t", known=None):
        producer_id, epoch = known or (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        return await self.coordinator.init_producer_id(name, timeout_ms, producer_id, epoch, connection)

    async def add(self, granted, *logs: LogId, connection: int = 1, name: str = "t"):
        return await self.coordinator.add_logs(name, granted.producer_id, granted.epoch, logs, connection)

    async def end(self, granted, commit: bool = True, connection: int = 1, name: str = "t"):
        return await self.coordinator.end(name, granted.producer_id, granted.epoch, commit, connection)

    def produce(self, log: LogId, records: int = 1, name: str = "t") -> bool:
        description = self.coordinator.describe(name)
        assert description is not None
        return description.txid is not None and self.participants.produce(description.txid, log, records)

    async def transaction(self, granted, log: LogId, commit: bool = True, connection: int = 1, name: str = "t"):
        """Add, produce one record, end."""
        answer = await self.add(granted, log, connection=connection, name=name)
        assert answer == {log: None}
        assert self.produce(log, name=name)
        return await self.end(granted, commit, connection=connection, name=name)


@pytest.fixture
def logs() -> list[LogId]:
    return [LogId("t", "ab" * 16, partition) for partition in range(4)]


@pytest.fixture
def world(logs) -> World:
    """One group journal; `recover` and `run` are up to the test."""
    return World([MemoryGroupJournal()], MemoryParticipants(set(logs)), CountingIds())


@pytest.fixture
async def running(world, nursery) -> World:
    """A world that serves."""
    await world.coordinator.recover(tail_kept=True)
    await nursery.start(world.run)
    return world
