"""What a node shows of its cluster when others are down, paused or deposed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from fairlog.cluster.cluster_records import NodeNumber, ShardRecord
from fairlog.cluster.reports import HeardCopy
from fairlog.cluster_node.status import ShardStatus, look
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import Role
from stream.engine import StreamPosition

ONE, TWO, THREE = map(NodeNumber, (1, 2, 3))
EPOCH = LeaderEpoch(5)


def heard(role: Role, *, epoch: int = EPOCH, taken: int = 100) -> HeardCopy:
    return HeardCopy(role, LeaderEpoch(epoch), StreamPosition(taken), StreamPosition(taken), 1.0, 0.0)


@dataclass
class Cluster:
    """Shard 0 is node 1's in epoch 5, with copies in sync on nodes 2 and 3; node 3 looks at it."""

    up: set[NodeNumber] = field(default_factory=lambda: {ONE, TWO, THREE})
    copies: dict[NodeNumber, HeardCopy] = field(
        default_factory=lambda: {ONE: heard(Role.OWNER), TWO: heard(Role.REPLICA, taken=90), THREE: heard(Role.REPLICA)}
    )
    engine_answers: bool = True
    hears: bool = True

    def seen(self) -> ShardStatus:
        record = ShardRecord((ONE, TWO, THREE), ONE, EPOCH, (ONE, TWO, THREE))
        node = SimpleNamespace(host="h", rack=None)
        memory: Any = SimpleNamespace(
            nodes=dict.fromkeys((ONE, TWO, THREE), node),
            shards=1,
            wishes={},
            cluster=SimpleNamespace(cluster_id="c"),
            shard=lambda _: record,
        )
        reports: Any = SimpleNamespace(
            up=lambda _: self.up, of=lambda _: self.copies, hears=lambda _node, _for_s: self.hears
        )
        health: Any = SimpleNamespace(answers=self.engine_answers, since=0.0, said="", appends=0, bytes=0, unknown=0)
        (shard,) = look("orders", THREE, memory, reports, health, 1.0).shards
        assert shard.number == ShardNumber(0)
        return shard


def rows(shard: ShardStatus) -> list[tuple[int, str, bool, int | None]]:
    return [(copy.node, copy.role, copy.in_sync, copy.lag) for copy in shard.copies]


def test_shard_that_is_served_is_shown_as_it_is() -> None:
    shard = Cluster().seen()
    assert shard.owner == ONE
    assert rows(shard) == [(1, "owner", True, 0), (2, "replica", True, 10), (3, "replica", True, 0)]


def test_shard_whose_owner_is_down_has_none_and_a_copy_less() -> None:
    """Its last words say that it is the owner, and in sync: nobody is to rest on that."""
    shard = Cluster(up={TWO, THREE}).seen()
    assert shard.owner is None
    assert rows(shard) == [(1, "down", False, None), (2, "replica", True, None), (3, "replica", True, None)]


def test_node_that_was_deposed_is_no_second_owner() -> None:
    """It was paused, and does not know yet."""
    cluster = Cluster()
    cluster.copies[TWO] = heard(Role.OWNER, epoch=EPOCH - 1)
    assert rows(cluster.seen())[1][:2] == (2, "deposed")


def test_copy_that_was_not_reported_is_unknown() -> None:
    cluster = Cluster()
    del cluster.copies[TWO]
    assert rows(cluster.seen())[1] == (2, "unknown", True, None)


def test_owners_stay_as_they_were_while_the_engine_is_away() -> None:
    """No report comes from anybody then."""
    shard = Cluster(up={THREE}, engine_answers=False).seen()
    assert (shard.owner, rows(shard)[0]) == (ONE, (1, "owner", True, 0))


def test_owners_are_as_they_were_for_a_node_that_has_just_started() -> None:
    """It has not heard all of the others yet."""
    shard = Cluster(up={THREE}, hears=False).seen()
    assert (shard.owner, rows(shard)[0]) == (ONE, (1, "owner", True, 0))
