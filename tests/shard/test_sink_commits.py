"""Several transactions placed as one, at the partition leaders: what a sink commit asks of them.

Two lanes write to the same two logs. In each log the second lane's records follow the first one's; a reader of both
logs finds all four parts or none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import trio
import trio.testing

import copier.apply
import copier.copier
from coordinator.messages import Application, ApplyCommit, Expected, Prepare
from copier.backlog import Backlog
from fairlog_types import JournalPosition, LeaderEpoch, LogId, Offset, Placement, TxId
from journal.journal import Journal, JournalKind
from journal.read_only import open_read_only
from journal.segment import SEGMENT_HEADER_BYTES
from partition.answers import Appended, RefusedAppend
from partition.modes import JOURNAL, MARKERS, TransactionMode
from partition.visibility import Visibility
from tests.shard.runs import JOURNALS, A, B, C, Run, read_all, transaction

LANES = transaction(7), transaction(8)
EXPECTED = {A: Expected(LeaderEpoch(1), 1), B: Expected(LeaderEpoch(1), 1)}
"""What each lane holds."""


async def write(run: Run, txid: TxId, *logs: LogId, sequence: int = 0) -> None:
    """One record in each of the logs, prepared."""
    await run.begin(txid, *logs)
    for log in logs:
        value = b"%d.%d" % (txid.producer_id, txid.number)
        assert isinstance(await run.write(txid, log, value, sequence=sequence), Appended)
    await run.prepare(txid, *logs)


def messages(*logs: LogId, number: int = 0) -> list[ApplyCommit]:
    return [ApplyCommit(TxId(lane.producer_id, lane.epoch, number), logs, 0, "g") for lane in LANES]


def place(run: Run, messages: Sequence[ApplyCommit]) -> Application:
    return run.participant.apply(messages)


async def test_lanes_placed_together_follow_each_other_in_every_log(open_run) -> None:
    """In the order of the messages, whoever wrote first, between what was placed before and what comes behind."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(A, b"before")
        for lane in reversed(LANES):
            await write(run, lane, A, B)
        place(run, messages(A, B))
        await run.plain(A, b"behind")
        await run.partitions.drain()
        values = [b"7.0", b"8.0"]
        assert await run.snapshot(A, B) == {A: [b"before", *values, b"behind"], B: values}


async def test_lanes_prepared_together_cost_one_flush_of_each_log(open_run, monkeypatch) -> None:
    """Through what the last of them has written there, in whatever order they are named."""
    asked: list[JournalPosition] = []
    flush = Journal.flush

    async def noted(self: Journal, through: JournalPosition) -> None:
        asked.append(through)
        await flush(self, through)

    async with open_run() as run:
        await run.start(A, B)
        first, last = LANES
        for lane in (last, first):
            await run.begin(lane, A, B)
            for log in (A, B):
                assert isinstance(await run.write(lane, log, b"v"), Appended)
        participants = run.participant
        ends = [run[log].state.written_through(first) for log in (A, B)]
        monkeypatch.setattr(Journal, "flush", noted)
        preparation = participants.prepare([Prepare(lane, dict.fromkeys((A, B), LeaderEpoch(1))) for lane in LANES])
        assert preparation.expected == dict.fromkeys(LANES, EXPECTED)
        assert (await preparation.outcome()).refused == {}
        assert asked == ends
        for log, end in zip((A, B), ends, strict=True):
            assert run[log].journal.durable >= end


async def test_lanes_prepared_together_are_refused_by_the_log_that_lacks_one(open_run) -> None:
    """With the first lane's reason; what the others hold is no matter then."""
    async with open_run() as run:
        await run.start(A, B)
        for lane in LANES:
            await run.begin(lane, A, B)
            assert isinstance(await run.write(lane, A, b"v"), Appended)
        refused = (await run.prepare_again(EXPECTED, *LANES)).refused
        assert list(refused) == [B]
        assert str(LANES[0]) in refused[B]


async def test_lanes_placed_together_have_one_apply_number_and_the_next_commit_another(open_run) -> None:
    """By it a restart knows what belongs together."""
    async with open_run() as run:
        await run.start(A, B, C)
        for lane, log in zip(LANES, (A, B), strict=True):
            await write(run, lane, log)
        place(run, [ApplyCommit(LANES[0], (A,), 0, "g"), ApplyCommit(LANES[1], (B,), 0, "g")])
        other = transaction(9)
        await write(run, other, C)
        run.place(other, C)
        numbers = [await run.apply_number(txid, A, B, C) for txid in (*LANES, other)]
        assert numbers == [0, 0, 1]


async def test_places_are_told_when_the_records_can_be_read_there(open_run) -> None:
    """Lanes that have logs in common follow each other there; a log that nothing was written to has no place."""
    async with open_run() as run:
        await run.start(A, B)
        await run.plain(B, b"before")
        await run.partitions.drain()
        for lane in LANES:
            await write(run, lane, A, B)
        run.disk.hold()
        application = place(run, messages(A, B, C))
        assert await run.snapshot(A, B) == {A: [], B: [b"before"]}
        run.disk.let_go()
        assert [it.placements for it in await application.visible()] == [
            (Placement(A, Offset(0), 1), Placement(B, Offset(1), 1)),
            (Placement(A, Offset(1), 1), Placement(B, Offset(2), 1)),
        ]
        assert await run.snapshot(A, B) == {A: [b"7.0", b"8.0"], B: [b"before", b"7.0", b"8.0"]}


async def test_lanes_whose_logs_are_not_durable_together_become_visible_together(open_run) -> None:
    """Each lane wrote to a log of its own, and one of these is on disk long before the other."""
    async with open_run() as run:
        await run.start(A, B)
        for lane, log in zip(LANES, (A, B), strict=True):
            await write(run, lane, log)
        run.disk.hold(str(B))
        place(run, [ApplyCommit(LANES[0], (A,), 0, "g"), ApplyCommit(LANES[1], (B,), 0, "g")])
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await run.snapshot(A, B) == {A: [], B: []}
        run.disk.let_go()
        await run.partitions.drain()
        assert await run.snapshot(A, B) == {A: [b"7.0"], B: [b"8.0"]}


async def test_lanes_placed_together_are_seen_whole_by_every_reader(open_run) -> None:
    """Invariant 7 for groups: at any moment a reader of both logs finds the same batches of lanes in both."""
    async with open_run() as run:
        await run.start(A, B)
        done, seen = Event(), list[int]()

        def read_on() -> None:
            while not done.is_set():
                found = read_all(run.data_logs, (A, B))
                assert found[A] == found[B]
                assert len(found[A]) % len(LANES) == 0
                seen.append(len(found[A]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read_on)
            try:
                # The reader's thread may get little time: they go on until it has seen some of them.
                for number in itertools.takewhile(lambda number: number < 20 or len(set(seen)) <= 2, itertools.count()):
                    for lane in LANES:
                        await write(run, transaction(lane.producer_id, number), A, B, sequence=number)
                    await place(run, messages(A, B, number=number)).visible()
            finally:
                done.set()


@pytest.mark.parametrize("mode", [JOURNAL, MARKERS])
async def test_lanes_in_topics_of_both_modes_become_visible_together(open_run, mode: TransactionMode) -> None:
    """A lane's part in a log of marker mode is its marker."""
    async with open_run() as run:
        await run.lead((A,), MARKERS)
        await run.start(B, mode=mode)
        for lane in LANES:
            await write(run, lane, A, B)
        run.disk.hold(str(B))
        place(run, messages(A, B))
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert await run.committed(A, B) == {A: [], B: []}
        run.disk.let_go()
        await run.partitions.drain()
        values = {log: [value for _, value in found] for log, found in (await run.committed(A, B)).items()}
        assert values == {A: [b"7.0", b"8.0"], B: [b"7.0", b"8.0"]}


async def test_lanes_applied_together_wait_for_what_is_there_then(open_run, monkeypatch) -> None:
    """Once for each log, whatever others write to a log of marker mode meanwhile."""
    waits: list[tuple[LogId, Offset]] = []
    async with open_run() as run:
        await run.lead((A,), MARKERS)
        await run.start(B)
        for lane in LANES:
            await write(run, lane, A, B)
        application = place(run, messages(A, B))
        reach = Visibility.reach

        async def noted(visibility: Visibility, offset: Offset) -> None:
            waits.append((visibility.log, offset))
            await run.plain(A, b"of somebody else")
            await reach(visibility, offset)

        monkeypatch.setattr(Visibility, "reach", noted)
        applied = await application.visible()
        assert waits == [(A, 4), (B, 2)]
        assert [it.placements for it in applied] == [
            (Placement(A, Offset(0), 1), Placement(B, Offset(0), 1)),
            (Placement(A, Offset(1), 1), Placement(B, Offset(1), 1)),
        ]


async def test_placing_together_that_fails_half_way_is_seen_by_nobody(open_run, arm) -> None:
    """A journal fails between two lanes: nothing of it is copied in this run, and writes are refused from then on."""
    async with open_run() as run:
        await run.start(A, B)
        for lane in LANES:
            await write(run, lane, A, B)
        arm("coordinator.place.between_logs:fail:3")
        with pytest.raises(OSError, match="failpoint"):
            place(run, messages(A, B))
        assert await run.plain(A, b"v") is RefusedAppend.STORAGE
        assert await run.snapshot(A, B) == {A: [], B: []}


# --- restarts ----------------------------------------------------------------------------------------


def ends_of_frames(directory: Path, log: LogId) -> list[int]:
    """Where in the log's only segment frames end, in bytes of the file."""
    journal = open_read_only(directory / JOURNALS / str(log), kind=JournalKind.LOCAL)
    starts = [SEGMENT_HEADER_BYTES + frame.position for frame in journal.frames(journal.start)]
    return [*starts[1:], SEGMENT_HEADER_BYTES + journal.end]


def tear(directory: Path, log: LogId, to_bytes: int) -> None:
    """Leave the first bytes of the log's only segment, and zeros: a loss of power."""
    (segment,) = (directory / JOURNALS / str(log)).glob("*.journal")
    content = segment.read_bytes()
    segment.write_bytes(content[:to_bytes].ljust(len(content), b"\0"))


def read_after_every_group(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[dict[LogId, list[bytes | None]]]:
    """Let every group be copied by itself; what readers of both logs find behind each goes into the list."""
    seen: list[dict[LogId, list[bytes | None]]] = []

    def apply_and_read(*args: Any) -> copier.apply.Copied:
        copied = copier.apply.apply(*args)
        seen.append(read_all(run.data_logs, (A, B)))
        return copied

    take = Backlog.take
    monkeypatch.setattr(Backlog, "take", lambda self, is_durable, bytes_max: take(self, is_durable, bytes_max=0))
    monkeypatch.setattr(copier.copier, "apply", apply_and_read)
    return seen


async def say_again(run: Run) -> None:
    """What a coordinator does that finds a group's PREPARE_COMMIT without COMMITTED."""
    for lane in LANES:
        assert not (await run.prepare_again(EXPECTED, lane)).refused
    place(run, messages(A, B))


@pytest.mark.slow
@pytest.mark.parametrize("kept_of_a", range(3))
@pytest.mark.parametrize("kept_of_b", range(3))
@pytest.mark.parametrize("torn", [0, 9])
async def test_restart_with_any_of_the_applies_lost_brings_the_lanes_together_again(
    open_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_of_a: int, kept_of_b: int, torn: int
) -> None:
    """However many of its two APPLYs each log kept, and be the next one torn: the same places, and one instant."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        await run.plain(B, b"before")
        for lane in LANES:
            await write(run, lane, A, B)
        place(run, messages(A, B))
        crashed = run.crash(tmp_path / "crashed")
    for log, kept in ((A, kept_of_a), (B, kept_of_b)):
        ends = ends_of_frames(crashed, log)
        tear(crashed, log, ends[-3 + kept] + (torn if kept < len(LANES) else 0))
    async with open_run(crashed) as again:
        await again.lead((A, B))
        await say_again(again)
        again.finish_recovery()
        # Torn once more: a group that was placed again and not copied is no other case.
        crashed = again.crash(tmp_path / "crashed again")
        numbers = {await again.apply_number(lane, log) for lane in LANES for log in (A, B)}
        assert numbers == {0}
    async with open_run(crashed) as third:
        await third.lead((A, B))
        await say_again(third)
        seen = read_after_every_group(third, monkeypatch)
        await third.serve()
    whole = {A: [b"7.0", b"8.0"], B: [b"before", b"7.0", b"8.0"]}
    assert seen[-1] == whole
    assert all(found in ({A: [], B: []}, {A: [], B: [b"before"]}, whole) for found in seen)


async def test_restart_places_a_group_again_before_what_is_new(open_run, tmp_path: Path) -> None:
    """What was placed before the crash in one log only keeps its number, and comes before younger transactions."""
    async with open_run() as run:
        await run.start(A, B, copying=False)
        for lane in LANES:
            await write(run, lane, A, B)
        place(run, messages(A, B))
        crashed = run.crash(tmp_path / "crashed")
    tear(crashed, B, ends_of_frames(crashed, B)[-3])
    async with open_run(crashed) as again:
        await again.lead((A, B))
        await say_again(again)
        await again.serve()
        await again.commit(transaction(9), {A: b"next", B: b"next"})
        assert await again.apply_number(transaction(9), A) == 1
        assert await again.snapshot(A, B) == {log: [b"7.0", b"8.0", b"next"] for log in (A, B)}
