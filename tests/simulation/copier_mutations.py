"""Planted bugs in the copier and in the data logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

import lmdb

import copier.apply
import copier.copier
import copier.plan
import datalog.environment
from copier.backlog import Backlog
from copier.copier import Copier
from copier.plan import Group
from copier.reclaim import Reclaimer
from datalog.environment import LmdbDataLogs
from datalog.interface import Mark
from datalog.writer import LmdbWriter
from fairlog_types import JournalPosition, LogId, Offset
from tests.simulation.planting import Mutation, does_not_wait, patched, staged


def _mark_too_far(log_plan: Any, next_offset: Any, writer: Any) -> Mark:
    farther = replace(log_plan, copied_through=JournalPosition(log_plan.copied_through + 8))
    return _REAL_COPY_STATE(farther, next_offset, writer)


_REAL_COPY_STATE = copier.apply._copy_state


def _mark_too_near(log: Any, items: Any) -> Any:
    plan = _REAL_PLAN_LOG(log, items)
    return plan if len(items) == 1 else replace(plan, copied_through=items[-2].end, replay_from=items[-2].replay_from)


_REAL_PLAN_LOG = copier.plan._plan_log


@contextmanager
def _copies_what_is_not_durable() -> Iterator[None]:
    def take(self: Backlog, _: object, *, bytes_max: int) -> Any:
        return _REAL_TAKE(self, lambda _: True, bytes_max=bytes_max)

    with (
        mock.patch.object(Copier, "_are_durable", does_not_wait),
        mock.patch.object(Backlog, "take", take),
    ):
        yield


_REAL_TAKE = Backlog.take


def _waits_for_open_transactions(self: Copier, group: Group, *, order: str | None = None) -> None:
    """What marker mode's readers do: nothing becomes visible before what was open when it was decided has ended."""
    waiting, open_from = _WAITING.setdefault(self, ([], {}))
    waiting.append((group, order))
    open_from.update({item.log: item.replay_from for item in group})
    while waiting and all(open_from[item.log] >= item.end for item in waiting[0][0]):
        first, its_order = waiting.pop(0)
        _REAL_SUBMIT(self, first, order=its_order)


_WAITING: WeakKeyDictionary[Copier, tuple[list[tuple[Group, str | None]], dict[LogId, JournalPosition]]] = (
    WeakKeyDictionary()
)
"""By copier: what waits, and by log from where on transactions are open."""
_REAL_SUBMIT = Copier.submit


def _copies_log_by_log(groups: Any, *rest: Any) -> Any:
    copied = [_REAL_APPLY([(item,)], *rest) for group in groups for item in group]
    last = copied[-1]
    merged: dict[str, dict[Any, Any]] = {"marks": {}, "high_watermarks": {}, "last_stable": {}}
    for one in copied:
        for name, found in merged.items():
            found.update(getattr(one, name))
    return replace(last, **merged)


_REAL_APPLY = copier.apply.apply


def _ends_move_with_each_stage(pieces: Any, data_logs: Any, journals: Any, dropped: Any) -> Any:
    sizes = _REAL_STAGE(pieces, data_logs, journals, dropped)
    with data_logs.write() as writer:
        for log in sizes:
            record = writer._record(log)
            record.next_offset = writer._staged_end(log)
            writer._changed.add(log)
    return sizes


_REAL_STAGE = copier.apply.stage


async def _reclaims_without_sync(self: Reclaimer) -> None:
    with mock.patch.object(type(self._data_logs), "sync", return_value=None):
        await _REAL_RECLAIM(self)


_REAL_RECLAIM = Reclaimer.reclaim


def _commit_is_tried_again(_self: LmdbDataLogs, txn: lmdb.Transaction) -> None:
    try:
        txn.commit()
    except lmdb.Error:
        txn.commit()


def _goes_back(self: LmdbWriter, log: LogId, offset: Offset, *, batches_max: int | None = None) -> int:
    if batches_max == 0:
        self._record(log).log_start = offset
    return _REAL_DELETE_BEFORE(self, log, offset, batches_max=batches_max)


_REAL_DELETE_BEFORE = LmdbWriter.delete_before


MUTATIONS = (
    Mutation(
        "mark-too-far",
        "the copied-through mark is eight bytes too far",
        patched(copier.apply, "_copy_state", _mark_too_far),
    ),
    Mutation(
        "mark-too-near",
        "the copied-through mark is one frame short",
        patched(copier.plan, "_plan_log", _mark_too_near),
    ),
    Mutation(
        "start-goes-back",
        "the copier lets a log begin where a START says, though it begins later by now",
        patched(LmdbWriter, "delete_before", _goes_back),
    ),
    Mutation("copy-before-durable", "the copier does not wait for the journals", _copies_what_is_not_durable),
    Mutation(
        "open-transaction-waited-for",
        "the copier waits for the end of the transactions that are open beside a decided one",
        patched(Copier, "submit", _waits_for_open_transactions),
    ),
    Mutation(
        "copy-log-by-log",
        "a transaction's logs are copied in several write blocks",
        patched(copier.copier, "apply", _copies_log_by_log),
    ),
    Mutation(
        "ends-moved-before-the-last-stage",
        "a log's end moves with each stage of a large copy",
        lambda: staged(patched(copier.copier, "stage", _ends_move_with_each_stage)),
    ),
    Mutation(
        "staged-remains-are-kept",
        "what a crash has left of a large copy is still there when the data logs are opened",
        lambda: staged(patched(datalog.environment, "_delete_staged", lambda *_: None)),
    ),
    Mutation(
        "anybody-goes-past",
        "others go past a large copy though they have logs in common with it",
        lambda: staged(patched(Backlog, "_must_wait", lambda *_: False)),
    ),
    Mutation(
        "window-not-kept",
        "the data log does not keep the producers' windows",
        patched(LmdbWriter, "put_producer", lambda *_: None),
    ),
    Mutation(
        "reclaim-without-sync",
        "segments go before the data logs are synced",
        patched(Reclaimer, "reclaim", _reclaims_without_sync),
    ),
    Mutation(
        "failed-commit-tried-again",
        "a commit of the data logs that has failed is tried again",
        patched(LmdbDataLogs, "_commit", _commit_is_tried_again),
    ),
)
