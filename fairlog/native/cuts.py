"""The ops `topics` and `cut`: what there is to read, and up to where without splitting a transaction.

The cut of now is read from the leaders in one step of the event loop. One with a limit lies in the past, and comes from
the index of cuts that the data logs keep (`datalog/cuts.py`). Topics are chosen by name or partition; whoever wants a
pattern asks for the `topics` first, and matches them himself: one regular expression of a stranger could hold the event
loop for years.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlog.native.calls import Call, log_of, topic_of
from fairlog.native.messages import Refused, Result
from fairlog_types import LogId


async def topics(call: Call) -> Result:
    call.arguments.end()
    return {"topics": [[topic.name, topic.partitions] for topic in call.broker.cluster.topics()]}


async def cut(call: Call) -> Result:
    """The first offset, the cut's end and what can be read, of each partition that is asked for."""
    selected = _selected(call)
    starts = _starts(call, selected) if arguments.has("starts") else dict[LogId, Offset]()
    records_max = arguments.number("limit", least=1) if arguments.has("limit") else None
    arguments.end()
    leaders = call.broker.leaders
    found = leaders.cut(selected)
    if records_max is not None:
        wanted = {log: starts.get(log, now.log_start) for log, now in found.items()}
        found = await leaders.cut_within(wanted, records_max=records_max)
    rows: list[list[str | int]] = []
    for log, (topic, partition) in selected.items():
        if log not in found:
            raise Refused("unknown-topic", f"topic {topic} is being deleted, or made")
        first, high = found[log]
        rows.append([topic, partition, first, high, high])
    return {"partitions": rows}


def _selected(call: Call) -> Mapping[LogId, tuple[str, int]]:
    """The logs that are asked for, and what their partitions are called. Raises Refused."""
    broker, arguments = call.broker, call.arguments
    if arguments.has("topics") == arguments.has("partitions"):
        raise Refused("bad-request", "cut: either topics or partitions says what is to be cut")
    if arguments.has("partitions"):
        asked = arguments.partitions("partitions")
        return {log_of(broker, name, partition): (name, partition) for name, partition in asked}
    found = [topic_of(broker, name) for name in arguments.texts("topics")]
    return {log: (topic.name, log.partition) for topic in found for log in topic.logs()}
