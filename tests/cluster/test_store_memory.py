"""What a store holds as values: however its records change, it is what reading all of them anew gives."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.cluster.features import FEATURES
from fairlog.cluster.interface import Topic
from fairlog.cluster.memory import Changes, StoreMemory
from fairlog_types import CorruptStorage, ShardNumber

SHARDS = 3
FIRST = {
    records.FORMAT_KEY: records.encode_format(),
    records.NODE_KEY: records.encode_node(records.NodeRecord("AAECAwQFBgcICQoLDA0ODw", 1, 16)),
    records.STARTS_KEY: records.encode_count(0),
    records.PRODUCER_IDS_KEY: records.encode_count(0),
    records.OFFSETS_LOGS_KEY: records.encode_count(4),
    records.SHARDS_KEY: records.encode_count(SHARDS),
}
IDS = [UUID(int=number) for number in range(3)]


def of_topic(topic_id: UUID, name: str, partitions: int, deleting: bool) -> Changes:
    topic = Topic(name, topic_id, partitions, {}, 5)
    return {records.topic_key(topic_id): records.encode_topic(records.TopicRecord(topic, deleting))}


def of_group(group: str, value: str | None) -> Changes:
    encoded = None if value is None else records.encode_group_configs(group, {"a": value})
    return {records.group_configs_key(group): encoded}


def of_shard(shard: int, starts: int) -> Changes:
    return {records.shard_key(ShardNumber(shard)): records.encode_shard(records.ShardRecord(starts, starts > 1))}


def of_address(node_id: int, port: int, internal: tuple[str, int] | None) -> Changes:
    return {records.address_key(node_id): records.encode_address(records.AddressRecord("h", port, internal))}


NAMES, COUNTS = st.sampled_from(["a.b", "c", "d"]), st.integers(0, 5)
CHANGES = st.one_of(
    st.builds(of_group, NAMES, st.none() | st.sampled_from(["1", "2"])),
    st.builds(of_shard, st.integers(0, SHARDS - 1), COUNTS),
    st.builds(of_address, st.integers(1, 3), COUNTS, st.none() | st.just(("i", 9))),
    st.builds(
        lambda each, value: {records.broker_key(each): records.encode_broker_configs({"a": value})}, NAMES, NAMES
    ),
    st.builds(lambda each, level: {records.feature_key(each): records.encode_count(level)}, NAMES, COUNTS),
    st.builds(
        lambda key, count: {key: records.encode_count(count)},
        st.sampled_from([records.STARTS_KEY, records.PRODUCER_IDS_KEY]),
        COUNTS,
    ),
)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[bytes, bytes]]:
    """The records of a store after each of some changes; topics live and go as the store lets them."""
    content = dict(FIRST)
    states = [dict(content)]
    topics: dict[UUID, tuple[str, bool]] = {}
    for _ in range(draw(st.integers(0, 12))):
        topic_id = draw(st.sampled_from(IDS))
        changes: dict[bytes, bytes | None] = dict(draw(CHANGES))
        live = {name for name, deleting in topics.values() if not deleting}
        if topic_id not in topics:
            name = draw(NAMES)
            if name not in live:
                topics[topic_id] = name, False
                changes.update(of_topic(topic_id, name, 1, False))
        elif not topics[topic_id][1]:
            deleting = draw(st.booleans())
            topics[topic_id] = topics[topic_id][0], deleting
            changes.update(of_topic(topic_id, topics[topic_id][0], draw(st.integers(1, 9)), deleting))
        else:
            memory = StoreMemory(content, ShardNumber(draw(st.integers(0, SHARDS - 1))), FEATURES)
            changes.update(memory.forgotten(topic_id))
            if records.topic_key(topic_id) in changes:
                del topics[topic_id]
        for key, value in changes.items():
            if value is None:
                content.pop(key, None)
            else:
                content[key] = value
        states.append(dict(content))
    return states


@given(states=histories(), data=st.data())
def test_memory_that_follows_changes_is_what_reading_anew_gives(
    states: list[dict[bytes, bytes]], data: st.DataObject
) -> None:
    """Also if it sees only some of the states; a state that it has already changes nothing."""
    memory = StoreMemory(states[0], ShardNumber(1), FEATURES)
    for state in (each for each in states[1:] if data.draw(st.booleans())):
        before = dict(memory.by_name)
        visible = memory.apply(memory.differences(state))
        assert vars(memory) == vars(StoreMemory(state, ShardNumber(1), FEATURES))
        assert visible or before == memory.by_name
        assert memory.differences(state) == {}
        assert not memory.apply({})


def test_memory_takes_in_nothing_of_changes_of_which_one_is_corrupt() -> None:
    """A reader sees all of a transaction, or nothing."""
    memory = StoreMemory(FIRST, ShardNumber(0), FEATURES)
    good = {**of_topic(IDS[0], "a", 1, False), **of_group("g", "1")}
    with pytest.raises(CorruptStorage, match="shard 3"):
        memory.apply({**good, **of_shard(SHARDS, 1)})
    assert (memory.by_name, memory.group_configs, memory.differences(FIRST)) == ({}, {}, {})
    assert memory.apply(good)


def test_memory_of_a_name_that_passed_to_another_topic_has_the_new_one() -> None:
    """One look may find a topic deleted and its name given anew, in whatever order the records come."""
    memory = StoreMemory({**FIRST, **of_topic(IDS[1], "a", 1, False)}, ShardNumber(0), FEATURES)
    gone, new = of_topic(IDS[1], "a", 1, True), of_topic(IDS[0], "a", 2, False)
    for changes in ({**new, **gone}, {**gone, **new}):
        memory = StoreMemory({**FIRST, **of_topic(IDS[1], "a", 1, False)}, ShardNumber(0), FEATURES)
        assert memory.apply(changes)
        assert (memory.by_name["a"].topic_id, memory.by_folded_name, [*memory.deleting]) == (
            IDS[0],
            {"a": "a"},
            [IDS[1]],
        )


def test_memory_of_what_no_reader_asks_for_is_no_news() -> None:
    """Producer ids given out elsewhere, journals that are begun, a topic dropped elsewhere or forgotten by all."""
    memory = StoreMemory({**FIRST, **of_topic(IDS[0], "a", 1, True)}, ShardNumber(0), FEATURES)
    assert not memory.apply({records.PRODUCER_IDS_KEY: records.encode_count(9)})
    assert not memory.apply(memory.begun())
    assert not memory.apply(memory.forgotten(IDS[0]))
    forgotten = records.topic_key(IDS[0]), records.dropped_key(IDS[0], ShardNumber(0))
    assert not memory.apply(dict.fromkeys(forgotten))
    assert (memory.next_producer_id, memory.deleting, memory.dropped) == (9, {}, {})
