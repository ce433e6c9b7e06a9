"""Topics come and go with their journals and data logs, whenever a crash falls in between."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from datalog import environment, layout
from datalog.interface import DataLogWriter
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.interface import InvalidTopic, Topic, TopicExists, UnknownTopic
from fairlog.config import Settings
from fairlog.kafka.api import Client, Context
from fairlog.kafka.topic_lookup import find_or_create
from fairlog.topics import LocalTopics
from fairlog_types import LogId, Offset, StorageFailure
from partition.answers import Appended, RefusedAppend
from tests.shard.runs import DATA_LOGS, JOURNALS, A, B, Run, base_of, wait_for_more


class Store:
    """The cluster store of one run, and the topics over it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.store = EmbeddedStore.open(run.directory / "cluster", node_id=1, group_journal_count=1)
        self.topics = LocalTopics(self.store, run, run.clock)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    async def start(self) -> None:
        await self.topics.recover()
        await self.run.serve()

    async def remove_deleted(self) -> None:
        """Let the background do its work until it has nothing more to do."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.topics.run)
            await self.wait_until_removed()
            nursery.cancel_scope.cancel()

    async def wait_until_removed(self) -> None:
        with trio.fail_after(10):
            while self.store.deleting():
                await trio.testing.wait_all_tasks_blocked(0.001)

    async def create(self, name: str = "t", partitions: int = 2) -> Topic:
        return await self.topics.create(name, partitions=partitions, configs={})

    def kept(self) -> tuple[set[str], set[str]]:
        """The logs that have a journal on disk, and those that have a data log."""
        journals = self.run.directory / JOURNALS
        names = {path.name for path in journals.iterdir()} if journals.exists() else set[str]()
        return names, {str(log) for log in self.run.data_logs.logs()}


def names(logs: tuple[LogId, ...]) -> set[str]:
    return {str(log) for log in logs}


async def fill(run: Run, topic: Topic) -> None:
    for log in topic.logs():
        assert isinstance(await run.plain(log, b"v", producer_id=3, epoch=0, sequence=0), Appended)
    await run.partitions.drain()


async def test_topic_created_takes_batches_at_once(open_run) -> None:
    """All partitions are led when `create` returns, and after a restart."""
    for start in range(2):
        async with open_run() as run:
            with Store(run) as store:
                await store.start()
                topic = store.store.topic("t") or await store.create()
                for log in topic.logs():
                    assert base_of(await run.plain(log, b"v")) == Offset(start)


async def test_topic_made_on_first_use_has_one_line_in_the_log(open_run) -> None:
    """And the line tells it from one that was asked for."""
    async with open_run() as run:
        with Store(run) as store, capture_logs([merge_contextvars]) as lines:
            await store.start()
            broker: Any = SimpleNamespace(cluster=store.store, topics=store.topics, settings=Settings())
            context = Context(broker, Client(1, "peer:1"), 0, False, {})
            for _ in range(2):
                found = await find_or_create(context, "used", may_create=True)
                assert found == store.store.topic("used")
            await store.create("made")
    said = [(line["event"], line["topic"], line.get("on_first_use")) for line in lines if "topic" in line]
    assert said == [("topic created", "used", True), ("topic created", "made", None)]


async def test_topic_created_by_many_at_once_is_made_once(open_run) -> None:
    """One of them makes it; the others hear that it exists, and may use it as soon as they hear it."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            outcomes: list[object] = []

            async def create() -> None:
                try:
                    outcomes.append(await store.create())
                except TopicExists:
                    topic = store.store.topic("t")
                    assert topic is not None
                    outcomes.append(await run.plain(topic.logs()[1], b"v"))

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(create)
            assert [type(it) for it in outcomes] == [Topic, Appended, Appended, Appended]
            assert len(store.store.topics()) == 1


async def test_topic_creation_cancelled_makes_the_topic_whole_or_not_at_all(open_run) -> None:
    """Cancelled in the queue: nothing. Cancelled in the middle: the topic is there with all its partitions."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            async with trio.open_nursery() as nursery:
                with run.data_logs.write():  # without which neither comes to its end
                    nursery.start_soon(store.create, "first")
                    nursery.start_soon(store.create, "second")
                    await trio.testing.wait_all_tasks_blocked()
                    nursery.cancel_scope.cancel()
            (topic,) = store.store.topics()
            await fill(run, topic)
            assert store.kept() == (names(topic.logs()), names(topic.logs()))


async def test_topic_created_before_a_crash_and_not_led_yet_is_led_by_the_next_start(open_run) -> None:
    """The store's entry comes first: a restart makes what hangs on it."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.store.create_topic("t", partitions=2, configs={}, now_ms=0)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            (topic,) = store.store.topics()
            await fill(run, topic)


async def test_topic_creation_that_the_disk_refuses_stops_writes_until_the_next_start(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client hears of the failure, and so does every other writer; a restart makes the topic good."""

    @contextmanager
    def full() -> Iterator[DataLogWriter]:
        raise StorageFailure("the map is full")
        yield

    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create("before")
            monkeypatch.setattr(run.data_logs, "write", full)
            with pytest.raises(StorageFailure, match="full"):
                await store.create("t")
            assert store.store.topic("t") is None, "it could not be led at the next start either"
            before = store.store.topic("before")
            assert before is not None
            assert await run.plain(before.logs()[0], b"v") is RefusedAppend.STORAGE
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            for topic in store.store.topics():
                await fill(run, topic)


async def test_topic_with_more_partitions_than_a_node_leads_is_refused(open_run, monkeypatch) -> None:
    """Before anything is written: a topic that cannot be led must not be met at the next start. All topics count."""
    monkeypatch.setattr("fairlog.topics.NODE_PARTITIONS_MAX", 5)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.create("first", 3)
            with pytest.raises(InvalidTopic, match="a node leads 5"):
                await store.create("second", 3)
            assert [topic.name for topic in store.store.topics()] == ["first"]
            await fill(run, await store.create("second", 2))


async def test_topic_with_many_partitions_is_made_and_removed_in_steps(open_run, monkeypatch) -> None:
    """Who writes meanwhile waits for one step, not for twenty thousand partitions: nobody else can write within one."""
    monkeypatch.setattr("partition.store.STEP_LOGS", 3)
    sizes: list[int] = []
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            other = (await store.create("other", 1)).logs()[0]
            write = run.data_logs.write

            @contextmanager
            def measured() -> Iterator[DataLogWriter]:
                before = len(run.data_logs.logs())
                with write() as writer:
                    yield writer
                sizes.append(len(run.data_logs.logs()) - before)

            monkeypatch.setattr(run.data_logs, "write", measured)
            topic = await store.create("t", 8)
            assert sizes == [3, 3, 2]
            assert base_of(await run.plain(topic.logs()[7], b"v")) == Offset(0)
            await run.partitions.drain()
            await store.topics.delete(topic.topic_id)
            sizes.clear()
            await store.remove_deleted()
            assert sizes == [-3, -3, -2]
            assert store.kept() == (set(), {str(other)})


async def test_topic_deleted_is_gone_at_once_and_its_space_soon(open_run) -> None:
    """The name is free when `delete` returns; journals and data logs follow, those of another topic stay."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            old, other = await store.create(), await store.create("other", 1)
            await fill(run, old)
            await fill(run, other)
            await store.topics.delete(old.topic_id)
            assert store.store.topic("t") is None
            new = await store.create()
            await fill(run, new)
            await store.remove_deleted()
            left = names(new.logs() + other.logs())
            assert store.kept() == (left, left)
            assert await run.values(new.logs()[0]) == [b"v"]
            with pytest.raises(UnknownTopic):
                await store.topics.delete(old.topic_id)


async def test_topic_deleted_wakes_who_waits_for_it(open_run) -> None:
    """A consumer that tails a deleted topic is not left waiting."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_more, run, {topic.logs()[0]: Offset(0)})
                await trio.testing.wait_all_tasks_blocked()
                await store.topics.delete(topic.topic_id)
                await store.remove_deleted()


async def test_topic_deleted_before_a_crash_is_removed_by_the_next_start(open_run) -> None:
    """Phase one is durable when it is answered: the topic does not come back, its data go."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create()
            await fill(run, topic)
            await store.topics.delete(topic.topic_id)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            assert store.store.topics() == []
            assert run.partitions.get(topic.logs()[0]) is None
            assert store.kept() == (names(topic.logs()), names(topic.logs()))
            await store.remove_deleted()
            assert store.kept() == (set(), set())


@pytest.mark.parametrize("removed", [JOURNALS, DATA_LOGS])
async def test_topic_half_removed_before_a_crash_is_removed_whole_by_the_next_start(open_run, removed: str) -> None:
    """Between the two phases every part may be missing already."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create()
            await fill(run, topic)
            await store.topics.delete(topic.topic_id)
            await run.partitions.drop(topic.logs()[:1])
            if removed == DATA_LOGS:
                with run.data_logs.write() as writer:
                    writer.drop(topic.logs()[1])
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await store.remove_deleted()
            assert store.kept() == (set(), set())
            assert store.store.deleting() == ()


async def test_topic_that_cannot_be_removed_stays_marked_and_does_no_harm(
    open_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node serves on, and the removal is tried again with the next deletion or start."""
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            first, second = await store.create("first"), await store.create("second")
            await fill(run, first)
            drop, refusals = run.partitions.drop, [StorageFailure("busy")]

            async def refuse_once(logs: tuple[LogId, ...]) -> None:
                if refusals:
                    raise refusals.pop()
                await drop(logs)

            monkeypatch.setattr(run.partitions, "drop", refuse_once)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.topics.run)
                await store.topics.delete(first.topic_id)
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert store.store.deleting() == (first,)
                await store.topics.delete(second.topic_id)
                await store.wait_until_removed()
                nursery.cancel_scope.cancel()


async def test_topic_whose_files_cannot_be_removed_for_now_is_removed_later(open_run, monkeypatch) -> None:
    """A want of file descriptors passes, and nobody has to delete another topic for it; it is said once."""
    monkeypatch.setattr("fairlog.topics.REMOVE_AGAIN_S", 0.01)
    remove, refusals = shutil.rmtree, [OSError(errno.EMFILE, "no file descriptors")] * 3

    def remove_after_refusals(path: Path) -> None:
        if refusals:
            raise refusals.pop()
        remove(path)

    async with open_run() as run:
        with Store(run) as store, capture_logs() as lines:
            await store.start()
            topic = await store.create()
            await fill(run, topic)
            monkeypatch.setattr(shutil, "rmtree", remove_after_refusals)
            await store.topics.delete(topic.topic_id)
            await store.remove_deleted()
            assert store.kept() == (set(), set())
    told = [line["event"] for line in lines if "removed" in line["event"]]
    assert told == ["deleted topic not removed yet", "deleted topic removed after all"]


async def test_topic_for_which_no_name_is_left_is_refused_alone(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a restart the names of deleted logs are taken; the topics that there are take batches, and can go."""
    monkeypatch.setattr(environment, "DATABASES_MAX", len(layout.TABLES) + 3)
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            topic = await store.create("t", 2)
            with pytest.raises(StorageFailure, match="too many logs"):
                await store.create("another", 2)
            with pytest.raises(StorageFailure, match="too many logs"):
                await store.topics.add_partitions("t", 4, validate_only=False)
            await fill(run, topic)
            assert run.partitions.failure is None
            await store.remove_deleted()
            await store.topics.delete(topic.topic_id)
            await store.remove_deleted()
            assert store.kept() == (set(), set())
    async with open_run() as run:
        with Store(run) as store:
            await store.start()
            await fill(run, await store.create("another", 2))


async def test_topic_removal_meets_a_journal_that_gives_space_back(open_run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that goes while its directory is being removed is no error; a disk that refuses is one."""
    async with open_run() as run:
        await run.start(A, B)
        for log in (A, B):
            await run.plain(log, b"v")
        await run.partitions.drain()
        remove, errors = shutil.rmtree, [FileNotFoundError("gone already")]

        def remove_after_errors(path: Path) -> None:
            if errors:
                raise errors.pop()
            remove(path)

        monkeypatch.setattr(shutil, "rmtree", remove_after_errors)
        await run.partitions.drop([A])
        assert not (run.directory / JOURNALS / str(A)).exists()
        errors.append(PermissionError("read only"))
        with pytest.raises(StorageFailure, match=r"cannot be removed.*read only"):
            await run.partitions.drop([B])
        await run.partitions.drop([B])
        assert not (run.directory / JOURNALS / str(B)).exists()
