"""The behaviour suites of data logs, run on the double in memory; and what a power cut leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread

import pytest

from datalog.interface import DataLogs
from fairlog_types import StorageFailure
from tests.datalog.behaviour import ORDERS, append, mark
from tests.datalog.removal_behaviour import RemovalBehaviour
from tests.datalog.search_behaviour import SearchBehaviour
from tests.datalog.staging_behaviour import StagingBehaviour
from tests.datalog.transactions_behaviour import TransactionsBehaviour
from tests.simulation.memory_lmdb import MemoryEnvironment, open_memory_logs

NOWHERE = Path("/nowhere")


class TestMemoryDataLogs(RemovalBehaviour, SearchBehaviour, TransactionsBehaviour, StagingBehaviour):
    @pytest.fixture
    def open_logs(self) -> Callable[[], DataLogs]:
        env = MemoryEnvironment()
        return lambda: open_memory_logs(NOWHERE, env)


def test_power_cut_takes_at_most_the_last_commit_and_none_behind_a_sync() -> None:
    """What `metasync=False` promises: the last commit may vanish whole; what was synced may not."""
    found: set[int] = set()
    for seed in range(40):
        env = MemoryEnvironment()
        logs = open_memory_logs(NOWHERE, env)
        with logs.write() as writer:
            writer.create(ORDERS)
        for number in range(3):
            with logs.write() as writer:
                append(writer, ORDERS, number, [number])
                writer.put_mark(ORDERS, mark(number + 1, number + 1))
            if number == 1:
                logs.sync()
        after = open_memory_logs(NOWHERE, env.after_power_cut(Random(seed)))
        found.add(after.bounds(ORDERS).next_offset)
    assert found == {2, 3}


def test_sync_that_failed_in_the_process_before_is_made_up_for() -> None:
    """Its successor reads the last commit from the system's memory; what it calls synced survives a power cut."""
    failing = False
    env = MemoryEnvironment(fails=lambda part: failing and part == "sync")
    logs = open_memory_logs(NOWHERE, env)
    with logs.write() as writer:
        writer.create(ORDERS)
    with logs.write() as writer:
        append(writer, ORDERS, 0, [0])
    failing = True
    with pytest.raises(StorageFailure):
        logs.sync()
    failing = False
    with pytest.raises(StorageFailure, match="earlier failure"):
        logs.sync()

    next_env = env.after_end(Random(0))
    after = open_memory_logs(NOWHERE, next_env)
    assert after.bounds(ORDERS).next_offset == 1
    after.sync()
    for seed in range(10):
        assert open_memory_logs(NOWHERE, next_env.after_power_cut(Random(seed))).bounds(ORDERS).next_offset == 1


def test_sync_beside_a_commit_that_fails_is_refused() -> None:
    """The system tells of a failed write once: a sync that begins while a commit fails takes no success from it."""
    outcomes: list[StorageFailure | None] = []
    beside = Thread(target=lambda: outcomes.append(_failure_of(logs.sync)))
    commit_begins = False

    def fails(part: str) -> bool:
        nonlocal commit_begins
        if not commit_begins or part != "sync":
            return False
        commit_begins = False
        beside.start()
        beside.join(timeout=0.2)  # it has to wait for the commit; if it does not, it ends here
        return True

    logs = open_memory_logs(NOWHERE, MemoryEnvironment(fails=fails))
    with logs.write() as writer:
        writer.create(ORDERS)
    commit_begins = True
    with pytest.raises(StorageFailure, match="Input/output error"), logs.write() as writer:
        append(writer, ORDERS, 0, [0])
    beside.join()
    assert [str(outcome) for outcome in outcomes if outcome is not None and "earlier failure" in str(outcome)]


def _failure_of(work: Callable[[], None]) -> StorageFailure | None:
    try:
        work()
    except StorageFailure as failure:
        return failure
    return None


@pytest.mark.parametrize("part", ["pages", "sync", "pointer"])
def test_commit_that_fails_is_the_last_one(part: str) -> None:
    """Nothing more is written. A restart finds all before it, and it itself only if its pointer was on its way."""
    failing = False
    env = MemoryEnvironment(fails=lambda asked: failing and asked == part)
    logs = open_memory_logs(NOWHERE, env)
    with logs.write() as writer:
        writer.create(ORDERS)
    failing = True
    for refused in ("Input/output error", "earlier failure"):
        with pytest.raises(StorageFailure, match=refused), logs.write() as writer:
            append(writer, ORDERS, 0, [0])
    failing = False
    found = {open_memory_logs(NOWHERE, env.after_end(Random(n))).bounds(ORDERS).next_offset for n in range(20)}
    assert found == ({0, 1} if part == "pointer" else {0})
