"""What compaction lets a reader of several partitions see: maps that agree, and transactions that are whole or gone."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from datalog.environment import LmdbDataLogs
from datalog.interface import Mark, ReadRequest, ReadResult
from fairlog.retention import cleaner
from fairlog.retention.cleaner import LogCleaner
from fairlog.retention.judging import KeyJudge
from fairlog_types import JournalPosition, LogId, Offset
from tests.datalog.batches import keyed_batch
from tests.retention.cleaning_model import RULES, SALT, Row, map_of, values_of

LOGS = [LogId.of_topic(UUID(int=7), partition) for partition in range(2)]
KEYS = 5
BATCHES = 3
"""Of one transaction in each log: each key once, and each batch has all keys."""


def commit(logs: LmdbDataLogs, number: int) -> None:
    """The transaction `number`: in both logs, every key gets that value, in several batches; visible at once."""
    base = number * KEYS * BATCHES
    with logs.write() as writer:
        for log in LOGS:
            for index in range(BATCHES):
                at = base + index * KEYS
                pairs = [(b"%d" % key, b"=%d" % number) for key in range(KEYS)]
                data = keyed_batch(at, pairs, attributes=0x10, producer=(1, 0, at))
                writer.append(log, Offset(at), KEYS, 0, data)
            end = base + KEYS * BATCHES
            writer.bind(log, Offset(base), Offset(end - 1))
            writer.put_mark(log, Mark(JournalPosition(end), JournalPosition(end), Offset(end)))


def read_cut(logs: LmdbDataLogs) -> list[list[Row]]:
    """Both logs, whole, in one read transaction."""
    answers = logs.read([ReadRequest(log, Offset(0), 1 << 30) for log in LOGS], bytes_max=1 << 30)
    return [
        [row for batch in answer.batches for row in values_of(batch)]
        for answer in answers
        if isinstance(answer, ReadResult)
    ]


def clean(logs: LmdbDataLogs, log: LogId, cuts: list[list[list[Row]]]) -> None:
    """Clean one log, and look at both after each step."""
    steps = LogCleaner(
        logs, log, RULES, seen=Offset(0), keys_max=100, salt=SALT, now_ms=lambda: 0, judge=KeyJudge()
    ).steps()
    cuts.extend(read_cut(logs) for _ in steps)


@pytest.mark.slow
def test_reader_of_several_partitions_sees_maps_that_agree_at_any_moment(
    logs: LmdbDataLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction cleans one partition after the other; still, the maps of any cut are those of the last transaction.

    And of each transaction a partition shows all records, the one batch that is the latest of its keys, or none.
    """
    monkeypatch.setattr(cleaner, "STEP_BATCHES_MAX", 4)
    monkeypatch.setattr(cleaner, "READ_BYTES", 1_000)
    with logs.write() as writer:
        for log in LOGS:
            writer.create(log)
    commit(logs, 0)
    done = threading.Event()
    cuts: list[list[list[Row]]] = []

    def watch() -> None:
        while not done.is_set():
            cuts.append(read_cut(logs))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number in range(1, 60):
            commit(logs, number)
            if number % 12 == 0:
                for log in LOGS:
                    clean(logs, log, cuts)
    finally:
        done.set()
        watcher.join()
    cuts.append(read_cut(logs))
    sizes: set[int] = set()
    for first, second in cuts:
        assert map_of(first) == map_of(second)
        assert len(set(map_of(first).values())) == 1
        for rows in (first, second):
            counts: dict[bytes | None, int] = {}
            for _, _, value in rows:
                counts[value] = counts.get(value, 0) + 1
            assert set(counts.values()) <= {KEYS * BATCHES, KEYS}
            sizes.add(len(rows))
    assert len(sizes) > 5, "the reader has not seen a cleaning"
    assert len(cuts[-1][0]) < 60 * KEYS * BATCHES / 2
