"""The embedded cluster store: what it answers, what it keeps, and what it refuses."""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
import trio

from fairlog.cluster import records
from fairlog.cluster.embedded import EmbeddedStore, StoreMismatch
from fairlog.cluster.interface import ClusterStore, InvalidPartitions, InvalidTopic, TopicExists, UnknownTopic
from fairlog_types import CorruptStorage, StorageFailure

OpenStore = Callable[..., EmbeddedStore]


def test_store_first_start_makes_a_cluster_id_like_kafkas(open_store: OpenStore) -> None:
    """A new directory gets 22 URL-safe characters as the cluster's id, for good."""
    store: ClusterStore = open_store()
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", store.cluster_id)
    assert open_store().cluster_id == store.cluster_id


def test_store_is_closed_to_others_and_left_to_the_group(open_store: OpenStore, tmp_path: Path) -> None:
    """It has users' credentials. The group that an operator has let in, to read topics' names, may go on."""
    directory = tmp_path / "cluster"
    paths = [directory / "data.mdb", directory / "lock.mdb"]

    def modes() -> list[int]:
        return [stat.S_IMODE(path.stat().st_mode) for path in paths]

    before = os.umask(0o022)
    try:
        open_store()
    finally:
        os.umask(before)
    assert modes() == [0o600, 0o600]
    for path, mode in zip(paths, (0o644, 0o666), strict=True):
        path.chmod(mode)
    open_store()
    assert modes() == [0o640, 0o660]


def test_store_each_start_raises_the_leader_epoch(open_store: OpenStore) -> None:
    """The leader epoch is the count of starts, so what an earlier start promised can be told apart."""
    assert [open_store().starts for _ in range(3)] == [1, 2, 3]


def test_store_group_journal_count_is_that_of_the_first_start(open_store: OpenStore) -> None:
    """Transactional ids must be hashed over as many group journals as ever."""
    open_store(group_journal_count=4)
    assert open_store(group_journal_count=32).group_journal_count == 4


def test_store_without_offsets_logs_is_corrupt(open_store: OpenStore, tmp_path: Path) -> None:
    """Groups that are hashed over another count of logs would not find their offsets: never guessed, never 0."""
    open_store().close()
    for damage in (
        lambda transaction: transaction.put(records.OFFSETS_LOGS_KEY, records.encode_count(0)),
        lambda transaction: transaction.delete(records.OFFSETS_LOGS_KEY),
    ):
        with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
            damage(transaction)
        with pytest.raises(CorruptStorage, match="offsets-logs"):
            open_store()


def test_store_of_another_node_is_refused_naming_both_ids(open_store: OpenStore) -> None:
    """A directory is one node's; the refused start is not counted."""
    open_store(node_id=3)
    with pytest.raises(StoreMismatch, match="node 3, but node_id is 7"):
        open_store(node_id=7)
    assert open_store(node_id=3).starts == 2


async def test_topic_created_is_found_by_name_and_id_also_after_a_restart(open_store: OpenStore) -> None:
    """A topic that was answered as created is there, with all its values, after a restart."""
    topic = await open_store().create_topic("orders", partitions=3, configs={"retention.ms": "1000"}, now_ms=123)
    store = open_store()
    assert store.topic("orders") == topic
    assert store.topic_by_id(topic.topic_id) == topic
    assert list(store.topics()) == [topic]
    assert (topic.partitions, dict(topic.configs), topic.created_ms) == (3, {"retention.ms": "1000"}, 123)


async def test_topic_created_twice_is_refused(open_store: OpenStore) -> None:
    """Two clients that create the same topic at once get one topic, and one of them an error."""
    store = open_store()
    outcomes: list[str] = []

    async def create() -> None:
        try:
            await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
            outcomes.append("created")
        except TopicExists:
            outcomes.append("exists")

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(create)
    assert sorted(outcomes) == ["created", "exists", "exists"]


async def test_topic_name_that_differs_in_dot_against_underscore_collides(open_store: OpenStore) -> None:
    """a.b and a_b cannot both be, until one is deleted."""
    store = open_store()
    await store.create_topic("a.b", partitions=1, configs={}, now_ms=0)
    store = open_store()
    with pytest.raises(InvalidTopic, match=r"a_b collides with a\.b"):
        await store.create_topic("a_b", partitions=1, configs={}, now_ms=0)
    await store.delete_topic("a.b")
    await store.create_topic("a_b", partitions=1, configs={}, now_ms=0)


async def test_topic_deleted_stays_to_be_dropped_until_it_is_forgotten(open_store: OpenStore) -> None:
    """A crash between the two phases of a deletion leaves the topic to be dropped, not to be served."""
    topic = await open_store().create_topic("orders", partitions=1, configs={}, now_ms=0)
    await open_store().delete_topic("orders")
    store = open_store()
    assert store.topic("orders") is None
    assert store.topic_by_id(topic.topic_id) is None
    assert list(store.deleting()) == [topic]
    await store.forget_topic(topic.topic_id)
    await store.forget_topic(topic.topic_id)
    assert list(store.deleting()) == []
    assert list(open_store().deleting()) == []


async def test_topic_name_is_free_while_its_old_data_is_dropped(open_store: OpenStore) -> None:
    """A topic made anew under the same name is another one, with logs of its own."""
    store = open_store()
    old = await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    await store.delete_topic("orders")
    new = await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    assert not set(old.logs()) & set(new.logs())
    assert list(store.deleting()) == [old]
    await store.forget_topic(old.topic_id)
    assert list(open_store().topics()) == [new]


async def test_topic_that_is_not_there_cannot_be_deleted(open_store: OpenStore) -> None:
    """Deleting twice tells the second that there is nothing."""
    store = open_store()
    with pytest.raises(UnknownTopic):
        await store.delete_topic("orders")


async def test_topic_configs_set_replace_those_before_also_after_a_restart(open_store: OpenStore) -> None:
    """All of them, and nothing else of the topic; who holds the topic as it was keeps it as it was."""
    store = open_store()
    before = await store.create_topic(
        "orders", partitions=3, configs={"retention.ms": "1", "flush.ms": "2"}, now_ms=123
    )
    after = await store.alter_topic_configs("orders", lambda _: {"retention.ms": "9"})
    assert after == dataclasses.replace(before, configs={"retention.ms": "9"})
    assert before.configs == {"retention.ms": "1", "flush.ms": "2"}
    assert store.topic("orders") == store.topic_by_id(before.topic_id) == after
    assert list(open_store().topics()) == [after]


async def test_configs_of_brokers_are_kept_also_over_a_restart(open_store: OpenStore) -> None:
    """Each broker's apart from those of all; the last that was set counts as a whole."""
    store = open_store()
    assert store.broker_configs("1") == {}
    await store.alter_broker_configs("", lambda _: {"log.retention.ms": "5"})
    await store.alter_broker_configs("1", lambda _: {"log.retention.ms": "6", "max.connections": "7"})
    await store.alter_broker_configs("1", lambda _: {"max.connections": "8"})
    for each in (store, open_store()):
        assert (each.broker_configs(""), each.broker_configs("1")) == (
            {"log.retention.ms": "5"},
            {"max.connections": "8"},
        )


async def test_configs_of_groups_are_kept_also_over_a_restart(open_store: OpenStore) -> None:
    """Whatever the group is called; one whose configs were all taken back leaves nothing."""
    longest = "é" * 512
    store = open_store()
    await store.alter_group_configs("g", lambda _: {"consumer.session.timeout.ms": "50000"})
    await store.alter_group_configs(longest, lambda _: {"consumer.heartbeat.interval.ms": "6000"})
    await store.alter_group_configs("gone", lambda _: {"consumer.heartbeat.interval.ms": "6000"})
    await store.alter_group_configs("gone", lambda _: {})
    await store.alter_group_configs("never", lambda _: {})
    for each in (store, open_store()):
        assert sorted(each.configured_groups()) == ["g", longest]
        assert each.group_configs("g") == {"consumer.session.timeout.ms": "50000"}
        assert each.group_configs(longest) == {"consumer.heartbeat.interval.ms": "6000"}
        assert each.group_configs("gone") == each.group_configs("never") == {}


async def test_partitions_added_are_led_here_also_after_a_restart(open_store: OpenStore) -> None:
    """Old logs stay what they are, new ones come behind them."""
    store = open_store()
    before = await store.create_topic("orders", partitions=2, configs={"flush.ms": "2"}, now_ms=123)
    after = await store.add_partitions("orders", 5)
    assert after == dataclasses.replace(before, partitions=5)
    assert after.logs()[:2] == before.logs()
    assert list(store.topics()) == [after]
    store = open_store()
    assert list(store.topics()) == [after]
    assert store.leaders(after) == [(1, 2)] * 5


async def test_partitions_cannot_become_fewer(open_store: OpenStore) -> None:
    """Nor as many as there are, nor more than a topic may have; the topic stays as it is."""
    store = open_store()
    topic = await store.create_topic("orders", partitions=2, configs={}, now_ms=0)
    for total in (1, 2, 100_001):
        with pytest.raises(InvalidPartitions):
            await store.add_partitions("orders", total)
    assert list(open_store().topics()) == [topic]


async def test_topic_that_is_not_there_cannot_be_changed(open_store: OpenStore) -> None:
    """Nor one that is being deleted."""
    store = open_store()
    await store.create_topic("dying", partitions=1, configs={}, now_ms=0)
    await store.delete_topic("dying")
    for name in ("dying", "never"):
        with pytest.raises(UnknownTopic):
            await store.alter_topic_configs(name, lambda _: {})
        with pytest.raises(UnknownTopic):
            await store.add_partitions(name, 7)


async def test_generation_grows_with_every_visible_change(open_store: OpenStore) -> None:
    """A cached answer is known to be stale after each change of a topic, and fresh after a refused one."""
    store = open_store()
    seen = [store.generation]
    await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    seen.append(store.generation)
    await store.add_partitions("orders", 2)
    seen.append(store.generation)
    await store.alter_topic_configs("orders", lambda _: {"flush.ms": "1"})
    seen.append(store.generation)
    await store.delete_topic("orders")
    seen.append(store.generation)
    assert seen == sorted(set(seen))
    with pytest.raises(UnknownTopic):
        await store.delete_topic("orders")
    assert store.generation == seen[-1]


async def test_leader_of_a_partition_that_is_served_is_this_node(open_store: OpenStore) -> None:
    """In the epoch of this start."""
    topic = await open_store().create_topic("orders", partitions=2, configs={}, now_ms=0)
    assert open_store(node_id=1).leaders(topic) == [(1, 2), (1, 2)]


async def test_producer_ids_are_never_given_twice(open_store: OpenStore) -> None:
    """Blocks do not overlap, neither among tasks nor over restarts."""
    given: list[int] = []
    for _ in range(2):
        store = open_store()

        async def take(store: EmbeddedStore = store) -> None:
            given.extend(await store.allot_producer_ids(10))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take)
    assert len(given) == len(set(given)) == 60


async def test_change_that_lmdb_refuses_leaves_memory_as_it_was(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that refuses gives StorageFailure, and no reader ever sees what is not durable."""
    store = open_store()

    def refuse(_changes: object) -> None:
        raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL")

    monkeypatch.setattr(store, "_write_in_thread", refuse)
    generation = store.generation
    with pytest.raises(StorageFailure, match="MDB_MAP_FULL"):
        await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    assert store.topic("orders") is None
    assert store.generation == generation


async def test_store_after_a_failed_change_refuses_all_later_ones_until_a_restart(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 12: what a failed commit left in the file is not known, so nothing is written behind it."""
    store = open_store()
    kept = await store.create_topic("kept", partitions=1, configs={}, now_ms=0)

    def refuse(_changes: object) -> None:
        raise lmdb.DiskError("mdb_txn_commit: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_write_in_thread", refuse)
        with pytest.raises(StorageFailure, match="Input/output error"):
            await store.allot_producer_ids(1)
    for change in (
        lambda: store.create_topic("orders", partitions=1, configs={}, now_ms=0),
        lambda: store.alter_topic_configs("kept", lambda _: {"flush.ms": "1"}),
        lambda: store.add_partitions("kept", 2),
        lambda: store.delete_topic("kept"),
        lambda: store.allot_producer_ids(1),
    ):
        with pytest.raises(StorageFailure, match=r"Input/output error.*restart the node"):
            await change()
    assert list(store.topics()) == [kept]
    assert list(open_store().topics()) == [kept]
    assert await open_store().allot_producer_ids(1) == range(1)


async def test_change_that_is_cancelled_leaves_memory_and_disk_alike(open_store: OpenStore) -> None:
    """A caller that is gone cannot leave a topic on disk that memory does not know."""
    store = open_store()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    in_memory = list(store.topics())
    assert list(open_store().topics()) == in_memory


def test_store_with_a_strange_record_is_refused_naming_file_and_record(open_store: OpenStore, tmp_path: Path) -> None:
    """A record that is not what was written is corruption, not something to guess at."""
    open_store().close()
    with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.NODE_KEY, b"\x83\x01\x02\x03")
    with pytest.raises(CorruptStorage, match=r"cluster/data\.mdb is corrupt: the record 'node' reads \[1, 2, 3\]"):
        open_store()


def test_store_that_lacks_a_record_is_refused_naming_it(open_store: OpenStore, tmp_path: Path) -> None:
    """A store without its count of starts would give old leader epochs again: refused."""
    open_store().close()
    with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.delete(records.STARTS_KEY)
    with pytest.raises(CorruptStorage, match="lacks the record b'starts'"):
        open_store()


def test_store_of_a_newer_format_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """An older program does not touch a newer program's store."""
    open_store().close()
    with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.put(records.FORMAT_KEY, b"\x82\x6ffairlog-cluster\x06")
    with pytest.raises(StoreMismatch, match="format 6"):
        open_store()


def test_store_that_is_no_lmdb_file_is_refused_naming_it(open_store: OpenStore, tmp_path: Path) -> None:
    """A file full of something else is corruption."""
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptStorage, match=r"data\.mdb"):
        open_store()


@pytest.mark.slow
def test_store_killed_right_after_an_answer_has_what_was_answered(tmp_path: Path) -> None:
    """SIGKILL behind an answered change loses nothing of it."""
    program = textwrap.dedent(
        """
        import os, signal, sys, trio
        from pathlib import Path
        from fairlog.cluster.embedded import EmbeddedStore

        async def main():
            store = EmbeddedStore.open(Path(sys.argv[1]), node_id=1, group_journal_count=16)
            await store.create_topic("kept", partitions=2, configs={}, now_ms=5)
            await store.alter_topic_configs("kept", lambda _: {"flush.ms": "1"})
            await store.add_partitions("kept", 3)
            await store.create_topic("dying", partitions=1, configs={}, now_ms=5)
            await store.delete_topic("dying")
            await store.allot_producer_ids(1000)
            os.kill(os.getpid(), signal.SIGKILL)

        trio.run(main)
        """
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path / "cluster")], check=False, cwd=Path.cwd())
    assert killed.returncode == -9
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16)
    try:
        assert [(topic.name, topic.partitions, topic.configs) for topic in store.topics()] == [
            ("kept", 3, {"flush.ms": "1"})
        ]
        assert [topic.name for topic in store.deleting()] == ["dying"]
        assert trio.run(store.allot_producer_ids, 1).start == 1000
    finally:
        store.close()
