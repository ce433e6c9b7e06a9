"""The lowest offset that a batch of an open transaction can still get: exact for a lone writer, never too large."""

from __future__ import annotations

import random

import pytest

from datalog.batch import parse_batch_header_untrusted
from fairlog_types import Offset, TxId
from partition.answers import Appended, DuplicateOf
from partition.modes import MARKERS
from tests.clients.raw_client import batch
from tests.shard.runs import A, B, Run, transaction

T0, T1 = transaction(7), transaction(8)


def lowest(run: Run, txid: TxId, *, sequence: int) -> Offset | None:
    """What is said of the batch of log A that begins with `sequence`."""
    sent = batch([b"v"], producer_id=txid.producer_id, epoch=txid.epoch, sequence=sequence, transactional=True)
    return run[A].lowest_offset(parse_batch_header_untrusted(sent))


async def commit(run: Run, txid: TxId) -> None:
    await run.prepare(txid, A)
    run.place(txid, A)


async def test_lowest_offset_with_one_writer_is_where_the_batch_is_placed(open_run) -> None:
    """Several batches, two transactions, and an aborted one in between; copied or not, nothing shifts."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        await run.plain(A, b"before", b"before")
        said: dict[bytes, Offset | None] = {}
        sequence = 0
        for number, ends_with_commit in enumerate((True, False, True)):
            txid = transaction(7, number)
            await run.begin(txid, A, B)
            await run.write(txid, B, b"elsewhere", sequence=number)
            for count in (2, 1, 3):
                values = [b"%d" % (sequence + index) for index in range(count)]
                assert await run.write(txid, A, *values, sequence=sequence) == Appended(None, None)
                if ends_with_commit:
                    first = lowest(run, txid, sequence=sequence)
                    assert first is not None
                    said |= {value: Offset(first + index) for index, value in enumerate(values)}
                sequence += count
            if ends_with_commit:
                await run.prepare(txid, A, B)
                run.place(txid, A, B)
            else:
                run.discard(txid, A, B)
        run.nursery.start_soon(run.partitions.run)
        await run.partitions.drain()
        assert said == {value: offset for offset, value in (await run.committed(A))[A] if value != b"before"}


@pytest.mark.parametrize("seed", range(12))
async def test_lowest_offset_with_several_writers_is_never_too_large(open_run, seed: int) -> None:
    """Two transactional producers and a plain one in any order: a record gets the offset it was told, or a larger."""
    chance = random.Random(seed)
    async with open_run() as run:
        await run.start(A, copying=False)
        said: dict[bytes, Offset] = {}
        open_now: dict[int, TxId] = {}
        sequences = {7: 0, 8: 0}
        for number in range(40):
            producer_id = chance.choice((7, 8))
            txid = open_now.get(producer_id)
            match chance.choice(("write", "write", "plain", "end")):
                case "plain":
                    await run.plain(A, b"plain")
                case "end" if txid is not None:
                    await commit(run, open_now.pop(producer_id))
                case _:
                    if txid is None:
                        txid = open_now[producer_id] = transaction(producer_id, number)
                        await run.begin(txid, A)
                    values = [b"%d.%d" % (number, index) for index in range(chance.randint(1, 3))]
                    sequence = sequences[producer_id]
                    await run.write(txid, A, *values, sequence=sequence)
                    first = lowest(run, txid, sequence=sequence)
                    assert first is not None
                    said |= {value: Offset(first + index) for index, value in enumerate(values)}
                    sequences[producer_id] += len(values)
        for txid in open_now.values():
            await commit(run, txid)
        run.nursery.start_soon(run.partitions.run)
        await run.partitions.drain()
        placed = {value: offset for offset, value in (await run.committed(A))[A] if value in said}
        assert placed.keys() == said.keys()
        assert not {value: (said[value], placed[value]) for value in said if said[value] > placed[value]}


async def test_lowest_offset_of_a_repeated_batch_counts_what_is_before_it_only(open_run) -> None:
    """The answer was lost, and other batches came since: the first one's place has not moved."""
    async with open_run() as run:
        await run.start(A)
        await run.begin(T0, A)
        for sequence, values in ((0, [b"a", b"b"]), (2, [b"c"]), (3, [b"d"])):
            await run.write(T0, A, *values, sequence=sequence)
        assert await run.write(T0, A, b"c", sequence=2) == DuplicateOf(None, None)
        assert [lowest(run, T0, sequence=sequence) for sequence in (0, 2, 3)] == [0, 2, 3]
        await run.plain(A, b"other")
        assert [lowest(run, T0, sequence=sequence) for sequence in (0, 2, 3)] == [1, 3, 4]


async def test_lowest_offset_is_unknown_for_what_does_not_wait_for_its_place(open_run) -> None:
    """The transaction has not begun, was aborted, or is one after that of the batch."""
    async with open_run() as run:
        await run.start(A)
        assert lowest(run, T0, sequence=0) is None
        await run.begin(T0, A)
        await run.write(T0, A, b"v")
        run.discard(T0, A)
        assert lowest(run, T0, sequence=0) is None
        await run.begin(transaction(7, 1), A)
        assert lowest(run, transaction(7, 1), sequence=0) is None


async def test_lowest_offset_is_unknown_in_marker_mode(open_run) -> None:
    """A batch has its offset there, which is answered."""
    async with open_run() as run:
        await run.start(A, mode=MARKERS)
        await run.begin(T1, A)
        await run.write(T1, A, b"v")
        assert lowest(run, T1, sequence=0) is None
