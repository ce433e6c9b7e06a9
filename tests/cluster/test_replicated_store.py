"""The store of several machines: what it answers, who waits for what, and which streams it refuses."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock
from uuid import UUID

import pytest
import structlog.testing
import trio
import trio.testing

from fairlog.cluster import cluster_records, metadata_log, metadata_snapshots
from fairlog.cluster.cluster_memory import NodeInUse, NoSuchNode, NoSuchShard, StaleOwner
from fairlog.cluster.cluster_records import ListenerPlaces, NodeNumber, NodeRecord, Ports
from fairlog.cluster.features import FEATURES, FeatureUpdate, UpgradeType
from fairlog.cluster.interface import ClusterStore, InnerAddress, Topic, TopicExists, UnknownTopic
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_entry import Base, Origin, encode_change
from fairlog.cluster.metadata_log import Founding, MetadataLog, OutcomeUnknown
from fairlog.cluster.opening import StoreMismatch
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.exception_groups import leaves
from fairlog_types import CorruptStorage, LeaderEpoch, ShardNumber, StorageFailure
from stream.engine import StreamPosition
from tests.stream.model_engine import CALM, Faults, ModelCluster, ModelStream, open_model

STREAM = "c.metadata"
FOUNDING = Founding(3, 4, 5, "::")
ONE, TWO, THREE = map(NodeNumber, (1, 2, 3))


class Nodes:
    """Nodes on a model of an engine, each with a copy in a directory."""

    def __init__(self, directory: Path, cluster: ModelCluster) -> None:
        self.directory = directory
        self.cluster = cluster

    @property
    def entries(self) -> list[bytes]:
        log = self.cluster.log(STREAM)
        assert log is not None
        return log.entries

    @asynccontextmanager
    async def log(self, name: str, *, founding: Founding | None = FOUNDING) -> AsyncIterator[MetadataLog]:
        """A node that runs; the cluster is known, unless `founding` is None."""
        stream = await self.cluster.engine(name).open_stream(STREAM)
        copy = LocalCopy.open(self.directory / name, STREAM)
        try:
            async with trio.open_nursery() as nursery:
                log = MetadataLog(stream, copy)
                nursery.start_soon(log.run)
                if founding is not None:
                    await log.found(founding)
                yield log
                nursery.cancel_scope.cancel()
        finally:
            copy.close()

    @asynccontextmanager
    async def store(self, number: int = 1, shard: int = 0) -> AsyncIterator[ReplicatedStore]:
        async with self.log(f"node-{number}") as log:
            yield ReplicatedStore(log, NodeNumber(number), ShardNumber(shard))

    async def refusal(self, name: str, founding: Founding | None = FOUNDING) -> BaseException:
        """What ends a node that is started."""
        try:
            with trio.fail_after(10):
                async with self.log(name, founding=founding):
                    await trio.sleep_forever()
        except Exception as error:  # noqa: BLE001
            return next(iter(leaves(error)))
        raise AssertionError("the node runs")


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with open_model(random.Random(1)) as cluster:
        yield Nodes(tmp_path, cluster)


def node_record(host: str, rack: str | None = None, first_port: int = 9000) -> NodeRecord:
    ports = {ShardNumber(shard): Ports(first_port + shard, first_port + 100 + shard) for shard in range(3)}
    return NodeRecord(bytes(16), host, f"{host}.internal", ports, rack)


# --- the cluster, and what is in it ---------------------------------------------------------------------------


async def test_nodes_that_start_at_once_found_one_cluster(nodes: Nodes) -> None:
    """The first foundation counts; the others take it, with its group journals."""
    found: list[tuple[str, int, int, int]] = []

    async def start(number: int) -> None:
        async with nodes.log(f"node-{number}", founding=Founding(3, number, 5, "::")) as log:
            store: ClusterStore = ReplicatedStore(log, NodeNumber(number), ShardNumber(2))
            found.append((store.cluster_id, store.group_journal_count, store.offsets_log_count, store.placement.shards))
            assert (store.node_id, store.shard) == (number * 1000 + 2, 2)

    async with trio.open_nursery() as nursery:
        for number in (1, 2, 3):
            nursery.start_soon(start, number)
    assert len(set(found)) == 1
    assert len(found[0][0]) == 22
    assert found[0][2:] == (5, 3)


@pytest.mark.parametrize(
    ("founding", "sentence"),
    [
        (Founding(2, 4, 5, "::"), "was founded with shards 3, and this node has 2: set it to 3"),
        (Founding(3, 4, 5, "-"), r"was founded with transactions\.group_separator '::', and this node has '-'"),
    ],
)
async def test_node_with_other_settings_is_refused_naming_them(nodes: Nodes, founding: Founding, sentence: str) -> None:
    """By both, clients and nodes find the shard of what they look for."""
    async with nodes.log("node-1"):
        refusal = await nodes.refusal("node-2", founding)
    assert isinstance(refusal, StoreMismatch)
    with pytest.raises(StoreMismatch, match=sentence):
        raise refusal


async def test_topic_made_on_one_node_is_known_to_the_others(nodes: Nodes) -> None:
    """And may be changed and deleted by them; all have heard of it when they catch up."""
    async with nodes.store(1) as one, nodes.store(2) as two:
        generation, changed = two.generation, two.changed()
        topic = await one.create_topic("orders", partitions=4, configs={"a": "1"}, now_ms=5)
        await two.catch_up()
        assert two.topics() == [topic]
        assert two.generation > generation
        assert changed.is_set()
        assert two.topic_by_id(topic.topic_id) == two.topic("orders") == topic
        grown = await two.add_partitions("orders", 7)
        await one.catch_up()
        assert one.topics() == [grown]
        assert one.shard_of(grown.logs()[6]) == two.shard_of(grown.logs()[6]) is not None
        with pytest.raises(TopicExists):
            await two.create_topic("orders", partitions=1, configs={}, now_ms=6)
        await one.delete_topic("orders")
        with pytest.raises(UnknownTopic):
            await two.delete_topic("orders")


async def test_topic_is_forgotten_when_every_shard_has_dropped_it(nodes: Nodes) -> None:
    """Each shard's owner notes it, wherever it is."""
    async with nodes.store(1, shard=0) as one, nodes.store(2, shard=1) as two, nodes.store(3, shard=2) as three:
        topic = await one.create_topic("orders", partitions=1, configs={}, now_ms=5)
        await two.delete_topic("orders")
        for store in (one, two, three):
            await store.catch_up()
            assert store.deleting() == (topic,)
            await store.forget_topic(topic.topic_id)
            assert store.deleting() == ()
        await one.catch_up()
        assert not [key for key in one._common.raw if key.startswith((b"topic/", b"dropped/"))]


async def test_ids_configs_and_features_are_one_for_all_nodes(nodes: Nodes) -> None:
    """At once from several nodes: blocks do not overlap, no change is lost, the features' epoch grows."""
    ids: list[range] = []

    async def work(store: ReplicatedStore, name: str) -> None:
        ids.extend([await store.allot_producer_ids(10) for _ in range(5)])
        await store.alter_broker_configs("", lambda configs: {**configs, name: "1"})
        await store.alter_group_configs(name, lambda _: {"x": "1"})

    async with nodes.store(1) as one, nodes.store(2) as two:
        epoch = two.features.epoch
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, one, "a")
            nursery.start_soon(work, two, "b")
        await one.update_features(
            [FeatureUpdate("transaction.version", 0, UpgradeType.SAFE_DOWNGRADE)], validate_only=False
        )
        await two.catch_up()
        assert two.broker_configs("") == {"a": "1", "b": "1"}
        assert sorted(two.configured_groups()) == ["a", "b"]
        assert two.features.level("transaction.version") == 0
        assert two.features.epoch == one.features.epoch > epoch
    assert sorted(each for block in ids for each in block) == list(range(100))


async def test_change_of_nothing_appends_nothing(nodes: Nodes) -> None:
    """A stream does not grow by what is as it was."""
    async with nodes.store() as store:
        await store.alter_broker_configs("", lambda _: {"a": "1"})
        entries = len(nodes.entries)
        assert not await store.alter_broker_configs("", lambda _: {"a": "1"})
        await store.update_features([], validate_only=True)
        assert len(nodes.entries) == entries


# --- nodes and shards --------------------------------------------------------------------------------------


async def test_leaders_and_copies_are_those_that_were_published(nodes: Nodes) -> None:
    """A broker is a copy of a shard on a node, and the leader is where its owner says."""
    async with nodes.store(1, shard=0) as one, nodes.store(2, shard=1) as two:
        topic = await one.create_topic("orders", partitions=3, configs={}, now_ms=5)
        assert {leader.node_id for leader in one.leaders(topic)} == {-1}
        assert [one.broker_of(ShardNumber(shard)) for shard in range(3)] == [-1, -1, -1]
        assert one.internal_address(ShardNumber(0)) is None
        assert one.brokers("PLAINTEXT") == []
        await one.announce(node_record("a.example", "r1"))
        await two.announce(node_record("b.example", first_port=7000))
        await one.spread({ShardNumber(0): [ONE, TWO], ShardNumber(1): [TWO, ONE]})
        await one.publish_owner(LeaderEpoch(4), [ONE])
        await two.publish_owner(LeaderEpoch(6), [TWO, ONE])
        for store in (one, two):
            await store.catch_up()
            assert store.brokers("PLAINTEXT") == [
                (1000, "a.example", 9000),
                (1001, "a.example", 9001),
                (2000, "b.example", 7000),
                (2001, "b.example", 7001),
            ]
            assert [store.broker_of(ShardNumber(shard)) for shard in range(3)] == [1000, 2001, -1]
            assert store.internal_address(ShardNumber(1)) == ("b.example.internal", 7101, False)
            assert (store.rack_of(1001), store.rack_of(2000), store.rack_of(3000)) == ("r1", None, None)
            by_shard = dict(zip(map(store.shard_of, topic.logs()), store.leaders(topic), strict=True))
            assert by_shard == {0: (1000, 4), 1: (2001, 6), 2: (-1, 0)}
            copies = dict(zip(map(store.shard_of, topic.logs()), store.copies(topic), strict=True))
            assert copies == {0: ((1000, 2000), (1000,)), 1: ((2001, 1001), (2001, 1001)), 2: ((), ())}
        assert (one.starts, two.starts) == (4, 6)
        with pytest.raises(NodeInUse, match="node 2 keeps the shards 0, 1: let others keep them first"):
            await one.remove_node(TWO)
        await one.spread({ShardNumber(0): [ONE], ShardNumber(1): [ONE]})
        await ReplicatedStore(one._metadata, ONE, ShardNumber(1)).publish_owner(LeaderEpoch(7), [ONE])
        await one.remove_node(TWO)
        await one.remove_node(TWO)
        assert one.brokers("PLAINTEXT") == [(1000, "a.example", 9000), (1001, "a.example", 9001)]
        await two.catch_up()
        assert two.brokers("PLAINTEXT") == one.brokers("PLAINTEXT")


async def test_brokers_are_found_by_the_listener(nodes: Nodes) -> None:
    """On all nodes, by what each has said at its start. A node of an earlier version says only where PLAINTEXT is."""
    record = node_record("a.example")
    listeners = {
        "CLIENTS": ListenerPlaces("a.outside", {ShardNumber(0): 41, ShardNumber(1): 42}),
        "LOCAL": ListenerPlaces("a.inside", {ShardNumber(0): 51}),
    }
    async with nodes.store(1) as one, nodes.store(2) as two:
        await one.announce(record, listeners)
        await two.announce(node_record("b.example"))
        await one.spread({ShardNumber(0): [ONE, TWO], ShardNumber(1): [ONE]})
        for store in (one, two):
            await store.catch_up()
            assert store.brokers("CLIENTS") == [(1000, "a.outside", 41), (1001, "a.outside", 42)]
            assert store.brokers("LOCAL") == [(1000, "a.inside", 51)]
            assert store.brokers("PLAINTEXT") == [(2000, "b.example", 9000)]
            assert list(store.started) == [1000, 1001, 2000]
        memory = one._metadata.memory
        earlier = replace(record, incarnation=bytes(15) + b"\1", host="a.later")
        await one._change(lambda: ({cluster_records.node_key(ONE): cluster_records.encode_node(earlier)}, None))
        assert memory.endpoint(ONE, ShardNumber(0), "PLAINTEXT") == ("a.later", 9000)
        assert memory.endpoint(ONE, ShardNumber(0), "CLIENTS") is None
        await one.spread({ShardNumber(0): [TWO], ShardNumber(1): [TWO]})
        await one.remove_node(ONE)
        assert memory.endpoint(ONE, ShardNumber(0), "PLAINTEXT") is None
        assert not any(key.startswith(b"listeners/") for key in memory.raw)


async def test_brokers_are_reached_as_their_node_has_said_last(nodes: Nodes) -> None:
    """By TLS or without; a program of before TLS leaves the record of the run before, which does not count then."""
    record, shard = node_record("a.example"), ShardNumber(0)
    plain, by_tls = InnerAddress("a.example.internal", 9100), InnerAddress("a.example.internal", 9100, has_tls=True)
    async with nodes.store(1) as one, nodes.store(2) as two:
        memory = two._metadata.memory
        for has_tls in (False, True, False, True):
            await one.announce(record, has_inner_tls=has_tls)
            await two.catch_up()
            assert memory.internal_address(ONE, shard) == (by_tls if has_tls else plain)
        earlier = replace(record, incarnation=bytes(15) + b"\1")
        await one._change(lambda: ({cluster_records.node_key(ONE): cluster_records.encode_node(earlier)}, None))
        await two.catch_up()
        assert memory.internal_address(ONE, shard) == plain
        assert memory.internal_address(TWO, shard) is None
        await one.remove_node(ONE)
        await two.catch_up()
        assert memory.internal_address(ONE, shard) is None
        assert not any(key.startswith(b"inner-tls/") for key in memory.raw)


async def test_wish_stands_for_all_nodes_until_it_is_taken_back(nodes: Nodes) -> None:
    """Also over a start. It goes with its node, and names only what there is."""
    shard = ShardNumber(1)
    async with nodes.store(1) as one, nodes.store(2) as two:
        await one.announce(node_record("a.example"))
        await two.announce(node_record("b.example"))
        await one.wish(shard, TWO)
        await two.catch_up()
        assert two._metadata.memory.wishes == {shard: TWO}
        with pytest.raises(NoSuchShard, match="there is no shard 3: there are 3, from 0 on"):
            await one.wish(ShardNumber(3), TWO)
        with pytest.raises(NoSuchNode, match="there is no node 3 in the cluster: there are 1, 2"):
            await one.wish(shard, THREE)
    async with nodes.store(1) as one, nodes.store(2) as two:
        assert one._metadata.memory.wishes == {shard: TWO}
        await two.wish(shard, None)
        await one.catch_up()
        assert one._metadata.memory.wishes == {}
        await one.wish(shard, TWO)
        await one.remove_node(TWO)
        assert one._metadata.memory.wishes == {}


async def test_owner_of_an_earlier_epoch_cannot_publish_itself_again(nodes: Nodes) -> None:
    """It hears who owns the shard now; the owner may say at any time what it sees in sync."""
    async with nodes.store(1, shard=1) as old, nodes.store(2, shard=1) as new:
        await old.publish_owner(LeaderEpoch(4), [ONE])
        await new.publish_owner(LeaderEpoch(5), [TWO, ONE])
        for epoch in (4, 5):
            with pytest.raises(StaleOwner, match="shard 1 is node 2's in epoch 5, so it is not node 1's in"):
                await old.publish_owner(LeaderEpoch(epoch), [ONE])
        await new.publish_owner(LeaderEpoch(5), [TWO])
        await old.publish_owner(LeaderEpoch(6), [ONE])
        await new.catch_up()
        assert new.broker_of(ShardNumber(1)) == 1001


# --- the engine away ---------------------------------------------------------------------------------------


async def run_with_jumping_clock(tmp_path: Path, faults: Faults, body: Callable[[Nodes], Awaitable[None]]) -> None:
    """In place of the fixture, for tests that wait: LMDB is written without a thread."""

    async def write(self: LocalCopy, changes: object, state: object) -> None:
        await trio.lowlevel.checkpoint()
        self._write_in_thread(changes, state)  # type: ignore[arg-type]

    with mock.patch.object(LocalCopy, "write", write):
        async with open_model(random.Random(1), faults) as cluster:
            await body(Nodes(tmp_path, cluster))


async def test_node_starts_from_its_copy_while_the_engine_is_away(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """It answers as before, says of changes that their outcome is unknown, and goes on when the engine is back."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            topic = await store.create_topic("orders", partitions=2, configs={}, now_ms=5)
        stream = await nodes.cluster.engine("node-1").open_stream(STREAM)
        copy = LocalCopy.open(tmp_path / "node-1", STREAM)
        nodes.cluster.go_away()
        async with trio.open_nursery() as nursery:
            log = MetadataLog(stream, copy)
            nursery.start_soon(log.run)
            await log.found(FOUNDING)
            store = ReplicatedStore(log, ONE, ShardNumber(0))
            await store.catch_up()
            assert store.topics() == [topic]
            before = trio.current_time()
            with pytest.raises(OutcomeUnknown, match=r"stream c\.metadata did not show it in time. Ask again"):
                await store.create_topic("late", partitions=1, configs={}, now_ms=6)
            assert trio.current_time() - before <= metadata_log.ANSWER_SECONDS + 2
            nodes.cluster.come_back()
            await store.create_topic("new", partitions=1, configs={}, now_ms=7)
            nursery.cancel_scope.cancel()
        copy.close()

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_engine_that_is_away_is_not_asked_for_each_request(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A hundred requests wait for it together, not one after the other; nor does each ask for the end."""

    async def body(nodes: Nodes) -> None:
        asked = 0

        async def end(self: ModelStream) -> StreamPosition:
            nonlocal asked
            asked += 1
            return await real(self)

        real = ModelStream.end
        async with nodes.store() as store:
            with mock.patch.object(ModelStream, "end", end):
                async with trio.open_nursery() as nursery:
                    for _ in range(100):
                        nursery.start_soon(store.catch_up)
                assert 1 <= asked <= 2
                nodes.cluster.go_away()
                before = trio.current_time()
                for _ in range(3):
                    async with trio.open_nursery() as nursery:
                        for _ in range(100):
                            nursery.start_soon(store.catch_up)
                assert trio.current_time() - before < 3
                assert asked <= 5

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_engine_that_appends_to_know_its_end_keeps_nobody_waiting(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Each question moves the end on, so it is asked once."""

    async def body(nodes: Nodes) -> None:
        for _ in range(2):
            with trio.fail_after(1):
                async with nodes.store(1) as one, nodes.store(2) as two:
                    await one.alter_broker_configs("", lambda _: {"a": "1"})
                    await two.catch_up()
                    assert two.broker_configs("") == {"a": "1"}

    await run_with_jumping_clock(tmp_path, Faults(end_appends=1.0), body)


async def test_append_of_unknown_outcome_is_appended_again_as_it_is(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """All copies of a proposal are one: the caller is answered once, and nothing is made twice."""

    async def body(nodes: Nodes) -> None:
        nodes.cluster.faults = Faults(untold=1.0, read_s_max=0.5)
        async with nodes.store() as store:
            for number in range(5):
                assert await store.allot_producer_ids(10) == range(number * 10, number * 10 + 10)
        assert len(nodes.entries) > len(set(nodes.entries)) >= 6

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_lands_after_its_caller_was_told_that_nobody_knows_is_made(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """So nobody is ever told that it was not made. The next change of this node is decided with it."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            late: list[bytes] = []

            def swallow(_self: object, data: bytes, done: object) -> None:
                late.append(data)

            with mock.patch.object(ModelStream, "append", swallow), pytest.raises(OutcomeUnknown):
                await store.create_topic("orders", partitions=1, configs={}, now_ms=5)
            assert len(set(late)) == 1
            nodes.cluster.land(STREAM, late[0])
            with pytest.raises(TopicExists):
                await store.create_topic("orders", partitions=1, configs={}, now_ms=6)
            nodes.cluster.land(STREAM, late[0])
            await store.catch_up()
            assert [topic.created_ms for topic in store.topics()] == [5]

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_lands_after_another_on_its_base_is_void_for_ever(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Its caller was told nothing, and the next change does not wait for it."""

    async def body(nodes: Nodes) -> None:
        async with nodes.store() as store:
            late: list[bytes] = []
            with mock.patch.object(ModelStream, "append", lambda _self, data, _done: late.append(data)):
                with trio.move_on_after(1):
                    await store.create_topic("orders", partitions=1, configs={}, now_ms=5)
            await store.create_topic("other", partitions=1, configs={}, now_ms=6)
            nodes.cluster.land(STREAM, late[0])
            await store.catch_up()
            assert [topic.name for topic in store.topics()] == ["other"]

    await run_with_jumping_clock(tmp_path, CALM, body)


async def test_change_that_is_too_large_is_refused_and_nothing_else(nodes: Nodes) -> None:
    """An engine has a limit; the next change is made."""
    async with nodes.store() as store:
        with mock.patch.object(ModelStream, "entry_bytes_max", property(lambda _: 400)):
            with pytest.raises(StorageFailure, match="has room for 400: nothing was changed"):
                await store.alter_broker_configs("", lambda _: {"a": "x" * 400})
            await store.alter_broker_configs("", lambda _: {"a": "x"})


# --- restarts, trims, and streams that are not what they were ------------------------------------------------


async def test_restart_reads_only_what_is_new(nodes: Nodes) -> None:
    """From the last accepted entry on, which is compared with what was accepted."""
    async with nodes.store(1) as store:
        for name in ("a", "b", "c"):
            await store.create_topic(name, partitions=1, configs={}, now_ms=5)
    async with nodes.store(2) as store:
        await store.create_topic("d", partitions=1, configs={}, now_ms=5)
    starts: list[int] = []
    real = ModelStream.open_reader

    def open_reader(self: ModelStream, start: StreamPosition) -> AbstractAsyncContextManager[object]:
        starts.append(start)
        return real(self, start)

    with mock.patch.object(ModelStream, "open_reader", open_reader):
        async with nodes.store(1) as store:
            await store.catch_up()
            assert [topic.name for topic in store.topics()] == ["a", "b", "c", "d"]
    assert starts == [3]


@pytest.fixture
def small_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after every third change, in several entries."""
    monkeypatch.setattr(metadata_snapshots, "SNAPSHOT_ENTRIES", 3)
    monkeypatch.setattr(ModelStream, "entry_bytes_max", property(lambda _: 250))


async def make_topics(store: ReplicatedStore, first: int, last: int) -> list[Topic]:
    return [
        await store.create_topic(f"t{number:02}", partitions=1, configs={}, now_ms=number)
        for number in range(first, last + 1)
    ]


def start_of(nodes: Nodes) -> int:
    log = nodes.cluster.log(STREAM)
    assert log is not None
    return log.start


async def until_trimmed(nodes: Nodes, store: ReplicatedStore, first: int) -> list[Topic]:
    """Topics from this number on, until the stream begins long after the beginning."""
    topics: list[Topic] = []
    with trio.fail_after(20):
        while start_of(nodes) < 20:
            number = first + len(topics)
            topics += await make_topics(store, number, number)
    return topics


@pytest.mark.usefixtures("small_snapshots")
async def test_stream_is_trimmed_behind_snapshots_and_a_node_can_begin_there(nodes: Nodes) -> None:
    """Two nodes write snapshots; one that was down for long, and a new one, have all topics."""
    async with nodes.store(3) as store:
        topics = await make_topics(store, 1, 2)
    async with nodes.store(1) as one, nodes.store(2) as two:
        topics += await make_topics(one, 3, 10)
        await two.catch_up()
        topics += await until_trimmed(nodes, two, 11)
    with structlog.testing.capture_logs() as logged:
        async with nodes.store(3) as three, nodes.store(4) as four:
            await three.catch_up()
            assert three.topics() == four.topics() == topics
            assert await three.allot_producer_ids(5) == range(5)
    assert [each["event"] for each in logged].count("metadata begin at a snapshot") == 2


@pytest.mark.usefixtures("small_snapshots")
async def test_two_snapshots_are_kept(nodes: Nodes) -> None:
    """Without the newest one a node begins at the one before."""
    async with nodes.store(1) as store:
        topics = await until_trimmed(nodes, store, 1)
        log = nodes.cluster.log(STREAM)
        assert log is not None
        newest = max(at for at, data in enumerate(log.entries) if data[9:10] == b"\x03")
        log.entries[newest] = b"?"
        async with nodes.store(2) as two:
            await two.catch_up()
            assert two.topics() == topics


@pytest.mark.usefixtures("small_snapshots")
async def test_stream_of_which_nothing_counts_is_trimmed_as_well(nodes: Nodes) -> None:
    """The engine's own entries, and others' bytes, must not pile up while nobody changes anything."""
    async with nodes.store(1) as store:
        topics = await make_topics(store, 1, 2)
        with trio.fail_after(20):
            while start_of(nodes) < 50:
                nodes.cluster.land(STREAM, b"")
                await trio.sleep(0.005)
        async with nodes.store(2) as two:
            await two.catch_up()
            assert two.topics() == topics


async def test_refusal_knows_what_others_were_answered_before(nodes: Nodes) -> None:
    """A change that would have been refused on old memory is decided again on what there is by now."""
    nodes.cluster.faults = Faults(read_s_max=0.5)
    async with nodes.store(1) as one, nodes.store(2) as two:
        for number in range(5):
            await one.create_topic("orders", partitions=1, configs={}, now_ms=number)
            await two.delete_topic("orders")


async def test_stream_that_ends_before_what_was_read_is_refused(nodes: Nodes) -> None:
    """It has lost what was answered: nobody goes on as if nothing had been."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 3)
    del nodes.entries[2:]
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata ends at entry 2, and entries up to 4 were read" in str(refusal)


async def test_stream_that_was_made_anew_is_refused(nodes: Nodes) -> None:
    """Also when it has as many entries by now; a node that runs ends, too."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 2)
    nodes.cluster.make_anew(STREAM)
    async with nodes.store(2) as store:
        await make_topics(store, 1, 5)
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, StoreMismatch)
    assert "entry 2 of the metadata stream c.metadata is not the one that this node has accepted there" in str(refusal)


async def test_node_that_runs_ends_when_its_stream_is_deleted(nodes: Nodes) -> None:
    """Loudly, whatever it was about to read."""
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012
        async with nodes.store(1):
            nodes.cluster.make_anew(STREAM)
            with trio.fail_after(10):
                await trio.sleep_forever()
    (refusal,) = leaves(caught.value)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata lost entries" in str(refusal)


@pytest.mark.usefixtures("small_snapshots")
async def test_trimmed_stream_of_another_cluster_is_refused(nodes: Nodes) -> None:
    """The node was down, and somebody made the stream anew, and it was trimmed since."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 1)
    nodes.cluster.make_anew(STREAM)
    async with nodes.store(2) as store:
        await until_trimmed(nodes, store, 1)
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, StoreMismatch)
    assert "and this node is of" in str(refusal)


async def test_stream_that_was_trimmed_by_somebody_else_is_refused(nodes: Nodes) -> None:
    """No snapshot says what was before."""
    async with nodes.store(1) as store:
        await make_topics(store, 1, 3)
        stream = await nodes.cluster.engine("somebody").open_stream(STREAM)
        await stream.trim(StreamPosition(2))
        refusal = await nodes.refusal("node-2", None)
    assert isinstance(refusal, CorruptStorage)
    assert "begins at entry 2, and no snapshot in it says what was before" in str(refusal)


async def test_entry_that_is_damaged_ends_all_nodes_naming_it(nodes: Nodes) -> None:
    """A change that waits is told; foreign bytes are logged and skipped."""
    async with nodes.store(1) as store:
        with structlog.testing.capture_logs() as logged:
            nodes.cluster.land(STREAM, b"somebody else's")
            await make_topics(store, 1, 1)
        assert [
            (each["position"], each["log_level"]) for each in logged if each["event"] == "metadata entry ignored"
        ] == [(1, "warning")]
    nodes.cluster.land(STREAM, nodes.entries[2][:-1] + b"?")
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert "stream c.metadata is corrupt at entry 3: their CRC is wrong" in str(refusal)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        (b"shard/7", b"\x01", "the record b'shard/7' is of shard 7, of 3"),
        (b"wish/7", b"\x01", "the record b'wish/7' is of shard 7, of 3"),
        (b"wish/x", b"\x01", "the record b'wish/x' has no number in decimal"),
        (b"wish/1", b"\x20", "the record wish/1 reads -1"),
        (b"wish/1", b"\xf5", "the record wish/1 reads True"),
    ],
)
async def test_accepted_record_that_cannot_be_read_ends_the_node(
    nodes: Nodes, key: bytes, value: bytes, sentence: str
) -> None:
    """All nodes would have it: none guesses."""
    async with nodes.store(1) as store:
        cluster = UUID(bytes=nodes.entries[0][24:40])
        base = Base(StreamPosition(0), int.from_bytes(nodes.entries[0][4:8], "little"))
        assert store.topics() == []
    nodes.cluster.land(STREAM, encode_change(base, cluster, Origin(b"x" * 16, 1), {key: value}))
    refusal = await nodes.refusal("node-1", None)
    assert isinstance(refusal, CorruptStorage)
    assert f"c.metadata is corrupt before entry 2: {sentence}" in str(refusal)


async def test_features_that_this_program_does_not_support_are_refused(nodes: Nodes) -> None:
    """By a node that begins, as on one machine."""
    async with nodes.store(1) as store:
        await store.update_features(
            [FeatureUpdate("transaction.version", 1, UpgradeType.SAFE_DOWNGRADE)], validate_only=False
        )
    copy = LocalCopy.open(nodes.directory / "node-1", STREAM)
    stream = await nodes.cluster.engine("node-1").open_stream(STREAM)
    try:
        with pytest.raises(StoreMismatch, match=r"the feature transaction\.version is at level 1"):
            MetadataLog(stream, copy, {"group.version": FEATURES["group.version"]})
    finally:
        copy.close()


async def test_store_that_waits_for_a_change_is_told_when_the_stream_breaks(nodes: Nodes) -> None:
    """Not after ten seconds."""
    told: list[str] = []

    async def run() -> None:
        async with nodes.store(1) as store:
            with mock.patch.object(ModelStream, "append", breaks):
                try:
                    await store.allot_producer_ids(1)
                except StorageFailure as error:
                    told.append(str(error))
            await trio.sleep_forever()

    def breaks(*_: object) -> None:
        nodes.cluster.make_anew(STREAM)

    with trio.fail_after(5), pytest.raises(ExceptionGroup) as caught:
        await run()
    assert [type(error) for error in leaves(caught.value)] == [CorruptStorage]
    assert "stream c.metadata lost entries" in told[0]
