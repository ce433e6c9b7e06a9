"""The producer's window: what it accepts, recognises and refuses, around the wrap of sequences too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import ApplyNumber, CorruptStorage, JournalPosition, Offset, ProducerEpoch, ProducerId, TxId
from partition.producer_window import (
    ACCEPT,
    BATCHES_KEPT,
    NO_SEQUENCE,
    TRANSACTIONS_KEPT,
    AppliedTransaction,
    BatchRefusal,
    DuplicateOf,
    ProducerWindow,
    Refused,
    WindowBatch,
    check_sequence,
    first_window,
    last_sequence,
)

EPOCH = ProducerEpoch(3)
SEQUENCES = 2**31
AT = JournalPosition(64)


def window_after(firsts_and_counts: list[tuple[int, int]], epoch: ProducerEpoch = EPOCH) -> ProducerWindow:
    window = first_window(epoch, as_of=AT, timestamp_ms=0)
    for number, (first, count) in enumerate(firsts_and_counts):
        window = window.with_batch(epoch, first, count, Offset(1000 + number), as_of=AT, timestamp_ms=0)
    return window


def consecutive(start: int, counts: list[int]) -> list[tuple[int, int]]:
    batches: list[tuple[int, int]] = []
    for count in counts:
        batches.append((start, count))
        start = (start + count) % SEQUENCES
    return batches


def refused(reason: BatchRefusal) -> Refused:
    return Refused(reason)


def test_check_unknown_producer_must_begin_with_zero() -> None:
    """A producer that is unknown in the partition begins with sequence 0, or is told that it is unknown."""
    assert check_sequence(None, EPOCH, 0, 5) == ACCEPT
    assert check_sequence(None, EPOCH, 5, 5) == refused(BatchRefusal.UNKNOWN_PRODUCER)


def test_check_known_producer_without_batches_must_begin_with_zero() -> None:
    """A producer of which only a fence is known begins with sequence 0 as well."""
    window = window_after([])
    assert check_sequence(window, EPOCH, 0, 5) == ACCEPT
    assert check_sequence(window, EPOCH, 5, 5) == refused(BatchRefusal.UNKNOWN_PRODUCER)


def test_check_other_epochs_older_is_fenced_newer_begins_anew() -> None:
    """An older epoch is fenced whatever it sends; a newer one begins with sequence 0."""
    window = window_after([(0, 10)])
    assert check_sequence(window, ProducerEpoch(2), 10, 1) == refused(BatchRefusal.FENCED)
    assert check_sequence(window, ProducerEpoch(2), 0, 10) == refused(BatchRefusal.FENCED)
    assert check_sequence(window, ProducerEpoch(4), 0, 1) == ACCEPT
    assert check_sequence(window, ProducerEpoch(4), 10, 1) == refused(BatchRefusal.OUT_OF_ORDER)


def test_check_negative_sequence_is_out_of_order() -> None:
    """An idempotent batch without a sequence is refused, for a producer known or unknown."""
    assert check_sequence(None, EPOCH, NO_SEQUENCE, 1) == refused(BatchRefusal.OUT_OF_ORDER)
    assert check_sequence(window_after([(0, 1)]), EPOCH, -7, 1) == refused(BatchRefusal.OUT_OF_ORDER)


def test_check_batch_with_one_end_of_a_known_one_is_out_of_order() -> None:
    """Clients repeat batches unchanged: another cut of known sequences is no repetition."""
    window = window_after([(0, 10), (10, 10)])
    assert check_sequence(window, EPOCH, 10, 9) == refused(BatchRefusal.OUT_OF_ORDER)
    assert check_sequence(window, EPOCH, 11, 9) == refused(BatchRefusal.OUT_OF_ORDER)
    assert check_sequence(window, EPOCH, 10, 11) == refused(BatchRefusal.OUT_OF_ORDER)


@given(
    start=st.one_of(st.just(0), st.integers(0, SEQUENCES - 1), st.integers(SEQUENCES - 60, SEQUENCES - 1)),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=12),
    gap=st.integers(1, 1000),
)
def test_check_any_history_next_repetition_and_gap_are_told_apart(start: int, counts: list[int], gap: int) -> None:
    """Anywhere on the circle the next, the last five, older ones and gaps are told apart."""
    batches = consecutive(start, counts)
    window = window_after(batches)
    after = (start + sum(counts)) % SEQUENCES
    assert window.next_sequence == after
    assert check_sequence(window, EPOCH, after, 7) == ACCEPT
    assert check_sequence(window, EPOCH, (after + gap) % SEQUENCES, 7) == refused(BatchRefusal.OUT_OF_ORDER)
    for age, (first, count) in enumerate(reversed(batches)):
        expected = (
            DuplicateOf(Offset(1000 + len(batches) - 1 - age), remembered=True)
            if age < BATCHES_KEPT
            else DuplicateOf(None, remembered=False)
        )
        assert check_sequence(window, EPOCH, first, count) == expected


def test_last_sequence_behind_the_largest_int32_goes_on_with_zero() -> None:
    """The sequence behind 2^31 - 1 is 0, as in Kafka's DefaultRecordBatch.incrementSequence."""
    assert last_sequence(SEQUENCES - 1, 1) == SEQUENCES - 1
    assert last_sequence(SEQUENCES - 1, 2) == 0
    assert window_after([(SEQUENCES - 3, 3)]).next_sequence == 0


def test_with_batch_new_epoch_forgets_the_old_ones_batches() -> None:
    """Repetitions are recognised within an epoch only."""
    window = window_after([(0, 3), (3, 3)]).with_batch(ProducerEpoch(4), 0, 2, None, as_of=AT, timestamp_ms=0)
    assert window.epoch == 4
    assert window.batches == (WindowBatch(0, 1, None),)


def test_fenced_only_a_larger_epoch_resets_the_batches() -> None:
    """A fence of a new epoch resets the batches; the present or an older epoch changes nothing but the mark."""
    window = window_after([(0, 3)])
    assert window.fenced(ProducerEpoch(4), as_of=AT, timestamp_ms=0).batches == ()
    for epoch in (EPOCH, ProducerEpoch(2)):
        later = window.fenced(epoch, as_of=JournalPosition(128), timestamp_ms=9)
        assert (later.epoch, later.batches, later.as_of, later.last_use_ms) == (EPOCH, window.batches, 128, 9)


def test_with_applied_keeps_the_last_ones_of_any_epoch() -> None:
    """The last applied transactions are found again, also those of an epoch that is fenced by now."""
    window = window_after([(0, 3)], ProducerEpoch(9))
    entries = [
        AppliedTransaction(ProducerEpoch(8), number, ApplyNumber(number + 100), Offset(number * 2), 2)
        for number in range(TRANSACTIONS_KEPT + 1)
    ]
    for entry in entries:
        window = window.with_applied(entry, as_of=AT, timestamp_ms=0)
    assert (window.epoch, window.batches) == (9, (WindowBatch(0, 2, Offset(1000)),))
    txids = [TxId(ProducerId(1), ProducerEpoch(8), number) for number in range(TRANSACTIONS_KEPT + 1)]
    assert [window.find_applied(txid) for txid in txids] == [None, *entries[1:]]
    assert window.find_applied(TxId(ProducerId(1), ProducerEpoch(9), 3)) is None


windows = st.builds(
    ProducerWindow,
    epoch=st.integers(0, 32767).map(ProducerEpoch),
    batches=st.lists(
        st.builds(
            WindowBatch,
            st.integers(0, SEQUENCES - 1),
            st.integers(0, SEQUENCES - 1),
            st.none() | st.integers(0, 2**63 - 1).map(Offset),
        ),
        max_size=BATCHES_KEPT,
    ).map(tuple),
    applied=st.lists(
        st.builds(
            AppliedTransaction,
            st.integers(0, 32767).map(ProducerEpoch),
            st.integers(0, 2**40),
            st.integers(0, 2**64 - 1).map(ApplyNumber),
            st.integers(0, 2**63 - 1).map(Offset),
            st.integers(0, 2**31),
        ),
        max_size=TRANSACTIONS_KEPT,
    ).map(tuple),
    last_use_ms=st.integers(0, 2**50),
    as_of=st.integers(0, 2**60).map(JournalPosition),
    coordinator_epoch=st.integers(-1, 2**31 - 1),
)


@given(windows)
def test_encode_any_window_reads_back(window: ProducerWindow) -> None:
    """What the data log keeps of a window is the whole window."""
    assert ProducerWindow.decode(window.encode()) == window


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\x86\x01\x02",
        b"\x83\x01\x02\x03",
        b"\x86\x01\x00\x00\x00\x01\x80",
        b"\xff",
        b"\x86\x01\x61a\x00\x00\x80\x80",
        b"\x86\x02\x00\x00\x00\x80\x80",
        b"\x87\x01\x00\x00\x00\x80\x80\x00",
        b"\x87\x02\x00\x00\x00\x80\x80\xf6",
    ],
)
def test_decode_other_bytes_are_corrupt(data: bytes) -> None:
    """Bytes that are no window are refused as corrupt, never half read."""
    with pytest.raises(CorruptStorage):
        ProducerWindow.decode(data)


def test_decode_newer_version_says_so() -> None:
    """A window of a version that is not known is refused by that name."""
    data = bytearray(window_after([]).encode())
    data[1] = 3
    with pytest.raises(CorruptStorage, match="format version 3"):
        ProducerWindow.decode(bytes(data))
