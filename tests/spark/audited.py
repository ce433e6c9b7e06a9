"""A node's directory to be audited, with a bit of everything in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import trio

from coordinator.group_journal import GroupJournal
from coordinator.group_records import GroupRecord
from datalog import layout
from fairlog import data_directory
from fairlog_types import (
    ApplyNumber,
    JournalPosition,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TxId,
)
from journal.flush import open_flusher
from journal.journal import Journal, JournalKind, JournalSettings
from partition.producer_window import AppliedTransaction, ProducerWindow
from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import TOPIC, Producer, interleave, read_when
from tests.spark import topics
from tests.verify.conftest import kill_and_stop
from tests.verify.planting import Planted

MARKERS = "m"
"""A topic of marker mode, beside the other one, which is as topics are by default."""

WIDE = 300
"""Records in a batch: some are many more than others have."""

LATE = 3
"""How many transactions of one producer come last: with the three before, one more than windows remember."""

BATCHES = 19 + LATE
RECORDS = 18 + 2 * WIDE + LATE
"""Of each partition of the topic, by offset: 0 and 1 plain; 2 to 4 idempotent, producer 900; 5 to 10 three transactions
of two records; 11 another one's; 12 and 13 one plain batch; 14 to 17 two batches of a sink, each of two lanes with one
record; from 18 on two batches of one transaction, each of `WIDE` records; and then `LATE` more of the producer of the
first three, of one record each."""

TRANSACTIONAL_BATCHES = 6 + 1 + 4 + 2 + LATE
TRANSACTIONS = 3 + 1 + 4 + 1 + LATE
"""A lane is one."""

PLACES = (5, 7, 9, 11, 14, 15, 16, 17, 18, *range(RECORDS - LATE, RECORDS))
"""Where they begin, in each partition."""

MARKER_BATCHES = 11
MARKER_RECORDS = 7
"""Of each partition of the topic of marker mode, by offset: 0 plain, 1 long, 2 committed by 3, 4 aborted by 5, 6 long,
aborted by 7, 8 hanging, 9 plain; and 10, with which what hung is aborted."""

HANGING = "hanging in markers"


def filled(base: Path, *, partitions: int, marker_partitions: int) -> tuple[Path, Path]:
    """The same node's directory as a kill leaves it, and as a good end does, with what hung in markers aborted."""
    fill = partial(_fill, partitions=partitions, marker_partitions=marker_partitions)
    killed, stopped = kill_and_stop(base, fill, FAIRLOG_TOPICS_PARTITIONS_DEFAULT=str(partitions))
    if marker_partitions:
        node = NodeProcess(stopped, {"FAIRLOG_JOURNAL_GROUP_JOURNALS": "2"})
        node.start()
        with RawClient(node.address) as client:
            assert client.init_producer_id(HANGING).error_code == raw.NONE
        assert node.stop() == 0, node.log_tail()
    return killed, stopped


def planted(directory: Path, topic: str = TOPIC) -> Planted:
    """The directory, to plant something into this topic."""
    (found,) = [each for each in data_directory.read_cluster_store(directory).served if each.name == topic]
    return Planted(directory, found.topic_id.hex)


def _fill(node: NodeProcess, *, partitions: int, marker_partitions: int) -> None:
    """Every partition alike; besides, a transaction is aborted, and one hangs."""
    with RawClient(node.address) as client:
        if marker_partitions:
            topics.make(node.address, MARKERS, marker_partitions, **topics.MARKERS)
            _fill_with_markers(client, marker_partitions)
        for partition in range(partitions):
            for value in (b"first", b"second"):
                assert client.produce(TOPIC, partition, batch([value]))[0] == raw.NONE
            for sequence in range(3):
                data = batch([b"idempotent"], producer_id=900, epoch=0, sequence=sequence, timestamp_ms=10 + sequence)
                assert client.produce(TOPIC, partition, data)[0] == raw.NONE
        producer = Producer(client, "billing", partitions=partitions)
        for number in range(3):
            producer.commit(b"one of %d" % number, b"two of %d" % number)
        producer.begin()
        producer.send(b"aborted")
        assert producer.end(commit=False) == raw.NONE
        Producer(client, "other", partitions=partitions).commit(b"other")
        for partition in range(partitions):
            assert client.produce(TOPIC, partition, batch([b"last", b"last as well"]))[0] == raw.NONE
        with Native.connect(node.address) as native:
            for number in range(2):
                _commit_batch(native, client, number, partitions)
        wide = Producer(client, "wide", partitions=partitions)
        wide.begin()
        for _ in range(2):
            assert wide.send(*[b"wide"] * WIDE) == {raw.NONE}
        assert wide.end(commit=True) == raw.NONE
        for _ in range(LATE):
            producer.commit(b"of late")
        hanging = Producer(client, "hanging", partitions=2)
        hanging.begin()
        hanging.send(b"hanging")
    for partition in range(partitions):
        read_when(node, RECORDS, partition)


def _commit_batch(native: Native, client: RawClient, number: int, partitions: int) -> None:
    """Two lanes with one record for each partition, and one that does not win."""
    of = {"sink": "table", "query": "query", "run": "run", "batch": number}
    for lane in range(3):
        transactional_id = native.join(**of, partition=lane, attempt=0)
        assert transactional_id is not None
        producer = Producer(client, transactional_id, partitions=partitions)
        producer.begin()
        producer.send(b"lane %d" % lane)
    native.commit(**of, winners=[(0, 0, partitions), (1, 0, partitions)])


def _fill_with_markers(client: RawClient, partitions: int) -> None:
    def plain(value: bytes) -> None:
        for partition in range(partitions):
            assert client.produce(MARKERS, partition, batch([value]))[0] == raw.NONE

    names = ("long", "short", HANGING)
    long, short, hanging = (Producer(client, name, partitions=partitions, topic=MARKERS) for name in names)
    plain(b"first")
    interleave(long, short, hanging)
    plain(b"last")


# --- what is written into it ------------------------------------------------------------------------


def append_to_journal(planted: Planted, transactional_id: bytes, records: Sequence[GroupRecord]) -> None:
    """Records at the end of the group journal that knows the id."""
    directory = planted.group_segment(transactional_id).parent

    async def append() -> None:
        async with open_flusher(threads=1) as flusher:
            journal = await Journal.open(
                directory,
                kind=JournalKind.GROUP,
                settings=JournalSettings(),
                flusher=flusher,
                leader_epoch=LeaderEpoch(9),
            )
            group_journal = GroupJournal(journal, lambda: 0)
            for record in records:
                await group_journal.make_room(record)
                end = group_journal.append(record)
                await group_journal.flush(end)
            await journal.close()

    trio.run(append)


def put_window(
    planted: Planted, partition: int, txid: TxId, base_offset: int, *, records: int = 1, apply_number: int = 77
) -> None:
    """A window that remembers the transaction there."""
    applied = AppliedTransaction(txid.epoch, txid.number, ApplyNumber(apply_number), Offset(base_offset), records)
    window = ProducerWindow(txid.epoch, (), (applied,), 0, JournalPosition(0))
    put_raw_window(planted, partition, txid.producer_id, window.encode())


def put_raw_window(planted: Planted, partition: int, producer_id: int, value: bytes) -> None:
    number = planted.record(partition).number
    with planted.writing() as (txn, database):
        txn.put(layout.producer_key(number, ProducerId(producer_id)), value, db=database(layout.PRODUCERS))


def txid(producer_id: int, number: int = 0) -> TxId:
    return TxId(ProducerId(producer_id), ProducerEpoch(0), number)
