"""Finish what a stopped node of several shards has decided, so that its data logs can be copied.

A process may end before it has heard of a decision that another one has already copied: then half of a transaction is
in the data logs, and half in a journal. So all shards are started once more, here, in one process, and stopped again:

    directory and shards locked ─▶ each shard: journals replayed ─▶ decided again ─▶ copied ─┐
    closed, noted as a clean end ◀─ no commit is under way in any (`shard.cutting`) ◀────────┘

This is an orderly start and stop, as the node does them (`fairlog.node`), without anything that serves clients: there
is no listener, nothing times out or expires, no topic is removed, and groups stay as they are. It counts as a start of
each shard. So open transactions stay open for the next start, and after a kill, or a loss of power, the result is that
of a restart. If this is killed, it is a start that was killed: nothing is lost.

This needs no settings of the node: the cluster store and the files contain everything that matters here. The shards
reach each other by channels within the process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import structlog
import trio

from coordinator.settings import CoordinatorSettings
from fairlog.backup.source import BackupRefused, run_of
from fairlog.cluster.content import StoreContent
from fairlog.cluster.embedded import EmbeddedStore, StoreMismatch
from fairlog.config import JournalSettings
from fairlog.data_directory import CLUSTER, CLUSTER_STORE, read_cluster_store
from fairlog.directory import DirectoryInUse, DirectoryUnusable, hold_shard, locked_directory
from fairlog.exception_groups import leaves
from fairlog.last_run import LastRun
from fairlog.open_files import raise_open_files_limit
from fairlog.topics import LocalTopics
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, ShardNumber, StorageFailure
from journal.journal import Fsync
from shard.conversation import Message
from shard.cutting import TAKER
from shard.directory import shard_directory
from shard.shard import Neighbours, Shard, ShardSettings, close_in_thread, open_shard, open_storage

_SENTENCES = (DirectoryInUse, DirectoryUnusable, StoreMismatch, CorruptStorage, StorageFailure, OSError)
"""Errors whose message is already a sentence for the user."""

_AT_REST_S = 60.0
"""Once all is copied, the shards only have to tell each other so."""
_PAUSE_S = 0.25
"""Between two checks whether they have."""
_AS_THE_FILE_HAS_IT = 0
"""LMDB takes the size of a map from the file."""
_NEVER_MS = 2**62

_Inbox = tuple[
    trio.MemorySendChannel[tuple[ShardNumber, Message]], trio.MemoryReceiveChannel[tuple[ShardNumber, Message]]
]
"""Messages to a shard, with their senders."""


def settle(data_dir: Path) -> int:
    """Have all decided commits copied in all shards; returns the number of this run, see `run_of`. Blocking.

    Raises BackupRefused; then the directory is as after a start that failed. A KeyboardInterrupt passes.
    """
    try:
        _require_own_user(data_dir)
        raise_open_files_limit()
        with locked_directory(data_dir), ExitStack() as held:
            content = read_cluster_store(data_dir)
            for number in map(ShardNumber, range(content.shards)):
                held.callback(os.close, hold_shard(data_dir, number))
            trio.run(_Settling(data_dir, content).run)
            return run_of(data_dir)
    except _SENTENCES as error:
        raise _refused(data_dir, str(error)) from error
    except BaseExceptionGroup as group:
        errors = list(leaves(group))
        if any(isinstance(each, KeyboardInterrupt) for each in errors):
            raise KeyboardInterrupt from group
        if all(isinstance(each, _SENTENCES) for each in errors):
            raise _refused(data_dir, "; ".join(dict.fromkeys(map(str, errors)))) from group
        raise


def _require_own_user(data_dir: Path) -> None:
    """If another user, such as root, made files here, the node could not open them at its next start."""
    owner = (data_dir / CLUSTER_STORE).stat().st_uid
    if os.geteuid() != owner:
        raise DirectoryUnusable(
            f"this writes files that must belong to the node's user: run the command as user {owner}"
        )


def _refused(data_dir: Path, reason: str) -> BackupRefused:
    return BackupRefused(f"what the shards in {data_dir} had decided when they stopped cannot be finished: {reason}")


class _Settling:
    """One start and stop of all shards."""

    def __init__(self, data_dir: Path, content: StoreContent) -> None:
        self._data_dir = data_dir
        self._content = content
        self._inboxes: Mapping[ShardNumber, _Inbox] = {
            number: trio.open_memory_channel[tuple[ShardNumber, Message]](math.inf)
            for number in map(ShardNumber, range(content.shards))
        }
        self._at_rest = trio.Event()

    async def run(self) -> None:
        shards: dict[ShardNumber, Shard] = {}

        async def start(number: ShardNumber) -> None:
            shards[number] = await living.start(self._live, number)

        async with trio.open_nursery() as living:
            async with trio.open_nursery() as starting:  # side by side, because they wait for each other
                for number in self._inboxes:
                    starting.start_soon(start, number)
            await _until_at_rest(shards)
            self._at_rest.set()

    async def _live(self, number: ShardNumber, *, task_status: trio.TaskStatus[Shard]) -> None:
        """One shard; started when everything that it has placed is copied. The steps are those of `fairlog.node`."""
        with structlog.contextvars.bound_contextvars(shard=number):
            directory = shard_directory(self._data_dir, number)
            last_run = await trio.to_thread.run_sync(LastRun.read, self._data_dir, directory)
            async with AsyncExitStack() as stack:
                cluster = await self._open_cluster(stack, number)
                shard = await self._open_shard(stack, number, cluster, last_run)
                await LocalTopics(cluster, shard, _now_ms).recover()
                await shard.lead(cluster.placement.offsets_logs(number, cluster.offsets_log_count))
                async with trio.open_nursery() as background:
                    await background.start(shard.run_links)
                    background.start_soon(self._carry, number, shard)
                    await shard.recover()
                    background.start_soon(shard.partitions.run)
                    await shard.drain()
                    await trio.to_thread.run_sync(last_run.begin, shard.leader_epoch)
                    background.start_soon(shard.coordinator.finish_commits)
                    task_status.started(shard)
                    await self._at_rest.wait()
                    await shard.drain()
                    background.cancel_scope.cancel()
            if shard.failure is not None:
                last_run.failed()
                raise shard.failure
            await trio.to_thread.run_sync(last_run.end)

    async def _open_cluster(self, stack: AsyncExitStack, number: ShardNumber) -> EmbeddedStore:
        cluster = await trio.to_thread.run_sync(
            partial(
                EmbeddedStore.open,
                self._data_dir / CLUSTER,
                node_id=self._content.node.node_id,
                group_journal_count=self._content.node.group_journal_count,
                shards=self._content.shards,
                shard=number,
            )
        )
        stack.push_async_callback(close_in_thread, cluster.close)
        return cluster

    async def _open_shard(
        self, stack: AsyncExitStack, number: ShardNumber, cluster: EmbeddedStore, last_run: LastRun
    ) -> Shard:
        directory, leader_epoch = shard_directory(self._data_dir, number), LeaderEpoch(cluster.starts)
        storage = await stack.enter_async_context(
            open_storage(directory, map_bytes=_AS_THE_FILE_HAS_IT, watcher=last_run)
        )

        def other_shard_of(log: LogId) -> ShardNumber | None:
            shard = cluster.shard_of(log)
            return None if shard == number else shard

        return await stack.enter_async_context(
            open_shard(
                directory,
                storage,
                ShardSettings(
                    fsync=Fsync.COMMIT,
                    fsync_interval_ms=_NEVER_MS,
                    segment_bytes_max=JournalSettings().segment_bytes_max,
                    group_journals=cluster.group_journal_count,
                    producer_expiration_ms=_NEVER_MS,
                    coordinator=CoordinatorSettings(group_separator=self._content.group_separator or ""),
                ),
                leader_epoch=leader_epoch,
                producer_ids=cluster,
                begun=cluster.group_journals_begun,
                note_begun=cluster.note_group_journals_begun,
                whole_since=partial(last_run.whole_since, leader_epoch),
                offsets_decided=lambda _log, _txid, _visible_at: None,
                now_ms=_now_ms,
                neighbours=Neighbours(
                    cluster.placement, other_shard_of, cluster.catch_up, _Outgoing(number, self._inboxes)
                ),
            )
        )

    async def _carry(self, number: ShardNumber, shard: Shard) -> None:
        """Hand the shard the messages of the others; until cancelled."""
        async for sender, message in self._inboxes[number][1]:
            shard.receive(sender, message)


class _Outgoing:
    """The way from one shard to the others: a `shard.links.Transport` that loses nothing."""

    def __init__(self, number: ShardNumber, inboxes: Mapping[ShardNumber, _Inbox]) -> None:
        self._number = number
        self._inboxes = inboxes

    def send(self, shard: ShardNumber, message: Message) -> None:
        self._inboxes[shard][0].send_nowait((self._number, message))


async def _until_at_rest(shards: Mapping[ShardNumber, Shard]) -> None:
    """Return when no commit is under way in any shard. Raises StorageFailure."""
    cutting = shards[TAKER].cutting
    assert cutting is not None
    until_s = trio.current_time() + _AT_REST_S
    while (held := await cutting.while_all_hold(trio.lowlevel.checkpoint)) is not True:
        for shard in shards.values():
            if shard.failure is not None:
                raise shard.failure
        if trio.current_time() > until_s:
            reason = "a transaction does not end" if held is False else held.reason
            raise StorageFailure(f"{reason}. Start the node, and back it up while it runs")
        await trio.sleep(_PAUSE_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
