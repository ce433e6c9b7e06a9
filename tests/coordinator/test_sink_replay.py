"""What a replayed journal says of sinks: batches in doubt, fences, and snapshots of both."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from coordinator.group_records import (
    BeginRecord,
    CommittedPart,
    Expectation,
    ExpiredRecord,
    GroupRecord,
    PreparedPart,
    ProducerRecord,
    SinkAbortedRecord,
    SinkCommittedRecord,
    SinkForgottenRecord,
    SinkPrepareCommitRecord,
    SinkRecord,
)
from coordinator.lane_ids import lane_id
from coordinator.producer import Decided
from coordinator.replay import Replay, SinkCommitInDoubt, in_doubt, replay, snapshot_records
from coordinator.sink_commits import Fence, Part, SinkCommit
from coordinator.states import IdState
from fairlog_types import LeaderEpoch, LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId

LOG, OTHER = LogId("t", "ab" * 16, 0), LogId("t", "ab" * 16, 1)
SLOTS = 2


def txid(slot: int, epoch: int, number: int = 0) -> TxId:
    return TxId(ProducerId(100 + slot), ProducerEpoch(epoch), number)


def granted(slot: int, epoch: int) -> ProducerRecord:
    name = lane_id("s", slot)
    return ProducerRecord(
        name, name, ProducerId(100 + slot), ProducerEpoch(epoch), ProducerEpoch(-1), 1_000, 0, False, 5
    )


def prepared(batch: int, epoch: int, slots: int = SLOTS, query: str = "q") -> SinkPrepareCommitRecord:
    parts = tuple(PreparedPart(slot, txid(slot, epoch), {LOG: Expectation(LeaderEpoch(1), 2)}) for slot in range(slots))
    return SinkPrepareCommitRecord("s", query, batch, epoch + 1, parts, 7)


def visible(batch: int, epoch: int, slots: int = SLOTS) -> SinkCommittedRecord:
    parts = tuple(
        CommittedPart(slot, txid(slot, epoch), (Placement(LOG, Offset(10 * batch + 2 * slot), 2),))
        for slot in range(slots)
    )
    return SinkCommittedRecord("s", batch, parts, 8)


def fence(batch: int) -> Fence:
    return Fence(batch, (Placement(LOG, Offset(10 * batch), 2 * SLOTS),))


def lanes(epoch: int, slots: int = SLOTS) -> list[GroupRecord]:
    """What the lanes of a batch write: a grant and a transaction each."""
    found: list[GroupRecord] = []
    for slot in range(slots):
        found.append(granted(slot, epoch))
        found.append(BeginRecord(txid(slot, epoch), lane_id("s", slot), {LOG: LeaderEpoch(1)}, 6))
    return found


def test_replay_of_a_prepared_sink_commit_leaves_it_in_doubt_and_its_lanes_empty():
    """The fence is where it was; what the slots do next is no part of it."""
    found = replay([*lanes(0), prepared(0, 0), visible(0, 0), *lanes(1), prepared(1, 1), *lanes(2)])
    state = found.sinks["s"]
    assert (state.query, state.fence) == ("q", fence(0))
    (doubtful,) = in_doubt([found])
    assert isinstance(doubtful, SinkCommitInDoubt)
    assert [part.txid for part in doubtful.parts] == [txid(0, 1), txid(1, 1)]
    assert all(it.state is IdState.OPEN for it in found.producers.values()), "the next batch's"
    found = replay([*lanes(0), prepared(0, 0)])
    assert {(it.state, it.number) for it in found.producers.values()} == {(IdState.EMPTY, 1)}


def test_replay_of_a_visible_sink_commit_moves_the_fence_and_tells_each_lane_its_places():
    """What lies in one log without a hole is one place of the fence; each lane has its own."""
    found = replay([*lanes(0), prepared(0, 0), visible(0, 0)])
    assert in_doubt([found]) == []
    assert found.sinks["s"].fence == fence(0)
    lane = found.producers[lane_id("s", 1)]
    assert [it.placements for it in lane.committed] == [(Placement(LOG, Offset(2), 2),)]


def test_replay_of_an_aborted_sink_commit_leaves_the_fence_and_lets_the_batch_come_again():
    """Of other lanes; and a sink that has had nothing else is forgotten."""
    aborted = SinkAbortedRecord("s", 0, 9)
    found = replay([*lanes(0), prepared(0, 0), aborted])
    assert (found.sinks, in_doubt([found])) == ({}, [])
    found = replay([*lanes(0), prepared(0, 0), aborted, *lanes(1), prepared(0, 1)])
    assert [[part.txid for part in it.parts] for it in in_doubt([found])] == [[txid(0, 1), txid(1, 1)]]


def test_replay_of_a_forgotten_sink_knows_nothing_of_it():
    """Another query may begin at batch 0."""
    found = replay([*lanes(0), prepared(0, 0), visible(0, 0), SinkForgottenRecord("s"), prepared(0, 1, query="other")])
    assert (found.sinks["s"].query, found.sinks["s"].fence.batch) == ("other", -1)
    assert found.sinks["s"].prepared[0].batch == 0


any_records = st.lists(
    st.one_of(
        st.builds(granted, st.integers(0, 1), st.integers(0, 2)),
        st.builds(prepared, st.integers(0, 3), st.integers(0, 2), query=st.sampled_from("qr")),
        st.builds(visible, st.integers(0, 3), st.integers(0, 2)),
        st.builds(SinkAbortedRecord, st.just("s"), st.integers(0, 3), st.just(9)),
        st.builds(SinkRecord, st.just("s"), st.sampled_from("qr"), st.integers(0, 3), st.just(()), st.just(9)),
        st.just(SinkForgottenRecord("s")),
        st.just(ExpiredRecord(lane_id("s", 0))),
    ),
    max_size=14,
)


@given(any_records)
def test_replay_bears_any_records_of_sinks_and_every_record_twice(history):
    """A record that a snapshot has taken into account already may stand behind it."""
    once, twice = replay(history), replay([record for record in history for _ in range(2)])
    assert once.sinks == twice.sinks
    assert once.producers == twice.producers
    assert [it.parts for it in in_doubt([once])] == [it.parts for it in in_doubt([twice])]


ends = st.lists(st.sampled_from(["visible", "decided", "aborted", "forgotten"]), max_size=6)


def written(ends: list[str]) -> list[GroupRecord]:
    """What a sink writes: batches that end one way or another; SINK_COMMITTED in the order of the batches."""
    history: list[GroupRecord] = []
    batch, waiting = 0, []
    for epoch, end in enumerate(ends):
        if end == "forgotten":
            history += [*(visible(*it) for it in waiting), SinkForgottenRecord("s")]
            batch, waiting = 0, []
            continue
        history += [*lanes(epoch), prepared(batch, epoch)]
        if end == "aborted":
            history.append(SinkAbortedRecord("s", batch, 9))
            continue
        waiting.append((batch, epoch))
        batch += 1
        if end == "visible":
            history += [visible(*it) for it in waiting]
            waiting = []
    return history


def known(found: Replay) -> tuple[object, ...]:
    """All but times, and how a lane's last transaction ended: that is for EndTxn, which lanes do not do."""
    sinks = {name: dataclasses.replace(it, used_ms=0) for name, it in found.sinks.items()}
    producers = {name: it._replace(used_ms=0, last=None) for name, it in found.producers.items()}
    return sinks, producers, [it.parts for it in in_doubt([found])]


@given(ends, st.data())
def test_snapshot_of_sinks_replays_to_the_same_state_and_so_does_all_that_follows(ends, data):
    """Whether a snapshot was taken, and when, cannot be told from the state."""
    history = written(ends)
    cut = data.draw(st.integers(0, len(history)))
    taken = replay(history[:cut])
    snapshot = list(snapshot_records(taken.producers.values(), taken.sinks.values()))
    assert known(replay([*snapshot, *history[cut:]])) == known(replay(history))


@given(ends)
def test_snapshot_of_sinks_ahead_of_the_journal_is_the_state(ends):
    """The last records stand behind a snapshot that knows of them already."""
    history = written(ends)
    found = replay(history)
    snapshot = list(snapshot_records(found.producers.values(), found.sinks.values()))
    tail = [record for record in history[-1:] if not isinstance(record, ProducerRecord)]
    assert known(replay([*snapshot, *tail])) == known(found)


def sink_commit_in_doubt(number: int, *slots: int, batch: int = 0) -> SinkCommitInDoubt:
    parts = tuple(Part(slot, Decided(txid(slot, number), {}, 0, number)) for slot in slots)
    return SinkCommitInDoubt(SinkCommit("s", "q", batch, parts, 0, number), 0)
