"""A cut over two shards holds all of each transaction, or nothing of it, however the shards fare meanwhile."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from fairlog_types import LogId, ProducerEpoch, ProducerId, ShardNumber, TxId
from shard.conversation import Command, Message
from shard.cut_messages import Cuts, Hold, NoCut, Release
from shard.cutting import Cutting
from shard.ends import AskedEnds
from shard.holding import DRAIN_S, HOLD_S, Commits
from shard.links import REPEAT_AFTER_S
from shard.own_cuts import OwnCuts
from tests.shard.neighbours import Cluster, log_of, open_cluster, shard_of

OWN, OTHER = log_of(0), log_of(1)
BOTH = (OWN, OTHER)
LONG = TxId(ProducerId(7), ProducerEpoch(0), 1)
"""Of a commit that takes long."""


def cutting_of(cluster: Cluster, shard: int) -> Cutting:
    cutting = cluster.running[ShardNumber(shard)].shard.cutting
    assert cutting is not None
    return cutting


async def cut_of(cluster: Cluster, shard: int, logs: Sequence[LogId] = BOTH) -> dict[LogId, int]:
    """The ends of a cut that the shard was asked for."""
    found = await cutting_of(cluster, shard).cut(logs)
    assert isinstance(found, Cuts), found
    return {log: cut.end for log, cut in found.by_log.items()}


def is_command(message: Message, kind: type) -> bool:
    return isinstance(message, Command) and isinstance(message.body, kind)


@asynccontextmanager
async def committing(cluster: Cluster, shard: int) -> AsyncGenerator[list[int], None]:
    """Commit one record to each log, again and again; the number of commits so far is in the list."""
    writer, done = await cluster.writer(f"t-{shard}", shard), [0]

    async def commit() -> None:
        while True:
            await writer.write({OWN: [b"x"], OTHER: [b"x"]})
            assert await writer.end() is None
            done[0] += 1
            await trio.lowlevel.checkpoint()  # all else may be shielded

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        yield done
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("asked", [0, 1])
async def test_cut_has_every_answered_commit_in_both_shards(tmp_path: Path, asked: int) -> None:
    """The transactions of both coordinators, whichever shard is asked."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        for shard in (0, 1):
            writer = await cluster.writer("t", shard)
            await writer.write({OWN: [b"1", b"2"], OTHER: [b"3"]})
            assert await writer.end() is None
        assert await cut_of(cluster, asked) == {OWN: 4, OTHER: 2}


@pytest.mark.parametrize("asked", [0, 1])
async def test_no_cut_has_half_of_a_commit(tmp_path: Path, asked: int) -> None:
    """Both logs get one record of each transaction, so that they end alike in each cut."""
    async with open_cluster(tmp_path / "run") as cluster, committing(cluster, 0) as one, committing(cluster, 1) as two:
        cluster.way.keep_order()
        for _ in range(30):
            before = one[0] + two[0]
            ends = await cut_of(cluster, asked)
            assert ends[OWN] == ends[OTHER]
            assert ends[OWN] >= before
        assert min(one[0], two[0]) > 3, "cuts again and again let commits go on"


async def test_cut_leaves_out_logs_that_nobody_leads(tmp_path: Path) -> None:
    """As they are while a topic is made or deleted."""
    async with open_cluster(tmp_path / "run") as cluster:
        assert await cut_of(cluster, 1, [OTHER, log_of(0, 7), log_of(1, 7)]) == {OTHER: 0}


async def test_no_cut_and_nobody_held_while_a_shard_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not asked anew before it has answered, and answers when it is back."""
    monkeypatch.setattr("shard.cutting.OWN_WAIT_S", 2.0)
    async with open_cluster(tmp_path / "run") as cluster:
        left = cluster.kill(1)
        with trio.move_on_after(0.5):
            await cutting_of(cluster, 0).cut(BOTH)
        so_far = len(cluster.way.carried)
        for _ in range(3):
            found = await cutting_of(cluster, 0).cut(BOTH)
            assert isinstance(found, NoCut)
            assert "shard 1 has not answered in time: its process is down" in found.reason
        assert not any(is_command(message, Hold) for _, _, message in cluster.way.carried[so_far:])
        monkeypatch.undo()
        await cluster.start_again(1, left)
        await trio.sleep(2 * REPEAT_AFTER_S)
        assert await cut_of(cluster, 0) == {OWN: 0, OTHER: 0}


async def test_commit_waits_no_longer_than_a_hold_for_a_taker_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody releases it; and what it is about to count would be thrown away."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        await cut_of(cluster, 0)  # they have heard of each other: who has not is taken for one that started again
        monkeypatch.setattr("shard.holding.DRAIN_S", 0.0)
        writer = await cluster.writer("t", 1)
        await writer.write({OWN: [b"1"], OTHER: [b"2"]})
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        assert await commits.hold(ShardNumber(0), 5)()
        began_s = trio.current_time()
        assert await writer.end() is None
        assert trio.current_time() - began_s >= HOLD_S * 0.9
        assert not commits.release(ShardNumber(0), 5)


async def test_taker_that_was_started_again_holds_nobody(tmp_path: Path) -> None:
    """It has forgotten its hold, and says so by its new epoch."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        assert await commits.hold(ShardNumber(0), 5)()
        began_s = trio.current_time()
        await cluster.start_again(0, cluster.kill(0))
        await commits.admit()
        assert trio.current_time() - began_s < DRAIN_S


@pytest.mark.parametrize("is_lost_first", [True, False])
async def test_shard_that_stops_is_held_by_no_taker_that_is_lost(tmp_path: Path, is_lost_first: bool) -> None:
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        await cut_of(cluster, 0)  # they have heard of each other
        shard = cluster.running[ShardNumber(1)].shard
        commits = shard._connections.commits
        assert await commits.hold(ShardNumber(0), 5)()
        stops = [lambda: shard.disconnected(ShardNumber(0)), shard.stop]
        for step in stops if is_lost_first else reversed(stops):
            assert commits._holds
            step()
        began_s = trio.current_time()
        await commits.admit()
        assert trio.current_time() - began_s < HOLD_S


@pytest.mark.parametrize("asked", [0, 1])
async def test_cut_is_taken_while_a_shard_stops(tmp_path: Path, asked: int) -> None:
    """Whoever waits for it keeps the shard from ending; and a shard that moves goes alone."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        cluster.running[ShardNumber(asked)].shard.stop()
        with trio.fail_after(HOLD_S):
            assert await cut_of(cluster, asked) == {OWN: 0, OTHER: 0}


async def test_commit_that_takes_long_is_waited_for(tmp_path: Path) -> None:
    """As on a slow disk, where there may always be one."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        commits.began([LONG])
        await trio.sleep(HOLD_S * 1.1)
        nursery.start_soon(end_after, commits, HOLD_S * 1.1)
        assert await cut_of(cluster, 0) == {OWN: 0, OTHER: 0}
        held = {message.body.number for _, _, message in cluster.way.carried if is_command(message, Hold)}
        assert held == {1}, "the first hold was good"


async def test_hold_and_release_that_arrive_together_are_carried_out_in_their_order(tmp_path: Path) -> None:
    """As when a process reads on after a while. Else the hold would be left to end by itself."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        await cut_of(cluster, 0)
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        links = cluster.running[ShardNumber(0)].shard._connections.links
        cluster.way.cut.add((ShardNumber(0), ShardNumber(1)))
        for number in range(20, 40):
            so_far = len(cluster.way.carried)
            for body in (Hold(number), Release(number)):
                links.ask(ShardNumber(1), body)
            said = [message for sender, _, message in cluster.way.carried[so_far:] if sender == 0]
            for message in said:
                cluster.shards[ShardNumber(1)].receive(ShardNumber(0), message)
            await trio.testing.wait_all_tasks_blocked(0.005)
            assert not commits._holds


@pytest.mark.parametrize(("asked", "down"), [(0, 1), (1, 0)])
async def test_who_asks_first_while_a_shard_is_down_is_told_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, down: int
) -> None:
    """Not only those who ask afterwards."""
    for name, seconds in (("OWN_WAIT_S", 1.0), ("_TAKEN_S", 2.0), ("_HAVE_TAKEN_S", 3.0)):
        monkeypatch.setattr(f"shard.cutting.{name}", seconds)
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.kill(down)
        found = await cutting_of(cluster, asked).cut(BOTH)
        assert isinstance(found, NoCut)
        assert f"shard {down} has not answered in time" in found.reason


async def end_after(commits: Commits, after_s: float) -> None:
    await trio.sleep(after_s)
    commits.ended([LONG])


async def test_asker_that_gives_up_while_commits_end_leaves_nobody_held(tmp_path: Path) -> None:
    """It releases what it has not heard of yet."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        commits.began([LONG])
        with trio.move_on_after(0.2) as waiting:
            await cutting_of(cluster, 0).cut(BOTH)
        assert waiting.cancelled_caught
        commits.ended([LONG])
        began_s = trio.current_time()
        await commits.admit()
        assert trio.current_time() - began_s < HOLD_S
        assert await cut_of(cluster, 0) == {OWN: 0, OTHER: 0}


@pytest.mark.parametrize("asked", [0, 1])
async def test_who_asks_after_one_that_gave_up_waits_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """The shards are still to answer the first one's question. That is no sign that they are down."""
    async with open_cluster(tmp_path / "run") as cluster, trio.open_nursery() as nursery:
        cluster.way.keep_order()
        copied, await_ends = trio.Event(), OwnCuts.await_ends

        async def slowly(own_cuts: OwnCuts, logs: Any) -> NoCut | None:
            await copied.wait()
            return await await_ends(own_cuts, logs)

        monkeypatch.setattr(OwnCuts, "await_ends", slowly)
        with trio.move_on_after(0.2) as waiting:
            await cutting_of(cluster, asked).cut(BOTH)
        assert waiting.cancelled_caught

        async def copy() -> None:
            await trio.sleep(HOLD_S * 1.5)
            copied.set()

        nursery.start_soon(copy)
        assert await cut_of(cluster, asked) == {OWN: 0, OTHER: 0}


async def test_cut_has_no_commit_without_those_that_were_answered_before_it(tmp_path: Path) -> None:
    """One after the other in two shards, each coordinated by the other: the second is in no cut without the first."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        first, second = await cluster.writer("first", 1), await cluster.writer("second", 0)
        rounds = 0

        async def commit() -> None:
            nonlocal rounds
            while True:
                for writer, log in ((first, OWN), (second, OTHER)):
                    await writer.write({log: [b"x"]})
                    assert await writer.end() is None
                rounds += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            for _ in range(40):
                ends = await cut_of(cluster, 0)
                assert ends[OWN] - 1 <= ends[OTHER] <= ends[OWN]
            assert rounds > 3
            nursery.cancel_scope.cancel()


async def test_commit_in_a_log_that_is_deleted_meanwhile_is_over(tmp_path: Path) -> None:
    """Nothing of it is waited for after that: cuts are taken."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t", 0)
        await writer.write({OWN: [b"1"], OTHER: [b"2"]})
        await cluster.shards[ShardNumber(0)].drop([OWN])
        assert await writer.end() is None
        commits = cluster.running[ShardNumber(0)].shard._connections.commits
        assert await commits.hold(ShardNumber(0), 0)()
        assert await cut_of(cluster, 0) == {OTHER: 1}


async def test_cut_is_thrown_away_if_a_coordinator_has_not_held_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was started again meanwhile: it may have committed something. The next cut is good."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        cut, released = OwnCuts.cut, [False]

        def cut_once_released(own_cuts: OwnCuts, logs: Sequence[LogId]) -> Cuts:
            if not released[0]:
                released[0] = True
                commits.release(ShardNumber(0), 1)
            return cut(own_cuts, logs)

        monkeypatch.setattr(OwnCuts, "cut", cut_once_released)
        assert await cut_of(cluster, 0) == {OWN: 0, OTHER: 0}
        held = [message.body.number for _, _, message in cluster.way.carried if is_command(message, Hold)]
        assert held == [1, 2]


async def test_no_hold_by_a_shard_that_has_not_recovered(tmp_path: Path) -> None:
    """It does not know yet what it has decided: half of that may be visible."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        left = cluster.kill(1)
        await cluster.reopen(1, left)
        commits = cluster.running[ShardNumber(1)].shard._connections.commits
        assert not await commits.hold(ShardNumber(0), 1)()
        with trio.move_on_after(0.2) as waiting:
            await cutting_of(cluster, 0).cut(BOTH)
        assert waiting.cancelled_caught, "it waits for the recovery"
        await cluster.recover(ShardNumber(1))
        assert await commits.hold(ShardNumber(0), 2)()


# --- holds for who takes the cut itself, in the files -------------------------------------------------------------


def ends_on_disk(cluster: Cluster) -> list[int]:
    """Of both logs, as another process would find them."""
    found: list[int] = []
    for log in BOTH:
        mark = cluster.shards[shard_of(log)].data_logs.mark(log)
        assert mark is not None
        found.append(mark.next_offset)
    return found


async def test_what_is_on_disk_within_a_hold_has_all_of_each_commit_or_nothing(tmp_path: Path) -> None:
    """And all that was answered before the call, also a record that needs no decision and was not copied yet."""
    async with open_cluster(tmp_path / "run") as cluster, committing(cluster, 0) as one, committing(cluster, 1) as two:
        cluster.way.keep_order()
        found: list[list[int]] = []

        async def look() -> None:
            found.append(ends_on_disk(cluster))
            await trio.sleep(0.002)
            assert found[-1] == ends_on_disk(cluster), "nothing begins"

        for _ in range(20):
            before = one[0] + two[0]
            while not await cutting_of(cluster, 0).while_all_hold(look):
                pass
            assert found[-1][0] == found[-1][1] >= before
        assert min(one[0], two[0]) > 3, "holds again and again let commits go on"


async def test_hold_waits_for_the_copy_of_all_that_was_answered(tmp_path: Path) -> None:
    """Of all logs of all shards, though none is named."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        asked: list[object] = []
        for number in (0, 1):
            own_cuts = cluster.running[ShardNumber(number)].shard._connections.cutting._own_cuts
            await_ends = own_cuts.await_ends

            async def noted(logs: object, number: int = number, await_ends: Any = await_ends) -> NoCut | None:
                asked.append((number, logs))
                return NoCut("not copied yet") if number == 1 else await await_ends(logs)

            own_cuts.await_ends = noted

        async def never() -> None:
            raise AssertionError("nobody is held before it can be read")

        assert await cutting_of(cluster, 0).while_all_hold(never) == NoCut("not copied yet")
        assert sorted(asked, key=str) == [(0, None), (1, None)]


async def test_all_logs_are_waited_for_if_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are led here."""
    async with open_cluster(tmp_path / "run") as cluster:
        own_cuts = cluster.running[ShardNumber(0)].shard._connections.cutting._own_cuts
        asked: list[object] = []
        ask = AskedEnds.ask

        async def noted(leads: Any, logs: Any, *, wait_s: float) -> AskedEnds:
            asked.extend(logs)
            return await ask(leads, logs, wait_s=wait_s)

        monkeypatch.setattr(AskedEnds, "ask", noted)
        assert await own_cuts.await_ends(None) is None
        assert sorted(asked) == [OWN, log_of(0, 1)]


async def test_hold_that_was_not_in_force_to_the_end_is_told(tmp_path: Path) -> None:
    """Whether a coordinator has let go, or it took too long."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        commits = cluster.running[ShardNumber(1)].shard._connections.commits

        async def let_go() -> None:
            assert commits.release(ShardNumber(0), 1)

        assert await cutting_of(cluster, 0).while_all_hold(let_go) is False
        assert await cutting_of(cluster, 0).while_all_hold(trio.sleep_forever) is False
        assert await cutting_of(cluster, 0).while_all_hold(trio.lowlevel.checkpoint) is True


async def test_who_has_a_hold_and_fails_holds_nobody(tmp_path: Path) -> None:
    """The commits go on at once, and so does the next cut."""
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.way.keep_order()
        writer = await cluster.writer("t", 1)
        await writer.write({OWN: [b"1"], OTHER: [b"2"]})
        assert await writer.end() is None
        assert await cut_of(cluster, 0) == {OWN: 1, OTHER: 1}  # a greeting lost before keep_order() is said again

        async def gone() -> None:
            raise trio.BrokenResourceError

        began_s = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            await cutting_of(cluster, 0).while_all_hold(gone)
        await writer.write({OWN: [b"3"], OTHER: [b"4"]})
        assert await writer.end() is None
        assert trio.current_time() - began_s < HOLD_S / 2
        assert await cut_of(cluster, 0) == {OWN: 2, OTHER: 2}


async def test_nobody_is_held_for_a_backup_while_a_shard_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which one."""
    monkeypatch.setattr("shard.cutting.OWN_WAIT_S", 2.0)
    async with open_cluster(tmp_path / "run") as cluster:
        cluster.kill(1)
        found = await cutting_of(cluster, 0).while_all_hold(trio.lowlevel.checkpoint)
        assert isinstance(found, NoCut)
        assert "shard 1 has not answered in time: its process is down" in found.reason
        assert not any(is_command(message, Hold) for _, _, message in cluster.way.carried)
