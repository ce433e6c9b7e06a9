"""What stands behind a log's end: remains of a large copy are told, and anything else is found."""

from __future__ import annotations

import pytest

from datalog import layout
from datalog.batch import claimed_crc, parse_stored_header
from datalog.stored import StoredBatch
from fairlog.verify.batches import KeptBatch, read_batch
from fairlog.verify.copies import CopiedBatch
from fairlog.verify.findings import Summary, Violation
from fairlog.verify.staged import StagedCheck
from fairlog_types import JournalPosition
from tests.cli.in_process import FairlogCommand
from tests.datalog.batches import batch
from tests.verify.planting import Planted, with_header


def kept(base_offset: int, *, records: int = 1, attributes: int = 0x10) -> tuple[KeptBatch, CopiedBatch]:
    """A batch as it is read, and as its journal has placed it."""
    data = memoryview(bytes(batch(base_offset, [5] * records, leader_epoch=2, attributes=attributes)))
    found = read_batch("log", StoredBatch(layout.batch_key(base_offset + records - 1), data, 0))
    assert isinstance(found, KeptBatch)
    assert parse_stored_header(data).partition_leader_epoch == 2
    return found, CopiedBatch(base_offset, records, claimed_crc(data), 2, JournalPosition(0))


def check(batches: list[KeptBatch], due: list[CopiedBatch] | None) -> list[Violation]:
    checking = StagedCheck(next_offset=4, due=due, summary=Summary())
    return [violation for each in batches for violation in checking.feed(each)]


def test_staged_batches_that_the_journal_has_placed_are_no_violation() -> None:
    """All of them, or the first ones; and there is nobody to ask in a backup."""
    batches, due = zip(*(kept(4, records=2), kept(6), kept(7)), strict=True)
    for count in range(4):
        assert check([*batches[:count]], [*due]) == []
        assert check([*batches[:count]], None) == []


@pytest.mark.parametrize(
    ("found", "invariant", "words"),
    [
        ([kept(5)[0]], 2, "where due is 4"),
        ([kept(4)[0], kept(6)[0]], 2, "where due is 5"),
        ([kept(4, attributes=0)[0]], 2, "of no transaction"),
        ([kept(4, attributes=0x30)[0]], 2, "of no transaction"),
    ],
)
def test_batch_that_cannot_have_been_staged_is_found(found: list[KeptBatch], invariant: int, words: str) -> None:
    """Also where there are no journals."""
    (violation,) = check(found, None)
    assert words in violation.what
    assert violation.invariant == invariant


def test_batch_that_the_journal_has_not_placed_there_is_found() -> None:
    """It has placed nothing there, or another batch."""
    (batch_4, due_4), (_, due_5) = kept(4), kept(5)
    assert [each.invariant for each in check([batch_4], [due_5])] == [4]
    assert [each.invariant for each in check([batch_4], [due_4._replace(crc=due_4.crc ^ 1)])] == [4]
    assert check([batch_4], []) != []


def test_batch_planted_behind_a_logs_end_is_a_violation(fairlog: FairlogCommand, planted: Planted) -> None:
    """Of a node that has stopped when all was copied."""
    end = planted.record().next_offset
    planted.put_batches({end: with_header(planted.batches()[7][1], base_offset=end)})
    code, out, _ = fairlog("verify", planted.directory, "--all")
    assert code == 1
    assert f"offset {end}: a batch behind the log's end that the journal has not placed there (invariant 4)" in out


def test_batch_planted_behind_the_end_is_shown_as_what_it_is(fairlog: FairlogCommand, planted: Planted) -> None:
    """Behind a line that says that it is no part of the log."""
    end = planted.record().next_offset
    planted.put_batches({end: with_header(planted.batches()[7][1], base_offset=end)})
    code, out, _ = fairlog("inspect", planted.data_logs)
    assert code == 0
    assert "staged batches" in out
