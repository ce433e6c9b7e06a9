"""What a node's copy of the metadata holds, as values: for tools, which do not have the stream that it is of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from fairlog.cbor_records import load, shown
from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.interface import Topic
from fairlog_types import CorruptStorage
from shard.placement import Placement

COPY_KEY = b"\x00copy"
"""Of the record that says how far the copy goes. No record of the content begins like this."""
COPY_MAGIC = "fairlog-metadata-copy"
COPY_VERSION = 1


@dataclass(frozen=True, slots=True)
class MetadataContent:
    """What a copy holds."""

    stream: str
    """The name of the metadata's stream; the shards' streams are called alike."""
    read_before: int
    """The position of the first entry of the stream that the node had not read."""
    cluster: ClusterRecord
    """Of a backup without its secret."""
    placement: Placement
    served: Sequence[Topic]
    deleting: Sequence[Topic]


def read_metadata(content: Mapping[bytes, bytes]) -> MetadataContent:
    """Read a copy's keys and values. Raises CorruptStorage, also if the node had not read any metadata yet."""
    try:
        stream, read_before = decode_copy(content[COPY_KEY])
        if records.FORMAT_KEY not in content:
            raise CorruptStorage("there are no metadata in it yet: the node was stopped before it had read any")
        version = cluster_records.decode_version(content[records.FORMAT_KEY])
        if version > cluster_records.READ_VERSIONS[-1]:
            raise CorruptStorage(
                f"the metadata have version {version}, and this program reads up to "
                f"{cluster_records.READ_VERSIONS[-1]}: use the version of Fairlog that wrote them, or a newer one"
            )
        shards = records.decode_shards(content)
        topics = records.decode_topics(content, shards)
        return MetadataContent(
            stream,
            read_before,
            cluster_records.decode_shown_cluster(content[cluster_records.CLUSTER_KEY]),
            Placement(shards, records.decode_first_shards(content, shards)),
            [record.topic for record in topics if not record.deleting],
            [record.topic for record in topics if record.deleting],
        )
    except KeyError as error:
        raise CorruptStorage(f"it lacks the record {error}") from error


def decode_copy(value: bytes) -> tuple[str, int]:
    """Of the record of how far the copy goes: the stream, and the first position not read. Raises CorruptStorage."""
    found = load(value, "copy")
    match cast("list[object]", found)[:4] if isinstance(found, list) else []:
        case [str(magic), int(version), str(stream), int(read_before)] if (magic, version) == (
            COPY_MAGIC,
            COPY_VERSION,
        ):
            return stream, read_before
        case [str(magic), int(version), _, _] if magic == COPY_MAGIC and version > COPY_VERSION:
            raise CorruptStorage(
                f"it has version {version}, and this program reads {COPY_VERSION}: use the Fairlog that wrote it"
            )
        case _:
            raise CorruptStorage(f"the record 'copy' reads {shown(cast('object', found))}")
