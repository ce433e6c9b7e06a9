"""The copier and a large group, between doubles: what becomes visible when, and what a failure in the middle leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import trio

from copier import staging
from copier.plan import Group
from fairlog_types import LogId, ProducerId
from partition.placed import Placed

A, B, C = (LogId("t", "ab" * 16, partition) for partition in range(3))
OTHER = ProducerId(70)
TIMEOUT_S = 60
"""Real time, for the copy is done in a thread: only a test that hangs ever takes it."""


@pytest.fixture(autouse=True)
def small_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large is what has more than a few hundred bytes, and each batch is a stage of its own."""
    monkeypatch.setattr(staging, "STAGED_FROM_BYTES", 3000)
    monkeypatch.setattr(staging, "STAGE_BYTES", 1)


def texts(*names: str) -> list[bytes]:
    return [name.encode().ljust(1000, b".") for name in names]


def submit(node: Any, group: Group, order: str | None = None) -> None:
    """Submit what is durable already, so that a stage need not be waited for until the next may go past."""
    for item in group:
        node.journals[item.log].durable = node.journals[item.log].end
    node.copier.submit(group, order=order)


def seen(node: Any) -> list[tuple[int, ...]]:
    """How many batches of A, B and C a reader could see, from version to version; repetitions are left out."""
    found: list[tuple[int, ...]] = []
    for version in node.data_logs.versions:
        counts = tuple(len(version[log].batches) for log in (A, B, C))
        if not found or found[-1] != counts:
            found.append(counts)
    return found


async def test_large_transaction_becomes_visible_at_once_and_others_between_its_stages(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """Invariant 7; a transaction that comes while it is staged waits for one stage, and not for all."""
    node = make_node([A, B, C])

    def come_between() -> None:
        node.journals[A].on_read = lambda: None
        trio.from_thread.run_sync(submit, node, node.transaction({C: [b"c"]}, OTHER))

    node.journals[A].on_read = come_between
    submit(node, node.transaction({A: texts("a1", "a2"), B: texts("b1", "b2")}))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert seen(node) == [(0, 0, 0), (0, 0, 1), (2, 2, 1)]
    assert node.told == [{C: 1}, {A: 2, B: 2}]
    assert (node.texts(A), node.texts(B)) == (texts("a1", "a2"), texts("b1", "b2"))
    assert node.data_logs.content[A].transactions == [(0, 1)]
    assert node.data_logs.content[A].mark.copied_through == node.journals[A].end
    assert node.copier.marks[A] == node.data_logs.mark(A)
    assert node.copier.statistics().copied_records == 5
    assert node.copier.statistics().copied_payload_bytes == 4 * 1016 + 17
    assert node.copier.backlog_bytes == 0
    for log in (A, B):
        assert node.journals[log].let_go_of == [at for at, payload in node.journals[log].payloads.items() if payload]


async def test_same_log_keeps_its_order_behind_a_large_transaction(make_node: Any, nursery: trio.Nursery) -> None:
    """What stands behind it in one of its logs waits, and what stands behind that elsewhere does, too."""
    node = make_node([A, B, C])
    submit(node, (node.plain(A, b"before"),))
    submit(node, node.transaction({A: texts("a1", "a2", "a3")}))
    submit(node, (node.plain(A, b"behind"),))
    submit(node, node.transaction({A: [b"both"], B: [b"both"]}, OTHER))
    submit(node, (node.plain(B, b"last"),))
    submit(node, (node.plain(C, b"past"),))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.texts(A) == [b"before", *texts("a1", "a2", "a3"), b"behind", b"both"]
    assert node.texts(B) == [b"both", b"last"]
    assert seen(node) == [(1, 0, 0), (1, 0, 1), (4, 0, 1), (6, 2, 1)]


@pytest.mark.parametrize("same", ["producer", "sink"])
async def test_what_has_an_order_is_seen_in_it_over_all_logs(make_node: Any, nursery: trio.Nursery, same: str) -> None:
    """Invariant 6: who finds an id's second transaction, or a sink's second batch, finds the first as well."""
    node = make_node([A, B, C])
    order = "sink" if same == "sink" else None
    submit(node, node.transaction({A: texts("a1", "a2", "a3")}), order)
    second = node.transaction({B: [b"b"]}, OTHER) if same == "sink" else node.transaction({B: [b"b"]})
    submit(node, second, order)
    submit(node, node.transaction({C: [b"c"]}, ProducerId(80)))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert seen(node) == [(0, 0, 1), (3, 0, 1), (3, 1, 1)]


async def test_every_commit_while_a_large_transaction_is_staged_is_a_cut(make_node: Any, nursery: trio.Nursery) -> None:
    """Stages are none: they leave the logs as they are."""
    node = make_node([A, B, C])
    submit(node, node.transaction({A: texts("a1", "a2", "a3")}))
    submit(node, (node.plain(B, b"b"),))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert [tuple(len(cut[log].batches) for log in (A, B)) for cut in node.data_logs.cuts] == [(0, 1), (3, 1)]


async def test_nobody_goes_past_what_was_recovered(make_node: Any, nursery: trio.Nursery) -> None:
    """A restart's order is `merge`'s, and no cut is kept before all of it is copied."""
    node = make_node([A, B, C])
    group = node.transaction({A: texts("a1", "a2", "a3")})
    behind = node.transaction({B: [b"b"]}, OTHER)
    node.copier.recover({A: group, B: behind, C: ()}, {log: node.data_logs.mark(log) for log in (A, B, C)})
    submit(node, (node.plain(C, b"c"),))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert seen(node) in ([(0, 0, 0), (3, 0, 0), (3, 1, 1)], [(0, 0, 0), (3, 0, 0), (3, 1, 0), (3, 1, 1)])
    assert all(cut[B].batches for cut in node.data_logs.cuts)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        *((f"copier.stage.{place}", nth) for place in ("before_commit", "after_commit") for nth in (1, 2, 3)),
        ("copier.copy.before", 1),  # the last step is one
        ("copier.copy.before_commit", 1),
    ],
)
async def test_disk_error_between_stages_leaves_nothing_visible_and_a_restart_copies_all(
    make_node: Any, arm: Callable[[str], None], point: str, nth: int
) -> None:
    """All or nothing, wherever it stops; the restart begins at the marks, behind no remains."""
    node = make_node([A, B])
    arm(f"{point}:fail:{nth}")
    group = node.transaction({A: texts("a1", "a2"), B: texts("b1")})
    behind = (node.plain(A, b"behind"),)
    submit(node, group)
    submit(node, behind)
    await node.copier.run()
    assert point in str(node.copier.failed)
    assert node.texts(A) == node.texts(B) == []
    assert node.told == []
    copier = node.new_copier()
    per_log: Mapping[LogId, list[Placed]] = {log: [it for it in (*group, *behind) if it.log == log] for log in (A, B)}
    copier.recover(per_log, {log: node.data_logs.mark(log) for log in (A, B)})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copier.run)
        with trio.fail_after(TIMEOUT_S):
            await copier.drain()
        nursery.cancel_scope.cancel()
    assert node.texts(A) == [*texts("a1", "a2"), b"behind"]
    assert node.texts(B) == texts("b1")
    assert all(len(version[B].batches) == (len(version[A].batches) > 0) for version in node.data_logs.versions)


async def test_log_deleted_between_stages_is_left_out(make_node: Any, nursery: trio.Nursery) -> None:
    """The other logs' parts become visible."""
    node = make_node([A, B])

    def delete_topic() -> None:
        if node.data_logs.content[A].staged:
            node.journals[A].on_read = lambda: None
            trio.from_thread.run_sync(node.copier.forget, A)
            node.journals[A].break_down("closed")

    node.journals[A].on_read = delete_topic
    submit(node, node.transaction({A: texts("a1", "a2", "a3"), B: texts("b1")}))
    submit(node, (node.plain(B, b"behind"),))
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.texts(A) == []
    assert node.texts(B) == [*texts("b1"), b"behind"]
    assert node.copier.failed is None


async def test_copier_cancelled_between_stages_goes_on_where_it_was(make_node: Any, nursery: trio.Nursery) -> None:
    """A stage that was written is not written again."""
    node = make_node([A, B])
    scope = trio.CancelScope()
    node.journals[A].on_read = lambda: trio.from_thread.run_sync(scope.cancel)
    submit(node, node.transaction({A: texts("a1", "a2", "a3")}))
    with scope:
        await node.copier.run()
    assert len(node.data_logs.content[A].staged) == 1
    node.journals[A].on_read = lambda: None
    nursery.start_soon(node.copier.run)
    with trio.fail_after(TIMEOUT_S):
        await node.copier.drain()
    assert node.texts(A) == texts("a1", "a2", "a3")


async def test_large_transaction_takes_no_room_from_those_who_may_go_past(
    make_node: Any, nursery: trio.Nursery
) -> None:
    """While it waits for its turn it counts; once it is staged others find room."""
    node = make_node([A, B], backlog_bytes_max=2000)
    submit(node, node.transaction({A: texts("a1", "a2", "a3")}))
    assert node.copier.is_behind(1)
    behind_while_staged: list[bool] = []
    node.journals[A].on_read = lambda: behind_while_staged.append(node.copier.is_behind(1))
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as waiting:
            waiting.start_soon(node.copier.room, 1)
            nursery.start_soon(node.copier.run)
        await node.copier.drain()
    assert behind_while_staged == [False] * 3
