"""What waits to be copied: in order, in chunks, and past a large group only if nobody can mind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copier import staging
from copier.backlog import SMALL_BYTES, Backlog
from copier.plan import Group, weight_bytes
from fairlog_types import ApplyNumber, JournalPosition, LeaderEpoch, LogId, Offset, ProducerEpoch, ProducerId, TxId
from partition.placed import BatchRef, PlacedBatch, PlacedTransaction
from partition.producer_window import ProducerWindow

LOGS = A, B, C, D = tuple(LogId("t", "ab" * 16, partition) for partition in range(4))
WINDOW = ProducerWindow(ProducerEpoch(0), (), (), 0, JournalPosition(0))
END = JournalPosition(1000)
LARGE_BYTES = 100_000
FRAME_OVERHEAD_BYTES = 300
"""The most that a frame has beside its batch: head, header and padding."""


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "STAGED_FROM_BYTES", LARGE_BYTES)


def plain(log: LogId, size: int = 100) -> Group:
    batch = BatchRef(JournalPosition(0), size, 1, 0, -1)
    return (PlacedBatch(log, Offset(0), ProducerId(-1), ProducerEpoch(-1), LeaderEpoch(1), batch, None, END, END),)


def transaction(producer: int, *logs: LogId, size: int = 100) -> Group:
    batches = (BatchRef(JournalPosition(0), size, 1, 0, -1),)
    txid = TxId(ProducerId(producer), ProducerEpoch(0), 1)
    return tuple(
        PlacedTransaction(log, Offset(0), txid, ApplyNumber(1), LeaderEpoch(1), 1, batches, WINDOW, END, END, 0)
        for log in logs
    )


def large(producer: int, *logs: LogId) -> Group:
    return transaction(producer, *logs, size=LARGE_BYTES)


def filled(*groups: Group | tuple[Group, str]) -> Backlog:
    """A backlog of these, each with its order if it has one; the first second is 0, then 1, …"""
    backlog = Backlog()
    for now_s, each in enumerate(groups):
        group, order = each if isinstance(each[-1], str) else (each, None)
        backlog.add(group, order, float(now_s))  # type: ignore[arg-type]
    return backlog


def anything(_: Group) -> bool:
    return True


def take(backlog: Backlog, bytes_max: int = 10**9, is_durable: Callable[[Group], bool] = anything) -> Sequence[Group]:
    taken = backlog.take(is_durable, bytes_max=bytes_max)
    assert backlog.take(is_durable, bytes_max=bytes_max) == taken, "until it is done"
    backlog.taken_is_done()
    return taken


def test_chunk_takes_what_fits_and_a_group_beyond_the_bound_alone() -> None:
    """A group is never split."""
    backlog = filled(plain(A), plain(B), plain(A, 5000), plain(B), plain(C))
    room = 2 * weight_bytes(plain(A))
    assert [len(take(backlog, room)) for _ in range(4)] == [2, 1, 2, 0]
    assert backlog.head is None
    assert (backlog.total_bytes, backlog.ahead_bytes) == (0, 0)


def test_chunk_stops_at_what_is_not_durable() -> None:
    """And goes on there."""
    groups = [plain(A), plain(B), plain(C)]
    backlog = filled(*groups)
    assert take(backlog, is_durable=lambda group: group != groups[1]) == groups[:1]
    assert take(backlog, is_durable=lambda group: group != groups[1]) == []
    assert take(backlog) == groups[1:]


def test_chunk_ends_before_a_large_group() -> None:
    """It is staged when it is the head."""
    backlog = filled(plain(A), large(1, A), plain(B))
    assert backlog.set_aside_if_large() is None
    assert take(backlog) == [plain(A)]
    assert take(backlog) == []
    assert backlog.set_aside_if_large() == large(1, A)
    assert take(backlog) == [plain(B)]


@pytest.mark.parametrize(
    ("group", "goes"),
    [
        (plain(C), True),
        (plain(A), False),
        (transaction(2, C), True),
        (transaction(2, C, B), False),
        (transaction(1, C), False),
        ((transaction(2, C), "sink"), False),
        ((transaction(2, C), "another sink"), True),
        (large(2, C), False),
    ],
)
def test_group_goes_past_a_large_one_if_they_have_nothing_in_common(
    group: Group | tuple[Group, str], goes: bool
) -> None:
    """No log (2), no producer and no sink (6); and one large group at a time."""
    backlog = filled((large(1, A, B), "sink"), group)
    assert backlog.set_aside_if_large() is not None
    assert bool(take(backlog)) == goes
    backlog.large_is_done()
    assert backlog.done_through == (2 if goes else 1)


def test_group_waits_for_one_that_waits_for_a_large_one() -> None:
    """Else it would be first in a log that they share, though it came later."""
    backlog = filled(large(1, A), transaction(2, A, B), transaction(3, B, C), plain(C), plain(D))
    assert backlog.set_aside_if_large() is not None
    assert take(backlog) == [plain(D)]
    backlog.large_is_done()
    assert take(backlog) == [transaction(2, A, B), transaction(3, B, C), plain(C)]


def test_done_through_stays_at_a_large_group_that_others_have_gone_past() -> None:
    """Whoever waits for all that came before waits for it, too."""
    backlog = filled(plain(A), large(1, A), plain(B), plain(A), plain(B))
    take(backlog)
    assert backlog.done_through == 1
    assert backlog.set_aside_if_large() is not None
    assert take(backlog) == [plain(B), plain(B)]
    assert backlog.done_through == 1
    backlog.large_is_done()
    assert backlog.done_through == 3
    take(backlog)
    assert backlog.done_through == backlog.last_number == 5


def test_large_group_counts_for_nobody_who_may_go_past() -> None:
    """What is held counts; and when it is done, what was held is as old as it is."""
    backlog = filled(large(1, A), plain(A), plain(B))
    small = weight_bytes(plain(A))
    assert backlog.total_bytes == backlog.ahead_bytes > LARGE_BYTES
    assert backlog.set_aside_if_large() is not None
    assert (backlog.total_bytes, backlog.ahead_bytes) == (weight_bytes(large(1, A)) + 2 * small, 2 * small)
    assert (backlog.oldest_s, backlog.ahead_since_s) == (0.0, 1.0)
    assert take(backlog) == [plain(B)]
    assert (backlog.oldest_s, backlog.ahead_since_s, backlog.ahead_bytes) == (0.0, None, small)
    backlog.large_is_done()
    assert (backlog.total_bytes, backlog.oldest_s, backlog.ahead_since_s) == (small, 1.0, 1.0)


def test_how_much_is_in_small_groups_is_told() -> None:
    """The largest batch that is small is, with its frame; one that is twice as large is not."""
    small, medium = plain(A, SMALL_BYTES + FRAME_OVERHEAD_BYTES), plain(A, 2 * SMALL_BYTES)
    backlog = filled(small, medium, small)
    assert backlog.small_bytes == 2 * weight_bytes(small)
    assert take(backlog, bytes_max=weight_bytes(small)) == [small]
    assert backlog.small_bytes == weight_bytes(small)
    assert take(backlog) == [medium, small]
    assert (backlog.small_bytes, backlog.ahead_bytes) == (0, 0)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Group, str | None]]:
    groups: list[tuple[Group, str | None]] = []
    for _ in range(draw(st.integers(0, 20))):
        logs = draw(st.sets(st.sampled_from(LOGS), min_size=1, max_size=2))
        producer = draw(st.integers(1, 4))
        make = draw(st.sampled_from([transaction, transaction, large]))
        groups.append((make(producer, *sorted(logs)), draw(st.sampled_from([None, None, "one", "two"]))))
    return groups


@given(histories(), st.data())
def test_groups_that_share_a_log_a_producer_or_an_order_leave_as_they_came(
    history: list[tuple[Group, str | None]], data: st.DataObject
) -> None:
    """Whatever is large, however the stages lie between the chunks; and each leaves once."""
    staging.STAGED_FROM_BYTES = LARGE_BYTES
    backlog = Backlog()
    left: list[int] = []
    number_of = {id(group): number for number, (group, _) in enumerate(history)}

    def leave() -> Iterator[Group]:
        aside: Group | None = None
        coming = list(history)
        while coming or backlog.done_through < backlog.last_number:
            for _ in range(data.draw(st.integers(0 if backlog.done_through < backlog.last_number else 1, 3))):
                if coming:
                    backlog.add(*coming.pop(0), 0.0)
            if aside is None:
                aside = backlog.set_aside_if_large()
            elif data.draw(st.booleans()):
                yield aside
                aside = None
                backlog.large_is_done()
                continue
            yield from backlog.take(anything, bytes_max=data.draw(st.sampled_from([0, 3000, 10**9])))
            assert 0 <= backlog.small_bytes <= backlog.ahead_bytes
            backlog.taken_is_done()
        assert (backlog.small_bytes, backlog.total_bytes) == (0, 0)

    left = [number_of[id(group)] for group in leave()]
    assert sorted(left) == list(range(len(history)))
    keys = [
        {*(item.log for item in group), *(item.producer_id for item in group), *([order] if order else [])}
        for group, order in history
    ]
    for at, later in enumerate(left):
        assert all(earlier > later or keys[earlier].isdisjoint(keys[later]) for earlier in left[at + 1 :])
