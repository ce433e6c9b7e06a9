"""In which order a restart places again what is committed, whatever the crash has left of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlog_types import ApplyNumber
from shard.place_order import SaidAgain, place_order


def said(*calls: tuple[str, int | None]) -> list[SaidAgain]:
    return [SaidAgain(group, None if number is None else ApplyNumber(number)) for group, number in calls]


def test_place_order_follows_surviving_apply_numbers_before_all_else() -> None:
    """Some log has them in that order already."""
    assert place_order(said(("a", 9), ("c", None), ("b", 4))) == [2, 0, 1]


def test_place_order_puts_a_lost_apply_before_its_successors_in_the_group() -> None:
    """A transaction whose APPLY is lost everywhere still precedes those behind it in its group."""
    assert place_order(said(("b", 5), ("a", None), ("a", 3))) == [1, 2, 0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(1, 9))), max_size=10))
def test_place_order_keeps_each_groups_order(calls: list[tuple[str, int | None]]) -> None:
    """Invariant 6, whatever survived."""
    order = place_order(said(*calls))
    assert sorted(order) == list(range(len(calls)))
    for group in "abc":
        of_group = [index for index in order if calls[index][0] == group]
        assert of_group == sorted(of_group)
