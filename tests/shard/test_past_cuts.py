"""Cuts over shards that are kept, and what readers with a limit find in them, however the shards fare meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from datalog.cuts import KnownCuts
from datalog.interface import Cleaned
from fairlog_types import LogId, Offset, ShardNumber, StorageFailure
from shard.conversation import Message
from shard.cut_messages import Cuts, FindCuts, FindEnds, Hold, KeepEnds, NoCut
from shard.cutting import Cutting
from shard.kept_cuts import CHECK_S, RECORDS_PER_CUT, SECONDS_PER_CUT, KeptCuts
from shard.past_cuts import PastCuts
from tests.shard.neighbours import Cluster, Writer, log_of, open_cluster
from tests.shard.test_cutting import LONG, committing, is_command

OWN, OTHER = log_of(0), log_of(1)
BOTH = (OWN, OTHER)
STARTS = dict.fromkeys(BOTH, Offset(0))


def past_cuts_of(cluster: Cluster, shard: int) -> PastCuts:
    past_cuts = cluster.running[ShardNumber(shard)].shard.past_cuts
    assert past_cuts is not None
    return past_cuts


def cutting_of(cluster: Cluster, shard: int) -> Cutting:
    cutting = cluster.running[ShardNumber(shard)].shard.cutting
    assert cutting is not None
    return cutting


async def keep(cluster: Cluster, shard: int = 0) -> None:
    """Keep a cut that both shards have stored."""
    with trio.fail_after(20):
        while await cutting_of(cluster, shard).keep() is not None:  # noqa: ASYNC110 - it may not be reached at first
            await trio.sleep(0.05)
    await stored(cluster)


async def stored(cluster: Cluster) -> None:
    with trio.fail_after(10):
        while len({running.shard.data_logs.newest_cut for running in cluster.running.values()}) > 1:  # noqa: ASYNC110
            await trio.sleep(0.005)


async def commit(writer: Writer, count: int = 1) -> None:
    """So many transactions, each of one record in both logs."""
    for _ in range(count):
        await writer.write({OWN: [b"x"], OTHER: [b"x"]})
        assert await writer.end() is None


async def find(
    cluster: Cluster, records_max: int, starts: dict[LogId, Offset] = STARTS, shard: int = 0
) -> dict[LogId, int] | None:
    """The ends of the cut that a reader gets; None: that of now."""
    found = await past_cuts_of(cluster, shard).find(starts, records_max=records_max)
    assert not isinstance(found, NoCut), found
    return None if found is None else {log: cut.end for log, cut in found.by_log.items()}


@pytest.fixture(autouse=True)
def at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts may be kept one right after the other."""
    monkeypatch.setattr("shard.cutting.KEEP_SHARE", 0)
    monkeypatch.setattr("shard.cutting.KEEP_PAUSE_S", 0.0)


@pytest.mark.parametrize("asked", [0, 1])
async def test_reader_with_a_limit_stops_at_the_newest_cut_within_it(tmp_path: Path, asked: int) -> None:
    """Whichever shard is asked; without one within the limit at the first that has anything."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        for count in (2, 3, 4):
            await commit(writer, count)
            await keep(cluster, asked)
        assert await find(cluster, 1, shard=asked) == {OWN: 2, OTHER: 2}
        assert await find(cluster, 9, shard=asked) == {OWN: 2, OTHER: 2}
        assert await find(cluster, 10, shard=asked) == {OWN: 5, OTHER: 5}
        assert await find(cluster, 17, shard=asked) == {OWN: 5, OTHER: 5}
        assert await find(cluster, 18, shard=asked) is None
        await commit(writer)
        await copied(cluster, 10)
        assert await find(cluster, 18, shard=asked) == {OWN: 9, OTHER: 9}
        at = {OWN: Offset(5), OTHER: Offset(5)}
        assert await find(cluster, 1, at, shard=asked) == {OWN: 9, OTHER: 9}
        assert await find(cluster, 1, {OWN: Offset(9), OTHER: Offset(9)}, shard=asked) is None
        assert await find(cluster, 3, {OTHER: Offset(0)}, shard=asked) == {OTHER: 2}


async def test_cut_that_is_kept_has_no_half_of_a_commit(tmp_path: Path) -> None:
    """Both coordinators commit all the while. A reader that goes from cut to cut finds both logs ending alike."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        async with committing(cluster, 0), committing(cluster, 1):
            for number in range(20):
                assert await cutting_of(cluster, number % 2).keep() is None
                await trio.sleep(0.01)
        await stored(cluster)
        at, steps = dict(STARTS), 0
        while (found := await find(cluster, 1, at, shard=steps % 2)) is not None:
            assert found[OWN] == found[OTHER] > at[OWN]
            at = {log: Offset(end) for log, end in found.items()}
            steps += 1
        assert steps > 10


async def test_cut_that_a_shard_has_not_stored_is_not_used(tmp_path: Path) -> None:
    """It was killed before; there, logs end earlier at that cut, as if it were an older one."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        await commit(writer)
        await keep(cluster)
        await commit(writer, 2)

        carry = cluster.way.carry

        def lose(sender: ShardNumber, to: ShardNumber, message: object) -> None:
            if not is_command(message, KeepEnds):
                carry(sender, to, message)

        cluster.way.carry = lose
        assert await cutting_of(cluster, 0).keep() is None
        cluster.way.carry = carry
        await cluster.start_again(1, cluster.kill(1))
        newest = {number: each.shard.data_logs.newest_cut for number, each in cluster.running.items()}
        assert newest == {0: 2, 1: 1}
        for count in (3, 1, 1):
            await commit(writer, count)
            await keep(cluster)
        assert cluster.shards[ShardNumber(1)].data_logs.newest_cut == 5, "so a search looks at cut 2 first"
        assert await find(cluster, 1) == {OWN: 1, OTHER: 1}
        assert await find(cluster, 6) == {OWN: 1, OTHER: 1}, "not cut 2, which has 3 and 1"
        assert await find(cluster, 1, {OWN: Offset(1), OTHER: Offset(1)}) == {OWN: 6, OTHER: 6}
        assert await find(cluster, 3, {OWN: Offset(0)}) == {OWN: 3}, "of one shard's logs alone it is a cut"


async def test_cut_is_not_kept_if_a_shard_has_not_held_to_the_end(tmp_path: Path) -> None:
    """What was noted within it is forgotten."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        await commit(writer)
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        own_cuts = cluster.running[ShardNumber(0)].shard._connections.cutting._own_cuts
        note = own_cuts.note

        def note_and_let_go(hold: int) -> object:
            commits.forget(ShardNumber(0))
            return note(hold)

        own_cuts.note = note_and_let_go
        assert await cutting_of(cluster, 0).keep() == NoCut(
            "a commit is under way for too long, or a shard has not held to the end"
        )
        own_cuts.note = note
        assert [each.shard.data_logs.newest_cut for each in cluster.running.values()] == [0, 0]
        await keep(cluster)
        assert [each.shard.data_logs.newest_cut for each in cluster.running.values()] == [1, 1]


async def test_no_cut_is_kept_and_nobody_held_while_a_shard_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader with a limit is told which one; later the same question is answered."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await commit(writer, 2)
        await keep(cluster)
        await commit(writer, 2)
        await copied(cluster, 4)
        monkeypatch.setattr("shard.past_cuts.ANSWER_S", 0.2)
        left = cluster.kill(1)
        so_far = len(cluster.way.carried)
        for found in (
            await cutting_of(cluster, 0).keep(),
            await cutting_of(cluster, 0).keep(),
            await past_cuts_of(cluster, 0).find(STARTS, records_max=4),
        ):
            assert isinstance(found, NoCut)
            assert "shard 1 has not answered in time: its process is down" in found.reason
        assert not any(is_command(message, Hold) for _, _, message in cluster.way.carried[so_far:])
        assert await find(cluster, 2, {OWN: Offset(0)}) == {OWN: 2}, "its logs are not asked for"
        monkeypatch.undo()
        unanswered = len(cluster.running[ShardNumber(0)].shard._connections.links._asked)
        for _ in range(5):
            assert isinstance(await past_cuts_of(cluster, 0).find(STARTS, records_max=4), NoCut)
        assert len(cluster.running[ShardNumber(0)].shard._connections.links._asked) == unanswered, "none pile up"
        await cluster.start_again(1, left)
        with trio.fail_after(10):
            while isinstance(found := await past_cuts_of(cluster, 0).find(STARTS, records_max=4), NoCut):  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert isinstance(found, Cuts)
        assert {log: cut.end for log, cut in found.by_log.items()} == {OWN: 2, OTHER: 2}


async def test_cuts_go_on_with_their_numbers_after_restarts(tmp_path: Path) -> None:
    """The taker knows them from the shards, and old ones can be used still."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await commit(writer)
        await keep(cluster)
        for shard in (0, 1):
            await cluster.start_again(shard, cluster.kill(shard))
            await commit(await cluster.writer("t"))
            await keep(cluster)
        assert [each.shard.data_logs.newest_cut for each in cluster.running.values()] == [3, 3]
        assert await find(cluster, 2) == {OWN: 1, OTHER: 1}
        assert await find(cluster, 4) == {OWN: 2, OTHER: 2}


async def copied(cluster: Cluster, end: int) -> None:
    """Wait until both logs can be read up to there."""
    with trio.fail_after(10):
        for log, shard in zip(BOTH, cluster.shards.values(), strict=True):
            await shard.partitions.by_log[log].visibility.reach(Offset(end))


async def test_cut_is_no_newer_than_what_a_shard_has_answered_first(tmp_path: Path) -> None:
    """The question reaches one shard late. The other's log ended where the reader stands, and has grown since."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        await commit(writer, 5)
        await keep(cluster)
        carry = cluster.way.carry
        late: list[tuple[ShardNumber, ShardNumber, Message]] = []

        def delay(sender: ShardNumber, to: ShardNumber, message: Message) -> None:
            if is_command(message, FindCuts) and not late:
                late.append((sender, to, message))
            else:
                carry(sender, to, message)

        cluster.way.carry = delay
        found: list[dict[LogId, int] | None] = []

        async def read() -> None:
            found.append(await find(cluster, 3, dict.fromkeys(BOTH, Offset(5)), shard=1))

        async with trio.open_nursery() as reading:
            reading.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await commit(writer)
            await keep(cluster)
            await commit(writer, 4)
            await copied(cluster, 10)
            carry(*late[0])
        assert found == [None]
        assert await find(cluster, 3, dict.fromkeys(BOTH, Offset(5)), shard=1) == {OWN: 6, OTHER: 6}


async def test_search_begins_again_if_rows_go_meanwhile(tmp_path: Path) -> None:
    """Compaction forgets cuts of one log: what is found behind it is as if they had never been there."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        for _ in range(8):
            await commit(writer)
            await keep(cluster)
        own_cuts = cluster.running[ShardNumber(0)].shard._connections.past_cuts._own_cuts
        find_ends, cleaned = own_cuts.find_ends, [False]

        async def clean_and_find(question: FindEnds) -> object:
            if not cleaned[0]:
                cleaned[0] = True
                with cluster.shards[ShardNumber(0)].data_logs.write() as writing:
                    writing.put_cleaned(OWN, Cleaned(Offset(6), 100, None, ()))
                    assert writing.forget_cleaned_cuts(OWN, rows_max=1000) == 6
            return await find_ends(question)

        assert await find(cluster, 8) == {OWN: 4, OTHER: 4}
        own_cuts.find_ends = clean_and_find
        assert await find(cluster, 8) == {OWN: 6, OTHER: 6}
        assert cleaned == [True]


async def test_old_cuts_are_found_beside_a_shard_that_was_added_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is empty at its first cut: so it was at all older ones."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        own_cuts = cluster.running[ShardNumber(1)].shard._connections.past_cuts._own_cuts
        with monkeypatch.context() as patched:
            patched.setattr(own_cuts, "keep", lambda _message: trio.lowlevel.checkpoint)
            for number in range(20):
                await writer.write({OWN: [b"x"]})
                assert await writer.end() is None
                await cluster.shards[ShardNumber(0)].partitions.by_log[OWN].visibility.reach(Offset(number + 1))
                assert await cutting_of(cluster, 0).keep() is None
        await keep(cluster)
        await commit(writer, 2)
        await keep(cluster)
        await commit(writer)
        await copied(cluster, 3)
        assert [await find(cluster, limit) for limit in (1, 5, 19)] == [{OWN: end, OTHER: 0} for end in (1, 5, 19)]
        assert await find(cluster, 24) == {OWN: 22, OTHER: 2}
        # A reader who is behind what the shard had at its first cut gets all of it as one step.
        await cluster.start_again(0, cluster.kill(0))
        assert await find(cluster, 1, {OTHER: Offset(0)}) == {OTHER: 2}


async def test_holds_that_fail_take_a_small_part_of_the_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is under way for as long as a hold waits."""
    monkeypatch.setattr("shard.cutting.KEEP_SHARE", 100)
    monkeypatch.setattr("shard.holding.DRAIN_S", 0.5)
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        await commit(await cluster.writer("t"))
        await copied(cluster, 1)
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        commits.began([LONG])
        found: list[NoCut | None] = []

        async def ask(shard: int) -> None:
            found.append(await cutting_of(cluster, shard).keep())

        so_far = len(cluster.way.carried)
        async with trio.open_nursery() as asking:
            for shard in (0, 0, 1):
                asking.start_soon(ask, shard)
        holds = [message for _, _, message in cluster.way.carried[so_far:] if is_command(message, Hold)]
        assert (len(holds), [type(none) for none in found]) == (1, [NoCut] * 3)
        cutting = cutting_of(cluster, 0)
        assert cutting._keep_earliest_s - trio.current_time() > 45


async def test_shard_whose_disk_is_busy_stores_no_further_cut(tmp_path: Path) -> None:
    """It does not know it then. What it would store later needs room meanwhile."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        await commit(writer)
        own_cuts = cluster.running[ShardNumber(1)].shard._connections.past_cuts._own_cuts
        async with own_cuts._storing:
            for _ in range(2):
                assert await cutting_of(cluster, 0).keep() is None
            await trio.testing.wait_all_tasks_blocked(0.01)
        await keep(cluster)
        found = [cluster.shards[number].data_logs.ends_at(2, [], common=True).number for number in cluster.shards]
        assert found == [2, 0]


def keep_alone(cluster: Cluster, shard: int) -> None:
    """As a node of one shard does with what it copies."""
    with cluster.running[ShardNumber(shard)].shard.data_logs.write() as writer:
        writer.put_cut(trio.current_time())


async def test_cuts_from_when_there_was_one_shard_can_be_used(tmp_path: Path) -> None:
    """The other shard's logs did not exist then. Their first common cut comes behind."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await writer.write({OWN: [b"alone"]})
        assert await writer.end() is None
        await cluster.shards[ShardNumber(0)].drain()
        keep_alone(cluster, 0)
        await commit(writer, 2)
        assert await find(cluster, 1) == {OWN: 1, OTHER: 0}
        assert await find(cluster, 4) == {OWN: 1, OTHER: 0}
        await keep(cluster)
        assert cluster.shards[ShardNumber(1)].data_logs.known_cuts({}) == KnownCuts(2, 2, 0, {}, {})
        assert await find(cluster, 1) == {OWN: 1, OTHER: 0}
        assert await find(cluster, 4, {OWN: Offset(1), OTHER: Offset(0)}) is None
        await commit(writer)
        await copied(cluster, 3)
        assert await find(cluster, 4, {OWN: Offset(1), OTHER: Offset(0)}) == {OWN: 3, OTHER: 2}


async def test_cuts_that_several_shards_took_alone_are_not_used(tmp_path: Path) -> None:
    """Their numbers have nothing to do with each other."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await commit(writer)
        await copied(cluster, 1)
        keep_alone(cluster, 1)
        await commit(writer)
        await copied(cluster, 2)
        keep_alone(cluster, 0)
        await keep(cluster)
        await commit(writer, 2)
        await copied(cluster, 4)
        assert await find(cluster, 1) == {OWN: 2, OTHER: 2}
        assert await find(cluster, 1, {OTHER: Offset(0)}) == {OTHER: 1}


async def test_disk_that_fails_is_told_to_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a refusal with the reason; a cut that cannot be stored harms nobody."""
    async with open_cluster(tmp_path / "run") as cluster:
        writer = await cluster.writer("t")
        await commit(writer)

        failed = threading.Event()

        def fail(*_: object, **__: object) -> object:
            failed.set()
            raise StorageFailure("the disk has gone")

        data_logs = cluster.shards[ShardNumber(1)].data_logs
        monkeypatch.setattr(data_logs, "known_cuts", fail)
        assert await past_cuts_of(cluster, 0).find(STARTS, records_max=1) == NoCut("the disk has gone")
        await copied(cluster, 1)
        failed.clear()
        monkeypatch.setattr(data_logs, "write", fail)
        assert await cutting_of(cluster, 0).keep() is None
        assert await trio.to_thread.run_sync(failed.wait, 10)
        monkeypatch.undo()
        assert await find(cluster, 1) is None


# --- when a cut is kept -----------------------------------------------------------------------------


class Node:
    """What a shard has copied, and when it has asked for a cut."""

    def __init__(self) -> None:
        self.copied = 0
        self.asked_s: list[float] = []
        self.refusal: NoCut | None = None
        self.kept_cuts = KeptCuts(lambda: self.copied)

    async def keep(self) -> NoCut | None:
        await trio.lowlevel.checkpoint()
        self.asked_s.append(trio.current_time())
        if self.refusal is None:
            self.kept_cuts.kept()
        return self.refusal


@pytest.fixture
async def node(nursery: trio.Nursery) -> Node:
    node = Node()
    nursery.start_soon(node.kept_cuts.run, node.keep)
    return node


async def test_cut_is_kept_after_enough_records_or_time(node: Node, autojump_clock: object) -> None:
    """A node to which nobody writes takes none."""
    began_s = trio.current_time()
    await trio.sleep(1000)
    assert node.asked_s == []
    node.copied = 1
    await trio.sleep(1000)
    (asked_s,) = node.asked_s
    assert 1000 <= asked_s - began_s <= 1000 + CHECK_S
    node.copied = 1 + RECORDS_PER_CUT
    await trio.sleep(1.5 * CHECK_S)
    assert len(node.asked_s) == 2
    node.copied += 1
    await trio.sleep(SECONDS_PER_CUT - 2 * CHECK_S)
    assert len(node.asked_s) == 2
    await trio.sleep(3 * CHECK_S)
    assert len(node.asked_s) == 3


async def test_cut_that_could_not_be_taken_is_asked_for_again(node: Node, autojump_clock: object) -> None:
    """At the next look; one that another shard had taken is not."""
    node.copied, node.refusal = RECORDS_PER_CUT, NoCut("shard 1 is down")
    await trio.sleep(3.5 * CHECK_S)
    assert len(node.asked_s) == 3
    node.kept_cuts.kept()
    await trio.sleep(100)
    assert len(node.asked_s) == 3


async def test_cuts_that_are_kept_hold_commits_for_a_small_part_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks too early is refused. Of two that ask at once one cut serves both."""
    monkeypatch.setattr("shard.cutting.KEEP_SHARE", 100)
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t")
        await commit(writer)
        await copied(cluster, 1)
        found: list[NoCut | None] = []

        async def ask(shard: int) -> None:
            found.append(await cutting_of(cluster, shard).keep())

        async with trio.open_nursery() as asking:
            asking.start_soon(ask, 0)
            asking.start_soon(ask, 0)
        await ask(1)
        assert found == [None, None, NoCut("a cut was kept a moment ago, or could not be")]
        await stored(cluster)
        assert [each.shard.data_logs.newest_cut for each in cluster.running.values()] == [1, 1]
