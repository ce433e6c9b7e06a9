"""The ops of sinks: `join`, `commit` and `abort` of their batches; `sinks` and `forget`.

The coordinator decides; this module translates its answers into the protocol. It does only one thing more: a commit may
contain a consumer group's offsets. They are written as a writer of the batch would write them, in a lane of their own
(partition -1) that this node joins for the client, and this lane is named among the winners. So they are committed with
the batch or not at all. Each try has an attempt number of its own, the request's serial number, so a try whose client
has gone leaves nothing in the lane of the next one. If another broker has the group, it writes them.

With several brokers a sink belongs to one of them: that which coordinates its lanes' transactional ids. The others
refuse what is about it, and say which one it is. `sinks` tells those of the broker that is asked. While the engine of
several machines is away, all ops but `sinks` are refused at once, as new writes in Kafka's protocol are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

import structlog

from coordinator.answers import Effect, GrantedToEnd, Refusal
from coordinator.lane_ids import lane_id
from coordinator.sinks.messages import (
    BatchCommitted,
    CommitBatch,
    Lane,
    LaneGranted,
    SinkDescription,
    SinkRefusal,
    SinkRefused,
    Winner,
)
from fairlog import trail
from fairlog.broker import Broker
from fairlog.groups.interface import is_group_id
from fairlog.groups.offset_values import NewOffset, Sender, TransactionalProducer
from fairlog.groups.offsets_for_others import in_use, not_taken
from fairlog.native.calls import Call, have_others_asked, log_of
from fairlog.native.messages import NUMBER_MAX, PARTITION_MAX, Arguments, Refused, Result
from fairlog.native.permissions import DESCRIBE_SINK, DESCRIBE_TOPIC, READ_GROUP, READ_TOPIC, WRITE_SINK, may, require
from fairlog.trail import Action, Actor
from fairlog_types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, LogKind, Placement
from shard.offset_messages import OffsetsRefused, WhyNotWritten

log = structlog.get_logger()

OFFSETS_PARTITION = -1
"""The lane of a consumer group's offsets. No task has it."""

PLACEMENTS_MAX = 60_000
"""Rows of the answer to a commit: as many as fit into its frame, at 275 bytes for one with the longest topic name."""

OFFSETS_TIMEOUT_MS = 60_000
"""The time-out of the transaction in that lane, which lasts as long as one request. It is the default of Kafka's
producers.
"""


async def join(call: Call) -> Result:
    arguments = call.arguments
    sink, query, run, batch = _batch(arguments)
    lane = Lane(sink, query, run, batch, arguments.number("partition", most=PARTITION_MAX), arguments.number("attempt"))
    arguments.end()
    require(call, WRITE_SINK, sink)
    _require_writable(call, sink)
    match await call.broker.coordinator.join_batch(lane):
        case LaneGranted(transactional_id):
            return {"transactional_id": transactional_id}
        case BatchCommitted():
            return {"committed": True}
        case SinkRefused() as refused:
            raise _refused(refused)


async def commit(call: Call) -> Result:
    arguments = call.arguments
    sink, query, run, batch = _batch(arguments)
    rows = arguments.numbers("winners", (PARTITION_MAX, NUMBER_MAX, NUMBER_MAX))
    winners = [Winner(partition, attempt, records) for partition, attempt, records in rows]
    offsets = _offsets(arguments.fields("offsets")) if arguments.has("offsets") else None
    planned_ms = arguments.number("planned_ms") if arguments.has("planned_ms") else None
    arguments.end()
    require(call, WRITE_SINK, sink)
    if offsets is not None:
        group, offset_rows = offsets
        require(call, READ_GROUP, group)
        for name in dict.fromkeys(name for name, _, _ in offset_rows):
            require(call, READ_TOPIC, name)
    _require_writable(call, sink)
    if not call.broker.is_alone:
        await call.broker.cluster.catch_up()  # another broker may have made a topic a moment ago
    producer = None
    if offsets is not None:
        lane = Lane(sink, query, run, batch, OFFSETS_PARTITION, call.serial)
        producer = await _write_offsets(call, lane, *offsets)
        if producer is not None:
            winners.append(Winner(OFFSETS_PARTITION, call.serial, 1))
    message = CommitBatch(sink, query, run, batch, tuple(winners), planned_ms)
    outcome = await call.broker.coordinator.commit_batch(message)
    if isinstance(outcome, SinkRefused):
        if producer is not None and outcome.why.effect is Effect.NONE:
            await _give_up(call, producer)
        raise _refused(outcome)
    placements = _placements(call, outcome.placements)
    # The batch is committed: that the answer is too large must not be the answer.
    return {"already": outcome.already, "placements": placements if len(placements) <= PLACEMENTS_MAX else []}


async def abort(call: Call) -> Result:
    sink, query, run, batch = _batch(call.arguments)
    call.arguments.end()
    require(call, WRITE_SINK, sink)
    _require_writable(call, sink)
    _raise_if_refused(await call.broker.coordinator.abort_batch(sink, query, run, batch))
    return {}


async def sinks(call: Call) -> Result:
    call.arguments.end()
    broker = call.broker
    found: dict[str, object] = {
        "sinks": [_described(call, it) for it in broker.coordinator.sinks() if may(call, DESCRIBE_SINK, it.sink)]
    }
    if not broker.is_alone:
        found["others"] = [
            [it.node_id, it.host, it.port] for it in broker.brokers(call.client.listener.name) if not broker.is_at(it)
        ]
    return found


async def forget(call: Call) -> Result:
    sink = call.arguments.text("sink")
    call.arguments.end()
    who = Actor(str(call.client.principal), call.client.peer, "native")
    try:
        require(call, WRITE_SINK, sink)
        _require_writable(call, sink)
        _raise_if_refused(await call.broker.coordinator.forget_sink(sink))
    except Refused as refused:
        trail.note(who, Action.FORGET_SINK, sink, refused.kind)
        raise
    trail.note(who, Action.FORGET_SINK, sink)
    return {}


def _batch(arguments: Arguments) -> tuple[str, str, str, int]:
    return arguments.text("sink"), arguments.text("query"), arguments.text("run"), arguments.number("batch")


def _require_writable(call: Call, sink: str) -> None:
    """Raises Refused if another broker has the sink, or nothing can be written of it here now; HangUp.

    All lanes of a sink are of one group, so one id stands for them all.
    """
    broker, any_lane = call.broker, lane_id(sink, 0)
    if broker.coordinates(any_lane):
        if broker.appends_wait():
            raise Refused("not-available", f"sink {sink!r}: the replicated log does not answer: ask again")
        return
    there = broker.coordinator_of(any_lane, call.client.listener.name)
    if there is None or broker.is_at(there):  # this one does not serve the shard yet, or no more
        have_others_asked(broker)
        raise Refused("not-available", f"the broker of sink {sink!r} has not started yet: ask again")
    sentence = f"sink {sink!r} is at broker {there.node_id}, {there.host}:{there.port}: ask there"
    raise Refused("not-coordinator", sentence, {"host": there.host, "port": there.port})


# --- a consumer group's offsets -------------------------------------------------------------------


def _offsets(arguments: Arguments) -> tuple[str, list[tuple[str, int, int]]]:
    """The group, and the offsets to commit for it: topic, partition, offset. Raises Refused.

    Whether the partitions exist is checked later: a batch that is already committed is answered even if a topic has
    been deleted.
    """
    group = arguments.text("group")
    if not is_group_id(group):
        raise Refused("bad-request", f"commit: offsets.group {group!r} is too long for a group's id")
    rows = arguments.offsets("partitions")
    arguments.end()
    if not rows:
        raise Refused("bad-request", "commit: offsets.partitions is empty")
    return group, rows


async def _write_offsets(
    call: Call, lane: Lane, group: str, rows: Sequence[tuple[str, int, int]]
) -> TransactionalProducer | None:
    """Write the offsets in a lane of the batch. Returns the writer; None if the batch is committed already.

    Raises Refused; then the lane is empty again.
    """
    broker = call.broker
    match await broker.coordinator.join_batch(lane):
        case LaneGranted(transactional_id):
            pass
        case BatchCommitted():
            return None
        case SinkRefused() as refused:
            raise _refused(refused)
    offsets = [
        NewOffset((log_of(broker, name, partition).topic, partition), offset, -1, "")
        for name, partition, offset in rows
    ]
    if broker.coordinates_group(group) and not broker.groups.is_empty(group):
        raise Refused("group-in-use", in_use(group))
    granted = await broker.coordinator.init_producer_id(
        transactional_id,
        min(OFFSETS_TIMEOUT_MS, broker.settings.transactions.max_timeout_ms),
        NO_PRODUCER_ID,
        NO_PRODUCER_EPOCH,
        call.connection,
    )
    assert not isinstance(granted, GrantedToEnd), "nothing is kept that was not asked for"
    if isinstance(granted, Refusal):
        raise _not_written(group, not_taken(group, granted))
    producer = TransactionalProducer(transactional_id, granted.producer_id, granted.epoch, call.connection)
    refused = await _written(broker, producer, group, offsets)
    if refused is not None:
        await _give_up(call, producer)
        raise _not_written(group, refused)
    return producer


async def _written(
    broker: Broker, producer: TransactionalProducer, group: str, offsets: Sequence[NewOffset]
) -> OffsetsRefused | None:
    place = broker.offsets.log_of(group)
    added = await broker.coordinator.add_logs(
        producer.transactional_id, producer.producer_id, producer.epoch, [place], producer.connection
    )
    refusal = added if isinstance(added, Refusal) else added[place]
    if refusal is not None:
        return not_taken(group, refusal)
    if broker.coordinates_group(group):
        refusal = await broker.offsets.commit_in_transaction(group, Sender(), producer, offsets)
        return None if refusal is None else not_taken(group, refusal)
    assert broker.other_offsets is not None, "there are other brokers"
    return await broker.other_offsets.write(
        broker.shard_of_group(group),
        group,
        producer.transactional_id,
        producer.producer_id,
        producer.epoch,
        [(*new.partition, new.offset) for new in offsets],
    )


async def _give_up(call: Call, producer: TransactionalProducer) -> None:
    """Abort the lane. If this fails, its time-out does it."""
    refusal = await call.broker.coordinator.end(
        producer.transactional_id, producer.producer_id, producer.epoch, False, call.connection
    )
    if refusal is not None:
        log.info("offsets are left to their time-out", transactional_id=producer.transactional_id, why=refusal.value)


_KINDS = {
    WhyNotWritten.GROUP_IN_USE: "group-in-use",
    WhyNotWritten.REFUSED: "offsets-refused",
    WhyNotWritten.STORAGE: "storage",
    WhyNotWritten.STARTED_AGAIN: "not-available",
}


def _not_written(group: str, refused: OffsetsRefused) -> Refused:
    """The refusal for offsets that are not in the batch: it is not committed without them."""
    if refused.why is WhyNotWritten.STARTED_AGAIN:
        return Refused(_KINDS[refused.why], f"the broker of the consumer group {group}: {refused.reason}; ask again")
    return Refused(_KINDS[refused.why], refused.reason)


# --- the coordinator's words in the protocol's ----------------------------------------------------------


def kind_of(why: SinkRefusal) -> str:
    """A refusal's name in the protocol."""
    return why.name.lower().replace("_", "-")


def _refused(refused: SinkRefused) -> Refused:
    return Refused(kind_of(refused.why), refused.sentence)


def _raise_if_refused(outcome: SinkRefused | None) -> None:
    if outcome is not None:
        raise _refused(outcome)


def _described(call: Call, it: SinkDescription) -> Result:
    return {
        "sink": it.sink,
        "query": it.query,
        "run": it.run,
        "batch": it.batch,
        "placements": _placements(call, it.placements),
        "open_lanes": list(it.open_lanes),
        "used_ms": it.used_ms,
    }


def _placements(call: Call, placements: Iterable[Placement]) -> list[list[str | int]]:
    """The places that a client can read: not those of offsets, none in deleted topics, and none in topics that it may
    not describe.
    """
    rows: list[list[str | int]] = []
    for placement in placements:
        place = placement.log
        is_topic = place.kind == LogKind.TOPIC.value
        topic = call.broker.cluster.topic_by_id(UUID(hex=place.topic)) if is_topic else None
        if topic is not None and may(call, DESCRIBE_TOPIC, topic.name):
            rows.append([topic.name, place.partition, placement.base_offset, placement.count])
    return sorted(rows)
