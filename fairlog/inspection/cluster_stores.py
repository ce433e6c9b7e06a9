"""A cluster store in readable form: every record, also those that this program does not know. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import cbor2

from datalog.lmdb_pages import LmdbFile
from fairlog.cluster import records
from fairlog.inspection.lines import Line
from fairlog.inspection.small_stores import show_small_store


def show_cluster_store(file: LmdbFile) -> Iterator[Line]:
    """All records, in the order of their keys."""
    return show_small_store("cluster store", file, _show)


def _show(key: bytes, value: bytes) -> Line:
    if key == records.FORMAT_KEY:
        return Line("format", {"version": records.decode_format(value)})
    if key == records.NODE_KEY:
        return Line("node", {"node": records.decode_node(value)})
    if key.startswith(records.TOPIC_PREFIX):
        found = records.decode_topic(key, value)
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
            },
        )
    if key.startswith(records.BROKER_PREFIX):
        ((resource, configs),) = records.decode_broker_configs({key: value}).items()
        return Line("broker configs", {"brokers": resource or "all", "configs": configs})
    if key.startswith(records.GROUP_CONFIGS_PREFIX):
        ((group, configs),) = records.decode_group_configs({key: value}).items()
        return Line("group configs", {"group": group, "configs": configs})
    return Line(key.decode(errors="replace"), {"value": cbor2.loads(value)})
