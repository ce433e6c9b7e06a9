"""Which ranges are read: from cuts, without a node."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_fairlog.native import CutPartition
from pyspark_fairlog.options import Edge, OptionRefused, Partition
from pyspark_fairlog.planning import Range, going_on, resolve, split, to_read, within
from pyspark_fairlog.positions import Position

A0, A1, B0 = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def cut(**parts: tuple[int, int]) -> dict[Partition, CutPartition]:
    """`a0=(first, high)` and so on."""
    return {
        Partition(name[0], int(name[1:])): CutPartition(name[0], int(name[1:]), first, high, high)
        for name, (first, high) in parts.items()
    }


def of_topics(found: dict[Partition, CutPartition], **ids: str) -> dict[Partition, CutPartition]:
    return {partition: replace(each, topic_id=ids[each.topic]) for partition, each in found.items()}


def test_resolve_of_an_edge_takes_it_of_every_partition() -> None:
    """Earliest is where a log begins, which retention moves."""
    node = cut(a0=(3, 9), b0=(0, 0))
    assert resolve("startingOffsets", Edge.EARLIEST, node) == {A0: 3, B0: 0}
    assert resolve("startingOffsets", Edge.LATEST, node) == {A0: 9, B0: 0}


def test_resolve_of_offsets_takes_edges_among_them() -> None:
    """−2 and −1 stand for one partition's edge."""
    node = cut(a0=(3, 9), a1=(3, 9), b0=(3, 9))
    assert resolve("x", {A0: Edge.LATEST, A1: Edge.EARLIEST, B0: 5}, node) == {A0: 9, A1: 3, B0: 5}


def test_resolve_of_offsets_for_other_partitions_names_them() -> None:
    """A partition that was forgotten would be read from who knows where."""
    with pytest.raises(OptionRefused, match=r"where a-1 begins or ends; the query does not read b-0"):
        resolve("startingOffsets", {A0: 1, B0: 1}, cut(a0=(0, 9), a1=(0, 9)))


def test_resolve_of_an_offset_that_is_not_there_yet_is_refused() -> None:
    """It would be taken for a topic made anew."""
    with pytest.raises(OptionRefused, match="says 10 of a-0, which ends at 9"):
        resolve("endingOffsets", {A0: 10}, cut(a0=(0, 9)))


def test_going_on_runs_from_the_checkpoint_to_what_can_be_read() -> None:
    """A new partition begins at its first record; nothing is missed."""
    planned = going_on(Position({A0: 4}), cut(a0=(0, 9), a1=(0, 2)))
    assert planned.ranges == (Range(A0, 4, 9), Range(A1, 0, 2))
    assert planned.losses == ()


def test_going_on_where_records_are_gone_says_what_is_missed() -> None:
    """Deleted by retention; deleted with the topic; made anew: each goes on at the next sound place."""
    planned = going_on(Position({A0: 4, A1: 50, B0: 1}), cut(a0=(6, 9), a1=(0, 2)))
    assert planned.ranges == (Range(A0, 6, 9), Range(A1, 0, 2))
    gone, below, anew = planned.losses
    assert "b-0 is not there any more" in gone
    assert "4 to 5 of a-0 are deleted" in below
    assert "a-1 ends at 2, and the query had come to 50" in anew


def test_going_on_at_a_new_partition_whose_first_records_are_gone_says_so() -> None:
    """They came and went between two micro-batches."""
    planned = going_on(Position({}), cut(a0=(7, 9)))
    assert planned.ranges == (Range(A0, 7, 9),)
    assert "0 to 6 of a-0" in planned.losses[0]


def test_to_read_is_what_lies_between_two_offsets() -> None:
    """Partitions without news need no task; new ones begin at 0."""
    planned = to_read(
        Position({A0: 4, A1: 2}), Position({A0: 9, A1: 2, B0: 3}), cut(a0=(0, 20), a1=(0, 20), b0=(0, 20))
    )
    assert planned.ranges == (Range(A0, 4, 9), Range(B0, 0, 3))
    assert planned.losses == ()


def test_to_read_where_records_are_gone_reads_the_rest() -> None:
    """Of a replayed batch retention may have taken a part, or all, or the topic is another one."""
    node = cut(a0=(6, 20), a1=(30, 40))
    planned = to_read(Position({A0: 4, A1: 2}), Position({A0: 9, A1: 5, B0: 3}), node)
    assert planned.ranges == (Range(A0, 6, 9),)
    assert len(planned.losses) == 3
    assert "2 to 29 of a-1" in planned.losses[1]
    shorter = to_read(Position({A0: 4}), Position({A0: 9}), cut(a0=(0, 6)))
    assert shorter.ranges == (Range(A0, 4, 6),)
    assert "ends at 6" in shorter.losses[0]


def test_to_read_of_a_topic_made_anew_reads_it_from_its_beginning() -> None:
    """Its end is below where the query was."""
    assert to_read(Position({A0: 50}), Position({A0: 3}), cut(a0=(0, 8))).ranges == (Range(A0, 0, 3),)


def test_going_on_of_a_topic_made_anew_is_told_by_its_id_however_far_it_has_grown() -> None:
    """It is read from where it begins; a topic whose id is not known, here or there, is taken for the same."""
    node = of_topics(cut(a0=(2, 90), a1=(0, 90), b0=(0, 90)), a="new", b="b")
    planned = going_on(Position({A0: 4, B0: 4}, {"a": "old", "b": "b"}), node)
    assert planned.ranges == (Range(A0, 2, 90), Range(A1, 0, 90), Range(B0, 4, 90))
    assert planned.losses == (
        "a-0 is another one than the query had read, up to 4: its topic was deleted and made anew",
    )
    assert going_on(Position({A0: 4, A1: 4, B0: 4}), node).losses == ()
    assert going_on(Position({A0: 4}, {"a": "old"}), cut(a0=(0, 9))).losses == ()


def test_to_read_never_reads_one_topic_between_the_offsets_of_another() -> None:
    """Made anew before the batch ended, it is read from its beginning; behind its plan, what was planned is gone."""
    old, new = Position({A0: 4}, {"a": "old"}), Position({A0: 9}, {"a": "new"})
    assert to_read(old, new, of_topics(cut(a0=(0, 20)), a="new")).ranges == (Range(A0, 0, 9),)
    gone = to_read(old, Position({A0: 9}, {"a": "old"}), of_topics(cut(a0=(0, 20)), a="new"))
    assert (gone.ranges, len(gone.losses)) == ((), 1)
    assert "its topic was deleted and made anew" in gone.losses[0]
    assert to_read(old, old, of_topics(cut(a0=(0, 20)), a="new")).losses == (), "nothing was to be read of it"


def test_within_ends_at_the_earlier_cut_and_never_goes_back() -> None:
    """What a cut does not name is not in it."""
    ranges = (Range(A0, 4, 9), Range(A1, 4, 9), Range(B0, 4, 9))
    assert within(ranges, {A0: 6, A1: 2}) == (Range(A0, 4, 6), Range(A1, 4, 4))


cuts_in_order = st.lists(st.dictionaries(st.sampled_from([A0, A1, B0]), st.integers(0, 5)), min_size=3, max_size=8)


@settings(deadline=None)
@given(cuts_in_order, st.data())
def test_within_a_target_and_a_limit_is_one_of_the_nodes_cuts(
    steps: list[dict[Partition, int]], data: st.DataObject
) -> None:
    """Cuts follow each other; the smaller offsets of two of them are the earlier one, so no transaction is split."""
    made = [dict.fromkeys((A0, A1, B0), 0)]
    for step in steps:
        made.append({partition: offset + step.get(partition, 0) for partition, offset in made[-1].items()})
    begin, target, limited, high = sorted(data.draw(st.lists(st.integers(0, len(made) - 1), min_size=4, max_size=4)))
    if data.draw(st.booleans()):
        target, limited = limited, target
    ranges = tuple(Range(partition, made[begin][partition], made[high][partition]) for partition in made[high])
    found = {part.partition: part.end for part in within(within(ranges, made[target]), made[limited])}
    assert found == made[min(target, limited)]


sizes = st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 500)), max_size=6)


@settings(deadline=None)
@given(sizes, st.integers(1, 40))
def test_split_covers_every_offset_once_with_as_many_pieces_as_asked(found: list[tuple[int, int]], count: int) -> None:
    """No offset is read twice or not at all; no task is empty; there are fewer only if there are not enough offsets."""
    ranges = [Range(Partition("t", at), start, start + size) for at, (start, size) in enumerate(found)]
    pieces = split(ranges, count)
    for whole in ranges:
        mine = [piece for piece in pieces if piece.partition == whole.partition]
        assert all(piece.size > 0 for piece in mine)
        assert [offset for piece in mine for offset in range(piece.start, piece.end)] == list(
            range(whole.start, whole.end)
        )
    assert len(pieces) >= min(count, sum(whole.size for whole in ranges)) if ranges else pieces == ()


def test_split_gives_the_large_range_the_pieces() -> None:
    """Tasks of one size end together."""
    pieces = split([Range(A0, 0, 10), Range(A1, 0, 90)], 10)
    assert sorted(piece.size for piece in pieces) == [10] * 10
