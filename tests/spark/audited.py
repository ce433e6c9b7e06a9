"""Directories to be audited: a node's with a bit of everything in it, and what is planted in copies of it."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from datalog import layout
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
from journal.group_journal import GroupJournal
from journal.group_records import GroupRecord
from journal.journal import Journal, JournalKind, JournalSettings
from journal.producer_window import AppliedTransaction, ProducerWindow
from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.clients import raw_client as raw
from tests.clients.raw_client import RawClient, batch
from tests.node.nodes import TOPIC, Producer, read_when
from tests.verify.planting import Planted

PARTITIONS = 8
RECORDS = 18
"""Of each partition, by offset: 0 and 1 plain; 2 to 4 idempotent, producer 900; 5 to 10 three transactions of two
records; 11 another one's; 12 and 13 one plain batch; 14 to 17 two batches of a sink, each of two lanes with one
record."""

TOPICS = {"FAIRLOG_TOPICS_PARTITIONS_DEFAULT": str(PARTITIONS)}


def fill(node: NodeProcess) -> None:
    """Every partition alike; besides, a transaction is aborted, and one hangs."""
    with RawClient(node.address) as client:
        for partition in range(PARTITIONS):
            for value in (b"first", b"second"):
                assert client.produce(TOPIC, partition, batch([value]))[0] == raw.NONE
            for sequence in range(3):
                data = batch([b"idempotent"], producer_id=900, epoch=0, sequence=sequence, timestamp_ms=10 + sequence)
                assert client.produce(TOPIC, partition, data)[0] == raw.NONE
        producer = Producer(client, "billing", partitions=PARTITIONS)
        for number in range(3):
            producer.commit(b"one of %d" % number, b"two of %d" % number)
        producer.begin()
        producer.send(b"aborted")
        assert producer.end(commit=False) == raw.NONE
        Producer(client, "other", partitions=PARTITIONS).commit(b"other")
        for partition in range(PARTITIONS):
            assert client.produce(TOPIC, partition, batch([b"last", b"last as well"]))[0] == raw.NONE
        with Native.connect(node.address) as native:
            for number in range(2):
                _commit_batch(native, client, number)
        hanging = Producer(client, "hanging", partitions=2)
        hanging.begin()
        hanging.send(b"hanging")
    for partition in range(PARTITIONS):
        read_when(node, RECORDS, partition)


def _commit_batch(native: Native, client: RawClient, number: int) -> None:
    """Two lanes with one record for each partition, and one that does not win."""
    of = {"sink": "table", "query": "query", "run": "run", "batch": number}
    for lane in range(3):
        transactional_id = native.join(**of, partition=lane, attempt=0)
        assert transactional_id is not None
        producer = Producer(client, transactional_id, partitions=PARTITIONS)
        producer.begin()
        producer.send(b"lane %d" % lane)
    native.commit(**of, winners=[(0, 0, PARTITIONS), (1, 0, PARTITIONS)])


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
            group_journal = GroupJournal(journal)
            for record in records:
                await group_journal.make_room(record)
                end = group_journal.append(record)
                await group_journal.flush(end)
            await journal.close()

    trio.run(append)


def put_window(planted: Planted, txid: TxId, base_offset: int, partition: int, *, apply_number: int = 77) -> None:
    """A window that remembers one record of the transaction there."""
    applied = AppliedTransaction(txid.epoch, txid.number, ApplyNumber(apply_number), Offset(base_offset), 1)
    window = ProducerWindow(txid.epoch, (), (applied,), 0, JournalPosition(0))
    put_raw_window(planted, txid.producer_id, window.encode(), partition)


def put_raw_window(planted: Planted, producer_id: int, value: bytes, partition: int) -> None:
    number = planted.record(partition).number
    with planted.writing() as (txn, database):
        txn.put(layout.producer_key(number, ProducerId(producer_id)), value, db=database(layout.PRODUCERS))


def txid(producer_id: int, number: int = 0) -> TxId:
    return TxId(ProducerId(producer_id), ProducerEpoch(0), number)
