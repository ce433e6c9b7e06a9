"""Directories of two shards, as `tests.shard.neighbours` leaves them, with the cluster store that belongs to them.

Parts of two such directories put together are one that no node leaves: what must be found.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import lmdb
import trio

from fairlog.cluster import records
from fairlog.cluster.interface import Topic
from fairlog.data_directory import CLUSTER, CLUSTER_STORE
from fairlog.verify.verification import Verification
from fairlog_types import LogId, ProducerEpoch, ProducerId, ShardNumber, TxId
from journal.frame import HEADER, encode_frame
from journal.read_only import open_read_only
from journal.segment import JournalKind, file_offset
from partition.modes import TransactionMode
from partition.record_codec import decode_local, encode_local
from partition.records import Prepared
from tests.shard.neighbours import COUNT, Cluster, Writer, log_of, open_cluster

OWN, OTHER = log_of(0), log_of(1)
"""Of the coordinator's shard, and of the other one."""
BOTH = {OWN: [b"own"], OTHER: [b"other", b"one more"]}
FIRST, SECOND = ShardNumber(0), ShardNumber(1)
TXID = TxId(ProducerId(1000), ProducerEpoch(0), 0)
"""Of the first transaction in a directory."""


async def make_images(tmp_path: Path, mode: TransactionMode) -> Mapping[str, Path]:
    """What lies on the disks at each stage of one and the same transaction over both shards, committed or aborted."""
    found: dict[str, Path] = {}
    async with open_cluster(tmp_path / "run", mode=mode) as cluster, trio.open_nursery() as nursery:
        cluster.way.lost = 0  # what is cut off below must have got its answers
        found["before"] = cluster.crash(tmp_path / "before")
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        found["open"] = cluster.crash(tmp_path / "open")
        cluster.disks[FIRST].hold("group")
        nursery.start_soon(writer.end)
        await prepared(cluster, OTHER)
        found["in doubt"] = cluster.crash(tmp_path / "in doubt")
        found["prepared"] = cluster.crash(tmp_path / "prepared", losing={"group/0": found["open"]})
        cluster.way.cut.add((FIRST, SECOND))
        cluster.disks[FIRST].let_go()
        await placed(cluster, OWN)
        await cluster.values(OWN)
        found["other lags"] = cluster.crash(tmp_path / "other lags")
        cluster.way.cut.clear()
        await visible_everywhere(cluster, writer)
        found["committed"] = cluster.crash(tmp_path / "committed")
    async with open_cluster(tmp_path / "other run", mode=mode) as cluster:
        writer = await cluster.writer("t")
        await writer.write(BOTH)
        cluster.way.cut.add((FIRST, SECOND))
        await writer.end(commit=False)
        found["aborted, other not told"] = cluster.crash(tmp_path / "other not told")
        cluster.way.cut.clear()
        with trio.fail_after(10):
            while cluster.shards[SECOND].partitions.by_log[OTHER].state.open_transactions:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await cluster.values(OWN, OTHER)
        found["aborted"] = cluster.crash(tmp_path / "aborted")
    async with open_cluster(found["prepared"], starts=2, mode=mode) as cluster:
        await cluster.values(OWN, OTHER)
        found["aborted at the start"] = cluster.crash(tmp_path / "aborted at the start")
    found["own lags"] = put_together(tmp_path / "own lags", found["in doubt"], found["committed"])
    for image in found.values():
        note_shards(image, mode)
    return found


async def prepared(cluster: Cluster, log: LogId) -> None:
    """Wait until the log has PREPARED."""
    (directory,) = cluster.data_dir.glob(f"shards/*/journals/local/{log}")
    with trio.fail_after(10):
        while True:
            journal = open_read_only(directory, kind=JournalKind.LOCAL)
            if any(isinstance(decode_local(it.kind, it.header), Prepared) for it in journal.frames(journal.start)):
                return
            await trio.sleep(0.01)


async def placed(cluster: Cluster, log: LogId) -> None:
    """Wait until what was open in the log is decided."""
    with trio.fail_after(10):
        while cluster.shards[FIRST].partitions.by_log[log].state.open_transactions:  # noqa: ASYNC110
            await trio.sleep(0.01)


async def visible_everywhere(cluster: Cluster, writer: Writer) -> None:
    """Wait until the coordinator has heard that all its commits can be read."""
    with trio.fail_after(10):
        while True:
            found = cluster.coordinator(writer.shard).describe(writer.name)
            assert found is not None
            if not found.being_copied:
                return
            await trio.sleep(0.01)


def note_shards(data_dir: Path, mode: TransactionMode, *, logs_each: int = 2) -> Path:
    """Put a cluster store beside the shards, which knows their logs."""
    topic = Topic("topic", UUID(int=1), logs_each * COUNT, {"fairlog.transactions": mode.name}, 0)
    written = {
        records.FORMAT_KEY: records.encode_format(),
        records.NODE_KEY: records.encode_node(records.NodeRecord("cluster", 1, COUNT)),
        records.STARTS_KEY: records.encode_count(COUNT),
        records.PRODUCER_IDS_KEY: records.encode_count(2000),
        records.OFFSETS_LOGS_KEY: records.encode_count(0),
        records.SHARDS_KEY: records.encode_count(COUNT),
        records.topic_key(topic.topic_id): records.encode_topic(records.TopicRecord(topic, False)),
        **{
            records.shard_key(ShardNumber(number)): records.encode_shard(records.ShardRecord(1, True))
            for number in range(COUNT)
        },
    }
    (data_dir / CLUSTER).mkdir(exist_ok=True)
    with lmdb.open(str((data_dir / CLUSTER_STORE).parent)) as store, store.begin(write=True) as transaction:
        for key, value in written.items():
            transaction.put(key, value)
    return data_dir


def put_together(into: Path, first: Path, second: Path) -> Path:
    """A directory with shard 0, and all that belongs to no shard, of one, and shard 1 of the other."""
    shutil.copytree(first, into)
    shutil.rmtree(into / "shards" / "1")
    shutil.copytree(second / "shards" / "1", into / "shards" / "1")
    return into


def violations(data_dir: Path) -> list[str]:
    return [str(each) for each in Verification(data_dir, has_journals=True).violations()]


def say_otherwise(data_dir: Path, log: LogId, record: Prepared) -> None:
    """Put another PREPARED of the same size in the place of the one that the log's journal has."""
    (directory,) = data_dir.glob(f"shards/*/journals/local/{log}")
    journal = open_read_only(directory, kind=JournalKind.LOCAL)
    (segment,) = journal.segments
    kind, header = encode_local(record)
    (frame,) = (frame for frame in journal.frames(journal.start) if frame.kind == kind)
    at = file_offset(frame.position, segment.base)
    content = bytearray(segment.path.read_bytes())
    _, durable, *_ = HEADER.unpack_from(content, at)
    parts = encode_frame(
        position=frame.position,
        durable=durable,
        leader_epoch=frame.leader_epoch,
        timestamp_ms=frame.timestamp_ms,
        kind=kind,
        header=header,
        salt=segment.salt,
    )
    data = b"".join(map(bytes, parts))
    assert len(data) == frame.end - frame.position, (data, frame)
    content[at : at + len(data)] = data
    segment.path.write_bytes(content)
