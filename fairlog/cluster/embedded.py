"""The cluster store of a data directory: a small LMDB environment of its own, and its content in memory.

How it works. `open` reads everything into memory and counts the start. A change takes the lock, is decided on memory,
goes to LMDB in one synced transaction in a worker thread, and only then into memory. So a reader on the event loop sees
a change when it is durable, never before. LMDB's commit is atomic: a crash leaves the old state or the new one, and
there is nothing to repair.

If the data is spread over several shards, each has a store of its own. Each process opens the environment once, for all
of its shards (`fairlog.cluster.environments`), and LMDB lets one store write at a time. LMDB numbers its transactions,
and the store knows up to which one it has read. A change that finds a newer one, inside its own write transaction, was
decided on old memory: it writes nothing, takes in what the others changed, and is decided again. `run` looks at the
number every 20 ms, so readers see what others changed soon after; `catch_up` looks at once.

The first failed write closes the store for changes until a restart: it is not known what a failed commit or fsync left
on disk, and a later fsync of the same file would make it look durable (invariant 12). Reads continue. Linux reports a
failed fsync once for each time that the file was opened, so the next change in each other process fails as well. The
stores of one process share an environment, and those beside the one that failed may go on. That is safe: LMDB has given
the transaction up, and no later one refers to its pages. If the meta page could not be written, LMDB itself allows no
further transaction in that process.

The environment is separate from the data logs', because its few changes are fully synced while the data logs' many are
not.

What it does not do: it does not touch journals or data logs (the node does, between `delete_topic` and
`forget_topic`), and does not guard the directory against another node (`fairlog.directory` does).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import lmdb
import trio

from fairlog.cluster import environments
from fairlog.cluster.deciding_store import DecidingStore
from fairlog.cluster.features import FEATURES, Feature
from fairlog.cluster.interface import (
    BrokerAddress,
    InnerAddress,
    Leader,
    PartitionCopies,
    Topic,
)
from fairlog.cluster.memory import Changes, StoreMemory
from fairlog.cluster.opening import STORE_FILE, begin, content, corrupt, fix_group_separator, make, named, opened, put
from fairlog.cluster.opening import StoreMismatch as StoreMismatch
from fairlog_types import CorruptStorage, LeaderEpoch, ShardNumber, StorageFailure
from shard.directory import FIRST_SHARD

NOTICE_SECONDS = 0.020
"""How long another shard's change may stay unseen: little beside the time that a client takes to act on it."""

_Answer = TypeVar("_Answer")


class EmbeddedStore(DecidingStore):
    """`ClusterStore` for one process. Make one with `open`; see the interface for the methods' promises."""

    def __init__(self, environment: lmdb.Environment, directory: Path, memory: StoreMemory, seen: int) -> None:
        super().__init__(memory, memory.shard)
        self._environment = environment
        self._directory = directory
        self._memory = memory
        self._seen = seen
        """The last transaction that memory has."""
        self._changing = trio.Lock()
        self._failed: StorageFailure | None = None
        self._closed = False

    @classmethod
    def prepare(
        cls,
        directory: Path,
        *,
        node_id: int,
        group_journal_count: int,
        shards: int,
        group_separator: str = "",
        features: Mapping[str, Feature] = FEATURES,
    ) -> None:
        """Make the store in `directory` at the very first start, or check that it fits; counts no start.

        To be called before the processes of several shards `open` the store, while none has it open. The group
        separator of the first start is fixed for several shards. Arguments and errors are those of `open`.
        """
        make(directory, shards)
        environment = opened(directory, shards)
        try:
            with named(directory), environment.begin(write=True) as transaction:
                begin(transaction, directory, node_id, group_journal_count, shards, FIRST_SHARD, features)
                if shards > 1:
                    fix_group_separator(transaction, directory, group_separator)
        finally:
            environments.release(directory)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        node_id: int,
        group_journal_count: int,
        shards: int = 1,
        shard: ShardNumber = FIRST_SHARD,
        features: Mapping[str, Feature] = FEATURES,
    ) -> EmbeddedStore:
        """Open the store in `directory` for one of `shards` processes; counts this start of its shard, durably.

        With one shard, the very first start makes the store; with several, `prepare` has. `node_id` is that of shard 0.
        `group_journal_count` matters at the very first start only. `features` are those that this program supports.

        Blocks on the disk: call it in a worker thread. Raises StoreMismatch if the directory is another node's or a
        newer program's or has another number of shards, CorruptStorage if its content is not what was written,
        StorageFailure if the disk refuses.
        """
        assert 0 <= shard < shards, (shard, shards)
        if shards == 1:
            make(directory, shards)
        elif not (directory / STORE_FILE).exists():
            raise CorruptStorage(f"the cluster store {directory / STORE_FILE} is missing: restart the whole node")
        environment = opened(directory, shards)
        try:
            with named(directory), environment.begin(write=True) as transaction:
                memory = begin(transaction, directory, node_id, group_journal_count, shards, shard, features)
                start = memory.start()
                put(transaction, start)
                seen = transaction.id()
        except BaseException:
            environments.release(directory)
            raise
        memory.apply(start)
        return cls(environment, directory, memory, seen)

    def close(self) -> None:
        """Let go of the environment; again does nothing. Everything that returned is durable already."""
        if not self._closed:
            self._closed = True
            environments.release(self._directory)

    @property
    def cluster_id(self) -> str:
        return self._memory.node.cluster_id

    @property
    def node_id(self) -> int:
        return self.broker_of(self.shard)

    @property
    def starts(self) -> int:
        return self._memory.record_of(self.shard).starts

    @property
    def group_journal_count(self) -> int:
        return self._memory.node.group_journal_count

    @property
    def group_journals_begun(self) -> bool:
        """Whether `note_group_journals_begun` was called for this shard, in this run or an earlier one."""
        return self._memory.record_of(self.shard).group_journals_begun

    async def note_group_journals_begun(self) -> None:
        """All group journals of this shard are on disk: from now on none may be missing. Raises StorageFailure."""
        await self._change(lambda: (self._memory.begun(), None))

    async def run(self) -> None:
        """See `ClusterStore.run`. With one shard there is nothing to do."""
        while self._memory.shards > 1:
            await trio.sleep(NOTICE_SECONDS)
            await self.catch_up()

    async def notice(self) -> None:
        await self.catch_up()

    async def catch_up(self) -> None:
        """See `ClusterStore.catch_up`. Raises StorageFailure, CorruptStorage."""
        if self._memory.shards > 1 and self._others_wrote():
            async with self._changing:
                if self._others_wrote():  # else it was this process itself, which had the lock
                    await self._take_in_others()

    def brokers(self, listener: str) -> Sequence[BrokerAddress]:
        found: list[BrokerAddress] = []
        for node_id in sorted(self._memory.addresses):
            endpoint = self._memory.endpoints(node_id).get(listener)
            if endpoint is not None:
                found.append(BrokerAddress(node_id, *endpoint))
        return found

    @property
    def started(self) -> Collection[int]:
        return self._memory.addresses.keys()

    def broker_of(self, shard: ShardNumber) -> int:
        return self._memory.node.node_id + shard

    def internal_address(self, shard: ShardNumber) -> InnerAddress | None:
        address = self._memory.addresses.get(self.broker_of(shard))
        return None if address is None or address.internal is None else InnerAddress(*address.internal)

    def rack_of(self, node_id: int) -> str | None:  # noqa: ARG002 - all brokers are on one machine
        return None

    async def announce(self, endpoints: Mapping[str, tuple[str, int]], internal: tuple[str, int] | None) -> None:
        """Tell all brokers where clients reach this one, by listener, and where other brokers do.

        Raises StorageFailure.
        """
        changes = self._memory.announced(self.node_id, endpoints, internal)
        if self._memory.shards > 1:
            await self._change(lambda: (changes, None))
        elif self._memory.apply(self._memory.effective(changes)):  # a node of one shard does not write it down
            self._tell()

    def leaders(self, topic: Topic) -> Sequence[Leader]:
        leaders = [
            Leader(self.broker_of(shard), LeaderEpoch(self._memory.record_of(shard).starts))
            for shard in map(ShardNumber, range(self._memory.shards))
        ]
        return [leaders[shard] for shard in self._shards_of(topic)]

    def copies(self, topic: Topic) -> Sequence[PartitionCopies]:
        return [PartitionCopies((leader.node_id,), (leader.node_id,)) for leader in self.leaders(topic)]

    async def _change(self, decide: Callable[[], tuple[Changes, _Answer]]) -> _Answer:
        """Make a change durable, then visible. `decide` says on memory what it is, and may be called again.

        A worker thread that has begun is waited for even when the caller is cancelled, so that memory
        cannot fall behind the disk. Raises what `decide` raises; StorageFailure, and after the first one always.
        """
        async with self._changing:
            if self._memory.shards > 1 and self._others_wrote():
                await self._take_in_others()
            while True:
                changes, answer = decide()
                changes = self._memory.effective(changes)
                if not changes or await self._write(changes):
                    return answer

    async def _write(self, changes: Changes) -> bool:
        """Write changed records in one synced transaction; False if others wrote before. Called under the lock."""
        if self._failed is not None:
            raise StorageFailure(str(self._failed)) from self._failed
        try:
            seen, others = await trio.to_thread.run_sync(self._write_in_thread, changes)
        except lmdb.Error as error:
            self._failed = StorageFailure(
                f"cannot write the cluster store in {self._directory}: {error}; the change was refused, and so are "
                "all later ones. See to the disk, then restart the node"
            )
            raise self._failed from error
        self._take_in(seen, changes if others is None else others)
        return others is None

    def _write_in_thread(self, changes: Changes) -> tuple[int, Changes | None]:
        """The transaction up to which memory is known, and what others have changed if that forbids to write."""
        with self._environment.begin(write=True) as transaction:
            if (before := transaction.id() - 1) != self._seen:
                return before, self._memory.differences(content(transaction))
            put(transaction, changes)
            return transaction.id(), None

    def _others_wrote(self) -> bool:
        return cast("dict[str, int]", self._environment.info())["last_txnid"] != self._seen

    async def _take_in_others(self) -> None:
        """Called under the lock."""
        try:
            seen, changes = await trio.to_thread.run_sync(self._read_in_thread)
        except lmdb.Error as error:
            raise StorageFailure(f"cannot read the cluster store in {self._directory}: {error}") from error
        self._take_in(seen, changes)

    def _read_in_thread(self) -> tuple[int, Changes]:
        with self._environment.begin() as transaction:
            return transaction.id(), self._memory.differences(content(transaction))

    def _take_in(self, seen: int, changes: Changes) -> None:
        try:
            visible = self._memory.apply(changes)
        except CorruptStorage as error:
            raise corrupt(self._directory, error) from error
        self._seen = seen
        if visible:
            self._tell()
