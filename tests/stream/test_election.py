"""When a replica tries to become the owner: the rules, one by one."""

from __future__ import annotations

import pytest

from fairlog_types import LeaderEpoch
from stream.election import RANK_S, Election, Try, Wait
from stream.engine import StreamPosition
from stream.fold import Fenced, Folded, FoldState, Frames, HandedOver, Plain, Void
from tests.stream.owners import owner

FAILOVER_S = 3.0
ME, OTHER = owner("me"), owner("other")
NOBODY = FoldState()
OWNED = FoldState(StreamPosition(9), LeaderEpoch(1), OTHER, 5)
MINE = FoldState(StreamPosition(9), LeaderEpoch(1), owner("me", 7), 5)
GIVEN_UP = FoldState(StreamPosition(9), LeaderEpoch(1), OTHER, 5, handed_over=True)
NEXT, END = StreamPosition(10), StreamPosition(12)
START_S = 100.0


def election(state: FoldState = OWNED, rank: int = 0) -> Election:
    return Election("me", rank, FAILOVER_S, state, START_S)


@pytest.mark.parametrize(
    ("state", "rank", "waits_s"),
    [
        (NOBODY, 0, 0),
        (NOBODY, 2, 2 * RANK_S),
        (OWNED, 0, FAILOVER_S),
        (OWNED, 2, FAILOVER_S + 2 * RANK_S),
        (MINE, 0, 0),
        (MINE, 1, RANK_S),
        (GIVEN_UP, 0, 0),
        (GIVEN_UP, 1, RANK_S),
    ],
    ids=[
        "no owner",
        "no owner, third",
        "owned",
        "owned, third",
        "mine",
        "mine, second",
        "given up",
        "given up, second",
    ],
)
def test_first_try_comes_when_nobody_can_be_the_owner_any_more(state: FoldState, rank: int, waits_s: float) -> None:
    """At once where there is none; after the failover time where there may be one; one replica after the other."""
    it = election(state, rank)
    due_s = START_S + waits_s
    if waits_s:
        assert it.next(NEXT, START_S) == Wait(due_s)
        assert it.next(NEXT, due_s - 0.001) == Wait(due_s)
    assert it.next(NEXT, due_s) is Try.ASK_FOR_END


def test_silence_counts_only_for_who_has_read_all_there_is() -> None:
    """The end is asked for after the silence, and read up to, before a FENCE is appended."""
    it = election()
    late_s = START_S + FAILOVER_S
    assert it.next(NEXT, late_s) is Try.ASK_FOR_END
    assert it.next(NEXT, late_s) is Try.ASK_FOR_END, "there is no answer yet"
    it.answered(END)
    assert it.next(NEXT, late_s) is None
    assert it.next(StreamPosition(END - 1), late_s + 9) is None
    assert it.next(END, late_s + 9) is Try.FENCE


HEARD: list[Folded] = [Fenced(LeaderEpoch(2), OTHER), Fenced(LeaderEpoch(2), ME), Frames(()), *Plain]


@pytest.mark.parametrize("folded", HEARD, ids=str)
def test_entry_that_counts_is_a_sign_of_life(folded: Folded) -> None:
    """The silence begins anew, and what was asked before is forgotten."""
    it = election(rank=1)
    now_s = START_S + FAILOVER_S + RANK_S
    assert it.next(NEXT, now_s) is Try.ASK_FOR_END
    it.answered(NEXT)
    it.read(folded, now_s)
    due_s = now_s + FAILOVER_S + RANK_S
    assert it.next(StreamPosition(99), now_s) == Wait(due_s)
    assert it.next(StreamPosition(99), due_s) is Try.ASK_FOR_END


@pytest.mark.parametrize("void", Void)
def test_entry_that_does_not_count_is_no_sign_of_life(void: Void) -> None:
    """A deposed owner may write as long as it likes."""
    it = election()
    it.read(void, START_S + FAILOVER_S - 0.1)
    assert it.next(NEXT, START_S + FAILOVER_S) is Try.ASK_FOR_END
    it.answered(NEXT)
    it.read(void, START_S + FAILOVER_S)
    assert it.next(NEXT, START_S + FAILOVER_S) is Try.FENCE


@pytest.mark.parametrize(("successor", "waits_s"), [("me", 0), (None, RANK_S), ("somebody else", FAILOVER_S + RANK_S)])
def test_shard_that_is_handed_over_is_the_successors(successor: str | None, waits_s: float) -> None:
    """The one that is named tries at once; where none is, the first one; the others when that has not come."""
    it = election(rank=1)
    now_s = START_S + 1
    it.read(HandedOver(successor), now_s)
    if waits_s:
        assert it.next(NEXT, now_s + waits_s - 0.001) == Wait(now_s + waits_s)
    assert it.next(NEXT, now_s + waits_s) is Try.ASK_FOR_END


@pytest.mark.parametrize("after", [Election.not_answered, Election.fenced])
def test_replica_waits_anew_after_a_try(after: object) -> None:
    """The engine may be away for the owner, too; and whether a FENCE has come is read."""
    it = election()
    now_s = START_S + FAILOVER_S
    it.answered(NEXT)
    after(it, now_s)  # type: ignore[operator]
    assert it.next(END, now_s) == Wait(now_s + FAILOVER_S)
    assert it.next(END, now_s + FAILOVER_S) is Try.ASK_FOR_END
