"""Planted bugs in sinks, whose batches are committed as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import trio

import coordinator.housekeeping
import coordinator.recovery
import coordinator.replay
import coordinator.sinks.service
import coordinator.sinks.sink
from coordinator import events as ev
from coordinator.answers import Refusal
from coordinator.sinks.committing import Committing
from coordinator.sinks.sink import Sink
from tests.simulation.planting import Mutation, does_not_wait, patched


def _fence_is_forgotten(found: Any, record: Any) -> None:
    before = found.sinks.get(record.sink)
    _REAL_FOLD_SINK_COMMITTED(found, record)
    if before is not None:
        found.sinks[record.sink] = replace(found.sinks[record.sink], fence=before.fence)


_REAL_FOLD_SINK_COMMITTED = coordinator.replay._fold_sink_committed


def _snapshot_without_sinks(producers: Any, _sinks: Any = ()) -> Any:
    return _REAL_SNAPSHOT_RECORDS(producers)


_REAL_SNAPSHOT_RECORDS = coordinator.replay.snapshot_records


def _any_count_is_right(self: Committing, transactions: Any, counts: Any, number: int) -> Any:
    found = []
    for it in transactions:
        records = sum(expected.records for expected in counts[it.message.txid].values())
        found.append(it._replace(winner=replace(it.winner, records=records)))
    return _REAL_COUNTED(self, found, counts, number)


_REAL_COUNTED = Committing._counted


def _grants_to_anybody(lane: Any, producer: Any, event: Any) -> Any:
    if isinstance(event, ev.Init) and lane is not None:
        lane.claimed_by = lane.granted = None
    return _REAL_ADMIT(lane, producer, event)


def _lets_lanes_commit(lane: Any, producer: Any, event: Any) -> Any:
    refused = _REAL_ADMIT(lane, producer, event)
    return None if refused is Refusal.LANE else refused


_REAL_ADMIT = coordinator.sinks.sink.admit


async def _decides_the_batch_before_its_record_is_durable(self: Committing, entry: Any, *more: Any) -> Any:
    with mock.patch.object(self._executor.journals[entry.journal], "flush", does_not_wait):
        return await _REAL_PREPARED(self, entry, *more)


_REAL_PREPARED = Committing._prepared


async def _is_visible_at_once(*_: object) -> bool:
    await trio.lowlevel.checkpoint()
    return True


def _no_batch_is_in_doubt(replays: Any) -> Any:
    return [it for it in _REAL_IN_DOUBT(replays) if isinstance(it, coordinator.replay.InDoubt)]


_REAL_IN_DOUBT = coordinator.replay.in_doubt


def _any_query_may_write(self: Sink, _query: str, run: str) -> Any:
    return _REAL_SINK_REFUSAL(self, self.query, run)


_REAL_SINK_REFUSAL = Sink.refusal


MUTATIONS = (
    Mutation(
        "fence-not-recovered",
        "a start forgets which batch a sink has had",
        patched(coordinator.replay, "_fold_sink_committed", _fence_is_forgotten),
    ),
    Mutation(
        "fence-not-in-snapshot",
        "a group journal's snapshot leaves out the sinks",
        patched(coordinator.housekeeping, "snapshot_records", _snapshot_without_sinks),
    ),
    Mutation(
        "fence-not-asked",
        "a batch that the sink has had may be committed again",
        patched(Sink, "repeated", lambda *_: None),
    ),
    Mutation(
        "losers-not-dropped",
        "a commit leaves the lanes open that have lost",
        patched(Committing, "drop", does_not_wait),
    ),
    Mutation(
        "lane-count-unchecked",
        "a commit does not look how many records a lane holds",
        patched(Committing, "_counted", _any_count_is_right),
    ),
    Mutation(
        "lane-granted-twice",
        "a lane's id is granted to whoever asks for it",
        patched(coordinator.sinks.service, "admit", _grants_to_anybody),
    ),
    Mutation(
        "lane-commits-alone",
        "EndTxn commits a lane",
        patched(coordinator.sinks.service, "admit", _lets_lanes_commit),
    ),
    Mutation(
        "batch-not-flushed",
        "a batch is answered before SINK_PREPARE_COMMIT is on disk",
        patched(Committing, "_prepared", _decides_the_batch_before_its_record_is_durable),
    ),
    Mutation(
        "batch-answered-at-its-decision",
        "a batch is answered before it is copied",
        patched(Committing, "until_visible", _is_visible_at_once),
    ),
    Mutation(
        "batch-in-doubt-forgotten",
        "a start does not finish the batch that was being committed",
        patched(coordinator.recovery, "in_doubt", _no_batch_is_in_doubt),
    ),
    Mutation(
        "another-query-accepted",
        "any query may write to a sink",
        patched(Sink, "refusal", _any_query_may_write),
    ),
)
