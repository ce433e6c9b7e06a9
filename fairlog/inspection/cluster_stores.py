"""A cluster store in readable form: every record, also those that this program does not know. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import cbor2

from datalog.lmdb_pages import LmdbFile
from fairlog.cluster import records
from fairlog.inspection.lines import Line
from fairlog.inspection.small_stores import show_small_store

_ANY_SHARDS = 1 << 63
"""A record is shown by itself: how many shards there are is in another one."""


def show_cluster_store(file: LmdbFile) -> Iterator[Line]:
    """All records, in the order of their keys."""
    return show_small_store("cluster store", file, show_record)


def show_record(key: bytes, value: bytes) -> Line:
    """A record of a store on one machine. Raises CorruptStorage, and what cbor2 raises."""
    if key == records.FORMAT_KEY:
        return Line("format", {"version": records.decode_format(value)})
    if key == records.NODE_KEY:
        return Line("node", {"node": records.decode_node(value)})
    if key.startswith(records.TOPIC_PREFIX):
        found = records.decode_topic(key, value, _ANY_SHARDS)
        topic = found.topic
        return Line(
            "topic",
            {
                "name": topic.name,
                "topic_id": UUID(hex=topic.topic_id.hex),
                "partitions": topic.partitions,
                "configs": topic.configs,
                "created_ms": topic.created_ms,
                "deleting": found.deleting,
            }
            | ({} if topic.spread_over is None else {"spread_over": topic.spread_over}),
        )
    if key == records.GROUP_SEPARATOR_KEY:
        return Line("group separator", {"separator": records.decode_group_separator(value)})
    if key.startswith(records.SHARD_PREFIX):
        ((number, shard),) = records.decode_shard_records({key: value}, _ANY_SHARDS).items()
        return Line(
            "shard", {"shard": number, "starts": shard.starts, "group_journals_begun": shard.group_journals_begun}
        )
    if key.startswith(records.ADDRESS_PREFIX):
        ((node_id, address),) = records.decode_addresses({key: value}).items()
        return Line(
            "broker", {"node_id": node_id, "host": address.host, "port": address.port, "internal": address.internal}
        )
    if key.startswith(records.LISTENERS_PREFIX):
        ((node_id, endpoints),) = records.decode_listeners({key: value}).items()
        return Line("listeners", {"node_id": node_id, "listeners": {name: list(it) for name, it in endpoints.items()}})
    if key.startswith(records.DROPPED_PREFIX):
        ((topic_id, number),) = records.decode_dropped([key], _ANY_SHARDS)
        return Line("dropped", {"topic_id": topic_id, "shard": number})
    if key.startswith(records.BROKER_PREFIX):
        ((resource, configs),) = records.decode_broker_configs({key: value}).items()
        return Line("broker configs", {"brokers": resource or "all", "configs": configs})
    if key.startswith(records.GROUP_CONFIGS_PREFIX):
        ((group, configs),) = records.decode_group_configs({key: value}).items()
        return Line("group configs", {"group": group, "configs": configs})
    if key.startswith(records.ACCESS_PREFIX):
        ((kind, name, _),) = records.decode_access({key: value})
        return Line(kind, {"name": name})  # its value may be a secret
    return Line(key.decode(errors="replace"), {"value": cbor2.loads(value)})
