"""Strongly connected components and shortest paths of directed graphs whose nodes are 0, 1, 2, … Pure.

Both walk with lists of their own: a history has hundreds of thousands of nodes, and Python's stack has not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

Graph = Sequence[Collection[int]]
"""The successors of each node."""


def strongly_connected(graph: Graph) -> list[list[int]]:
    """The components of more than one node (Tarjan 1972); linear in nodes and edges."""
    index = [-1] * len(graph)
    low = [0] * len(graph)
    on_stack = bytearray(len(graph))
    stack: list[int] = []
    components: list[list[int]] = []
    count = 0
    for root in range(len(graph)):
        if index[root] >= 0:
            continue
        walk = [(root, iter(graph[root]))]
        index[root] = low[root] = count
        count += 1
        stack.append(root)
        on_stack[root] = 1
        while walk:
            node, successors = walk[-1]
            for successor in successors:
                if index[successor] < 0:
                    index[successor] = low[successor] = count
                    count += 1
                    stack.append(successor)
                    on_stack[successor] = 1
                    walk.append((successor, iter(graph[successor])))
                    break
                if on_stack[successor]:
                    low[node] = min(low[node], index[successor])
            else:
                walk.pop()
                if walk:
                    parent = walk[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == index[node]:
                    start = len(stack) - 1
                    while stack[start] != node:
                        start -= 1
                    component = stack[start:]
                    del stack[start:]
                    for member in component:
                        on_stack[member] = 0
                    if len(component) > 1:
                        components.append(component)
    return components


def shortest_path(graph: Graph, start: int, goal: int, within: Collection[int]) -> list[int] | None:
    """The nodes of a shortest path from `start` to `goal`, both included, within `within`; None if there is none."""
    came_from = {start: start}
    waiting = deque([start])
    while waiting:
        node = waiting.popleft()
        if node == goal:
            path = [node]
            while node != start:
                node = came_from[node]
                path.append(node)
            return path[::-1]
        for successor in graph[node]:
            if successor in within and successor not in came_from:
                came_from[successor] = node
                waiting.append(successor)
    return None
