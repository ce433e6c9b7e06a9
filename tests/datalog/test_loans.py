"""Loans: what lies in LMDB's own memory stays as it was until the loan ends, whatever is written meanwhile."""

from __future__ import annotations

import threading

import pytest

from datalog import environment
from datalog.environment import LmdbDataLogs
from datalog.interface import Loan, LogMissing, ReadRequest, ReadResult
from datalog.loans import COPIED_BYTES, SMALL_BATCH_BYTES, touch
from fairlog_types import Offset, StorageFailure
from tests.datalog.batches import batch
from tests.datalog.behaviour import ORDERS, PAYMENTS, OpenLogs, mark

LARGE_BYTES = COPIED_BYTES + 1


def put(logs: LmdbDataLogs, offset: int, value: bytes) -> bytes:
    """Append a batch of one record to ORDERS; the batch."""
    data = bytes(batch(offset, [1], value=value))
    with logs.write() as writer:
        writer.append(ORDERS, Offset(offset), 1, 1, bytearray(data))
        writer.put_mark(ORDERS, mark(offset + 1, offset + 1))
    return data


def lend(logs: LmdbDataLogs, offset: int = 0) -> Loan:
    return logs.lend([ReadRequest(ORDERS, Offset(offset), 1 << 30)], bytes_max=1 << 30)


def batches_of(loan: Loan) -> list[bytes]:
    (answer,) = loan.answers
    assert isinstance(answer, ReadResult)
    return [bytes(each) for each in answer.batches]


@pytest.fixture
def logs(open_lmdb: OpenLogs) -> LmdbDataLogs:
    logs = open_lmdb()
    assert isinstance(logs, LmdbDataLogs)
    with logs.write() as writer:
        writer.create(ORDERS)
    return logs


def test_many_small_batches_are_copied(logs: LmdbDataLogs) -> None:
    """However many they are. Large ones among them are lent."""
    kept = [put(logs, offset, b"x" * (SMALL_BATCH_BYTES - 200)) for offset in range(20)]
    assert sum(map(len, kept)) > 2 * COPIED_BYTES
    loan = lend(logs)
    assert loan.is_over
    assert batches_of(loan) == kept
    kept.append(put(logs, 20, b"x" * LARGE_BYTES))
    loan = lend(logs)
    assert not loan.is_over
    (answer,) = loan.answers
    assert isinstance(answer, ReadResult)
    assert [type(batch) for batch in answer.batches] == [bytes] * 20 + [memoryview]
    assert batches_of(loan) == kept
    loan.end()


def test_large_answer_is_lent_and_a_small_one_is_copied(logs: LmdbDataLogs) -> None:
    """Both are what `read` answers."""
    small = put(logs, 0, b"x")
    loan = lend(logs)
    assert loan.is_over
    assert batches_of(loan) == [small]
    large = put(logs, 1, b"x" * LARGE_BYTES)
    loan = lend(logs)
    assert not loan.is_over
    requests = [ReadRequest(ORDERS, Offset(0), 1 << 30), ReadRequest(PAYMENTS, Offset(0), 1 << 30)]
    assert loan.answers == logs.read(requests[:1], bytes_max=1 << 30)
    assert batches_of(loan) == [small, large]
    loan.end()
    assert loan.is_over
    loan = logs.lend(requests, bytes_max=1 << 30)
    assert loan.answers[1] == LogMissing(PAYMENTS)
    loan.end()


def test_all_that_is_lent_is_touched_before(logs: LmdbDataLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that reads: whoever sends it seldom waits for the disk. What is copied is read in any case."""
    touched: list[memoryview] = []
    monkeypatch.setattr(environment, "touch", touched.extend)
    put(logs, 0, b"x")
    lend(logs)
    assert touched == []
    for offset in (1, 2):
        put(logs, offset, b"x" * LARGE_BYTES)
    loan = lend(logs)
    (answer,) = loan.answers
    assert isinstance(answer, ReadResult)
    lent = [id(batch) for batch in answer.batches if isinstance(batch, memoryview)]
    loan.end()
    assert len(lent) == 2
    assert list(map(id, touched)) == lent


class NotedBytes:
    """Stands in for a view, and notes which of its bytes are read."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.read: set[int] = set()

    def __getitem__(self, part: slice) -> bytes:
        read = range(self._size)[part]
        self.read.update(read)
        return bytes(len(read))


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 3 * 4096, LARGE_BYTES])
@pytest.mark.parametrize("begins_at", [0, 16, 4095])
def test_touch_reads_a_byte_of_each_page(size: int, begins_at: int) -> None:
    """Wherever in its first page the view begins."""
    view = NotedBytes(size)
    touch([view])  # type: ignore[list-item]
    assert {(begins_at + at) // 4096 for at in view.read} == set(range((begins_at + size - 1) // 4096 + 1))


def test_what_is_lent_stays_as_it_was_while_all_of_it_is_deleted_and_written_over(logs: LmdbDataLogs) -> None:
    """LMDB would use its pages again at once."""
    kept = [put(logs, offset, bytes([offset]) * LARGE_BYTES) for offset in range(8)]
    loan, ended = lend(logs), lend(logs)
    (answer,) = ended.answers
    assert isinstance(answer, ReadResult)
    parts = [batch[:] for batch in answer.batches]  # parts are not released with the loan
    for offset in range(8, 24):
        put(logs, offset, b"\xff" * LARGE_BYTES)
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(offset))
    assert batches_of(loan) == kept
    loan.end()
    ended.end()
    for offset in range(24, 40):
        put(logs, offset, b"\xff" * LARGE_BYTES)
    assert [bytes(part) for part in parts] != kept, "so they were lent, and the loan has kept them"


def test_view_that_is_used_after_the_end_is_an_error(logs: LmdbDataLogs) -> None:
    """And not whatever is there by then."""
    put(logs, 0, b"x" * LARGE_BYTES)
    loan = lend(logs)
    loan.end()
    loan.end()
    with pytest.raises(ValueError, match="released"):
        batches_of(loan)


def test_no_more_is_lent_than_the_table_of_readers_bears(logs: LmdbDataLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond that answers are copies. A loan that has ended makes room, and one that copies takes none."""
    monkeypatch.setattr(environment, "LOANS_MAX", 2)
    data = put(logs, 0, b"x" * LARGE_BYTES)
    for _ in range(3):
        loans = [lend(logs) for _ in range(4)]
        assert [loan.is_over for loan in loans] == [False, False, True, True]
        assert [batches_of(loan) for loan in loans] == [[data]] * 4
        for loan in loans:
            loan.end()


def test_file_does_not_grow_by_loans_that_have_ended(logs: LmdbDataLogs) -> None:
    """Their transactions are over: what is freed is used again."""
    for offset in range(100):
        put(logs, offset, b"x" * LARGE_BYTES)
        lend(logs, offset).end()
        with logs.write() as writer:
            writer.delete_before(ORDERS, Offset(offset))
    assert logs.space().used_bytes < 20 * LARGE_BYTES


def test_close_waits_until_nothing_is_lent(logs: LmdbDataLogs) -> None:
    """It takes the memory away. Who comes later hears that the logs are closed."""
    data = put(logs, 0, b"x" * LARGE_BYTES)
    loan = lend(logs)
    closing = threading.Thread(target=logs.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    with pytest.raises(StorageFailure, match="are closed"):
        lend(logs)
    assert batches_of(loan) == [data]
    loan.end()
    closing.join(10)
    assert not closing.is_alive()
