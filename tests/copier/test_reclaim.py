"""Journal segments go only behind synced marks (invariant 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from copier.reclaim import Reclaimer
from datalog.interface import NoRoom
from fairlog_types import LogId, StorageFailure

A, B = (LogId("t", "ab" * 16, partition) for partition in range(2))


def _reclaimer(node: Any, **bounds: float) -> Reclaimer:
    return Reclaimer(node.copier, node.data_logs, node.journals.__getitem__, **bounds)


async def test_pass_syncs_the_data_logs_before_it_reclaims(make_node: Any, nursery: trio.Nursery) -> None:
    """The mark that a journal is cut behind was taken before the sync, so no crash takes it back."""
    node = make_node([A, B])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"a"),))
    await node.copier.drain()
    mark = node.data_logs.mark(A)
    sync = node.data_logs.sync

    def sync_while_more_is_copied() -> None:
        assert node.journals[A].reclaimed == []
        trio.from_thread.run_sync(lambda: node.copier.submit((node.plain(A, b"later"),)))
        trio.from_thread.run(node.copier.drain)
        sync()

    node.data_logs.sync = sync_while_more_is_copied
    await _reclaimer(node).reclaim()
    assert node.journals[A].reclaimed == [mark.replay_from]
    assert node.copier.marks[A].replay_from > mark.replay_from


async def test_pass_keeps_what_an_open_transaction_needs(make_node: Any, nursery: trio.Nursery) -> None:
    """The journal is cut at the mark's `replay_from`, not at what is copied."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.journals[A].append(b"first frame of a transaction that stays open")
    open_from = node.journals[A].end
    item = node.plain(A, b"a")
    pinned = replace(item, replay_from=open_from)
    node.copier.submit((pinned,))
    await node.copier.drain()
    await _reclaimer(node).reclaim()
    assert node.journals[A].reclaimed == [open_from]


async def test_pass_without_a_moved_mark_does_nothing(make_node: Any, nursery: trio.Nursery) -> None:
    """A quiet node does not sync its data logs over and over."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    reclaimer = _reclaimer(node)
    node.copier.submit((node.plain(A, b"a"),))
    await node.copier.drain()
    await reclaimer.reclaim()
    await reclaimer.reclaim()
    assert node.data_logs.calls == ["write", "sync"]
    assert len(node.journals[A].reclaimed) == 1


async def test_passes_come_at_intervals_and_move_idle_logs_too(
    make_node: Any, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    """State that rests is copied by one pass and reclaimed by the next, without any records."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    nursery.start_soon(_reclaimer(node, interval_s=10).run)
    node.copier.submit((node.state(A),))
    await wait_all_tasks_blocked()
    mock_clock.jump(10)
    while node.copier.marks.get(A) is None:  # noqa: ASYNC110 (a worker thread's doing)
        await trio.lowlevel.checkpoint()
    assert node.journals[A].reclaimed == []
    mock_clock.jump(10)
    while not node.journals[A].reclaimed:  # noqa: ASYNC110 (a worker thread's doing)
        await trio.lowlevel.checkpoint()
    assert node.journals[A].reclaimed == [node.journals[A].end]


async def test_pass_is_early_when_much_was_copied(make_node: Any, nursery: trio.Nursery) -> None:
    """A fast node does not wait for the interval: the copied bytes call for the pass."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    nursery.start_soon(_reclaimer(node, interval_s=1e6, copied_bytes_max=100).run)
    await wait_all_tasks_blocked()
    node.copier.submit((node.plain(A, bytes(200)),))
    with trio.fail_after(5):
        while not node.journals[A].reclaimed:  # noqa: ASYNC110 (a worker thread's doing)
            await trio.lowlevel.checkpoint()


async def test_failed_sync_stops_the_copier_and_deletes_nothing(
    make_node: Any, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """A data log that cannot be synced is a broken disk: writes are refused, the journals keep everything."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"a"),))
    await node.copier.drain()
    node.data_logs.sync_failure = StorageFailure("cannot sync")
    await _reclaimer(node).run()
    assert node.failures == [node.copier.failed]
    assert "cannot sync" in str(node.copier.failed)
    assert node.journals[A].reclaimed == []


async def test_pass_over_a_full_map_deletes_nothing_and_comes_again(make_node: Any, nursery: trio.Nursery) -> None:
    """Retention is what helps then, and it makes no rounds once copying has stopped."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"a"),))
    await node.copier.drain()
    node.data_logs.sync_failure = NoRoom("the map is full")
    reclaimer = _reclaimer(node)
    await reclaimer.reclaim()
    assert node.copier.failed is None
    assert node.journals[A].reclaimed == []
    node.data_logs.sync_failure = None
    await reclaimer.reclaim()
    assert len(node.journals[A].reclaimed) == 1


async def test_log_deleted_during_the_pass_is_no_failure(make_node: Any, nursery: trio.Nursery) -> None:
    """The journal of a topic that was deleted meanwhile is left alone; the others are reclaimed."""
    node = make_node([A, B])
    nursery.start_soon(node.copier.run)
    for log in (A, B):
        node.copier.submit((node.plain(log, b"x"),))
    await node.copier.drain()
    sync = node.data_logs.sync

    def sync_while_a_topic_goes() -> None:
        trio.from_thread.run_sync(node.copier.forget, A)
        sync()

    node.data_logs.sync = sync_while_a_topic_goes
    journal = node.journals.pop(A)
    await _reclaimer(node).reclaim()
    assert journal.reclaimed == []
    assert len(node.journals[B].reclaimed) == 1


async def test_journal_closed_under_its_reclaiming_counts_only_if_the_log_still_exists(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """A refusing journal is a failure, unless its topic was deleted."""
    node = make_node([A])
    nursery.start_soon(node.copier.run)
    node.copier.submit((node.plain(A, b"x"),))
    await node.copier.drain()
    node.journals[A].break_down("closed")
    with pytest.raises(StorageFailure, match="closed"):
        await _reclaimer(node).reclaim()
