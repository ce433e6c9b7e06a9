"""The ops `topics` and `cut`: which topics there are, and up to where they can be read without splitting a transaction.

`fairlog.reading.cuts` finds the cut. Topics are chosen by name or partition. A client that has a pattern asks for the
`topics` first and matches them itself: a regular expression from an unknown client could hold the event loop for years.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import trio

from fairlog.broker import Broker
from fairlog.native.calls import Call, have_others_asked, log_of, topic_of
from fairlog.native.messages import Refused, Result
from fairlog.native.permissions import DESCRIBE_TOPIC, may, require
from fairlog.reading import cuts
from fairlog_types import LogId, Offset
from partition.answers import LogCut
from shard.cut_messages import NoCut

OVER_SHARDS_MAX = 100_000
"""Partitions of a cut over several shards: what they say of it must fit into their messages."""

LED_SOON_S = 5.0
"""For so long a cut waits for brokers that have not heard yet of a topic that another one has made."""
LED_SOON_POLL_S = 0.02

ROWS_AT_ONCE = 500
"""The number of partitions that are looked up, or written into an answer, before other tasks run."""


async def topics(call: Call) -> Result:
    call.arguments.end()
    await call.broker.cluster.catch_up()
    topics = call.broker.cluster.topics()
    return {"topics": [[it.name, it.partitions] for it in topics if may(call, DESCRIBE_TOPIC, it.name)]}


async def cut(call: Call) -> Result:
    """The first offset, the cut's end and the readable end of each requested partition; the ids of their topics."""
    arguments = call.arguments
    await call.broker.cluster.catch_up()  # another broker may have made the topic a moment ago
    selected = await _selected(call)
    starts = _starts(call, selected) if arguments.has("starts") else dict[LogId, Offset]()
    records_max = arguments.number("limit", least=1) if arguments.has("limit") else None
    arguments.end()
    _require_owner(call)
    if not call.broker.is_alone and len(selected) > OVER_SHARDS_MAX:
        raise Refused("too-large", f"cut: {len(selected)} partitions; over several processes at most {OVER_SHARDS_MAX}")
    found = await _cut(call.broker, selected, starts, records_max)
    rows: list[list[str | int]] = []
    topic_ids: dict[str, str] = {}
    for log, (topic, partition) in selected.items():
        await _let_others_run(len(rows))
        if log not in found:
            raise Refused("unknown-topic", f"topic {topic} is being created or deleted at the moment")
        rows.append([topic, partition, *found[log]])
        topic_ids[topic] = log.topic
    return {"partitions": rows, "topic_ids": topic_ids}


def _require_owner(call: Call) -> None:
    """Raises Refused if this broker owns no shard: those that do are in touch with each other, any of them cuts.

    Raises HangUp if it may have been told so of itself alone.
    """
    broker = call.broker
    if broker.owns:
        return
    there = broker.taker_of_cuts(call.client.listener.name)
    if there is None or broker.is_at(there):  # this one does not serve the shard yet, or no more
        have_others_asked(broker)
        raise Refused("not-copied", "cut: a shard has no owner at the moment: ask again")
    sentence = f"cuts are taken at broker {there.node_id}, {there.host}:{there.port}: ask there"
    raise Refused("not-coordinator", sentence, {"host": there.host, "port": there.port})


async def _cut(
    broker: Broker, logs: Collection[LogId], starts: Mapping[LogId, Offset], records_max: int | None
) -> Mapping[LogId, LogCut]:
    """The newest cut, or the newest within the limit. Raises Refused."""
    deadline = trio.current_time() + LED_SOON_S
    while True:
        if records_max is None:
            found = await cuts.cut_now(broker, logs)
        else:
            found = await cuts.cut_within(broker, logs, starts, records_max=records_max)
        if isinstance(found, NoCut):
            raise Refused("not-copied", f"cut: {found.reason}")
        are_led_soon = not broker.is_alone and any(
            log not in found and broker.cluster.shard_of(log) is not None for log in logs
        )
        if not are_led_soon or trio.current_time() >= deadline:
            return found
        await trio.sleep(LED_SOON_POLL_S)


async def _selected(call: Call) -> Mapping[LogId, tuple[str, int]]:
    """The requested logs, and the names of their partitions. Raises Refused."""
    broker, arguments = call.broker, call.arguments
    if arguments.has("topics") == arguments.has("partitions"):
        raise Refused("bad-request", "cut: either topics or partitions must be given")
    if arguments.has("partitions"):
        asked = arguments.partitions("partitions")
        for name in dict.fromkeys(name for name, _ in asked):
            require(call, DESCRIBE_TOPIC, name)
        return {log_of(broker, name, partition): (name, partition) for name, partition in asked}
    logs: dict[LogId, tuple[str, int]] = {}
    for name in arguments.texts("topics"):
        require(call, DESCRIBE_TOPIC, name)
        for log in topic_of(broker, name).logs():
            await _let_others_run(len(logs))
            logs[log] = name, log.partition
    return logs


async def _let_others_run(count: int) -> None:
    """Let other tasks run now and then, where there may be very many partitions; the cut itself is made in one step."""
    if count % ROWS_AT_ONCE == 0:
        await trio.lowlevel.checkpoint()


def _starts(call: Call, selected: Mapping[LogId, tuple[str, int]]) -> Mapping[LogId, Offset]:
    """The reader's positions in partitions of the cut. Raises Refused."""
    starts: dict[LogId, Offset] = {}
    for name, partition, offset in call.arguments.offsets("starts"):
        require(call, DESCRIBE_TOPIC, name)
        log = log_of(call.broker, name, partition)
        if log not in selected:
            raise Refused("bad-request", f"cut: starts has {name}-{partition}, which is not part of the cut")
        starts[log] = Offset(offset)
    return starts
