"""Planted bugs, one at a time: the simulation has to find every one, else it proves nothing.

Each is a small change of the node's own code, such as a tired programmer makes: a flush left out, a check left out, two
steps in the wrong order, an end off by one. `python -m tests.simulation --mutations` runs each until a seed finds it.
Other tests plant them by name: in a real node (`planted_node.py`: kills, power cuts, histories) or in one of their own.

They stand by room: `journal_mutations`, `copier_mutations`, `leader_mutations`, `coordinator_mutations` and
`sink_mutations`. Those of `shard_mutations` need several shards (`--shards`), those of `replica_mutations` and
`copy_mutations` several nodes (`--replicas`), and those of `grid_mutations` both (`--grid`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.simulation import (
    coordinator_mutations,
    copier_mutations,
    copy_mutations,
    grid_mutations,
    journal_mutations,
    leader_mutations,
    replica_mutations,
    shard_mutations,
    sink_mutations,
)
from tests.simulation.planting import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    *journal_mutations.MUTATIONS,
    *copier_mutations.MUTATIONS,
    *leader_mutations.MUTATIONS,
    *coordinator_mutations.MUTATIONS,
    *sink_mutations.MUTATIONS,
)

OVER_SHARDS: tuple[Mutation, ...] = shard_mutations.MUTATIONS

OF_REPLICAS: tuple[Mutation, ...] = (*replica_mutations.MUTATIONS, *copy_mutations.MUTATIONS)

OF_THE_GRID: tuple[Mutation, ...] = (*grid_mutations.MUTATIONS, *grid_mutations.SHARED)


def plant(name: str) -> AbstractContextManager[object]:
    """The node's code has this bug while the context lasts. Raises KeyError for a name that is none of them."""
    return {mutation.name: mutation for mutation in (*MUTATIONS, *OVER_SHARDS, *OF_REPLICAS, *OF_THE_GRID)}[
        name
    ].plant()
