"""The planner that spreads shards over nodes: even, stable, few moves, and no copy dropped too early."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fairlog.cluster.cluster_records import NO_SHARD_RECORD, NodeNumber, ShardRecord
from fairlog.cluster.spreading import ShardPlan, spread
from fairlog_types import LeaderEpoch, ShardNumber

Shards = Mapping[ShardNumber, ShardRecord]
NODES = [NodeNumber(number) for number in range(1, 7)]
UPS = st.sets(st.sampled_from(NODES), min_size=1)
WISHES = st.dictionaries(st.integers(0, 7).map(ShardNumber), st.sampled_from(NODES))
"""Perhaps of shards that are not there, and of nodes that are not up."""


def new_shards(count: int) -> Shards:
    return {ShardNumber(number): NO_SHARD_RECORD for number in range(count)}


@st.composite
def kept_shards(draw: st.DrawFn, shards_max: int = 8, nodes: Sequence[NodeNumber] = tuple(NODES)) -> Shards:
    """Any state, also one that no plan leads to."""
    found: dict[ShardNumber, ShardRecord] = {}
    for number in range(draw(st.integers(1, shards_max))):
        replicas = draw(st.permutations(nodes))[: draw(st.integers(0, len(nodes)))]
        in_sync = draw(st.sets(st.sampled_from(replicas))) if replicas else set[NodeNumber]()
        owner = draw(st.sampled_from(sorted(in_sync))) if in_sync else None
        found[ShardNumber(number)] = ShardRecord(tuple(replicas), owner, LeaderEpoch(3), tuple(sorted(in_sync)))
    return found


def carried_out(shards: Shards, plan: Mapping[ShardNumber, ShardPlan], up: Collection[NodeNumber]) -> Shards:
    """Some time later: who is up has caught up, and the owners are those of the plan."""
    after: dict[ShardNumber, ShardRecord] = {}
    for shard, (replicas, owner) in plan.items():
        before = shards[shard]
        if owner is None and any(node in up for node in replicas) and not set(before.in_sync) & set(replicas):
            owner = replicas[0]
        in_sync = tuple(
            node
            for node in replicas
            if (node in up and owner is not None) or (node not in up and node in before.in_sync)
        )
        after[shard] = ShardRecord(replicas, owner, before.epoch, in_sync)
    return after


def settled(
    shards: Shards, up: Collection[NodeNumber], replicas: int, wishes: Mapping[ShardNumber, NodeNumber] | None = None
) -> Shards:
    """What comes of it in the end; it must come to an end."""
    for _ in range(6):
        plan = spread(up, shards, replicas, wishes or {})
        after = carried_out(shards, plan, up)
        if after == shards:
            return shards
        shards = after
    raise AssertionError(f"no end: {shards}")


def with_nobody_lost(shards: Shards, up: Collection[NodeNumber]) -> Shards:
    """Those that somebody who is up can own, or that nobody has owned."""
    return {shard: record for shard, record in shards.items() if not record.in_sync or set(record.in_sync) & set(up)}


def loads(shards: Shards, up: Collection[NodeNumber], count: int) -> Counter[NodeNumber]:
    load = Counter(dict.fromkeys(up, 0))
    for record in shards.values():
        load.update(record.replicas[:count])
    return load


@given(kept_shards(), UPS, st.integers(1, 4))
def test_shards_end_up_even_with_as_many_copies_as_can_be(shards: Shards, up: set[NodeNumber], replicas: int) -> None:
    """From any state: copies and owners differ by one at most, each shard has its copies, on nodes that are up."""
    shards = with_nobody_lost(shards, up)
    after = settled(shards, up, replicas)
    count = min(replicas, len(up))
    load = loads(after, up, count)
    assert set(load) == up
    assert max(load.values()) - min(load.values()) <= 1
    owned = Counter(dict.fromkeys(up, 0))
    for record in after.values():
        assert len(set(record.replicas)) == len(record.replicas)
        assert set(record.replicas[:count]) <= up
        assert len(record.replicas) == replicas or count < replicas
        assert record.owner == record.replicas[0]
        owned[record.replicas[0]] += 1
    assert max(owned.values()) - min(owned.values()) <= 1


@given(kept_shards(), UPS, st.integers(1, 4), WISHES)
def test_wished_node_owns_the_shard_in_the_end(
    shards: Shards, up: set[NodeNumber], replicas: int, wishes: dict[ShardNumber, NodeNumber]
) -> None:
    """If it is up. The rest is even: no node could give a copy that nobody wished for to one that has two fewer."""
    shards = with_nobody_lost(shards, up)
    after = settled(shards, up, replicas, wishes)
    count = min(replicas, len(up))
    for shard, record in after.items():
        assert set(record.replicas[:count]) <= up
        assert len(record.replicas) == replicas or count < replicas
        assert record.owner == record.replicas[0]
        assert wishes.get(shard) not in up or record.owner == wishes[shard]
    load = loads(after, up, count)
    for giver, taker in itertools.permutations(up, 2):
        if load[giver] >= load[taker] + 2:
            kept = {shard: set(record.replicas[:count]) for shard, record in after.items()}
            movable = [shard for shard, nodes in kept.items() if giver in nodes and taker not in nodes]
            assert all(wishes.get(shard) == giver for shard in movable)


@given(kept_shards(), UPS, st.integers(1, 4), WISHES)
def test_wish_waits_for_a_copy_that_is_in_sync(
    shards: Shards, up: set[NodeNumber], replicas: int, wishes: dict[ShardNumber, NodeNumber]
) -> None:
    """Until then whoever else has all that there is owns the shard. Once it is there, nothing else is waited for."""
    for shard, (planned, owner) in spread(up, shards, replicas, wishes).items():
        wished, record = wishes.get(shard), shards[shard]
        if wished in up:
            assert wished in planned[: min(replicas, len(up))]
            assert (owner == wished) == (not record.in_sync or wished in record.in_sync)


@given(kept_shards(), UPS, st.integers(1, 4), WISHES)
def test_wish_for_a_node_that_is_not_up_counts_for_nothing(
    shards: Shards, up: set[NodeNumber], replicas: int, wishes: dict[ShardNumber, NodeNumber]
) -> None:
    heard = {shard: node for shard, node in wishes.items() if node in up}
    assert spread(up, shards, replicas, wishes) == spread(up, shards, replicas, heard)


@given(kept_shards(), UPS, st.integers(1, 4), WISHES)
def test_plan_that_was_taken_over_is_planned_again_as_it_is(
    shards: Shards, up: set[NodeNumber], replicas: int, wishes: dict[ShardNumber, NodeNumber]
) -> None:
    """Also before anybody has copied anything."""
    plan = spread(up, shards, replicas, wishes)
    taken = {
        shard: ShardRecord(plan[shard].replicas, record.owner, record.epoch, record.in_sync)
        for shard, record in shards.items()
    }
    again = spread(up, taken, replicas, wishes)
    assert {shard: set(each.replicas) for shard, each in again.items()} == {
        shard: set(each.replicas) for shard, each in plan.items()
    }
    third = {
        shard: ShardRecord(again[shard].replicas, record.owner, record.epoch, record.in_sync)
        for shard, record in shards.items()
    }
    assert spread(up, third, replicas, wishes) == again


@given(kept_shards(), UPS, st.integers(1, 4), WISHES)
def test_no_copy_is_dropped_before_its_replacement_is_in_sync(
    shards: Shards, up: set[NodeNumber], replicas: int, wishes: dict[ShardNumber, NodeNumber]
) -> None:
    """In any state: whoever is left out, `replicas` others have all that there is."""
    for shard, (planned, owner) in spread(up, shards, replicas, wishes).items():
        record = shards[shard]
        if set(record.replicas) - set(planned):
            assert len(planned) == replicas
            assert set(planned) <= set(record.in_sync) & up
        assert owner is None or (owner in up and owner in planned and (owner in record.in_sync or not record.in_sync))
        if owner is None:
            assert not set(record.in_sync) & up & set(record.replicas)


def kept_as(*replicas: Sequence[int]) -> Shards:
    return {
        ShardNumber(number): ShardRecord(tuple(map(NodeNumber, nodes)), None, LeaderEpoch(3), ())
        for number, nodes in enumerate(replicas)
    }


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(kept_as((1, 2), (), (2,), (4,)), 2, 4)  # a missing copy at the node with the fewest makes another one move
@example(kept_as((5,), (3, 1), (1, 5), (4,)), 2, 4)
@given(kept_shards(shards_max=4, nodes=tuple(NODES[:5])), st.integers(1, 3), st.integers(3, 5))
def test_new_copies_are_as_few_as_can_be(shards: Shards, replicas: int, nodes: int) -> None:
    """Compared with all even ways to keep the shards on some of the nodes."""
    up = NODES[:nodes]
    shards = {
        shard: ShardRecord(record.replicas[:replicas], None, record.epoch, ()) for shard, record in shards.items()
    }
    plan = spread(up, shards, replicas)
    due = min(
        sum(len(set(nodes) - set(record.replicas)) for nodes, record in zip(way, shards.values(), strict=True))
        for way in itertools.product(itertools.combinations(up, replicas), repeat=len(shards))
        if is_even(way, up)
    )
    assert sum(len(set(plan[shard].replicas[:replicas]) - set(shards[shard].replicas)) for shard in shards) == due


def is_even(way: Sequence[Sequence[NodeNumber]], up: Sequence[NodeNumber]) -> bool:
    load = Counter(itertools.chain.from_iterable(way))
    return max(load[node] for node in up) - min(load[node] for node in up) <= 1


@given(st.integers(1, 40), st.integers(2, 6), st.integers(1, 3))
def test_node_that_comes_takes_its_share_and_nothing_else_moves(count: int, nodes: int, replicas: int) -> None:
    """The others give to it alone; nobody else copies."""
    up = NODES[: nodes - 1]
    before = settled(new_shards(count), up, replicas)
    plan = spread(NODES[:nodes], before, replicas)
    new = [node for shard in plan for node in plan[shard].replicas if node not in before[shard].replicas]
    assert set(new) <= {NODES[nodes - 1]}
    wanted = count * min(replicas, nodes)
    assert len(new) in (wanted // nodes, -(-wanted // nodes))


@given(st.integers(1, 40), st.integers(2, 6), st.integers(1, 3), st.data())
def test_node_that_goes_is_replaced_and_nothing_else_moves(
    count: int, nodes: int, replicas: int, data: st.DataObject
) -> None:
    """What it kept is copied elsewhere, and it stays on the list until that is done; it owns nothing.

    One more has to move if all who have room share what was lost.
    """
    up = NODES[:nodes]
    before = settled(new_shards(count), up, replicas)
    gone = data.draw(st.sampled_from(up))
    left = [node for node in up if node != gone]
    plan = spread(left, before, replicas)
    new = 0
    for shard, (planned, owner) in plan.items():
        assert owner != gone
        new += len(set(planned) - set(before[shard].replicas))
        assert gone in planned or gone not in before[shard].replicas
    lost = sum(gone in record.replicas for record in before.values())
    assert lost <= new <= lost + 1 or replicas >= nodes
    assert new == 0 or replicas < nodes
    after = settled(before, left, replicas)
    if replicas <= len(left):
        survivors = {shard: record for shard, record in before.items() if record.replicas != (gone,)}
        assert all(gone not in after[shard].replicas for shard in survivors)


def test_shard_on_the_move_keeps_its_owner_until_the_copy_is_in_sync() -> None:
    """Then the ownership is handed over once."""
    one, two, three = NODES[:3]
    shards = {
        ShardNumber(number): ShardRecord((one, two), one if number else two, LeaderEpoch(1), (one, two))
        for number in range(3)
    }
    plan = spread([one, two, three], shards, 2)
    moved = [shard for shard, each in plan.items() if three in each.replicas]
    assert len(moved) == 2
    for shard in moved:
        assert plan[shard].owner == shards[shard].owner
        assert set(plan[shard].replicas) == {one, two, three}
    after = settled(shards, [one, two, three], 2)
    assert sorted(record.owner for record in after.values() if record.owner is not None) == [one, two, three]


def test_nobody_up_changes_nothing() -> None:
    """There is nothing to be done."""
    record = ShardRecord(tuple(NODES[:2]), NODES[0], LeaderEpoch(1), (NODES[0],))
    assert spread([], {ShardNumber(0): record}, 2) == {ShardNumber(0): ShardPlan(tuple(NODES[:2]), None)}


def test_shard_that_is_moved_changes_places_with_another_one() -> None:
    """Where all have all copies: the node that gives it gets another one for it, and nothing is copied."""
    nodes = tuple(NODES[:3])
    shards = {ShardNumber(n): ShardRecord(nodes, nodes[n], LeaderEpoch(1), nodes) for n in range(3)}
    plan = spread(nodes, shards, 3, {ShardNumber(0): nodes[1]})
    assert [plan[ShardNumber(n)].owner for n in range(3)] == [nodes[1], nodes[0], nodes[2]]
    assert all(set(each.replicas) == set(nodes) for each in plan.values())


@pytest.mark.parametrize("replicas", [1, 2])
def test_node_that_is_wished_for_often_has_more_than_its_share(replicas: int) -> None:
    """The others share what is left."""
    nodes = NODES[:3]
    wishes = {ShardNumber(number): nodes[0] for number in range(6)}
    after = settled(new_shards(12), nodes, replicas, wishes)
    assert all(after[shard].owner == node for shard, node in wishes.items())
    load = loads(after, nodes, replicas)
    assert [load[node] for node in nodes] == ([6, 3, 3] if replicas == 1 else [8, 8, 8])
    owned = Counter(record.owner for record in after.values())
    assert [owned[node] for node in nodes] == [6, 3, 3]
