"""Cycles of dependencies between transactions, by Adya's classes. Pure.

The nodes are transactions that took effect, plain records, and *cuts*: polls in which one answer read several
partitions to their ends. The edges:

    ww   B's record stands next behind A's in a partition
    wr   B polled a record of A: of each partition the last one that B polled, for those before are reached by ww
    rw   the cut A ended where B's record is the next one

A cycle of ww alone is G0. One of ww and wr is G1c. With one rw it is G-single, with more G2. The rw edges are only
drawn from cuts: a consumer that polls takes records of each partition as they come, and what it did not get yet it may
not have asked for. (Jepsen draws them from all polls: any consumer that has read more of one partition than of another
is a G-single there.) A cut writes nothing, so a cycle through it says that a commit was seen in part, or two commits in
two orders.

Each strongly connected component is one anomaly, shown by a short cycle of it.

A transaction enters the partitions of one shard in one step, and those of several shards in several. So with several
shards each has a graph of its own, with the edges of its partitions alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.history.anomalies import G0, G1C, G2, G_SINGLE, Anomaly, AnomalyKind
from tests.history.graph import shortest_path, strongly_connected
from tests.history.operations import Isolation, Kind, Operation
from tests.history.versions import Versions

TRIES = 50
"""So many edges of a component are tried for the shortest cycle through them. All would take quadratic time."""

_Edges = list[dict[int, str]]
"""By node: its successors, and for people what leads there."""


@dataclass(slots=True)
class Dependencies:
    """The graph of a history."""

    nodes: list[Operation] = field(default_factory=list[Operation])
    """The operation of each node; a plain send has one for each of its records."""
    ww: _Edges = field(default_factory=_Edges)
    wr: _Edges = field(default_factory=_Edges)
    rw: _Edges = field(default_factory=_Edges)

    def add(self, operation: Operation) -> int:
        self.nodes.append(operation)
        for edges in (self.ww, self.wr, self.rw):
            edges.append({})
        return len(self.nodes) - 1


def cycles(versions: Versions) -> Iterator[Anomaly]:
    """G0, G1c, G-single and G2."""
    for shard in sorted({*versions.history.shards.values()}) or [None]:
        yield from _cycles_of(dependencies_of(versions, shard))


def _cycles_of(dependencies: Dependencies) -> Iterator[Anomaly]:
    ww = dependencies.ww
    ww_wr = [[*first, *second] for first, second in zip(ww, dependencies.wr, strict=True)]
    everything = [[*first, *second] for first, second in zip(ww_wr, dependencies.rw, strict=True)]
    for component in strongly_connected(ww):
        yield _shown(G0, _through(ww, ww, component), dependencies, component)
    for component in strongly_connected(ww_wr):
        cycle = _through(dependencies.wr, ww_wr, component)
        if cycle is not None:
            yield _shown(G1C, cycle, dependencies, component)
    for component in strongly_connected(everything):
        cycle = _through(dependencies.rw, ww_wr, component)
        if cycle is not None:
            yield _shown(G_SINGLE, cycle, dependencies, component)
        else:
            cycle = _through(dependencies.rw, everything, component)
            if cycle is not None:
                yield _shown(G2, cycle, dependencies, component)


def dependencies_of(versions: Versions, shard: int | None = None) -> Dependencies:
    """The graph, from the committed orders; of a shard's partitions, or of all."""
    dependencies = Dependencies()
    shards = versions.history.shards
    of_operation: dict[int, int] = {}
    of_value: dict[str, int] = {}
    for partition, order in versions.committed_orders():
        if shards.get(partition) != shard:
            continue
        previous: tuple[int, str] | None = None
        for value in order.values:
            writer = versions.sender_of(value, partition)
            if writer is None or not versions.took_effect(writer):
                continue  # an aborted read, or a phantom: named as such
            if writer.kind is not Kind.TXN:
                node = dependencies.add(writer)
            elif writer.line in of_operation:
                node = of_operation[writer.line]
            else:
                node = of_operation[writer.line] = dependencies.add(writer)
            of_value[value] = node
            if previous is not None and previous[0] != node:
                dependencies.ww[previous[0]].setdefault(
                    node, f"{value!r} stands next behind {previous[1]!r} in {partition}"
                )
            previous = node, value
    for operation in versions.history.operations:
        if operation.kind is Kind.TXN and versions.took_effect(operation):
            _add_reads(dependencies, operation, of_operation, of_value)
        elif operation.kind is Kind.POLL and operation.ends:
            _add_cut(dependencies, versions, operation, of_value, shard)
    return dependencies


def _add_reads(
    dependencies: Dependencies, reader: Operation, of_operation: dict[int, int], of_value: dict[str, int]
) -> None:
    last = {poll.partition: poll.records[-1][1] for poll in reader.polls() if poll.records}
    for partition, value in last.items():
        writer = of_value.get(value)
        if writer is None:
            continue
        node = of_operation.get(reader.line)
        if node is None:
            node = of_operation[reader.line] = dependencies.add(reader)
        if writer != node:
            dependencies.wr[writer].setdefault(node, f"{value!r} was polled from {partition}")


def _add_cut(
    dependencies: Dependencies, versions: Versions, cut: Operation, of_value: dict[str, int], shard: int | None
) -> None:
    node = dependencies.add(cut)
    for partition, end in cut.ends.items():
        if versions.history.shards.get(partition) != shard:
            continue
        order = versions.order(partition, Isolation.COMMITTED)
        before, behind = order.last_before(end), order.first_from(end)
        if before is not None and before in of_value:
            dependencies.wr[of_value[before]].setdefault(node, f"{before!r} is in the cut of {partition}")
        if behind is not None and behind in of_value:
            dependencies.rw[node].setdefault(of_value[behind], f"the cut of {partition} ends before {behind!r}")


def _through(
    edges: Sequence[dict[int, str]], graph: Sequence[Sequence[int] | dict[int, str]], component: list[int]
) -> list[int] | None:
    """A short cycle that begins with one of `edges` and goes on over `graph`; None if there is none."""
    within = set(component)
    found: list[int] | None = None
    candidates = ((node, successor) for node in component for successor in edges[node] if successor in within)
    for node, successor in itertools.islice(candidates, TRIES):
        path = shortest_path(graph, successor, node, within)
        if path is not None and (found is None or len(path) < len(found)):
            found = path
            if len(found) == 2:
                break
    return found


def _shown(kind: AnomalyKind, cycle: list[int] | None, dependencies: Dependencies, component: list[int]) -> Anomaly:
    """`cycle` begins where its first edge leads and ends where that comes from."""
    assert cycle is not None, "a component without a cycle"
    ring = [cycle[-1], *cycle]
    steps: list[str] = []
    for node, successor in itertools.pairwise(ring):
        name, why = _edge(kind, dependencies, node, successor, first=not steps)
        steps.append(f"{dependencies.nodes[node]} -{name}-> {why}")
    more = f" (of {len(component)} that are connected so)" if len(component) > len(cycle) else ""
    lines = tuple(dict.fromkeys(dependencies.nodes[node].line for node in cycle))
    return Anomaly(kind, f"a circle of {len(cycle)}{more}: " + "; ".join(steps), lines)


def _edge(kind: AnomalyKind, dependencies: Dependencies, node: int, successor: int, *, first: bool) -> tuple[str, str]:
    """Name and reason of the edge; the first one of a cycle is that which gives it its class."""
    order = {G0: ("ww",), G1C: ("wr", "ww") if first else ("ww", "wr")}.get(
        kind, ("rw", "ww", "wr") if first else ("ww", "wr", "rw")
    )
    by_name = {"ww": dependencies.ww, "wr": dependencies.wr, "rw": dependencies.rw}
    return next((name, by_name[name][node][successor]) for name in order if successor in by_name[name][node])
