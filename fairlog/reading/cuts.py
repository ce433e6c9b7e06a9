"""Cuts: up to where logs can be read together without splitting a transaction.

The cut of now is taken in one step of the event loop, once all that was answered or decided before the
question is copied (invariant 13). Over several shards all of them take part in it (`shard/cutting.py`). One with a
limit lies in the past, waits for nothing, and comes from the index of cuts of the data logs (`datalog/cuts.py`), over
several shards from all their indexes (`shard/past_cuts.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairlog.broker import Broker
from fairlog_types import LogId, Offset
from partition.answers import LogCut
from shard.cut_messages import NoCut
from shard.ends import AskedEnds


async def cut_now(broker: Broker, logs: Collection[LogId]) -> Mapping[LogId, LogCut] | NoCut:
    """The newest cut of these logs, with all that was answered before the question; without those that nobody leads."""
    if broker.cutting is not None:
        cuts = await broker.cutting.cut(tuple(logs))
        return cuts if isinstance(cuts, NoCut) else cuts.by_log
    ends = await AskedEnds.ask(broker, logs)
    for log in logs:
        refusal = await ends.reached(log)
        if refusal is not None:
            return NoCut(refusal.value)
    return broker.partitions.cut(logs)


async def cut_within(
    broker: Broker, logs: Collection[LogId], starts: Mapping[LogId, Offset], *, records_max: int
) -> Mapping[LogId, LogCut] | NoCut:
    """A cut at most `records_max` records after the starts, all together, without the logs that nobody leads.

    See `Partitions.cut_within`. A log without a start is read from its first offset. Raises StorageFailure,
    CorruptStorage.
    """
    wanted = {log: starts.get(log, Offset(0)) for log in logs}
    if broker.past_cuts is None:
        return await broker.partitions.cut_within(wanted, records_max=records_max)
    found = await broker.past_cuts.find(wanted, records_max=records_max)
    if found is None:
        return await cut_now(broker, logs)
    return found if isinstance(found, NoCut) else found.by_log
