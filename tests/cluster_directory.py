"""The data directory of a node of several machines, as a replica leaves it: real files, without an engine.

Of three shards there are copies of 0 and 2, of what owners have written that were made by hand:

    shard 0   `orders` 0, 3   a plain record in each, then two transactions whose coordinator is here: one within the
                              shard, and one that goes on in shard 2
    shard 2   `orders` 2, 5   a plain record in each. Of the transaction over both shards it has one record, and has not
                              heard more: it lags behind

Of shard 1, with `orders` 1 and 4 and all of `bills`, there is nothing.
So what the shards show is not of one moment.
"""

from __future__ import annotations

import random
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import trio

from coordinator.group_records import (
    BeginRecord,
    CommittedRecord,
    Expectation,
    GroupRecord,
    PrepareCommitRecord,
    ProducerRecord,
)
from coordinator.messages import UNCOUNTED
from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import ClusterRecord, InnerTlsRecord, NodeNumber, NodeRecord, Ports, ShardRecord
from fairlog.cluster.interface import Topic
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_entry import Base
from fairlog.cluster.metadata_fold import FoldState
from fairlog.data_directory import METADATA
from fairlog_types import (
    LeaderEpoch,
    LogId,
    Offset,
    Placement,
    ProducerEpoch,
    ProducerId,
    ShardNumber,
    TxId,
)
from partition.modes import JOURNAL
from shard import placement
from shard.directory import shard_directory
from shard.partitions import Partitions
from shard.replica import open_replica, save_mark
from shard.shard import open_storage
from stream.engine import StoredEntry, StreamPosition
from tests.shard.owner_in_test import OwnerInTest
from tests.stream.members import SETTINGS, NobodyWatches
from tests.stream.model_engine import open_model

SHARDS = 3
NAME = "orders-cluster"
SECRET = bytes(range(32))
CLUSTER = ClusterRecord(cluster_records.cluster_id_of(UUID(int=1)), SHARDS, SECRET)
ORDERS = Topic("orders", UUID(int=2), 6, {}, 1000)
BILLS = Topic("bills", UUID(int=4), 1, {}, 1000)
WITHIN, OVER = (TxId(ProducerId(7), ProducerEpoch(0), number) for number in range(2))
LATER_VALUE = b"over both"


def logs_of(shard: int) -> list[LogId]:
    """What the shard has of `orders`."""
    spread = placement.Placement(SHARDS)
    return [log for log in ORDERS.logs() if spread.shard_of(log, together=False) == shard]


async def make_directory(data_dir: Path) -> None:
    """Make it; nobody has it when this returns."""
    await write_metadata(data_dir)
    first, second = logs_of(0)
    other = logs_of(2)[0]
    owner = OwnerInTest()
    owner.append(*(owner.plain(log, 0, b"first of %d" % log.partition) for log in logs_of(0)))
    owner.append(owner.of_group(0, _producer()))
    _commit_within(owner, first, second)
    owner.append(owner.of_group(0, _committed(WITHIN, {first: 1, second: 1})))
    _begin(owner, OVER, (first, other))
    owner.append(
        owner.in_transaction(first, LATER_VALUE, OVER, 1),
        owner.of_group(0, _prepared(OVER, {first: 1, other: UNCOUNTED}, 2)),
    )
    owner.append(owner.applied(first, 2, OVER, 2))
    owner.append(owner.of_group(0, _committed(OVER, {first: 2, other: 1})))
    await write_copy(data_dir, 0, owner.entries, logs_of(0))

    owner = OwnerInTest()
    owner.append(*(owner.plain(log, 0, b"first of %d" % log.partition) for log in logs_of(2)))
    owner.append(owner.in_transaction(other, LATER_VALUE, OVER, 0))
    await write_copy(data_dir, 2, owner.entries, logs_of(2))


def _commit_within(owner: OwnerInTest, first: LogId, second: LogId) -> None:
    """A transaction over two logs of the shard, which is the first one of its group."""
    _begin(owner, WITHIN, (first, second))
    owner.append(
        owner.in_transaction(first, b"one", WITHIN),
        owner.in_transaction(second, b"two", WITHIN),
        owner.of_group(0, _prepared(WITHIN, {first: 1, second: 1}, 1)),
        owner.applied(first, 1, WITHIN),
        owner.applied(second, 1, WITHIN),
    )


async def make_single(data_dir: Path) -> None:
    """One of a cluster with one shard: `orders` 0 and 1 have a plain record, and one of a transaction over both."""
    configs = {
        records.broker_key(""): records.encode_broker_configs({"log.retention.ms": "7"}),
        records.broker_key("1000"): records.encode_broker_configs({"log.retention.ms": "8"}),
        records.group_configs_key("g"): records.encode_group_configs("g", {"consumer.session.timeout.ms": "9000"}),
        records.PRODUCER_IDS_KEY: records.encode_count(5000),
    }
    await write_metadata(data_dir, [ORDERS], shards=1, others=configs)
    first, second, *others = ORDERS.logs()
    owner = OwnerInTest()
    owner.append(owner.plain(first, 0, b"first of 0"), owner.plain(second, 0, b"first of 1"))
    owner.append(owner.of_group(0, _producer()))
    _commit_within(owner, first, second)
    await write_copy(data_dir, 0, owner.entries, [first, second, *others], group_journals=range(SHARDS))


async def write_metadata(
    data_dir: Path,
    topics: Sequence[Topic] = (ORDERS, BILLS),
    *,
    shards: int = SHARDS,
    others: Mapping[bytes, bytes] = types.MappingProxyType({}),
) -> None:
    """As the node's copy of the metadata has them after 20 entries."""
    await trio.Path(data_dir).mkdir(exist_ok=True)
    content = cluster_records.first_records(CLUSTER, shards=shards, offsets_logs=4, group_separator=":")
    content |= others
    for topic in topics:
        content[records.topic_key(topic.topic_id)] = records.encode_topic(records.TopicRecord(topic, deleting=False))
    node = NodeRecord(bytes(16), "here", "inside", {ShardNumber(0): Ports(9193, 9196)}, "a")
    content[cluster_records.node_key(NodeNumber(1))] = cluster_records.encode_node(node)
    content[cluster_records.inner_tls_key(NodeNumber(1))] = cluster_records.encode_inner_tls(
        InnerTlsRecord(node.incarnation)
    )
    kept = ShardRecord([NodeNumber(1)], NodeNumber(1), LeaderEpoch(4), [NodeNumber(1)])
    content[cluster_records.shard_key(ShardNumber(0))] = cluster_records.encode_shard(kept)
    copy = LocalCopy.open(data_dir / METADATA, f"{NAME}.metadata")
    await copy.write(content, FoldState(CLUSTER.uuid, Base(StreamPosition(19), 1), StreamPosition(20)))
    copy.close()


async def write_copy(
    data_dir: Path,
    number: int,
    entries: Sequence[bytes],
    logs: Sequence[LogId],
    *,
    group_journals: Sequence[int] | None = None,
) -> None:
    """What a replica makes of these entries of the shard's stream, and its mark."""
    shard = shard_directory(data_dir, ShardNumber(number))

    async def adopt(_partitions: Partitions, _log: LogId) -> bool:
        return False

    with trio.fail_after(30):
        async with (
            open_model(random.Random(0)) as cluster,
            open_storage(shard, map_bytes=2**26, watcher=NobodyWatches()) as storage,
        ):
            stream = await cluster.engine("n").open_stream(f"{NAME}.shard-{number}")
            opening = open_replica(
                shard,
                storage,
                SETTINGS,
                stream,
                group_journals=[number] if group_journals is None else group_journals,
                adopt=adopt,
                now_ms=lambda: 1,
                keeps_cuts=group_journals is not None,
            )
            async with opening as replica, trio.open_nursery() as nursery:
                await replica.partitions.lead(list(logs), JOURNAL)
                nursery.start_soon(replica.partitions.copy)
                for position, entry in enumerate(entries):
                    await replica.take(StoredEntry(StreamPosition(position), entry))
                replica.recover_before(StreamPosition(len(entries)))
                await replica.partitions.drain()
                await save_mark(replica.journals, replica.taken, shard.stream_mark, stream.name)
                nursery.cancel_scope.cancel()


def _producer() -> GroupRecord:
    return ProducerRecord("t", "t", WITHIN.producer_id, WITHIN.epoch, ProducerEpoch(-1), 60_000, 0, False, 5)


def _begin(owner: OwnerInTest, txid: TxId, logs: Sequence[LogId]) -> None:
    owner.append(owner.of_group(0, BeginRecord(txid, "t", {log: LeaderEpoch(1) for log in logs}, 5)))


def _prepared(txid: TxId, counts: dict[LogId, int], number: int) -> GroupRecord:
    expected = {log: Expectation(LeaderEpoch(1), count) for log, count in counts.items()}
    return PrepareCommitRecord(txid, "t", expected, 5, number)


def _committed(txid: TxId, at: dict[LogId, int]) -> GroupRecord:
    return CommittedRecord(txid, "t", tuple(Placement(log, Offset(offset), 1) for log, offset in at.items()), 5)
