"""What follows from reports: who is up, who is in sync, how far a stream may be trimmed. And the stream of them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
import structlog.testing
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster.cluster_records import NodeNumber
from fairlog.cluster.report_entry import NotAReport, Report, decode_report_untrusted, encode_report
from fairlog.cluster.reports import (
    FOLLOWING_AGE_S,
    IN_SYNC_AGE_S,
    JOINING_AGE_S,
    JOINING_S_MAX,
    HeardCopy,
    PastEnds,
    Reports,
    Strange,
    in_sync,
    is_following,
    lags,
    trim_to,
)
from fairlog.cluster.reports_log import KEPT_S, LAST_S, REPORT_EVERY_S, ReportsLog
from fairlog_types import LeaderEpoch, ShardNumber
from shard.progress import CopyProgress, CopyReport, Role
from stream.engine import StoredEntry, Stream, StreamPosition
from stream.fold import NOTHING_READ, FoldState
from tests.stream.model_engine import Faults, ModelCluster, open_model

CLUSTER = UUID(int=5)
ONE, TWO, THREE, FOUR = map(NodeNumber, (1, 2, 3, 4))
SHARD = ShardNumber(3)
RUN, LATER_RUN = bytes(16), bytes([1]) * 16


def at(position: int) -> StreamPosition:
    return StreamPosition(position)


def copy(role: Role = Role.REPLICA, *, taken: int = 100, synced: int = 100, epoch: int = 1) -> CopyReport:
    return CopyReport(role, LeaderEpoch(epoch), at(taken), at(synced))


def heard(
    synced: int, *, role: Role = Role.REPLICA, taken: int = 1000, age_s: float = 1.0, unmoved_s: float = 1.0
) -> HeardCopy:
    return HeardCopy(role, LeaderEpoch(1), at(taken), at(synced), age_s, unmoved_s)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0
        self._position = -1
        self.reports = Reports(CLUSTER, lambda: self.now_s)

    def read(self, node: NodeNumber, number: int, copies: Mapping[ShardNumber, CopyReport], run: bytes = RUN) -> None:
        assert self.read_entry(encode_report(CLUSTER, Report(node, run, number, copies))) == []

    def read_entry(self, data: bytes) -> object:
        self._position += 1
        return self.reports.take([StoredEntry(at(self._position), data)])


# --- the last report of each node ---


def test_nodes_are_up_that_have_reported_within_the_given_time() -> None:
    clock = Clock()
    clock.read(TWO, 1, {})
    clock.now_s += 5
    clock.read(ONE, 1, {})
    assert clock.reports.up(5.0) == [ONE, TWO]
    assert clock.reports.up(4.9) == [ONE]
    clock.now_s += 6
    assert clock.reports.up(5.0) == []


def test_node_hears_for_as_long_as_there_is_no_gap_in_its_own_reports() -> None:
    """Neither before the first one, nor after a gap, nor within one that has not ended."""
    world = Clock()
    assert not world.reports.hears(ONE, 0.0)
    for number in range(6):
        world.read(ONE, number + 1, {})
        assert [world.reports.hears(ONE, 2.0 * number), world.reports.hears(ONE, 2.0 * number + 1)] == [True, False]
        world.now_s += 2
    world.now_s += 4
    assert not world.reports.hears(ONE, 0.0)
    world.read(ONE, 7, {})
    assert [world.reports.hears(ONE, 0.0), world.reports.hears(ONE, 1.0)] == [True, False]


def test_copies_of_a_shard_are_those_of_the_last_report_with_its_age() -> None:
    clock = Clock()
    clock.read(ONE, 1, {SHARD: copy(taken=50, synced=40), ShardNumber(0): copy()})
    clock.read(TWO, 1, {ShardNumber(0): copy()})
    clock.now_s += 2
    clock.read(ONE, 2, {SHARD: copy(Role.OWNER, taken=60, synced=40, epoch=2)})
    clock.now_s += 1
    assert clock.reports.of(SHARD) == {ONE: HeardCopy(Role.OWNER, LeaderEpoch(2), at(60), at(40), 1.0, 3.0)}
    assert list(clock.reports.of(ShardNumber(0))) == [TWO]


def test_report_that_comes_late_or_twice_does_not_count() -> None:
    clock = Clock()
    clock.read(ONE, 2, {SHARD: copy(taken=60)})
    clock.now_s += 3
    clock.read(ONE, 1, {SHARD: copy(taken=50)})
    clock.read(ONE, 2, {SHARD: copy(taken=50)})
    (found,) = clock.reports.of(SHARD).values()
    assert (found.taken, found.age_s) == (60, 3.0)


def test_report_of_a_later_run_counts_whatever_its_number() -> None:
    """The node has lost its disk: it has no copy any more."""
    clock = Clock()
    clock.read(ONE, 500, {SHARD: copy()})
    clock.read(ONE, 1, {}, LATER_RUN)
    assert clock.reports.of(SHARD) == {}


def test_strange_entries_are_named_and_empty_ones_are_not() -> None:
    clock = Clock()
    assert clock.read_entry(b"") == []
    assert clock.read_entry(b"junk") == [Strange(at(1), NotAReport.FOREIGN)]
    assert clock.read_entry(encode_report(UUID(int=6), Report(ONE, RUN, 1, {}))) == [Strange(at(2), NotAReport.CLUSTER)]
    assert clock.reports.up(1.0) == []


def test_lag_is_what_the_owner_of_the_newest_epoch_has_more() -> None:
    copies = {
        ONE: HeardCopy(Role.OWNER, LeaderEpoch(4), at(90), at(1), 1.0, 1.0),
        TWO: HeardCopy(Role.OWNER, LeaderEpoch(5), at(70), at(1), 1.0, 1.0),
        THREE: HeardCopy(Role.REPLICA, LeaderEpoch(5), at(64), at(1), 1.0, 1.0),
        FOUR: HeardCopy(Role.REPLICA, LeaderEpoch(5), at(71), at(1), 1.0, 1.0),
    }
    assert lags(copies) == {ONE: 0, TWO: 0, THREE: 6, FOUR: 0}
    assert lags({THREE: copies[THREE]}) == {}


# --- in sync ---


def test_copy_is_in_sync_that_had_what_the_stream_had_and_has_said_so_since() -> None:
    copies = {
        TWO: heard(0, taken=500),
        THREE: heard(0, taken=499),
        FOUR: heard(0, taken=500, age_s=IN_SYNC_AGE_S),
    }
    assert in_sync(ONE, [ONE, TWO, THREE, FOUR], copies, at(500)) == (ONE, TWO)
    assert in_sync(THREE, [], copies, at(500)) == (THREE,)


def test_copy_that_is_joining_is_not_in_sync_whatever_its_mark() -> None:
    assert in_sync(ONE, [ONE, TWO], {TWO: heard(-1, role=Role.JOINING, taken=900)}, at(500)) == (ONE,)


def test_copy_that_follows_has_said_so_lately() -> None:
    """One that is not reported any more, or has not caught up, does not."""
    assert is_following(heard(1, age_s=FOLLOWING_AGE_S - 0.1))
    assert not is_following(heard(1, age_s=FOLLOWING_AGE_S))
    assert is_following(heard(1, age_s=0.4), within_s=0.5)
    assert not is_following(heard(1, age_s=0.5), within_s=0.5)
    assert not is_following(heard(1, age_s=FOLLOWING_AGE_S), within_s=60)
    assert not any(is_following(heard(1, role=role)) for role in Role if role is not Role.REPLICA)
    assert not is_following(None)


def test_past_end_is_the_last_one_that_was_noted_before() -> None:
    ends = PastEnds(at(10), 100.0)
    assert ends.at(90.0) == 10  # a new owner waits until its replicas have read its FENCE
    for second in range(1, 31):
        ends.note(at(10 + second), 100.0 + second)
    assert ends.at(110.5) == 20
    assert ends.at(120.0) == 30
    assert ends.at(500.0) == 40


def test_past_ends_are_few_however_often_one_is_noted() -> None:
    ends = PastEnds(at(0), 0.0)
    for tick in range(10_000):
        ends.note(at(tick), tick / 1000)
        ends.at(tick / 1000 - IN_SYNC_AGE_S)
    assert len(ends._noted) <= 30


# --- trimming ---


def test_stream_is_trimmed_before_what_enough_copies_have_synced() -> None:
    copies = {TWO: heard(70), THREE: heard(40)}
    members = [ONE, TWO, THREE]
    assert trim_to(ONE, at(90), members, copies, 1) == 90
    assert trim_to(ONE, at(90), members, copies, 2) == 70
    assert trim_to(ONE, at(90), members, copies, 3) == 40
    assert trim_to(ONE, at(90), members, copies, 4) is None


def test_stream_is_not_trimmed_beyond_the_owners_mark() -> None:
    assert trim_to(ONE, at(50), [ONE, TWO, THREE], {TWO: heard(70), THREE: heard(60)}, 2) == 50


def test_copies_count_that_are_to_be_kept_and_no_others() -> None:
    copies = {TWO: heard(70), FOUR: heard(80)}
    assert trim_to(ONE, at(90), [ONE, TWO, THREE], copies, 2) == 70
    assert trim_to(ONE, at(90), [ONE, THREE], copies, 2) is None


def test_copy_without_a_mark_keeps_everything_if_it_is_needed() -> None:
    copies = {TWO: heard(-1), THREE: heard(60)}
    assert trim_to(ONE, at(90), [ONE, TWO, THREE], copies, 3) is None
    assert trim_to(ONE, at(90), [ONE, TWO, THREE], copies, 2) == 60
    assert trim_to(ONE, NOTHING_READ, [ONE], {}, 1) is None


def test_copy_of_the_owners_own_reports_counts_once() -> None:
    assert trim_to(ONE, at(90), [ONE, TWO], {ONE: heard(80, role=Role.OWNER)}, 2) is None


def test_joining_copy_keeps_what_it_will_read_as_long_as_it_is_alive_and_moves() -> None:
    def trimmed(joining: HeardCopy) -> StreamPosition | None:
        return trim_to(ONE, at(90), [ONE, TWO, THREE], {TWO: heard(70), THREE: joining}, 2)

    assert trimmed(heard(-1, role=Role.JOINING, taken=30)) == 30  # a copy with this mark is under way
    assert trimmed(heard(-1, role=Role.JOINING, taken=-1)) is None  # the mark is not known yet
    assert trimmed(heard(20, role=Role.JOINING, taken=50)) == 20  # it has its copy, and reads on
    assert trimmed(heard(20, role=Role.JOINING, age_s=JOINING_AGE_S)) == 70
    assert trimmed(heard(20, role=Role.JOINING, unmoved_s=JOINING_S_MAX)) == 70


def test_joining_copy_is_none_of_those_that_have_synced() -> None:
    assert trim_to(ONE, at(90), [ONE, TWO], {TWO: heard(-1, role=Role.JOINING, taken=80)}, 2) is None


@given(
    st.integers(-1, 100),
    st.dictionaries(
        st.integers(1, 6).map(NodeNumber),
        st.builds(heard, st.integers(-1, 100), role=st.sampled_from(Role), taken=st.integers(-1, 120)),
    ),
    st.sets(st.integers(1, 6).map(NodeNumber)),
    st.integers(1, 4),
)
def test_what_is_trimmed_was_always_synced_by_enough_nodes(
    mark: int, copies: Mapping[NodeNumber, HeardCopy], members: set[NodeNumber], replicas: int
) -> None:
    """Invariant 9 of several machines, whatever is reported; and no copy that is joining is left without its entry."""
    before = trim_to(ONE, at(mark), members, copies, replicas)
    if before is not None:
        others = {node: copies[node] for node in members - {ONE} if node in copies}
        assert 0 < before <= mark
        assert 1 + sum(copy.synced >= before for copy in others.values()) >= replicas
        for joining in others.values():
            if joining.role is Role.JOINING:
                assert before <= max(joining.synced, joining.taken)


# --- the stream ---


@asynccontextmanager
async def open_log(
    stream: Stream, node: NodeNumber, copies: Mapping[ShardNumber, CopyProgress], run: bytes = RUN
) -> AsyncIterator[ReportsLog]:
    log = ReportsLog(stream, CLUSTER, node, run, copies)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        yield log
        nursery.cancel_scope.cancel()


def entries(cluster: ModelCluster) -> list[Report]:
    kept = cluster.open("reports").entries
    found = [decode_report_untrusted(CLUSTER, data) for data in kept if data]
    assert all(isinstance(report, Report) for report in found), found
    return [report for report in found if isinstance(report, Report)]


async def stream_of(cluster: ModelCluster, node: str) -> Stream:
    return await cluster.engine(node).open_stream("reports")


async def test_nodes_hear_each_other_and_the_one_that_has_gone_becomes_old(autojump_clock: object) -> None:
    copies: dict[ShardNumber, CopyProgress] = {SHARD: CopyProgress()}
    copies[SHARD].follows(lambda: FoldState(at(70), LeaderEpoch(2)), lambda: True)
    copies[SHARD].saved(FoldState(at(60)))
    async with open_model(random.Random(0)) as cluster:
        async with open_log(await stream_of(cluster, "a"), ONE, {}) as one:
            async with open_log(await stream_of(cluster, "b"), TWO, copies):
                await trio.sleep(3 * REPORT_EVERY_S)
                assert one.reports.up(REPORT_EVERY_S + 0.1) == [ONE, TWO]
                (found,) = one.reports.of(SHARD).values()
                assert (found.role, found.epoch, found.taken, found.synced) == (Role.REPLICA, 2, 70, 60)
            await trio.sleep(9)
            assert one.reports.up(5.0) == [ONE]
            assert one.reports.of(SHARD)[TWO].age_s > 8
        assert [report.number for report in entries(cluster) if report.node == ONE] == list(range(1, 9))


async def test_role_that_changes_is_reported_at_once(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster:
        copies = {SHARD: CopyProgress()}
        async with open_log(await stream_of(cluster, "a"), ONE, copies) as log:
            copies[SHARD]._changed = log.report_now
            await trio.sleep(REPORT_EVERY_S * 1.5)
            copies[SHARD].opens(FoldState)
            await trio.sleep(0.1)
            assert log.reports.of(SHARD)[ONE].role is Role.OPENING
            copies[SHARD].ends()
            await trio.sleep(0.1)
            assert log.reports.of(SHARD) == {}


async def test_node_that_stops_says_at_once_that_its_copies_do_not_follow_and_at_the_end_that_it_has_none(
    autojump_clock: object,
) -> None:
    """What it owns it says until that was handed over: the lag of the others is counted from there."""
    owned, followed = ShardNumber(1), ShardNumber(2)
    copies = {owned: CopyProgress(), followed: CopyProgress()}
    copies[owned].owns(FoldState, lambda: True)
    copies[followed].follows(FoldState, lambda: True)
    async with open_model(random.Random(0)) as cluster, open_log(await stream_of(cluster, "a"), ONE, {}) as other:
        async with open_log(await stream_of(cluster, "b"), TWO, copies) as log:
            await trio.sleep(REPORT_EVERY_S * 1.5)
            assert is_following(other.reports.of(followed)[TWO])
            log.stop()
            await trio.sleep(0.1)
            assert other.reports.of(followed) == {}
            assert other.reports.of(owned)[TWO].role is Role.OWNER
            copies.clear()
            await log.say_last()
        await trio.sleep(0.1)
        assert other.reports.of(owned) == {}


async def test_last_report_does_not_wait_for_an_engine_that_is_away(autojump_clock: object) -> None:
    faults = Faults(append_timeout_s=30.0, lands_after_timeout=0)
    async with open_model(random.Random(0), faults) as cluster, open_log(await stream_of(cluster, "a"), ONE, {}) as log:
        await trio.sleep(5)
        cluster.go_away()
        before_s = trio.current_time()
        await log.say_last()
        assert trio.current_time() - before_s <= LAST_S


async def test_engine_that_is_away_takes_no_queue_of_reports_and_is_survived(autojump_clock: object) -> None:
    faults = Faults(append_timeout_s=3.0, lands_after_timeout=0)
    async with open_model(random.Random(0), faults) as cluster, open_log(await stream_of(cluster, "a"), ONE, {}) as log:
        await trio.sleep(5)
        before = len(entries(cluster))
        cluster.go_away()
        with structlog.testing.capture_logs() as lines:
            await trio.sleep(60)
        assert len(entries(cluster)) == before
        assert "it is not known whether a report was appended" in {line["event"] for line in lines}
        cluster.come_back()
        await trio.sleep(2 * REPORT_EVERY_S + 3)
        assert log.reports.up(REPORT_EVERY_S + 0.1) == [ONE]
        assert len(entries(cluster)) <= before + 4


async def test_node_that_begins_while_the_engine_is_away_reads_when_it_is_back(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster:
        stream = await stream_of(cluster, "a")
        cluster.go_away()
        async with open_log(stream, ONE, {}) as log:
            await trio.sleep(30)
            cluster.come_back()
            await trio.sleep(10)
            assert log.reports.up(REPORT_EVERY_S + 0.1) == [ONE]


async def test_what_was_reported_before_the_start_does_not_count_as_fresh(autojump_clock: object) -> None:
    """A node that died an hour ago is not up."""
    async with open_model(random.Random(0)) as cluster:
        async with open_log(await stream_of(cluster, "b"), TWO, {}):
            await trio.sleep(3)
        async with open_log(await stream_of(cluster, "a"), ONE, {}) as log:
            await trio.sleep(3)
            assert log.reports.up(100) == [ONE]


async def test_stream_is_trimmed_to_about_its_last_minute(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster:
        stream = await stream_of(cluster, "a")
        async with open_log(stream, ONE, {}) as log:
            await trio.sleep(KEPT_S - 5)
            await log.trim()
            assert await stream.start() == 0
            await trio.sleep(1000)
            assert len(log._read) < KEPT_S + 5
            await log.trim()
            kept = await stream.end() - await stream.start()
            assert KEPT_S / REPORT_EVERY_S - 2 <= kept <= KEPT_S / REPORT_EVERY_S + 4
            cluster.go_away()
            await log.trim()


async def test_reader_that_was_overtaken_by_a_trim_goes_on_at_the_end(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster:
        others = await stream_of(cluster, "b")
        async with open_log(await stream_of(cluster, "a"), ONE, {}) as log:
            await trio.sleep(3)
            cluster.cut("a")
            async with open_log(others, TWO, {}):
                await trio.sleep(100)
                await others.trim(StreamPosition(await others.end()))
                with structlog.testing.capture_logs() as lines:
                    cluster.join("a")
                    await trio.sleep(10)
                assert "reports were trimmed before they were read" in {line["event"] for line in lines}
                assert log.reports.up(5.0) == [ONE, TWO]


async def test_strange_entries_are_skipped_with_a_line_that_is_not_repeated_for_ever(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster, open_log(await stream_of(cluster, "a"), ONE, {}) as log:
        await trio.sleep(1)
        with structlog.testing.capture_logs() as lines:
            for _ in range(100):
                cluster.land("reports", b"junk")
            await trio.sleep(5)
        ignored = [line for line in lines if line["event"] == "entry of the stream of reports ignored"]
        assert 1 <= len(ignored) <= 20
        assert log.reports.up(3.0) == [ONE]


async def test_deleted_stream_is_told_and_ends_nothing(autojump_clock: object) -> None:
    async with open_model(random.Random(0)) as cluster, open_log(await stream_of(cluster, "a"), ONE, {}) as log:
        await trio.sleep(1)
        with structlog.testing.capture_logs() as lines:
            cluster.delete("reports")
            await trio.sleep(100)
        assert "the stream of reports is lost until this node is restarted" in {line["event"] for line in lines}
        assert log.reports.up(50.0) == []


@pytest.mark.parametrize("seed", range(10))
async def test_reports_over_an_engine_in_a_storm_never_go_back(seed: int, autojump_clock: object) -> None:
    """Lost, late and doubled: what is known of a node only grows."""
    storm = Faults(lost=0.1, untold=0.1, late=0.2, doubled=0.2, end_fails=0.3, end_appends=0.5, read_s_max=0.5)
    async with open_model(random.Random(seed), storm) as cluster:
        taken = 0

        def state() -> FoldState:
            nonlocal taken
            taken += 1
            return FoldState(at(taken))

        copies = {SHARD: CopyProgress()}
        copies[SHARD].follows(state, lambda: True)
        async with (
            open_log(await stream_of(cluster, "a"), ONE, copies),
            open_log(await stream_of(cluster, "b"), TWO, {}) as other,
        ):
            newest = 0
            for _ in range(300):
                await trio.sleep(0.3)
                for found in other.reports.of(SHARD).values():
                    assert found.taken >= newest
                    newest = found.taken
            assert newest > 20
