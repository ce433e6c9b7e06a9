"""Components and paths, held against a search that tries everything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.history.graph import shortest_path, strongly_connected

graphs = st.integers(1, 9).flatmap(
    lambda size: st.lists(st.sets(st.integers(0, size - 1)), min_size=size, max_size=size)
)


def distances(graph: list[set[int]]) -> list[list[int | None]]:
    """The length of a shortest path between all nodes (Floyd and Warshall)."""
    size = len(graph)
    far = size + 1
    table = [[0 if a == b else 1 if b in graph[a] else far for b in range(size)] for a in range(size)]
    for middle in range(size):
        for a in range(size):
            for b in range(size):
                table[a][b] = min(table[a][b], table[a][middle] + table[middle][b])
    return [[None if each >= far else each for each in row] for row in table]


@given(graphs)
def test_components_are_the_nodes_that_reach_each_other(graph: list[set[int]]) -> None:
    """Two nodes share a component if and only if there is a way there and back."""
    table = distances(graph)
    expected = {
        frozenset(b for b in range(len(graph)) if table[a][b] is not None and table[b][a] is not None)
        for a in range(len(graph))
    }
    found = [frozenset(component) for component in strongly_connected(graph)]
    assert len(found) == len(set(found))
    assert set(found) == {component for component in expected if len(component) > 1}


@given(graphs, st.data())
def test_path_is_a_shortest_one(graph: list[set[int]], data: st.DataObject) -> None:
    """It goes along edges, and no other is shorter."""
    nodes = st.integers(0, len(graph) - 1)
    start, goal = data.draw(nodes), data.draw(nodes)
    path = shortest_path(graph, start, goal, range(len(graph)))
    length = distances(graph)[start][goal]
    if path is None:
        assert length is None
    else:
        assert (path[0], path[-1], len(path) - 1) == (start, goal, length)
        assert all(after in graph[before] for before, after in itertools.pairwise(path))


def test_components_of_a_long_chain_need_no_deep_stack() -> None:
    """A hundred thousand nodes in a circle are one component."""
    size = 100_000
    assert len(strongly_connected([[(node + 1) % size] for node in range(size)])[0]) == size
