"""What a directory's cluster store says there is; of a node of several machines, its copy of the cluster's metadata.

The copy says less. Which shards the node keeps, and how far each has come, is what is found in the directory; and it is
not of the same moment: a topic that it names may have no log yet, and logs may be there of a topic that is gone from
it, or that it does not know yet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from datalog.lmdb_file import check_length
from fairlog import data_directory
from fairlog.cluster.interface import Topic
from fairlog_types import ShardNumber
from shard.placement import Placement


@dataclass(frozen=True, slots=True)
class Described:
    """What there is to be."""

    served: Sequence[Topic]
    deleting: Sequence[Topic]
    placement: Placement
    """Over the shards that there should be; of several machines, on all nodes together."""
    group_journal_count: int
    """Of all shards together."""
    started: Collection[ShardNumber]
    """Shards that have something to lose: they must be here."""
    group_journals_begun: bool
    """None may be missing."""
    metadata_stream: str | None
    """The directory is that of a node of several machines, which has copies of shards; None on one machine."""

    @property
    def has_copies(self) -> bool:
        """Whether each shard is a copy, as far as the node has come with it."""
        return self.metadata_stream is not None


def describe(directory: Path) -> Described:
    """Raises CorruptStorage, DamagedPage, OSError."""
    if data_directory.is_of_several_machines(directory):
        check_length(directory / data_directory.METADATA_COPY)
        copy = data_directory.read_metadata_copy(directory)
        return Described(
            copy.served,
            copy.deleting,
            copy.placement,
            copy.cluster.group_journal_count,
            started=(),
            group_journals_begun=False,
            metadata_stream=copy.stream,
        )
    check_length(directory / data_directory.CLUSTER_STORE)
    store = data_directory.read_cluster_store(directory)
    return Described(
        store.served,
        store.deleting,
        store.placement,
        store.node.group_journal_count,
        started=store.started,
        group_journals_begun=store.group_journals_begun,
        metadata_stream=None,
    )
