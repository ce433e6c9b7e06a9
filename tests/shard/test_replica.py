"""A replica takes what counts into its files, copies it, and starts again from its mark. Real files, a model stream."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import trio

from coordinator.group_history import SNAPSHOT_BEGIN, SNAPSHOT_END
from datalog.interface import ReadRequest, ReadResult
from fairlog_types import CorruptStorage, LogId, Offset
from partition.modes import JOURNAL
from partition.records import Start
from shard.directory import FIRST_SHARD, shard_directory
from shard.partitions import Partitions
from shard.replica import Replica, follow, load_fold, open_replica, save_mark
from shard.shard import open_storage
from stream.election import Election
from stream.engine import StoredEntry, Stream, StreamCutOff, StreamPosition
from stream.fold import Frames, Void
from tests.shard.owner_in_test import OwnerInTest
from tests.stream.members import SETTINGS, NobodyWatches
from tests.stream.model_engine import open_model

A, B = (LogId.of_topic(UUID(int=16), partition) for partition in range(2))


@asynccontextmanager
async def a_replica(
    directory: Path,
    stream: Stream,
    logs: Sequence[LogId] = (A, B),
    *,
    known: Sequence[LogId] = (),
    asked: list[LogId] | None = None,
    keeps_cuts: bool = True,
) -> AsyncIterator[Replica]:
    """Opened, with the copier running. It adopts those of `known` when it meets them; `asked` gets what it meets."""

    async def adopt(partitions: Partitions, log: LogId) -> bool:
        if asked is not None:
            asked.append(log)
        if log in known:
            await partitions.lead([log], JOURNAL)
        return log in known

    shard = shard_directory(directory, FIRST_SHARD)
    async with (
        open_storage(shard, map_bytes=2**26, watcher=NobodyWatches()) as storage,
        open_replica(
            shard,
            storage,
            SETTINGS,
            stream,
            group_journals=range(2),
            adopt=adopt,
            now_ms=lambda: 1,
            keeps_cuts=keeps_cuts,
        ) as replica,
        trio.open_nursery() as nursery,
    ):
        await replica.partitions.lead(list(logs), JOURNAL)
        nursery.start_soon(replica.partitions.copy)
        yield replica
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def a_stream() -> AsyncIterator[Stream]:
    async with open_model(random.Random(0)) as cluster:
        yield await cluster.engine("n").open_stream("shard-0")


async def take(replica: Replica, entries: Sequence[bytes]) -> list[object]:
    first = replica.fold.next_position
    return [
        await replica.take(StoredEntry(StreamPosition(first + at), entry)) for at, entry in enumerate(entries[first:])
    ]


def values(replica: Replica, log: LogId) -> int:
    """How many records can be read."""
    (answer,) = replica.partitions.data_logs.read([ReadRequest(log, Offset(0), 1 << 20)], bytes_max=1 << 20)
    assert isinstance(answer, ReadResult), answer
    return len(answer.batches)


async def test_what_is_accepted_is_copied_and_what_is_void_is_not(tmp_path) -> None:
    owner = OwnerInTest()
    owner.append(owner.plain(A, 0, b"one"), owner.plain(B, 0, b"two"))
    stale = owner.entries[-1].replace(b"one", b"old")
    async with a_stream() as stream, a_replica(tmp_path, stream) as replica:
        replica.recover_before(StreamPosition(0))
        folded = await take(replica, [*owner.entries, stale, b""])
        assert isinstance(folded[1], Frames)
        assert folded[2:] == [Void.SEQUENCE, Void.FOREIGN]
        await replica.partitions.drain()
        assert (values(replica, A), values(replica, B)) == (1, 1)


async def test_transaction_is_seen_as_a_whole_also_after_a_start_in_the_middle_of_its_entry(tmp_path) -> None:
    """The first run had written the decision of one log into its file, and not that of the other."""
    owner = OwnerInTest()
    owner.append(owner.in_transaction(A, b"a"), owner.in_transaction(B, b"b"))
    in_a, in_b = owner.applied(A, 0), owner.applied(B, 0)
    async with a_stream() as stream:
        async with a_replica(tmp_path, stream) as replica:
            await take(replica, owner.entries)
            replica.journals.get(f"local/{A}").take(in_a.data)  # type: ignore[union-attr]
        owner.append(in_a, in_b)
        async with a_replica(tmp_path, stream) as replica:
            replica.recover_before(StreamPosition(len(owner.entries)))
            await take(replica, owner.entries[:2])
            await trio.sleep(0.05)
            assert (values(replica, A), values(replica, B)) == (0, 0)
            await take(replica, owner.entries)
            await replica.partitions.drain()
            assert (values(replica, A), values(replica, B)) == (1, 1)


async def test_start_goes_on_at_the_mark(tmp_path) -> None:
    owner = OwnerInTest()
    owner.append(owner.plain(A, 0, b"one"))
    path = shard_directory(tmp_path, FIRST_SHARD).stream_mark
    async with a_stream() as stream:
        async with a_replica(tmp_path, stream) as replica:
            await take(replica, owner.entries)
            await save_mark(replica.journals, replica.taken, path, stream.name)
        owner.append(owner.plain(A, 1, b"two"))
        async with a_replica(tmp_path, stream) as replica:
            assert replica.fold.next_position == 2
            replica.recover_before(StreamPosition(3))
            await take(replica, owner.entries)
            await replica.partitions.drain()
            assert values(replica, A) == 2


async def test_log_begins_where_its_owner_says_before_its_next_records_come(tmp_path) -> None:
    """The visibility follows the data log, the batches before it are swept, and a start from an older mark changes
    nothing."""
    owner = OwnerInTest()
    owner.append(*(owner.plain(A, offset, b"v") for offset in range(5)))
    path = shard_directory(tmp_path, FIRST_SHARD).stream_mark
    async with a_stream() as stream:
        async with a_replica(tmp_path, stream) as replica:
            replica.recover_before(StreamPosition(0))
            await take(replica, owner.entries)
            await save_mark(replica.journals, replica.taken, path, stream.name)
            partition = replica.partitions.get(A)
            assert partition is not None
            owner.append(owner.record(A, Start(Offset(3))))
            await take(replica, owner.entries)
            with trio.fail_after(2):  # less than until the journals are reclaimed
                while partition.visibility.log_start < 3 or partition.has_remains:  # noqa: ASYNC110
                    await trio.sleep(0.001)
            bounds = replica.partitions.data_logs.bounds(A)
        assert (bounds.log_start, bounds.next_offset) == (3, 5)
        async with a_replica(tmp_path, stream) as replica:
            assert replica.fold.next_position == 2
            replica.recover_before(StreamPosition(3))
            await take(replica, owner.entries)
            await replica.partitions.drain()
            assert replica.partitions.data_logs.bounds(A) == bounds


async def test_start_that_was_read_before_the_end_is_copied_after_what_stands_before_it(tmp_path) -> None:
    """Nothing is copied until the replica has read through what was the end at its start."""
    owner = OwnerInTest()
    owner.append(*(owner.plain(A, offset, b"v") for offset in range(5)))
    owner.append(owner.record(A, Start(Offset(5))), owner.plain(A, 5, b"w"))
    async with a_stream() as stream, a_replica(tmp_path, stream) as replica:
        replica.recover_before(StreamPosition(3))
        await take(replica, owner.entries[:2])
        await trio.sleep(0.02)
        assert replica.partitions.data_logs.bounds(A).next_offset == 0
        await take(replica, owner.entries)
        await replica.partitions.drain()
        bounds = replica.partitions.data_logs.bounds(A)
        assert (bounds.log_start, bounds.next_offset) == (5, 6)


async def test_log_that_is_made_meanwhile_is_adopted_and_one_that_is_gone_is_passed_over(tmp_path) -> None:
    owner = OwnerInTest()
    owner.append(owner.plain(A, 0, b"one"), owner.plain(B, 0, b"two"))
    async with a_stream() as stream, a_replica(tmp_path, stream, (), known=[A]) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
        await replica.partitions.drain()
        assert values(replica, A) == 1
        assert replica.partitions.get(B) is None


async def test_log_that_is_gone_is_looked_for_once(tmp_path) -> None:
    """Not for each of its frames: there may be millions of them."""
    owner = OwnerInTest()
    for value in (b"one", b"two", b"three"):
        owner.append(owner.plain(A, 0, value))
    asked: list[LogId] = []
    async with a_stream() as stream, a_replica(tmp_path, stream, (), known=[], asked=asked) as replica:
        replica.recover_before(StreamPosition(0))
        await take(replica, owner.entries)
    assert asked == [A]


@pytest.mark.parametrize("keeps_cuts", [True, False])
async def test_replica_of_several_shards_keeps_no_cuts_of_its_own(tmp_path, keeps_cuts: bool) -> None:
    """They would not be cuts of the other shards. A cut is due with a thousand records."""
    owner = OwnerInTest()
    for offset in range(1200):
        owner.append(owner.plain(A, offset, b"v"))
    async with a_stream() as stream, a_replica(tmp_path, stream, keeps_cuts=keeps_cuts) as replica:
        replica.recover_before(StreamPosition(1))
        await take(replica, owner.entries[:600])
        await replica.partitions.drain()
        await take(replica, owner.entries)
        await replica.partitions.drain()
        assert (replica.partitions.data_logs.newest_cut > 0) == keeps_cuts


async def test_snapshot_of_a_group_journal_lets_go_of_what_was_before(tmp_path) -> None:
    """Once it is on disk. Segments end where this machine's files end."""
    owner = OwnerInTest()
    name = "group/0"
    settings = replace(SETTINGS, group_segment_bytes_max=2**16)
    shard = shard_directory(tmp_path, FIRST_SHARD)

    async def adopt(_partitions: Partitions, _log: LogId) -> bool:
        return False

    for _ in range(30):
        owner.append(owner.frame(name, 1, (1,), bytes(10_000)))
    as_of = owner._ends[name]
    owner.append(owner.frame(name, SNAPSHOT_BEGIN, (as_of, 0)), owner.frame(name, SNAPSHOT_END, (0,)))
    async with (
        a_stream() as stream,
        open_storage(shard, map_bytes=2**26, watcher=NobodyWatches()) as storage,
        open_replica(
            shard, storage, settings, stream, group_journals=range(2), adopt=adopt, now_ms=lambda: 1
        ) as replica,
    ):
        journal = replica.journals.get(name)
        assert journal is not None
        await take(replica, owner.entries[:-1])
        assert journal.start == 0
        await take(replica, owner.entries)
        assert 0 < journal.start <= as_of
        assert len(list(shard.group_journal(0).glob("*.journal"))) <= 2


async def test_frames_of_a_group_journal_that_there_is_none_of_stop_the_replica(tmp_path) -> None:
    owner = OwnerInTest()
    owner.append(owner.frame("group/5", 1, (1,)))
    async with a_stream() as stream, a_replica(tmp_path, stream) as replica:
        with pytest.raises(CorruptStorage, match="another number of group journals"):
            await take(replica, owner.entries)


async def test_mark_of_another_stream_is_refused(tmp_path) -> None:
    """Also if it has the same name: the entry at the mark is another one."""
    owner, other = OwnerInTest(), OwnerInTest()
    owner.append(owner.plain(A, 0, b"one"))
    other.append(other.plain(A, 0, b"two"))
    path = shard_directory(tmp_path, FIRST_SHARD).stream_mark
    async with open_model(random.Random(0)) as cluster:
        stream = await cluster.engine("n").open_stream("shard-0")
        for entry in other.entries:
            cluster.land("shard-0", entry)
        async with a_replica(tmp_path, stream) as replica:
            await take(replica, owner.entries)
            await save_mark(replica.journals, replica.taken, path, stream.name)
        async with a_replica(tmp_path, stream) as replica:
            election = Election("n", 0, 60.0, replica.fold.state, trio.current_time())
            with trio.fail_after(10), pytest.raises(StreamCutOff, match="holds another entry"):
                await follow(replica, stream, election, "n")
        second = await cluster.engine("n").open_stream("shard-1")
        with pytest.raises(CorruptStorage, match="is a copy of the stream"):
            await load_fold(shard_directory(tmp_path, FIRST_SHARD), second)
