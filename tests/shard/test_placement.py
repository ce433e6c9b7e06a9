"""Where logs and group journals are: each is in one shard, and shards have about as many of them."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import LogId, ShardNumber
from shard.placement import Placement

placements = st.integers(1, 64).map(Placement)


@given(placements, st.uuids(), st.integers(0, 200))
def test_partitions_of_a_spread_topic_take_the_shards_in_turns(placement: Placement, topic: UUID, count: int) -> None:
    """So no two shards differ by more than one partition of it."""
    shards = [placement.shard_of(LogId.of_topic(topic, number), together=False) for number in range(count)]
    assert all(0 <= shard < placement.shards for shard in shards)
    of_each = [shards.count(ShardNumber(number)) for number in range(placement.shards)]
    assert max(of_each) - min(of_each) <= 1


@given(placements, st.uuids(), st.integers(1, 200))
def test_partitions_of_a_topic_kept_together_are_in_the_shard_of_its_first(
    placement: Placement, topic: UUID, count: int
) -> None:
    """Where it is spread, too: partition 0 does not depend on it."""
    shards = {placement.shard_of(LogId.of_topic(topic, number), together=True) for number in range(count)}
    assert shards == {placement.shard_of(LogId.of_topic(topic, 0), together=False)}


def test_topics_begin_in_different_shards() -> None:
    """A topic of one partition would else always be in the first one."""
    placement = Placement(4)
    logs = (LogId.of_topic(UUID(int=number), 0) for number in range(400))
    firsts = Counter(placement.shard_of(log, together=False) for log in logs)
    assert min(firsts[ShardNumber(shard)] for shard in range(4)) > 60


@given(st.integers(1, 9), st.integers(1, 9), st.uuids(), st.booleans(), st.integers(1, 50))
def test_shards_that_are_added_move_nothing(first: int, added: int, topic: UUID, together: bool, count: int) -> None:
    """Nor do they get a group journal or an offsets log; topics made later have partitions on them."""
    before, now = Placement(first), Placement(first + added, first)
    for log in [*(LogId.of_topic(topic, number) for number in range(count)), LogId.of_offsets(count)]:
        assert now.shard_of(log, together=together) == before.shard_of(log, together=together)
    for shard in map(ShardNumber, range(first)):
        assert now.group_journals(shard, count) == before.group_journals(shard, count)
        assert now.offsets_logs(shard, count) == before.offsets_logs(shard, count)
    for shard in map(ShardNumber, range(first, first + added)):
        assert not now.group_journals(shard, count)
        assert not now.offsets_logs(shard, count)
    logs = [LogId.of_topic(topic, number) for number in range(first + added)]
    assert {now.shard_of(log, together=False, over=now.shards) for log in logs} == set(range(now.shards))


@given(placements, st.integers(1, 200))
def test_every_group_journal_and_offsets_log_is_in_one_shard(placement: Placement, count: int) -> None:
    """The lists of all shards together have each of them once, where the questions say."""
    shards = [ShardNumber(number) for number in range(placement.shards)]
    journals = {number: shard for shard in shards for number in placement.group_journals(shard, count)}
    assert journals == {number: placement.shard_of_group_journal(number) for number in range(count)}
    assert [len(placement.group_journals(shard, count)) for shard in shards].count(0) == max(0, len(shards) - count)
    logs = [log for shard in shards for log in placement.offsets_logs(shard, count)]
    assert len(logs) == len(set(logs)) == count
    for shard in shards:
        for log in placement.offsets_logs(shard, count):
            assert placement.shard_of(log, together=False) == shard
        assert placement.others(shard) == [other for other in shards if other != shard]


def test_group_journals_keep_their_order_in_their_shard() -> None:
    """The n-th is the (n div N)-th of its shard."""
    placement = Placement(3)
    for number in range(10):
        assert placement.group_journals(placement.shard_of_group_journal(number), 10)[number // 3] == number
