"""A cluster store made readable: every record, also those that this program does not know. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import cbor2

from datalog.lmdb_pages import DamagedPage, LmdbFile
from fairlog.cluster import records
from fairlog.inspection.lines import Line
from fairlog_types import CorruptStorage


def show_cluster_store(file: LmdbFile) -> Iterator[Line]:
    """All records, in the order of their keys."""
    yield Line("cluster store", {"transaction": file.meta.transaction, "page_bytes": file.meta.page_bytes})
    try:
        for item in file.items(file.meta.main):
            yield _show(item.key, bytes(item.value), item.at)
    except DamagedPage as error:
        yield Line("records", {}, str(error))


def _show(key: bytes, value: bytes, byte: int) -> Line:
    try:
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
        return Line(key.decode(errors="replace"), {"value": cbor2.loads(value)})
    except (CorruptStorage, cbor2.CBORDecodeError, ValueError) as error:
        return Line(key.decode(errors="replace"), {}, f"byte {byte}: {error}")
