"""Which batches a list of aborted transactions takes out."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest

from datalog.aborted import AbortedRanges
from datalog.batch import BatchHeader, parse_stored_header
from datalog.interface import AbortedTransaction
from fairlog_types import Offset, ProducerId
from tests.datalog.batches import batch

TRANSACTIONAL, CONTROL = 0x10, 0x20


class CountedOffset(int):
    """An offset that counts how often it was compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) > int(other)


def header(offset: int, *, producer_id: int = 1, attributes: int = TRANSACTIONAL) -> BatchHeader:
    data = batch(offset, [1], attributes=attributes)
    struct.pack_into(">qhi", data, 43, producer_id, 0, 0)
    return parse_stored_header(data)


def ranges(of: Iterable[tuple[int, int, int]]) -> AbortedRanges:
    """Of (producer id, first offset, marker)."""
    return AbortedRanges(
        AbortedTransaction(ProducerId(producer_id), Offset(first), Offset(marker), Offset(0))
        for producer_id, first, marker in of
    )


@pytest.mark.parametrize(
    ("offset", "producer_id", "is_aborted"),
    [
        (1, 1, False),
        (2, 1, True),
        (4, 1, True),
        (6, 1, False),
        (8, 1, True),
        (10, 1, False),
        (3, 2, False),
        (4, 2, True),
    ],
)
def test_aborted_ranges_contain_what_lies_before_its_producers_marker(
    offset: int, producer_id: int, is_aborted: bool
) -> None:
    """From the first offset to the marker; between two, behind the last, and of others, nothing."""
    aborted = ranges([(1, 2, 5), (2, 4, 7), (1, 8, 9)])
    assert aborted.contain(header(offset, producer_id=producer_id)) is is_aborted


def test_aborted_ranges_contain_neither_markers_nor_plain_batches() -> None:
    """A marker, and a batch outside of transactions, of the same producer."""
    aborted = ranges([(1, 2, 5)])
    assert not aborted.contain(header(3, attributes=TRANSACTIONAL | CONTROL))
    assert not aborted.contain(header(3, attributes=0))


def test_aborted_ranges_do_not_go_through_all_transactions_for_each_batch() -> None:
    """A mebibyte that a producer filled with aborts took the cleaner 2.5 s, with the interpreter's lock."""
    count = 1_000
    aborted = ranges((1, CountedOffset(2 * at), CountedOffset(2 * at + 1)) for at in range(count))
    CountedOffset.comparisons = 0
    assert aborted.contain(header(2 * count - 2))
    assert CountedOffset.comparisons < 20
