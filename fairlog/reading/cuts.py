"""Cuts: up to where logs can be read together without splitting a transaction.

The cut of now is taken in one step of the event loop, once all that was answered or decided before the
question is copied (invariant 13). Over several shards all of them take part in it (`shard/cutting.py`). One with a
limit lies in the past, waits for nothing, and comes from the index of cuts that the data logs of one shard keep
(`datalog/cuts.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fairlog.broker import Broker, Partitions
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
    partitions: Partitions, logs: Iterable[LogId], starts: Mapping[LogId, Offset], *, records_max: int
) -> Mapping[LogId, LogCut]:
    """A cut at most `records_max` records after the starts, all together; see `Partitions.cut_within`.

    A log without a start is read from its first offset. Raises StorageFailure, CorruptStorage.
    """
    wanted = {log: starts.get(log, now.log_start) for log, now in partitions.cut(logs).items()}
    return await partitions.cut_within(wanted, records_max=records_max)
