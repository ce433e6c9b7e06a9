"""Nodes of a test's own, as processes: what the fixtures `fresh_node` of several folders are made of."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scripts.node_process import NodeProcess


@contextmanager
def fresh_nodes(
    directory: Path,
    environment: Mapping[str, str],
    *,
    on_made: Callable[[NodeProcess], None] = lambda _node: None,
    processes: int = 1,
) -> Generator[Callable[..., NodeProcess]]:
    """A factory of started nodes: `make(FAIRLOG_…="…")`, over `environment`. All are stopped at the end.

    Their data is in folders of `directory`; `on_made` hears of each before it starts.
    """
    nodes: list[NodeProcess] = []

    def make(**more: str) -> NodeProcess:
        fresh = NodeProcess(directory / f"node{len(nodes)}", {**environment, **more}, processes=processes)
        nodes.append(fresh)
        on_made(fresh)
        fresh.start()
        return fresh

    yield make
    for each in nodes:
        each.stop()
