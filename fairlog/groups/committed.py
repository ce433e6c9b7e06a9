"""Committed offsets: what consumer groups commit, plain or inside transactions, and read back.

    OffsetCommit ─────▶ commit ────────────────┐                             ┌──▶ fetch
    TxnOffsetCommit ──▶ commit_in_transaction ─┼─▶ offsets log's journal ─▶ copier ─▶ table in the data logs
    DeleteGroups, … ──▶ delete, run (expiry) ──┘

An offsets log is a log like a partition's: led by a shard, journaled, copied. A group's offsets are all in one
of them (`log_of`). So a plain commit is durable when it is seen; one in a transaction becomes visible in the same
LMDB transaction as the transaction's records (invariant 7), is refused with its epoch (invariant 9), and vanishes
with an abort. There is no table in memory but the index (`offset_index`): reads go to LMDB, in worker threads.

*Checks and the step of the append.* Whether a member may commit is asked in the step in which the frame is appended,
after all waiting, so that nothing of a member slips in behind the rebalance that took its partitions away.

*Many commits at once*, of several connections, share flushes (the flusher) and LMDB commits (the copier's chunks):
`commit` returns when the frame is appended, `settled` waits.

*Stable offsets.* `fetch` first waits for what is decided (a copy under way, milliseconds), so a commit that was
answered is always seen. Partitions with offsets in an *open* transaction are `pending`, for who asks; the
transaction's own time-out ends that. Which are pending and what is decided is looked at in one step, before the
read: what comes later is concurrent to the request.

Not here: Kafka's messages, which topics exist (handlers ask), who is a member (`interface.Membership`), which producer
may write in a transaction (`offset_producers`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

import structlog
import trio
from crc32c import crc32c

from coordinator.answers import Refusal
from datalog.interface import DataLogs
from datalog.offset_entries import (
    CommittedOffset,
    MalformedEntries,
    OffsetEntry,
    OffsetKey,
    decode_offset_entries,
    encode_offset_entries,
)
from fairlog.cluster.interface import Topic
from fairlog.groups.interface import GroupRefusal, Membership, is_group_id
from fairlog.groups.offset_expiry import GroupUse, is_expired
from fairlog.groups.offset_index import OffsetIndex, Partition
from fairlog.groups.offset_producers import OffsetProducers
from fairlog.groups.offset_values import (
    CommitRefusal,
    CommitUnderWay,
    FetchedOffset,
    NewOffset,
    OffsetRefusal,
    Sender,
    TransactionalProducer,
)
from fairlog_types import CorruptStorage, LogId, Offset, ProducerEpoch, ProducerId, StorageFailure, TxId
from partition.answers import RefusedAppend

logger = structlog.get_logger("fairlog.offsets")

PATIENCE_S = 5.0
"""So long a commit waits for room, and a fetch for the copy: Kafka's offsets.commit.timeout.ms."""

DELETED_AT_ONCE = 1000
"""Keys deleted by one record: small enough to be encoded between two requests."""

SWEEP_PAUSE_S = 1.0
"""Between two looks at all groups, however often topics are deleted."""

DELETE_TRIES = 20
"""How often `delete` begins anew because the group has committed meanwhile. Each try takes a copy's time."""

R = TypeVar("R")


class OffsetsLogs(Protocol):
    """What is needed of the offsets logs; `shard.offsets.OffsetsLogs` has it."""

    async def append_offsets(
        self, log: LogId, payload: bytes, *, unless: Callable[[], R | None]
    ) -> Offset | RefusedAppend | R: ...

    async def append_offsets_in_transaction(
        self,
        log: LogId,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        payload: bytes,
        *,
        unless: Callable[[], R | None],
    ) -> TxId | RefusedAppend | R: ...

    async def pending(self, log: LogId) -> Mapping[TxId, Sequence[bytes]]: ...

    async def visible(self, log: LogId, offset: Offset) -> None: ...

    async def decided(self, log: LogId, txids: Collection[TxId]) -> bool: ...


class TopicIds(Protocol):
    """What is needed of the cluster store."""

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...


@dataclass(frozen=True, slots=True)
class OffsetsStorage:
    """Where a shard's offsets are written, and read back."""

    log_count: int
    """Offsets logs of all shards together."""
    own_logs: Sequence[LogId]
    """Those that are led here."""
    logs: OffsetsLogs
    data_logs: DataLogs


@dataclass(frozen=True, slots=True)
class OffsetsSettings:
    """How much may be committed, and for how long it is kept."""

    commit_bytes_max: int
    """Of one commit, as it is journaled."""
    retention_ms: int
    check_interval_ms: int
    """Between two looks for offsets that have had their time."""


class _Stale(Enum):
    CHANGED = auto()
    """The group has committed since its offsets were read."""


def offsets_log_of(group: str, log_count: int) -> LogId:
    """The offsets log, of `log_count`, that holds all offsets of `group`, and who is in it."""
    return LogId.of_offsets(crc32c(group.encode()) % log_count)


class CommittedOffsets:
    """The committed offsets of a shard's groups. `load` comes first, then `run` beside all else."""

    def __init__(
        self,
        storage: OffsetsStorage,
        index: OffsetIndex,
        membership: Membership,
        producers: OffsetProducers,
        topics: TopicIds,
        settings: OffsetsSettings,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        """`index` is told of the transactions that are decided (`OffsetIndex.decided`), and by `membership` which
        groups it does not remember any more (`OffsetIndex.members_left`).
        """
        self._storage = storage
        self._logs = storage.logs
        self._data_logs = storage.data_logs
        self._index = index
        self._membership = membership
        self._producers = producers
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms
        self._started_ms = now_ms()
        self._topic_is_gone = trio.Event()

    def log_of(self, group: str) -> LogId:
        """The offsets log that holds all offsets of `group`."""
        return offsets_log_of(group, self._storage.log_count)

    def logs(self) -> Sequence[LogId]:
        """The offsets logs that are led here."""
        return self._storage.own_logs

    async def load(self) -> None:
        """Learn which groups have offsets, once all that was decided before the start is copied, and what is pending.

        Raises StorageFailure, CorruptStorage.
        """
        for log in self.logs():
            self._index.load(await trio.to_thread.run_sync(self._data_logs.offset_groups, log))
            for txid, payloads in (await self._logs.pending(log)).items():
                for payload in payloads:
                    self._pend(log, txid, payload)

    def _pend(self, log: LogId, txid: TxId, payload: bytes) -> None:
        """A transaction that goes on after a restart has committed these offsets."""
        try:
            entries = decode_offset_entries(payload)
        except MalformedEntries as error:
            raise CorruptStorage(
                f"the journal of {log} holds offsets of {txid} that cannot be read: {error}"
            ) from error
        for entry in entries:
            if not isinstance(entry, OffsetEntry):
                raise CorruptStorage(f"the journal of {log} holds the group {entry.group} in the transaction {txid}")
            key = entry.key
            self._index.pend(log, txid, key.group, [(key.topic, key.partition)])

    # --- committing ---------------------------------------------------------------------------

    async def commit(self, group: str, sender: Sender, offsets: Sequence[NewOffset]) -> CommitUnderWay | CommitRefusal:
        """Write offsets to the group's journal, if `sender` may commit; `settled` says when they are seen.

        One commit is all or nothing, and the last of two offsets for one partition counts. Cancelled: it was
        written or not.
        """
        now_ms = self._now_ms()
        payload = _encode(group, offsets, now_ms)
        if len(payload) > self._settings.commit_bytes_max:
            return OffsetRefusal.TOO_LARGE
        log = self.log_of(group)

        def refusal() -> GroupRefusal | None:
            return self._may_commit(group, sender, transactional=False)

        with trio.move_on_after(PATIENCE_S):
            outcome = await self._logs.append_offsets(log, payload, unless=refusal)
            if isinstance(outcome, RefusedAppend | GroupRefusal):
                return outcome
            self._index.committed(group, outcome, now_ms)
            return CommitUnderWay(log, outcome)
        return OffsetRefusal.TIMED_OUT

    async def settled(self, commit: CommitUnderWay) -> bool:
        """Return once the commit is durable and every later `fetch` sees it. False: whether it will be is not known."""
        return await self._visible(commit.log, commit.visible_at)

    async def commit_in_transaction(
        self, group: str, sender: Sender, producer: TransactionalProducer, offsets: Sequence[NewOffset]
    ) -> CommitRefusal | None:
        """Write offsets into the producer's open transaction, to which the group's log was added. None: done.

        They are seen when it is committed, together with its records, and never if it is aborted. Cancelled: they
        were written or not.
        """
        now_ms = self._now_ms()
        payload = _encode(group, offsets, now_ms)
        if len(payload) > self._settings.commit_bytes_max:
            return OffsetRefusal.TOO_LARGE
        log = self.log_of(group)

        def refusal() -> Refusal | GroupRefusal | None:
            return self._producers.may_write(producer) or self._may_commit(group, sender, transactional=True)

        with trio.move_on_after(PATIENCE_S):
            if not await self._producers.hear(producer):
                return OffsetRefusal.TIMED_OUT
            outcome = await self._logs.append_offsets_in_transaction(
                log, producer.producer_id, producer.epoch, payload, unless=refusal
            )
            if isinstance(outcome, RefusedAppend | GroupRefusal | Refusal):
                return outcome
            self._producers.wrote(producer, now_ms)
            self._index.pend(log, outcome, group, [new.partition for new in offsets])
            return None
        return OffsetRefusal.TIMED_OUT

    def _may_commit(self, group: str, sender: Sender, *, transactional: bool) -> GroupRefusal | None:
        return self._membership.may_commit(
            group, sender.member_id, sender.instance_id, sender.generation, transactional=transactional
        )

    # --- reading ------------------------------------------------------------------------------

    async def fetch(
        self, group: str, partitions: Sequence[Partition] | None, *, require_stable: bool
    ) -> Mapping[Partition, FetchedOffset] | None:
        """The group's offsets in `partitions`, or (None) all that it has; an unknown group has none.

        Sees every commit that was answered before. With `require_stable`, partitions with offsets in an open
        transaction are `pending`; asked for all, also those that have no other offset. None: what is decided could
        not be read in time, ask again. Raises CorruptStorage, StorageFailure.
        """
        if not is_group_id(group):  # nobody commits offsets for it, and its log may be another shard's
            return dict.fromkeys(partitions or (), FetchedOffset(None, pending=False))
        pending = self._index.pending(group) if require_stable else frozenset[Partition]()
        log = self.log_of(group)
        if not await self._decided(log, group) or not await self._visible(log, self._index.decided_through(group)):
            return None
        found: dict[Partition, CommittedOffset | None]
        if partitions is None:
            entries = await trio.to_thread.run_sync(self._data_logs.offsets, log, group)
            found = dict.fromkeys(pending) | {(key.topic, key.partition): value for key, value in entries}
        else:
            keys = [OffsetKey(group, *partition) for partition in partitions]
            values = await trio.to_thread.run_sync(self._data_logs.committed_offsets, log, keys)
            found = dict(zip(partitions, values, strict=True))
        return {partition: FetchedOffset(value, partition in pending) for partition, value in found.items()}

    async def _decided(self, log: LogId, group: str) -> bool:
        """Whether all commits that may have been answered are placed here, after waiting.

        They may wait for the coordinator of another shard, or for an earlier one of their transactional group.

        False: it takes too long, or cannot be, as the disk has failed.
        """
        undecided = tuple(self._index.undecided(group))
        if not undecided:
            return True
        with trio.move_on_after(PATIENCE_S):
            return await self._logs.decided(log, undecided)
        return False

    async def _visible(self, log: LogId, offset: Offset) -> bool:
        """Whether the log is visible up to there, after waiting for it. False: it takes too long, or never will be."""
        with trio.move_on_after(PATIENCE_S):
            try:
                await self._logs.visible(log, offset)
            except StorageFailure as failure:
                logger.warning("offsets are not visible", log=str(log), reason=str(failure))
                return False
            return True
        return False

    def groups(self) -> Collection[str]:
        """The groups that have committed offsets: a live view, in which looking one up costs nothing."""
        return self._index.groups()

    def last_commit_ms(self, group: str) -> int | None:
        """When the group's newest offset was committed, in ms since 1970; None if it has none."""
        return self._index.last_commit_ms(group)

    # --- forgetting ---------------------------------------------------------------------------

    async def delete(self, group: str) -> GroupRefusal | None:
        """Forget all offsets of a group without members; None also if there were none.

        Durable and seen when this returns. What is pending in an open transaction is not touched: if that is
        committed, it is so after the deletion. NON_EMPTY_GROUP if the group has members, or commits all the time.
        Raises StorageFailure.
        """

        def refusal() -> GroupRefusal | None:
            return None if self._membership.is_empty(group) else GroupRefusal.NON_EMPTY_GROUP

        return await self._delete(group, lambda _key, _value: True, refusal)

    async def delete_partitions(
        self, group: str, topics: Mapping[Partition, str]
    ) -> Mapping[Partition, GroupRefusal | None] | GroupRefusal:
        """Forget a group's offsets in these partitions (whose topics are named so), for `delete` in all other respects.

        SUBSCRIBED for partitions of topics that members consume, UNKNOWN_GROUP if there are neither members nor
        offsets, NON_EMPTY_GROUP if it cannot be told what the members consume. Raises StorageFailure.
        """
        if self._index.last_commit_ms(group) is None and self._membership.describe(group) is None:
            return GroupRefusal.UNKNOWN_GROUP
        subscribed = self._subscribed(group)
        if subscribed is None:
            return GroupRefusal.NON_EMPTY_GROUP
        doomed = {partition for partition, name in topics.items() if name not in subscribed}

        def is_doomed(key: OffsetKey, _value: CommittedOffset) -> bool:
            return (key.topic, key.partition) in doomed

        def refusal() -> GroupRefusal | None:
            return None if self._subscribed(group) == subscribed else GroupRefusal.NON_EMPTY_GROUP

        outcome = await self._delete(group, is_doomed, refusal)
        return {partition: outcome if partition in doomed else GroupRefusal.SUBSCRIBED for partition in topics}

    def _subscribed(self, group: str) -> frozenset[str] | None:
        return frozenset() if self._membership.is_empty(group) else self._membership.subscribed(group)

    async def _delete(
        self,
        group: str,
        is_doomed: Callable[[OffsetKey, CommittedOffset], bool],
        refusal: Callable[[], GroupRefusal | None],
    ) -> GroupRefusal | None:
        for _ in range(DELETE_TRIES):
            outcome = await self._remove(group, is_doomed, refusal)
            if not isinstance(outcome, _Stale):
                return outcome
        return GroupRefusal.NON_EMPTY_GROUP

    async def _remove(
        self,
        group: str,
        is_doomed: Callable[[OffsetKey, CommittedOffset], bool],
        refusal: Callable[[], GroupRefusal | None],
    ) -> GroupRefusal | _Stale | None:
        """Delete the group's offsets for which `is_doomed`, unless it commits meanwhile. Raises StorageFailure."""
        if (refused := refusal()) is not None:
            return refused
        log = self.log_of(group)
        read_at = self._index.decided_through(group)
        await self._logs.visible(log, read_at)
        entries = await trio.to_thread.run_sync(self._data_logs.offsets, log, group)
        doomed = [key for key, value in entries if is_doomed(key, value)]

        def stale_or_refused() -> GroupRefusal | _Stale | None:
            return _Stale.CHANGED if self._index.decided_through(group) != read_at else refusal()

        for start in range(0, len(doomed), DELETED_AT_ONCE):
            some = doomed[start : start + DELETED_AT_ONCE]
            payload = encode_offset_entries([OffsetEntry(key, None) for key in some])
            outcome = await self._logs.append_offsets(log, payload, unless=stale_or_refused)
            if isinstance(outcome, RefusedAppend):
                raise StorageFailure(outcome.value)
            if isinstance(outcome, GroupRefusal | _Stale):
                return outcome
            read_at = outcome
            self._index.deleted(group, read_at, all_of_them=start + len(some) == len(entries))
        await self._logs.visible(log, read_at)
        self._index.forget(group, read_at)
        return None

    def topic_deleted(self) -> None:
        """A topic is gone: its offsets go in the background, at the next start at the latest."""
        self._topic_is_gone.set()

    async def run(self) -> None:
        """Forget offsets that have had their time or whose topic is gone; until cancelled.

        What the disk refuses is tried again with the next look: a want of file descriptors, for one, passes.
        """
        refused = False
        while True:
            try:
                await self._sweep()
            except StorageFailure as failure:
                if not refused:  # once, not for each look
                    logger.warning("expired offsets stay for now", reason=str(failure))
                refused = True
            else:
                refused = False
            self._producers.forget_expired()
            interval_s = self._settings.check_interval_ms / 1000
            pause_s = min(SWEEP_PAUSE_S, interval_s)
            await trio.sleep(pause_s)
            with trio.move_on_after(interval_s - pause_s):
                await self._topic_is_gone.wait()

    async def _sweep(self) -> None:
        self._topic_is_gone = trio.Event()
        for group in list(self._index.groups()):
            use = self._use_of(group)
            await self._remove(
                group, partial(self._has_had_its_time, use), partial(self._is_used_otherwise, group, use)
            )

    def _use_of(self, group: str) -> GroupUse:
        return GroupUse(
            has_members=not self._membership.is_empty(group),
            subscribed=self._subscribed(group),
            empty_since_ms=self._membership.empty_since_ms(group) or self._index.left_ms(group) or self._started_ms,
        )

    def _is_used_otherwise(self, group: str, use: GroupUse) -> GroupRefusal | None:
        """Somebody has joined since the offsets were judged, and may have read them: the next sweep looks again."""
        return None if self._use_of(group) == use else GroupRefusal.NON_EMPTY_GROUP

    def _has_had_its_time(self, use: GroupUse, key: OffsetKey, value: CommittedOffset) -> bool:
        topic = self._topics.topic_by_id(UUID(hex=key.topic))
        retention_ms = self._settings.retention_ms
        return topic is None or is_expired(
            topic.name, value.commit_timestamp_ms, use, retention_ms=retention_ms, now_ms=self._now_ms()
        )


def _encode(group: str, offsets: Sequence[NewOffset], now_ms: int) -> bytes:
    return encode_offset_entries(
        [
            OffsetEntry(
                OffsetKey(group, *new.partition),
                CommittedOffset(Offset(new.offset), new.leader_epoch, new.metadata, now_ms),
            )
            for new in offsets
        ]
    )
