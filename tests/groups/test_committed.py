"""Committed offsets: what is seen when, who is refused, what is forgotten; on real journals and data logs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing

from coordinator.answers import Refusal
from datalog import layout, reader
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from datalog.offset_entries import OffsetKey, decode_offset_entry
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_values import CommitUnderWay, OffsetRefusal, Sender
from fairlog_types import LogId, Offset
from partition.answers import RefusedAppend
from shard.offsets import OffsetsLogs
from tests.clients.raw_client import records_of
from tests.groups.desk import HOUR_MS, OTHER, TOPIC, Desk, new, open_desk_over
from tests.shard.runs import A, Clock, is_waiting, open_run, transaction

T0, T1 = transaction(7), transaction(7, 1)
FIRST = new(0).partition


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a task in the background brings about."""
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 (the copier tells nobody of deletions)
            await trio.sleep(0.002)


async def until_fetched(desk: Desk, group: str, expected: dict[tuple[str, int], int]) -> None:
    with trio.fail_after(10):
        while await desk.fetched(group) != expected:
            pass


async def several_sweeps(desk: Desk) -> None:
    """Wait until every group was looked at again and again."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1

    desk.members.on_ask = look
    await until(lambda: looks > 50)
    desk.members.on_ask = None


# --- plain commits ---------------------------------------------------------------------------------


async def test_commit_is_seen_once_it_is_settled(open_desk) -> None:
    """Offset, leader epoch, metadata and time, as committed; the last one counts, partition by partition."""
    async with open_desk() as desk:
        assert await desk.commit("g", new(5), new(6, 1)) is None
        assert await desk.commit("g", new(7, metadata="note", epoch=3)) is None
        fetched = await desk.offsets.fetch("g", None, require_stable=True)
        assert fetched is not None
        assert {place: it.value.offset for place, it in fetched.items()} == {
            new(0).partition: 7,
            new(0, 1).partition: 6,
        }
        kept = fetched[FIRST].value
        assert (kept.leader_epoch, kept.metadata, kept.commit_timestamp_ms) == (3, "note", desk.run.clock())


async def test_commit_of_one_partition_twice_keeps_the_last(open_desk) -> None:
    """One request may name a partition twice."""
    async with open_desk() as desk:
        await desk.commit("g", new(5), new(4))
        assert await desk.of_t() == 4


async def test_fetch_of_what_was_never_committed_finds_nothing(open_desk) -> None:
    """An unknown group, an unknown partition: no offset, no error."""
    async with open_desk() as desk:
        assert await desk.fetched("unknown") == {}
        assert await desk.fetched("unknown", [FIRST], stable=True) == {FIRST: None}


async def test_fetch_waits_for_a_commit_that_stands_in_the_journal(open_desk) -> None:
    """Whoever asks after a commit was sent sees it, or waits; another group does not wait for it."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        desk.run.disk.hold()
        commit = await desk.offsets.commit("g", Sender(), [new(2)])
        assert isinstance(commit, CommitUnderWay)
        assert await is_waiting(lambda: desk.offsets.settled(commit))
        assert await is_waiting(desk.of_t)
        assert await desk.of_t("other") is None
        desk.run.disk.let_go()
        assert await desk.of_t() == 2


async def test_commits_at_once_share_the_copy(open_desk) -> None:
    """300 groups that commit together cost far fewer LMDB commits than 300."""
    async with open_desk() as desk:
        await desk.commit("g0", new(0))
        copier = desk.run.partitions._copier
        before = copier.statistics().copied_chunks
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(desk.commit, f"g{number}", new(number))
        assert [await desk.of_t(f"g{number}") for number in range(0, 300, 50)] == list(range(0, 300, 50))
        assert copier.statistics().copied_chunks - before < 60


async def test_commit_that_does_not_fit_a_record_is_refused(open_desk) -> None:
    """As many partitions with as long strings as one record holds; nothing of it is kept."""
    async with open_desk(commit_bytes_max=2_000) as desk:
        many = [new(1, number, metadata="x" * 500) for number in range(4)]
        assert await desk.commit("g", *many) is OffsetRefusal.TOO_LARGE
        assert await desk.fetched("g") == {}
        await desk.run.begin(T0, desk.offsets.log_of("g"))
        assert await desk.commit_in(T0, "g", *many) is OffsetRefusal.TOO_LARGE


async def test_commit_refused_by_the_group_leaves_nothing(open_desk) -> None:
    """Who commits is told to the group as the request said it; its word is the answer."""
    async with open_desk() as desk:
        desk.members.refusal = GroupRefusal.ILLEGAL_GENERATION
        assert await desk.commit("g", new(1), sender=Sender("m", "i", 4)) is GroupRefusal.ILLEGAL_GENERATION
        assert desk.members.asked == [("g", "m", "i", 4, False)]
        assert await desk.fetched("g") == {}


async def test_commit_of_a_member_that_is_lost_while_it_waits_for_room_is_refused(open_desk) -> None:
    """The group is asked in the step of the append: behind the wait, a rebalance may have gone by."""
    async with open_desk() as desk:
        answers: list[object] = []

        async def commit() -> None:
            answers.append(await desk.commit("g", new(1)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.lowlevel.checkpoint()  # a journal that was never written to has no room yet
            assert desk.members.asked == []
            desk.members.refusal = GroupRefusal.UNKNOWN_MEMBER
        assert answers == [GroupRefusal.UNKNOWN_MEMBER]
        assert await desk.fetched("g") == {}


async def test_commit_on_a_disk_that_fails_is_refused_and_older_ones_are_read(open_desk) -> None:
    """The one that the failure meets is not settled; later ones are refused; what was copied can be read."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        await desk.commit("other", new(1))
        desk.run.disk.failing = str(desk.offsets.log_of("g"))
        commit = await desk.offsets.commit("g", Sender(), [new(2)])
        assert isinstance(commit, CommitUnderWay)
        assert not await desk.offsets.settled(commit)
        assert await desk.commit("g", new(3)) is RefusedAppend.STORAGE
        assert await desk.fetched("g") is None, "an older offset must not be told for the newest"
        assert await desk.of_t("other") == 1


# --- inside transactions ---------------------------------------------------------------------------


async def test_offsets_in_a_transaction_are_pending_until_it_is_decided(open_desk) -> None:
    """Old to who does not ask for stable ones, pending to who does; new after the commit, old after an abort."""
    async with open_desk() as desk:
        await desk.commit("g", new(1), new(1, 1))
        for txid, commit, after in ((T0, False, 1), (T1, True, 2)):
            await desk.begin(txid, "g")
            assert await desk.commit_in(txid, "g", new(2)) is None
            assert await desk.fetched("g", stable=True) == {FIRST: "pending", new(0, 1).partition: 1}
            assert await desk.of_t() == 1
            await desk.end(txid, "g", commit=commit)
            assert await desk.fetched("g", stable=True) == {FIRST: after, new(0, 1).partition: 1}


async def test_offsets_pending_are_told_though_there_is_no_older_one(open_desk) -> None:
    """Asked for all partitions, a first offset that is pending must not look like one that is missing."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        assert await desk.fetched("g", stable=True) == {FIRST: "pending"}
        assert await desk.fetched("g") == {}
        assert list(desk.offsets.groups()) == []
        await desk.end(T0, "g", commit=False)
        assert await desk.fetched("g", stable=True) == {}


async def test_offsets_of_a_decided_transaction_are_waited_for(open_desk) -> None:
    """Its commit was answered, so neither "pending" nor the old offset is an answer any more."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        logs = (A, desk.offsets.log_of("g"))
        await desk.run.prepare(T0, *logs)
        desk.run.disk.hold(str(desk.offsets.log_of("g")))
        desk.run.place(T0, *logs)
        assert await is_waiting(partial(desk.of_t, stable=True))
        desk.run.disk.let_go()
        assert await desk.of_t(stable=True) == 2


async def test_offsets_count_in_the_prepare_like_a_batch(open_desk) -> None:
    """Each TxnOffsetCommit is one record of its log, so a commit that lost one could not be prepared."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        log = desk.offsets.log_of("g")
        for offset in (1, 2):
            await desk.commit_in(T0, "g", new(offset), new(offset, 1))
        assert {log: it.records for log, it in (await desk.run.prepare(T0, A, log)).items()} == {A: 0, log: 2}
        desk.run.place(T0, A, log)
        await desk.run.applied(T0)
        assert await desk.fetched("g") == {FIRST: 2, new(0, 1).partition: 2}


async def test_offsets_of_several_groups_in_one_transaction_become_visible_together(open_desk) -> None:
    """Also where two of the groups share a log."""
    async with open_desk() as desk:
        groups = [f"g{number}" for number in range(6)]
        assert len({desk.offsets.log_of(group) for group in groups}) < len(groups)
        await desk.begin(T0, *groups)
        for number, group in enumerate(groups):
            await desk.commit_in(T0, group, new(number))
        assert [await desk.of_t(group, stable=True) for group in groups] == ["pending"] * 6
        await desk.end(T0, *groups)
        assert [await desk.of_t(group, stable=True) for group in groups] == list(range(6))


def one_cut(data_logs: LmdbDataLogs, log: LogId, group: str) -> tuple[int, int]:
    """How many records A has, and the group's offset in its partition: in ONE read transaction of LMDB."""
    with data_logs._reading("a test") as txn:
        tables, batches = data_logs._tables, data_logs._batches
        request = ReadRequest(A, Offset(0), 1 << 30)
        (answer,) = reader.read_requests(txn, tables, [(request, batches[A])], 1 << 30)
        assert isinstance(answer, ReadResult)
        count = sum(len(records_of(data)) for data in answer.batches)
        record = reader.find_record(txn, tables, log)
        assert record is not None
        value = txn.get(layout.offset_key(record.number, OffsetKey(group, *FIRST)), db=tables.offsets)
        kept = None if value is None else decode_offset_entry(value).value
        return count, 0 if kept is None else kept.offset


async def test_offsets_and_output_of_a_transaction_are_seen_in_one_read(open_desk) -> None:
    """Invariant 7: a reader finds as many records as the offset says were consumed, in every cut there is."""
    async with open_desk() as desk:
        log = desk.offsets.log_of("g")
        done, seen = Event(), list[int]()

        def read_on() -> None:
            while not done.is_set():
                records, offset = one_cut(desk.run.data_logs, log, "g")
                assert records == offset
                seen.append(offset)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read_on)
            try:
                # The reader's thread may get little time: they go on until it has seen some of them.
                for number in itertools.takewhile(lambda number: number < 60 or len(set(seen)) <= 3, itertools.count()):
                    txid = transaction(7, number)
                    await desk.begin(txid, "g")
                    await desk.run.write(txid, A, b"%d" % number, sequence=number)
                    await desk.commit_in(txid, "g", new(number + 1))
                    await desk.end(txid, "g")
            finally:
                done.set()
        assert one_cut(desk.run.data_logs, log, "g") == (number + 1, number + 1)


@pytest.mark.parametrize("late", ["output", "offsets"])
async def test_offsets_and_output_are_seen_together_though_one_is_durable_long_before_the_other(
    open_desk, late: str
) -> None:
    """Invariant 7 where it is hardest: the APPLY of one log is on disk, and could be copied."""
    async with open_desk() as desk:
        log = desk.offsets.log_of("g")
        await desk.begin(T0, "g")
        await desk.run.write(T0, A, b"v")
        await desk.commit_in(T0, "g", new(1))
        await desk.run.prepare(T0, A, log)
        desk.run.disk.hold(str(A if late == "output" else log))
        desk.run.place(T0, A, log)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert one_cut(desk.run.data_logs, log, "g") == (0, 0)
        desk.run.disk.let_go()
        await desk.run.partitions.drain()
        assert one_cut(desk.run.data_logs, log, "g") == (1, 1)


# --- zombies ---------------------------------------------------------------------------------------


async def nothing_is_there(desk: Desk) -> None:
    """Neither seen nor pending, nor after the transaction of whoever is right has been committed."""
    assert await desk.fetched("g", stable=True) == {}
    txid = transaction(7, 99, epoch=desk.ids.epochs.get(7, 0))
    await desk.begin(txid, "g")
    await desk.end(txid, "g")
    assert await desk.fetched("g", stable=True) == {}


async def test_offsets_for_a_group_whose_log_was_not_added_are_refused(open_desk) -> None:
    """Nothing open at all, and a transaction that is open elsewhere."""
    async with open_desk() as desk:
        assert await desk.commit_in(T0, "g", new(1)) is RefusedAppend.NOT_IN_TRANSACTION
        await desk.run.begin(T0, A)
        assert await desk.commit_in(T0, "g", new(1)) is RefusedAppend.NOT_IN_TRANSACTION
        await desk.end(T0)
        await nothing_is_there(desk)


async def test_offsets_of_a_fenced_epoch_are_refused(open_desk) -> None:
    """Invariant 9, also where the new instance has not touched the group's log, and before it has begun anything."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(1))
        desk.ids.epochs[7] = 1
        await desk.end(T0, "g", commit=False)
        assert await desk.commit_in(T0, "g", new(1)) is Refusal.FENCED
        await desk.begin(transaction(7, epoch=1), "g")
        assert await desk.commit_in(T0, "g", new(1)) is Refusal.FENCED
        assert await desk.commit_in(transaction(7, epoch=2), "g", new(1)) is Refusal.FENCED
        await desk.end(transaction(7, epoch=1), "g")
        await nothing_is_there(desk)


@pytest.mark.parametrize(
    ("state", "refusal"), [("MUST_ABORT", Refusal.MUST_ABORT), ("gone", Refusal.UNKNOWN_PRODUCER_ID_MAPPING)]
)
async def test_offsets_of_a_producer_whom_the_coordinator_does_not_let_go_on_are_refused(
    open_desk, state: str, refusal: Refusal
) -> None:
    """It has aborted the transaction, or does not know the id (any more), or knows it with another producer id."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        desk.ids.states[7] = state
        if state == "gone":
            desk.ids.gone.add(7)
        assert await desk.commit_in(T0, "g", new(1)) is refusal
        desk.ids.states[7], desk.ids.gone = "OPEN", set()
        await desk.end(T0, "g", commit=False)
        await nothing_is_there(desk)


async def test_offsets_of_a_stale_generation_are_refused(open_desk) -> None:
    """KIP-447: the generation fences where all instances share no transactional id; the group is asked as such."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        desk.members.refusal = GroupRefusal.ILLEGAL_GENERATION
        refused = await desk.commit_in(T0, "g", new(1), sender=Sender("m", None, 3))
        assert refused is GroupRefusal.ILLEGAL_GENERATION
        assert desk.members.asked == [("g", "m", None, 3, True)]
        await desk.end(T0, "g")
        await nothing_is_there(desk)


async def test_offsets_after_the_end_of_their_transaction_are_refused(open_desk) -> None:
    """Late ones: the transaction is sealed, committed or aborted, and the next one has not begun."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        desk.run.seal(T0, A, desk.offsets.log_of("g"))
        assert await desk.commit_in(T0, "g", new(1)) is RefusedAppend.NOT_IN_TRANSACTION
        await desk.end(T0, "g")
        assert await desk.commit_in(T0, "g", new(1)) is RefusedAppend.NOT_IN_TRANSACTION
        await nothing_is_there(desk)


async def test_offsets_that_have_waited_since_the_transaction_before_are_refused(tmp_path: Path) -> None:
    """They came in with a transaction that was aborted meanwhile; in the next one they would be committed after all."""
    async with open_run(tmp_path, leader_epoch=1, backlog_bytes_max=1) as run, open_desk_over(run) as desk:
        await desk.begin(T0, "g")
        answers: list[object] = []

        async def commit() -> None:
            answers.append(await desk.commit_in(T0, "g", new(1)))

        run.disk.hold()
        await run.plain(A, b"not copied, so there is no room")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked(0.02)
            await desk.end(T0, "g", commit=False)
            await desk.begin(T1, "g")
            run.disk.let_go()
        assert answers == [RefusedAppend.NOT_IN_TRANSACTION]
        await desk.end(T1, "g")
        await nothing_is_there(desk)


async def test_offsets_repeated_on_a_new_connection_count_once_and_the_late_original_is_refused(open_desk) -> None:
    """The answer was lost, the client asks again on another connection; what was on the way comes afterwards."""
    async with open_desk() as desk:
        await desk.begin(T0, "g")
        assert await desk.commit_in(T0, "g", new(1), connection=4) is None
        assert await desk.commit_in(T0, "g", new(1), connection=5) is None
        assert await desk.commit_in(T0, "g", new(2), connection=5) is None
        assert await desk.commit_in(T0, "g", new(1), connection=4) is Refusal.LATE
        await desk.end(T0, "g")
        assert await desk.of_t() == 2
        await desk.begin(T1, "g")
        assert await desk.commit_in(T1, "g", new(1), connection=4) is Refusal.LATE
        await desk.end(T1, "g")
        assert await desk.of_t() == 2


# --- forgetting ------------------------------------------------------------------------------------


async def test_delete_forgets_all_offsets_of_a_group(open_desk) -> None:
    """And no other's; when it returns, it is seen. Deleting nothing succeeds."""
    async with open_desk() as desk:
        for group in ("g", "h"):
            await desk.commit(group, new(1), new(2, 1))
        assert sorted(desk.offsets.groups()) == ["g", "h"]
        assert await desk.offsets.delete("g") is None
        assert await desk.fetched("g") == {}
        assert list(desk.offsets.groups()) == ["h"]
        assert desk.offsets.last_commit_ms("g") is None
        assert len(await desk.fetched("h")) == 2
        assert await desk.offsets.delete("g") is None
        assert await desk.offsets.delete("never was") is None


async def test_delete_of_a_group_with_members_is_refused(open_desk) -> None:
    """Also if the first member comes while the offsets are being read."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        desk.members.consuming["g"] = frozenset({"t"})
        assert await desk.offsets.delete("g") is GroupRefusal.NON_EMPTY_GROUP
        del desk.members.consuming["g"]
        looks = 0

        def join() -> None:
            nonlocal looks
            looks += 1
            if looks == 2:
                desk.members.consuming["g"] = None

        desk.members.on_ask = join
        assert await desk.offsets.delete("g") is GroupRefusal.NON_EMPTY_GROUP
        assert await desk.of_t() == 1


async def test_delete_takes_a_commit_along_that_comes_in_between(open_desk, monkeypatch) -> None:
    """A commit between the reading and the deletion is read as well; one after the other, and it gives up."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        wanted = iter([0, 1])

        async def append_meanwhile(logs: OffsetsLogs, log: LogId, offset: Offset) -> None:
            await visible(logs, log, offset)
            if next(wanted, None) is not None:
                assert isinstance(await desk.offsets.commit("g", Sender(), [new(9, 1)]), CommitUnderWay)

        visible = OffsetsLogs.visible
        monkeypatch.setattr(OffsetsLogs, "visible", append_meanwhile)
        assert await desk.offsets.delete("g") is None
        assert await desk.fetched("g") == {}
        await desk.commit("g", new(5))
        wanted = iter(range(1000))
        assert await desk.offsets.delete("g") is GroupRefusal.NON_EMPTY_GROUP
        wanted = iter(())
        assert await desk.fetched("g") == {FIRST: 5, new(0, 1).partition: 9}


async def test_delete_many_offsets_takes_several_records(open_desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may have more offsets than are deleted by one record."""
    monkeypatch.setattr("fairlog.groups.committed.DELETED_AT_ONCE", 7)
    async with open_desk() as desk:
        await desk.commit("g", *[new(1, number) for number in range(30)])
        assert await desk.offsets.delete("g") is None
        assert await desk.fetched("g") == {}
        assert list(desk.offsets.groups()) == []


async def test_delete_leaves_what_is_pending_to_its_transaction(open_desk) -> None:
    """Committed after the deletion, it is there; that is the order in which the two happened."""
    async with open_desk() as desk:
        await desk.commit("g", new(1))
        await desk.begin(T0, "g")
        await desk.commit_in(T0, "g", new(2))
        assert await desk.offsets.delete("g") is None
        assert await desk.fetched("g", stable=True) == {FIRST: "pending"}
        await desk.end(T0, "g")
        assert await desk.fetched("g", stable=True) == {FIRST: 2}
        assert list(desk.offsets.groups()) == ["g"]


async def test_delete_partitions_leaves_those_that_are_consumed(open_desk) -> None:
    """KIP-496: topics of the members stay; a group that is unknown, or cannot be looked into, is refused whole."""
    async with open_desk() as desk:
        there = {FIRST: "t", new(0, topic=OTHER).partition: "u", new(0, 2).partition: "t"}
        assert await desk.offsets.delete_partitions("g", there) is GroupRefusal.UNKNOWN_GROUP
        await desk.commit("g", new(1), new(2, topic=OTHER))
        desk.members.consuming["g"] = None
        assert await desk.offsets.delete_partitions("g", there) is GroupRefusal.NON_EMPTY_GROUP
        desk.members.consuming["g"] = frozenset({"t"})
        assert await desk.offsets.delete_partitions("g", there) == {
            FIRST: GroupRefusal.SUBSCRIBED,
            new(0, topic=OTHER).partition: None,
            new(0, 2).partition: GroupRefusal.SUBSCRIBED,
        }
        assert await desk.fetched("g") == {FIRST: 1}
        del desk.members.consuming["g"]
        assert await desk.offsets.delete_partitions("g", there) == dict.fromkeys(there)
        assert list(desk.offsets.groups()) == []


async def test_offsets_expire_when_their_group_has_been_empty_for_so_long(open_desk) -> None:
    """Counted from the commit or from the moment the last member left; a group with members keeps what it consumes."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        for group in ("nobody", "left", "there"):
            await desk.commit(group, new(1), new(1, topic=OTHER))
        desk.members.consuming["there"] = frozenset({"t"})
        desk.members.empty_since["left"] = desk.run.clock() + HOUR_MS // 2
        nursery.start_soon(desk.offsets.run)
        desk.run.clock.ms += HOUR_MS - 1
        await several_sweeps(desk)
        assert sorted(desk.offsets.groups()) == ["left", "nobody", "there"]
        desk.run.clock.ms += 1
        await until(lambda: sorted(desk.offsets.groups()) == ["left", "there"])
        assert await desk.fetched("nobody") == {}
        await until_fetched(desk, "there", {FIRST: 1})  # the topic that is consumed no more has had its time as well
        desk.run.clock.ms += HOUR_MS // 2
        await until(lambda: list(desk.offsets.groups()) == ["there"])
        nursery.cancel_scope.cancel()


async def test_offsets_of_a_group_that_is_not_remembered_are_kept_since_its_members_left(open_desk) -> None:
    """A consumer of a quiet topic that is down for an hour finds its place again, however old its last commit is."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1))
        desk.members.consuming["g"] = frozenset({"t"})
        nursery.start_soon(desk.offsets.run)
        desk.run.clock.ms += 10 * HOUR_MS
        await several_sweeps(desk)
        del desk.members.consuming["g"]
        desk.run.offset_index.members_left("g", desk.run.clock())
        desk.run.clock.ms += HOUR_MS - 1
        await several_sweeps(desk)
        assert await desk.fetched("g") == {FIRST: 1}
        desk.run.clock.ms += 1
        await until(lambda: list(desk.offsets.groups()) == [])
        nursery.cancel_scope.cancel()


async def test_offset_that_is_committed_again_does_not_expire(open_desk) -> None:
    """Its time begins anew; other partitions of the same group go."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1), new(1, 1))
        desk.run.clock.ms += HOUR_MS // 2
        await desk.commit("g", new(2))
        desk.run.clock.ms += HOUR_MS // 2
        nursery.start_soon(desk.offsets.run)
        await until_fetched(desk, "g", {FIRST: 2})
        nursery.cancel_scope.cancel()


async def test_offsets_of_a_group_that_somebody_joins_are_not_taken_from_under_it(open_desk) -> None:
    """The group is looked at again in the step of the deletion: whoever came meanwhile may have read them."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1))
        desk.run.clock.ms += HOUR_MS
        looks = 0

        def join() -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                desk.members.consuming["g"] = frozenset({"t"})

        desk.members.on_ask = join
        nursery.start_soon(desk.offsets.run)
        await until(lambda: looks > 20)
        assert await desk.of_t() == 1
        nursery.cancel_scope.cancel()


async def test_offsets_of_a_deleted_topic_go_with_it(open_desk) -> None:
    """At once when it is told, whoever consumes it; those of other topics stay."""
    async with open_desk(check_interval_ms=3_600_000) as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1), new(2, topic=OTHER))
        await desk.commit("h", new(1))
        desk.members.consuming["h"] = frozenset({"t"})
        nursery.start_soon(desk.offsets.run)
        await trio.testing.wait_all_tasks_blocked(0.02)
        del desk.topics.by_id[TOPIC.topic_id]
        desk.offsets.topic_deleted()
        await until(lambda: list(desk.offsets.groups()) == ["g"])
        await until_fetched(desk, "g", {new(0, topic=OTHER).partition: 2})
        nursery.cancel_scope.cancel()


async def test_expiry_on_a_failed_disk_says_so_once(open_desk) -> None:
    """However often it looks. Nothing is lost by it: the next start looks again."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1))
        desk.run.clock.ms += HOUR_MS
        desk.run.partitions.refuse_writes("a disk has failed")
        with structlog.testing.capture_logs() as lines:
            nursery.start_soon(desk.offsets.run)
            await several_sweeps(desk)
        assert [line["event"] for line in lines] == ["expired offsets stay for now"]
        assert await desk.of_t() == 1
        nursery.cancel_scope.cancel()


async def test_expiry_that_was_refused_is_made_up_for(open_desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood in the way may pass, such as a want of file descriptors."""
    append, refusals = OffsetsLogs.append_offsets, 3

    async def append_at_last(leaders: OffsetsLogs, *args: Any, **kwargs: Any) -> object:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            return RefusedAppend.STORAGE
        return await append(leaders, *args, **kwargs)

    async with open_desk() as desk, trio.open_nursery() as nursery:
        await desk.commit("g", new(1))
        desk.run.clock.ms += HOUR_MS
        monkeypatch.setattr(OffsetsLogs, "append_offsets", append_at_last)
        nursery.start_soon(desk.offsets.run)
        await until(lambda: not desk.offsets.groups())
        nursery.cancel_scope.cancel()


async def test_latest_connections_are_forgotten_with_their_producers(open_desk) -> None:
    """A transactional id per checkpoint does not eat the node's memory."""
    async with open_desk() as desk, trio.open_nursery() as nursery:
        for number in range(20):
            await desk.begin(transaction(number), "g")
            await desk.commit_in(transaction(number), "g", new(number))
            await desk.end(transaction(number), "g")
        assert desk.producers.remembered == 20
        desk.ids.gone |= set(range(19))
        nursery.start_soon(desk.offsets.run)
        await until(lambda: desk.producers.remembered == 1)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_journals_of_offsets_are_cut_behind_the_copy(open_desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 11 for offsets logs: segments go when all in them is copied, and the newest offsets stay."""
    monkeypatch.setattr(
        "copier.reclaim.Reclaimer.__init__.__kwdefaults__", {"interval_s": 0.02, "copied_bytes_max": 1 << 30}
    )
    async with open_desk() as desk:
        journal = desk.run.directory / "local" / str(desk.offsets.log_of("g"))
        note = "x" * 4000
        for offset in range(60):
            await desk.commit("g", *[new(offset, number, metadata=note) for number in range(12)])
        deadline = time.monotonic() + 10
        while len(list(journal.glob("*.journal"))) > 2:
            assert time.monotonic() < deadline, list(journal.iterdir())
            await trio.sleep(0.02)
        assert await desk.of_t() == 59
        clock: Clock = desk.run.clock
    async with open_desk(clock=clock) as again:
        assert await again.of_t() == 59
