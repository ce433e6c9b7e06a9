"""A node's copy of its cluster's metadata in readable form: every record, also those of a store. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import cbor2

from datalog.lmdb_pages import LmdbFile
from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import SHARDS_MAX
from fairlog.cluster.metadata_content import COPY_KEY, decode_copy
from fairlog.inspection.cluster_stores import show_record
from fairlog.inspection.lines import Line
from fairlog.inspection.small_stores import show_small_store


def show_metadata_copy(file: LmdbFile) -> Iterator[Line]:
    """All records, in the order of their keys."""
    return show_small_store("copy of the metadata", file, _show)


def _show(key: bytes, value: bytes) -> Line:
    if key == COPY_KEY:
        stream, read_before = decode_copy(value)
        return Line("read", {"stream": stream, "before": read_before})
    if key == records.FORMAT_KEY:
        return Line("format", {"version": cluster_records.decode_version(value)})
    if key == cluster_records.CLUSTER_KEY:
        cluster = cluster_records.decode_shown_cluster(value)  # the secret is not shown: it lets everybody in
        return Line("cluster", {"cluster_id": cluster.cluster_id, "group_journals": cluster.group_journal_count})
    if key.startswith(cluster_records.NODE_PREFIX):
        ((number, node),) = cluster_records.decode_nodes({key: value}, SHARDS_MAX).items()
        ports = {shard: list(both) for shard, both in node.ports.items()}
        return Line(
            "node",
            {"node": number, "host": node.host, "internal_host": node.internal_host, "ports": ports, "rack": node.rack},
        )
    if key.startswith(records.LISTENERS_PREFIX):
        ((number, listeners),) = cluster_records.decode_listeners({key: value}, SHARDS_MAX).items()
        shown = {name: [host, dict(ports)] for name, (host, ports) in listeners.by_name.items()}
        return Line("listeners", {"node": number, "listeners": shown})
    if key.startswith(cluster_records.INNER_TLS_PREFIX):
        (number,) = cluster_records.decode_inner_tls({key: value})
        return Line("inner-tls", {"node": number})
    if key.startswith(cluster_records.SHARD_PREFIX):
        ((number, shard),) = cluster_records.decode_shard_records({key: value}, SHARDS_MAX).items()
        return Line(
            "shard",
            {
                "shard": number,
                "replicas": shard.replicas,
                "owner": shard.owner,
                "epoch": shard.epoch,
                "in_sync": shard.in_sync,
            },
        )
    if key in (records.SHARDS_KEY, records.OFFSETS_LOGS_KEY, records.PRODUCER_IDS_KEY, records.STARTS_KEY):
        return Line(key.decode(), {"value": cbor2.loads(value)})
    return show_record(key, value)
