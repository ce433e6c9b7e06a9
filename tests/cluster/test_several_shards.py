"""The store of a directory whose data is spread over several shards, each with a process that has it open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import lmdb
import pytest
import trio
import trio.testing

from fairlog.cluster import records
from fairlog.cluster.content import StoreContent, read_content
from fairlog.cluster.embedded import EmbeddedStore, StoreMismatch
from fairlog.cluster.features import FeatureUpdate, UpgradeType
from fairlog.cluster.interface import BrokerAddress, ClusterStore, TopicExists, UnknownTopic
from fairlog.cluster.restored import continue_restored
from fairlog.config import GroupSettings, Settings
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.live_settings import LiveSettings
from fairlog_types import CorruptStorage, LogId, ShardNumber
from shard.placement import Placement
from tests.cluster.peer import SHARDS, Peer

OpenShard = Callable[..., EmbeddedStore]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of three shards, which none has opened."""
    EmbeddedStore.prepare(tmp_path / "cluster", node_id=1, group_journal_count=16, shards=SHARDS)
    return tmp_path / "cluster"


@pytest.fixture
def open_shard(directory: Path) -> Iterator[OpenShard]:
    """Opens the store for a shard; for this process' one before, it is closed."""
    opened: list[EmbeddedStore] = []

    def reopen(shard: int = 0, shards: int = SHARDS, node_id: int = 1) -> EmbeddedStore:
        while opened:
            opened.pop().close()
        store = EmbeddedStore.open(
            directory, node_id=node_id, group_journal_count=16, shards=shards, shard=ShardNumber(shard)
        )
        opened.append(store)
        return store

    yield reopen
    for store in opened:
        store.close()


def content_of(directory: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def read(directory: Path) -> StoreContent:
    return read_content(content_of(directory))


# --- starts and identity -------------------------------------------------------------------------------


def test_store_that_is_prepared_has_started_nothing(directory: Path) -> None:
    """Only the processes count starts; to prepare a store again changes nothing."""
    before = content_of(directory)
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=99, shards=SHARDS)
    assert content_of(directory) == before
    assert (read(directory).started, read(directory).shards) == ({}, SHARDS)


def test_store_of_one_shard_that_is_prepared_becomes_what_it_always_was(tmp_path: Path) -> None:
    """Nothing tells a store of one shard from that of a program that knows one only."""
    EmbeddedStore.prepare(tmp_path / "a", node_id=1, group_journal_count=16, shards=1)
    EmbeddedStore.open(tmp_path / "a", node_id=1, group_journal_count=16).close()
    assert sorted(content_of(tmp_path / "a")) == [b"format", b"node", b"offsets-logs", b"producer-ids", b"starts"]


def test_shard_counts_its_own_starts_and_its_node_follows_the_first_ones(open_shard: OpenShard) -> None:
    """Leader epochs of one shard say nothing about another's."""
    stores: list[tuple[int, int, int]] = []
    for shard in (0, 1, 1, 0, 1):
        store: ClusterStore = open_shard(shard)
        stores.append((store.shard, store.node_id, store.starts))
    assert stores == [(0, 1, 1), (1, 2, 1), (1, 2, 2), (0, 1, 2), (1, 2, 3)]
    assert [store.broker_of(ShardNumber(shard)) for shard in range(SHARDS)] == [1, 2, 3]


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_store_of_another_number_of_shards_is_refused_saying_how_to_start(
    open_shard: OpenShard, directory: Path, shards: int
) -> None:
    """More or fewer: the logs would not be where they are looked for."""
    refusal = f"spread over 3 shards, and it is opened for {shards}: restart the whole node"
    with pytest.raises(StoreMismatch, match=refusal):
        open_shard(shards=shards)
    with pytest.raises(StoreMismatch, match=refusal):
        EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=shards)


def test_store_of_one_shard_is_not_spread_later(tmp_path: Path) -> None:
    """What was never noted counts as one."""
    EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16).close()
    with pytest.raises(StoreMismatch, match="spread over 1 shard, and it is opened for 2: restart the whole node"):
        EmbeddedStore.prepare(tmp_path / "cluster", node_id=1, group_journal_count=16, shards=2)


def test_store_with_fewer_group_journals_than_shards_is_not_made(tmp_path: Path) -> None:
    """A shard without one could coordinate nothing; the setting can still be changed."""
    with pytest.raises(StoreMismatch, match=r"journal\.group_journals is 2: set it to 3 or more"):
        EmbeddedStore.prepare(tmp_path / "cluster", node_id=1, group_journal_count=2, shards=3)
    EmbeddedStore.prepare(tmp_path / "cluster", node_id=1, group_journal_count=3, shards=3)


def test_group_separator_of_several_shards_stays_that_of_the_first_start(tmp_path: Path) -> None:
    """With another one an id would have another coordinator, which would not know it, and fence nobody."""

    def prepare(separator: str, shards: int = SHARDS) -> None:
        EmbeddedStore.prepare(
            tmp_path / str(shards), node_id=1, group_journal_count=16, shards=shards, group_separator=separator
        )

    prepare("::")
    prepare("::")
    for other in ("", "/"):
        with pytest.raises(StoreMismatch, match=f"have the group separator '::', .* instead of '{other}'"):
            prepare(other)
    prepare("::", shards=1)
    prepare("", shards=1)


def test_store_that_is_missing_is_not_made_by_a_shard(tmp_path: Path) -> None:
    """Several would make it at once, and later there would be data without a store."""
    with pytest.raises(CorruptStorage, match="missing"):
        EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16, shards=3)
    assert not (tmp_path / "cluster").exists()


def test_each_shard_leads_an_offsets_log(tmp_path: Path) -> None:
    """Else it would coordinate no groups."""
    EmbeddedStore.prepare(tmp_path / "cluster", node_id=1, group_journal_count=16, shards=7)
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16, shards=7)
    assert store.offsets_log_count == 7
    store.close()


async def test_group_journals_of_one_shard_are_begun_apart_from_those_of_others(
    open_shard: OpenShard, directory: Path
) -> None:
    """A shard that never came so far may still lack its own."""
    await open_shard(1).note_group_journals_begun()
    assert not open_shard(0).group_journals_begun
    store = open_shard(1)
    assert (store.group_journals_begun, store.starts) == (True, 2)
    store.close()
    assert not read(directory).group_journals_begun


# --- who leads what ------------------------------------------------------------------------------------


async def test_partitions_are_led_by_the_shards_in_turn_in_the_epochs_of_their_starts(open_shard: OpenShard) -> None:
    """As the placement says; all of them by one shard, if the topic asks for it."""
    open_shard(2)
    open_shard(2)
    store = open_shard(0)
    spread = await store.create_topic("spread", partitions=6, configs={}, now_ms=0)
    together = await store.create_topic("together", partitions=6, configs={"fairlog.placement": "together"}, now_ms=0)
    assert store.placement == Placement(SHARDS)
    epochs = {1: 1, 2: 0, 3: 2}
    for topic, nodes in ((spread, 3), (together, 1)):
        leaders = store.leaders(topic)
        assert len({leader.node_id for leader in leaders}) == nodes
        assert all(leader.leader_epoch == epochs[leader.node_id] for leader in leaders)
        shards = [store.shard_of(log) for log in topic.logs()]
        assert [store.broker_of(shard) for shard in shards if shard is not None] == [each.node_id for each in leaders]


async def test_log_of_no_topic_that_is_served_has_no_shard(open_shard: OpenShard) -> None:
    """Nor a partition behind the last one, nor an offsets log that there is none of."""
    store = open_shard(0)
    topic = await store.create_topic("orders", partitions=2, configs={}, now_ms=0)
    assert store.shard_of(LogId.of_topic(topic.topic_id, 2)) is None
    await store.delete_topic("orders")
    assert store.shard_of(LogId.of_topic(topic.topic_id, 0)) is None
    assert [store.shard_of(LogId.of_offsets(number)) for number in range(5)] == [0, 1, 2, 0, None]


async def test_brokers_are_those_that_have_said_where_they_are(open_shard: OpenShard) -> None:
    """Clients and brokers have an address each; a broker that is down keeps its own."""
    store = open_shard(2)
    await store.announce({"PLAINTEXT": ("c.example", 9003)}, ("10.0.0.3", 7003))
    store = open_shard(0)
    await store.announce({"PLAINTEXT": ("old.example", 9000)}, None)
    await store.announce({"PLAINTEXT": ("a.example", 9001)}, ("10.0.0.1", 7001))
    assert store.brokers("PLAINTEXT") == [BrokerAddress(1, "a.example", 9001), BrokerAddress(3, "c.example", 9003)]
    internal = [store.internal_address(ShardNumber(shard)) for shard in range(SHARDS)]
    assert internal == [("10.0.0.1", 7001, False), None, ("10.0.0.3", 7003, False)]


async def test_brokers_are_found_by_the_listener(tmp_path: Path) -> None:
    """Who has none of that name is not among them; the next start says anew which there are."""
    directory = tmp_path / "cluster"
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=SHARDS)
    store, other = (
        EmbeddedStore.open(directory, node_id=1, group_journal_count=16, shards=SHARDS, shard=ShardNumber(shard))
        for shard in range(2)
    )
    outside = {"CLIENTS": ("a.outside", 1), "LOCAL": ("a.inside", 2)}
    await store.announce(outside, ("10.0.0.1", 7001))
    await other.announce({"PLAINTEXT": ("b.inside", 2)}, None)
    for each in (store, other):
        await each.catch_up()
        assert each.brokers("CLIENTS") == [BrokerAddress(1, "a.outside", 1)]
        assert each.brokers("LOCAL") == [BrokerAddress(1, "a.inside", 2)]
        assert each.brokers("PLAINTEXT") == [BrokerAddress(2, "b.inside", 2)]
        assert sorted(each.started) == [1, 2]
        assert each.internal_address(ShardNumber(0)) == ("10.0.0.1", 7001, False)
    await store.announce({"PLAINTEXT": ("a.inside", 2)}, None)
    await other.catch_up()
    for each in (store, other):
        assert each.brokers("CLIENTS") == []
        assert each.brokers("PLAINTEXT") == [BrokerAddress(1, "a.inside", 2), BrokerAddress(2, "b.inside", 2)]
    before = store.generation
    await store.announce({"PLAINTEXT": ("a.inside", 2)}, None)
    assert store.generation == before
    store.close()
    other.close()


async def test_broker_of_one_shard_writes_down_no_address(tmp_path: Path) -> None:
    """Nobody else asks for it."""
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16)
    await store.announce({"PLAINTEXT": ("a.example", 9001)}, None)
    assert store.brokers("PLAINTEXT") == [BrokerAddress(1, "a.example", 9001)]
    await store.announce({"CLIENTS": ("a.outside", 1)}, None)
    assert (store.brokers("PLAINTEXT"), store.brokers("CLIENTS")) == ([], [BrokerAddress(1, "a.outside", 1)])
    store.close()
    prefixes = (records.ADDRESS_PREFIX, records.LISTENERS_PREFIX)
    assert not any(key.startswith(prefixes) for key in content_of(tmp_path / "cluster"))


async def test_store_of_one_shard_watches_for_nobody(tmp_path: Path) -> None:
    """There is nothing that wakes up."""
    store = EmbeddedStore.open(tmp_path / "cluster", node_id=1, group_journal_count=16)
    with trio.fail_after(5):
        await store.run()
    store.close()


# --- several processes ---------------------------------------------------------------------------------


@pytest.mark.slow
async def test_change_of_another_process_is_noticed(
    open_shard: OpenShard, directory: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Who waits for a change is woken, and sees it; a block of producer ids is no news."""
    del autojump_clock
    store = open_shard(0)
    with Peer(directory, 1) as peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            while store.generation == 0:  # the peer's start
                await store.changed().wait()
            seen, changed = store.generation, store.changed()
            peer.do("allot_producer_ids", count=3)
            peer.do("create_topic", name="orders", partitions=2, configs={"flush.ms": "1"}, now_ms=5)
            await changed.wait()
            topic = store.topic("orders")
            assert topic is not None
            assert (topic.partitions, topic.configs, store.generation) == (2, {"flush.ms": "1"}, seen + 1)
            changed = store.changed()
            peer.do("set broker configs", resource="", configs={"log.retention.ms": "5"})
            await changed.wait()
            assert store.broker_configs("") == {"log.retention.ms": "5"}
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_store_that_catches_up_knows_what_others_have_changed(open_shard: OpenShard, directory: Path) -> None:
    """At once, and whether or not it is told of the change otherwise."""
    store = open_shard(0)
    with Peer(directory, 1) as peer:
        peer.do("create_topic", name="orders", partitions=1, configs={}, now_ms=0)
        assert store.topic("orders") is None
        generation = store.generation
        await store.catch_up()
        assert store.topic("orders") is not None
        assert store.generation == generation + 1
        await store.catch_up()
        assert store.generation == generation + 1, "nothing was new"


@pytest.mark.slow
@pytest.mark.parametrize("unnoticed", [False, True])
async def test_change_is_decided_on_what_others_have_changed(
    open_shard: OpenShard, directory: Path, monkeypatch: pytest.MonkeyPatch, unnoticed: bool
) -> None:
    """Also if the others changed it after this process looked: the write transaction finds out."""
    store = open_shard(0)
    with Peer(directory, 1) as peer:
        if unnoticed:
            monkeypatch.setattr(store, "_others_wrote", lambda: False)
        topic = {"partitions": 1, "configs": {}, "now_ms": 0}
        peer.do("create_topic", name="orders", **topic)
        with pytest.raises(TopicExists):
            await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
        peer.do("create_topic", name="a.b", **topic)
        peer.do("add_partitions", name="orders", total=5)
        changed = await store.alter_topic_configs("orders", lambda _: {"flush.ms": "1"})
        assert (changed.partitions, changed.configs) == (5, {"flush.ms": "1"})
        peer.do("add config", topic="orders", **{"retention.ms": "7"})
        both = await store.alter_topic_configs("orders", lambda configs: {**configs, "flush.messages": "1"})
        assert both.configs == {"flush.ms": "1", "retention.ms": "7", "flush.messages": "1"}
        peer.do("delete_topic", name="orders")
        with pytest.raises(UnknownTopic):
            await store.alter_topic_configs("orders", lambda _: {"flush.ms": "2"})
        assert peer.do("create_topic", name="orders", **topic) != "TopicExists"
        assert await store.allot_producer_ids(4) == range(4)
        assert peer.do("allot_producer_ids", count=4) == "range(4, 8)"
        assert await store.allot_producer_ids(4) == range(8, 12)
        assert [topic.name for topic in store.topics()] == ["a.b", "orders"]
        assert peer.do("names") == [["a.b", "orders"], ["orders"]]


@pytest.mark.slow
async def test_name_that_another_process_has_freed_is_free(open_shard: OpenShard, directory: Path) -> None:
    """Nothing is refused for what was over before it was asked."""
    store = open_shard(0)
    await store.create_topic("a.b", partitions=1, configs={}, now_ms=0)
    with Peer(directory, 1) as peer:
        peer.do("delete_topic", name="a.b")
        await store.create_topic("a_b", partitions=1, configs={}, now_ms=0)
    assert [topic.name for topic in store.topics()] == ["a_b"]


@pytest.mark.slow
async def test_topics_made_by_all_at_once_are_made_once_each(open_shard: OpenShard, directory: Path) -> None:
    """One process gets the topic, the others an error."""
    store = open_shard(0)
    with Peer(directory, 1) as one, Peer(directory, 2) as two:
        for peer in (one, two):
            peer.begin("races", partitions=1, configs={}, now_ms=0)
        mine: list[str] = []
        for number in range(40):
            try:
                await store.create_topic(f"t{number}", partitions=1, configs={}, now_ms=0)
                mine.append("created")
            except TopicExists:
                mine.append("TopicExists")
        for outcomes in zip(mine, json.loads(one.answer_line()), json.loads(two.answer_line()), strict=True):
            assert outcomes.count("TopicExists") == 2, outcomes


@pytest.mark.slow
async def test_producer_ids_of_several_processes_never_overlap(open_shard: OpenShard, directory: Path) -> None:
    """However the changes of all run into each other."""
    store = open_shard(0)
    with Peer(directory, 1) as one, Peer(directory, 2) as two:
        one.begin("many ids")
        two.begin("many ids")
        starts = [(await store.allot_producer_ids(7)).start for _ in range(60)]
        starts += json.loads(one.answer_line()) + json.loads(two.answer_line())
    assert sorted(starts) == list(range(0, 180 * 7, 7))


@pytest.mark.slow
async def test_process_killed_in_mid_change_leaves_nothing_of_it_and_holds_up_nobody(
    open_shard: OpenShard, directory: Path
) -> None:
    """Its write transaction ends with it, and the next one goes on from the state before."""
    store = open_shard(0)
    with Peer(directory, 1) as peer:
        peer.do("create_topic", name="orders", partitions=1, configs={}, now_ms=0)
        peer.begin("half a change")
        assert peer.answer_line() == "half"
        peer.kill()
    await store.create_topic("more", partitions=1, configs={}, now_ms=0)
    assert [topic.name for topic in store.topics()] == ["more", "orders"]
    with Peer(directory, 1) as peer:
        assert peer.do("names") == [["more", "orders"], []]


@pytest.mark.slow
async def test_topic_is_forgotten_when_all_shards_have_dropped_it(open_shard: OpenShard, directory: Path) -> None:
    """Each drops once; a shard that is down has it to drop when it is back, and the last one removes all records."""
    store = open_shard(0)
    topic = await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    before = content_of_open(store)
    await store.delete_topic("orders")
    with Peer(directory, 1) as peer:
        assert peer.do("names") == [[], ["orders"]]
        await store.forget_topic(topic.topic_id)
        await store.forget_topic(topic.topic_id)
        assert list(store.deleting()) == []
        assert peer.do("names") == [[], ["orders"]]
        peer.do("forget_topic", topic_id=str(topic.topic_id))
        assert peer.do("names") == [[], []]
    store = open_shard(0)
    assert list(store.deleting()) == []
    store = open_shard(2)
    assert list(store.deleting()) == [topic]
    await store.forget_topic(topic.topic_id)
    assert list(store.deleting()) == []
    left = content_of_open(store)
    assert left.keys() - before.keys() == {b"shard/1", b"shard/2"}
    assert before.keys() - left.keys() == {records.topic_key(topic.topic_id)}


def content_of_open(store: EmbeddedStore) -> dict[bytes, bytes]:
    with store._environment.begin() as transaction:
        return {bytes(key): bytes(value) for key, value in transaction.cursor()}


@pytest.mark.slow
async def test_features_have_one_epoch_in_all_processes(open_shard: OpenShard, directory: Path) -> None:
    """A client may ask any broker, and takes the answer with the larger epoch for the newer one."""
    open_shard(0)
    store = open_shard(0)
    epochs = [store.features.epoch]
    with Peer(directory, 1) as peer:
        for level, kind in ((1, UpgradeType.SAFE_DOWNGRADE), (2, UpgradeType.UPGRADE)):
            await store.update_features([FeatureUpdate("transaction.version", level, kind)], validate_only=False)
            assert peer.do("features") == store.features.epoch
            epochs.append(store.features.epoch)
    assert epochs == sorted(set(epochs))


# --- what else reads the store -------------------------------------------------------------------------


async def test_restored_store_of_several_shards_jumps_ahead_in_each(open_shard: OpenShard, directory: Path) -> None:
    """Every shard's starts go on from the clock; addresses and notes of what was dropped are the former node's."""
    store = open_shard(1)
    await store.announce({"PLAINTEXT": ("b.example", 9002)}, ("10.0.0.2", 7002))
    await store.note_group_journals_begun()
    topic = await store.create_topic("orders", partitions=1, configs={}, now_ms=0)
    await store.delete_topic("orders")
    await store.forget_topic(topic.topic_id)
    store.close()
    minutes = 1_800_000_000_000 // 60_000
    for _ in range(2):
        continue_restored(directory, now_ms=minutes * 60_000)
    content = read(directory)
    assert [record.starts for _, record in sorted(content.started.items())] == [minutes] * SHARDS
    assert (content.addresses, content.dropped, content.group_journals_begun) == ({}, {}, False)
    store = open_shard(1)
    assert (store.starts, store.group_journals_begun, list(store.deleting())) == (minutes + 1, False, [topic])


@pytest.mark.slow
async def test_configs_that_two_processes_change_at_once_have_both_changes(
    open_shard: OpenShard, directory: Path
) -> None:
    """Of all brokers, or of a group: both changes are answered, and the later one does not undo the other."""
    store = open_shard(0)
    brokers, groups = LiveSettings(Settings(), store), LiveGroupConfigs(GroupSettings(), store)
    with Peer(directory, 1) as peer:
        of_other: list[Callable[[], object]] = []

        def beside(name: str, value: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
            def change(configs: Mapping[str, str]) -> Mapping[str, str]:
                while of_other:
                    of_other.pop()()
                return {**configs, name: value}

            return change

        of_other.append(lambda: peer.do("set broker configs", resource="", configs={"log.retention.ms": "5"}))
        await brokers.alter("", beside("max.connections", "7"), validate_only=False)
        theirs = {"consumer.session.timeout.ms": "50000"}
        of_other.append(lambda: peer.do("set group configs", group="g", configs=theirs))
        await groups.alter("g", beside("consumer.heartbeat.interval.ms", "6000"), validate_only=False)
    await store.catch_up()
    assert store.broker_configs("") == {"log.retention.ms": "5", "max.connections": "7"}
    assert store.group_configs("g") == {
        "consumer.session.timeout.ms": "50000",
        "consumer.heartbeat.interval.ms": "6000",
    }
