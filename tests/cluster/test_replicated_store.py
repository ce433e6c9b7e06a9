"""The store of several machines: what it answers on each node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from fairlog.cluster import cluster_records
from fairlog.cluster.cluster_memory import NodeInUse, NoSuchNode, NoSuchShard, StaleOwner
from fairlog.cluster.cluster_records import ListenerPlaces, NodeNumber
from fairlog.cluster.features import FeatureUpdate, UpgradeType
from fairlog.cluster.interface import ClusterStore, InnerAddress, TopicExists, UnknownTopic
from fairlog.cluster.metadata_log import Founding
from fairlog.cluster.opening import StoreMismatch
from fairlog.cluster.replicated import ReplicatedStore
from fairlog_types import LeaderEpoch, ShardNumber
from tests.cluster.replicated_nodes import ONE, THREE, TWO, Nodes, node_record

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
