"""Topics that change after their creation: configs, more partitions, records deleted from the front."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import lmdb
import pytest
import trio
import trio.testing

from datalog.interface import Bounds, DataLogWriter, EpochEnd, NoRoom
from fairlog.cluster.interface import InvalidPartitions, UnknownTopic
from fairlog_types import CorruptStorage, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, StorageFailure
from journal import segment
from journal.journal import Fsync, Journal, JournalKind, NoFiles
from journal.journal import NoRoom as NoRoomInJournal
from journal.segment_file import SegmentFile
from partition import partition as partition_module
from partition.answers import RefusedAppend
from partition.modes import TransactionMode
from partition.partition import Partition
from partition.records import Fence
from tests.node.test_topics import Store, fill
from tests.shard.runs import DATA_LOGS, JOURNALS, A, B, Run, base_of

# --- partitions ------------------------------------------------------------------------------------


async def test_partitions_added_take_batches_at_once(open_run) -> None:
    """When `add_partitions` returns, and after a restart; the old ones keep what they hold."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await fill(run, await store.create(partitions=2))
            grown = await store.topics.add_partitions("t", 4, validate_only=False)
            assert (grown.partitions, store.store.topic("t")) == (4, grown)
            for log in grown.logs()[2:]:
                assert base_of(await run.plain(log, b"new")) == Offset(0)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            (topic,) = store.store.topics()
            assert [await run.values(log) for log in topic.logs()] == [[b"v"], [b"v"], [b"new"], [b"new"]]
            assert base_of(await run.plain(topic.logs()[3], b"more")) == Offset(1)


async def test_partitions_led_before_a_crash_and_not_added_are_removed_by_the_next_start(open_run) -> None:
    """The store's entry comes last: before it nobody knows of them. They can be added afterwards like any."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create(partitions=1)
            await fill(run, topic)
            await run.lead([LogId.of_topic(topic.topic_id, partition) for partition in (1, 2)])
            assert len(store.kept()[1]) == 3
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            assert store.kept() == ({str(topic.logs()[0])}, {str(topic.logs()[0])})
            grown = await store.topics.add_partitions("t", 2, validate_only=False)
            assert base_of(await run.plain(grown.logs()[1], b"v")) == Offset(0)


async def test_data_log_with_records_behind_a_topics_last_partition_refuses_the_start(open_run) -> None:
    """It was written to, so the store knew of it once: this store is an older one, and nothing is removed by it."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create(partitions=1)
            beyond = LogId.of_topic(topic.topic_id, 1)
            await run.lead([beyond])
            await run.plain(beyond, b"v")
            await run.partitions.drain()
    async with open_run() as run:
        with Store(run) as store:
            with pytest.raises(CorruptStorage, match=rf"{beyond} has records.*1 partitions.*older than the data logs"):
                await store.start()
            assert str(beyond) in store.kept()[1]


async def test_partitions_that_cannot_be_led_are_not_added(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of file descriptors: it passes, and the node takes writes as before."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create(partitions=1)
            lead = run.lead

            async def lead_one(logs: tuple[LogId, ...], mode: TransactionMode) -> None:
                await lead(logs[:1], mode)
                raise NoFiles("too many open files")

            with monkeypatch.context() as patch:
                patch.setattr(run, "lead", lead_one)
                with pytest.raises(NoFiles):
                    await store.topics.add_partitions("t", 3, validate_only=False)
            assert store.store.topic("t") == topic
            assert store.kept()[1] == {str(topic.logs()[0])}
            await fill(run, topic)
            grown = await store.topics.add_partitions("t", 3, validate_only=False)
            assert base_of(await run.plain(grown.logs()[2], b"v")) == Offset(0)


async def test_partitions_that_the_store_does_not_take_are_not_led(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic stays as it is, and takes writes."""

    def refuse(_changes: object) -> None:
        raise lmdb.DiskError("Input/output error")

    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create(partitions=1)
            monkeypatch.setattr(store.store, "_write_in_thread", refuse)
            with pytest.raises(StorageFailure, match="Input/output"):
                await store.topics.add_partitions("t", 2, validate_only=False)
            assert store.store.topic("t") == topic
            assert run.partitions.get(LogId.of_topic(topic.topic_id, 1)) is None
            await fill(run, topic)


async def test_partitions_on_a_full_disk_stop_writes_and_are_not_added(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hears of the failure, and so does every other writer; the next start has the topic as it was."""

    @contextmanager
    def full() -> Iterator[DataLogWriter]:
        raise StorageFailure("the map is full")
        yield

    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create(partitions=1)
            await fill(run, topic)
            monkeypatch.setattr(run.data_logs, "write", full)
            with pytest.raises(StorageFailure, match="full"):
                await store.topics.add_partitions("t", 2, validate_only=False)
            assert await run.plain(topic.logs()[0], b"v") is RefusedAppend.STORAGE
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            assert store.store.topic("t") == topic
            assert await run.values(topic.logs()[0]) == [b"v"]
            grown = await store.topics.add_partitions("t", 2, validate_only=False)
            assert base_of(await run.plain(grown.logs()[1], b"v")) == Offset(0)


async def test_partitions_beyond_what_a_node_leads_are_refused(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all topics count; validation alone says the same, and changes nothing where it does not refuse."""
    monkeypatch.setattr("fairlog.topics.NODE_PARTITIONS_MAX", 5)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create("first", 3)
            await store.create("second", 1)
            for validate_only in (True, False):
                with pytest.raises(InvalidPartitions, match="2 partitions more would make 6; a node leads 5"):
                    await store.topics.add_partitions("second", 3, validate_only=validate_only)
                with pytest.raises(InvalidPartitions, match="has 1 partition already"):
                    await store.topics.add_partitions("second", 1, validate_only=validate_only)
                with pytest.raises(UnknownTopic):
                    await store.topics.add_partitions("third", 2, validate_only=validate_only)
            assert (await store.topics.add_partitions("second", 2, validate_only=True)).partitions == 1
            assert [topic.partitions for topic in store.store.topics()] == [3, 1]
            await fill(run, await store.topics.add_partitions("second", 2, validate_only=False))


async def test_partitions_added_are_deleted_with_their_topic(open_run) -> None:
    """Nothing of them stays on disk."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create(partitions=1)
            topic = await store.topics.add_partitions("t", 3, validate_only=False)
            await fill(run, topic)
            await store.topics.delete(topic.topic_id)
            await store.remove_deleted()
            assert store.kept() == (set(), set())


async def test_partitions_asked_for_by_two_at_once_are_added_once(open_run) -> None:
    """The second finds them there. Cancelled in the middle: they are there, and led."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create(partitions=1)
            outcomes: list[object] = []

            async def grow() -> None:
                try:
                    outcomes.append((await store.topics.add_partitions("t", 3, validate_only=False)).partitions)
                except InvalidPartitions:
                    outcomes.append("has them")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(grow)
                nursery.start_soon(grow)
            assert outcomes == [3, "has them"]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(grow_to, store, 4)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            topic = store.store.topic("t")
            assert topic is not None
            assert topic.partitions == 4
            await fill(run, topic)


async def grow_to(store: Store, total: int) -> None:
    await store.topics.add_partitions("t", total, validate_only=False)


# --- configs ---------------------------------------------------------------------------------------


async def test_topic_configs_changed_at_once_by_many_are_all_kept(open_run) -> None:
    """Each changes what the last one left, and a restart finds all of it."""
    names = [f"config-{number}" for number in range(4)]
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create()
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(store.topics.alter_configs, "t", lambda own, name=name: {**own, name: "1"})
    async with open_run() as run:
        with Store(run) as store:
            (topic,) = store.store.topics()
            assert topic.configs == dict.fromkeys(names, "1")


async def test_topic_configs_that_stay_the_same_are_not_written(open_run) -> None:
    """Nor is anything when the change refuses: whoever keeps answers need not make them anew."""

    def refuse(_own: Mapping[str, str]) -> Mapping[str, str]:
        raise ValueError("no")

    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create()
            generation = store.store.generation
            await store.topics.alter_configs("t", dict)
            with pytest.raises(ValueError, match="no"):
                await store.topics.alter_configs("t", refuse)
            with pytest.raises(UnknownTopic):
                await store.topics.alter_configs("none", dict)
            assert store.store.generation == generation


# --- deleting records ------------------------------------------------------------------------------


async def bounds(run: Run, log: LogId) -> Bounds:
    return await trio.to_thread.run_sync(run.data_logs.bounds, log)


async def test_records_deleted_stay_away_after_a_restart(open_run) -> None:
    """The log begins where it was told to, offsets stay, and what is written goes on behind the last one."""
    async with open_run() as run:
        await run.start(A, B)
        for number in range(5):
            await run.plain(A, b"%d" % number)
            await run.plain(B, b"%d" % number)
        await run.partitions.drain()
        assert await run[A].delete_before(Offset(3)) == Offset(3)
        assert run[A].visibility.log_start == Offset(3)
        assert (await bounds(run, A)).log_start == Offset(3)
        assert await run[A].delete_before(Offset(1)) == Offset(3), "what is gone does not come back"
        assert await run[B].delete_before(Offset(5)) == Offset(5), "all of it"
    async with open_run() as run:
        await run.start(A, B)
        assert (run[A].visibility.log_start, run[B].visibility.log_start) == (Offset(3), Offset(5))
        assert (await bounds(run, B)).size_bytes == 0
        assert base_of(await run.plain(A, b"more")) == Offset(5)
        assert base_of(await run.plain(B, b"more")) == Offset(5)


@pytest.mark.parametrize("fsync", [Fsync.COMMIT, Fsync.NEVER])
async def test_records_deleted_are_gone_in_the_journal_before_the_data_log_begins_later(
    open_run, monkeypatch: pytest.MonkeyPatch, fsync: Fsync
) -> None:
    """Its frame is on disk by then, whatever is promised of batches: what an answer says outlives a loss of power."""
    async with open_run(fsync=fsync) as run:
        await run.start(A)
        for _ in range(2):
            await run.plain(A, b"v")
        await run.partitions.drain()
        delete = Partition._delete_some  # pyright: ignore[reportPrivateUsage]
        on_disk: list[tuple[Offset, bool]] = []

        def watched(partition: Partition, offset: Offset) -> bool:
            journal = partition.journal
            assert isinstance(journal, Journal)
            on_disk.append((partition.state.log_start, journal._synced == journal.end))  # pyright: ignore[reportPrivateUsage]
            return delete(partition, offset)

        monkeypatch.setattr(Partition, "_delete_some", watched)
        assert await run[A].delete_before(Offset(1)) == 1
        assert on_disk == [(1, True)] * 2


async def test_records_deleted_stay_away_after_a_loss_of_power_that_takes_the_data_logs_last_commits(
    open_run, tmp_path
) -> None:
    """They are not synced (`metasync=False`): the journal alone lets the log begin where it was answered."""
    async with open_run() as run:
        await run.start(A)
        for number in range(5):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        size_bytes = run.data_logs.bounds(A).size_bytes
        before = run.crash(tmp_path / "before")
        assert await run[A].delete_before(Offset(3)) == Offset(3)
        after = run.crash(tmp_path / "after")
    shutil.rmtree(after / DATA_LOGS)
    shutil.copytree(before / DATA_LOGS, after / DATA_LOGS)
    async with open_run(after) as run:
        await run.start(A)
        assert run[A].visibility.log_start == (await bounds(run, A)).log_start == Offset(3)
        assert run[A].has_remains
        await run[A].sweep()
        assert not run[A].has_remains
        assert run.data_logs.bounds(A).size_bytes == 2 * size_bytes // 5
        assert await run[A].delete_before(Offset(1)) == Offset(3)


async def test_records_whose_deletion_was_given_up_behind_its_frame_are_gone_before_long(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs up in between: the copier lets the log begin there, and asking again writes no more."""

    async def has_a_long_way_to_go(*_: object) -> None:
        await trio.sleep_forever()

    async with open_run() as run:
        await run.start(A)
        for number in range(5):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        with monkeypatch.context() as patch, trio.move_on_after(0.05):
            patch.setattr(Partition, "_delete_through", has_a_long_way_to_go)
            await run[A].delete_before(Offset(3))
        assert (run[A].visibility.log_start, run[A].state.log_start) == (0, 3)
        await run.partitions.drain()
        assert run[A].visibility.log_start == (await bounds(run, A)).log_start == Offset(3)
        end = run[A].journal.end
        assert await run[A].delete_before(Offset(3)) == Offset(3)
        assert run[A].journal.end == end


async def test_records_deleted_that_the_journal_does_not_keep_stay(open_run) -> None:
    """Nothing is gone from the data log that a restart would not know to be gone; and writes are refused."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        run.disk.failing = str(A)
        with pytest.raises(StorageFailure, match="fdatasync"):
            await run[A].delete_before(Offset(1))
        assert (await bounds(run, A)).log_start == Offset(0)
        assert run.failure is not None


async def test_records_are_deleted_with_the_journals_reserve_when_its_disk_is_full(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what gives room back. Where even that is used up, the deletion is refused, and nothing else."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with open_run() as run:
        await run.start(A)
        for number in range(400):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        journal = run[A].journal
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "extend", full)
            patch.setattr(SegmentFile, "create", full)
            while journal.has_room(0):
                run[A].write(Fence(ProducerId(1), ProducerEpoch(0)))
            for offset in range(1, 400):
                try:
                    assert await run[A].delete_before(Offset(offset)) == offset
                except NoRoomInJournal:
                    break
            else:
                pytest.fail("the reserve has no end")
            assert offset > 100
            assert (run.failure, run[A].state.log_start) == (None, offset - 1)
            assert (await bounds(run, A)).log_start == offset - 1
        assert await run[A].delete_before(Offset(offset)) == offset


async def test_log_of_an_earlier_release_goes_on_in_a_new_segment(
    open_run, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that release has written is read; it refuses what this one has written, and says that it is newer."""

    def as_version(number: int) -> None:
        monkeypatch.setitem(segment.VERSIONS, JournalKind.LOCAL, number)

    def versions(run: Run, log: LogId) -> list[int]:
        return [path.read_bytes()[8] for path in sorted((run.directory / JOURNALS / str(log)).glob("*.journal"))]

    as_version(3)
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"v")
        await run[B].journal.begin()
        await run.partitions.drain()
        await run.partitions.close()
        assert (versions(run, A), versions(run, B)) == ([3], [3])
        old = run.crash(tmp_path / "old")
    as_version(4)
    for values in ([b"v"], []):
        async with open_run(old) as run:
            await run.start(A, B)
            assert (versions(run, A), versions(run, B)) == ([3, 4], [4])
            assert not values or await run.values(A) == values
            assert await run[A].delete_before(Offset(1)) == 1
            old = run.crash(tmp_path / f"old{run.partitions.leader_epoch}")
    async with open_run(old) as run:
        await run.start(A, B)
        assert base_of(await run.plain(A, b"w")) == Offset(1)
        assert run[A].visibility.log_start == 1
        old = run.crash(tmp_path / "new")
    as_version(3)
    async with open_run(old) as run:
        with pytest.raises(CorruptStorage, match="written by a newer Fairlog"):
            await run.lead([A])


async def test_records_deleted_in_steps_let_others_write_between_them(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start moves at once; no write of the data logs lasts as long as all of the deletion."""
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 2)
    async with open_run() as run:
        await run.start(A)
        for number in range(7):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        size = run.data_logs.bounds(A).size_bytes // 7
        left: list[int] = []
        delete = Partition._delete_some  # pyright: ignore[reportPrivateUsage]

        def watched(partition: Partition, offset: Offset) -> bool:
            left.append(run.data_logs.bounds(partition.log).size_bytes // size)
            more = delete(partition, offset)
            assert run.data_logs.bounds(partition.log).log_start == offset
            return more

        monkeypatch.setattr(Partition, "_delete_some", watched)
        assert await run[A].delete_before(Offset(7)) == Offset(7)
        assert left == [7, 5, 3, 1, 0]


async def test_records_deleted_half_before_a_crash_are_deleted_by_asking_again(
    open_run, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled, or killed, between two steps: the log begins where it was told to, and its batches can still go."""
    monkeypatch.setattr(partition_module, "DELETE_BATCHES_MAX", 2)
    async with open_run() as run:
        await run.start(A)
        for number in range(6):
            await run.plain(A, b"%d" % number)
        await run.partitions.drain()
        delete = Partition._delete_some  # pyright: ignore[reportPrivateUsage]
        with trio.CancelScope() as scope:

            def once(partition: Partition, offset: Offset) -> bool:
                more = delete(partition, offset)
                trio.from_thread.run_sync(scope.cancel)
                return more

            monkeypatch.setattr(Partition, "_delete_some", once)
            await run[A].delete_before(Offset(6))
        left = run.crash(tmp_path / "crashed")
    async with open_run(left) as run:
        await run.start(A)
        assert run[A].visibility.log_start == Offset(6)
        assert (await bounds(run, A)).size_bytes > 0
        assert await run[A].delete_before(Offset(0)) == Offset(6)
        assert (await bounds(run, A)).size_bytes == 0
        assert base_of(await run.plain(A, b"more")) == Offset(6)


async def test_records_of_a_log_that_is_dropped_meanwhile_need_no_deleting(open_run) -> None:
    """The topic's deletion takes them along."""
    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        with run.data_logs.write() as writer:
            writer.drop(A)
        assert await run[A].delete_before(Offset(1)) is None


async def test_records_that_the_disk_does_not_delete_stop_writes(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed commit left is not known (invariant 12); records that were not deleted can still be read."""

    @contextmanager
    def failing(*, room_bytes: int = 0) -> Iterator[DataLogWriter]:
        raise StorageFailure("Input/output error")
        yield

    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        with monkeypatch.context() as patch:
            patch.setattr(run.data_logs, "write", failing)
            with pytest.raises(StorageFailure, match="Input/output"):
                await run[A].delete_before(Offset(1))
        assert run[A].visibility.log_start == Offset(0)
        assert await run.values(A) == [b"v"]
        assert await run.plain(A, b"v") is RefusedAppend.STORAGE
        with pytest.raises(StorageFailure):
            await run[A].delete_before(Offset(1))


async def test_records_that_a_full_disk_does_not_delete_stop_no_writes(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was tried: the records can be read, others can be written, and the deletion is for another time."""

    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with open_run() as run:
        await run.start(A)
        await run.plain(A, b"v")
        await run.partitions.drain()
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", full)
            with pytest.raises(NoRoom, match="No space left"):
                await run[A].delete_before(Offset(1))
            await run.partitions.drain()
        assert (run[A].visibility.log_start, run[A].state.log_start) == (Offset(0), Offset(0))
        assert base_of(await run.plain(A, b"w")) == Offset(1)
        assert await run[A].delete_before(Offset(1)) == Offset(1)


async def test_leader_epochs_of_a_log_end_where_the_next_start_began(open_run) -> None:
    """Records carry the epoch of the start that placed them, whenever they are copied."""
    for _ in range(3):
        async with open_run() as run:
            await run.start(A)
            await run.plain(A, b"v")
            await run.plain(A, b"v")
            await run.partitions.drain()
    async with open_run() as run:
        await run.start(A)
        ends = [run.data_logs.end_of_epoch(A, LeaderEpoch(epoch)) for epoch in range(5)]
        assert ends == [
            EpochEnd(None, Offset(0)),
            EpochEnd(LeaderEpoch(1), Offset(2)),
            EpochEnd(LeaderEpoch(2), Offset(4)),
            EpochEnd(LeaderEpoch(3), Offset(6)),
            EpochEnd(LeaderEpoch(3), Offset(6)),
        ]
