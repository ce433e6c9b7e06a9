"""What a group journal tells of transactions, as rows of `reading.TOLD`: read by the rules of `fairlog.verify`. On
executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from coordinator import group_history
from coordinator.sinks.lane_ids import group_of
from fairlog import data_directory
from fairlog.audit.reading import TOLD, Row
from fairlog.verify.transactions import GroupHistory, Told, read_history
from fairlog_types import CorruptStorage, StorageFailure
from journal.segment import Fsync, JournalKind
from journal.survey import survey


def read_group_journal(directory: Path, number: int, logs: Mapping[str, int]) -> Iterator[Row]:
    """The rows of the group journal with that number; `logs` has the numbers of the logs that there are, by name."""
    where = f"{data_directory.GROUP_JOURNALS}/{number}"
    try:
        journal = survey(directory / where, kind=JournalKind.GROUP)
        found = group_history.read_history(journal)
        history = read_history(
            where, (group_history.decode_frame(journal, frame, kind) for frame, kind in found.frames)
        )
        history.loses_nothing = journal.begun_with in (None, Fsync.COMMIT)
    except (CorruptStorage, StorageFailure, OSError) as error:
        yield _wrong_row(number, f"{where}: {error}")
        return
    for violation in history.sinks.violations:
        yield _wrong_row(number, str(violation))
    commit_order = {txid: at for at, txid in enumerate(history.commits)}
    units = {
        txid: f"batch {group.batch} of sink {group.sink}" for group in history.sinks.groups for txid in group.expected
    }
    for told in history.told.values():
        unit = units.get(told.txid, f"transaction {told.txid} of {told.transactional_id}")
        yield from _told_rows(number, history, told, commit_order.get(told.txid), unit, logs)


def _wrong_row(number: int, what: str) -> Row:
    known = {"journal": number, "damage": what}
    return tuple(known.get(name) for name in TOLD)


def _told_rows(
    number: int,
    history: GroupHistory,
    told: Told,
    commit_order: int | None,
    unit: str,
    logs: Mapping[str, int],
) -> Iterator[Row]:
    placed = {place.log: place for place in told.placements}
    expected = told.expected or {}
    parts: list[Row] = [
        (
            logs[str(log)],
            placed[log].base_offset if log in placed else None,
            placed[log].count if log in placed else None,
            None if told.expected is None else expected.get(log, 0),
        )
        for log in dict.fromkeys((*placed, *expected))
        if str(log) in logs  # others' topics are deleted
    ]
    for part in parts or [(None, None, None, None)]:
        yield (
            number,
            history.loses_nothing,
            commit_order,
            told.txid in history.grouped,
            unit,
            *told.txid,
            told.transactional_id,
            group_of(told.transactional_id),
            told.fate.name,
            *part,
            None,
        )
