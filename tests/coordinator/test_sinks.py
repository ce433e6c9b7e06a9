"""The rules of a sink, by themselves: ids of lanes, slots, who may speak, places."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.granting import TRANSACTIONAL_ID_BYTES_MAX
from coordinator.lane_ids import LANE_PREFIX, is_lane, lane_id, slot_and_sink
from coordinator.sink_commits import Fence, SinkCommit, joined_places
from coordinator.sinks import sink as sink_module
from coordinator.sinks.messages import SinkRefusal, Winner
from coordinator.sinks.sink import LANES_MAX, REPLACED_KEPT, SINK_BYTES_MAX, OpenLane, Sink, check_lane
from coordinator.transaction_groups import group_of
from fairlog_types import LogId, Offset, Placement, ProducerEpoch, ProducerId, TxId

from .sinks import commit, lane, refused


@given(st.text(min_size=1), st.integers(0, LANES_MAX))
def test_lane_id_reads_back(name, slot):
    """Whatever the sink is called; and all of a sink's are of one group, which no other id is of."""
    made = lane_id(name, slot)
    assert is_lane(made)
    assert slot_and_sink(made) == (slot, name)
    assert group_of(made, "::") == group_of(lane_id(name, 0), "") != group_of(name, "::")


@given(st.text())
def test_id_that_is_no_lane_is_none(text):
    """Nothing but what we make is taken for a lane, and only the prefix is reserved."""
    for transactional_id in (text, LANE_PREFIX + text):
        found = slot_and_sink(transactional_id)
        assert found is None or lane_id(found[1], found[0]) == transactional_id
        assert group_of(transactional_id, "") == transactional_id or found is not None
    assert is_lane(text) == text.startswith(LANE_PREFIX)


def test_longest_lane_id_can_be_recorded():
    """A sink of the longest name, in its last slot."""
    assert len(lane_id("\u00e9" * (SINK_BYTES_MAX // 2), LANES_MAX - 1).encode()) <= TRANSACTIONAL_ID_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), unique=True))
def test_joined_places_cover_the_same_offsets_and_leave_no_two_that_touch(offsets):
    """Single records in, the fewest pieces out."""
    logs = [LogId("t", "ab" * 16, partition) for partition in range(3)]
    places = joined_places(Placement(logs[log], Offset(offset), 1) for log, offset in offsets)
    covered = [
        (it.log.partition, offset) for it in places for offset in range(it.base_offset, it.base_offset + it.count)
    ]
    assert covered == sorted(offsets)
    for one, other in itertools.pairwise(places):
        assert one.log != other.log or one.base_offset + one.count < other.base_offset


def test_runs_that_were_replaced_are_remembered_a_while():
    """So that a zombie is refused; their number is bounded."""
    sink = Sink("s", "q")
    for number in range(REPLACED_KEPT + 2):
        assert sink.refusal("q", f"r{number}") is None
        sink.take_over("q", f"r{number}")
    refused(sink.refusal("q", "r1"), SinkRefusal.OLD_RUN)
    assert sink.refusal("q", "r0") is None
    assert sink.take_over("q", f"r{REPLACED_KEPT + 1}") == ()


def test_lanes_beyond_the_most_are_refused(monkeypatch):
    """Each is an id that partitions remember something of."""
    monkeypatch.setattr(sink_module, "LANES_MAX", 3)
    sink = Sink("s", "q")
    opened = [sink.open_lane(lane(number), 0.0) for number in range(3)]
    why = refused(sink.open_lane(lane(3), 0.0), SinkRefusal.TOO_MANY_LANES)
    assert "fewer partitions" in why
    sink.end(opened[1:2])
    again = sink.open_lane(lane(3), 0.0)
    assert isinstance(again, OpenLane)
    assert again.slot == 1


def test_names_and_numbers_that_can_be():
    """The bounds themselves are within."""
    for good in (
        lane(-1), lane(batch=2**63 - 1), lane(attempt=2**63 - 1), lane(sink="s" * SINK_BYTES_MAX), lane(sink="Aß .∂"),
    ):  # fmt: skip
        assert check_lane(good) is None


class SinkMachine(RuleBasedStateMachine):
    """Lanes come and go, batches are decided and become visible: slots, fence and lookups stay in step."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = Sink("s", "q")
        self.sink.take_over("q", "r0")
        self.runs = itertools.count(1)
        self.attempts = itertools.count()
        self.open: dict[int, OpenLane] = {}
        self.most = 0
        self.decided = -1

    @rule(partition=st.integers(-1, 3), ahead=st.integers(1, 2))
    def join(self, partition: int, ahead: int) -> None:
        writer = lane(partition, next(self.attempts), batch=self.decided + ahead, run=self.sink.run)
        opened = self.sink.open_lane(writer, 0.0)
        assert isinstance(opened, OpenLane)
        assert opened.slot not in self.open, "a slot is not given twice"
        self.open[opened.slot] = opened
        self.most = max(self.most, len(self.open))

    @rule()
    def new_run(self) -> None:
        assert set(map(id, self.sink.take_over("q", f"r{next(self.runs)}"))) == set(map(id, self.open.values()))
        self.open.clear()

    @rule(ahead=st.integers(1, 2))
    def decide(self, ahead: int) -> None:
        batch = self.decided + ahead
        named = [it for it in self.open.values() if it.lane.batch == batch]
        winners = tuple((it.lane.partition, it.lane.attempt, 1) for it in named)
        found = self.sink.winners(commit(*winners, batch=batch, run=self.sink.run))
        assert [(Winner(*winner), lane) for winner, lane in zip(winners, named, strict=True)] == list(found)
        group = SinkCommit("s", "q", batch, (), 0, batch + 1)
        self.sink.preparing = group
        decided = self.sink.decide(group)
        for it in self.sink.end(self.sink.of_batches_through(batch)):
            assert it.lane.batch <= batch
            del self.open[it.slot]
        self.decided = batch
        assert self.sink.fence is decided
        assert not decided.placements, "where it is, nobody is told before it is visible"

    @precondition(lambda self: self.sink.under_way)
    @rule()
    def become_visible(self) -> None:
        oldest = self.sink.under_way[0]
        places = (Placement(LogId("t", "ab" * 16, 0), Offset(oldest.batch), 1),)
        oldest.copied = {TxId(ProducerId(1), ProducerEpoch(0), oldest.batch): places}
        assert oldest.placements == places
        self.sink.record_visible(oldest.placements)
        assert self.sink.visible == Fence(oldest.batch, places)

    @invariant()
    def lanes_are_found(self) -> None:
        assert {it.slot for it in self.sink.lanes} == set(self.open)
        for slot, it in self.open.items():
            assert self.sink.lane_in(slot) is it
            assert self.sink.lane_of(it.lane) is it
            assert it.lane.batch > self.decided
        assert max(self.open, default=0) < max(self.most, 1), "no more slots than were ever open at once"

    @invariant()
    def fence_holds(self) -> None:
        assert self.sink.fence.batch == self.decided
        answer = self.sink.repeated(self.decided)
        assert self.decided < 0 or answer == self.sink.fence
        assert self.sink.repeated(self.decided + 1) is None
        refused(self.sink.repeated(self.decided - 1), SinkRefusal.SET_BACK)
        state = self.sink.state()
        assert [it.batch for it in state.prepared] == sorted(it.batch for it in state.prepared)
        assert all(it.batch > state.fence.batch for it in state.prepared)


TestSink = SinkMachine.TestCase
