"""When batches are lent and when they are copied, and what a loan costs.

    lend ──▶ Loan: answers whose batches are views ──┬─ all sent ──▶ end
                                                     └─ LOAN_S is over ──▶ the rest is copied ──▶ end

Large answers are sent from LMDB's map without a copy: more than `COPIED_BYTES` of large batches are lent. A loan is a
read transaction of LMDB that stays open. Meanwhile LMDB does not use pages again that are freed, and the file grows
instead. So whoever has a loan ends it after `LOAN_S`. There are `LOANS_MAX` at most, because each has a place in LMDB's
table of readers; beyond them batches are copied.

The pages are touched before a loan is given, in the thread that reads, so that whoever sends them seldom waits for the
disk.

See docs/decisions/0086-sent-from-lmdbs-pages.md, also for why not sendfile.
"""

from __future__ import annotations

from collections.abc import Sequence

from datalog.interface import Batch, ReadAnswer, ReadResult

LOAN_S = 0.1
"""A client on a fast network has taken a large answer by then. A busy node frees some 25 MB of pages in that time."""

LOANS_MAX = 256
"""Of one environment, in whose table of readers are 1,024 places."""

COPIED_BYTES = 256 << 10
"""So much of large batches is copied as well, which costs no more than a loan does."""

SMALL_BATCH_BYTES = 32 << 10
"""A smaller batch is always copied: a view takes 312 bytes, and all views are released one by one."""

_PAGE_BYTES = 4096


def views_in(answers: Sequence[ReadAnswer]) -> list[memoryview]:
    """The batches that are not copied."""
    return [
        batch
        for answer in answers
        if isinstance(answer, ReadResult)
        for batch in answer.batches
        if isinstance(batch, memoryview)
    ]


def with_copies(answers: Sequence[ReadAnswer]) -> list[ReadAnswer]:
    """The same answers; they outlast the transaction."""
    return [
        answer._replace(batches=copied(answer.batches)) if isinstance(answer, ReadResult) else answer
        for answer in answers
    ]


def copied(batches: Sequence[Batch]) -> list[Batch]:
    """The same batches; they outlast the loan."""
    return [bytes(batch) for batch in batches]


def touch(views: Sequence[memoryview]) -> None:
    """Have all pages of the batches in memory, and wait for those that have to be read."""
    for view in views:
        bytes(view[::_PAGE_BYTES])
        bytes(view[-1:])
