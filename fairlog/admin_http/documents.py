"""The JSON documents of `/api/…`, from the node's view. docs/admin-http.md describes them. Pure.

Names are in snake case with their unit at the end; times of day are milliseconds since 1970, durations milliseconds
by a clock that does not jump. Readers must accept new fields, and new words for states and causes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coordinator.answers import Description
from fairlog.admin_http.view import (
    PARTS_SHOWN,
    BrokerView,
    ClusterView,
    EndedTransaction,
    GroupView,
    LiveTransaction,
    Place,
    SinkView,
    TopicPage,
    Transactions,
)
from fairlog_types import LogId, Placement, ProducerEpoch, ProducerId, TxId

Document = dict[str, Any]


def cluster(view: ClusterView, health: Document) -> Document:
    return {
        "cluster_id": view.cluster_id,
        "node_id": view.node_id,
        "shard": view.shard,
        "shards": view.shards,
        "version": view.version,
        "start": view.start,
        "address": view.address,
        "uptime_ms": _ms(view.uptime_s),
        "health": health,
        "topics": view.topics,
        "partitions": view.partitions,
        "connections": view.connections,
        "copy": {"backlog_bytes": view.backlog_bytes, "lag_ms": _ms(view.lag_s)},
        "data_logs": {"used_bytes": view.used_bytes, "map_bytes": view.map_bytes},
    }


def brokers(views: Sequence[BrokerView], statuses: Mapping[int, str | None], ports: Mapping[int, int]) -> Document:
    """`statuses` and `ports`, of the admin listeners, are by shard."""
    return {
        "brokers": [
            {
                "node_id": each.node_id,
                "shard": each.shard,
                "address": each.address,
                "partitions": each.partitions,
                "status": statuses.get(each.shard) or "down",
                "admin_port": ports.get(each.shard),
            }
            for each in views
        ]
    }


def topics(page: TopicPage) -> Document:
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "transactions": topic.transactions,
                "records": sum(each.high_watermark - each.log_start for each in topic.partitions),
                "size_bytes": sum(each.size_bytes for each in topic.partitions),
                "journal_bytes": sum(each.journal_bytes for each in topic.partitions),
                "partitions": [
                    {
                        "partition": each.partition,
                        "log_start": each.log_start,
                        "high_watermark": each.high_watermark,
                        "last_stable_offset": each.last_stable_offset,
                        "open_transactions": each.open_transactions,
                        "size_bytes": each.size_bytes,
                        "journal_bytes": each.journal_bytes,
                    }
                    for each in topic.partitions
                ],
                "elsewhere": [{"partition": partition, "leader": node_id} for partition, node_id in topic.elsewhere],
            }
            for topic in page.topics
        ],
        "total": page.total,
        "next_after": page.next_after,
    }


def group(view: GroupView) -> Document:
    return {
        "group": view.group,
        "state": view.state,
        "members": view.members,
        "lag": sum(each.lag or 0 for each in view.partitions),
        "partitions": [
            {
                **_place(each.place),
                "committed": each.committed,
                "high_watermark": each.high_watermark,
                "lag": each.lag,
            }
            for each in view.partitions
        ],
    }


def sink(view: SinkView) -> Document:
    return {
        "sink": view.sink,
        "query": view.query,
        "run": view.run,
        "batch": view.batch,
        "records": view.records,
        "placements": [_placement(place, placement) for place, placement in view.placed],
        "partitions_total": view.parts_total,
        "open_lanes": view.open_lanes,
        "writing_ms": None if view.writing_s is None else _ms(view.writing_s),
        "used_ms": view.used_ms,
    }


def transactions(view: Transactions) -> Document:
    return {
        "open": view.open,
        "preparing": view.preparing,
        "copying": view.copying,
        "hung": sum(each.hung for each in view.live),
        "since_start": {
            "begun": view.begun_total,
            "committed": view.committed_total,
            "aborted": view.aborted_total,
        },
        "transactional_ids": view.transactional_ids,
        "live": [_live(each) for each in view.live],
        "ended": [_ended(each) for each in view.ended],
    }


def transactional_id(found: Description, place_of: Callable[[LogId], Place]) -> Document:
    return {
        "transactional_id": found.transactional_id,
        "producer_id": found.producer_id,
        "producer_epoch": found.epoch,
        "timeout_ms": found.timeout_ms,
        "state": found.state,
        "transaction": None if found.txid is None else str(found.txid),
        "began_ms": found.started_ms,
        "being_copied": [str(txid) for txid in found.being_copied],
        "committed": [
            {
                "transaction": str(each.txid),
                "records": sum(placement.count for placement in each.placements),
                "placements": [
                    _placement(place_of(placement.log), placement) for placement in each.placements[:PARTS_SHOWN]
                ],
                "partitions_total": len(each.placements),
            }
            for each in reversed(found.committed)
        ],
    }


def read_txid(text: str) -> TxId:
    """What `str(TxId)` wrote. Raises ValueError."""
    producer_id, epoch, number = map(int, text.split("."))
    return TxId(ProducerId(producer_id), ProducerEpoch(epoch), number)


def _live(it: LiveTransaction) -> Document:
    state, state_s = it.steps[-1]
    return {
        **_head(it.transactional_id, it.txid),
        "state": state.name,
        "hung": it.hung,
        "began_ms": it.began_ms,
        "age_ms": _ms(it.steps[0][1]),
        "in_state_ms": _ms(state_s),
        "silent_ms": _ms(it.silent_s),
        "timeout_ms": it.timeout_ms,
        "steps": [{"step": step.name, "ago_ms": _ms(ago_s)} for step, ago_s in it.steps],
        "records": it.records,
        "pinned_bytes": it.pinned_bytes,
        "partitions": [
            {**_place(part.place), "records": part.records, "pinned_bytes": part.pinned_bytes} for part in it.parts
        ],
        "partitions_total": it.parts_total,
    }


def _ended(it: EndedTransaction) -> Document:
    return {
        **_head(it.transactional_id, it.txid),
        "outcome": "committed" if it.cause is None else "aborted",
        "cause": it.cause,
        "began_ms": it.began_ms,
        "ended_ms": it.ended_ms,
        "steps": [{"step": step.name, "after_ms": _ms(after_s)} for step, after_s in it.steps],
        "records": it.records,
        "placements": [_placement(place, placement) for place, placement in it.placed],
        "partitions": [_place(place) for place in it.touched],
        "partitions_total": it.parts_total,
    }


def _head(transactional_id: str, txid: TxId) -> Document:
    return {
        "transactional_id": transactional_id,
        "transaction": str(txid),
        "producer_id": txid.producer_id,
        "producer_epoch": txid.epoch,
        "number": txid.number,
    }


def _place(place: Place) -> Document:
    named: Document = {"topic": place.topic, "partition": place.partition}
    return {**named, "deleted": True} if place.deleted else named


def _placement(place: Place, placement: Placement) -> Document:
    return {**_place(place), "base_offset": placement.base_offset, "count": placement.count}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)
