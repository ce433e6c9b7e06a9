"""The copier between doubles: what it waits for, in which order it tells, and how it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from copier.backlog import SMALL_BYTES
from copier.copier import BACKLOG_BYTES_SLOW, BACKLOG_S, OUTRUN_BYTES
from datalog.offset_entries import CommittedOffset, GroupEntry, OffsetEntry, OffsetKey, encode_offset_entries
from fairlog_types import JournalPosition, LogId, Offset, ProducerId, StorageFailure

A, B, C = (LogId("t", "ab" * 16, partition) for partition in range(3))
OFFSETS = LogId.of_offsets(0)
TIMEOUT_S = 5
"""Real time, for the copy is done in a thread: only a test that hangs ever takes it."""


async def test_batch_alone_is_copied_and_told(make_node: Any, nursery: trio.Nursery) -> None:
    """A plain batch, once durable, is in the data log, patched; the leader is told before those who wait."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"one", records=3),))
    with trio.fail_after(TIMEOUT_S):
        await node.copied(A, 3)
    assert node.told == [{A: 3}]
    (batch,) = node.data_logs.content[A].batches
    assert batch == (0, bytes(8) + (7).to_bytes(4, "big") + (3).to_bytes(4, "big") + b"one")
    assert node.data_logs.content[A].mark.copied_through == node.journals[A].end
    assert node.copier.backlog_bytes == 0


async def test_frames_are_let_go_of_once_the_copy_is_committed(make_node: Any, nursery: trio.Nursery) -> None:
    """Each batch's frame, of plain batches and of transactions; not while the copy may have to read it again."""
    node = make_node([A])
    journal = node.journals[A]
    seen_while_reading: list[int] = []
    journal.on_read = lambda: seen_while_reading.append(len(journal.let_go_of))
    node.copier.submit((node.plain(A, b"one"),))
    node.copier.submit(node.transaction({A: [b"a1", b"a2"]}))
    nursery.start_soon(node.copier.run)
    await node.copier.drain()
    assert seen_while_reading == [0, 0, 0]
    assert journal.let_go_of == [position for position, payload in journal.payloads.items() if payload]
    assert len(journal.let_go_of) == 3


async def test_frames_are_kept_if_the_copy_is_not_committed(make_node: Any, nursery: trio.Nursery, arm: Any) -> None:
    """What has failed is read again, after a restart or before."""
    node = make_node([A])
    arm("copier.copy.before_commit:fail:1")
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"one"),))
    with pytest.raises(StorageFailure):
        await node.copier.drain()
    assert node.journals[A].let_go_of == []


async def test_batch_is_not_copied_before_it_is_durable(make_node: Any, nursery: trio.Nursery) -> None:
    """The data log never holds what a crash could still take out of the journal."""
    node = make_node([A])
    node.journals[A].hold()
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"one"),))
    assert node.journals[A].flushes_started == 1
    await wait_all_tasks_blocked()
    assert node.texts(A) == []
    node.journals[A].release()
    await node.copier.drain()
    assert node.texts(A) == [b"one"]


async def test_transaction_waits_until_all_its_logs_are_durable(make_node: Any, nursery: trio.Nursery) -> None:
    """All local logs of a transaction change in one version of the data logs, and never before all are durable."""
    node = make_node([A, B])
    node.journals[B].hold()
    nursery.start_soon(node.copier.run)
    node.copier.submit(node.transaction({A: [b"a1", b"a2"], B: [b"b1"]}))
    await wait_all_tasks_blocked()
    assert node.texts(A) == []
    node.journals[B].release()
    await node.copier.drain()
    assert node.texts(A) == [b"a1", b"a2"]
    assert node.texts(B) == [b"b1"]
    assert [len(v[A].batches) + len(v[B].batches) for v in node.data_logs.versions] == [3]
    assert node.told == [{A: 2, B: 1}]


async def test_transaction_of_several_batches_is_bound_together(make_node: Any, nursery: trio.Nursery) -> None:
    """The data log is told where it begins and ends; of single batches, and of tables, there is nothing to say."""
    offsets = LogId.of_offsets(0)
    node = make_node([A, B, offsets])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"plain"),))
    entry = encode_offset_entries([])
    node.copier.submit(node.transaction({A: [b"a1", b"a2", b"a3"], B: [b"b1"]}))
    node.copier.submit((node.committed_offsets(offsets, entry),))
    await node.copier.drain()
    bound = {log: content.transactions for log, content in node.data_logs.content.items()}
    assert bound == {A: [(1, 3)], B: [], offsets: []}


async def test_transactions_committed_as_one_are_bound_together(make_node: Any, nursery: trio.Nursery) -> None:
    """Two lanes, one batch of each in the log: to retention they are one; what is committed next is another."""
    node = make_node([A, B])
    nursery.start_soon(node.copier.run)
    node.copier.submit(node.together([{A: [b"a1"], B: [b"b1"]}, {A: [b"a2"]}]))
    node.copier.submit(node.transaction({A: [b"a3"]}))
    await node.copier.drain()
    assert {log: content.transactions for log, content in node.data_logs.content.items()} == {A: [(0, 1)], B: []}
    assert node.texts(A) == [b"a1", b"a2", b"a3"]
    assert len(node.data_logs.content[A].windows) == 2


async def test_queue_gathers_while_the_head_is_not_durable(make_node: Any, nursery: trio.Nursery) -> None:
    """What comes while the copier waits goes along in one chunk; windows are written once, the last one."""
    node = make_node([A])
    node.journals[A].hold()
    nursery.start_soon(node.copier.run)
    last = None
    for number in range(20):
        last = node.plain(A, b"%d" % number)
        node.copier.submit((last,))
    await wait_all_tasks_blocked()
    node.journals[A].release()
    await node.copier.drain()
    assert node.texts(A) == [b"%d" % number for number in range(20)]
    assert node.copier.statistics().copied_chunks == 1
    assert node.data_logs.content[A].windows == {last.producer_id: last.window.encode()}


async def test_durable_head_does_not_wait_for_the_rest(make_node: Any, nursery: trio.Nursery) -> None:
    """A log whose flush takes its time does not hold up what was placed before."""
    node = make_node([A, B])
    node.journals[B].hold()
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"a"),))
    node.copier.submit((node.plain(B, b"b"),))
    with trio.fail_after(TIMEOUT_S):
        await node.copied(A, 1)
    assert (node.texts(A), node.texts(B)) == ([b"a"], [])
    node.journals[B].release()
    await node.copier.drain()


async def test_chunks_are_bounded_but_never_split_a_group(make_node: Any, nursery: trio.Nursery) -> None:
    """A transaction beyond `chunk_bytes_max` goes alone and whole; small groups share a chunk."""
    node = make_node([A, B], chunk_bytes_max=2000)
    node.copier.submit((node.plain(A, b"p1"),))
    node.copier.submit((node.plain(A, b"p2"),))
    node.copier.submit(node.transaction({A: [bytes(4000)], B: [bytes(4000)]}))
    node.copier.submit((node.plain(A, b"p3"),))
    nursery.start_soon(node.copier.run)
    await node.copier.drain()
    assert [(len(v[A].batches), len(v[B].batches)) for v in node.data_logs.versions] == [(2, 0), (3, 1), (4, 1)]


async def test_state_alone_costs_no_flush_and_rides_with_the_next_records(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """A fence waits for the next batch of its own log, and is written before that batch's mark passes it."""
    node = make_node([A, B])
    nursery.start_soon(node.copier.run)
    fence = node.state(A, ProducerId(8))
    node.copier.submit((fence,))
    node.copier.submit((node.plain(B, b"b"),))
    await node.copied(B, 1)
    assert node.journals[A].flushes_started == 0
    assert node.data_logs.content[A].windows == {}
    assert node.copier.statistics().resting_items == 1
    node.copier.submit((node.plain(A, b"a"),))
    await node.copied(A, 1)
    assert node.data_logs.content[A].windows[ProducerId(8)] == fence.window.encode()
    assert node.copier.statistics().resting_items == 0


async def test_start_moves_with_its_mark_and_the_leader_is_told(make_node: Any, nursery: trio.Nursery) -> None:
    """It costs no flush and no write of its own; in the one that copies it, the log begins there, and not before."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"one", records=1),))
    await node.copied(A, 1)
    writes = len(node.data_logs.versions)
    for offset in (1, 0):
        node.copier.submit((node.start(A, offset),))
    await wait_all_tasks_blocked()
    assert (len(node.data_logs.versions), node.starts, node.copier.statistics().resting_items) == (writes, {}, 2)
    node.copier.submit((node.plain(A, b"two", records=1),))
    await node.copied(A, 2)
    assert node.starts == {A: 1}
    before, after = node.data_logs.versions[-2][A], node.data_logs.versions[-1][A]
    assert (before.log_start, after.log_start) == (0, 1)
    assert before.mark.copied_through < after.mark.copied_through == node.journals[A].end


async def test_start_alone_is_copied_when_it_is_urged(make_node: Any, nursery: trio.Nursery) -> None:
    """As where a replica reads it: nobody waits for the log's next records."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"one", records=1),))
    node.copier.submit((node.start(A, 1),))
    node.copier.urge()
    await node.copier.drain()
    assert node.data_logs.content[A].log_start == 1
    assert node.starts == {A: 1}


async def test_start_that_the_mark_has_passed_is_not_copied_again(make_node: Any, nursery: trio.Nursery) -> None:
    """What is found again after a restart changes nothing, whatever its offset was."""
    node = make_node([A])
    group, start = (node.plain(A, b"one", records=1),), (node.start(A, 1),)
    nursery.start_soon(node.copier.run)
    node.copier.submit(group)
    node.copier.submit(start)
    await node.copier.drain()
    node.data_logs.content[A].log_start = Offset(0)  # as no data log would
    copier = node.new_copier()
    node.starts.clear()
    copier.recover({A: [*group, *start]}, {A: node.data_logs.content[A].mark})
    nursery.start_soon(copier.run)
    await copier.drain()
    assert (node.data_logs.content[A].log_start, node.starts) == (0, {})


async def test_drain_copies_also_what_rests(make_node: Any, nursery: trio.Nursery) -> None:
    """After `drain` the marks stand at the journals' ends, and a forgotten producer is forgotten on disk."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"a"),))
    node.copier.submit((node.state(A, forgotten=True),))
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.data_logs.content[A].windows == {}
    assert node.copier.marks[A].copied_through == node.journals[A].end
    assert node.told == [{A: 1}]


async def test_offsets_log_fills_the_table_of_committed_offsets(make_node: Any, nursery: trio.Nursery) -> None:
    """Records of an offsets log become entries of either kind, in order; its mark counts on."""
    node = make_node([OFFSETS])
    nursery.start_soon(node.copier.run)
    entries = [OffsetEntry(OffsetKey("g", "t", 0), CommittedOffset(Offset(n), -1, "", 0)) for n in range(2)]
    entries.append(GroupEntry("g", b"who"))
    for entry in entries:
        node.copier.submit((node.committed_offsets(OFFSETS, encode_offset_entries([entry])),))
    await node.copier.drain()
    assert node.data_logs.content[OFFSETS].offsets == entries
    assert node.data_logs.content[OFFSETS].mark.next_offset == 3


async def test_forgotten_log_is_skipped(make_node: Any, nursery: trio.Nursery) -> None:
    """Deleting a topic drops its queued items; a transaction's other parts are copied; its journal may be closed."""
    node = make_node([A, B])
    for journal in node.journals.values():
        journal.hold()
    nursery.start_soon(node.copier.run)
    node.copier.submit(node.transaction({A: [b"a1"], B: [b"b1"]}))
    node.copier.submit((node.plain(A, b"a2"),))
    await wait_all_tasks_blocked()
    node.copier.forget(A)
    node.data_logs.drop(A)
    node.journals.pop(A).break_down("closed")
    node.journals[B].release()
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.texts(B) == [b"b1"]
    assert node.copier.failed is None
    assert node.told == [{B: 1}]


async def test_forgotten_log_is_remembered_as_long_as_a_part_of_it_is_queued(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """What is copied before that part does not let it go; after it nothing is kept of a deleted topic."""
    node = make_node([A, B, C])
    node.journals[B].hold()
    node.copier.submit((node.plain(C, b"c"),))
    node.copier.submit(node.transaction({A: [b"a"], B: [b"b"]}))
    node.copier.forget(A)
    node.data_logs.drop(A)
    node.journals.pop(A).break_down("closed")
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copied(C, 1)
        assert set(node.copier._dropped) == {A}
        node.journals[B].release()
        await node.copier.drain()
    assert (node.texts(B), node.texts(C), node.copier.failed) == ([b"b"], [b"c"], None)
    node.copier.forget(C)
    assert not node.copier._dropped


async def test_log_forgotten_under_the_copy_leaves_the_rest_of_the_chunk(make_node: Any, nursery: trio.Nursery) -> None:
    """A journal that is closed while the worker reads it, because its topic was deleted, is no failure."""
    node = make_node([A, B])
    group = node.transaction({A: [b"a"], B: [b"b"]})
    journal = node.journals[A]

    def delete_topic() -> None:
        journal.on_read = lambda: None
        trio.from_thread.run_sync(node.copier.forget, A)
        journal.break_down("closed")

    journal.on_read = delete_topic
    node.copier.submit(group)
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert (node.texts(A), node.texts(B)) == ([], [b"b"])
    assert node.told == [{B: 1}]


async def test_failed_flush_stops_the_copier_for_good(make_node: Any, nursery: trio.Nursery) -> None:
    """All who wait get StorageFailure, the failure is told once, and nothing more is copied."""
    node = make_node([A, B], backlog_bytes_max=0)
    node.journals[A].hold()
    outcomes: list[str] = []

    async def expect_failure(name: str, wait: Callable[[], Any]) -> None:
        with pytest.raises(StorageFailure, match="no space"):
            await wait()
        outcomes.append(name)

    node.copier.submit((node.plain(A, b"a"),))
    nursery.start_soon(expect_failure, "copied", lambda: node.copied(A, 1))
    nursery.start_soon(expect_failure, "drain", node.copier.drain)
    nursery.start_soon(expect_failure, "room", lambda: node.copier.room(1000))
    nursery.start_soon(expect_failure, "payload", lambda: node.copier.copied_payload(1))
    await wait_all_tasks_blocked()
    node.journals[A].break_down("no space left")
    with trio.fail_after(TIMEOUT_S):
        await node.copier.run()
    await wait_all_tasks_blocked()
    assert sorted(outcomes) == ["copied", "drain", "payload", "room"]
    assert node.failures == [node.copier.failed]
    node.copier.submit((node.plain(B, b"b"),))
    with trio.fail_after(TIMEOUT_S):
        await node.copier.run()
    assert node.texts(B) == []
    with pytest.raises(StorageFailure, match="restart"):
        await node.copied(B, 1)
    assert node.failures == [node.copier.failed]


@pytest.mark.parametrize("point", ["copier.copy.before", "copier.copy.between_logs", "copier.copy.before_commit"])
async def test_disk_error_before_the_commit_leaves_nothing_visible_and_a_restart_copies_all(
    make_node: Any, arm: Callable[[str], None], point: str
) -> None:
    """A transaction is all or nothing (invariant 7); what was not copied is recovered, in order."""
    node = make_node([A, B])
    arm(f"{point}:fail:1")
    groups = [node.transaction({A: [b"a1"], B: [b"b1"]}), (node.plain(A, b"a2"),)]
    for group in groups:
        node.copier.submit(group)
    await node.copier.run()
    assert node.copier.failed is not None
    assert point in str(node.copier.failed)
    assert node.data_logs.versions == []
    await _restart_and_check(node, groups)


async def test_disk_error_behind_the_commit_copies_nothing_twice(make_node: Any, arm: Callable[[str], None]) -> None:
    """The chunk is visible though nobody was told; a restart begins behind it (invariant 4)."""
    node = make_node([A, B])
    arm("copier.copy.after_commit:fail:1")
    groups = [node.transaction({A: [b"a1"], B: [b"b1"]}), (node.plain(A, b"a2"),)]
    for group in groups:
        node.copier.submit(group)
    await node.copier.run()
    assert len(node.data_logs.versions) == 1
    assert node.told == []
    await _restart_and_check(node, groups)


async def _restart_and_check(node: Any, groups: list[Any]) -> None:
    """A new copier recovers what the journals hold; afterwards everything is there once."""
    copier = node.new_copier()
    marks = {log: node.data_logs.mark(log) for log in (A, B)}
    copier.recover({log: [item for g in groups for item in g if item.log == log] for log in (A, B)}, marks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copier.run)
        with trio.fail_after(TIMEOUT_S):
            await copier.drain()
            await node.copied(A, 2)
        nursery.cancel_scope.cancel()
    assert (node.texts(A), node.texts(B)) == ([b"a1", b"a2"], [b"b1"])
    assert all(len(version[B].batches) == (len(version[A].batches) > 0) for version in node.data_logs.versions)


async def test_what_recovery_copies_leaves_no_cut(make_node: Any, nursery: trio.Nursery) -> None:
    """Crashes have left the APPLYs of two transactions in orders that contradict, so one is copied in pieces."""
    node = make_node([A, B], chunk_bytes_max=1)
    first, second = node.transaction({A: [b"a1"]}), node.transaction({A: [b"a2"], B: [b"b2"]})
    node.apply_number = 0
    again = node.transaction({B: [b"b1"]})
    assert again[0].apply_number == first[0].apply_number
    per_log = {log: [part for part in (*first, *second, *again) if part.log == log] for log in (A, B)}
    node.copier.recover(per_log, {log: node.data_logs.mark(log) for log in (A, B)})
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
        assert len(node.data_logs.versions) == 3
        assert node.data_logs.cuts == []
        node.copier.submit((node.plain(A, b"a3"),))
        await node.copier.drain()
    assert node.data_logs.cuts == node.data_logs.versions[3:]


async def test_copier_cancelled_in_its_chunk_goes_on_where_it_was(make_node: Any, nursery: trio.Nursery) -> None:
    """Cancelling waits for the chunk on its way and accounts for it; running again copies the rest once."""
    node = make_node([A], chunk_bytes_max=1)
    scope = trio.CancelScope()
    node.journals[A].on_read = lambda: trio.from_thread.run_sync(scope.cancel)
    for text in (b"one", b"two", b"three"):
        node.copier.submit((node.plain(A, text),))
    with scope:
        await node.copier.run()
    assert node.texts(A) == [b"one"]
    assert node.told == [{A: 1}]
    node.journals[A].on_read = lambda: None
    nursery.start_soon(node.copier.run)
    await node.copier.drain()
    assert node.texts(A) == [b"one", b"two", b"three"]


async def test_room_waits_while_the_backlog_is_too_large(make_node: Any, nursery: trio.Nursery) -> None:
    """Leaders that ask for room wait until the copier has caught up."""
    node = make_node([A], backlog_bytes_max=1000)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.room(1000)
    node.journals[A].hold()
    node.copier.submit((node.plain(A, bytes(1000)),))
    assert node.copier.backlog_bytes > 1000
    got_room: list[int] = []

    async def ask_for_room() -> None:
        await node.copier.room(1000)
        got_room.append(node.copier.backlog_bytes)

    async with trio.open_nursery() as askers:
        askers.start_soon(ask_for_room)
        await wait_all_tasks_blocked()
        assert got_room == []
        node.journals[A].release()
        nursery.start_soon(node.copier.run)
    assert got_room == [0]


async def test_room_is_had_by_so_many_as_there_is_room_for(make_node: Any, nursery: trio.Nursery) -> None:
    """A hundred producers that have waited together do not all write at once when something was copied."""
    node = make_node([A], backlog_bytes_max=1000)
    node.journals[A].hold()
    node.copier.submit((node.plain(A, bytes(1000)),))
    most: list[int] = []

    async def write() -> None:
        await node.copier.room(1000)
        node.copier.submit((node.plain(A, bytes(1000)),))
        most.append(node.copier.backlog_bytes)

    async with trio.open_nursery() as writers:
        for _ in range(10):
            writers.start_soon(write)
        await wait_all_tasks_blocked()
        node.journals[A].release()
        nursery.start_soon(node.copier.run)
    assert len(most) == 10
    assert max(most) < 2500


async def test_room_waits_for_what_has_waited_long(
    make_node: Any, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk less is let in: what is committed now is seen behind all that is in front of it."""
    seconds = [100.0]
    monkeypatch.setattr("copier.copier.perf_counter", lambda: seconds[0])
    node = make_node([A])
    node.journals[A].hold()
    node.copier.submit((node.plain(A, bytes(BACKLOG_BYTES_SLOW)),))
    assert not node.copier.is_behind(SMALL_BYTES + 1)
    seconds[0] += BACKLOG_S + 0.1
    assert node.copier.is_behind(SMALL_BYTES + 1)
    assert not node.copier.is_behind(SMALL_BYTES), "small ones do not wait behind large ones"
    node.journals[A].release()
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.room(SMALL_BYTES + 1)
    assert node.copier.backlog_bytes == 0


async def test_copier_is_outrun_by_small_batches_only_if_many_of_them_wait(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """Its producer need not wait for the copy of large ones; but no size lets a producer run ahead without end."""
    node = make_node([A])
    node.journals[A].hold()
    node.copier.submit((node.plain(A, bytes(OUTRUN_BYTES)),))
    assert node.copier.is_outrun(SMALL_BYTES + 1)
    assert not node.copier.is_outrun(SMALL_BYTES)
    for _ in range(OUTRUN_BYTES // SMALL_BYTES):
        assert not node.copier.is_outrun(SMALL_BYTES)
        node.copier.submit((node.plain(A, bytes(SMALL_BYTES)),))
    assert node.copier.is_outrun(1)
    node.journals[A].release()
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert not node.copier.is_outrun(SMALL_BYTES + 1)
    assert not node.copier.is_outrun(1)


async def test_lag_is_the_age_of_what_waits_longest(
    make_node: Any, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes and in seconds; what is copied no longer counts."""
    seconds = [100.0]
    monkeypatch.setattr("copier.copier.perf_counter", lambda: seconds[0])
    node = make_node([A])
    node.journals[A].hold()
    assert (node.copier.statistics().backlog_bytes, node.copier.statistics().lag_s) == (0, 0.0)
    node.copier.submit((node.plain(A, bytes(1000)),))
    seconds[0] = 103.0
    node.copier.submit((node.plain(A, bytes(1000)),))
    seconds[0] = 104.0
    assert node.copier.statistics().lag_s == 4.0
    assert node.copier.statistics().backlog_bytes > 2000
    node.journals[A].release()
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert (node.copier.statistics().backlog_bytes, node.copier.statistics().lag_s) == (0, 0.0)


async def test_many_resting_states_are_copied_for_their_own_sake(
    make_node: Any, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What rests in memory is bounded."""
    monkeypatch.setattr("copier.copier.RESTING_ITEMS_MAX", 3)
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    for _ in range(3):
        node.copier.submit((node.state(A),))
    assert node.copier.statistics().resting_items == 0
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.data_logs.content[A].mark.copied_through == node.journals[A].end
    assert node.data_logs.content[A].mark.copied_through > JournalPosition(0)
